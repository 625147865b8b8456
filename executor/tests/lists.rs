//! A share of a batch by lists of its samples: what it holds, in which order, and where.

mod common;

use std::sync::Arc;

use common::ranking;
use fs_executor::data::samples::{Blocks, Deal, Dealt, Lists, block};
use fs_executor::data::share::{Column, Share};
use fs_executor::data::sizes::Layout;
use fs_executor::data::{GlobalBatch, Values, Wanted, open};
use fs_schedule::{Input, InputKind, Schedule, Site, Symbol};
use proptest::prelude::*;

/// Lists at home, by rank and microbatch.
#[derive(Debug)]
struct Given {
    home: Vec<Vec<Vec<usize>>>,
}

fn put(lists: &[Vec<usize>], out: &mut Lists) {
    for list in lists {
        out.push(list.iter().copied());
    }
}

impl Deal for Given {
    fn home(&self, batch: Dealt, lists: &mut Lists) {
        put(&self.home[batch.rank], lists);
    }
}

/// Gives a share the samples of other lists, with their values as other ranks would send them.
fn assign(schedule: &Schedule, share: &Share, assigned: &[Vec<usize>]) {
    let batch = share.batch();
    let length = |s: u64, g: usize| batch.offsets[g][s as usize + 1] - batch.offsets[g][s as usize];
    assert!(share.assign(|lists| put(assigned, lists), schedule.lengths.len(), length));
    assert!(!share.assign(|lists| put(assigned, lists), schedule.lengths.len(), length), "once a batch");
    let bring = |values: &mut Vec<Values>| {
        values.clear();
        for input in 0..schedule.inputs.len() {
            let all = assigned.iter().flatten().map(|s| share.sample(schedule, input, *s as u64).unwrap());
            values.push(match batch.inputs[input] {
                Values::Ids(_) => Values::Ids(
                    all.flat_map(|c| if let Column::Ids(ids) = c { ids.to_vec() } else { panic!("ids") })
                        .collect(),
                ),
                Values::Reals(_) => Values::Reals(
                    all.flat_map(|c| if let Column::Reals(x) = c { x.to_vec() } else { panic!("reals") })
                        .collect(),
                ),
            });
        }
    };
    assert!(share.bring(bring));
    assert!(!share.bring(|_| {}), "once a batch");
}

fn schedule() -> Arc<Schedule> {
    let mut schedule = ranking(12, true);
    schedule.inputs.push(Input { name: "next".into(), kind: InputKind::Next { of: 0 } });
    schedule.inputs.push(Input { name: "dense".into(), kind: InputKind::Dense { width: 2 } });
    schedule.inputs.push(Input { name: "click".into(), kind: InputKind::SampleLabel });
    Arc::new(schedule)
}

fn batch(schedule: &Arc<Schedule>, wanted: Wanted) -> Arc<GlobalBatch> {
    let mut batch = GlobalBatch::wanting(wanted);
    open(schedule, None, None, 5).unwrap().fill(3, &mut batch).unwrap();
    Arc::new(batch)
}

/// Values of an input as numbers.
fn numbers(column: Option<Column<'_>>) -> Vec<f64> {
    match column.unwrap() {
        Column::Ids(ids) => ids.iter().map(|x| *x as f64).collect(),
        Column::Reals(reals) => reals.iter().map(|x| f64::from(*x)).collect(),
    }
}

/// What a share says of a site and a microbatch is what the samples of the list have in the batch, one by one.
fn agrees(schedule: &Schedule, share: &Share, site: Site, microbatch: Option<u32>, list: &[usize]) {
    let batch = share.batch();
    let span = share.part(site, microbatch);
    assert_eq!(span.sample_keys(), list.iter().map(|s| *s as u64).collect::<Vec<_>>());
    let tokens = |s: usize| batch.offsets[0][s]..batch.offsets[0][s + 1];
    let lengths: Vec<usize> = list.iter().map(|s| tokens(*s).len()).collect();
    assert_eq!(span.offsets(0).windows(2).map(|o| o[1] - o[0]).collect::<Vec<_>>(), lengths);
    assert_eq!(span.offsets(0)[0], 0);
    let keys = list.iter().flat_map(|s| (0..tokens(*s).len() as u64).map(|i| (*s as u64) << 32 | i));
    assert_eq!(span.token_keys(0), keys.collect::<Vec<_>>());
    let size = |symbol| share.size(symbol, site, microbatch);
    assert_eq!(size(Symbol::Samples), list.len());
    assert_eq!(size(Symbol::Tokens(0)), lengths.iter().sum::<usize>());
    assert_eq!(size(Symbol::Squares(0)), lengths.iter().map(|n| n * n).sum::<usize>());
    for (i, input) in schedule.inputs.iter().enumerate() {
        let range = |s: usize| match input.kind {
            InputKind::Dense { width } => s * width as usize..(s + 1) * width as usize,
            InputKind::SampleLabel => s..s + 1,
            _ => tokens(s),
        };
        let expected: Vec<f64> = match &batch.inputs[i] {
            Values::Ids(v) => list.iter().flat_map(|s| &v[range(*s)]).map(|x| *x as f64).collect(),
            Values::Reals(v) => list.iter().flat_map(|s| &v[range(*s)]).map(|x| f64::from(*x)).collect(),
        };
        assert_eq!(numbers(share.input(schedule, i, site, microbatch)), expected, "{}", input.name);
    }
}

/// A permutation of 12 samples cut at random for 2 ranks of 3 microbatches.
fn lists() -> impl Strategy<Value = Vec<Vec<Vec<usize>>>> {
    let samples = Just((0..12usize).collect::<Vec<_>>()).prop_shuffle();
    (samples, prop::collection::vec(0..=12usize, 5)).prop_map(|(samples, mut cuts)| {
        cuts.sort_unstable();
        let ends = cuts.iter().copied().chain([12]);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let parts: Vec<Vec<usize>> = starts.zip(ends).map(|(a, z)| samples[a..z].to_vec()).collect();
        parts.chunks(3).map(<[_]>::to_vec).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_share_holds_the_samples_of_its_lists(home in lists(), assigned in prop::option::of(lists())) {
        let schedule = schedule();
        let batch = batch(&schedule, Wanted::All);
        let deal = Given { home: home.clone() };
        let mut share = Share::new(&Arc::new(Layout::default()));
        for rank in 0..2 {
            share.load(&schedule, Arc::clone(&batch), (rank, 2), 3, &deal).unwrap();
            assert!(share.lists(Site::Assigned).is_none(), "not known yet");
            assert_eq!(share.size(Symbol::Samples, Site::Assigned, Some(0)), 0);
            assert!(!share.bring(|_| {}), "nothing is assigned yet");
            let Some(assigned) = &assigned else { continue };
            assign(&schedule, &share, &assigned[rank]);
            for (site, lists) in [(Site::Home, &home[rank]), (Site::Assigned, &assigned[rank])] {
                agrees(&schedule, &share, site, None, &lists.concat());
                for (m, list) in lists.iter().enumerate() {
                    agrees(&schedule, &share, site, Some(m as u32), list);
                }
            }
            // Samples at home in other microbatches, once that is planned.
            let mut planned = home[rank].clone();
            planned.rotate_left(1);
            let fill = |lists: &mut Lists| planned.iter().for_each(|list| lists.push(list.iter().copied()));
            assert!(share.cut(&schedule, fill).unwrap());
            agrees(&schedule, &share, Site::Home, None, &planned.concat());
            for (m, list) in planned.iter().enumerate() {
                agrees(&schedule, &share, Site::Home, Some(m as u32), list);
            }
            assert!(!share.cut(&schedule, |_| {}).unwrap(), "planned once");
        }
    }
}

/// Blocks are used where they lie, also in a batch of this rank's samples only.
#[test]
fn consecutive_samples_are_not_copied() {
    let schedule = schedule();
    for wanted in [Wanted::All, Wanted::Ranks { ranks: vec![1], world: 3 }] {
        let batch = batch(&schedule, wanted.clone());
        let whole = self::batch(&schedule, Wanted::All);
        let mut share = Share::new(&Arc::new(Layout::default()));
        share.load(&schedule, Arc::clone(&batch), (1, 3), 2, &Blocks).unwrap();
        for microbatch in [None, Some(0), Some(1)] {
            let Some(Column::Ids(ids)) = share.input(&schedule, 0, Site::Home, microbatch) else {
                panic!("ids")
            };
            let Values::Ids(all) = &batch.inputs[0] else { panic!("ids") };
            assert!(all.as_ptr_range().contains(&ids.as_ptr()) || ids.is_empty());
        }
        let own = block(12, 1, 3);
        let Values::Ids(all) = &whole.inputs[0] else { panic!("ids") };
        let expected = &all[whole.offsets[0][own.start]..whole.offsets[0][own.end]];
        assert_eq!(share.input(&schedule, 0, Site::Home, None), Some(Column::Ids(expected)));
        // Samples of others are not there, if only this rank's are.
        let missing = share.load(&schedule, batch, (0, 3), 2, &Blocks);
        match wanted {
            Wanted::All => missing.unwrap(),
            Wanted::Ranks { .. } => assert_eq!(missing.unwrap_err().sample, 0),
        }
    }
}
