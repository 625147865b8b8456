//! What else can be made of a checkpoint: one file and back, without optimizer states, a comparison; and which one is kept for
//! its scores.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fs_compiler::Strategy;
use fs_executor::Session;
use fs_executor::weights::{checkpoints, convert, differences};
use fs_tests::binary;
use fs_tests::training::{SHARDINGS, compile, leaving, model, options, session, state};

fn fsx(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary("fsx"));
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn printed(out: &Output) -> String {
    assert!(out.status.success(), "{}", said(out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Header as JSON, and the bytes of all tensors.
fn parts(path: &Path) -> (serde_json::Value, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), bytes[8 + length..].to_vec())
}

/// One file of a checkpoint has the bytes that the run would have saved, and a checkpoint made from it goes on as the first does.
#[test]
fn to_one_file_and_back() {
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        let optimizer = ["adagrad(lr: 0.1)", "adam(lr: 0.01)", "sgd(lr: 0.1)"][n % 3];
        let text = model(sharding, optimizer, 60, true);
        let schedule = compile(&text, Strategy::Pec, [1, 2, 3, 4, 3, 4][n], 1, 1);
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut trained = session(&schedule, options().checkpoint(leaving(&at("c"), 100, 1)));
        trained.run(&mut ()).unwrap();
        trained.save(&at("saved.safetensors")).unwrap();
        let one = convert(&at("c"), &at("one.safetensors"), false).unwrap();
        assert_eq!(one.dropped, 0);
        let ((mut header, values), (saved, wanted)) = (parts(&one.path), parts(&at("saved.safetensors")));
        assert!(values == wanted, "{sharding}");
        // Only what a saved file does not know is said beside.
        let about = header["__metadata__"]["fsx"].as_str().unwrap();
        let mut about: serde_json::Value = serde_json::from_str(about).unwrap();
        assert!(about.as_object_mut().unwrap().remove("run").is_some());
        let wanted: serde_json::Value =
            serde_json::from_str(saved["__metadata__"]["fsx"].as_str().unwrap()).unwrap();
        assert_eq!(about, wanted);
        header["__metadata__"] = saved["__metadata__"].clone();
        assert_eq!(header, saved);
        for other in [at("one.safetensors"), at("saved.safetensors")] {
            let found = differences(&at("c"), &other).unwrap();
            assert!(found.tensors.is_empty() && found.equal > 4, "{sharding}: {found:?}");
        }
        let back = convert(&one.path, &at("back"), false).unwrap();
        assert_eq!(back.path, at("back").join("step-000000000007"));
        let on = |name: &str| {
            let mut session = session(&schedule, options().resume(at(name)).steps(12));
            session.run(&mut ()).unwrap();
            state(&session).unwrap()
        };
        assert_eq!(on("c"), on("back"), "{sharding}");
        // And without states.
        for (from, to) in [("c", "small.safetensors"), ("c", "small"), ("one.safetensors", "less")] {
            let small = convert(&at(from), &at(to), true).unwrap();
            let parameters = schedule.parameters.len();
            let states = [2, 4, 0][n % 3] + 2 * parameters;
            assert_eq!(small.dropped, states, "{sharding} {from} {to}");
            let started = session(&schedule, options().init(small.path));
            assert_eq!((started.next_step(), started.taken().unwrap().no_state.len()), (0, states));
            let weights = |session: &Session<f32>| {
                let tables = (0..2).map(|t| session.table(t).unwrap());
                tables.chain((0..parameters).map(|p| session.parameter(p))).collect::<Vec<_>>()
            };
            assert_eq!(weights(&started), weights(&trained), "{sharding} {from} {to}");
        }
        let goes_on = Session::<f32>::new(schedule.clone(), options().resume(at("small")));
        let said = goes_on.err().unwrap().to_string();
        assert!(said.contains("it has no optimizer state"), "{said}");
    }
}

/// What differs is found, counted and named, whichever ranks have it.
#[test]
fn differences_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let leave = |name: &str, sharding: &str, ranks: u32, steps: u64, rows: u32| {
        let text = model(sharding, "adagrad(lr: 0.1)", rows, true);
        let schedule = compile(&text, Strategy::Pec, ranks, 1, 1);
        let options = options().checkpoint(leaving(&at(name), 100, 1)).steps(steps);
        session(&schedule, options).run(&mut ()).unwrap();
    };
    leave("a", "row_wise(placement: hashed)", 3, 4, 60);
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        let name = format!("b{n}");
        leave(&name, sharding, 3, 4, 60);
        let out = fsx(folder.path(), &["checkpoint", "a", "--compare", &name]);
        let text = printed(&out);
        assert!(text.lines().count() == 1 && text.contains("are equal in every bit"), "{sharding}: {text}");
    }
    leave("later", "row_wise", 3, 5, 60);
    leave("other", "row_wise", 3, 4, 61);
    let differs = |a: &str, b: &str, words: &[&str]| {
        let out = fsx(folder.path(), &["checkpoint", a, "--compare", b]);
        let text = String::from_utf8(out.stdout.clone()).unwrap() + &said(&out);
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    };
    differs("a", "later", &["steps: 4 in a, 5 in later", "table.a: ", "480 elements differ, by at most "]);
    differs("a", "other", &["table.a: F32 [60, 8] in a, F32 [61, 8] in other"]);
    differs("a", "nowhere", &["nowhere"]);
    // One number in one file.
    convert(&at("a"), &at("one.safetensors"), false).unwrap();
    let mut bytes = fs::read(at("one.safetensors")).unwrap();
    let (header, _) = parts(&at("one.safetensors"));
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let begin = header["table.b"]["data_offsets"][0].as_u64().unwrap() as usize;
    let place = 8 + length + begin + 4 * 77;
    let was = f32::from_le_bytes(bytes[place..place + 4].try_into().unwrap());
    bytes[place..place + 4].copy_from_slice(&(was + 0.5).to_le_bytes());
    fs::write(at("changed.safetensors"), bytes).unwrap();
    differs("a", "changed.safetensors", &["table.b: 1 of 320 elements differ, by at most 5.000e-1"]);
    let out = fsx(folder.path(), &["checkpoint", "a", "--compare", "changed.safetensors", "--json"]);
    let found: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(found["tensors"].as_array().unwrap().len(), 1);
    assert_eq!((&found["tensors"][0]["elements"], &found["tensors"][0]["most"]), (&1.into(), &0.5.into()));
    // Without states they are missing there.
    convert(&at("a"), &at("small.safetensors"), true).unwrap();
    differs("a", "small.safetensors", &["table.a/sum: only in a"]);
    differs("small.safetensors", "a", &["table.a/sum: only in a"]);
}

/// Nothing is lost by a wrong word.
#[test]
fn conversions_replace_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let schedule = compile(&model("row_wise", "adagrad(lr: 0.1)", 60, true), Strategy::Pec, 2, 1, 1);
    let mut trained = session(&schedule, options().checkpoint(leaving(&at("c"), 2, 9)));
    trained.run(&mut ()).unwrap();
    trained.save(&at("saved.safetensors")).unwrap();
    // It keeps others out of its folder.
    drop(trained);
    let step = "c/step-000000000007";
    let before = fs::read(at(step).join("rank-00000.safetensors")).unwrap();
    let refused = |arguments: &[&str], words: &[&str]| {
        let out = fsx(folder.path(), &[&["checkpoint"], arguments].concat());
        let said = said(&out);
        assert!(matches!(out.status.code(), Some(1 | 2)), "{arguments:?}: {said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    refused(&["c", "--to", "c"], &["over itself"]);
    refused(&[step, "--to", "c", "--weights-only"], &["is there already"]);
    refused(&["c", "--to", "no/such/place.safetensors"], &["place.safetensors"]);
    refused(&["c", "--to", "saved.safetensors/x"], &["saved.safetensors"]);
    assert!(!at("no").exists());
    refused(&["c", "--to", "saved.safetensors"], &["is there already"]);
    // Nor does a refusal leave anything.
    fs::create_dir_all(at("there/step-000000000007")).unwrap();
    fs::write(at("there/step-000000000007/manifest.json"), "{}").unwrap();
    refused(&["c", "--to", "there"], &["is there already"]);
    assert!(!at("there/lock").exists());
    // Of whichever step: it may be another run's.
    fs::rename(at("there/step-000000000007"), at("there/step-000000000003")).unwrap();
    refused(&["c", "--to", "there"], &["is there already"]);
    let within = format!("{step}/rank-00000.safetensors");
    refused(&["c", "--to", &within], &["is there already"]);
    refused(&["c", "--to", &format!("{step}/one.safetensors")], &["would lie in the checkpoint"]);
    refused(&["saved.safetensors", "--to", &format!("{step}/more")], &["would lie in the checkpoint"]);
    assert_eq!(fs::read(at(&within)).unwrap(), before);
    refused(&["saved.safetensors"], &["is a file"]);
    refused(&["c", "--weights-only"], &["--to"]);
    refused(&["c", "--to", "d", "--compare", "c"], &["--compare"]);
    refused(&["nowhere", "--to", "d"], &["nowhere"]);
    refused(&["c", "--compare", "empty"], &["empty"]);
    fs::write(at("text.safetensors"), "no tensors").unwrap();
    refused(&["text.safetensors", "--to", "d"], &["is not a safetensors file"]);
    // What a run has saved does not say what data that was.
    assert!(
        printed(&fsx(folder.path(), &["checkpoint", "saved.safetensors", "--to", "d"]))
            .contains("d/step-000000000007")
    );
    fs_schedule::file::write(&at("s.json"), &schedule).unwrap();
    let out = fsx(folder.path(), &["run", "s.json", "--resume", "d"]);
    assert!(said(&out).contains("does not say what data"), "{}", said(&out));
    assert!(fsx(folder.path(), &["run", "s.json", "--init", "d", "--steps", "1"]).status.success());
    // A damaged one is converted to nothing.
    let mut bytes = before.clone();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(at(step).join("rank-00000.safetensors"), bytes).unwrap();
    refused(&["c", "--to", "e.safetensors"], &["is damaged", "others: c/step-0"]);
    refused(&["c", "--to", "e"], &["is damaged"]);
    refused(&["c", "--compare", "saved.safetensors"], &["is damaged"]);
    assert!(!at("e").exists() && !at("e.safetensors").exists());
    // Of one alone it is said what is in it.
    fs::write(at(step).join("rank-00000.safetensors"), &before).unwrap();
    let listed = printed(&fsx(folder.path(), &["checkpoint", step]));
    assert!(listed.contains("table.a/sum") && listed.contains("F32 [60, 8] in 2 piece(s)"), "{listed}");
}

/// Users' visits, from which the last one is held out.
fn visits(at: &Path) {
    let mut text = String::from("user,item,time\n");
    for user in 0..24usize {
        for n in 0..5 + user % 9 {
            writeln!(text, "u{user},i{},{n}", (user * 7 + n * n * 5 + n * user) % 60).unwrap();
        }
    }
    fs::write(at.join("visits.csv"), text).unwrap();
}

const EVALUATED: &str = "model small {
  table items { rows 60  dim 6  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.3) }
  input history: ids(items) { max 50 }
  input following: next(history)
  loss sampled_softmax(linear(lookup(history), 6), items, following, negatives: 3, normalize: tokens)
}
train { batch 12  steps 14  optimizer adam(lr: 3e-2) }
workload visits { csv \"visits.csv\" { user \"user\"  item \"item\"  time \"time\" }  evaluate leave_last_out }";

/// The best one stays beside the newest ones, also over runs that go on; and nothing that is trained changes.
#[test]
fn the_best_one_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    visits(at);
    let schedule = compile(EVALUATED, Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&at.join("s.json"), &schedule).unwrap();
    let run = |arguments: &[&str]| {
        let out = fsx(at, &[&["run", "s.json", "--report", "r.json"], arguments].concat());
        let text = printed(&out);
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(at.join("r.json")).unwrap()).unwrap();
        (text, report)
    };
    let (_, whole) = run(&["--save", "whole.safetensors"]);
    let names = |folder: &str| {
        let found = fs::read_dir(at.join(folder)).unwrap();
        let mut steps: Vec<u64> = found
            .filter_map(|e| e.unwrap().file_name().to_str()?.strip_prefix("step-")?.parse().ok())
            .collect();
        steps.sort_unstable();
        steps
    };
    let score = |v: &serde_json::Value, metric: &str| v["model"]["unseen"][metric].as_f64().unwrap();
    let mut kept_older = 0;
    for (metric, field) in [("hr@10", "hr_10"), ("HR@50", "hr_50"), ("ndcg@10", "ndcg_10")] {
        let place = format!("c-{field}");
        let leaves = ["--checkpoint", &place, "--every", "2", "--keep", "1", "--keep-best", metric];
        let (text, report) = run(&[&leaves[..], &["--save", "a.safetensors"]].concat());
        let same =
            fs::read(at.join("a.safetensors")).unwrap() == fs::read(at.join("whole.safetensors")).unwrap();
        assert!(same && report["loss"] == whole["loss"], "{metric}");
        let validations = report["validations"].as_array().unwrap();
        let steps: Vec<u64> = validations.iter().map(|v| v["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [2, 4, 6, 8, 10, 12, 14]);
        // That of the end is the last of them.
        let last = &validations.last().unwrap()["evaluation"];
        assert_eq!(last["model"], whole["evaluation"]["model"]);
        assert_eq!(report["evaluation"]["model"], last["model"]);
        let (mut best, mut most) = (0, f64::NEG_INFINITY);
        for v in validations {
            let own = score(&v["evaluation"], field);
            if own > most {
                (best, most) = (v["step"].as_u64().unwrap(), own);
            }
        }
        let mut wanted = vec![best, 14];
        wanted.dedup();
        assert_eq!(names(&place), wanted, "{metric}: {report}");
        assert_eq!(report["checkpoints"]["best"]["step"], best);
        assert!(text.contains(&format!(" after step {best}: {place}/step-")), "{text}");
        let listed = printed(&fsx(at, &["checkpoint", &place]));
        assert!(listed.contains("HR@10 ") && listed.lines().count() == wanted.len(), "{listed}");
        // A run that goes on knows what those before it scored.
        let (_, report) = run(&[&leaves[..], &["--resume", &place, "--steps", "20"]].concat());
        let later = report["validations"].as_array().unwrap();
        let better = later.iter().filter(|v| score(&v["evaluation"], field) > most).count();
        if better == 0 {
            kept_older += 1;
            assert_eq!(report["checkpoints"]["best"]["step"], best);
            assert!(names(&place).contains(&best), "{metric}");
            // Nor does a run that evaluates nothing push it aside.
            let leaves = ["--checkpoint", &place, "--every", "2", "--keep", "1", "--resume", &place];
            run(&[&leaves[..], &["--steps", "26", "--no-evaluate"]].concat());
            assert_eq!(names(&place), [best, 26], "{metric}");
        }
    }
    // Training is the same in every run, and so are scores.
    assert!(kept_older > 0, "no run that went on kept the best of the one before");
    let refused = |arguments: &[&str], words: &str| {
        let out = fsx(at, &[&["run", "s.json"], arguments].concat());
        assert!(!out.status.success() && said(&out).contains(words), "{words}: {}", said(&out));
    };
    refused(&["--keep-best", "hr@10"], "--checkpoint");
    refused(&["--checkpoint", "x", "--keep-best", "loss"], "ndcg@10");
    refused(&["--checkpoint", "x", "--keep-best", "hr@10"], "give --every a number of steps");
    refused(&["--checkpoint", "x", "--every", "2", "--keep-best", "hr@10", "--no-evaluate"], "--no-evaluate");
    let other = compile(&model("row_wise", "sgd(lr: 0.1)", 60, true), Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&at.join("s.json"), &other).unwrap();
    refused(&["--checkpoint", "x", "--every", "2", "--keep-best", "hr@10"], "leave_last_out");
    assert!(!at.join("x").exists());
}

/// Costs of samples that were fitted are where a run that goes on begins.
#[test]
fn fitted_costs_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = model("row_wise", "sgd(lr: 0.1)", 60, true)
        .replace("unique_rows true", "unique_rows true  balance on(fit: on)")
        .replace("steps 7", "steps 80");
    fs_schedule::file::write(&at.join("s.json"), &compile(&text, Strategy::Pec, 2, 1, 1)).unwrap();
    let fitted = |into: &str, arguments: &[&str], step: u64| {
        let leaves = ["run", "s.json", "--checkpoint", into, "--no-evaluate"];
        printed(&fsx(at, &[&leaves[..], arguments].concat()));
        let manifest = fs::read(at.join(format!("{into}/step-{step:012}/manifest.json"))).unwrap();
        serde_json::from_slice::<serde_json::Value>(&manifest).unwrap()["fitted"].clone()
    };
    let first = fitted("c", &[], 80);
    assert!(first[1]["groups"].as_array().is_some_and(|groups| !groups.is_empty()), "{first}");
    // Two steps are too few to fit anything.
    assert_eq!(fitted("c", &["--resume", "c", "--steps", "82"], 82), first);
    // Another run, which has its own folder.
    assert!(fitted("d", &["--init", "c", "--steps", "2"], 84).is_null());
}

/// Open files, entries of the folder and memory stay as they are, however many checkpoints there were.
#[test]
fn many_checkpoints_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let schedule = compile(&model("row_wise", "adam(lr: 0.01)", 60, true), Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&at.join("s.json"), &schedule).unwrap();
    let run = |arguments: &[&str]| {
        let run = ["run", "s.json", "--steps", "10000", "--report", "r.json", "--quiet"];
        let mut command = Command::new(binary("fsx"));
        command.current_dir(at).args(run).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut files, mut entries) = (Vec::new(), 0);
        let began = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_mins(5));
            let open = fs::read_dir(format!("/proc/{}/fd", child.id())).map_or(0, Iterator::count);
            files.push(open);
            let there = fs::read_dir(at.join("c")).into_iter().flatten().map(|e| e.unwrap().path());
            let there: Vec<_> = there.collect();
            entries = entries.max(there.len());
            // What has the name of a checkpoint has its manifest for as long as it has the name.
            for path in there.iter().filter(|path| path.extension().is_none() && path.is_dir()) {
                let lost = !path.join("manifest.json").exists() && path.exists();
                assert!(!lost, "{path:?}");
            }
            // Nor is what goes meanwhile called damaged.
            for of in checkpoints(&at.join("c"), true).into_iter().flatten() {
                assert_eq!(of.damaged, None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(at.join("r.json")).unwrap()).unwrap();
        (files, entries, report)
    };
    let (_, _, without) = run(&[]);
    let (files, entries, with) = run(&["--checkpoint", "c", "--every", "10", "--keep", "2"]);
    let written = with["checkpoints"]["written"].as_u64().unwrap();
    assert!(written >= 50, "{written} were written");
    assert_eq!(with["loss"], without["loss"]);
    // The lock, two of them, one that is being written, one that goes.
    assert!(entries <= 5, "{entries}");
    let third = files.len() / 3;
    let most = |files: &[usize]| files.iter().copied().max().unwrap_or(0);
    assert!(most(&files[third..]) <= most(&files[..third]) + 2, "{files:?}");
    let memory = |report: &serde_json::Value| report["peak_memory_bytes"].as_u64().unwrap();
    let more = memory(&with).saturating_sub(memory(&without));
    assert!(more < 8 << 20, "{more} bytes more for {written} checkpoints");
}
