//! How long compilation takes, and how it grows: `cargo bench -p fs-compiler`. `-- --fit` prints the exponents of growth
//! in tables and layers, the ratio over ranks, and the time and peak memory of 2,000 tables with 96 layers instead;
//! `-- --wide` those of one wide concat, of splits and of a deep mlp; `-- --auto` the time of the search over that of
//! `pec`.

mod models;

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use fs_compiler::search::{candidates, search};
use fs_compiler::{CompileOptions, Strategy, compile};
use fs_dsl::checked::Program;

const STRATEGIES: [Strategy; 3] = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec];
const TABLES: [usize; 4] = [250, 500, 1000, 2000];
const LAYERS: [usize; 4] = [12, 24, 48, 96];
const RANKS: [u32; 5] = [8, 64, 512, 4096, 16384];

fn program(text: &str) -> Program {
    let loaded = fs_dsl::check_text("large.fs", text);
    let said = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    loaded.program.unwrap_or_else(|| panic!("{said}"))
}

/// From text to schedule.
fn whole(text: &str, strategy: Strategy, ranks: u32) {
    let compiled = compile(&program(text), strategy, ranks).unwrap_or_else(|e| panic!("{e}"));
    std::hint::black_box(compiled);
}

fn bench(c: &mut Criterion) {
    let mut group = c.benchmark_group("examples");
    for name in ["movielens", "ranking", "dlrm"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{name}.fs"));
        for strategy in STRATEGIES {
            group.bench_function(BenchmarkId::new(name, format!("{strategy:?}")), |b| {
                b.iter(|| {
                    let program = fs_dsl::load(&path).program.unwrap_or_else(|| panic!("{name} checks"));
                    compile(&program, strategy, 8).unwrap_or_else(|e| panic!("{e}"))
                });
            });
        }
        group.bench_function(BenchmarkId::new(name, "auto"), |b| {
            b.iter(|| {
                let program = fs_dsl::load(&path).program.unwrap_or_else(|| panic!("{name} checks"));
                let options = CompileOptions::new(Strategy::Pec, 8);
                search(&program, &options, candidates(None)).unwrap_or_else(|e| panic!("{e}"))
            });
        });
    }
    group.finish();
    let mut group = c.benchmark_group("growth");
    group.sample_size(10);
    for tables in TABLES {
        let text = models::model(tables, 12);
        group.bench_function(BenchmarkId::new("tables", tables), |b| {
            b.iter(|| whole(&text, Strategy::Pec, 8));
        });
    }
    let text = models::model(TABLES[3], 12);
    group.bench_function(BenchmarkId::new("auto", TABLES[3]), |b| b.iter(|| auto(&text, 8)));
    for layers in LAYERS {
        let text = models::model(50, layers);
        group.bench_function(BenchmarkId::new("layers", layers), |b| {
            b.iter(|| whole(&text, Strategy::Pec, 8));
        });
    }
    let text = models::model(50, 12);
    for ranks in RANKS {
        group.bench_function(BenchmarkId::new("ranks", ranks), |b| {
            b.iter(|| whole(&text, Strategy::Pec, ranks));
        });
    }
    group.finish();
}

/// From text to the best schedule.
fn auto(text: &str, ranks: u32) {
    let options = CompileOptions::new(Strategy::Pec, ranks);
    let best = search(&program(text), &options, candidates(None)).unwrap_or_else(|e| panic!("{e}"));
    std::hint::black_box(best);
}

/// The least of a few runs.
fn least_of(run: impl Fn()) -> Duration {
    let timed = |_| {
        let started = Instant::now();
        run();
        started.elapsed()
    };
    (0..3).map(timed).min().unwrap_or_default()
}

fn least(text: &str, strategy: Strategy, ranks: u32) -> Duration {
    least_of(|| whole(text, strategy, ranks))
}

/// The slope of a line through the points in log scale.
fn exponent(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let mean = logs.iter().fold((0.0, 0.0), |m, p| (m.0 + p.0 / n, m.1 + p.1 / n));
    let cov: f64 = logs.iter().map(|p| (p.0 - mean.0) * (p.1 - mean.1)).sum();
    cov / logs.iter().map(|p| (p.0 - mean.0).powi(2)).sum::<f64>()
}

/// Peak resident memory of this process in MiB, where the system tells.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|l| l.strip_prefix("VmHWM:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(f64::NAN) / 1024.0
}

/// How time grows with the operands of a concat, the parts of splits and the layers of an mlp.
fn wide() {
    type Model = fn(usize) -> String;
    let cases: [(&str, Model, [usize; 4]); 3] = [
        ("concat", models::concat, [2_500, 5_000, 10_000, 20_000]),
        ("split", models::split, [2_500, 5_000, 10_000, 20_000]),
        ("mlp", models::mlp, [7_500, 15_000, 30_000, 60_000]),
    ];
    for strategy in [Strategy::Serial, Strategy::Pec] {
        for (what, model, sizes) in cases {
            let points = sizes.map(|n| (n as f64, least(&model(n), strategy, 2).as_secs_f64()));
            let times: Vec<String> = points.iter().map(|(n, t)| format!("{n}: {:.0} ms", t * 1e3)).collect();
            eprintln!("{strategy:?}, {what}: exponent {:.2} ({})", exponent(&points), times.join(", "));
        }
    }
}

/// The search beside one of its candidates.
fn against_pec() {
    for tables in TABLES {
        let text = models::model(tables, 12);
        let (pec, auto) = (least(&text, Strategy::Pec, 8), least_of(|| auto(&text, 8)));
        let ratio = auto.as_secs_f64() / pec.as_secs_f64();
        eprintln!("{tables} tables: pec {pec:.2?}, auto {auto:.2?}, ratio {ratio:.2}");
    }
}

fn fit() {
    // First, so that the peak is this model's.
    let text = models::model(2000, 96);
    let started = Instant::now();
    whole(&text, Strategy::Pec, 8);
    eprintln!("2,000 tables x 96 layers: {:.2} s, peak {:.0} MiB", started.elapsed().as_secs_f64(), peak());
    for strategy in STRATEGIES {
        for (what, sizes) in [("tables", TABLES), ("layers", LAYERS)] {
            let points = sizes.map(|n| {
                let text = if what == "tables" { models::model(n, 12) } else { models::model(50, n) };
                (n as f64, least(&text, strategy, 8).as_secs_f64())
            });
            let times: Vec<String> = points.iter().map(|(n, t)| format!("{n}: {:.0} ms", t * 1e3)).collect();
            eprintln!("{strategy:?} in {what}: exponent {:.2} ({})", exponent(&points), times.join(", "));
        }
        let text = models::model(50, 12);
        let times = RANKS.map(|ranks| least(&text, strategy, ranks).as_secs_f64());
        let (low, high) = times.iter().fold((f64::INFINITY, 0.0f64), |(l, h), t| (l.min(*t), h.max(*t)));
        eprintln!(
            "{strategy:?} from {} to {} ranks: longest over shortest {:.2}",
            RANKS[0],
            RANKS[4],
            high / low
        );
    }
}

fn main() {
    let modes: [(&str, fn()); 3] = [("--fit", fit), ("--wide", wide), ("--auto", against_pec)];
    if let Some((_, mode)) = modes.into_iter().find(|(name, _)| std::env::args().any(|a| a == *name)) {
        return mode();
    }
    let mut criterion = Criterion::default().configure_from_args();
    bench(&mut criterion);
    criterion.final_summary();
}
