//! What recording every operation costs: one session trains blocks of steps in turn with and without.
//!
//! `cargo bench -p fs-tests --bench tracing [-- --blocks N] [--ranks N]`. Prints the ratio of step times, of each pair of blocks
//! and their median, for the movielens example and for a model whose operations take a few microseconds.
#![allow(clippy::print_stdout, missing_docs, reason = "a benchmark prints")]

use std::path::Path;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::report::Spread;
use fs_executor::{Options, Session};
use fs_schedule::Schedule;

const SMALL: &str = "model small {
  table a { rows 400  dim 16  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }
  input x: ids(a) { max 9 }
  input following: next(x)
  let h = lookup(x)
  let g = layer_norm(h + silu_attention(linear(h, 16), linear(h, 16), linear(h, 16), heads: 2))
  loss sampled_softmax(linear(silu(g), 16), a, following, negatives: 8, temperature: 0.5, similarity: cosine, normalize: tokens)
}
train { batch 8  steps 1_000_000  optimizer adam(lr: 1e-2) }
workload w { generate { lengths fixed(6)  ids zipf(1.05)  labels hash } }";

fn compile(loaded: &fs_dsl::Loaded, ranks: u32) -> Schedule {
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    compile_with(program, &CompileOptions::new(Strategy::Pec, ranks))
        .unwrap_or_else(|e| panic!("{e}"))
        .schedule
}

fn measure(name: &str, schedule: Schedule, file: Option<&Path>, block: u64, blocks: usize) {
    let ops = schedule.train.ops.len();
    let options = Options::default().evaluate(false).schedule_file(file.map(Path::to_path_buf));
    let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
    let mut step = 0;
    let mut turn = |recorded: bool| {
        session.record(recorded.then(|| step..step + block));
        let events = session.advance(block, &mut ()).unwrap_or_else(|e| panic!("{e}"));
        step += block;
        assert_eq!(session.take_records().iter().any(|own| !own.is_empty()), recorded);
        Spread::of(events[3..].iter().map(|e| 1e3 * e.seconds).collect()).median
    };
    turn(false);
    let (mut ratios, mut without) = (Vec::new(), Vec::new());
    for pair in 0..blocks {
        let first = pair % 2 == 1;
        let (a, b) = (turn(first), turn(!first));
        let (with, plain) = if first { (a, b) } else { (b, a) };
        ratios.push(with / plain);
        without.push(plain);
    }
    let (ratio, plain) = (Spread::of(ratios), Spread::of(without));
    println!(
        "{name:<10} {ops:>4} operations, {:>8.3} ms a step: with recording {:.4} of that (median of {blocks} pairs of {block} steps, p10 {:.4}, p90 {:.4})",
        plain.median, ratio.median, ratio.p10, ratio.p90
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let wanted = |name: &str| {
        let value = arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1));
        value.and_then(|n| n.parse::<u32>().ok())
    };
    let (blocks, ranks) = (wanted("--blocks").unwrap_or(40) as usize, wanted("--ranks").unwrap_or(2));
    measure("small", compile(&fs_dsl::check_text("small.fs", SMALL), ranks), None, 400, blocks);
    let example = fs_tests::root("examples/movielens.fs");
    let schedule = compile(&fs_dsl::load(&example), ranks);
    measure("movielens", schedule, Some(&example), 21, blocks);
}
