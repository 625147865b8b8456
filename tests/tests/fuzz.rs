//! Whatever the input, reading it ends soon, in bounded memory, with a result or an error: never with a panic.
//!
//! Random bytes and damaged valid texts, for `FUZZ_SECONDS` (default 1) per target. Inputs run on a thread of their
//! own, watched from outside: one that takes longer than [`PATIENCE`] hangs, one that takes more memory than its
//! target allows for its length swells. A failing input is made smaller, and kept in the folder that the message
//! names; so is the last input, should one end the process.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fs_compiler::compile::CompileError;
use fs_compiler::dialect;
use fs_compiler::ir::verify;
use fs_compiler::passes::manager::{Log, Settings, Stop, parse_pipeline, run};
use fs_executor::session::{Checkpoint, Every};
use fs_executor::weights::{checkpoints, convert, differences};
use fs_executor::{Options, Session};
use fs_schedule::{Strategy as Order, file};
use fs_tests::models::{Features, models};
use fs_tests::mutate::{mutate, mutations};
use fs_tests::sealed::sealed;
use fs_tests::training::{compile, state};
use fs_tests::{dividing, root};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The longest that one input may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is fuzzed.
#[derive(Clone, Copy)]
struct Target {
    name: &'static str,
    read: fn(&[u8]),
    /// Bytes that any input may take, and more for each of its own bytes.
    memory: (usize, usize),
    /// Bytes for each time that an input says this.
    each: (&'static str, usize),
    /// The longest that an input may take.
    patience: Duration,
}

impl Target {
    const fn new(name: &'static str, memory: (usize, usize), read: fn(&[u8])) -> Self {
        Self { name, read, memory, each: ("", 0), patience: PATIENCE }
    }

    /// Bytes that reading an input may take.
    fn allowed(&self, input: &[u8]) -> usize {
        let (any, byte) = self.memory;
        let (word, more) = self.each;
        let said = if word.is_empty() { 0 } else { String::from_utf8_lossy(input).matches(word).count() };
        any + input.len() * byte + said * more
    }
}

/// What is wrong with an input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fault {
    Panic(String),
    Hang,
    Memory { used: usize, allowed: usize },
}

/// One at a time: memory is counted for the whole process.
static ALONE: Mutex<()> = Mutex::new(());

/// Reads inputs on a thread with the stack of any other thread.
struct Reader {
    send: Sender<Vec<u8>>,
    receive: Receiver<Result<usize, String>>,
}

thread_local! {
    /// What the last panic on this thread said, with its place.
    static SAID: Cell<Option<String>> = const { Cell::new(None) };
}

impl Reader {
    fn new(target: Target) -> Self {
        let (send, inputs) = channel::<Vec<u8>>();
        let (answers, receive) = channel();
        let work = move || {
            for input in inputs {
                ALLOCATOR.reset_peak_usage();
                let before = ALLOCATOR.current_usage();
                let outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(&input)));
                let used = ALLOCATOR.peak_usage().saturating_sub(before);
                let said = || SAID.take().unwrap_or_default();
                if answers.send(outcome.map(|()| used).map_err(|_| said())).is_err() {
                    return;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("reader".into()).spawn(work);
        assert!(spawned.is_ok(), "a thread starts");
        Self { send, receive }
    }
}

struct Fuzzer {
    target: Target,
    reader: Reader,
    folder: PathBuf,
    /// The greatest use of memory and time so far.
    most: (usize, Duration),
}

impl Fuzzer {
    fn new(target: Target) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
        fs::create_dir_all(&folder).expect("a folder for inputs");
        Self { target, reader: Reader::new(target), folder, most: (0, Duration::ZERO) }
    }

    fn keep(&self, name: &str, input: &[u8]) -> PathBuf {
        let path = self.folder.join(format!("{}-{name}", self.target.name));
        fs::write(&path, input).expect("the input is kept");
        path
    }

    fn fault(&mut self, input: &[u8]) -> Option<Fault> {
        self.keep("last", input);
        let started = Instant::now();
        self.reader.send.send(input.to_vec()).expect("the reader reads");
        let Ok(outcome) = self.reader.receive.recv_timeout(self.target.patience) else {
            self.reader = Reader::new(self.target);
            return Some(Fault::Hang);
        };
        match outcome {
            Err(said) => Some(Fault::Panic(said)),
            Ok(used) => {
                self.most = (self.most.0.max(used), self.most.1.max(started.elapsed()));
                let allowed = self.target.allowed(input);
                (used > allowed).then_some(Fault::Memory { used, allowed })
            }
        }
    }

    /// Reads random inputs until the time is over.
    fn run(&mut self, inputs: &BoxedStrategy<Vec<u8>>) {
        let seconds = std::env::var("FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng());
        let mut count = 0;
        while Instant::now() < end {
            let mut tree = inputs.new_tree(&mut runner).expect("an input");
            let mut worst = tree.current();
            count += 1;
            let Some(mut fault) = self.fault(&worst) else { continue };
            // Smaller while it goes wrong in the same way. A hang takes its time; a few attempts must do.
            let same = |a: &Fault, b: &Fault| std::mem::discriminant(a) == std::mem::discriminant(b);
            let mut attempts = if fault == Fault::Hang { 3 } else { 300 };
            let mut more = tree.simplify();
            while more && attempts > 0 {
                attempts -= 1;
                let input = tree.current();
                more = match self.fault(&input) {
                    Some(f) if same(&f, &fault) => {
                        (worst, fault) = (input, f);
                        tree.simplify()
                    }
                    _ => tree.complicate(),
                };
            }
            let path = self.keep("fault", &worst);
            let shown = String::from_utf8_lossy(&worst[..worst.len().min(2000)]).into_owned();
            panic!("{}: {fault:?}\nthe input is in {}:\n{shown}", self.target.name, path.to_string_lossy());
        }
        let _ = fs::remove_file(self.folder.join(format!("{}-last", self.target.name)));
        let (memory, time) = self.most;
        eprintln!("{}: {count} inputs, at most {memory} bytes and {time:?} for one", self.target.name);
    }
}

/// Another seed in every run; `FUZZ_SEED` repeats one.
fn rng() -> TestRng {
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let seed = std::env::var("FUZZ_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(now);
    eprintln!("FUZZ_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Waits for its turn. A panic on a reader's thread is a finding, told once.
fn alone() -> MutexGuard<'static, ()> {
    static HOOK: Once = Once::new();
    let turn = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some("reader") {
                SAID.set(Some(info.to_string()));
            } else {
                others(info);
            }
        }));
    });
    turn
}

fn fuzz(target: Target, corpus: Vec<Vec<u8>>) {
    let _alone = alone();
    let mut fuzzer = Fuzzer::new(target);
    for text in &corpus {
        assert_eq!(fuzzer.fault(text), None, "{}", String::from_utf8_lossy(text));
    }
    let corpus: &'static [Vec<u8>] = corpus.leak();
    let damaged = (prop::sample::select(corpus), mutations()).prop_map(|(text, m)| mutate(&text, &m));
    let inputs = prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300),
        1 => "\\PC{0,200}".prop_map(String::into_bytes),
        18 => damaged,
    ];
    fuzzer.run(&inputs.boxed());
}

/// Small models, always the same ones.
fn random_models() -> Vec<String> {
    let features = Features { shardings: true, microbatches: true, placements: true };
    let mut runner = TestRunner::deterministic();
    let strategy = models(features);
    (0..20).map(|_| strategy.new_tree(&mut runner).expect("a model").current().text()).collect()
}

fn program(text: &str) -> Option<fs_dsl::checked::Program> {
    fs_dsl::check_text("random.fs", text).program
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root(folder)).expect("a folder").flatten();
    let found: BTreeSet<PathBuf> =
        entries.map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == extension)).collect();
    assert!(!found.is_empty(), "{folder} has .{extension} files");
    found.into_iter().collect()
}

/// Valid programs, each in one file.
fn programs() -> Vec<Vec<u8>> {
    let examples =
        [files("examples", "fs"), files("examples/blocks", "fs"), files("tests/models", "fs")].concat();
    let examples = examples.iter().map(|p| fs::read(p).expect("an example"));
    let clusters = "cluster mine { gpus_per_node 4  intra { bandwidth 300 GB/s  latency 2 us }  host { bandwidth 200 Gbit/s  latency 8 us }
        flops { f32 19.5 TFLOP/s }  memory 80 GiB  memory_bandwidth 2 TB/s } cluster pod from h100x256 { nodes 64 }";
    examples.chain(random_models().into_iter().map(String::into_bytes)).chain([clusters.into()]).collect()
}

#[test]
fn programs_are_checked_and_formatted() {
    let read = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        let load = move |path: &Path| {
            if path == Path::new("random.fs") {
                Ok(bytes.clone())
            } else {
                Err(std::io::ErrorKind::NotFound.into())
            }
        };
        let loaded = fs_dsl::load_from(Path::new("random.fs"), &load);
        let failed = loaded.diagnostics.iter().any(fs_dsl::Diagnostic::is_error);
        assert_eq!(loaded.program.is_none(), failed, "a program or an error");
        let _ = fs_dsl::render(&loaded.diagnostics, &loaded.sources, true);
        if let Some(source) = loaded.sources.files.first()
            && let Ok(once) = fs_dsl::format_text("random.fs", &source.text)
        {
            assert_eq!(
                fs_dsl::format_text("random.fs", &once).as_ref(),
                Ok(&once),
                "formatting twice is formatting once"
            );
        }
    };
    // Unrolled, a short program may have 200,000 operations.
    fuzz(Target::new("programs", (128 << 20, 1000), read), programs());
}

/// Valid modules: imported, lowered, and those of the file tests.
fn modules() -> Vec<Vec<u8>> {
    let mut modules: Vec<Vec<u8>> = Vec::new();
    for folder in ["ops", "passes", "canonicalize"] {
        for path in files(&format!("tests/filetests/{folder}"), "ir") {
            let text = fs::read_to_string(&path).expect("a file test");
            modules.extend(text.split("// expected\n").next().map(Into::into));
        }
    }
    for text in random_models() {
        let program = program(&text).expect("checks");
        modules.push(fs_compiler::import::import(&program).expect("imports").to_string().into());
        modules.push(
            fs_compiler::compile(&dividing(program, 2), Order::Serial, 2)
                .expect("compiles")
                .module
                .to_string()
                .into(),
        );
    }
    modules
}

#[test]
fn modules_are_parsed_and_verified() {
    let read = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let Ok(module) = dialect::parse(text) else { return };
        let printed = module.to_string();
        let again =
            dialect::parse(&printed).unwrap_or_else(|e| panic!("what is printed parses: {e}\n{printed}"));
        assert_eq!(again.to_string(), printed, "the text round-trips");
        let errors = verify::verify(&module);
        assert_eq!(errors.is_empty(), verify::verify(&again).is_empty());
        let _ = verify::render(&module, &errors);
    };
    fuzz(Target::new("modules", (1 << 20, 300), read), modules());
}

/// Every pass that a strategy may use, with classes and several microbatches where the settings have them.
const PIPELINE: &str = "canonicalize,plan-sharding{ranks=3},make-evaluation,differentiate,reference,microbatch,lower-exchanges{lookahead=2},dce,accumulate,group-collectives,fuse-collectives,bucket-gradients{bytes=256}";

/// Samples that are drawn to find the slowest rank, whatever the size of a module (`compiler/src/sched/stragglers.rs`).
const SAMPLES: usize = 1 << 16;
/// Their bytes: rank, cost, weighed cost, bytes and size as read; rank and order as planned; and the planner's five lists of
/// 32 bytes each (`workload/src/balance/planner.rs`), which may have grown to twice that.
const DRAWN: usize = SAMPLES * (4 + 4 * 8 + 2 * 2 * 4 + 2 * 5 * 32);
/// A length of each sample, in each list of lengths.
const LENGTHS: (&str, usize) = ("model.lengths", SAMPLES * 4);

/// The same with a batch of which as many samples are drawn as ever.
fn large(module: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(module).ok()?;
    let (before, after) = text.split_once("batch = ")?;
    let (_, after) = after.split_once(',')?;
    Some(format!("{before}batch = {},{after}", 6 * SAMPLES).into())
}

/// Valid modules go through the passes: they may fail on what no model is imported as, but not crash.
#[test]
fn passes_do_not_crash_on_valid_modules() {
    let read = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let Ok(mut module) = dialect::parse(text) else { return };
        if !verify::verify(&module).is_empty() {
            return;
        }
        let stages = parse_pipeline(PIPELINE).expect("a pipeline");
        match run(&mut module, &stages, Settings::default(), &mut Log::default()) {
            Ok(()) => drop(fs_compiler::emit::emit(&module, Order::Serial, 2)),
            Err(e) => assert!(!matches!(*e.stop, Stop::Crashed(_)), "{e}"),
        }
    };
    let large = modules().into_iter().step_by(9).filter_map(|m| large(&m));
    let corpus = modules().into_iter().chain(large).collect();
    fuzz(Target { each: LENGTHS, ..Target::new("passes", ((1 << 20) + DRAWN, 1000), read) }, corpus);
}

#[test]
fn schedules_are_loaded() {
    let read = |bytes: &[u8]| {
        let _ = file::parse(Path::new("s.json"), bytes, true).map_err(|e| e.to_string());
        match file::parse(Path::new("s.json"), bytes, false) {
            Err(e) => drop(e.to_string()),
            Ok(schedule) => {
                let text = file::to_text(&schedule);
                let again = file::parse(Path::new("s.json"), text.as_bytes(), true);
                let again = again.unwrap_or_else(|e| panic!("what is written loads: {e}"));
                assert_eq!(file::to_text(&again), text, "the file round-trips");
            }
        }
    };
    let strategies = [Order::Serial, Order::Prefetch, Order::Pec];
    let schedules =
        random_models().into_iter().zip(strategies.into_iter().cycle()).map(|(text, strategy)| {
            let program = dividing(program(&text).expect("checks"), 2);
            let compiled = fs_compiler::compile(&program, strategy, 2).expect("compiles");
            file::to_text(&compiled.schedule).into_bytes()
        });
    fuzz(Target::new("schedules", (1 << 20, 300), read), schedules.collect());
}

/// Where saved models are read from, and the schedule that they start.
struct Start {
    folder: tempfile::TempDir,
    schedule: fs_schedule::Schedule,
}

impl Start {
    fn get() -> &'static Self {
        static START: OnceLock<Start> = OnceLock::new();
        START.get_or_init(|| {
            let text = "model last {
              table items { rows 30  dim 2  optimizer rowwise_adagrad(lr: 0.1) }
              input history: ids(items) { max 5 }
              input following: next(history)
              loss sampled_softmax(linear(lookup(history), 2), items, following, negatives: 2, normalize: tokens)
            }
            train { batch 4  steps 2  optimizer adam(lr: 1e-2) }
            workload visits { csv \"d.csv\" { user \"u\"  item \"i\" } }";
            let folder = tempfile::tempdir().expect("a folder");
            let lines: Vec<String> = (0..40).map(|n| format!("u{},item{}\n", n % 6, n * 7 % 23)).collect();
            fs::write(folder.path().join("d.csv"), format!("u,i\n{}", lines.concat())).expect("data");
            Start { schedule: compile(text, Order::Serial, 1, 1, 1), folder }
        })
    }

    fn session(&self, init: Option<PathBuf>) -> Result<Session<f32>, fs_executor::Error> {
        let data = Some(self.folder.path().join("d.csv"));
        Session::new(self.schedule.clone(), Options::default().data(data).init(init).evaluate(false))
    }
}

/// Saved models, with vocabularies and optimizer states: taken or refused, and what is taken can be saved again.
#[test]
fn saved_models_are_loaded() {
    let path = |name: &str| Start::get().folder.path().join(name);
    let mut trained = Start::get().session(None).expect("a session");
    let mut corpus = Vec::new();
    for _ in 0..2 {
        trained.save(&path("whole")).expect("saved");
        corpus.push(fs::read(path("whole")).expect("a model"));
        trained.run(&mut ()).expect("it trains");
    }
    let read = |bytes: &[u8]| {
        let at = |name: &str| Start::get().folder.path().join(name);
        fs::write(at("v"), bytes).expect("written");
        match Start::get().session(Some(at("v"))) {
            Err(e) => drop(e.to_string()),
            Ok(session) => {
                session.save(&at("w")).expect("saved");
                let again = Start::get().session(Some(at("w")));
                let again = again.unwrap_or_else(|e| panic!("what is written loads: {e}"));
                assert_eq!(state(&again).expect("state"), state(&session).expect("state"));
            }
        }
    };
    fuzz(Target::new("saved", (4 << 20, 300), read), corpus);
}

/// Manifests of checkpoints: whatever one says, what is taken are the values that were written.
#[test]
fn manifests_are_read() {
    static KEPT: OnceLock<(PathBuf, Vec<Vec<u32>>)> = OnceLock::new();
    let folder = Start::get().folder.path().join("kept");
    let leaves = Checkpoint { folder: folder.clone(), every: Every::Steps(9), keep: 1, best: None };
    let data = Some(Start::get().folder.path().join("d.csv"));
    let options = Options::default().data(data).evaluate(false).checkpoint(leaves);
    let mut trained = Session::<f32>::new(Start::get().schedule.clone(), options).expect("a session");
    trained.run(&mut ()).expect("it trains");
    let own = folder.join("step-000000000002");
    let manifest = fs::read(own.join("manifest.json")).expect("a manifest");
    KEPT.get_or_init(|| (own, state(&trained).expect("state")));
    let read = |bytes: &[u8]| {
        let (own, wanted) = KEPT.get().expect("a checkpoint");
        fs::write(own.join("manifest.json"), bytes).expect("written");
        match Start::get().session(Some(own.clone())) {
            Err(e) => drop(e.to_string()),
            Ok(session) => assert_eq!(&state(&session).expect("state"), wanted),
        }
        let one = fresh(own);
        let _ = checkpoints(own, true).map_err(|e| e.to_string());
        if convert(own, &one, false).is_ok() {
            let found = differences(own, &one).expect("both are read");
            assert!(found.tensors.is_empty(), "{found:?}");
        }
    };
    // Also those that say of themselves that they are whole, which is no use against whoever wants to lie.
    let read_sealed = |bytes: &[u8]| {
        let (own, _) = KEPT.get().expect("a checkpoint");
        let sealed = sealed(bytes);
        fs::write(own.join("manifest.json"), sealed).expect("written");
        let _ = Start::get().session(Some(own.clone())).map_err(|e| e.to_string());
        let one = fresh(own);
        if convert(own, &one, false).is_ok() {
            let _ = differences(own, &one).map_err(|e| e.to_string());
        }
    };
    fuzz(Target::new("manifests", (16 << 20, 300), read), vec![manifest.clone()]);
    fuzz(Target::new("sealed manifests", (16 << 20, 300), read_sealed), vec![manifest]);
}

/// Where a checkpoint of this folder becomes one file; what was made before is gone, as nothing is written over.
fn fresh(own: &Path) -> PathBuf {
    let one = own.with_file_name("one.safetensors");
    let _ = fs::remove_file(&one);
    one
}

/// Programs that check, whatever their numbers, compile or are refused.
#[test]
fn programs_that_check_compile_or_are_refused() {
    let read = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        // Long unrolled programs take their time in the compiler; that is no finding.
        let Some(program) = program(text) else { return };
        if program.model.as_ref().is_some_and(|m| m.nodes.len() > 2000) {
            return;
        }
        match fs_compiler::compile(&dividing(program, 3), Order::Pec, 3) {
            Ok(compiled) => {
                let written = file::to_text(&compiled.schedule);
                let read = file::parse(Path::new("s.json"), written.as_bytes(), true);
                assert!(
                    read.is_ok(),
                    "what is compiled loads: {}",
                    read.err().map(|e| e.to_string()).unwrap_or_default()
                );
            }
            Err(e) => {
                let said = e.to_string();
                assert!(!said.contains("defect"), "{said}");
                // Refused for a reason that is the program's: a place in it, options, or a pass that says what cannot be.
                let refused = match e {
                    CompileError::Import(_) | CompileError::NoRanks | CompileError::Beyond { .. } => true,
                    CompileError::Pass(e) => matches!(*e.stop, Stop::Failed(_)),
                    _ => false,
                };
                assert!(refused, "{said}");
            }
        }
    };
    fuzz(Target::new("compiler", (256 << 20, 1000), read), programs());
}

/// The fuzzer notices what it is there for.
#[test]
fn faults_are_found() {
    let _alone = alone();
    let read = |bytes: &[u8]| match bytes {
        b"panic" => panic!("found"),
        b"hang" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        b"swell" => drop(std::hint::black_box(vec![1u8; 3 << 20])),
        _ => {}
    };
    let patience = Duration::from_millis(500);
    let mut fuzzer = Fuzzer::new(Target { patience, ..Target::new("self", (1 << 20, 1000), read) });
    assert_eq!(fuzzer.fault(b"fine"), None);
    assert!(matches!(fuzzer.fault(b"panic"), Some(Fault::Panic(said)) if said.contains("found")));
    assert!(matches!(fuzzer.fault(b"swell"), Some(Fault::Memory { used, .. }) if used >= 3 << 20));
    assert_eq!(fuzzer.fault(b"hang"), Some(Fault::Hang));
    assert_eq!(fuzzer.fault(b"fine"), None, "it goes on after a hang");
}
