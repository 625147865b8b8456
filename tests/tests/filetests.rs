//! Tests over textual IR: `tests/filetests/*/*.ir`.
//!
//! A file starts with `// run:` and a pipeline (`none` to only parse, verify and print; `emit` at the end to list the
//! schedule's operations, `order` to list those of a scheduled `@train` in issue order), then comments that say what it shows, then a module, then a line `// expected` and the
//! expected output, or the error. `UPDATE_EXPECT=1 cargo test --test filetests` rewrites expectations.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use fs_compiler::emit::{Strategy, emit};
use fs_compiler::ir::{Module, parse, verify};
use fs_compiler::passes::manager::{Log, Settings, parse_pipeline, run};
use libtest_mimic::{Arguments, Failed, Trial};

const MARK: &str = "\n// expected\n";

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in fs::read_dir(&root).expect("filetests").flatten().filter(|f| f.path().is_dir()) {
        files.extend(fs::read_dir(folder.path()).expect("folder").flatten().map(|f| f.path()));
    }
    files.sort();
    let trials = files.into_iter().map(|file| {
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        Trial::test(name, move || check(&file))
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn check(file: &Path) -> Result<(), Failed> {
    let text = fs::read_to_string(file)?;
    let (input, expected) = text.split_once(MARK).unwrap_or((text.trim_end(), ""));
    let pipeline =
        input.lines().next().and_then(|l| l.strip_prefix("// run:")).ok_or("no `// run:` line")?.trim();
    let actual = outcome(input, pipeline);
    if actual.trim_end() == expected.trim_end() {
        return Ok(());
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(file, format!("{input}{MARK}{}\n", actual.trim_end()))?;
        return Ok(());
    }
    Err(format!("expected:\n{expected}\nactual:\n{actual}").into())
}

/// The printed module, listing or error.
fn outcome(input: &str, pipeline: &str) -> String {
    let mut module = match parse::parse(input) {
        Ok(m) => m,
        Err(e) => return format!("syntax: {e}"),
    };
    let errors = verify::verify(&module);
    if !errors.is_empty() {
        return format!("invalid:\n{}", verify::render(&module, &errors));
    }
    round_trips(&module);
    let views = ["emit", "order"];
    let view = views.into_iter().find(|view| pipeline.ends_with(view));
    let passes = match view {
        Some(view) => pipeline.trim_end_matches(view).trim_end_matches(','),
        None if pipeline == "none" => "",
        None => pipeline,
    };
    let stages = match parse_pipeline(passes) {
        Ok(s) => s,
        Err(e) => return format!("pipeline: {e}"),
    };
    if let Err(e) = run(&mut module, &stages, Settings::default(), &mut Log::default()) {
        return format!("error: {e}");
    }
    round_trips(&module);
    match view {
        None => return module.to_string(),
        Some("order") => return order(&module),
        Some(_) => {}
    }
    match emit(&module, Strategy::Serial, 2) {
        Ok(schedule) => list(&schedule.train),
        Err(e) => format!("error: {e}"),
    }
}

fn round_trips(module: &Module) {
    let printed = module.to_string();
    let again = parse::parse(&printed).expect("printed IR parses").to_string();
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
