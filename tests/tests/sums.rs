//! Sums of dense gradients over ranks: their order, in every bit, against sums that are made here.
//!
//! Each rank has one sample of one row. The head's weights begin as zeros, so that a logit is 0, its gradient a half, and a rank's gradient
//! of the weights half its row; rows stay as they are, for weights are zeros. What the weights are after a step is the sum.

use std::fs;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Cluster;
use fs_executor::device::cuda::Cuda;
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_kernels::cuda::sources::Precision;
use fs_schedule::{Element, Schedule};
use fs_tests::batches::{ids, one_batch};
use fs_tests::emulated::{device, kernels_for, train};
use fs_tests::training::{options, session, state};
use proptest::prelude::*;
use tempfile::TempDir;

const ROWS: u64 = 200;

struct Run {
    /// Ids of the ranks' samples.
    ids: Vec<i64>,
    rows: Vec<f32>,
    dim: usize,
    /// After a step.
    weights: Vec<f32>,
}

fn compiled(
    dir: &TempDir,
    (ranks, node): (u32, u32),
    dim: usize,
    strategy: Strategy,
    bf16: bool,
    seed: u64,
) -> (Vec<i64>, Schedule) {
    let ids = ids(ranks as usize, ROWS, seed);
    one_batch(&dir.path().join("b.safetensors"), &vec![1; ranks as usize], &ids);
    let narrow = if bf16 { "precision { all_reduce bf16 }" } else { "" };
    let text = format!(
        "model m {{
           table a {{ rows {ROWS}  dim {dim}  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }}
           input x: ids(a) {{ max 1 }}
           input y: label
           let h = linear(pool(x, sum), 1, init: zeros, bias_init: zeros)
           loss bce_with_logits(h, y, normalize: 1)
         }}
         train {{ batch {ranks}  steps 1  optimizer sgd(lr: 1)  balance off  {narrow} }}
         workload w {{ safetensors \"b.safetensors\" }}"
    );
    let file = dir.path().join("m.fs");
    fs::write(&file, text).expect("written");
    let loaded = fs_dsl::load(&file);
    let told = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let program = loaded.program.unwrap_or_else(|| panic!("{told}"));
    let local = fs_dsl::cluster::preset("local").expect("a preset");
    let cluster = Cluster { nodes: ranks.div_ceil(node), gpus_per_node: node, ..local };
    let options = CompileOptions::new(strategy, ranks).cluster(cluster).bucket_bytes(64);
    (ids, compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule)
}

impl Run {
    fn of(ids: &[i64], state: &[Vec<u32>]) -> Self {
        // No optimizer has a state.
        let [rows, weights, bias] = state.iter().filter(|list| !list.is_empty()).collect::<Vec<_>>()[..]
        else {
            panic!("other lists than rows, weights and a bias");
        };
        assert!(rows.len() == ROWS as usize * weights.len() && bias.len() == 1);
        let floats = |list: &[u32]| list.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
        let (rows, weights) = (floats(rows), floats(weights));
        Self { ids: ids.to_vec(), rows, dim: weights.len(), weights }
    }

    /// On threads, with delays.
    fn on_threads(ids: &[i64], schedule: &Schedule, seed: u64) -> Self {
        let mut session = session(schedule, options().steps(1).stress(seed));
        session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
        Self::of(ids, &state(&session).expect("state"))
    }
}

/// Cuts sums into pieces of so many bytes.
fn cut(schedule: &mut Schedule, chunk: Option<u64>) {
    for op in schedule.train.ops.iter_mut().filter(|op| op.action.facts().sums_over_ranks()) {
        op.chunk = chunk;
    }
    schedule.seal();
}

fn bits(list: &[f32]) -> Vec<u32> {
    list.iter().map(|x| x.to_bits()).collect()
}

/// To the nearest brain float, and of two to the even one.
fn rounded(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

impl Run {
    /// The weights that sums over so many ranks of a node, and then over nodes, leave.
    fn expected(&self, node: usize, round: fn(f32) -> f32) -> Vec<f32> {
        let sum = |column: usize| {
            let of = |id: &i64| round(0.5 * self.rows[*id as usize * self.dim + column]);
            let add = |a: f32, b: f32| a + b;
            let nodes =
                self.ids.chunks(node).map(|ids| round(ids.iter().map(of).reduce(add).expect("ranks")));
            let several = self.ids.len() > node;
            let sum = nodes.reduce(add).expect("nodes");
            0.0 - if several { round(sum) } else { sum }
        };
        (0..self.dim).map(sum).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_have_the_order_of_nodes(
        seed in 0..1000u64,
        (ranks, node) in prop::sample::select(vec![(1u32, 1u32), (3, 3), (4, 2), (5, 2), (6, 3), (6, 4), (7, 3), (8, 2), (3, 2), (4, 1)]),
        dim in prop::sample::select(vec![1usize, 3, 32, 33, 100]),
        strategy in prop::sample::select(vec![Strategy::Serial, Strategy::Prefetch, Strategy::Overlap, Strategy::Pec]),
        bf16 in any::<bool>(),
        chunk in prop::option::of(1..80u64),
    ) {
        let dir = TempDir::new().expect("a folder");
        let (ids, mut schedule) = compiled(&dir, (ranks, node), dim, strategy, bf16, seed);
        cut(&mut schedule, chunk);
        let by_node = (2..ranks).contains(&node);
        prop_assert_eq!(schedule.settings.sums_by_node, by_node);
        prop_assert_eq!(schedule.settings.wire.dense == Element::Bf16, bf16);
        let run = Run::on_threads(&ids, &schedule, seed);
        let round = if bf16 { rounded } else { |x| x };
        let of = if by_node { node } else { ranks };
        prop_assert_eq!(bits(&run.weights), bits(&run.expected(of as usize, round)), "node {}", of);
        // A schedule from before there was another way keeps to rank order.
        let mut old = schedule;
        old.settings.sums_by_node = false;
        for op in &mut old.train.ops {
            op.cost.wire = fs_schedule::Poly::zero();
        }
        let costs: Vec<_> = old.train.ops.iter().map(|op| old.cost(&old.train, op)).collect();
        for (op, cost) in old.train.ops.iter_mut().zip(costs) {
            op.cost = cost;
        }
        old.seal();
        let old = Run::on_threads(&ids, &old, seed);
        prop_assert_eq!(bits(&old.weights), bits(&old.expected(ranks as usize, round)));
    }
}

/// Both orders are told apart by what is looked at.
#[test]
fn orders_differ() {
    let dir = TempDir::new().expect("a folder");
    let (ids, schedule) = compiled(&dir, (8, 2), 100, Strategy::Pec, false, 7);
    let run = Run::on_threads(&ids, &schedule, 1);
    assert_ne!(run.expected(2, |x| x), run.expected(8, |x| x));
    assert_ne!(run.expected(2, rounded), run.expected(8, rounded));
}

/// On GPUs that are emulated: nodes that are full and not, relays that stand for several owners, pieces of all sizes, and shares of nothing.
#[test]
fn gpus_sum_in_the_same_order() {
    let of = |precision| kernels_for(env!("CARGO_TARGET_TMPDIR"), precision);
    let (Some(wide), Some(brain)) = (of(Precision::F32), of(Precision::Bf16)) else { return };
    let kernels = [wide, brain];
    let shapes = [(4, 2), (5, 2), (5, 3), (7, 3), (3, 3), (6, 4)];
    let chunks = [None, Some(4), Some(20)];
    for (n, (shape, bf16)) in (0..).zip(shapes.iter().flat_map(|shape| [(shape, false), (shape, true)])) {
        let (ranks, node) = *shape;
        let (dim, chunk) = ([33, 3, 100][n % 3], chunks[n / 2 % 3]);
        let dir = TempDir::new().expect("a folder");
        let (ids, mut schedule) = compiled(&dir, *shape, dim, Strategy::Overlap, bf16, n as u64);
        cut(&mut schedule, chunk);
        let what =
            format!("{ranks} ranks in nodes of {node}, bf16 {bf16}, {dim} columns, pieces of {chunk:?}");
        let found = train::<Cuda<Emulated>>(&schedule, &device(&kernels, n as u64), &mut ());
        let run = Run::of(&ids, &found.unwrap_or_else(|e| panic!("{what}: {e}")).state);
        let round = if bf16 { rounded } else { |x| x };
        let of = if schedule.settings.sums_by_node { node } else { ranks };
        assert_eq!(bits(&run.weights), bits(&run.expected(of as usize, round)), "{what}");
    }
}
