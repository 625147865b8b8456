//! `fsc explain`: a schedule, or a diagnostic's code.

use std::path::PathBuf;

use fs_schedule::file;
use fs_schedule::terminal::{shown, word};

use super::failure::Failure;
use super::print;

/// Arguments of `fsc explain`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A schedule, or the code of a diagnostic such as FS0012.
    what: PathBuf,
    /// Explain this operation of the schedule only.
    #[arg(long, value_parser = word)]
    op: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let text = shown(&args.what);
    let is_code = text.strip_prefix("FS").is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit()));
    if is_code && !args.what.exists() {
        return code(&text);
    }
    if !args.what.exists() && args.what.extension().is_none() {
        return Err(Failure::Usage(format!(
            "there is no schedule and no diagnostic `{text}`; codes look like FS0012, see docs/language.md"
        )));
    }
    let s = file::read(&args.what)?;
    let mut explanation = fs_compiler::sched::explain::explain(&s).ok_or_else(|| {
        Failure::Found(format!("{text} has no prediction; compile it again with this version"))
    })?;
    let unknown = || {
        let op = args.op.as_deref().unwrap_or_default();
        Failure::Usage(format!("{text} has no operation `{op}`; `fsc explain {text}` lists them"))
    };
    if args.json {
        if let Some(name) = &args.op {
            explanation.operations.retain(|o| o.op == *name);
            let op = explanation.operations.first().ok_or_else(unknown)?;
            return print(&format!("{}\n", serde_json::to_string_pretty(op)?));
        }
        return print(&format!("{}\n", serde_json::to_string_pretty(&explanation)?));
    }
    print(&explanation.text(args.op.as_deref()).ok_or_else(unknown)?)
}

fn code(code: &str) -> Result<(), Failure> {
    match fs_dsl::codes::find(code) {
        Some(entry) => print(&format!("{}: {}\n\n{}\n", entry.code, entry.title, entry.explanation)),
        None => Err(Failure::Usage(format!(
            "there is no diagnostic `{code}`; codes look like FS0012, see docs/language.md"
        ))),
    }
}
