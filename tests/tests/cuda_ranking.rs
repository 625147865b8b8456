//! Ranks of held-out items on (emulated) GPUs are the CPU's, user by user, with many equal scores: in every sharding and
//! placement of rows, on every number of ranks, in one piece and in chunks, and between processes.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_compiler::Strategy;
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::evaluate::Outcome;
use fs_executor::transport::wire::World;
use fs_executor::{Options, Session};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::emulated::Emulation;
use fs_schedule::{RowPlacement, Schedule};
use fs_tests::emulated::{device, session, thorough};
use fs_tests::pipes::joined;
use fs_tests::training::{SHARDINGS, compile};

type Gpu = Cuda<Emulated>;

const ITEMS: usize = 60;
const USERS: usize = 26;
/// Columns.
const DIM: usize = 4;

fn kernels() -> Option<Arc<Emulation>> {
    fs_tests::emulated::kernels(env!("CARGO_TARGET_TMPDIR"))
}

/// Histories with repeated visits.
fn data(folder: &Path) -> PathBuf {
    let mut text = String::from("user,item\n");
    for item in 0..ITEMS {
        writeln!(text, "all,{item}").unwrap();
    }
    for user in 0..USERS {
        for at in 0..3 + user % 9 {
            writeln!(text, "u{user},{}", (user * 7 + at * at * 5 + at * user) % ITEMS).unwrap();
        }
    }
    let path = folder.join("visits.csv");
    std::fs::write(&path, text).unwrap();
    path
}

/// A model that ranks items by the row of the last one, turned about. The last batch has fewer samples than ranks.
fn schedule(sharding: &str, similarity: &str, ranks: u32) -> Schedule {
    let planned = sharding.contains("planned");
    let sharding = if planned { "row_wise(placement: hashed)" } else { sharding };
    let text = format!(
        "model last {{
          table items {{ rows {ITEMS}  dim {DIM}  optimizer sgd(lr: 0.1)  sharding {sharding} }}
          input history: ids(items) {{ max 50 }}
          input following: next(history)
          loss sampled_softmax(linear(lookup(history), {DIM}), items, following, negatives: 3, temperature: 1, similarity: {similarity}, normalize: tokens)
        }}
        train {{ batch 12  epochs 1  optimizer sgd(lr: 0.1) }}
        workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}"
    );
    let mut schedule = compile(&text, Strategy::Serial, ranks, 1, 1);
    if planned {
        // A plan is made of counted data; these rows will do.
        let hot = (0..u64::from(ranks)).map(|rank| vec![rank, 20 + 3 * rank, 50 + rank]).collect();
        schedule.tables[0].placement = RowPlacement::Planned { hot };
    }
    schedule
}

/// Rows whose elements and norms are powers of two, or zero, so that nothing is rounded and many scores are equal.
fn rows() -> Vec<f32> {
    let row = |i: usize| {
        let sign = |bit: usize| if (i * 7 + 3) >> bit & 1 == 0 { 1.0 } else { -1.0 };
        let scale = [0.5, 1.0, 2.0, 0.25][i % 4];
        match i % 9 {
            0 => [0.0; DIM],
            1 | 5 => [0, 1, 2, 3].map(|j| if j == i % DIM { 2.0 * sign(j) } else { 0.0 }),
            _ => [0, 1, 2, 3].map(|j| scale * sign(j)),
        }
    };
    (0..ITEMS).flat_map(row).collect()
}

fn begin<D: Device<Real = f32>>(
    schedule: &Schedule,
    options: Options,
    device: &D::Options,
) -> Session<f32, D> {
    let mut session = session::<D>(schedule, options, device).unwrap();
    session.set_table(0, &rows()).unwrap();
    for (p, parameter) in schedule.parameters.iter().enumerate() {
        let square = parameter.rows as usize * parameter.columns as usize == DIM * DIM;
        let turned = |n: usize| match (n / DIM, n % DIM) {
            (i, j) if j == (i + 1) % DIM => [1.0, -1.0][i % 2],
            _ => 0.0,
        };
        let n = parameter.rows as usize * parameter.columns as usize;
        let values: Vec<f32> = (0..n).map(|n| if square { turned(n) } else { 0.0 }).collect();
        session.set_parameter(p, &values).unwrap();
    }
    session
}

fn outcomes<D: Device<Real = f32>>(session: &mut Session<f32, D>) -> Vec<Outcome> {
    session.outcomes(&mut ()).unwrap().expect("the data can be evaluated")
}

/// Scores that a rank may hold: all, those of two or three questions, those of one.
const ROOMS: [usize; 3] = [1 << 22, 130, 1];

#[test]
fn ranks_are_those_of_the_cpu() {
    let Some(kernels) = kernels() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = || Options::default().data(data(folder.path()));
    let mut seed = 0;
    for (n, sharding) in SHARDINGS.iter().enumerate() {
        for (m, similarity) in ["dot", "cosine"].iter().enumerate() {
            for ranks in 1..=4u32 {
                if !thorough() && ranks as usize != 1 + (n + 2 * m) % 4 && ranks as usize != 2 + (n + m) % 2 {
                    continue;
                }
                let schedule = schedule(sharding, similarity, ranks);
                let mut cpu = begin::<Cpu<f32>>(&schedule, from(), &());
                let expected = outcomes(&mut cpu);
                let mut places: Vec<u64> = expected.iter().map(|o| o.all).collect();
                places.sort_unstable();
                places.dedup();
                let known = expected.iter().filter(|o| o.unseen < o.all).count();
                assert!(expected.len() > 20 && places.len() > 8 && known > 10, "{expected:?}");
                for (k, scores) in ROOMS.into_iter().enumerate() {
                    if !thorough() && k != seed % ROOMS.len() {
                        continue;
                    }
                    let what = format!("{sharding}, {similarity}, {ranks} ranks, room for {scores} scores");
                    let options = cuda::Options { scores, ..device(&kernels, seed as u64) };
                    let mut own = begin::<Gpu>(&schedule, from(), &options);
                    assert_eq!(outcomes(&mut own), expected, "{what}");
                    // Once more, when items have the others' rows.
                    let turned: Vec<f32> = rows().chunks(DIM).rev().flatten().copied().collect();
                    own.set_table(0, &turned).unwrap();
                    cpu.set_table(0, &turned).unwrap();
                    assert_eq!(outcomes(&mut own), outcomes(&mut cpu), "{what}, again");
                    cpu.set_table(0, &rows()).unwrap();
                }
                seed += 1;
            }
        }
    }
}

/// What leaves the process passes through the host.
#[test]
fn ranks_between_processes() {
    let Some(kernels) = kernels() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = data(folder.path());
    for (n, sharding) in ["row_wise", "column_wise", "row_wise(placement: planned)"].into_iter().enumerate() {
        let schedule = schedule(sharding, ["cosine", "dot"][n % 2], 3);
        let from = || Options::default().data(path.clone());
        let expected = outcomes(&mut begin::<Cpu<f32>>(&schedule, from(), &()));
        let worlds = joined(&[vec![0], vec![1, 2]]).unwrap();
        let found: Vec<Vec<Outcome>> = std::thread::scope(|scope| {
            let run = |(seed, (world, _)): (u64, (World, _))| {
                let (schedule, kernels, from) = (&schedule, &kernels, &from);
                scope.spawn(move || {
                    let options = cuda::Options { scores: 130, ..device(kernels, seed) };
                    outcomes(&mut begin::<Gpu>(schedule, from().world(Some(world)), &options))
                })
            };
            let running: Vec<_> = (0..).zip(worlds).map(run).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for own in found {
            assert_eq!(own, expected, "{sharding}");
        }
    }
}
