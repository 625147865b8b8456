//! What the compiler makes of models, operation by operation, as short texts to compare.
//!
//! A proof says that a schedule is right, not that it is the one that was made before: another order, a slot that is no
//! longer shared, a dependency too many prove as well. A change that was meant to change nothing shows here.

use std::fmt::Write as _;

use fs_compiler::{CompileOptions, compile_with};
use fs_dsl::checked::Program;
use fs_schedule::{Program as Listed, Schedule, Strategy};
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::models::{Features, models};
use crate::verdicts::RICH;

/// Storage at its edges: concats of concats, of splits, of the same value twice, of what lives elsewhere; a gradient
/// that is added up; microbatches of a shared table.
const EDGES: &str = "model edges {
  table items { rows 40  dim 8  optimizer adagrad(lr: 0.1) }
  table words { rows 20  dim 4  optimizer sgd(lr: 0.1)  sharding data_parallel }
  input history: ids(items) { max 6 }
  input liked: ids(items) { max 3 }
  input read: ids(words) { max 2 }
  input age: dense(4)
  input click: label
  let a = pool(history)
  let b = pool(liked, mean)
  let c = pool(read)
  let l, r = split(a, 2)
  let inner = concat(b, age)
  let x = concat(inner, l, a, c, inner, age, r)
  let y = concat(relu(linear(x, 8)), b, relu(linear(x, 8)))
  let m, n = split(y, 2)
  loss bce_with_logits(mlp(concat(m * n, n, dot_interaction(a, b, linear(y, 8))), [8, 1]), click, normalize: samples)
}
train { batch 12  steps 4  optimizer adam(lr: 0.1) }";

/// A model with what it is called and what is chosen for it.
pub struct Wanted {
    name: String,
    program: Program,
    options: CompileOptions,
}

impl Wanted {
    /// Its schedule.
    pub fn compile(&self) -> Result<Schedule, String> {
        compile_with(&self.program, &self.options).map(|c| c.schedule).map_err(|e| e.to_string())
    }

    /// One line: its name and a digest of what is compiled.
    pub fn line(&self) -> String {
        let text = self.compile().map_or_else(|e| e, |s| listed(&s));
        format!("{} {}", &fs_schedule::digest::sha256(text.as_bytes())["sha256:".len()..][..16], self.name)
    }
}

/// Every operation and buffer of both programs.
pub fn listed(s: &Schedule) -> String {
    let mut text = String::new();
    // What files leave out says nothing here.
    let exchanges = format!("{:?}", s.exchanges)
        .replace(", folded: false", "")
        .replace(", leg: Whole", "")
        .replace(", windows: None", "");
    let _ = writeln!(text, "{exchanges}");
    programs(&mut text, &s.train);
    if let Some(p) = &s.evaluation {
        programs(&mut text, p);
    }
    text
}

fn programs(text: &mut String, p: &Listed) {
    let _ = writeln!(text, "{} in flight", p.in_flight);
    for op in &p.ops {
        let _ = writeln!(
            text,
            "{} {:?} {:?} {:?} {:?} {} {} {:?} {:?} {:?}",
            op.name,
            op.action,
            op.reads,
            op.writes,
            op.engine,
            op.stage,
            op.priority,
            op.microbatch,
            op.deps,
            op.chunk
        );
    }
    for b in &p.buffers {
        let _ = writeln!(text, "{b:?}");
    }
}

/// Examples, models at the edges of storage, and random ones, by all strategies.
pub fn wanted() -> Vec<Wanted> {
    let mut out = Vec::new();
    let mut add = |name: &str, program: &Program| {
        for (strategy, k, m) in [
            (Strategy::Serial, 1, 1),
            (Strategy::Prefetch, 1, 2),
            (Strategy::Pec, 1, 1),
            (Strategy::Pec, 2, 2),
        ] {
            let options = CompileOptions::new(strategy, 2).lookahead(k).microbatches(m);
            let name = format!("{name}, {strategy:?}, K = {k}, M = {m}");
            out.push(Wanted { name, program: program.clone(), options });
        }
    };
    for (name, text) in [("edges", EDGES), ("rich", RICH)] {
        let loaded = fs_dsl::check_text("model.fs", text);
        let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
        add(name, &loaded.program.unwrap_or_else(|| panic!("{rendered}")));
    }
    for name in ["movielens.fs", "ranking.fs", "dlrm.fs"] {
        let loaded = fs_dsl::load(&crate::root("examples").join(name));
        add(name, &loaded.program.expect("examples check"));
    }
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]));
    let family = models(Features { shardings: true, microbatches: false, placements: false });
    for n in 0..12 {
        let text = family.new_tree(&mut runner).expect("a model").current().text();
        if let Some(program) = fs_dsl::check_text("model.fs", &text).program {
            add(&format!("random model {n}"), &crate::dividing(program, 4));
        }
    }
    out
}
