//! `fsc opt` from outside: pipelines, what is printed after which pass, and what happens when a pass goes wrong.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fs_compiler::passes::PASSES;
use tempfile::TempDir;

const MODEL: &str = "model tiny {
  table items { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 5 }
  input click: label like history
  let x = lookup(history)
  loss bce_with_logits(linear(1.0 * x, 1, name: \"head\"), click, normalize: tokens)
}

train { batch 4  steps 2 }

workload synthetic { generate { lengths fixed(3) } }
";

/// A folder to work in, with `model.fs` and its import `model.ir`.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(TempDir::new().expect("a temporary folder"));
        fs::write(place.path("model.fs"), MODEL).expect("written");
        let imported = place.opt(&["model.fs"]);
        assert!(imported.status.success(), "{}", text(&imported.stderr));
        fs::write(place.path("model.ir"), &imported.stdout).expect("written");
        place
    }
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
        command.current_dir(self.0.path()).arg("opt").args(args);
        command
    }
    fn opt(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("fsc starts")
    }
    /// Standard output and standard error of a success.
    fn succeeds(&self, args: &[&str]) -> (String, String) {
        let out = self.opt(args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        (text(&out.stdout), text(&out.stderr))
    }
    /// What a failure says: all of `parts`, in one error and not by a panic of the process.
    fn fails(&self, args: &[&str], parts: &[&str]) -> String {
        let out = self.opt(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?} must fail with an error: {said}");
        assert!(out.stdout.is_empty(), "{args:?}: a failure prints no module");
        assert_eq!(said.matches("error:").count(), 1, "{args:?}: {said}");
        assert!(!said.contains("panicked at") && !said.contains("RUST_BACKTRACE"), "{args:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{args:?} must say `{part}`, says:\n{said}");
        }
        said
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.to_string_lossy()))
}

#[test]
fn the_output_is_input_again() {
    let place = Place::new();
    let (once, _) = place.succeeds(&["model.ir"]);
    assert_eq!(once, read(&place.path("model.ir")));
    // One pass after the other through files is the same as one pipeline.
    let (all, _) = place.succeeds(&[
        "model.fs",
        "--pipeline",
        "canonicalize, plan-sharding ,differentiate,lower-exchanges{unique=false}",
    ]);
    let mut step = once;
    for pass in ["canonicalize", "plan-sharding", "differentiate", "lower-exchanges{unique=false}"] {
        fs::write(place.path("step.ir"), &step).expect("written");
        step = place.succeeds(&["step.ir", "--pipeline", pass]).0;
    }
    assert_eq!(step, all);
    assert!(all.contains("func @train") && all.contains("comm.all_to_all_rows"));
}

#[test]
fn standard_input_is_read() {
    let place = Place::new();
    let mut child = place.command(&["-", "--pipeline", "differentiate"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("fsc starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(read(&place.path("model.ir")).as_bytes()).expect("sent");
    drop(stdin);
    let out = child.wait_with_output().expect("fsc ends");
    assert!(out.status.success() && text(&out.stdout).contains("func @train"));
}

#[test]
fn the_ir_is_printed_after_the_passes_asked_for() {
    let place = Place::new();
    let heads = |log: &str| -> Vec<String> {
        log.lines().filter_map(|l| l.strip_prefix("// after ")).map(str::to_owned).collect()
    };
    // The scale by 1 folds; the second canonicalize finds nothing; dce finds the table's use gone with nothing.
    let pipeline = ["model.ir", "--pipeline", "canonicalize,canonicalize,differentiate"];
    let with = |flag: &str| place.succeeds(&[&pipeline[..], &[flag]].concat());
    let (out, log) = with("--print-ir-after-all");
    assert_eq!(heads(&log), ["canonicalize", "canonicalize", "differentiate"]);
    assert!(log.ends_with(&out), "the last module printed is the result");
    let (_, log) = with("--print-ir-after-change");
    assert_eq!(heads(&log), ["canonicalize", "differentiate"]);
    assert!(!log.contains("model.scale"), "what is printed is what the pass left");
    let (_, log) = with("--print-ir-after-failure");
    assert_eq!(log, "", "nothing failed");
    let (_, log) = place.succeeds(&pipeline);
    assert_eq!(log, "");
}

#[test]
fn a_failed_pass_is_printed_on_request() {
    let place = Place::new();
    let run = ["model.ir", "--pipeline", "canonicalize,debug-invalidate"];
    let said = place
        .fails(&[&run[..], &["--print-ir-after-failure"]].concat(), &["// after debug-invalidate (failed)"]);
    let printed = &said[said.find("func @forward").expect("the module")..];
    assert!(printed.find("bce_with_logits") < printed.find("model.lookup"), "what the pass left: {said}");
    assert!(!place.fails(&run, &[]).contains("func @forward"));
}

#[test]
fn times_and_counters() {
    let place = Place::new();
    let run = ["model.ir", "--pipeline", "canonicalize,dce,differentiate"];
    let (_, log) = place.succeeds(&[&run[..], &["--timing"]].concat());
    let shares: f64 = log
        .lines()
        .filter(|l| !l.ends_with("total"))
        .map(|l| {
            l.split_whitespace()
                .nth(2)
                .and_then(|p| p.strip_suffix('%')?.parse::<f64>().ok())
                .expect("a share")
        })
        .sum();
    assert!((99.0..101.0).contains(&shares), "{log}");
    for line in ["canonicalize", "dce", "differentiate", "(verification)", "total"] {
        assert_eq!(log.lines().filter(|l| l.ends_with(line)).count(), 1, "{log}");
    }
    let (_, log) = place.succeeds(&[&run[..], &["--statistics"]].concat());
    let counts: Vec<&str> = log.lines().map(|l| l.split(':').next().unwrap_or_default().trim()).collect();
    assert!(counts.contains(&"1 folded") && counts.contains(&"0 flattened"), "zeros are shown: {log}");
    assert!(counts.contains(&"0 removed"), "{log}");
    // Of a failed run too: where the time went matters most then.
    place.fails(
        &["model.ir", "--pipeline", "dce,debug-fail", "--timing"],
        &["dce", "debug-fail", "(verification)"],
    );
}

#[test]
fn a_pass_that_panics_leaves_a_reproducer() {
    let place = Place::new();
    let pipeline = "canonicalize,debug-panic{message=out of cheese},dce";
    let said = place.fails(
        &["model.fs", "--pipeline", pipeline, "--reproducer", "r.ir"],
        &["`debug-panic` crashed", "out of cheese", "debug.rs:", "defect of the compiler", "fsc opt r.ir"],
    );
    let kept = read(&place.path("r.ir"));
    assert!(kept.starts_with("// fsc opt --pipeline \"debug-panic{message=out of cheese},dce\"\n"), "{kept}");
    let (before, _) = place.succeeds(&["model.fs", "--pipeline", "canonicalize"]);
    assert_eq!(
        kept.split_once('\n').map(|(_, module)| module),
        Some(before.as_str()),
        "the IR before the pass"
    );
    // It needs nothing but its name, and makes itself again.
    assert_eq!(place.fails(&["r.ir", "--reproducer", "r.ir"], &[]), said);
    assert_eq!(read(&place.path("r.ir")), kept);
    // A pipeline on the command line goes before its own.
    assert_eq!(place.succeeds(&["r.ir", "--pipeline", ""]).0, before);
}

#[test]
fn a_pass_that_leaves_an_invalid_module_leaves_a_reproducer() {
    let place = Place::new();
    let parts = ["`debug-invalidate` left an invalid module", "used before it is defined"];
    let args = ["model.fs", "--pipeline", "dce,debug-invalidate"];
    place.fails(&args, &parts);
    place.fails(&["fsc-reproducer.ir"], &parts);
    assert!(
        read(&place.path("fsc-reproducer.ir")).starts_with("// fsc opt --pipeline \"debug-invalidate\"\n")
    );
}

#[test]
fn verification_can_be_switched_off() {
    let place = Place::new();
    let (out, _) = place.succeeds(&["model.ir", "--pipeline", "debug-invalidate", "--verify-each=false"]);
    assert!(out.find("bce_with_logits") < out.find("model.lookup"));
    // What a pass then makes of it fails later, and fails the same way again.
    fs::write(place.path("invalid.ir"), &out).expect("written");
    place.fails(&["invalid.ir"], &["invalid.ir is not valid", "^ line ", "used before it is defined"]);
    let pipeline = "debug-invalidate,debug-fail";
    let args = ["model.ir", "--pipeline", pipeline, "--verify-each=false", "--reproducer", "r.ir"];
    let said = place.fails(&args, &["`debug-fail` failed: as asked"]);
    assert_eq!(place.fails(&["r.ir", "--reproducer", "r.ir"], &[]), said);
    place.fails(&["r.ir", "--verify-each"], &["r.ir is not valid"]);
}

#[test]
fn a_failed_pass_leaves_a_reproducer_that_fails_the_same_way() {
    let place = Place::new();
    // Twice: the forward function is gone after the first.
    let parts = ["`differentiate` failed", "no function `@forward`"];
    place.fails(&["model.fs", "--pipeline", "differentiate,differentiate", "--reproducer", "r.ir"], &parts);
    assert!(read(&place.path("r.ir")).starts_with("// fsc opt --pipeline \"differentiate\"\n"));
    place.fails(&["r.ir", "--reproducer", "/dev/null"], &parts);
    place.fails(
        &["r.ir", "--reproducer", "no/such/folder.ir"],
        &["could not be written to no/such/folder.ir"],
    );
}

#[test]
fn bad_pipelines_and_bad_ir_are_errors() {
    let place = Place::new();
    place.fails(&["model.fs", "--pipeline", "nonsense"], &["nonsense", "canonicalize"]);
    for broken in ["dce{x", "dce,", ",dce", "dce,,dce", "dce{}x", "{}", "lower-exchanges{unique}"] {
        place.fails(&["model.fs", "--pipeline", broken], &["is not of the form"]);
    }
    place.fails(&["model.fs", "--pipeline", "dce{x=1}"], &["`dce` has no option `x`", "none"]);
    let twice = "lower-exchanges{unique=true,unique=false}";
    place.fails(&["model.fs", "--pipeline", twice], &["`unique`", "twice"]);
    place.fails(&[], &["give a file"]);
    place.fails(&["missing.ir"], &["missing.ir"]);
    fs::write(place.path("bad.ir"), "module \"m\" {} {\n  %0: real<B x 1> = model.nothing\n}")
        .expect("written");
    place.fails(&["bad.ir"], &["bad.ir", "line 2", "model.nothing"]);
}

#[test]
fn help_and_the_list_come_from_the_table() {
    let place = Place::new();
    let (list, _) = place.succeeds(&["--list-passes"]);
    let (help, _) = place.succeeds(&["--help"]);
    for pass in PASSES {
        assert!(list.lines().any(|l| l == pass.name), "{list}");
        assert!(help.contains(pass.summary), "{help}");
        for (option, default, _) in pass.options {
            assert!(list.contains(&format!("{{{option}={default}}}")), "{list}");
        }
    }
    assert!(!list.contains("debug-"), "passes that go wrong on purpose are not offered");
}
