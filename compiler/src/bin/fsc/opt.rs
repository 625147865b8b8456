//! `fsc opt`: passes on textual IR.

use std::path::PathBuf;

use fs_compiler::ir::{Module, parse, verify};
use fs_compiler::passes::manager::{Log, Print, Settings, parse_pipeline, run as run_passes};

use super::commands::load;
use super::print;

/// Arguments of `fsc opt`.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(super) struct Args {
    /// Textual IR, or a `.fs` model.
    file: Option<PathBuf>,
    /// Passes, for example `canonicalize,lower-exchanges{unique=false}`.
    #[arg(long, default_value = "")]
    pipeline: String,
    /// Print the IR after every pass (standard error).
    #[arg(long)]
    print_ir_after_all: bool,
    /// Print the IR after passes that changed it.
    #[arg(long)]
    print_ir_after_change: bool,
    /// Print the IR after a pass that failed.
    #[arg(long)]
    print_ir_after_failure: bool,
    /// Verify after every pass.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    verify_each: bool,
    /// Print each pass's time and counters (standard error).
    #[arg(long)]
    timing: bool,
    /// Where a failed pass's input goes.
    #[arg(long, default_value = "fsc-reproducer.ir")]
    reproducer: PathBuf,
    /// List passes and stop.
    #[arg(long)]
    list_passes: bool,
    /// Print the documentation of passes (docs/passes.md) and stop.
    #[arg(long, hide = true)]
    document_passes: bool,
    /// Print the documentation of operations (docs/ir-operations.md) and stop.
    #[arg(long, hide = true)]
    document_operations: bool,
}

pub(super) fn run(args: &Args) -> Result<(), String> {
    if args.document_passes {
        return print(&fs_compiler::passes::document());
    }
    if args.document_operations {
        return print(&fs_compiler::dialect::document());
    }
    if args.list_passes {
        let lines: Vec<String> =
            fs_compiler::passes::PASSES.iter().map(|p| format!("{:<18} {}\n", p.name, p.summary)).collect();
        return print(&lines.concat());
    }
    let file = args.file.as_ref().ok_or("give a file with textual IR or a model; see `fsc opt --help`")?;
    let stages = parse_pipeline(&args.pipeline).map_err(|e| e.to_string())?;
    let mut module = read(file)?;
    let errors = verify::verify(&module);
    if !errors.is_empty() {
        return Err(format!("{} is not valid:\n{}", file.display(), verify::render(&module, &errors)));
    }
    let settings = Settings {
        verify_each: args.verify_each,
        print: match (args.print_ir_after_all, args.print_ir_after_change) {
            (true, _) => Print::All,
            (false, true) => Print::Changes,
            (false, false) => Print::Never,
        },
        print_after_failure: args.print_ir_after_failure,
    };
    let mut log = Log::default();
    let outcome = run_passes(&mut module, &stages, settings, &mut log);
    eprint!("{}", log.text);
    if args.timing {
        for (name, time, statistics) in &log.passes {
            let counters: Vec<String> = statistics.0.iter().map(|(k, v)| format!("{k} {v}")).collect();
            eprintln!("{name:<18} {:>9.3} ms  {}", time.as_secs_f64() * 1e3, counters.join(", "));
        }
    }
    match outcome {
        Ok(()) => print(&module.to_string()),
        Err(e) => {
            let path = args.reproducer.display();
            let kept = match std::fs::write(&args.reproducer, &e.reproducer) {
                Ok(()) => format!("its input is in {path}"),
                Err(why) => format!("its input could not be written to {path}: {why}"),
            };
            Err(format!("{e}\n{kept}"))
        }
    }
}

fn read(file: &std::path::Path) -> Result<Module, String> {
    if file.extension().is_some_and(|e| e == "fs") {
        return fs_compiler::import::import(&load(file)?).map_err(|e| e.to_string());
    }
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    parse::parse(&text).map_err(|e| format!("{}: {e}", file.display()))
}
