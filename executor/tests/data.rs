//! Data sources: what batches hold, and what is said of files that cannot be used.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{next_item, ranking};
use fs_executor::data::samples::block;
use fs_executor::data::{DataError, GlobalBatch, Source, Values, Wanted, open};
use fs_schedule::{
    Data, IdDistribution, Input, InputKind, Keep, LabelDistribution, LengthDistribution, Lengths, Schedule,
};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

const RATINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/ml-latest-small/ratings.csv");

/// Tensors of a file: name, type, shape, bytes.
type Tensors = BTreeMap<&'static str, (Dtype, Vec<usize>, Vec<u8>)>;

fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Two steps of two ranks with two samples each: lengths 1 0 2 3 and 2 2 0 1, ids 0 to 10, labels id / 10.
fn tensors() -> Tensors {
    let labels: Vec<f32> = (0..11).map(|i| i as f32 / 10.0).collect();
    BTreeMap::from([
        ("lengths", (Dtype::I32, vec![2, 2, 2], i32s(&[1, 0, 2, 3, 2, 2, 0, 1]))),
        ("ids", (Dtype::I64, vec![1, 11], i64s(&(0..11).collect::<Vec<_>>()))),
        ("labels", (Dtype::F32, vec![11], f32s(&labels))),
    ])
}

fn write(tensors: &Tensors) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.safetensors");
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &path).unwrap();
    (folder, path)
}

fn source(schedule: &Schedule, path: Option<&Path>, seed: u64) -> Result<Box<dyn Source>, DataError> {
    open(&Arc::new(schedule.clone()), path, None, seed)
}

fn batch(source: &mut dyn Source, step: u64) -> Result<GlobalBatch, DataError> {
    let mut batch = GlobalBatch::default();
    source.fill(step, &mut batch)?;
    Ok(batch)
}

/// What reading every batch of changed tensors says.
fn said(schedule: &Schedule, change: impl FnOnce(&mut Tensors)) -> String {
    let mut tensors = tensors();
    change(&mut tensors);
    let (_folder, path) = write(&tensors);
    let read = source(schedule, Some(&path), 0)
        .and_then(|mut s| (0..2).try_for_each(|i| batch(&mut *s, i).map(drop)));
    read.expect_err("a bad file").to_string()
}

fn contains(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "no `{part}` in: {said}");
    }
}

#[test]
fn tensors_are_global_batches() {
    let (_folder, path) = write(&tensors());
    let mut source = source(&ranking(4, true), Some(&path), 0).unwrap();
    assert_eq!(source.epoch_steps(), Some(2));
    let first = batch(&mut *source, 0).unwrap();
    assert_eq!((first.samples, &first.offsets), (4, &vec![vec![0, 1, 1, 3, 6]]));
    assert_eq!(first.inputs[0], Values::Ids((0..6).collect()));
    let second = batch(&mut *source, 1).unwrap();
    assert_eq!(second.offsets, [[0, 2, 4, 4, 5]]);
    assert_eq!(second.inputs[0], Values::Ids((6..11).collect()));
    assert_eq!(second.inputs[1], Values::Reals(vec![0.6, 0.7, 0.8, 0.9, 1.0]));
    // Further steps go through the file again.
    let mut again = batch(&mut *source, 2).unwrap();
    again.step = 0;
    assert_eq!(again, first);
}

#[test]
fn long_sequences_are_cut_with_their_labels() {
    let (_folder, path) = write(&tensors());
    let mut schedule = ranking(4, true);
    for (keep, ids) in [(Keep::Last, [0, 1, 2, 4, 5]), (Keep::First, [0, 1, 2, 3, 4])] {
        schedule.lengths[0] = Lengths { max: 2, keep, ..schedule.lengths[0].clone() };
        let batch = batch(&mut *source(&schedule, Some(&path), 0).unwrap(), 0).unwrap();
        assert_eq!(batch.offsets, [[0, 1, 1, 3, 5]]);
        assert_eq!(batch.inputs[0], Values::Ids(ids.to_vec()));
        assert_eq!(batch.inputs[1], Values::Reals(ids.map(|i| i as f32 / 10.0).to_vec()));
    }
}

#[test]
fn several_sequences_dense_features_and_sample_labels() {
    let mut schedule = ranking(4, true);
    let ids = schedule.inputs[0].clone();
    schedule.inputs = vec![
        Input { name: "dense".into(), kind: InputKind::Dense { width: 3 } },
        ids.clone(),
        Input { name: "label".into(), kind: InputKind::SampleLabel },
        ids,
    ];
    let mut tensors = tensors();
    let both: Vec<i64> = (0..11).chain(100..111).collect();
    tensors.insert("ids", (Dtype::I64, vec![2, 11], i64s(&both)));
    tensors.insert("labels", (Dtype::F32, vec![8], f32s(&[0., 1., 2., 3., 4., 5., 6., 7.])));
    let dense: Vec<f32> = (0..24).map(|i| i as f32).collect();
    tensors.insert("dense", (Dtype::F32, vec![8, 3], f32s(&dense)));
    let (_folder, path) = write(&tensors);
    let batch = batch(&mut *source(&schedule, Some(&path), 0).unwrap(), 1).unwrap();
    assert_eq!(batch.inputs[0], Values::Reals((12..24).map(|i| i as f32).collect()));
    assert_eq!(batch.inputs[1], Values::Ids((6..11).collect()));
    assert_eq!(batch.inputs[2], Values::Reals(vec![4., 5., 6., 7.]));
    assert_eq!(batch.inputs[3], Values::Ids((106..111).collect()));
}

#[test]
fn bad_tensors_are_explained() {
    let s = ranking(4, true);
    contains(&said(&s, |t| drop(t.remove("ids"))), &["no tensor `ids`", "labels, lengths"]);
    contains(
        &said(&s, |t| {
            let ids = t.remove("ids").unwrap();
            t.insert("idx", ids);
        }),
        &["did you mean `idx`?"],
    );
    let wide = |t: &mut Tensors| t.get_mut("lengths").unwrap().0 = Dtype::F32;
    contains(&said(&s, wide), &["`lengths` is F32 [2, 2, 2]", "expected I32"]);
    let flat = |t: &mut Tensors| t.get_mut("lengths").unwrap().1 = vec![2, 4];
    contains(&said(&s, flat), &["`lengths` is I32 [2, 4]", "[steps, world, batch]"]);
    let two = |t: &mut Tensors| t.get_mut("lengths").unwrap().2 = i32s(&[1, 0, 2, 3, 2, 2, 0, 2]);
    contains(&said(&s, two), &["sum up to 12 tokens", "`ids` has 11"]);
    let negative = |t: &mut Tensors| t.get_mut("lengths").unwrap().2 = i32s(&[1, 0, 2, 3, 2, -2, 0, 5]);
    contains(&said(&s, negative), &["step 1, sample 1 is -2"]);
    let range = |t: &mut Tensors| t.get_mut("ids").unwrap().2 = i64s(&[0, 1, 2, 3, 4, 5, 6, 7, 300, 9, 10]);
    contains(&said(&s, range), &["id 300", "column 8", "`items` with 300 rows", "at least 301 rows"]);
    let below = |t: &mut Tensors| t.get_mut("ids").unwrap().2 = i64s(&[0, 1, 2, 3, 4, 5, 6, 7, 8, -9, 10]);
    contains(&said(&s, below), &["id -9", "count from 0"]);
    let nan = |t: &mut Tensors| {
        t.get_mut("labels").unwrap().2 = f32s(&[0.0; 10].into_iter().chain([f32::NAN]).collect::<Vec<_>>());
    };
    contains(&said(&s, nan), &["element 10 of `labels` is NaN"]);
    contains(&said(&ranking(6, true), |_| {}), &["world 2 x batch 2 = 4 samples", "batch of 6", "batch 4"]);
    let rows = |t: &mut Tensors| t.get_mut("ids").unwrap().1 = vec![11, 1];
    contains(&said(&s, rows), &["`ids` is I64 [11, 1]", "[1, 11]"]);
    contains(&said(&next_item(4, 300, "x"), |_| {}), &["input `next` cannot be filled", "CSV"]);

    let (folder, path) = write(&tensors());
    let bytes = std::fs::read(&path).unwrap();
    let cut = folder.path().join("cut.safetensors");
    for length in [0, 5, 60, bytes.len() - 1] {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let error = source(&s, Some(&cut), 0).err().expect("cut off").to_string();
        assert!(error.contains("cut.safetensors"), "{error}");
    }
}

#[test]
fn ratings_are_shuffled_users_in_order_of_time() {
    let schedule = next_item(32, 9066, RATINGS);
    let mut source = source(&schedule, None, 7).unwrap();
    assert_eq!(source.epoch_steps(), Some(21));
    let histories = source.histories().unwrap();
    assert_eq!((histories.users(), histories.distinct_items()), (671, 9066));
    let mut epochs = Vec::new();
    for epoch in 0..2u64 {
        let mut samples = Vec::new();
        for step in epoch * 21..(epoch + 1) * 21 {
            let batch = batch(&mut *source, step).unwrap();
            assert_eq!(batch.samples, if step % 21 == 20 { 31 } else { 32 });
            let (Values::Ids(ids), Values::Ids(next)) = (&batch.inputs[0], &batch.inputs[1]) else {
                panic!("ids")
            };
            for span in batch.offsets[0].windows(2) {
                assert!((1..=50).contains(&(span[1] - span[0])));
                assert_eq!(ids[span[0] + 1..span[1]], next[span[0]..span[1] - 1]);
                samples.push((ids[span[0]..span[1]].to_vec(), next[span[1] - 1]));
            }
        }
        epochs.push(samples);
    }
    assert_ne!(epochs[0], epochs[1]);
    // Both epochs hold each user once: the newest 50 of all pairs before the held-out item.
    let expected = (0..671).map(|u| {
        let history: Vec<i64> = histories.history(u).iter().map(|&i| i64::from(i)).collect();
        let (last, ids) = history.split_last().unwrap();
        (ids[ids.len().saturating_sub(50)..].to_vec(), *last)
    });
    let mut expected: Vec<_> = expected.collect();
    expected.sort();
    for epoch in &mut epochs {
        epoch.sort();
        assert_eq!(*epoch, expected);
    }
}

fn generated(seed: u64, zipf: bool) -> Box<dyn Source> {
    let mut schedule = ranking(5, true);
    schedule.inputs.push(Input { name: "next".into(), kind: InputKind::Next { of: 0 } });
    schedule.inputs.push(Input { name: "dense".into(), kind: InputKind::Dense { width: 2 } });
    schedule.inputs.push(Input { name: "click".into(), kind: InputKind::SampleLabel });
    schedule.tables[0].rows = 20_000_000;
    schedule.data = Some(Data::Generate {
        lengths: LengthDistribution::Uniform { min: 0, max: 9 },
        ids: if zipf { IdDistribution::Zipf(1.05) } else { IdDistribution::Uniform },
        labels: LabelDistribution::Hash,
        samples: Some(12),
    });
    source(&schedule, None, seed).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A batch is a function of its step: not of which batches were read before, nor by whom.
    #[test]
    fn batches_do_not_depend_on_the_reader(seed: u64, zipf: bool, steps in prop::collection::vec(0..9u64, 1..6)) {
        let mut straight = generated(seed, zipf);
        let all: Vec<_> = (0..9).map(|s| batch(&mut *straight, s).unwrap()).collect();
        let mut reader = generated(seed, zipf);
        let mut reused = GlobalBatch::default();
        for step in steps {
            reader.fill(step, &mut reused).unwrap();
            prop_assert_eq!(&reused, &all[step as usize]);
        }
        // Twelve samples in batches of five: 5, 5, 2, and again the same.
        prop_assert_eq!(all.iter().map(|b| b.samples).collect::<Vec<_>>(), [5, 5, 2, 5, 5, 2, 5, 5, 2]);
        prop_assert_eq!(&all[1].inputs, &all[4].inputs);
        for b in &all {
            let (Values::Ids(ids), Values::Ids(next)) = (&b.inputs[0], &b.inputs[2]) else { panic!("ids") };
            let Values::Reals(labels) = &b.inputs[1] else { panic!("labels") };
            prop_assert!(ids.iter().all(|&id| (0..20_000_000).contains(&id)));
            prop_assert!(ids.iter().zip(labels).all(|(id, l)| *l == (((id * 2_654_435_761) >> 7) & 1) as f32));
            for span in b.offsets[0].windows(2).filter(|s| s[1] > s[0]) {
                prop_assert_eq!(&ids[span[0] + 1..span[1]], &next[span[0]..span[1] - 1]);
            }
            prop_assert_eq!((ids.len(), ids.len()), (labels.len(), next.len()));
        }
    }
}

#[test]
fn labels_need_something_to_hash() {
    let mut schedule = ranking(4, true);
    schedule.inputs.remove(0);
    let error = batch(&mut *source(&schedule, None, 0).unwrap(), 0).unwrap_err().to_string();
    contains(&error, &["input `labels`", "bernoulli"]);
    if let Some(Data::Generate { labels, .. }) = &mut schedule.data {
        *labels = LabelDistribution::Bernoulli(0.25);
    }
    let mut source = source(&schedule, None, 0).unwrap();
    let (mut ones, mut all) = (0.0, 0.0);
    for step in 0..300 {
        let batch = batch(&mut *source, step).unwrap();
        let Values::Reals(labels) = &batch.inputs[0] else { panic!("labels") };
        ones += labels.iter().sum::<f32>();
        all += labels.len() as f32;
    }
    assert!((ones / all - 0.25).abs() < 0.03, "{ones} of {all}");
}

/// Offsets, lengths and values of a sample of a batch, by input.
fn sample(schedule: &Schedule, batch: &GlobalBatch, sample: usize) -> Vec<Values> {
    let at = batch.held.position(sample).unwrap();
    let span = |group: u32| batch.offsets[group as usize][at]..batch.offsets[group as usize][at + 1];
    let group = |kind: InputKind| match kind {
        InputKind::Ids { lengths, .. } | InputKind::TokenLabel { lengths } => Some(lengths),
        _ => None,
    };
    let ranges = schedule.inputs.iter().map(|input| match input.kind {
        InputKind::Next { of } => span(group(schedule.inputs[of as usize].kind).unwrap()),
        InputKind::Dense { width } => at * width as usize..(at + 1) * width as usize,
        InputKind::SampleLabel => at..at + 1,
        kind => span(group(kind).unwrap()),
    });
    let part = |(range, values): (std::ops::Range<usize>, &Values)| match values {
        Values::Ids(ids) => Values::Ids(ids[range].to_vec()),
        Values::Reals(reals) => Values::Reals(reals[range].to_vec()),
    };
    ranges.zip(&batch.inputs).map(part).collect()
}

/// A batch of some ranks' samples has the same values for them, and the same totals, as the batch of all.
#[test]
fn a_source_gives_the_samples_of_some_ranks() {
    let mut drawn = ranking(6, true);
    drawn.inputs.push(Input { name: "next".into(), kind: InputKind::Next { of: 0 } });
    drawn.inputs.push(Input { name: "dense".into(), kind: InputKind::Dense { width: 2 } });
    drawn.inputs.push(Input { name: "click".into(), kind: InputKind::SampleLabel });
    if let Some(Data::Generate { samples, .. }) = &mut drawn.data {
        *samples = Some(16);
    }
    let mut file = ranking(4, true);
    file.inputs.truncate(2);
    let (_folder, path) = write(&tensors());
    let cases = [(drawn, None), (file, Some(path)), (next_item(32, 9066, RATINGS), None)];
    for (schedule, path) in cases {
        let mut source = source(&schedule, path.as_deref(), 3).unwrap();
        let epoch = source.epoch_steps().unwrap();
        for (ranks, world) in
            [(vec![0], 1), (vec![0], 3), (vec![2], 3), (vec![0, 2], 3), (vec![1, 2], 4), (vec![], 2)]
        {
            let mut some = GlobalBatch::wanting(Wanted::Ranks { ranks: ranks.clone(), world });
            for step in [0, epoch - 1, epoch] {
                let all = batch(&mut *source, step).unwrap();
                source.fill(step, &mut some).unwrap();
                assert_eq!((some.samples, some.tokens()), (all.samples, all.tokens()));
                let wanted: Vec<usize> = ranks.iter().flat_map(|r| block(all.samples, *r, world)).collect();
                assert_eq!(some.offsets[0].len(), wanted.len() + 1);
                for s in 0..all.samples {
                    assert_eq!(some.held.position(s).is_some(), wanted.contains(&s));
                }
                for s in wanted {
                    assert_eq!(
                        sample(&schedule, &some, s),
                        sample(&schedule, &all, s),
                        "sample {s} of step {step}"
                    );
                }
                let held: usize = some.offsets[0].last().copied().unwrap();
                let Values::Ids(ids) = &some.inputs[0] else { panic!("ids") };
                assert_eq!(ids.len(), held);
            }
        }
    }
}
