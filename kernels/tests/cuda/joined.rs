//! Several launches as one: whatever their sizes, the same bits as one after the other.

use fs_kernels::cuda::catalogue::{classes, elementwise, ids, mxint8, optimizers, rows, sort};
use fs_kernels::cuda::joined::{MOST, alike};
use fs_kernels::cuda::lists::{
    Bitmap, Gradients, Segments, Senders, Sorting, node_sum, received_sum, scan_room, segment_sum, sort_by,
};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out};
use fs_workload::placement::HotRows;

use super::common::Source;
use super::device::{Device, Memory, PRECISIONS};

/// What one of several works on, and its launches.
struct Member {
    memory: Vec<Memory<u128>>,
    /// Those of its memory in which numbers stand in any order.
    loose: Vec<usize>,
    calls: Vec<Call>,
    fault: Out<u32>,
    precision: Precision,
}

impl Member {
    /// Memory with these words.
    fn words(&mut self, words: &[u32]) -> u64 {
        let word = |four: &[u32], n: usize| u128::from(four.get(n).copied().unwrap_or(0));
        let fours: Vec<u128> =
            words.chunks(4).map(|w| (0..4).fold(0, |x, n| x | word(w, n) << (32 * n))).collect();
        self.memory.push(Memory::of(if fours.is_empty() { &[0] } else { &fours }));
        self.memory.last().unwrap().read().0
    }
    /// Numbers below `limit`.
    fn numbers(&mut self, source: &mut Source, n: usize, limit: usize) -> In<u32> {
        let words: Vec<u32> = (0..n).map(|_| source.below(limit) as u32).collect();
        In::at(self.words(&words))
    }
    /// The same as ids.
    fn ids(&mut self, source: &mut Source, n: usize, limit: usize) -> In<i64> {
        let words: Vec<u32> = (0..n).flat_map(|_| [source.below(limit) as u32, 0]).collect();
        In::at(self.words(&words))
    }
    fn bytes<T>(&mut self, source: &mut Source, n: usize, limit: usize) -> In<T> {
        let byte = |source: &mut Source| (source.below(limit) as u32).to_le();
        let words: Vec<u32> =
            (0..n.div_ceil(4)).map(|_| (0..4).fold(0, |x, i| x | byte(source) << (8 * i))).collect();
        In::at(self.words(&words))
    }
    fn floats<T>(&mut self, source: &mut Source, n: usize) -> In<T> {
        let words: Vec<u32> = (0..n).map(|_| (source.signed() as f32).to_bits()).collect();
        In::at(self.words(&words))
    }
    /// Activations; brain floats are of any bits that are a number.
    fn reals<T>(&mut self, source: &mut Source, n: usize) -> In<T> {
        let Precision::Bf16 = self.precision else { return self.floats(source, n) };
        let half = |source: &mut Source| (source.signed() as f32).to_bits() >> 16;
        let words: Vec<u32> = (0..n.div_ceil(2)).map(|_| half(source) | half(source) << 16).collect();
        In::at(self.words(&words))
    }
    fn out<T>(&mut self, words: usize) -> Out<T> {
        Out::at(self.words(&vec![0xabab_abab; words]))
    }
    fn zeros<T>(&mut self, words: usize) -> Out<T> {
        Out::at(self.words(&vec![0; words]))
    }
    /// Where consecutive parts of n end.
    fn ends(&mut self, source: &mut Source, n: usize, parts: usize) -> In<u32> {
        let mut ends: Vec<u32> = (0..parts).map(|_| source.below(n + 1) as u32).collect();
        ends.sort_unstable();
        ends[parts - 1] = n as u32;
        In::at(self.words(&ends))
    }
    /// The same with a beginning.
    fn offsets(&mut self, source: &mut Source, n: usize, parts: usize) -> In<u32> {
        let mut ends: Vec<u32> = (0..=parts).map(|_| source.below(n + 1) as u32).collect();
        ends.sort_unstable();
        (ends[0], ends[parts]) = (0, n as u32);
        In::at(self.words(&ends))
    }
    /// Each number below n once.
    fn order(&mut self, source: &mut Source, n: usize) -> In<u32> {
        let mut order: Vec<u32> = (0..n as u32).collect();
        (1..n).for_each(|i| order.swap(i, source.below(i + 1)));
        In::at(self.words(&order))
    }
    fn sorting(&mut self, n: usize) -> Sorting {
        let counts = Sorting::counts(n as u32);
        Sorting {
            keys: [self.out(n), self.out(n)],
            values: [self.out(n), self.out(n)],
            counts: self.out(counts as usize),
            sums: self.out(scan_room(counts)),
        }
    }
    fn bitmap(&mut self, limit: u64) -> Bitmap {
        Bitmap {
            limit,
            bits: self.zeros(Bitmap::words(limit)),
            before: self.out(Bitmap::groups(limit) as usize),
            sums: self.out(Bitmap::tiles(limit) as usize),
        }
    }
    fn add(&mut self, calls: impl IntoIterator<Item = Call>) {
        self.calls.extend(calls);
    }
}

type Work = fn(&mut Member, &mut Source, usize);

fn sorted(m: &mut Member, source: &mut Source, n: usize) {
    let (size, groups) = (n as u32, 700);
    let keys = m.numbers(source, n, groups as usize);
    let work = m.sorting(n);
    let (calls, sorted) = sort_by(size, 10, keys, In::NULL, &work, 0);
    m.add(calls);
    let (ends, counts) = (m.out(groups as usize), m.out(2 * groups as usize));
    m.add([
        sort::check_below(size, keys, groups, m.fault),
        sort::bounds_of(groups, size, sorted.keys, ends),
        sort::counts_of(groups, ends.read(), counts),
    ]);
    let (words, bytes, numbers) = (m.out(n), m.out(n), m.ids(source, n, 1000));
    let (to, from) = (m.out(2 * n), m.bytes(source, n, 200));
    m.add([
        sort::take_words(size, keys, size, sorted.values, words, m.fault),
        sort::take_ids(size, numbers, size, sorted.values, to, m.fault),
        sort::take_bytes(size, from, size, sorted.values, bytes, m.fault),
        sort::fill_words(source.below(1 << 20) as u32, n as u64 / 2, words),
    ]);
}

fn of_ids(m: &mut Member, source: &mut Source, n: usize) {
    let (size, limit) = (n as u32, 1000 + n / 3);
    let (list, set) = (m.ids(source, n, limit), m.bitmap(limit as u64));
    let (members, inverse, total) = (Out::at(m.words(&vec![u32::MAX; 2 * n])), m.out(n), m.out(1));
    let fault = m.fault;
    m.add(set.unique_ids(size, list, members, inverse, total, fault));
    let (owners, each) = (3u32, (limit as u64).div_ceil(3));
    let (counts, keys, order) = (m.out(6), m.out(n), m.order(source, n));
    let (entries, at, in_row) = (m.out(2 * n), m.out(n), m.out(n));
    let (first, last, uses) = (m.out(n), m.out(n), m.out(n));
    let boundaries = m.ends(source, n, 2);
    let (to, places) = (m.order(source, 3), m.out(2 * n));
    m.add([
        ids::count_by_owner(owners, size, members.read(), each, counts),
        ids::owners_of_ids(size, list, limit as u64, each, owners, limit as u64, keys, fault),
        ids::place_entries(size, order, list, entries, at, fault),
        ids::uses_begin(size, first, last),
        ids::uses_mark(size, at.read(), 2, boundaries, size, first, last, fault),
        ids::uses_end(size, first.read(), last.read(), uses),
        ids::slots_of_ids(size, list, limit as u64, In::NULL, In::NULL, 0, In::NULL, 0, places, fault),
        ids::slots_in_order(size, places, each, owners, to),
        ids::rows_of_entries(size, list, each, owners, in_row),
    ]);
    let (asked, told) = (m.numbers(source, n, n.max(1)), m.bytes(source, 2 * n, 4));
    let (again, set) = (m.numbers(source, n, limit), m.bitmap(limit as u64));
    let members = Out::at(m.words(&vec![u32::MAX; 2 * n]));
    let inverse = m.out(n);
    m.add([ids::uses_join(size, asked, told, size, first, last, fault)]);
    m.add(set.ids_of_rows(size, again, members, inverse, fault));
    m.add([ids::bitmap_remove_rows(size, again, limit as u64, set.bits)]);
    let keys = m.ids(source, n, 1 << 20);
    let drawn = m.out(2 * 5 * n);
    m.add([ids::negatives(size, 5, 17, n as u32, limit as u64, In::at(keys.0), drawn)]);
}

fn of_hot_ids(m: &mut Member, source: &mut Source, n: usize) {
    let size = n as u32;
    let hot: Vec<u64> = (0..=n as u64 / 7).map(|row| 3 * row).collect();
    let pairs = HotRows::new(&hot).unwrap().words();
    let halves: Vec<u32> = pairs.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
    let (list, numbers) = (m.ids(source, n, 1000), In::at(m.words(&halves)));
    let slots = Out::at(m.words(&vec![7; 2 * n]));
    m.add([ids::slots_of_hot(size, list, numbers, (pairs.len() / 2) as u32, 1000, slots)]);
    // Some below 1000, others behind them, and some that are none.
    let (owned, all) = (n / 3, n - n / 5);
    let entry = |i: usize| {
        if i < all { [i as u32 % 900 + if i < owned { 0 } else { 1000 }, 0] } else { [u32::MAX; 2] }
    };
    let entries = In::at(m.words(&(0..n).flat_map(entry).collect::<Vec<u32>>()));
    let told = m.bytes(source, 2 * n, 4);
    let [low, high] = [m.out(2 * n), m.out(2 * n)];
    let [low_uses, high_uses] = [m.out(n), m.out(n)];
    m.add([ids::shares_of_entries(size, entries, told, 1000, 2000, low, low_uses, high, high_uses)]);
}

fn moved(m: &mut Member, source: &mut Source, n: usize) {
    const COLS: u32 = 12;
    let (size, cols, there, fault) = (n as u32, COLS as usize, 50, m.fault);
    let (table, x) = (m.floats(source, there * cols), m.reals(source, there * cols));
    let (list, at) = (m.numbers(source, n, there), m.numbers(source, n, n.max(1)));
    let order = m.order(source, n);
    let (rows_there, stride) = (there as u32, u64::from(COLS));
    let mut outs = [0; 6].map(|_| m.out::<u8>(n * cols).0).into_iter();
    let mut out = || outs.next().unwrap();
    let gathered = Out::at(out());
    m.calls.push(rows::gather(
        size, COLS, table, rows_there, stride, list, size, at, gathered, stride, 0, fault,
    ));
    m.calls.push(rows::expand(size, COLS, x, rows_there, stride, list, Out::at(out()), stride, 0, fault));
    m.calls.push(rows::split(size, COLS, table, rows_there, stride, list, Out::at(out()), stride, 0, fault));
    m.calls.push(rows::merge(
        size,
        COLS,
        gathered.read(),
        stride,
        order,
        Out::at(out()),
        size,
        stride,
        fault,
    ));
    m.calls.push(rows::scatter(
        size,
        COLS,
        gathered.read(),
        stride,
        order,
        Out::at(out()),
        size,
        stride,
        fault,
    ));
    let narrow = m.out(4 * n);
    m.calls.push(mxint8::gather_mxint8(size, COLS, table, rows_there, stride, list, size, at, narrow, fault));
    let (whole, passed) = (m.out(n * cols), m.out(4 * n));
    m.calls.push(mxint8::merge_mxint8(size, COLS, narrow.read(), order, whole, size, stride, fault));
    m.calls.push(mxint8::pass_mxint8(size, COLS, narrow.read(), size, order, passed, fault));
    let to = Out::at(out());
    let bags = 1 + n / 4;
    let (offsets, pooled, of) = (m.offsets(source, n, bags), m.out(bags * cols), m.out(n));
    let mean = source.below(2) as u32;
    m.calls.push(rows::pool(
        bags as u32,
        COLS,
        x,
        rows_there,
        stride,
        list,
        offsets,
        mean,
        pooled,
        stride,
        0,
        fault,
    ));
    m.calls.push(rows::bags_of_positions(size, bags as u32, offsets, of, fault));
    let (floats, reals) = (m.floats(source, n * cols), m.out(n * cols));
    m.calls.push(elementwise::real_from_float(floats, stride, reals, stride, 0, n as u64, stride));
    m.calls.push(elementwise::float_from_real(gathered.read(), stride, to, stride, 0, n as u64, stride));
}

fn summed(m: &mut Member, source: &mut Source, n: usize) {
    const COLS: u32 = 40;
    let (cols, groups) = (COLS as usize, 1 + n / 300);
    // Some groups have over 256 positions.
    let (positions, ends) = (m.order(source, n), m.ends(source, n, groups));
    let (x, sources, stride) = (m.reals(source, n * cols), m.ends(source, n, 3), u64::from(COLS));
    for what in 0..3 {
        let long = m.out(groups);
        m.loose.push(m.memory.len() - 1);
        let s = Segments { n: n as u32, groups: groups as u32, positions, ends, long, count: m.zeros(1) };
        let y = m.out::<f32>(groups * cols);
        let calls = match what {
            0 => {
                let of = Gradients { x, stride, bags: In::NULL, offsets: In::NULL, mean: false };
                segment_sum(&s, COLS, &of, y, stride, false)
            }
            1 => {
                let senders = Senders { ends: sources, count: 3, node: 2, round: n.is_multiple_of(2) };
                received_sum(&s, COLS, (x, stride), senders, y, stride)
            }
            _ => node_sum(&s, COLS, (x, stride), (sources, 3), Out::at(y.0), stride),
        };
        m.add(calls);
    }
}

fn updated(m: &mut Member, source: &mut Source, n: usize) {
    const COLS: u32 = 20;
    let (size, cols, fault, stride) = (n as u32, COLS as usize, m.fault, u64::from(COLS));
    let (list, grads) = (m.order(source, n), m.floats(source, n * cols));
    let tables: Vec<u64> = (0..6).map(|_| m.floats::<f32>(source, n * cols).0).collect();
    let states: Vec<u64> = (0..5).map(|_| m.zeros::<f32>(n * cols).0).collect();
    let (w, s) = (|i: usize| Out::at(tables[i]), |i: usize| Out::at(states[i]));
    let lr = source.unit() as f32;
    let kept = m.out(n * cols);
    m.add([
        optimizers::sgd_rows(size, COLS, lr, 0.1, list, grads, stride, w(0), size, stride, fault),
        optimizers::rowwise_adagrad_rows(
            size,
            COLS,
            lr,
            1e-3,
            0.0,
            list,
            grads,
            stride,
            w(1),
            size,
            stride,
            s(0),
            fault,
        ),
        optimizers::adagrad_rows(
            size,
            COLS,
            lr,
            1e-3,
            0.2,
            list,
            grads,
            stride,
            w(2),
            size,
            stride,
            s(1),
            fault,
        ),
        optimizers::adam_rows(
            size,
            COLS,
            lr,
            1e-3,
            0.1,
            0.1,
            0.01,
            list,
            grads,
            stride,
            w(3),
            size,
            stride,
            s(2),
            s(3),
            fault,
        ),
        optimizers::capture_rows(size, COLS, list, grads, stride, w(4), size, fault),
        optimizers::keep_rows(size, COLS, list, In::at(tables[5]), size, kept, fault),
    ]);
}

fn of_classes(m: &mut Member, source: &mut Source, n: usize) {
    let (size, fault, shard) = (n as u32, m.fault, 900u64);
    let (list, uses) = (m.numbers(source, n, shard as usize), m.bytes(source, 2 * n, 3));
    let set = m.bitmap(shard);
    m.add(set.of_rows(size, list, Out::NULL, Out::NULL, fault));
    let (bits, before) = (set.bits.read(), set.before.read());
    let (values, others) = (m.out(n), m.numbers(source, n, shard as usize));
    let (last, distance, class) = (m.out(n), m.zeros(n), m.out(n));
    let table = m.bytes(source, 3 * 4, 6);
    m.add([
        classes::values_begin(size, 1, values),
        classes::values_mark(size, list, shard, uses, 1, bits, before, values),
        classes::values_of(size, others, shard, bits, before, values.read(), last, fault),
        classes::distance_mark(
            size,
            others,
            shard,
            uses,
            2,
            1,
            3,
            1,
            bits,
            before,
            values.read(),
            distance,
            fault,
        ),
        classes::classes_of(size, uses, 2, distance.read(), 3, 3, table, class, fault),
    ]);
    let (keys, work) = (m.out(n), m.sorting(n));
    m.add([classes::class_keys(size, class.read(), 6, keys, fault)]);
    let (calls, sorted) = sort_by(size, 3, keys.read(), In::NULL, &work, 0);
    m.add(calls);
    let (of_classes, of_ranks, numbers) = (m.out(6), m.ends(source, n, 3), m.out(36));
    m.add([
        sort::bounds_of(6, size, sorted.keys, of_classes),
        classes::count_by_class(6, 3, sorted.values, of_classes.read(), of_ranks, numbers),
    ]);
    let (counts, ends) = (m.ids(source, 7, 100), m.out(7));
    m.add([classes::ends_of_counts(7, In::at(counts.0), ends)]);
    let (order, pairs) = (m.order(source, n), m.numbers(source, 2 * n, 5));
    let (flags, room) = (m.out(n), [m.out(n), m.out(n), m.out(n)]);
    m.add([
        classes::request_keys(size, order, pairs, uses, 2, keys),
        classes::join_flags(size, order, pairs, 1, 5, flags, fault),
        classes::join_requests(size, order, pairs, uses, 0, order, room[0], room[1], Out::at(room[2].0)),
    ]);
    let (entries, found) =
        (m.ids(source, n, 900), [m.out(2 * n), m.out(n), m.out(n), m.out(2 * n), m.out(n)]);
    m.add([
        classes::place_asked(
            size,
            order,
            entries,
            300,
            uses,
            Out::at(found[0].0),
            found[1],
            Out::at(found[2].0),
            fault,
        ),
        classes::pack_asked(size, entries, list, 300, 3, found[3]),
        classes::places_in_class(size, order, order, size, list, 0, found[4], Out::at(found[1].0)),
    ]);
}

/// Runs members one after the other, and others with the same numbers side by side, each step of all as one.
fn same(work: Work, precision: Precision, sizes: &[usize], seed: u64) {
    let device = Device::new(precision);
    device.emulation.set_seed(seed);
    let members = || -> Vec<Member> {
        let mut source = Source::new(seed);
        let member = |n: &usize| {
            let mut own =
                Member { memory: vec![], loose: vec![], calls: vec![], fault: device.fault(), precision };
            work(&mut own, &mut source, *n);
            own
        };
        sizes.iter().map(member).collect()
    };
    let (apart, together) = (members(), members());
    for call in apart.iter().flat_map(|own| &own.calls) {
        device.launch_as_it_is(call).unwrap();
    }
    for step in 0..together[0].calls.len() {
        let calls: Vec<Call> = together.iter().map(|own| own.calls[step].clone()).collect();
        assert!(calls.iter().all(|call| alike(&calls[0], call)), "{}", calls[0].kernel.name);
        device.launch_joined(&calls).unwrap();
    }
    for (n, (a, b)) in apart.iter().zip(&together).enumerate() {
        for (i, (mine, other)) in a.memory.iter().zip(&b.memory).enumerate() {
            let words = |memory: &Memory<u128>| {
                let mut words: Vec<u32> =
                    memory.iter().flat_map(|x| (0..4).map(move |n| (x >> (32 * n)) as u32)).collect();
                if a.loose.contains(&i) {
                    words.sort_unstable();
                }
                words
            };
            assert!(
                words(mine) == words(other),
                "member {n} of {sizes:?}, list {i}, seed {seed}, {precision}"
            );
        }
    }
}

#[test]
fn as_one_they_give_the_same_bits() {
    let all: [Work; 7] = [sorted, of_ids, moved, summed, updated, of_classes, of_hot_ids];
    for (kind, work) in (0..).zip(all) {
        // The others have no activations.
        let precisions = if [2, 3].contains(&kind) { &PRECISIONS[..] } else { &PRECISIONS[..1] };
        for precision in precisions {
            let mut source = Source::new(40 + kind);
            let mut groups: Vec<Vec<usize>> = vec![vec![700], vec![0, 500], vec![0; 3], vec![2100, 1, 0, 20]];
            for _ in 0..2 {
                groups.push((0..=source.below(5)).map(|_| source.below(900)).collect());
            }
            groups.push((0..MOST).map(|n| n * 7 % 50).collect());
            if kind == 3 {
                // All may have lists that are summed by blocks, also as many as are joined.
                groups.push(vec![600, 300, 257, 900]);
                groups.push((0..MOST).map(|n| 257 + n * 7 % 50).collect());
            }
            for (seed, sizes) in (0..).zip(&groups) {
                same(work, *precision, sizes, 100 * kind + seed);
            }
        }
    }
}

#[test]
fn what_is_not_alike_is_not_joined() {
    use fs_kernels::cuda::joined::Joined;
    let call = |cols| optimizers::keep_rows(9, cols, In::NULL, In::NULL, 9, Out::NULL, Out::NULL);
    assert!(Joined::of([]).is_none());
    assert_eq!(Joined::of([&call(8), &call(8)]).unwrap().shape.grid, [2, 1, 1]);
    // Columns say how many threads a row has.
    assert!(Joined::of([&call(8), &call(64)]).is_none());
    let all: Vec<Call> = (0..=MOST).map(|_| call(8)).collect();
    assert!(Joined::of(&all).is_none() && Joined::of(&all[1..]).is_some());
    let other = sort::check_below(9, In::NULL, 1, Out::NULL);
    assert!(!alike(&call(8), &other) && !alike(&call(8), &call(8).of(Precision::Bf16)));
    let alone = elementwise::fill(0.0, Out::NULL, 1, 1, 1);
    assert!(!alone.kernel.joins() && Joined::of([&alone]).is_none());
}
