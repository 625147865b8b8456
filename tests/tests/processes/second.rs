//! A second process that is one: started, killed, stopped.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fs_compiler::Strategy;
use fs_executor::stall::Watch;
use fs_executor::transport::wire::World;
use fs_executor::{Observer, Session, StepEvent};
use fs_schedule::Schedule;
use fs_tests::pipes::pair;
use fs_tests::training::{compile, model};

use super::{outcome, together};

/// The program of the second process, where this one is told to be it.
const SECOND: &str = "FS_TEST_SECOND";

fn two(sharding: &str) -> Schedule {
    compile(&model(sharding, "adagrad(lr: 0.05)", 60, true), Strategy::Pec, 3, 1, 1)
}

fn ranks() -> [Vec<usize>; 2] {
    [vec![0, 2], vec![1]]
}

/// Not a test of its own: what the second process does.
#[test]
fn second_process() {
    let Ok(given) = std::env::var(SECOND) else { return };
    let given: Vec<&str> = given.split(',').collect();
    let [folder, sharding, steps] = given[..] else { panic!("{given:?}") };
    let stream = UnixStream::connect(Path::new(folder).join("socket")).expect("the first process listens");
    let world = pair(&ranks(), 1, stream).expect("a world");
    let options = super::options().world(world).steps(steps.parse().ok());
    let mut session = Session::<f32>::new(two(sharding), options).expect("a session");
    let (outcome, _) = outcome(&mut session).unwrap_or_else(|e| panic!("{e}"));
    std::fs::write(Path::new(folder).join("outcome"), format!("{outcome:?}"))
        .expect("the outcome is written");
}

/// Starts a second process; the world of this one.
fn start(folder: &Path, sharding: &str, steps: u64) -> (Child, World) {
    let listener = UnixListener::bind(folder.join("socket")).expect("a socket");
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["second::second_process", "--exact", "--nocapture"])
        .env(SECOND, format!("{},{sharding},{steps}", folder.to_string_lossy()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a second process");
    let (stream, _) = listener.accept().expect("the second process comes");
    (child, pair(&ranks(), 0, stream).expect("a world"))
}

#[test]
fn two_processes_train_to_the_same_bits() {
    for sharding in ["row_wise", "column_wise"] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let (mut child, world) = start(folder.path(), sharding, 7);
        let (schedule, options) = (two(sharding), super::options().world(world));
        let (found, _) = together(&schedule, options);
        assert!(child.wait().expect("the second process ends").success());
        let (expected, _) = together(&schedule, super::options());
        assert!(found == expected, "{sharding}");
        let other = std::fs::read_to_string(folder.path().join("outcome")).expect("an outcome");
        assert!(other == format!("{expected:?}"), "{sharding}");
    }
}

/// Signals a process at a step, and asks where the ranks are.
struct At(u64, u32, &'static str, Arc<Watch>);

impl Observer for At {
    fn step(&mut self, event: &StepEvent) {
        if event.step == self.0 {
            let pid = self.1.to_string();
            assert!(Command::new("kill").args([self.2, &pid]).status().expect("kill").success());
            // A signal takes effect thread by thread: until then it answers.
            let began = Instant::now();
            while !is_still(&pid) {
                assert!(began.elapsed() < Duration::from_secs(20), "{} has no effect", self.2);
                std::thread::sleep(Duration::from_millis(1));
            }
            self.3.ask();
        }
    }
}

/// Whether all threads of a process are stopped or have ended.
fn is_still(pid: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state stands behind the name, which is in brackets.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
    })
}

/// A second process that is killed or stopped ends the run, soon and with an error that names who is missing. Where the
/// others are is said all the same, when it is asked and at the end.
#[test]
fn a_process_that_dies_or_stalls_ends_the_run() {
    let timeout = Duration::from_secs(2);
    for (signal, says) in [("-KILL", "rank 1 failed in `connection`"), ("-STOP", " s for rank 1")] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let (mut child, world) = start(folder.path(), "row_wise", 1_000_000);
        let (say, said) = mpsc::channel::<String>();
        let watch = Watch::new(move |text| say.send(text.to_owned()).expect("the test listens"));
        let options =
            super::options().world(world).timeout(timeout).steps(1_000_000).watch(Arc::clone(&watch));
        let schedule = two("row_wise");
        let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
        let began = Instant::now();
        let error = session
            .run(&mut At(20, child.id(), signal, Arc::clone(&watch)))
            .expect_err("a process is missing")
            .to_string();
        let took = began.elapsed();
        drop(session);
        watch.explain();
        let said: Vec<String> = (0..2).map(|_| said.recv_timeout(timeout).expect("it is said")).collect();
        let why = if signal == "-STOP" { "its process says nothing" } else { "its process is gone: " };
        assert!(said.iter().all(|text| text.contains(&format!("\n  rank 1: {why}"))), "{signal}: {said:?}");
        // Of one that is gone it is known at once, perhaps before anybody waits for it.
        let first = said[1].lines().nth(1).expect("a second line").to_owned();
        let missed = said[1].contains("waits for what rank 1 sends");
        assert!(missed || signal == "-KILL", "{signal}: {said:?}");
        assert!(
            !missed
                || first.starts_with("  the first operation that not all have begun is ")
                    && first.ends_with(": ranks 0, 2 have, rank 1 not"),
            "{signal}: {said:?}"
        );
        child.kill().expect("the second process is there");
        child.wait().expect("the second process ends");
        assert!(error.contains(says), "{signal}: {error}");
        assert!(signal == "-KILL" || error.contains("has waited "), "{signal}: {error}");
        assert!(took < timeout + Duration::from_secs(5), "{signal}: {took:?}");
        if signal == "-STOP" {
            let named =
                schedule.train.ops.iter().any(|op| error.starts_with(&format!("`{}` of step ", op.name)));
            assert!(named || error.contains("leave to load"), "{error}");
        }
    }
}
