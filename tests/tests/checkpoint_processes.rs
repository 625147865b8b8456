//! Checkpoints of several processes: one that all write, and what becomes of it where they do not agree.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use fs_compiler::Strategy;
use fs_executor::{Session, data};
use fs_tests::mock::{self, Mock};
use fs_tests::pipes::joined;
use fs_tests::training::{OPTIMIZERS, checkpoints, compile, leaving, model, options, session, state, states};

const STEPS: u64 = 40;

/// Several processes cut before the same step, and what they write together is one checkpoint.
#[test]
fn processes_leave_one_checkpoint() {
    let mut during = 0;
    for (n, processes) in
        [vec![vec![0], vec![1]], vec![vec![0, 2], vec![1]], vec![vec![0], vec![1, 3], vec![2]]]
            .iter()
            .enumerate()
    {
        let ranks = processes.iter().map(Vec::len).sum::<usize>() as u32;
        let sharding = ["row_wise(placement: hashed)", "column_wise", "row_wise"][n];
        let schedule = compile(&model(sharding, OPTIMIZERS[n + 1], 60, true), Strategy::Pec, ranks, 1, 1);
        let states = states(&schedule, STEPS);
        let folder = tempfile::tempdir().unwrap();
        let worlds = joined(processes).unwrap();
        std::thread::scope(|scope| {
            for (world, _) in worlds {
                let (schedule, folder) = (&schedule, folder.path());
                scope.spawn(move || {
                    let leaves = leaving(folder, 3, 99);
                    let options = options().steps(STEPS).world(world).stress(7).checkpoint(leaves);
                    session(schedule, options).run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
                });
            }
        });
        let found = checkpoints(folder.path());
        assert_eq!(found.last().unwrap().0, STEPS, "one of the end");
        for (step, path) in &found {
            assert!(step % 3 == 0 || *step == STEPS, "{step}");
            during += u64::from(*step < STEPS);
            // What processes said to each other has gone.
            let mut files: Vec<_> =
                fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            files.sort();
            let mut wanted: Vec<_> = (0..ranks).map(|rank| format!("rank-{rank:05}.safetensors")).collect();
            wanted.insert(0, "manifest.json".into());
            wanted.push("shared.safetensors".into());
            assert_eq!(files, wanted);
            let started = session(&schedule, options().resume(path.clone()).steps(STEPS));
            assert_eq!((started.next_step(), started.steps()), (*step, STEPS - step));
            assert_eq!(state(&started).unwrap(), states[*step as usize], "{processes:?} {step}");
        }
    }
    assert!(during >= 3, "{during} were written while training went on");
}

/// A process whose device takes its time over forgetting one checkpoint does not forget the next one with it.
#[test]
fn the_next_checkpoint_is_not_forgotten_with_the_last() {
    const STEPS: u64 = 1500;
    let schedule = compile(&model("row_wise", OPTIMIZERS[1], 3000, true), Strategy::Pec, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let worlds = joined(&[vec![0], vec![1]]).unwrap();
    std::thread::scope(|scope| {
        for (world, _) in worlds {
            let (schedule, folder) = (Arc::new(schedule.clone()), folder.path());
            scope.spawn(move || {
                let options = options().steps(STEPS).world(world).checkpoint(leaving(folder, 1, 99));
                let source = data::open(&schedule, None, None, schedule.settings.seed).unwrap();
                let device = mock::Options::default();
                let mut session = Session::<f32, Mock>::on(schedule, options, source, &device).unwrap();
                session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
            });
        }
    });
    let mut never_stopped = session(&schedule, options());
    let mut compared = 0;
    for (step, path) in checkpoints(folder.path()) {
        never_stopped.advance(step - never_stopped.next_step(), &mut ()).unwrap();
        let started = session(&schedule, options().resume(path).steps(STEPS));
        assert_eq!(state(&started).unwrap(), state(&never_stopped).unwrap(), "{step}");
        compared += 1;
    }
    assert!(compared >= 3, "{compared} were written");
}

/// Processes that do not see one folder end with a word about it, and do not wait for ever.
#[test]
fn processes_must_see_one_folder() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let worlds = joined(&[vec![0], vec![1]]).unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .enumerate()
            .map(|(n, (world, _))| {
                let (schedule, own) = (&schedule, folder.path().join(n.to_string()));
                scope.spawn(move || {
                    let options = options().steps(40).world(world).timeout(Duration::from_secs(1));
                    let options = options.checkpoint(leaving(&own, 5, 9));
                    session(schedule, options).run(&mut ()).unwrap_err().to_string()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|e| e.contains("must see the same folder")), "{errors:#?}");
}

/// Of what only others hold a process reads nothing: damage there is theirs to find, and ends the others with them.
#[test]
fn a_process_reads_what_its_ranks_hold() {
    for sharding in ["row_wise", "table_wise", "column_wise", "row_wise(placement: hashed)"] {
        let schedule = compile(&model(sharding, "adagrad(lr: 0.1)", 60, true), Strategy::Pec, 2, 1, 1);
        let folder = tempfile::tempdir().unwrap();
        session(&schedule, options().checkpoint(leaving(folder.path(), 99, 1))).run(&mut ()).unwrap();
        let (_, path) = checkpoints(folder.path()).pop().unwrap();
        let shard = path.join("rank-00001.safetensors");
        let mut bytes = fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&shard, bytes).unwrap();
        let worlds = joined(&[vec![0], vec![1]]).unwrap();
        let errors: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = worlds
                .into_iter()
                .map(|(world, _)| {
                    let (schedule, path) = (&schedule, &path);
                    scope.spawn(move || {
                        let options = options().world(world).resume(path.clone()).steps(20);
                        match Session::<f32>::new(schedule.clone(), options) {
                            Ok(mut session) => session.run(&mut ()).unwrap_err().to_string(),
                            Err(error) => error.to_string(),
                        }
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let [told, found] = &errors[..] else { panic!("{errors:?}") };
        assert!(
            found.starts_with("the checkpoint ") && found.contains("rank-00001.safetensors` is damaged"),
            "{found}"
        );
        // Before it trains or after: it has not found it by itself.
        assert!(
            told.starts_with("rank 1 failed in `initial values`") && told.contains("is damaged"),
            "{told}"
        );
    }
}

/// Whether and when checkpoints are left is the same for all.
#[test]
fn processes_must_leave_the_same() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let worlds = joined(&[vec![0], vec![1]]).unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .enumerate()
            .map(|(n, (world, _))| {
                let (schedule, folder) = (&schedule, folder.path());
                scope.spawn(move || {
                    let leaves = (n == 0).then(|| leaving(&folder.join("a/b"), 5, 9));
                    let options = options().world(world).timeout(Duration::from_secs(20)).checkpoint(leaves);
                    Session::<f32>::new(schedule.clone(), options).err().unwrap().to_string()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|e| e.contains("when checkpoints are left")), "{errors:#?}");
    // Nor is anything there of the run that did not begin.
    assert!(!folder.path().join("a").exists());
}

/// A folder that the first process may not write into ends all of them, with one word.
#[test]
fn a_folder_that_is_refused_ends_all() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    session(&schedule, options().steps(4).checkpoint(leaving(folder.path(), 2, 9))).run(&mut ()).unwrap();
    let worlds = joined(&[vec![0], vec![1]]).unwrap();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|(world, _)| {
                let (schedule, folder) = (&schedule, folder.path());
                scope.spawn(move || {
                    let options = options().world(world).timeout(Duration::from_secs(20));
                    let options = options.steps(9).checkpoint(leaving(folder, 5, 9));
                    match Session::<f32>::new(schedule.clone(), options) {
                        Ok(mut session) => session.run(&mut ()).unwrap_err().to_string(),
                        Err(error) => error.to_string(),
                    }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors.iter().all(|e| e.contains("step-000000000004 is there already")), "{errors:#?}");
    assert!(errors[1].starts_with("rank 0 failed in `checkpoints`"), "{errors:#?}");
}

/// Processes that would go on from different checkpoints, or start from different values, do not begin.
#[test]
fn processes_go_on_from_one_checkpoint() {
    let schedule = compile(&model("row_wise", OPTIMIZERS[0], 60, true), Strategy::Serial, 2, 1, 1);
    let other = model("row_wise", "sgd(lr: 0.3)", 60, true);
    let other = compile(&other, Strategy::Serial, 2, 1, 1);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (schedule, name) in [(&schedule, "a"), (&other, "b")] {
        let mut own = session(schedule, options().steps(4).checkpoint(leaving(&at(name), 9, 9)));
        own.run(&mut ()).unwrap();
        own.save(&at(&format!("{name}.safetensors"))).unwrap();
    }
    let start = |resumed: [&str; 2], init: bool| -> Vec<Option<String>> {
        let worlds = joined(&[vec![0], vec![1]]).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = worlds
                .into_iter()
                .zip(resumed)
                .map(|((world, _), name)| {
                    let (schedule, path) = (&schedule, at(name));
                    scope.spawn(move || {
                        let options = options().world(world).timeout(Duration::from_secs(20)).steps(4);
                        let options = if init { options.init(path) } else { options.resume(path) };
                        Session::<f32>::new(schedule.clone(), options).err().map(|e| e.to_string())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    assert_eq!(start(["a", "a"], false), [None, None]);
    assert_eq!(start(["b.safetensors", "b.safetensors"], true), [None, None]);
    for (from, init) in [(["a", "b"], false), (["a", "b"], true), (["b.safetensors", "a.safetensors"], true)]
    {
        let errors = start(from, init);
        let said = |e: &Option<String>| {
            e.as_ref()
                .is_some_and(|e| e.contains("the digest of the checkpoint or file of initial values is"))
        };
        assert!(errors.iter().all(said), "{from:?}: {errors:#?}");
    }
}
