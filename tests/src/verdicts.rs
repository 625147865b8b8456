//! What the verifier says of unaimed mutants of rich schedules, word for word.
//!
//! The kinds of corruption say which rule must break; these hold everything else that the verifier says: which mutants it
//! takes, what it complains of first, and how that reads. A change of a rule that was meant to change nothing shows here.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fs_compiler::{CompileOptions, compile_with};
use fs_schedule::verify::{Violation, verify};
use fs_schedule::{Schedule, Strategy};
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::campaign::{Random, mutant};
use crate::models::{Features, models};
use crate::mutations::bases as built_by_hand;
use crate::schedules::build;

/// Attention, norms, pools and columns of columns, in every way that rows travel.
pub(crate) const RICH: &str = "model rich {
  table items { rows 40  dim 8  optimizer adagrad(lr: 0.1) }
  table users { rows 30  dim 8  optimizer sgd(lr: 0.1)  sharding column_wise }
  table words { rows 20  dim 8  optimizer sgd(lr: 0.1)  sharding data_parallel }
  input history: ids(items) { max 6 }
  input seen: ids(users) like history
  input read: ids(words) like history
  input good: label like history
  let h = concat(lookup(history), lookup(seen), lookup(read))
  let q, k, v = split(layer_norm(linear(h, 24)), 3)
  let a = softmax_attention(q, k, v, heads: 2)
  let b, c, d = split(h, 3)
  let y = l2_normalize(concat(a * b, silu(c), gelu(d), silu_attention(k, q, b, heads: 1)))
  loss bce_with_logits(mlp(y, [8, 1]), good, normalize: tokens)
}
train { batch 8  steps 4  optimizer sgd(lr: 0.1) }";

fn compiled(text: &str, options: &CompileOptions) -> Option<Schedule> {
    let loaded = fs_dsl::check_text("model.fs", text);
    compile_with(&loaded.program?, options).ok().map(|c| c.schedule)
}

/// Schedules to change: examples, random models and some made by hand, in every strategy.
pub fn bases() -> Vec<(String, Schedule)> {
    let mut out = Vec::new();
    let pec = |k, m| CompileOptions::new(Strategy::Pec, 2).lookahead(k).microbatches(m);
    for (name, options) in [
        ("movielens.fs", pec(1, 1)),
        ("movielens.fs", pec(2, 2)),
        ("ranking.fs", pec(2, 2)),
        ("dlrm.fs", CompileOptions::new(Strategy::Prefetch, 2)),
        ("dlrm.fs", pec(1, 2)),
    ] {
        let program = fs_dsl::load(&crate::root("examples").join(name)).program.expect("examples check");
        let s = compile_with(&program, &options).expect("examples compile").schedule;
        out.push((format!("{name} {:?}", s.strategy), s));
    }
    for (strategy, k, m) in [(Strategy::Serial, 1, 1), (Strategy::Prefetch, 1, 2), (Strategy::Pec, 2, 2)] {
        let options = CompileOptions::new(strategy, 2).lookahead(k).microbatches(m);
        out.push((format!("rich {strategy:?}"), compiled(RICH, &options).expect("it compiles")));
    }
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let family = models(Features { shardings: true, microbatches: false, placements: false });
    let mut n = 0;
    while out.len() < 18 {
        let text = family.new_tree(&mut runner).expect("a model").current().text();
        n += 1;
        let strategy = [Strategy::Pec, Strategy::Serial, Strategy::Pec, Strategy::Prefetch][n % 4];
        let options =
            CompileOptions::new(strategy, 2).lookahead(1 + n as u32 % 3).microbatches([1, 2, 3][n % 3]);
        let Some(s) = compiled(&text, &options) else { continue };
        if s.train.ops.len() < 260 {
            out.push((format!("random model {n} {strategy:?}"), s));
        }
    }
    out.extend(built_by_hand().iter().step_by(23).map(|(name, plan)| (name.clone(), build(plan))));
    out
}

/// Mutants of each schedule, the same every time.
pub fn mutants(bases: &[(String, Schedule)], each: usize) -> Vec<(usize, Schedule)> {
    let mut out = Vec::new();
    for (n, (_, s)) in bases.iter().enumerate() {
        let json = serde_json::to_value(s).expect("plain data");
        let mut random = Random::new(1000 + n as u64);
        out.extend((0..each).filter_map(|_| mutant(s, &json, &mut random)).map(|m| (n, m)));
    }
    out
}

/// What is said of schedules: how many each rule refuses first, the first complaint of each rule, and a digest of all.
pub fn report(bases: &[(String, Schedule)], mutants: &[(usize, Schedule)]) -> String {
    let mut rules: BTreeMap<&str, (usize, String)> = BTreeMap::new();
    let (mut taken, mut all) = (0, String::new());
    for (n, s) in mutants {
        let found = verify(s);
        let _ = writeln!(all, "{}", words(&found));
        match found.first() {
            None => taken += 1,
            Some(v) => {
                let entry =
                    rules.entry(v.rule).or_insert_with(|| (0, format!("{}: {}", bases[*n].0, v.message)));
                entry.0 += 1;
            }
        }
    }
    let mut text = format!("{} mutants of {} schedules, {taken} taken\n\n", mutants.len(), bases.len());
    for (rule, (count, first)) in rules {
        let _ = writeln!(text, "{rule} {count}\n  {}", first.replace('\n', "\n  "));
    }
    let _ = writeln!(text, "\nall that is said: {}", fs_schedule::digest::sha256(all.as_bytes()));
    text
}

/// All violations in words.
pub fn words(found: &[Violation]) -> String {
    found.iter().fold(String::new(), |mut text, v| {
        let _ = writeln!(text, "{v}");
        text
    })
}
