//! The examples, made small enough for devices that are emulated: fewer rows and columns, short sequences, few steps.

use std::fs;
use std::path::Path;

use fs_compiler::{CompileOptions, Strategy, compile_with, search};
use fs_dsl::checked::{Cluster, Program};
use fs_schedule::Schedule;
use fs_schedule::terminal::shown;
use tempfile::TempDir;

use crate::root;

/// What of an example's text becomes what.
type Changes = &'static [(&'static str, &'static str)];

/// The examples, and how they become small.
pub const EXAMPLES: [(&str, Changes); 4] = [
    (
        "movielens",
        &[
            ("rows 9_066", "rows 200"),
            ("dim 64", "dim 8"),
            ("max 200 ", "max 12 "),
            ("negatives: 128", "negatives: 6"),
            ("batch 32", "batch 6"),
            ("epochs 20", "steps 6"),
        ],
    ),
    (
        "ranking",
        &[
            ("rows 200_000", "rows 300"),
            ("dim 64", "dim 8"),
            ("{ max 1024 ", "{ max 12 "),
            ("mean: 200, sigma: 1, max: 1024", "mean: 5, sigma: 1, max: 12"),
            ("normalize: 32 * 200", "normalize: 6 * 5"),
            ("batch 32", "batch 6"),
            ("steps 100", "steps 6"),
        ],
    ),
    (
        "dlrm",
        &[
            ("rows 1_000_000", "rows 200"),
            ("rows 2_000_000", "rows 300"),
            ("rows 50_000", "rows 100"),
            ("rows 500", "rows 20"),
            ("dim 32", "dim 4"),
            ("[512, 256, 32]", "[8, 6, 4]"),
            ("[256, 128, 1]", "[8, 6, 1]"),
            ("{ max 100 }", "{ max 8 }"),
            ("mean: 20, sigma: 1, max: 100", "mean: 3, sigma: 1, max: 8"),
            ("batch 256", "batch 8"),
            ("steps 100", "steps 6"),
        ],
    ),
    (
        "histories",
        &[
            ("rows 50_000_000", "rows 300"),
            ("rows 5_000_000", "rows 200"),
            ("dim 512", "dim 8"),
            ("max 21_000 ", "max 12 "),
            ("repeat 6", "repeat 1"),
            ("heads: 8", "heads: 2"),
            ("mean: 1000, sigma: 1.2, max: 21_000", "mean: 5, sigma: 1, max: 12"),
            ("batch 2_048", "batch 8"),
            ("steps 1_000", "steps 6"),
            ("\ncluster h100x256", ""),
        ],
    ),
];

/// Interactions of a user that are kept, and users.
const KEPT: (usize, usize) = (12, 14);

/// An example that was made small, in a folder of its own.
pub struct Small {
    /// Its model.
    pub program: Program,
    /// With its data.
    pub folder: TempDir,
}

impl Small {
    /// Of an example and how it becomes small.
    pub fn new((name, changes): (&str, Changes)) -> Self {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
        let mut text = read(&root(&format!("examples/{name}.fs")));
        for (from, to) in changes {
            assert!(text.contains(from), "{name}.fs has no `{from}` any more");
            text = text.replace(from, to);
        }
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all).unwrap_or_else(|e| panic!("{e}"));
            fs::write(path, text).unwrap_or_else(|e| panic!("{e}"));
        };
        write("small.fs", &text);
        write("blocks/hstu.fs", &read(&root("examples/blocks/hstu.fs")));
        write("data/ml-latest-small/ratings.csv", &ratings());
        let loaded = fs_dsl::load(&folder.path().join("small.fs"));
        let program = loaded.program.unwrap_or_else(|| {
            panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false));
        });
        Self { program, folder }
    }

    /// Its schedule of a strategy, or the one that is found to be the fastest.
    pub fn schedule(&self, strategy: Option<Strategy>, ranks: u32) -> Schedule {
        self.schedule_on(None, strategy, ranks)
    }

    /// The same for a cluster.
    pub fn schedule_on(&self, cluster: Option<Cluster>, strategy: Option<Strategy>, ranks: u32) -> Schedule {
        let options = CompileOptions::new(strategy.unwrap_or(Strategy::Serial), ranks).cluster(cluster);
        let compiled = match strategy {
            Some(_) => compile_with(&self.program, &options),
            None => search::tables::search(&self.program, &options, search::candidates(None))
                .map(|(best, _)| best.compiled),
        };
        compiled.unwrap_or_else(|e| panic!("{strategy:?}: {e}")).schedule
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", shown(path)))
}

/// The first interactions of the first users.
fn ratings() -> String {
    let all = read(&root("examples/data/ml-latest-small/ratings.csv"));
    let (mut out, mut last, mut own, mut users) = (String::new(), "", 0, 0);
    for line in all.lines() {
        let user = line.split(',').next().unwrap_or_default();
        own = if user == last { own + 1 } else { 0 };
        users += usize::from(user != last);
        last = user;
        // The first line names the columns.
        if users > KEPT.1 + 1 {
            break;
        }
        if own < KEPT.0 {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}
