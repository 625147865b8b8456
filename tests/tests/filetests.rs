//! Tests over textual IR: `tests/filetests/*/*.ir`.
//!
//! A file starts with `// run:` and a pipeline, in several such lines where it is long (`none` to only parse, verify and print; `emit` at the end to list the
//! schedule's operations, `order` to list those of a scheduled `@train` in issue order), then comments that say what it
//! shows, then a module. What is expected of it stands there in one of three ways:
//!
//! - directives (`// check:`, `// next:`, `// not:`) that match parts of the output: see [`fs_tests::filetest`];
//! - `// error:` at the lines at fault, those of the pipeline and its passes under the `// run:` line;
//! - the whole output, below a line `// expected`. `UPDATE_EXPECT=1 cargo test -p fs-tests --test filetests` writes it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fs_compiler::Strategy;
use fs_compiler::dialect;
use fs_compiler::emit::emit;
use fs_compiler::ir::{Module, verify};
use fs_compiler::passes::manager::{Log, Settings, parse_pipeline, run};
use fs_tests::filetest::{Found, Script};
use libtest_mimic::{Arguments, Failed, Trial};

const MARK: &str = "\n// expected\n";

/// Most characters of a line in a file: more is not read by anybody.
const WIDEST: usize = 160;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in fs::read_dir(&root).expect("filetests").flatten().filter(|f| f.path().is_dir()) {
        files.extend(fs::read_dir(folder.path()).expect("folder").flatten().map(|f| f.path()));
    }
    files.sort();
    let trials = files.into_iter().flat_map(|file| {
        let name = file.strip_prefix(&root).unwrap_or(&file).to_string_lossy().to_string();
        let narrow = file.clone();
        [
            Trial::test(format!("{name} (width)"), move || lines_are_short(&narrow)),
            Trial::test(name, move || check(&file)),
        ]
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn lines_are_short(file: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(file)?;
    match text.lines().enumerate().find(|(_, l)| l.chars().count() > WIDEST) {
        None => Ok(()),
        Some((i, _)) => Err(format!("line {} has more than {WIDEST} characters", i + 1).into()),
    }
}

fn check(file: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(file)?;
    let (input, expected) = match text.split_once(MARK) {
        Some((input, expected)) => (input, Some(expected)),
        None => (text.trim_end(), None),
    };
    let runs: Vec<&str> = input.lines().map_while(|l| l.strip_prefix("// run:")).map(str::trim).collect();
    if runs.is_empty() {
        return Err("no `// run:` line".into());
    }
    let pipeline = &runs.concat();
    let script = Script::parse(input)?;
    if usize::from(expected.is_some()) + usize::from(script.has_checks()) + usize::from(script.has_errors())
        > 1
    {
        return Err("a file expects its whole output, parts of it, or errors".into());
    }
    let output = match outcome(input, pipeline) {
        Err(errors) => {
            let all: Vec<String> = errors.iter().map(|e| format!("line {}: {}", e.line, e.message)).collect();
            return script
                .match_errors(&errors)
                .map_err(|e| format!("{e}\nall errors:\n{}", all.join("\n")).into());
        }
        Ok(_) if script.has_errors() => return Err("errors are expected, and none came".into()),
        Ok(output) => output,
    };
    if script.has_checks() {
        return script.match_output(&output).map_err(|e| format!("{e}\nthe output:\n{output}").into());
    }
    if expected.is_some_and(|e| e.trim_end() == output.trim_end()) {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(file, format!("{input}{MARK}{}\n", output.trim_end()))?;
        return Ok(());
    }
    Err(format!("expected:\n{}\nactual:\n{output}", expected.unwrap_or("nothing yet")).into())
}

/// The printed module or listing, or errors with their lines.
fn outcome(input: &str, pipeline: &str) -> Result<String, Vec<Found>> {
    let (mut module, lines) = dialect::parse_with_lines(input).map_err(|e| {
        vec![Found { line: e.line, message: format!("syntax, column {}: {}", e.column, e.message) }]
    })?;
    let errors = verify::verify(&module);
    if !errors.is_empty() {
        let found = |e: &verify::VerifyError| Found {
            line: lines.of(e.op).unwrap_or_default(),
            message: format!("{} {}", module.op(e.op).def.name, e.broken),
        };
        return Err(errors.iter().map(found).collect());
    }
    round_trips(&module);
    // Errors of the pipeline and its passes belong to the line that says what is run.
    let failed = |message: String| vec![Found { line: 1, message }];
    let views = ["emit", "order"];
    let view = views.into_iter().find(|view| pipeline.ends_with(view));
    let passes = match view {
        Some(view) => pipeline.trim_end_matches(view).trim_end_matches(','),
        None if pipeline == "none" => "",
        None => pipeline,
    };
    let stages = parse_pipeline(passes).map_err(|e| failed(e.to_string()))?;
    run(&mut module, &stages, Settings::default(), &mut Log::default()).map_err(|e| failed(e.to_string()))?;
    round_trips(&module);
    match view {
        None => Ok(module.to_string()),
        Some("order") => Ok(order(&module)),
        Some(_) => emit(&module, Strategy::Serial, 2)
            .map(|schedule| list(&schedule.train))
            .map_err(|e| failed(e.to_string())),
    }
}

fn round_trips(module: &Module) {
    let printed = module.to_string();
    let again = dialect::parse(&printed).expect("printed IR parses").to_string();
    assert_eq!(printed, again, "printing and parsing round-trip");
}

/// Operations of a scheduled `@train` in issue order: engine, stage, priority, name, class or classes.
fn order(module: &Module) -> String {
    let body = &module.func("train").expect("@train").body;
    let mut text = String::new();
    for op in body.iter().map(|id| module.op(*id)) {
        let Some(p) = &op.placement else { continue };
        if matches!(op.def.name, "model.split" | "model.concat") {
            continue;
        }
        let class = ["class", "classes", "way"].iter().find_map(|key| op.attrs.get(*key));
        let class = class.map_or(String::new(), |c| format!(" {c}"));
        let part = op.microbatch.map_or(String::new(), |m| format!(" microbatch {m}"));
        let engine = format!("{:?}", p.engine).to_lowercase();
        let _ =
            writeln!(text, "{engine:8} {:+} priority {} {}{class}{part}", p.stage, p.priority, op.def.name);
    }
    text
}

/// Operations of a program, one a line.
fn list(program: &fs_schedule::Program) -> String {
    let mut text = String::new();
    for (i, op) in program.ops.iter().enumerate() {
        let join =
            |l: &[fs_schedule::Operand]| l.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let deps: Vec<String> = op
            .deps
            .iter()
            .map(|d| if d.distance == 0 { d.op.to_string() } else { format!("{}@{}", d.op, d.distance) })
            .collect();
        let _ = writeln!(
            text,
            "{i}: {} ({}) -> ({}) after [{}]",
            op.name,
            join(&op.reads),
            join(&op.writes),
            deps.join(" ")
        );
    }
    for (i, b) in program.buffers.iter().enumerate() {
        let _ =
            writeln!(text, "b{i}: {} x {} slot {} life {}..={}", b.rows, b.columns, b.slot, b.first, b.last);
    }
    text
}
