//! `fsc opt`: passes on textual IR.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use fs_compiler::dialect;
use fs_compiler::ir::{Module, parse, verify};
use fs_compiler::passes::manager::{self, Log, Print, Settings, parse_pipeline};
use fs_compiler::passes::{PASSES, Pass};
use fs_schedule::terminal::{self, shown};

use super::commands::{MOST_BYTES, load};
use super::failure::Failure;
use super::print;

/// Arguments of `fsc opt`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[command(after_long_help = passes())]
pub(super) struct Args {
    /// Textual IR (`-`: standard input), a `.fs` model, or the reproducer of a failed pass.
    file: Option<PathBuf>,
    /// Passes, for example `canonicalize,lower-exchanges{unique=false}`; a reproducer brings its own.
    #[arg(long, value_parser = terminal::word)]
    pipeline: Option<String>,
    /// Print the IR after every pass (standard error).
    #[arg(long)]
    print_ir_after_all: bool,
    /// Print the IR after passes that changed it.
    #[arg(long)]
    print_ir_after_change: bool,
    /// Print the IR after a pass that failed.
    #[arg(long)]
    print_ir_after_failure: bool,
    /// Verify the input and what every pass leaves [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    verify_each: Option<bool>,
    /// Print the time of each pass (standard error).
    #[arg(long)]
    timing: bool,
    /// Print what each pass counted (standard error).
    #[arg(long)]
    statistics: bool,
    /// Where the reproducer of a failed pass goes: the IR before it and the pipeline from there.
    #[arg(long, value_name = "FILE", default_value = "fsc-reproducer.ir")]
    reproducer: PathBuf,
    /// List passes with their options and counters, and stop.
    #[arg(long)]
    list_passes: bool,
    /// Print the documentation of passes (docs/passes.md) and stop.
    #[arg(long, hide = true)]
    document_passes: bool,
    /// Print the documentation of operations (docs/ir-operations.md) and stop.
    #[arg(long, hide = true)]
    document_operations: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.document_passes {
        return print(&fs_compiler::passes::document());
    }
    if args.document_operations {
        return print(&fs_compiler::dialect::document());
    }
    if args.list_passes {
        return print(&PASSES.iter().map(describe).collect::<String>());
    }
    let file = args
        .file
        .as_ref()
        .ok_or_else(|| Failure::usage("give a file with textual IR or a model; see `fsc opt --help`"))?;
    let input = read(file)?;
    let (brought, verifies) = match &input {
        Input::Text(text) => manager::reproduces(text).unwrap_or(("", true)),
        Input::Model(_) => ("", true),
    };
    let stages = parse_pipeline(args.pipeline.as_deref().unwrap_or(brought))?;
    let verify_each = args.verify_each.unwrap_or(verifies);
    let (mut module, lines) = match input {
        Input::Text(text) => dialect::parse_with_lines(&text).map_err(Failure::of(file))?,
        Input::Model(module) => (*module, parse::Lines::default()),
    };
    if verify_each {
        let errors = verify::verify(&module);
        if !errors.is_empty() {
            let errors = verify::render_with_lines(&module, &errors, &lines);
            return Err(Failure::Found(format!("{} is not valid:\n{errors}", shown(file))));
        }
    }
    let printed = match (args.print_ir_after_all, args.print_ir_after_change) {
        (true, _) => Print::All,
        (false, true) => Print::Changes,
        (false, false) => Print::Never,
    };
    let settings = Settings::default()
        .verify_each(verify_each)
        .print(printed)
        .print_after_failure(args.print_ir_after_failure);
    let mut log = Log::default();
    let outcome = manager::run(&mut module, &stages, settings, &mut log);
    say!("{}", log.text);
    if args.timing {
        say!("{}", log.timing());
    }
    if args.statistics {
        say!("{}", log.statistics());
    }
    match outcome {
        Ok(()) => print(&module.to_string()),
        Err(e) => {
            let path = shown(&args.reproducer);
            let kept = match fs_schedule::file::write_atomically(&args.reproducer, e.reproducer.as_bytes()) {
                Ok(()) => format!("`fsc opt {path}` fails the same way"),
                Err(why) => format!("a reproducer could not be written to {path}: {why}"),
            };
            Err(Failure::Found(format!("{e}\n{kept}")))
        }
    }
}

/// What there is to run passes on.
enum Input {
    /// Textual IR.
    Text(String),
    /// An imported model.
    Model(Box<Module>),
}

fn read(file: &Path) -> Result<Input, Failure> {
    if file.extension().is_some_and(|e| e == "fs") {
        let module = fs_compiler::import::import(&load(file)?)?;
        return Ok(Input::Model(Box::new(module)));
    }
    let text = if file == Path::new("-") {
        fs_schedule::file::read_text_from(std::io::stdin(), MOST_BYTES)
    } else {
        fs_schedule::file::read_text(file, MOST_BYTES)
    };
    let text = text.map_err(Failure::read(file))?;
    if terminal::steers_plainly(&text) {
        return Err(Failure::Found(format!("{}: it has characters that steer a terminal", shown(file))));
    }
    Ok(Input::Text(text))
}

/// A pass with its options and counters, for people.
fn describe(pass: &Pass) -> String {
    let mut text = format!("{}\n    {}\n", pass.name, pass.summary);
    for (name, default, meaning) in pass.options {
        let _ = writeln!(text, "    {{{name}={default}}}  {meaning}");
    }
    for (name, meaning) in pass.statistics {
        let _ = writeln!(text, "    counts {name}: {meaning}");
    }
    text
}

fn passes() -> String {
    format!("Passes:\n{}", PASSES.iter().map(describe).collect::<String>())
}
