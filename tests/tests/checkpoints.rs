//! Checkpoints: what is written while training goes on is the state after a step, in every bit, and any sharding and number of ranks
//! starts from it.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use fs_compiler::Strategy;
use fs_executor::{Options, Session};
use fs_tests::training::{
    OPTIMIZERS, SHARDINGS, bits, checkpoints, compile, fsx, leaving, model, options, place, said, session,
    state, states,
};
use fs_tests::{binary, root};

const STEPS: u64 = 40;

/// However engines are late, and whatever the sharding, the rule and the strategy.
#[test]
fn what_is_written_is_the_state_after_a_step() {
    let mut during = 0;
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        for (m, strategy) in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec].into_iter().enumerate() {
            let (ranks, lookahead) = ([1, 2, 3, 4, 3, 2][n], 1 + (n as u32 + m as u32) % 2);
            let text = model(sharding, OPTIMIZERS[(n + m) % 4], 60, true);
            let schedule = compile(&text, strategy, ranks, lookahead, 1 + m as u32 % 2);
            let states = states(&schedule, STEPS);
            let folder = tempfile::tempdir().unwrap();
            let stress = (m > 0).then_some(n as u64 + 1);
            let leaves = options().steps(STEPS).stress(stress).checkpoint(leaving(folder.path(), 3, 99));
            let mut whole = session(&schedule, leaves);
            whole.run(&mut ()).unwrap();
            assert_eq!(state(&whole).unwrap(), states[STEPS as usize], "{sharding} {strategy:?}");
            let found = checkpoints(folder.path());
            assert_eq!(found.last().unwrap().0, STEPS, "one of the end");
            for (step, path) in &found {
                assert!(step % 3 == 0 || *step == STEPS, "{step}");
                during += u64::from(*step < STEPS);
                let mut started = session(&schedule, options().init(path.clone()));
                assert_eq!(started.next_step(), *step);
                assert_eq!(
                    state(&started).unwrap(),
                    states[*step as usize],
                    "{sharding} {strategy:?} {step}"
                );
                // The bits of a run that was never stopped.
                started.advance(STEPS - step, &mut ()).unwrap();
                assert_eq!(
                    state(&started).unwrap(),
                    states[STEPS as usize],
                    "{sharding} {strategy:?} {step}"
                );
            }
        }
    }
    // The first of each run is always written; of the others those for which there is time.
    assert!(during >= 18, "{during} were written while training went on");
    eprintln!("{during} were written while training went on");
}

/// A run that is killed before its last checkpoint has a name goes on from that one, with the same command.
#[test]
fn what_only_lacks_its_name_is_gone_on_from() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("c");
    session(&schedule, options().steps(4).checkpoint(leaving(&at, 2, 9))).run(&mut ()).unwrap();
    let (step, newest) = checkpoints(&at).pop().unwrap();
    assert_eq!(step, 4);
    let unnamed = newest.with_extension("part");
    fs::rename(&newest, &unnamed).unwrap();
    let goes_on = || options().steps(8).resume(at.clone()).checkpoint(leaving(&at, 2, 9));
    let mut session = session(&schedule, goes_on());
    assert_eq!((session.next_step(), unnamed.exists()), (4, false));
    session.run(&mut ()).unwrap();
    assert_eq!(checkpoints(&at).last().unwrap().0, 8);
}

/// Checkpoints of two runs do not come to lie in one folder, however far each is.
#[test]
fn another_runs_folder_is_refused() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (folder.path().join("own"), folder.path().join("other"));
    let train = |options: Options| session(&schedule, options).run(&mut ()).unwrap();
    train(options().steps(6).checkpoint(leaving(&own, 2, 9)));
    train(options().seed(5).steps(4).checkpoint(leaving(&other, 2, 9)));
    for steps in [6, 8] {
        let mixed = options().steps(steps).resume(own.clone()).checkpoint(leaving(&other, 2, 9));
        let said = Session::<f32>::new(schedule.clone(), mixed).err().unwrap().to_string();
        assert!(
            said.contains("step-000000000004 is another run's") && said.contains("another folder"),
            "{said}"
        );
    }
    train(options().steps(8).resume(checkpoints(&own).pop().unwrap().1).checkpoint(leaving(&own, 2, 9)));
    // However the folder is called.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&own, &link).unwrap();
    train(options().steps(10).resume(link).checkpoint(leaving(&own, 2, 9)));
}

/// The same values on any other ranks, and whole: what a file of all values holds.
#[test]
fn checkpoints_start_any_other_sharding() {
    let text = |sharding: &str| model(sharding, "adagrad(lr: 0.1)", 60, true);
    for (n, from) in SHARDINGS.iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let schedule = compile(&text(from), Strategy::Pec, [1, 2, 3, 4, 3, 4][n], 1, 1);
        let mut trained = session(&schedule, options().checkpoint(leaving(folder.path(), 2, 1)));
        trained.run(&mut ()).unwrap();
        let found = checkpoints(folder.path());
        assert_eq!(found.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [7], "{from}");
        for (to, ranks) in SHARDINGS.iter().flat_map(|to| [2, 3].map(|ranks| (to, ranks))) {
            let schedule = compile(&text(to), Strategy::Serial, ranks, 1, 1);
            // The folder means its newest one.
            let started = session(&schedule, options().init(folder.path().to_path_buf()));
            let taken = started.taken().unwrap();
            assert!(taken.in_model.is_empty() && taken.in_file.is_empty(), "{taken:?}");
            assert!(taken.no_state.is_empty(), "{taken:?}");
            assert_eq!(state(&started).unwrap(), state(&trained).unwrap(), "{from} to {to} on {ranks} ranks");
        }
    }
}

const LEAVES: [&str; 6] = ["--checkpoint", "c", "--every", "4", "--keep", "2"];

/// `FS_KILLS` says how often (12 without it).
#[test]
fn killed_at_any_moment_it_goes_on() {
    let kills = std::env::var("FS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let folder = place(100_000, 2);
    let at = folder.path();
    let began = Instant::now();
    let whole = fsx(at, &["--save", "whole.safetensors"]).output().unwrap();
    assert!(whole.status.success(), "{}", said(&whole));
    // However slow it is here, some are killed before their first checkpoint and some end.
    let mut longest = (began.elapsed() * 2).as_millis() as u64;
    let (mut killed, mut begun, mut gone_on, mut resumed, mut random) = (0, 0u32, 0, 0, 1u64);
    while killed < kills {
        begun += 1;
        assert!(begun < 100 + 20 * kills, "it ends too soon: {killed} of {begun}");
        let arguments = [&LEAVES[..], &["--resume", "c", "--save", "end.safetensors"]].concat();
        let goes_on = fs::read_dir(at.join("c")).is_ok_and(|mut entries| {
            entries.any(|e| {
                e.unwrap().file_name().to_str().is_some_and(|n| n.starts_with("step-") && !n.contains('.'))
            })
        });
        resumed += usize::from(goes_on);
        let began = Instant::now();
        let mut child = fsx(at, &arguments).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let until = began + Duration::from_millis(20 + (random >> 40) % longest);
        let ended = loop {
            let ended = child.try_wait().unwrap().is_some();
            if ended || Instant::now() >= until {
                break ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        // SIGKILL.
        let _ = child.kill();
        let out = child.wait_with_output().unwrap();
        if ended {
            assert!(out.status.success(), "{}", said(&out));
            let same = fs::read(at.join("end.safetensors")).unwrap()
                == fs::read(at.join("whole.safetensors")).unwrap();
            assert!(same, "after {killed} kills");
            fs::remove_dir_all(at.join("c")).unwrap();
            fs::remove_file(at.join("end.safetensors")).unwrap();
            gone_on += 1;
            // The first run of a program may take long.
            if !goes_on {
                longest = longest.min((began.elapsed() * 2).as_millis() as u64);
            }
        } else {
            killed += 1;
        }
    }
    let last =
        fsx(at, &[&LEAVES[..], &["--resume", "c", "--save", "end.safetensors"]].concat()).output().unwrap();
    assert!(last.status.success(), "{}", said(&last));
    assert!(fs::read(at.join("end.safetensors")).unwrap() == fs::read(at.join("whole.safetensors")).unwrap());
    // What was being written is gone.
    checkpoints(&at.join("c"));
    assert!(resumed > 0, "none of {begun} runs went on");
    eprintln!(
        "{killed} kills in {begun} runs, {gone_on} of which ended before; {resumed} went on from another"
    );
}

/// A run of 60 steps goes on for what is left of them, or of what is asked for, and counts from its first start.
#[test]
fn steps_count_from_the_first_start() {
    let folder = place(60, 2);
    let at = folder.path();
    let run = |arguments: &[&str]| {
        let out = fsx(at, arguments).output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
        said(&out)
    };
    run(&["--save", "60.safetensors"]);
    run(&["--steps", "70", "--save", "70.safetensors"]);
    run(&[&LEAVES[..], &["--steps", "21"]].concat());
    assert_eq!(checkpoints(&at.join("c")).last().unwrap().0, 21);
    run(&["--resume", "c", "--save", "a.safetensors"]);
    run(&["--resume", "c", "--steps", "70", "--save", "b.safetensors"]);
    run(&["--resume", "c/step-000000000021", "--steps", "21", "--save", "c.safetensors"]);
    let read = |name: &str| fs::read(at.join(name)).unwrap();
    assert!(
        read("a.safetensors") == read("60.safetensors") && read("b.safetensors") == read("70.safetensors")
    );
    assert!(read("c.safetensors") != read("a.safetensors"));
    // Nothing is left to train.
    let said = run(&["--resume", "c", "--steps", "9"]);
    let note =
        "note: 21 steps were trained before, and no more are asked for; to go on, give --steps above 21";
    assert!(said.contains(note), "{said}");
    // Without one there, a run that leaves some there begins.
    let said = run(&["--resume", "new", "--checkpoint", "new", "--steps", "3"]);
    assert!(said.contains("note: there is no checkpoint in new yet"), "{said}");
    assert_eq!(checkpoints(&at.join("new")).last().unwrap().0, 3);
}

/// A folder with later checkpoints is another run's: what this one leaves would not be the newest there.
#[test]
fn other_runs_are_not_pushed_aside() {
    let folder = place(60, 2);
    let at = folder.path();
    let run = |arguments: &[&str]| fsx(at, arguments).output().unwrap();
    let leaves = [&LEAVES[..], &["--keep", "9"]].concat();
    let leaves: Vec<&str> =
        leaves.iter().enumerate().filter(|(n, _)| !(4..6).contains(n)).map(|(_, a)| *a).collect();
    assert!(run(&[&leaves[..], &["--steps", "20"]].concat()).status.success());
    let before = checkpoints(&at.join("c"));
    let first = before[0].1.strip_prefix(at).unwrap().to_str().unwrap().to_owned();
    for arguments in [&["--steps", "9"][..], &["--seed", "4"], &["--resume", &first, "--steps", "30"]] {
        let out = run(&[&leaves[..], arguments].concat());
        let said = said(&out);
        assert!(!out.status.success() && said.contains("step-000000000020 is there already"), "{said}");
        assert_eq!(checkpoints(&at.join("c")), before);
    }
    assert!(run(&[&leaves[..], &["--resume", "c", "--steps", "24"]].concat()).status.success());
    // What is trained otherwise goes on, but not without a word; another strategy or sharding needs none.
    let text = |sharding: &str| model(sharding, "adam(lr: 0.01)", 60, true).replace("steps 7", "steps 60");
    for (text, strategy, other) in [
        (text("row_wise").replace("batch 12", "batch 6"), Strategy::Pec, true),
        (text("row_wise").replace("lookup(z), 0.5", "lookup(z), 5"), Strategy::Pec, true),
        (text("row_wise").replace("lr: 0.01", "lr: 0.5"), Strategy::Pec, true),
        (text("table_wise"), Strategy::Serial, false),
        (text("row_wise(placement: hashed)"), Strategy::Prefetch, false),
    ] {
        fs_schedule::file::write(&at.join("s.json"), &compile(&text, strategy, 2, 1, 1)).unwrap();
        let out = run(&["--resume", "c", "--steps", "25"]);
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(said(&out).contains("was left by another model, or"), other, "{}", said(&out));
    }
}

/// Ids that a run was started with by a file of values number the data otherwise; it goes on all the same, and a second time.
#[test]
fn ids_keep_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let text = "model small {
      table items { rows 30  dim 4  optimizer adagrad(lr: 0.1) }
      input history: ids(items) { max 6 }
      input following: next(history)
      let x = lookup(history)
      loss sampled_softmax(linear(x, 4), items, following, negatives: 3, normalize: tokens)
    }
    train { batch 4  steps 12  optimizer adam(lr: 1e-2) }
    workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" } }";
    let schedule = compile(text, Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&at.join("s.json"), &schedule).unwrap();
    let lines = |reversed: bool| {
        let mut lines: Vec<String> = (0..60u32).map(|n| format!("u{},{}\n", n % 10, n * n % 23)).collect();
        if reversed {
            lines.reverse();
        }
        format!("user,item\n{}", lines.concat())
    };
    let run = |arguments: &[&str]| {
        let out = fsx(at, arguments).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
    };
    fs::write(at.join("visits.csv"), lines(true)).unwrap();
    run(&["--steps", "3", "--save", "first.safetensors"]);
    fs::write(at.join("visits.csv"), lines(false)).unwrap();
    run(&["--init", "first.safetensors", "--steps", "9", "--save", "whole.safetensors"]);
    run(&["--init", "first.safetensors", "--steps", "4", "--checkpoint", "c"]);
    run(&["--resume", "c", "--checkpoint", "c", "--steps", "9"]);
    run(&["--resume", "c", "--steps", "12", "--save", "end.safetensors"]);
    assert!(fs::read(at.join("end.safetensors")).unwrap() == fs::read(at.join("whole.safetensors")).unwrap());
    fs::write(at.join("visits.csv"), lines(true)).unwrap();
    let out = fsx(at, &["--resume", "c"]).output().unwrap();
    assert!(said(&out).contains("trained on other data") && out.status.code() == Some(1), "{}", said(&out));
}

/// The reader that docs/checkpoints.md shows, in Python.
#[test]
fn python_reads_tables_whole() {
    // tests/weights/python.sh names one that has the packages.
    let python = std::env::var("FS_PYTHON").unwrap_or_else(|_| "python3".into());
    let packages = Command::new(&python).args(["-c", "import safetensors.numpy"]).output();
    if !packages.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: {python} with the packages safetensors and numpy is not here");
        return;
    }
    let page = fs::read_to_string(root("docs/checkpoints.md")).unwrap();
    let (_, code) = page.split_once("```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    // The whole, for this test.
    let code = code.replace(
        "print(whole.shape, whole.sum(dtype=np.float64))",
        "print(whole.ravel().view(np.uint32).tolist())",
    );
    for sharding in SHARDINGS {
        let folder = tempfile::tempdir().unwrap();
        let schedule = compile(&model(sharding, "adagrad(lr: 0.1)", 60, true), Strategy::Pec, 3, 1, 1);
        let mut trained = session(&schedule, options().checkpoint(leaving(folder.path(), 100, 1)));
        trained.run(&mut ()).unwrap();
        let (_, path) = checkpoints(folder.path()).pop().unwrap();
        let all = [
            ("table.a", trained.table(0).unwrap()),
            ("table.b/sum", trained.table_state(1).unwrap()[0].clone()),
            (schedule.parameters[0].name.as_str(), trained.parameter(0)),
        ];
        for (name, values) in all {
            let out =
                Command::new(&python).args(["-c", &code, path.to_str().unwrap(), name]).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let read: Vec<u32> = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(read, bits(&values), "{sharding} {name}");
        }
    }
}

/// Of a model with other tables all that differ are named, not only the first.
#[test]
fn all_tables_that_differ_are_named() {
    let text = model("row_wise", OPTIMIZERS[0], 60, true);
    let folder = tempfile::tempdir().unwrap();
    let schedule = compile(&text, Strategy::Serial, 2, 1, 1);
    session(&schedule, options().steps(2).checkpoint(leaving(folder.path(), 2, 1))).run(&mut ()).unwrap();
    let other = text.replace("rows 60", "rows 61").replace("rows 40", "rows 44");
    let other = compile(&other, Strategy::Serial, 2, 1, 1);
    for options in [options().resume(folder.path().to_owned()), options().init(folder.path().to_owned())] {
        let said = Session::<f32>::new(other.clone(), options).err().unwrap().to_string();
        assert!(said.contains("table.a") && said.contains("table.b"), "{said}");
    }
}

/// A model whose values or sums of squares overflow in the first steps, with these optimizers and this factor.
fn overflowing(optimizer: &str, factor: &str, dense: &str) -> String {
    format!(
        "model small {{
          table a {{ rows 30  dim 4  init normal(0, 0.5)  optimizer {optimizer} }}
          input x: ids(a) {{ max 6 }}
          input click: label like x
          loss bce_with_logits(linear(scale(lookup(x), {factor}), 1), click, normalize: tokens)
        }}
        train {{ batch 8  steps 9  optimizer {dense} }}
        workload w {{ generate {{ lengths uniform(1, 6)  ids zipf(1.05)  labels hash  samples 31 }} }}"
    )
}

/// A run that may never come to its end says at once that it keeps no checkpoint.
#[test]
fn the_first_that_is_not_kept_is_said_while_the_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let text = overflowing("adagrad(lr: 0.1)", "1e22", "sgd(lr: 1e-30)");
    let schedule = compile(&text, Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&folder.path().join("s.json"), &schedule).unwrap();
    let arguments = ["--steps", "100000000", "--checkpoint", "c", "--every", "100", "--quiet"];
    let mut run = fsx(folder.path(), &arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(run.stderr.take().unwrap()));
    let said =
        lines.map_while(Result::ok).find(|line| line.contains("the checkpoint of step 100 is not kept"));
    run.kill().unwrap();
    run.wait().unwrap();
    assert!(said.is_some_and(|line| line.contains("`table.a/sum` has numbers that are not finite")));
}

/// What no run would go on from is not kept, so that it pushes out nothing that one would; that is said.
#[test]
fn what_is_not_finite_is_not_kept() {
    let text = overflowing;
    for (text, wanted, finite) in [
        // Values, a table's sums of squares, and a parameter's: of the last two losses say nothing.
        (text("sgd(lr: 1e25)", "1e10", "sgd(lr: 1e-30)"), "`table.a` has", false),
        (text("adagrad(lr: 0.1)", "1e22", "sgd(lr: 1e-30)"), "`table.a/sum` has", true),
        (text("sgd(lr: 1e-30)", "1e22", "adam(lr: 1e-9)"), "/exp_avg_sq` has", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let schedule = compile(&text, Strategy::Pec, 2, 1, 1);
        let mut trained = session(&schedule, options().checkpoint(leaving(folder.path(), 1, 3)));
        let report = trained.run(&mut ()).unwrap();
        let left = report.checkpoints.unwrap();
        let unusable = left.unusable.unwrap();
        assert!(unusable.why.contains(wanted) && unusable.why.ends_with("not finite"), "{unusable:?}");
        // Nothing was to be seen of it in the loss of the step before, or had been.
        assert!(!finite || report.loss[unusable.step as usize - 1].is_finite(), "{:?}", report.loss);
        // Those that were good are there, all of them can be gone on from, and nothing else is.
        let found = checkpoints(folder.path());
        assert!(found.iter().all(|(step, _)| *step < unusable.step), "{found:?}");
        assert_eq!(found.len() as u64, left.written.min(3));
        for (step, path) in found {
            let again = session(&schedule, options().resume(path).steps(9));
            assert_eq!(again.next_step(), step);
        }
    }
}

/// Nothing else is written into a checkpoint, nor over what keeps other runs out.
#[test]
fn results_are_not_written_into_checkpoints() {
    let folder = place(60, 2);
    let at = folder.path();
    let first = fsx(at, &[&LEAVES[..], &["--steps", "8"]].concat()).output().unwrap();
    assert!(first.status.success(), "{}", said(&first));
    let before = checkpoints(&at.join("c"));
    let (_, newest) = before.last().unwrap();
    let files = || {
        let mut files: Vec<_> = fs::read_dir(newest).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect::<Vec<_>>()
    };
    let were = files();
    let name = newest.strip_prefix(at).unwrap().to_str().unwrap();
    for (option, file) in [
        ("--report", "manifest.json"),
        ("--save", "rank-00000.safetensors"),
        ("--status", "new.json"),
        ("--trace", "new.trace.json"),
    ] {
        let out =
            fsx(at, &["--resume", "c", "--steps", "9", option, &format!("{name}/{file}")]).output().unwrap();
        assert!(!out.status.success() && said(&out).contains("lies in the checkpoint"), "{}", said(&out));
        assert!(files() == were, "{option}");
    }
    // Names that checkpoints will have, or have until they are whole.
    let next = ["c/step-000000000400", "c/step-000000000400.part", "c/step-000000000400/new.json"];
    for (option, path) in
        ["--report", "--save", "--status", "--trace"].iter().flat_map(|o| next.map(|n| (o, n)))
    {
        let more = [&LEAVES[..], &["--resume", "c", "--steps", "9", option, path]].concat();
        let out = fsx(at, &more).output().unwrap();
        assert!(!out.status.success() && said(&out).contains("lies in the checkpoint"), "{}", said(&out));
        assert!(files() == were && !at.join(path).exists(), "{option}");
    }
    let lock = [&LEAVES[..], &["--resume", "c", "--save", "c/lock"]].concat();
    let out = fsx(at, &lock).output().unwrap();
    assert!(
        !out.status.success() && said(&out).contains("the lock of its checkpoints and the values"),
        "{}",
        said(&out)
    );
    // Not everything of that name is a checkpoint's.
    fs::write(at.join("manifest.json"), "{}").unwrap();
    let out = fsx(at, &["--resume", "c", "--steps", "9", "--report", "r.json"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    // However it is written, a folder is the same one: the first run of several begins.
    let began = fsx(at, &["--checkpoint", "new", "--resume", "./new", "--steps", "2"]).output().unwrap();
    assert!(began.status.success(), "{}", said(&began));
}

/// Names that are no text are written as near as can be, and what reads a report can read it.
#[test]
fn folders_without_a_name_in_text_are_reported() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    let folder = place(60, 2);
    let at = folder.path();
    let odd = OsStr::from_bytes(b"c\xff");
    let mut run = fsx(at, &["--steps", "2", "--json", "--checkpoint"]);
    let out = run.arg(odd).stdout(std::process::Stdio::piped()).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["checkpoints"]["folder"], "c\u{fffd}");
    let mut list = Command::new(binary("fsx"));
    let out = list.current_dir(at).args(["checkpoint", "--json"]).arg(odd).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(listed.to_string().contains("step-000000000002"), "{listed}");
}
