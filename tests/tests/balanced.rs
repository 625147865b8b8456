//! Balanced training is unbalanced training but for the order of sums: the examples at small size, and what is
//! evaluated and with which bits.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::{Options, Session, data};
use fs_kernels::Real;
use fs_schedule::{Data, Duration, LengthDistribution, Schedule};
use fs_tests::pipes::joined;

/// An example with small tables and batches for three ranks, 50 steps.
fn small(name: &str, balance: bool) -> (Arc<Schedule>, std::path::PathBuf) {
    small_at(name, balance, None)
}

/// With samples that move there, if they do.
fn small_at(name: &str, balance: bool, at: Option<At>) -> (Arc<Schedule>, std::path::PathBuf) {
    let path = fs_tests::root("examples").join(name);
    let program = fs_dsl::load(&path).program.expect("an example checks");
    let program = fs_tests::dividing(program, 3);
    let options = CompileOptions::new(Strategy::Pec, 3).balance(balance).balance_at(at);
    let mut schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}")).schedule;
    schedule.tables.iter_mut().for_each(|t| t.rows = t.rows.min(20_000));
    schedule.lengths.iter_mut().for_each(|l| l.max = l.max.min(40));
    schedule.settings.batch = 12;
    schedule.settings.duration = Duration::Steps(50);
    // Few are cut to the same length, and where a sample's length hardly counts it moves for little.
    if let Some(Data::Generate { lengths, .. }) = &mut schedule.data {
        *lengths = LengthDistribution::Lognormal { mean: 12.0, sigma: 1.0, min: 0, max: None };
    }
    if let Some(balance) = &mut schedule.settings.balance {
        balance.slack = 0.0;
        // Pooled sequences cost next to no arithmetic.
        let groups = &mut balance.cost.groups;
        if groups.iter().all(|g| g.linear == 0.0) {
            balance.cost.constant = 0.0;
            for group in groups.iter_mut() {
                group.linear = 1.0;
            }
        }
    }
    (Arc::new(schedule), path)
}

/// Losses, then tables and parameters.
fn train<T: Real + Into<f64>>(schedule: &Arc<Schedule>, path: &Path, balance: bool) -> Vec<Vec<f64>> {
    let source = data::open(schedule, None, Some(path), 5).unwrap_or_else(|e| panic!("{e}"));
    let options = Options::default().evaluate(false);
    let mut session =
        Session::<T>::with_source(Arc::clone(schedule), options, source).unwrap_or_else(|e| panic!("{e}"));
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    let moved = report.balance.map_or(0.0, |b| b.moved_samples);
    assert_eq!(moved > 0.0, balance, "{moved} samples moved");
    let mut all = vec![report.loss];
    let widened = |values: Vec<T>| values.into_iter().map(Into::into).collect();
    all.extend((0..schedule.tables.len()).map(|t| widened(session.table(t).expect("a table"))));
    all.extend((0..schedule.parameters.len()).map(|p| widened(session.parameter(p))));
    all
}

/// The greatest difference of two lists of values, in parts of the greatest value.
fn off(found: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    found.iter().zip(expected).fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest
}

fn agrees(name: &str) {
    let ((home, path), (balanced, _)) = (small(name, false), small(name, true));
    let (expected, found) = (train::<f64>(&home, &path, false), train::<f64>(&balanced, &path, true));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let off = off(found, expected);
        assert!(off < 1e-9, "{name}, double precision: value list {i} is off by {off:e}");
    }
    assert_ne!(found, expected, "sums in another order");
    // Where samples move into the output dist, sums have the order that they have where ids move.
    let [ids, rows, folded] = At::ALL.map(|at| {
        let schedule = small_at(name, true, Some(at)).0;
        assert_eq!(At::of(&schedule), Some(at));
        let found = train::<f64>(&schedule, &path, true);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = off(found, expected);
            assert!(off < 1e-9, "{name}, at {at}: value list {i} is off by {off:e}");
        }
        found
    });
    assert!(folded == ids, "{name}: not the bits of ids that move");
    assert_ne!(rows, ids, "rows' gradients are summed by others");
    // In single precision what Adam makes of a gradient near zero is its sign, so losses are compared; where rounding
    // takes the unbalanced run itself further from its double than 1e-5, balance takes it no further.
    let exact = expected;
    let (expected, found) = (train::<f32>(&home, &path, false), train::<f32>(&balanced, &path, true));
    let (by_balance, by_rounding) = (off(&found[0], &expected[0]), off(&expected[0], &exact[0]));
    assert!(by_balance < by_rounding.max(1e-5), "{name}: losses are off by {by_balance:e}");
}

#[test]
fn histories_agree_over_50_steps() {
    agrees("movielens.fs");
}

#[test]
fn ranking_agrees_over_50_steps() {
    agrees("ranking.fs");
}

/// The example as it is, whose losses single precision takes apart by 1e-4 in as many steps.
#[test]
#[ignore = "a minute and more"]
fn ranking_at_its_own_size_agrees_over_50_steps() {
    let path = fs_tests::root("examples/ranking.fs");
    let program = fs_dsl::load(&path).program.expect("an example checks");
    let [home, balanced] = [false, true].map(|balance| {
        let options = CompileOptions::new(Strategy::Pec, 2).balance(balance);
        let mut schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
        schedule.settings.duration = Duration::Steps(50);
        train::<f64>(&Arc::new(schedule), &path, balance)
    });
    let worst: Vec<f64> = balanced.iter().zip(&home).map(|(found, expected)| off(found, expected)).collect();
    assert!(worst.iter().all(|off| *off < 1e-9), "value lists are off by {worst:?}");
}

#[test]
fn clicks_agree_over_50_steps() {
    agrees("dlrm.fs");
}

/// Costs that follow measured times plan otherwise each time, and train the same; from the same times processes plan alike.
#[test]
fn fitted_costs_train_the_same() {
    let ((home, path), (mut balanced, _)) = (small("ranking.fs", false), small("ranking.fs", true));
    let settings = Arc::make_mut(&mut balanced).settings.balance.as_mut().expect("a balance");
    // Wrong ones to begin with.
    (settings.fit, settings.cost.constant) = (true, 1.0);
    settings.cost.groups.iter_mut().for_each(|g| (g.linear, g.square) = (0.0, 0.0));
    let expected = train::<f64>(&home, &path, false);
    for processes in [&[vec![0, 1, 2]][..], &[vec![0], vec![1, 2]]] {
        let worlds = joined(processes).expect("streams");
        let reports: Vec<_> = std::thread::scope(|scope| {
            let (balanced, path) = (&balanced, &path);
            let threads = worlds.into_iter().map(|(world, _)| {
                scope.spawn(move || {
                    let source = data::open(balanced, None, Some(path), 5).unwrap_or_else(|e| panic!("{e}"));
                    let options = Options::default().evaluate(false).world(world).stress(7);
                    let session = Session::<f64>::with_source(Arc::clone(balanced), options, source);
                    let mut session = session.unwrap_or_else(|e| panic!("{e}"));
                    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"))
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|t| t.join().expect("a process")).collect()
        });
        for report in &reports {
            let off = off(&report.loss, &expected[0]);
            assert!(off < 1e-9, "losses are off by {off:e}");
            let balance = report.balance.as_ref().expect("a balance");
            let fitted = balance.fitted.as_ref().expect("fitted costs");
            assert!(balance.moved_samples > 0.0 && fitted.batches > 10, "{balance:?}");
            assert!(fitted.measured_ms.iter().chain(&fitted.expected_ms).all(|ms| *ms > 0.0), "{fitted:?}");
            assert_eq!(
                fitted,
                reports[0].balance.as_ref().and_then(|b| b.fitted.as_ref()).expect("the same")
            );
        }
    }
}

/// Evaluation ranks samples where they are read, balanced or not: one program, and of the same values the same figures.
#[test]
fn evaluation_knows_no_balance() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let file = folder.path().join("visits.csv");
    let mut visits = String::from("user,item\n");
    for user in 0..40usize {
        for at in 0..4 + user * user % 23 {
            writeln!(visits, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 50).expect("text grows");
        }
    }
    std::fs::write(&file, visits).expect("the data is written");
    let text = "model last {
      table items { rows 50  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05) }
      input history: ids(items) { max 20 }
      input following: next(history)
      let h = dropout(lookup(history), 0.1)
      let g = h + silu_attention(linear(h, 8), linear(h, 8), linear(h, 8), heads: 2)
      loss sampled_softmax(g, items, following, negatives: 5, temperature: 0.5, normalize: tokens)
    }
    train { batch 12  epochs 2 }
    workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" }  evaluate leave_last_out }";
    let session = |balance: &str| {
        let schedule =
            fs_tests::compile_text(&text.replace("train {", &format!("train {{ balance {balance}")));
        let options = Options::default().ranks(3).data(file.clone());
        Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"))
    };
    let (mut balanced, mut home) = (session("on"), session("off"));
    let report = balanced.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.balance.is_some_and(|b| b.moved_samples > 0.0));
    assert_eq!(balanced.schedule().evaluation, home.schedule().evaluation);
    let scored = report.evaluation.expect("the data can be evaluated").model;
    let different = home.evaluate(&mut ()).unwrap_or_else(|e| panic!("{e}")).expect("an evaluation").model;
    assert_ne!(scored, different, "training changes figures");
    home.set_table(0, &balanced.table(0).expect("a table")).unwrap_or_else(|e| panic!("{e}"));
    for p in 0..home.schedule().parameters.len() {
        home.set_parameter(p, &balanced.parameter(p)).unwrap_or_else(|e| panic!("{e}"));
    }
    let again = home.evaluate(&mut ()).unwrap_or_else(|e| panic!("{e}")).expect("an evaluation").model;
    assert_eq!(scored, again);
}
