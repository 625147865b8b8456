//! Which rank and microbatch works on a sample decides nothing about it: any lists of samples train to the same losses,
//! tables and parameters but for the order of sums, and the same lists to the same bits with every strategy.

use std::sync::Arc;

use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::data::samples::{Blocks, Deal, Dealt, Lists};
use fs_executor::data::{self, DataError, GlobalBatch, Source, Values};
use fs_executor::{Options, Session};
use fs_schedule::{Data, LengthDistribution, Schedule};
use fs_workload::random::{RandomKey, uniform_f64, uniform_index};

/// Each step in another order, with other numbers of samples for each rank and microbatch.
#[derive(Debug, Clone, Copy)]
struct Shuffled {
    seed: u64,
    /// Moves samples from home; otherwise that is where they are found.
    assigned: bool,
    /// In the order of their numbers, as samples that move are.
    ascending: bool,
}

impl Shuffled {
    fn deal(self, batch: Dealt, lists: &mut Lists) {
        let key = RandomKey { seed: self.seed, stream: 1, step: batch.step };
        let mut order: Vec<usize> = (0..batch.samples).collect();
        if !self.ascending {
            order.sort_by(|a, b| uniform_f64(key, *a as u64).total_cmp(&uniform_f64(key, *b as u64)));
        }
        let place = |sample: usize, of: usize, stream: u32| {
            uniform_index(RandomKey { stream, ..key }, sample as u64, of as u64) as usize
        };
        for m in 0..batch.microbatches {
            let own = order
                .iter()
                .copied()
                .filter(|s| place(*s, batch.ranks, 2) == batch.rank && place(*s, batch.microbatches, 3) == m);
            lists.push(own);
        }
    }
}

impl Deal for Shuffled {
    fn home(&self, batch: Dealt, lists: &mut Lists) {
        if self.assigned {
            Blocks.home(batch, lists);
        } else {
            self.deal(batch, lists);
        }
    }
    fn assigned(&self, batch: Dealt, lists: &mut Lists) -> bool {
        if self.assigned {
            self.deal(batch, lists);
        }
        self.assigned
    }
}

/// Dropout and negatives: random draws that belong to samples. Dense features and pooled sequences in the second.
const MODELS: [&str; 2] = [
    "model next {
      table a { rows 90  dim 8  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.05)  sharding row_wise }
      input x: ids(a) { max 9 }
      input following: next(x)
      let h = dropout(positional(lookup(x)), 0.3)
      let g = h + silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
      loss sampled_softmax(g, a, following, negatives: 5, temperature: 0.5, normalize: tokens)
    }
    train { batch 12  steps 6  optimizer adam(lr: 1e-2) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }",
    "model click {
      table a { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding table_wise }
      table b { rows 40  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding data_parallel }
      input x: ids(a) { max 9 }
      input y: ids(b) { max 5 }
      input features: dense(3)
      input click: label
      let h = pool(x, sum) + pool(y, mean) + linear(features, 8)
      loss bce_with_logits(linear(dropout(relu(h), 0.2), 1), click, normalize: samples)
    }
    train { batch 12  steps 6  optimizer adam(lr: 1e-2) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }",
];

/// A model whose samples go to ranks by their ids: of pooled sequences the arithmetic hardly counts, so no plan by it would
/// help.
fn by_ids(text: &str) -> String {
    text.replace("train {", "train { balance cost(c0: 1, c1: 1, c2: 0)")
}

fn compile(text: &str, strategy: Strategy, microbatches: u32) -> Schedule {
    placed(text, strategy, (3, microbatches), At::Ids)
}

/// With samples that move there, if they do, on so many ranks and in so many microbatches.
fn placed(text: &str, strategy: Strategy, (ranks, microbatches): (u32, u32), at: At) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", text);
    let Some(program) = &loaded.program else {
        panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false))
    };
    let options = CompileOptions::new(strategy, ranks).microbatches(microbatches).balance_at(at);
    compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule
}

/// Losses, tables and parameters.
fn train(schedule: &Schedule, deal: impl Deal + 'static) -> Vec<Vec<f64>> {
    trained(schedule, Arc::new(deal))
}

fn trained(schedule: &Schedule, deal: Arc<dyn Deal>) -> Vec<Vec<f64>> {
    let options = Options::default().evaluate(false).deal(deal);
    let mut session = Session::<f64>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    let mut all = vec![report.loss];
    all.extend((0..schedule.tables.len()).map(|t| session.table(t).unwrap()));
    all.extend((0..schedule.parameters.len()).map(|p| session.parameter(p)));
    all
}

fn close(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let largest = expected.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
        for (a, b) in found.iter().zip(expected) {
            assert!((a - b).abs() <= 1e-8 * largest, "{what}, value list {i}: {a} is not {b}");
        }
    }
}

#[test]
fn lists_of_samples_decide_nothing_but_the_order_of_sums() {
    for text in MODELS {
        for microbatches in [1, 3] {
            let schedule = compile(text, Strategy::Pec, microbatches);
            let serial = compile(text, Strategy::Serial, microbatches);
            let blocks = train(&schedule, Blocks);
            for seed in 0..3 {
                let deal = Shuffled { seed, assigned: false, ascending: false };
                let shuffled = train(&schedule, deal);
                close(&shuffled, &blocks, &format!("{microbatches} microbatches, seed {seed}"));
                assert_ne!(shuffled, blocks, "the lists were not used");
                assert!(train(&schedule, deal) == shuffled, "the same lists, other bits");
                assert!(train(&serial, deal) == shuffled, "the same lists, other bits with another strategy");
            }
        }
    }
}

/// Samples that are moved to other ranks train as if they had been read there, whatever goes where: to the same bits.
#[test]
fn samples_that_move_train_as_if_they_were_read_there() {
    for text in MODELS {
        for microbatches in [1, 3] {
            let home = compile(text, Strategy::Pec, microbatches);
            let balanced = by_ids(text);
            let moved = compile(&balanced, Strategy::Pec, microbatches);
            let serial = compile(&balanced, Strategy::Serial, microbatches);
            for seed in 0..3 {
                let at_home = train(&home, Shuffled { seed, assigned: false, ascending: true });
                let deal = Shuffled { seed, assigned: true, ascending: true };
                assert!(train(&moved, deal) == at_home, "{microbatches} microbatches, seed {seed}");
                assert!(train(&serial, deal) == at_home, "{microbatches} microbatches, seed {seed}, serial");
            }
            // Home's operations know nothing of what is assigned.
            let blocks = train(&home, Blocks);
            assert!(train(&home, Shuffled { seed: 4, assigned: true, ascending: true }) == blocks);
            // As planned: the same but for the order of sums.
            let planned = train(&moved, Blocks);
            assert!(train(&serial, Blocks) == planned, "two strategies, one plan");
            close(&planned, &blocks, "planned");
            assert_ne!(planned, blocks, "nothing was moved");
        }
    }
}

/// Sequences without ids, and all alike: nothing moves, and every bit is that of samples that stay.
#[test]
fn lengths_that_are_zero_or_equal_move_nothing() {
    for text in MODELS {
        for length in [0, 3] {
            let of = |text: &str| {
                let mut schedule = compile(text, Strategy::Pec, 1);
                let Some(Data::Generate { lengths, samples, .. }) = &mut schedule.data else {
                    panic!("a generator")
                };
                // A last batch of six for three ranks.
                (*lengths, *samples) = (LengthDistribution::Fixed(length), Some(30));
                format!("{:?}", train(&schedule, Blocks))
            };
            assert!(of(text) == of(&text.replace("train {", "train { balance on")), "{length} ids");
        }
    }
}

/// What is saved are values: the same file whether samples were read where they were worked on, or moved there.
#[test]
fn saved_files_do_not_know_who_worked() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    for text in MODELS {
        let schedule = compile(&text.replace("train {", "train { balance on"), Strategy::Pec, 2);
        let save = |name: &str, home: Shuffled, assigned: Shuffled| {
            let options = Options::default().evaluate(false).deal(Arc::new(Both(home, assigned)));
            let mut session =
                Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
            session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
            let path = folder.path().join(name);
            session.save(&path).unwrap_or_else(|e| panic!("{e}"));
            std::fs::read(path).expect("the file")
        };
        let lists = |seed| Shuffled { seed, assigned: false, ascending: true };
        let at_home = save("home", lists(1), lists(1));
        assert!(save("moved", lists(2), lists(1)) == at_home, "moved samples, another file");
        assert!(save("other", lists(1), lists(2)) != at_home, "the lists were not used");
    }
}

/// Home by one rule, assigned by another.
#[derive(Debug)]
struct Both(Shuffled, Shuffled);

impl Deal for Both {
    fn home(&self, batch: Dealt, lists: &mut Lists) {
        self.0.deal(batch, lists);
    }
    fn assigned(&self, batch: Dealt, lists: &mut Lists) -> bool {
        self.1.deal(batch, lists);
        true
    }
}

/// Data with one id in its third batch that its table does not have.
struct Beyond {
    source: Box<dyn Source>,
    input: usize,
    id: i64,
}

impl Source for Beyond {
    fn describe(&self) -> String {
        "ids beyond a table".into()
    }
    fn epoch_steps(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        self.source.fill(step, batch)?;
        if let (2, Values::Ids(ids)) = (step, &mut batch.inputs[self.input]) {
            ids[0] = self.id;
        }
        Ok(())
    }
}

/// Every sample is read on rank 0 and worked on on rank 1.
#[derive(Debug)]
struct Away;

impl Deal for Away {
    fn home(&self, batch: Dealt, lists: &mut Lists) {
        every(batch, 0, lists);
    }
    fn assigned(&self, batch: Dealt, lists: &mut Lists) -> bool {
        every(batch, 1, lists);
        true
    }
}

fn every(batch: Dealt, rank: usize, lists: &mut Lists) {
    for m in 0..batch.microbatches {
        let all = if (batch.rank, m) == (rank, 0) { batch.samples } else { 0 };
        lists.push(0..all);
    }
}

/// An id that a table does not have ends a run before its sample leaves: in the bits in which ids travel it would be
/// another row's.
#[test]
fn ids_beyond_a_table_do_not_travel() {
    let schedule = compile(&MODELS[0].replace("train {", "train { balance on"), Strategy::Pec, 1);
    let rows = schedule.tables[0].rows as i64;
    for (input, id) in
        [(0, rows), (0, rows + (1 << 32)), (0, 5 + (1 << 32)), (0, -1), (1, 5 + (1 << 32)), (1, i64::MIN + 5)]
    {
        let schedule = Arc::new(schedule.clone());
        let source = data::open(&schedule, None, None, 5).unwrap_or_else(|e| panic!("{e}"));
        let source = Box::new(Beyond { source, input, id });
        let options = Options::default().evaluate(false).deal(Arc::new(Away));
        let mut session =
            Session::<f64>::with_source(schedule, options, source).unwrap_or_else(|e| panic!("{e}"));
        let error = session.run(&mut ()).expect_err("an id that no row has");
        let expected =
            format!("rank 0 failed in `dispatch`: id {id} is out of range for table `a` with {rows} rows");
        assert_eq!(error.to_string(), expected);
    }
}
/// What is made of rows travels instead of ids: the same but for the order of sums as if samples had been read there, and as if
/// their ids travelled; the same bits with every strategy under one plan, on any number of ranks.
#[test]
fn rows_that_move_train_as_ids_that_move() {
    for text in MODELS {
        let balanced = by_ids(text);
        for (ranks, microbatches) in [(2, 1), (2, 3), (3, 1), (3, 2), (4, 1), (4, 3)] {
            let what = format!("{ranks} ranks, {microbatches} microbatches");
            let of = |strategy, at| placed(&balanced, strategy, (ranks, microbatches), at);
            let home = placed(text, Strategy::Serial, (ranks, microbatches), At::Ids);
            let ids = of(Strategy::Serial, At::Ids);
            let rows = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec].map(|s| of(s, At::Rows));
            for s in &rows {
                let carried = s.train.ops.iter().filter(|op| op.action.facts().carries().is_some()).count();
                assert!(carried > 0, "{what}: nothing but ids moves");
            }
            let deals: [Arc<dyn Deal>; 2] =
                [Arc::new(Blocks), Arc::new(Shuffled { seed: 1, assigned: true, ascending: true })];
            for deal in deals {
                let first = trained(&rows[0], Arc::clone(&deal));
                for other in &rows[1..] {
                    assert!(trained(other, Arc::clone(&deal)) == first, "{what}, {:?}", other.strategy);
                }
                close(&first, &trained(&ids, deal), &what);
                let stayed = trained(&home, Arc::new(Blocks));
                close(&first, &stayed, &format!("{what}, at home"));
                assert_ne!(first, stayed, "{what}: nothing was moved");
            }
        }
    }
}

/// A column-wise table, and one whose rows travel once per occurrence.
const MORE: [&str; 2] = [
    "model parts {
      table a { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding column_wise }
      table b { rows 40  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding row_wise(placement: hashed) }
      input x: ids(a) { max 9 }
      input z: ids(a) { max 4 }
      input y: ids(b) { max 5 }
      input click: label
      let h = concat(pool(x, sum) + pool(z, mean), pool(y, mean))
      loss bce_with_logits(linear(dropout(relu(h), 0.2), 1), click, normalize: samples)
    }
    train { batch 12  steps 6  optimizer adam(lr: 1e-2) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }",
    "model each {
      table a { rows 25  dim 4  init normal(0, 0.5)  optimizer adam(lr: 0.05)  sharding row_wise }
      input x: ids(a) { max 9 }
      input y: ids(a) { max 5 }
      input click: label
      loss bce_with_logits(linear(pool(x, sum) + pool(y, mean), 1), click, normalize: samples)
    }
    train { batch 12  steps 6  unique_rows off  optimizer adam(lr: 1e-2) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 31 } }",
];

/// Who reads samples asks for their rows in place of who works on them: the same bits as if ids had moved and each rank had
/// asked for itself, with every strategy, sharding and plan.
#[test]
fn rows_asked_for_on_behalf_of_others_train_as_ids_that_move() {
    for text in MODELS.into_iter().chain(MORE) {
        let balanced = by_ids(text);
        for (ranks, microbatches) in [(2, 1), (2, 3), (3, 1), (3, 2), (4, 1), (4, 3)] {
            let what = format!("{ranks} ranks, {microbatches} microbatches");
            let of = |strategy, at| placed(&balanced, strategy, (ranks, microbatches), at);
            let home = placed(text, Strategy::Serial, (ranks, microbatches), At::Ids);
            let ids = of(Strategy::Serial, At::Ids);
            let folded = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec].map(|s| of(s, At::Folded));
            let deals: [Arc<dyn Deal>; 3] = [
                Arc::new(Blocks),
                Arc::new(Shuffled { seed: 1, assigned: true, ascending: true }),
                Arc::new(Both(
                    Shuffled { seed: 2, assigned: false, ascending: false },
                    Shuffled { seed: 1, assigned: true, ascending: true },
                )),
            ];
            let stayed = trained(&home, Arc::new(Blocks));
            for deal in deals {
                let expected = trained(&ids, Arc::clone(&deal));
                for s in &folded {
                    assert_eq!(At::of(s), Some(At::Folded));
                    assert!(trained(s, Arc::clone(&deal)) == expected, "{what}, {:?}", s.strategy);
                }
                close(&expected, &stayed, &format!("{what}, at home"));
                assert_ne!(expected, stayed, "{what}: nothing was moved");
            }
        }
    }
}
