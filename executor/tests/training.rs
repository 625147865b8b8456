//! Schedules built by hand, trained: the same on any number of ranks, gradients against differences.

mod common;

use std::sync::Arc;

use common::{empty, next_item, ranking};
use fs_executor::data::{self, DataError, GlobalBatch, Source, Values};
use fs_executor::{Error, Options, Report, Session};
use fs_schedule::{Action, Buffer, Data, Duration, Extent, Schedule};

const RATINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/ml-latest-small/ratings.csv");
const MOVIES: u64 = 9066;

fn options(ranks: usize) -> Options {
    Options::default().ranks(ranks)
}

fn train(schedule: &Schedule, ranks: usize) -> (Report, Session<f32>) {
    let mut session = Session::<f32>::new(schedule.clone(), options(ranks)).unwrap();
    let report = session.run(&mut ()).unwrap();
    (report, session)
}

fn close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs().max(1e-3), "step {i}: {a} and {b}");
    }
}

#[test]
fn ranks_agree_on_generated_data() {
    let schedule = ranking(12, true);
    let (one, _) = train(&schedule, 1);
    assert_eq!(one.loss.len(), 6);
    assert!(one.loss.iter().all(|l| l.is_finite() && *l > 0.0), "{:?}", one.loss);
    assert!(one.tokens > 0 && one.samples == 72);
    for ranks in 2..=4 {
        let (report, session) = train(&schedule, ranks);
        close(&report.loss, &one.loss, 1e-4);
        for (loss, parts) in report.loss.iter().zip(&report.loss_per_rank) {
            let mean = parts.iter().sum::<f64>() / ranks as f64;
            assert!((mean - loss).abs() < 1e-12 && parts.len() == ranks);
        }
        assert_eq!(session.table(0).unwrap().len(), 300 * 8);
    }
}

#[test]
fn runs_are_bit_identical() {
    let schedule = ranking(12, true);
    let ((a, x), (b, y)) = (train(&schedule, 3), train(&schedule, 3));
    assert_eq!(a.loss, b.loss);
    assert_eq!(x.table(0).unwrap(), y.table(0).unwrap());
    assert_eq!(x.table_state(0).unwrap(), y.table_state(0).unwrap());
    for i in 0..4 {
        assert_eq!(x.parameter(i), y.parameter(i));
        assert_eq!(x.parameter_state(i), y.parameter_state(i));
    }
    let other = options(3).seed(6);
    let c = Session::<f32>::new(schedule, other).unwrap().run(&mut ()).unwrap();
    assert_ne!(a.loss, c.loss);
}

#[test]
fn one_row_per_occurrence_gives_the_same_bits() {
    let ((a, x), (b, y)) = (train(&ranking(12, true), 2), train(&ranking(12, false), 2));
    assert_eq!(a.loss, b.loss);
    assert_eq!(x.table(0).unwrap(), y.table(0).unwrap());
}

#[test]
fn training_goes_on_where_it_stopped() {
    let mut schedule = ranking(8, true);
    let (whole, w) = train(&schedule, 2);
    schedule.settings.duration = Duration::Steps(3);
    let mut session = Session::<f32>::new(schedule, options(2)).unwrap();
    let mut losses = session.run(&mut ()).unwrap().loss;
    losses.extend(session.run(&mut ()).unwrap().loss);
    assert_eq!(losses, whole.loss);
    assert_eq!(session.table(0).unwrap(), w.table(0).unwrap());
}

/// Central differences in f64 of some entries of every parameter and of the table.
fn check_gradients(schedule: &Schedule, ranks: usize) {
    const H: f64 = 1e-5;
    let mut session = Session::<f64>::new(schedule.clone(), options(ranks)).unwrap();
    let step = 2;
    let gradients = session.loss_and_gradients(step).unwrap();
    assert_eq!(session.loss_and_gradients(step).unwrap(), gradients, "asking changes nothing");
    let check = |difference: f64, gradient: f64, what: &str| {
        assert!(
            (difference - gradient).abs() < 1e-6 + 1e-5 * gradient.abs(),
            "{what}: {difference} and {gradient}"
        );
    };
    for p in 0..schedule.parameters.len() {
        let values = session.parameter(p);
        for i in (0..values.len()).step_by(1 + values.len() / 7) {
            let mut at = |x: f64| {
                let mut moved = values.clone();
                moved[i] += x;
                session.set_parameter(p, &moved).unwrap();
                session.loss_and_gradients(step).unwrap().loss
            };
            let difference = (at(H) - at(-H)) / (2.0 * H);
            session.set_parameter(p, &values).unwrap();
            check(difference, gradients.parameters[p][i], &format!("parameter {p}[{i}]"));
        }
    }
    let values = session.table(0).unwrap();
    let touched: Vec<usize> = (0..values.len()).filter(|&i| gradients.tables[0][i] != 0.0).collect();
    assert!(!touched.is_empty());
    for &i in touched.iter().step_by(1 + touched.len() / 9) {
        let mut at = |x: f64| {
            let mut moved = values.clone();
            moved[i] += x;
            session.set_table(0, &moved).unwrap();
            session.loss_and_gradients(step).unwrap().loss
        };
        let difference = (at(H) - at(-H)) / (2.0 * H);
        session.set_table(0, &values).unwrap();
        check(difference, gradients.tables[0][i], &format!("table[{i}]"));
    }
}

#[test]
fn gradients_agree_with_differences() {
    for ranks in [1, 3] {
        check_gradients(&ranking(6, true), ranks);
        check_gradients(&next_item(6, MOVIES, RATINGS), ranks);
    }
}

#[test]
fn ranks_agree_on_ratings_and_evaluation_meets_popularity() {
    let schedule = next_item(36, MOVIES, RATINGS);
    let (one, _) = train(&schedule, 1);
    // 671 users in batches of 36: 18 full ones and one of 23.
    assert_eq!((one.loss.len(), one.samples), (19, 671));
    assert!(one.loss[18] < one.loss[0], "{:?}", one.loss);
    let scores = one.evaluation.unwrap();
    assert_eq!(scores.users, 671);
    let rounded = |x: f64| (x * 1e4).round() / 1e4;
    let popular = scores.popularity;
    assert_eq!((rounded(popular.all.hr_10), rounded(popular.all.ndcg_10)), (0.0238, 0.0116));
    let unseen = popular.unseen;
    assert_eq!(
        (rounded(unseen.hr_10), rounded(unseen.ndcg_10), rounded(unseen.hr_50)),
        (0.0417, 0.0194, 0.1222)
    );
    for ranks in 2..=4 {
        let (report, _) = train(&schedule, ranks);
        close(&report.loss, &one.loss, 1e-4);
        let other = report.evaluation.unwrap();
        assert!((other.model.unseen.hr_50 - scores.model.unseen.hr_50).abs() < 0.005);
    }
}

#[test]
fn batches_must_divide() {
    let error = Session::<f32>::new(ranking(12, true), options(5)).err().unwrap();
    assert!(matches!(error, Error::BadBatch { batch: 12, ranks: 5, .. }), "{error}");
    assert!(error.to_string().contains("1, 2, 3, 4, 6, 12 ranks"), "{error}");
    assert!(matches!(Session::<f32>::new(ranking(12, true), options(0)).err().unwrap(), Error::NoRanks));
}

#[test]
fn a_table_that_does_not_fit_is_refused() {
    let mut schedule = ranking(12, true);
    schedule.tables[0].rows = 1 << 50;
    let error = Session::<f32>::new(schedule, options(1)).err().unwrap();
    assert!(matches!(error, Error::TableTooLarge { .. }), "{error}");
    assert!(error.to_string().contains("`items`"), "{error}");
}

/// Buffers whose size no batch decides are held against memory before anything is allocated.
#[test]
fn fixed_buffers_that_do_not_fit() {
    let mut schedule = ranking(8, true);
    let buffer =
        Buffer { rows: Extent::Fixed(u32::MAX), columns: 1 << 24, ..schedule.train.buffers[0].clone() };
    schedule.train.buffers.push(buffer);
    let error = Session::<f32>::new(schedule, options(1)).err().unwrap();
    assert!(matches!(error, Error::BuffersTooLarge { .. }), "{error}");
}

#[test]
fn a_failing_rank_stops_all_with_one_error() {
    // A weight of the wrong width makes the kernel refuse on every rank; a missing operand is found before it.
    for ranks in [1, 4] {
        let mut schedule = ranking(12, true);
        schedule.parameters[2].columns = 5;
        let error = Session::<f32>::new(schedule, options(ranks)).unwrap().run(&mut ()).unwrap_err();
        assert!(matches!(&error, Error::Rank { op, .. } if op == "head"), "{error}");

        let mut schedule = ranking(12, true);
        let loss = schedule.train.ops.iter_mut().find(|o| o.name == "loss").unwrap();
        loss.reads.pop();
        let error = Session::<f32>::new(schedule, options(ranks)).unwrap().run(&mut ()).unwrap_err();
        assert!(error.to_string().contains("`loss`: read operand 1 is missing"), "{error}");
    }
}

#[test]
fn a_rank_without_samples_takes_part() {
    let mut schedule = ranking(4, true);
    // Six samples in batches of four: the second batch of each pass has two for four ranks.
    if let Some(Data::Generate { samples, .. }) = &mut schedule.data {
        *samples = Some(6);
    }
    let (one, four) = (train(&schedule, 1).0, train(&schedule, 4).0);
    close(&four.loss, &one.loss, 1e-4);
    assert_eq!(four.samples, 18);
}

#[test]
fn nothing_to_read_is_said() {
    let mut schedule = empty(4, 10, 4);
    schedule.train.ops.clear();
    let error = Session::<f32>::new(schedule, options(1)).err().unwrap();
    assert!(error.to_string().contains("names no data"), "{error}");
    let mut schedule = ranking(4, true);
    schedule.settings.duration = Duration::Epochs(2);
    let error = Session::<f32>::new(schedule, options(1)).err().unwrap();
    assert!(error.to_string().contains("has no end"), "{error}");
    assert!(ranking(4, true).train.ops.iter().any(|o| o.action == Action::AllReduce));
}

/// Generated data that goes wrong in its second batch.
struct Broken(Box<dyn Source>, fn(&mut GlobalBatch));

impl Source for Broken {
    fn describe(&self) -> String {
        "broken data".into()
    }
    fn epoch_steps(&self) -> Option<u64> {
        None
    }
    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        self.0.fill(step, batch)?;
        if step == 1 {
            self.1(batch);
        }
        Ok(())
    }
}

#[test]
fn a_failure_of_one_rank_is_told_once() {
    let run = |ranks: usize, harm: fn(&mut GlobalBatch)| {
        let schedule = Arc::new(ranking(12, true));
        let source = Broken(data::open(&schedule, None, None, 5).unwrap(), harm);
        let mut session = Session::<f32>::with_source(schedule, options(ranks), Box::new(source)).unwrap();
        session.run(&mut ()).unwrap_err().to_string()
    };
    for ranks in 1..=4 {
        // The last sample lies on the last rank.
        let last = ranks - 1;
        let said = run(ranks, |batch| {
            let Values::Ids(ids) = &mut batch.inputs[0] else { return };
            *ids.last_mut().unwrap() = 999_999;
        });
        let expected = format!(
            "rank {last} failed in `unique`: id 999999 is out of range for table `items` with 300 rows"
        );
        assert_eq!(said, expected);
        // Offsets that fall make the rank panic.
        let said = run(ranks, |batch| *batch.offsets[0].last_mut().unwrap() = 0);
        assert!(said.starts_with(&format!("rank {last} failed in `load`: ")), "{said}");
        let said = run(ranks, |_| panic!("out of paper"));
        assert_eq!(said, "reading data failed: out of paper");
    }
}
