//! Tests over the whole path: end-to-end through the binaries, parity with PyTorch, gradient checks.
//!
//! What several test files need stands here.

pub mod arrange;
pub mod batches;
pub mod boundaries;
pub mod campaign;
pub mod chart;
pub mod emulated;
pub mod filetest;
pub mod instances;
pub mod interpreter;
pub mod joined;
pub mod mock;
pub mod models;
pub mod modules;
pub mod mutate;
pub mod mutations;
pub mod overlap;
pub mod pipes;
pub mod replay;
pub mod schedules;
pub mod sealed;
pub mod small;
pub mod snapshots;
pub mod training;
pub mod verdicts;
pub mod witness;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_schedule::{Schedule, Strategy};

/// A path below the project's root.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compiles a model's text, which must check without errors.
pub fn compile_text(text: &str) -> Schedule {
    compile_loaded(&fs_dsl::check_text("model.fs", text))
}

/// Compiles a model's file.
pub fn compile_file(path: &Path) -> Schedule {
    compile_loaded(&fs_dsl::load(path))
}

fn compile_loaded(loaded: &fs_dsl::Loaded) -> Schedule {
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let Some(program) = &loaded.program else { panic!("{rendered}") };
    match fs_compiler::compile(program, Strategy::Serial, 1) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!("{e}"),
    }
}

/// The program of a text.
///
/// # Panics
/// If it does not check, with what is said of it.
pub fn checked(text: &str) -> fs_dsl::checked::Program {
    let loaded = fs_dsl::check_text("random.fs", text);
    loaded.program.unwrap_or_else(|| {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false));
    })
}

/// The same program with a batch that divides by so many ranks (and still by its microbatches): without one it does not
/// compile for them.
pub fn dividing(mut program: fs_dsl::checked::Program, ranks: u32) -> fs_dsl::checked::Program {
    let batch = &mut program.train.batch;
    if !batch.is_multiple_of(ranks) {
        *batch = batch.saturating_mul(ranks);
    }
    program
}

/// A model that says what rows and gradients are on their way. Each row is asked for once then: occurrences would be rounded one
/// by one, which is an error.
pub fn rounding(text: &str, wire: fs_schedule::WirePrecision) -> String {
    use fs_schedule::Element::{Bf16, Mxint8, Real};
    let word = |element| match element {
        Bf16 => "bf16",
        Mxint8 => "mxint8",
        _ => "f32",
    };
    let (rows, gradients) = (word(wire.rows), word(wire.gradients));
    let dense = word(wire.dense);
    let precision =
        format!("train {{ precision {{ output_dist {rows}  gradient_dist {gradients}  all_reduce {dense} }}");
    let text = text.replace("train {", &precision);
    if wire.gradients == Real { text } else { text.replace("unique_rows off", "unique_rows on") }
}

/// A program's schedule on nodes of two ranks, with all rows that have owners through relays; none if it does not compile so.
pub fn through_relays(
    program: &fs_dsl::checked::Program,
    options: fs_compiler::CompileOptions,
) -> Option<fs_schedule::Schedule> {
    let cluster = fs_dsl::checked::Cluster { gpus_per_node: 2, ..fs_dsl::cluster::preset("local")? };
    let options = options.cluster(cluster).balance(false);
    let plain = fs_compiler::compile_with(program, &options).ok()?.schedule;
    let owned = plain.tables.iter().filter(|t| t.sharding != fs_schedule::Sharding::DataParallel);
    let relay = fs_compiler::distribution::TableOptions::default();
    let relay = relay.relay(owned.map(|t| (t.name.clone(), true)));
    fs_compiler::compile_with(program, &options.tables(relay)).ok().map(|c| c.schedule)
}

/// A model with so many hot rows in every table whose rows have owners.
pub fn with_hot_rows(
    program: &fs_dsl::checked::Program,
    options: fs_compiler::CompileOptions,
    hot: u32,
) -> Option<fs_schedule::Schedule> {
    let plain = fs_compiler::compile_with(program, &options).ok()?.schedule;
    let owned = plain.tables.iter().filter(|t| t.sharding != fs_schedule::Sharding::DataParallel);
    let tables = options.tables.clone().hot(owned.map(|t| (t.name.clone(), hot)));
    fs_compiler::compile_with(program, &options.tables(tables)).ok().map(|c| c.schedule)
}

/// What comes of each, in their order: for work in one test that others wait for.
///
/// # Panics
/// If it does so for one of them.
pub fn on_all_cores<T: Sync, R: Send>(of: &[T], what: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mine = std::iter::from_fn(|| {
            let at = next.fetch_add(1, Ordering::Relaxed);
            of.get(at).map(|one| (at, what(one)))
        });
        mine.collect::<Vec<_>>()
    };
    let mut all = std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let running: Vec<_> = (0..cores.min(of.len())).map(|_| scope.spawn(work)).collect();
        let ended =
            running.into_iter().map(|one| one.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        ended.flatten().collect::<Vec<_>>()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, found)| found).collect()
}

/// A binary of the workspace, built in the profile of the tests.
pub fn binary(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        // As the workspace's tests are built, and they as tests of both that need them: with other features all that they
        // are made of would be compiled again. After `cargo test --workspace` nothing is.
        cargo.args(["test", "--quiet", "--workspace", "--no-run", "--test", "cli"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let status = cargo.current_dir(root("")).status();
        assert!(status.is_ok_and(|s| s.success()), "the binaries must build");
        // The test itself lies in target/PROFILE/deps.
        let this = std::env::current_exe().unwrap_or_default();
        this.ancestors().nth(2).map(Path::to_path_buf).unwrap_or_default()
    });
    folder.join(name)
}
