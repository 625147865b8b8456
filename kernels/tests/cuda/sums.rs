//! Sums of rows by group, pools, and optimizers.

use fs_kernels::cuda::catalogue::segments::{COLUMNS, most_long};
use fs_kernels::cuda::catalogue::{optimizers, rows, sort};
use fs_kernels::cuda::lists::{
    Gradients, Segments, Senders, Sorting, bits_below, node_sum, received_sum, scan_room, segment_sum,
    sort_by,
};
use fs_kernels::cuda::sources::{FAMILIES, Precision};
use fs_kernels::cuda::{Call, In, Out};
use fs_kernels::embedding::{self, Pool};
use fs_kernels::optimizer::{RowUpdate, SparseKind, sparse_update, state_sizes};
use fs_kernels::reduce::{Node, ReducedRows, sum_received};
use fs_kernels::{Mat, MatMut, Write};

use super::common::{Grid, Source};
use super::device::{Device, Memory, POISON, PRECISIONS, brain_float};
use super::matrix::assert_bits;
use super::rows::{grid, rows_of};

/// Workspace of sorting, poisoned.
pub(crate) struct Room {
    keys: [Memory<u32>; 2],
    values: [Memory<u32>; 2],
    counts: Memory<u32>,
    sums: Memory<u32>,
}

impl Room {
    pub(crate) fn new(n: usize) -> Self {
        let counts = Sorting::counts(n as u32);
        let poisoned = |n| Memory::filled(n, 0xabab_abab_u32);
        Room {
            keys: [poisoned(n), poisoned(n)],
            values: [poisoned(n), poisoned(n)],
            counts: poisoned(counts as usize),
            sums: poisoned(scan_room(counts)),
        }
    }
    /// The keys in one half.
    pub(crate) fn keys_of(&self, half: usize) -> impl Iterator<Item = u32> + '_ {
        self.keys[half].iter().copied()
    }
    /// The values in one half.
    pub(crate) fn values_of(&self, half: usize) -> impl Iterator<Item = u32> + '_ {
        self.values[half].iter().copied()
    }
    pub(crate) fn sorting(&mut self) -> Sorting {
        Sorting {
            keys: self.keys.each_mut().map(Memory::write),
            values: self.values.each_mut().map(Memory::write),
            counts: self.counts.write(),
            sums: self.sums.write(),
        }
    }
}

/// Positions sorted by group, and where groups end.
pub(crate) struct Grouped {
    _room: Room,
    ends: Memory<u32>,
    long: Memory<u32>,
    count: Memory<u32>,
    pub segments: Segments,
    pub calls: Vec<Call>,
}

/// The calls that sort the positions of `keys`, all below `groups`.
pub(crate) fn grouped(device: &Device, keys: &Memory<u32>, groups: usize) -> Grouped {
    let n = keys.len() as u32;
    let (mut room, mut ends) = (Room::new(keys.len()), Memory::filled(groups, 0xabab_abab_u32));
    let (mut long, mut count) = (Memory::filled(groups, 0xabab_abab_u32), Memory::filled(1, 0u32));
    let bits = bits_below(groups as u64);
    let mut calls = vec![sort::check_below(n, keys.read(), groups as u32, device.fault())];
    let (sorting, sorted) = sort_by(n, bits, keys.read(), In::NULL, &room.sorting(), 0);
    calls.extend(sorting);
    calls.push(sort::bounds_of(groups as u32, n, sorted.keys, ends.write()));
    let segments = Segments {
        n,
        groups: groups as u32,
        positions: sorted.values,
        ends: ends.read(),
        long: long.write(),
        count: count.write(),
    };
    Grouped { _room: room, ends, long, count, segments, calls }
}

/// Groups of positions: none, one, many, and a few that have most.
fn groups_of(source: &mut Source, n: usize, groups: usize, skewed: bool) -> Vec<u32> {
    let pick = |source: &mut Source| {
        if skewed && source.below(4) > 0 { source.below(2) } else { source.below(groups) }
    };
    (0..n).map(|_| pick(source).min(groups - 1) as u32).collect()
}

const CASES: [(usize, usize, usize, usize, bool); 11] = [
    (0, 1, 4, 0, false),
    (1, 1, 1, 0, false),
    (3, 9, 37, 1, false),
    (100, 7, 64, 0, false),
    // No list is long, the only one is, both are.
    (256, 1, 40, 0, false),
    (257, 1, 40, 0, false),
    (600, 2, 70, 2, false),
    (257, 300, 16, 4, false),
    (2000, 40, 20, 0, true),
    (5000, 3000, 12, 0, true),
    (3000, 70, 130, 0, true),
];

#[test]
fn gradients_of_rows_are_summed_in_position_order() {
    let mut source = Source::new(11);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, groups, cols, gap, skewed) in CASES {
            let gy = grid(&mut source, &device, n, cols, gap);
            let inverse = groups_of(&mut source, n, groups, skewed);
            let before = Grid::<f32>::random(&mut source, groups, cols, 0);
            let (keys, x) = (Memory::of(&inverse), device.reals(&gy.data));
            for add in [false, true] {
                let mut expect = before.clone();
                let mode = if add { Write::Add } else { Write::Set };
                embedding::expand_grad(gy.view(), &inverse, expect.view_mut(), mode);
                let mut y =
                    if add { Memory::of(&before.data) } else { Memory::filled(groups * cols, POISON) };
                let grouped = grouped(&device, &keys, groups);
                let gradients = Gradients {
                    x: x.read(),
                    stride: (cols + gap) as u64,
                    bags: In::NULL,
                    offsets: In::NULL,
                    mean: false,
                };
                let sums =
                    segment_sum(&grouped.segments, cols as u32, &gradients, y.write(), cols as u64, add);
                device.run(grouped.calls.iter().cloned().chain(sums));
                assert_eq!(&y[..], &expect.data[..], "{n} rows in {groups} groups of {cols}, add {add}");
                let _ = (&grouped.ends, &grouped.long, &grouped.count);
            }
        }
    }
}

#[test]
fn a_group_out_of_range_is_told() {
    let device = Device::new(Precision::F32);
    let keys = Memory::of(&[0u32, 5, 1]);
    assert_eq!(device.faults(grouped(&device, &keys, 5).calls), 2);
}

#[test]
fn pools_and_their_gradients() {
    let mut source = Source::new(12);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (bags, table_rows, cols, gap) in
            [(0, 3, 4, 0), (1, 1, 1, 0), (7, 9, 37, 1), (40, 300, 64, 0), (300, 50, 16, 4)]
        {
            let offsets = source.offsets(bags, 30);
            let n = offsets[bags];
            let inverse: Vec<u32> = (0..n).map(|_| source.below(table_rows) as u32).collect();
            let x = grid(&mut source, &device, table_rows, cols, gap);
            let gy = grid(&mut source, &device, bags, cols, gap);
            let (at, ends) =
                (Memory::of(&inverse), Memory::of(&offsets.iter().map(|o| *o as u32).collect::<Vec<_>>()));
            let (rows_memory, gradients) = (device.reals(&x.data), device.reals(&gy.data));
            for kind in [Pool::Sum, Pool::Mean] {
                let mean = kind == Pool::Mean;
                let mut expect = Grid::<f32>::zeros(bags, cols, 0);
                embedding::pool(x.view(), &inverse, &offsets, kind, expect.view_mut());
                for add in [false, true] {
                    let mut y = device.reals(&vec![if add { 0.5 } else { POISON }; bags * cols]);
                    device.run([rows::pool(
                        bags as u32,
                        cols as u32,
                        rows_memory.read(),
                        table_rows as u32,
                        (cols + gap) as u64,
                        at.read(),
                        ends.read(),
                        u32::from(mean),
                        y.write(),
                        cols as u64,
                        u32::from(add),
                        device.fault(),
                    )]);
                    let expect: Vec<f32> =
                        expect.data.iter().map(|x| device.rounded(if add { 0.5 + *x } else { *x })).collect();
                    assert_eq!(rows_of(&y.values(), bags, cols, cols), expect, "{bags} {kind:?} {add}");
                }
                let mut expect = Grid::<f32>::zeros(table_rows, cols, 0).with(|_, _| 0.25);
                embedding::pool_grad(gy.view(), &inverse, &offsets, kind, expect.view_mut(), Write::Add);
                let (mut y, mut bag) =
                    (Memory::filled(table_rows * cols, 0.25f32), Memory::filled(n, 0xabab_abab_u32));
                let grouped = grouped(&device, &at, table_rows);
                let to_bags =
                    rows::bags_of_positions(n as u32, bags as u32, ends.read(), bag.write(), device.fault());
                let from = Gradients {
                    x: gradients.read(),
                    stride: (cols + gap) as u64,
                    bags: bag.read(),
                    offsets: ends.read(),
                    mean,
                };
                let sums = segment_sum(&grouped.segments, cols as u32, &from, y.write(), cols as u64, true);
                device.run([to_bags].into_iter().chain(grouped.calls.iter().cloned()).chain(sums));
                assert_eq!(&y[..], &expect.data[..], "gradient of {bags} {kind:?}");
            }
        }
    }
}

/// Rows that several ranks send gradients of.
fn received(source: &mut Source, counts: &[usize], shard: usize, skewed: bool) -> Vec<u32> {
    groups_of(source, counts.iter().sum(), shard, skewed)
}

#[test]
fn received_gradients_are_summed_by_source_and_applied() {
    use fs_kernels::cuda::catalogue::ids;
    use fs_kernels::cuda::lists::Bitmap;
    let mut source = Source::new(13);
    let device = Device::new(Precision::F32);
    let mut others = 0;
    for (counts, shard, cols, skewed) in [
        (vec![0, 0], 5, 4, false),
        (vec![1], 3, 7, false),
        (vec![3, 0, 5], 4, 64, false),
        (vec![40, 100, 0, 33], 900, 37, false),
        (vec![900, 0, 1500, 700], 60, 20, true),
        (vec![0, 700, 300], 1000, 128, true),
        // Lists that are summed by blocks, in nodes that begin within a block and that have nothing.
        (vec![130, 150, 0, 0, 260, 100, 0], 2, 33, false),
        (vec![5, 9, 0, 4, 7, 8, 3], 6, 10, false),
    ] {
        let rows = received(&mut source, &counts, shard, skewed);
        let n = rows.len();
        let grads = Grid::<f32>::random(&mut source, n, cols, 0);
        let mut expect = ReducedRows::new();
        sum_received(&rows, &counts, Node { ranks: counts.len(), rounds: false }, grads.view(), &mut expect);
        let by_rank = expect.grads.to_vec();
        // The distinct rows, and which of them each entry is.
        let limit = shard as u64;
        let (mut bits, mut before) =
            (aligned(Bitmap::words(limit)), Memory::filled(Bitmap::groups(limit) as usize, 0xab_u32));
        let mut tiles = Memory::filled(Bitmap::tiles(limit) as usize, 0xab_u32);
        let set = Bitmap { limit, bits: bits.write(), before: before.write(), sums: tiles.write() };
        let (list, mut members) = (Memory::of(&rows), Memory::filled(n, 0xabab_u32));
        let (mut total, mut slots) = (Memory::filled(1, 0xabab_u32), Memory::filled(n, 0xabab_u32));
        device.run(set.of_rows(n as u32, list.read(), members.write(), total.write(), device.fault()));
        let distinct = total[0] as usize;
        assert_eq!(&members[..distinct], expect.rows);
        device.run([
            ids::bitmap_rank_rows(n as u32, list.read(), limit, bits.read(), before.read(), slots.write()),
            ids::bitmap_remove_rows(n as u32, list.read(), limit, bits.write()),
        ]);
        assert!(bits.iter().all(|word| *word == 0), "the set is empty again");
        let (x, mut sums) = (Memory::of(&grads.data), Memory::filled(distinct * cols, POISON));
        let ends = ends_of(&counts);
        for node in 1..=counts.len() + 1 {
            sum_received(&rows, &counts, Node { ranks: node, rounds: false }, grads.view(), &mut expect);
            others += usize::from(expect.grads[..] != by_rank[..]);
            sums.fill(POISON);
            if distinct > 0 {
                let grouped = grouped(&device, &slots, distinct);
                let count = counts.len() as u32;
                let senders = Senders { ends: ends.read(), count, node: node as u32, round: false };
                let from = (In::at(x.read().0), cols as u64);
                let sum =
                    received_sum(&grouped.segments, cols as u32, from, senders, sums.write(), cols as u64);
                device.run(grouped.calls.iter().cloned().chain(sum));
            }
            let what = format!("{counts:?} of {shard} rows, {node} a node");
            assert_bits(&device, &what, &sums, &expect.grads);
        }
        for decay in [0.0, 0.01] {
            for kind in [SparseKind::Sgd, SparseKind::RowwiseAdagrad, SparseKind::Adagrad, SparseKind::Adam] {
                apply(&mut source, &device, (kind, decay), shard, cols, &expect, &members, &sums);
            }
        }
        // Kept instead of applied.
        let old = Grid::<f32>::random(&mut source, shard, cols, 0);
        let mut captured = Memory::of(&old.data);
        let (kept, fault) = (captured.write(), device.fault());
        let (d, c) = (distinct as u32, cols as u32);
        device.run([optimizers::capture_rows(
            d,
            c,
            members.read(),
            sums.read(),
            cols as u64,
            kept,
            shard as u32,
            fault,
        )]);
        let mut wanted = old.data.clone();
        for (row, sum) in expect.rows.iter().zip(expect.grads.chunks_exact(cols)) {
            for (x, g) in wanted[*row as usize * cols..].iter_mut().zip(sum) {
                *x += g;
            }
        }
        assert_eq!(&captured[..], &wanted[..]);
        // What they held before: the list ends with rows that there are not.
        let (from, mut kept) = (Memory::of(&old.data), Memory::filled((distinct + 1) * cols, POISON));
        let list = ending(&members[..distinct]);
        let (rows, out, fault) = (list.read(), kept.write(), device.fault());
        device.run([optimizers::keep_rows(d + 1, c, rows, from.read(), shard as u32, out, fault)]);
        let of = |row: &u32| old.data[*row as usize * cols..][..cols].to_vec();
        let mut wanted: Vec<f32> = expect.rows.iter().flat_map(of).collect();
        wanted.resize(wanted.len() + cols, POISON);
        assert_bits(&device, "kept rows", &kept, &wanted);
    }
    assert!(others > 5, "nodes change bits in {others} cases only");
}

/// Sums by group, added one by one: of a source, then of the sources of a node, rounded or not, then of nodes.
fn summed(
    (keys, groups): (&[u32], usize),
    counts: &[usize],
    (node, round): (usize, bool),
    grads: &Grid<f32>,
) -> Vec<f32> {
    let (cols, stride) = (grads.cols, grads.cols + grads.gap);
    let mut total = vec![0.0; groups * cols];
    let mut at = 0;
    for sources in counts.chunks(node) {
        let mut of_node = vec![0.0; groups * cols];
        for n in sources {
            let mut part = vec![0.0; groups * cols];
            for position in at..at + n {
                let row = &grads.data[position * stride..][..cols];
                let sum = &mut part[keys[position] as usize * cols..][..cols];
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            at += n;
            of_node.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let travels = |x: f32| if round { brain_float(x) } else { x };
        total.iter_mut().zip(of_node).for_each(|(sum, of_node)| *sum += travels(of_node));
    }
    total
}

/// Where the positions of each source end.
fn ends_of(counts: &[usize]) -> Memory<u32> {
    let ends = counts.iter().scan(0, |end, n| {
        *end += *n as u32;
        Some(*end)
    });
    Memory::of(&ends.collect::<Vec<_>>())
}

/// Gradients of which many sums lie between two brain floats, in the middle, too; or any.
fn sent(source: &mut Source, device: &Device, (n, cols, gap): (usize, usize, usize), any: bool) -> Grid<f32> {
    let mut grads = grid(source, device, n, cols, gap);
    if !any {
        grads.data.iter_mut().for_each(|x| *x = device.rounded((*x * 1024.0).round() / 256.0));
    }
    grads
}

#[test]
fn sums_of_nodes_travel_rounded() {
    let mut source = Source::new(15);
    let (mut rounded, mut later) = (0, 0);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (counts, groups, cols, gap) in [
            (vec![0, 0, 0], 3, 4, 0),
            (vec![1], 1, 1, 0),
            (vec![3, 0, 5, 2], 4, 64, 0),
            (vec![1, 1, 1, 1, 1, 1], 1, 5, 3),
            (vec![40, 100, 0, 33, 61, 9], 90, 37, 1),
            (vec![130, 150, 0, 0, 260, 100, 0, 4], 2, 33, 4),
            (vec![600, 1200, 900, 700], 40, 20, 4),
        ] {
            let n = counts.iter().sum();
            let keys = groups_of(&mut source, n, groups, n > 1000);
            let (list, ends) = (Memory::of(&keys), ends_of(&counts));
            for any in [false, true] {
                let grads = sent(&mut source, &device, (n, cols, gap), any);
                let x = device.reals(&grads.data);
                let from = (x.read(), (cols + gap) as u64);
                let what = format!("{precision:?}, {counts:?} of {groups} rows, any {any}");
                for node in 1..=counts.len() {
                    let of = |round| summed((&keys, groups), &counts, (node, round), &grads);
                    let plain = of(false);
                    for (round, expect) in [(false, plain.clone()), (true, of(true))] {
                        rounded += usize::from(expect != plain);
                        later += usize::from(expect.iter().any(|x| *x != brain_float(*x)) && round);
                        let mut y = Memory::filled(groups * cols, POISON);
                        let grouped = grouped(&device, &list, groups);
                        let count = counts.len() as u32;
                        let senders = Senders { ends: ends.read(), count, node: node as u32, round };
                        let (c, to) = (cols as u32, y.write());
                        let sum = received_sum(&grouped.segments, c, from, senders, to, cols as u64);
                        device.run(grouped.calls.iter().cloned().chain(sum));
                        for (i, (a, b)) in y.iter().zip(&expect).enumerate() {
                            assert!(
                                a.to_bits() == b.to_bits(),
                                "{what}, {node} a node, {round}: {i} is {a}, not {b}"
                            );
                        }
                    }
                }
                // What a relay sends on.
                let stride = cols + 1 + 3 * usize::from(any);
                let mut y = device.poisoned_reals(groups * stride);
                let grouped = grouped(&device, &list, groups);
                let sources = (ends.read(), counts.len() as u32);
                let sum = node_sum(&grouped.segments, cols as u32, from, sources, y.write(), stride as u64);
                device.run(grouped.calls.iter().cloned().chain(sum));
                let expect = summed((&keys, groups), &counts, (counts.len(), false), &grads);
                assert_bits(&device, &what, &rows_of(&y.values(), groups, cols, stride), &expect);
            }
        }
    }
    assert!(rounded > 50, "rounding changes {rounded} sums only");
    assert!(later > 20, "{later} sums only are of several nodes and no brain floats");
}

/// What is no number is none in its row's sum, and in no other.
#[test]
fn sums_of_what_is_no_number() {
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let (keys, counts, ends) = (Memory::of(&[0u32, 1, 0, 1]), [2, 2], ends_of(&[2, 2]));
        let odd = f32::from_bits(0x7f80_0001);
        let x = device.reals(&[1.0, 1.0, 2.0, f32::INFINITY, odd, 3.0, 4.0, f32::NEG_INFINITY]);
        let from = (x.read(), 2);
        for round in [false, true] {
            let mut y = Memory::filled(4, POISON);
            let grouped = grouped(&device, &keys, 2);
            let senders = Senders { ends: ends.read(), count: counts.len() as u32, node: 1, round };
            let sum = received_sum(&grouped.segments, 2, from, senders, y.write(), 2);
            device.run(grouped.calls.iter().cloned().chain(sum));
            assert!(y[0].is_nan() && y[3].is_nan() && y[1..3] == [4.0, 6.0], "{round}: {:?}", &y[..]);
        }
        let mut y = device.poisoned_reals(4);
        let grouped = grouped(&device, &keys, 2);
        let sum = node_sum(&grouped.segments, 2, from, (ends.read(), 2), y.write(), 2);
        device.run(grouped.calls.iter().cloned().chain(sum));
        let y = y.values();
        assert!(y[0].is_nan() && y[3].is_nan() && y[1..3] == [4.0, 6.0], "{y:?}");
    }
}

/// A list of rows with room for more.
fn ending(rows: &[u32]) -> Memory<u32> {
    Memory::of(&[rows, &[optimizers::NO_ROW]].concat())
}

/// A set's words, aligned as a device's memory is.
pub(crate) fn aligned(words: usize) -> Memory<u32> {
    let memory = Memory::filled(words, 0u32);
    assert!(words == 0 || memory.as_ptr().addr().is_multiple_of(16));
    memory
}

fn apply(
    source: &mut Source,
    device: &Device,
    (kind, weight_decay): (SparseKind, f64),
    shard: usize,
    cols: usize,
    expect: &ReducedRows<f32>,
    members: &Memory<u32>,
    sums: &Memory<f32>,
) {
    let opt = RowUpdate { weight_decay, ..RowUpdate::new(kind, 0.05) };
    let (first, second) = state_sizes(kind, shard, cols);
    let mut table = Grid::<f32>::random(source, shard, cols, 0);
    let mut state = |n: usize| (0..n).map(|_| source.unit() as f32).collect::<Vec<f32>>();
    let (mut state1, mut state2) = (state(first), state(second));
    let (mut weights, mut memory1, mut memory2) =
        (Memory::of(&table.data), Memory::of(&state1), Memory::of(&state2));
    let step = 3;
    let grads = Mat::new(&expect.grads, expect.rows.len(), cols);
    let target = MatMut::new(&mut table.data, shard, cols);
    sparse_update(&opt, step, target, &mut state1, &mut state2, &expect.rows, grads);
    let (n, c, stride, fault) = (expect.rows.len() as u32 + 1, cols as u32, cols as u64, device.fault());
    let (lr, eps, decay) = (opt.lr as f32, opt.eps as f32, opt.weight_decay as f32);
    let list = ending(&members[..expect.rows.len()]);
    let (list, g) = (list.read(), sums.read());
    let (w, rows, s1, s2): (Out<f32>, u32, _, _) =
        (weights.write(), shard as u32, memory1.write(), memory2.write());
    let adam = opt.lr * (1.0 - opt.beta2.powi(step as i32)).sqrt() / (1.0 - opt.beta1.powi(step as i32));
    let (keep1, keep2) = ((1.0 - opt.beta1) as f32, (1.0 - opt.beta2) as f32);
    device.run([match kind {
        SparseKind::Sgd => optimizers::sgd_rows(n, c, lr, decay, list, g, stride, w, rows, stride, fault),
        SparseKind::RowwiseAdagrad => optimizers::rowwise_adagrad_rows(
            n, c, lr, eps, decay, list, g, stride, w, rows, stride, s1, fault,
        ),
        SparseKind::Adagrad => {
            optimizers::adagrad_rows(n, c, lr, eps, decay, list, g, stride, w, rows, stride, s1, fault)
        }
        SparseKind::Adam => optimizers::adam_rows(
            n,
            c,
            adam as f32,
            eps,
            decay,
            keep1,
            keep2,
            list,
            g,
            stride,
            w,
            rows,
            stride,
            s1,
            s2,
            fault,
        ),
    }]);
    for (what, found, wanted) in
        [("weights", &weights, &table.data), ("first", &memory1, &state1), ("second", &memory2, &state2)]
    {
        for (i, (x, y)) in found.iter().zip(wanted).enumerate() {
            if kind == SparseKind::RowwiseAdagrad {
                // Squares of a row are summed in another order.
                assert!((x - y).abs() <= 1e-5 * (1e-3 + y.abs()), "{kind:?} {what} {i}: {x} for {y}");
            } else {
                assert_eq!(x, y, "{kind:?} {what} {i}");
            }
        }
    }
}

#[test]
fn lists_as_long_as_a_row_of_threads_sums_and_longer() {
    let (mut source, device) = (Source::new(14), Device::new(Precision::F32));
    let longest = fs_kernels::cuda::catalogue::segments::LONGEST as usize;
    for n in [longest - 1, longest, longest + 1, longest + 127, longest + 128, longest + 129] {
        let cols = 5;
        let gy = Grid::<f32>::random(&mut source, n, cols, 0);
        let inverse = vec![1; n];
        let mut expect = Grid::<f32>::zeros(3, cols, 0);
        embedding::expand_grad(gy.view(), &inverse, expect.view_mut(), Write::Set);
        let (keys, x, mut y) =
            (Memory::of(&inverse), device.reals(&gy.data), Memory::filled(3 * cols, POISON));
        let grouped = grouped(&device, &keys, 3);
        let stride = cols as u64;
        let gradients = Gradients { x: x.read(), stride, bags: In::NULL, offsets: In::NULL, mean: false };
        let sums = segment_sum(&grouped.segments, cols as u32, &gradients, y.write(), stride, false);
        device.run(grouped.calls.iter().cloned().chain(sums));
        assert_eq!(&y[..], &expect.data[..], "{n} rows");
    }
}

#[test]
fn as_many_blocks_as_long_lists_have_slices() {
    let source = FAMILIES.iter().find(|source| source.name.ends_with("segments.cu")).expect("there");
    assert!(source.text.contains(&format!("LONG_COLUMNS = {COLUMNS},")));
    for (positions, columns, blocks) in [
        (0, 40, 0),
        (256, 40, 0),
        (257, 0, 0),
        (257, 1, 1),
        (513, 32, 1),
        (514, 33, 4),
        (u32::MAX, 128, 4 * (u64::from(u32::MAX) / 257)),
    ] {
        assert_eq!(most_long(positions, columns), blocks, "{positions}, {columns}");
    }
}
