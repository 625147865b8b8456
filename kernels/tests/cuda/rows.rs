//! Moving rows.

use fs_kernels::cuda::catalogue::{elementwise, rows};
use fs_kernels::cuda::{In, sources::Precision};
use fs_kernels::embedding;
use fs_kernels::partition;

use super::common::{Grid, Source};
use super::device::{Device, Memory, POISON, PRECISIONS};

/// Rows, columns, and the gap after each row.
pub(crate) const SHAPES: [(usize, usize, usize); 9] = [
    (0, 8, 0),
    (1, 1, 0),
    (1, 4, 0),
    (3, 37, 3),
    (33, 64, 0),
    (100, 128, 0),
    (257, 16, 4),
    (500, 20, 1),
    (70, 300, 0),
];

/// Numbers with gaps of a marker.
pub(crate) fn grid(source: &mut Source, device: &Device, rows: usize, cols: usize, gap: usize) -> Grid<f32> {
    let mut grid = Grid::<f32>::random(source, rows, cols, gap);
    grid.data.iter_mut().for_each(|x| *x = device.rounded(*x));
    grid
}

/// The rows of a matrix that a kernel wrote, whose gaps it left as they were.
#[track_caller]
pub(crate) fn rows_of(values: &[f32], rows: usize, cols: usize, stride: usize) -> Vec<f32> {
    let mut out = vec![];
    for row in 0..rows {
        let (row, gap) = values[row * stride..][..stride].split_at(cols);
        assert!(gap.iter().all(|x| *x == POISON), "a gap was written");
        out.extend_from_slice(row);
    }
    out
}

fn tight(grid: &Grid<f32>) -> Vec<f32> {
    let stride = grid.cols + grid.gap;
    (0..grid.rows).flat_map(|i| grid.data[i * stride..][..grid.cols].to_vec()).collect()
}

#[test]
fn lookups_of_all_and_of_listed_entries() {
    let mut source = Source::new(1);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, cols, gap) in SHAPES {
            let table_rows = 1 + source.below(300);
            let mut table = Grid::<f32>::random(&mut source, table_rows, cols, gap);
            let entries = n + 5;
            let listed: Vec<u32> = (0..entries).map(|_| source.below(table_rows) as u32).collect();
            let at: Vec<u32> = (0..n).map(|_| source.below(entries) as u32).collect();
            let (table_memory, listed_memory, at_memory) =
                (Memory::of(&table.data), Memory::of(&listed), Memory::of(&at));
            for with_at in [false, true] {
                let mut expect = Grid::<f32>::zeros(n, cols, 0);
                if with_at {
                    partition::gather_at(table.view(), &listed, &at, expect.view_mut());
                } else {
                    embedding::gather(table.view(), &listed[..n], expect.view_mut());
                }
                for (stride, add) in [(cols, false), (cols + 4, false), (cols + 1, true), (cols + 4, true)] {
                    let before = device.rounded(0.75);
                    let mut y = device.reals(&vec![POISON; n * stride]);
                    if add {
                        let mut old = vec![POISON; n * stride];
                        for row in old.chunks_exact_mut(stride) {
                            row[..cols].fill(before);
                        }
                        y = device.reals(&old);
                    }
                    device.run([rows::gather(
                        n as u32,
                        cols as u32,
                        table_memory.read(),
                        table_rows as u32,
                        (cols + gap) as u64,
                        listed_memory.read(),
                        entries as u32,
                        if with_at { at_memory.read() } else { In::NULL },
                        y.write(),
                        stride as u64,
                        u32::from(add),
                        device.fault(),
                    )]);
                    let expect: Vec<f32> = tight(&expect)
                        .into_iter()
                        .map(|x| device.rounded(if add { before + x } else { x }))
                        .collect();
                    assert_eq!(
                        rows_of(&y.values(), n, cols, stride),
                        expect,
                        "{n} x {cols}, {with_at} {add}"
                    );
                }
            }
            table.data.clear();
        }
    }
}

#[test]
fn a_row_out_of_range_is_told_and_passed_over() {
    let device = Device::new(Precision::F32);
    let (table, listed) = (Memory::of(&[1.0f32; 6]), Memory::of(&[1u32, 3, 2]));
    let mut y = device.reals(&[POISON; 6]);
    let fault = device.fault();
    let call = rows::gather(3, 2, table.read(), 3, 2, listed.read(), 3, In::NULL, y.write(), 2, 0, fault);
    assert_eq!(device.faults([call]), 2);
    assert_eq!(y.values(), [1.0, 1.0, POISON, POISON, 1.0, 1.0]);
}

#[test]
fn rows_that_arrive_take_their_places() {
    let mut source = Source::new(2);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, cols, gap) in SHAPES {
            let x = grid(&mut source, &device, n, cols, gap);
            // Places in a drawn order, some left free.
            let places = 2 * n + 1;
            let mut at: Vec<u32> = (0..places as u32).collect();
            for i in (1..places).rev() {
                at.swap(i, source.below(i + 1));
            }
            at.truncate(n);
            let mut expect = Grid::<f32>::zeros(places, cols, 0).with(|_, _| f64::from(POISON));
            partition::scatter(x.view(), &at, expect.view_mut());
            let (memory, at) = (device.reals(&x.data), Memory::of(&at));
            let mut y = device.poisoned_reals(places * cols);
            device.run([rows::scatter(
                n as u32,
                cols as u32,
                memory.read(),
                (cols + gap) as u64,
                at.read(),
                y.write(),
                places as u32,
                cols as u64,
                device.fault(),
            )]);
            assert_eq!(y.values(), tight(&expect), "{n} x {cols}");
        }
    }
}

/// A drawn choice of `n` of `places`, in a drawn order.
fn chosen(source: &mut Source, n: usize, places: usize) -> Vec<u32> {
    let mut at: Vec<u32> = (0..places as u32).collect();
    for i in (1..places).rev() {
        at.swap(i, source.below(i + 1));
    }
    at.truncate(n);
    at
}

#[test]
fn rows_widen_where_they_are_merged() {
    let mut source = Source::new(3);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, cols, gap) in SHAPES.into_iter().chain([(3000, 12, 8)]) {
            let x = grid(&mut source, &device, n, cols, gap);
            let places = 2 * n + 1;
            let at = chosen(&mut source, n, places);
            let (from, list) = (device.reals(&x.data), Memory::of(&at));
            for stride in [cols, cols + 4, cols + 1] {
                let mut expect = vec![POISON; places * cols];
                for (row, at) in tight(&x).chunks_exact(cols).zip(&at) {
                    expect[*at as usize * cols..][..cols].copy_from_slice(row);
                }
                let mut y = Memory::filled(places * stride, POISON);
                device.run([rows::merge(
                    n as u32,
                    cols as u32,
                    from.read(),
                    (cols + gap) as u64,
                    list.read(),
                    y.write(),
                    places as u32,
                    stride as u64,
                    device.fault(),
                )]);
                assert_eq!(
                    rows_of(&y, places, cols, stride),
                    expect,
                    "{precision:?}: {n} x {cols} of {stride}"
                );
            }
        }
    }
}

#[test]
fn gradients_are_rounded_where_they_are_split() {
    let mut source = Source::new(4);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (n, cols, gap) in SHAPES.into_iter().chain([(3000, 12, 8)]) {
            let entries = 2 * n + 1;
            let x = Grid::<f32>::random(&mut source, entries, cols, gap);
            let at = chosen(&mut source, n, entries);
            let (from, list, own) = (Memory::of(&x.data), Memory::of(&at), tight(&x));
            for stride in [cols, cols + 4, cols + 1] {
                let mut y = device.poisoned_reals(n * stride);
                device.run([rows::split(
                    n as u32,
                    cols as u32,
                    from.read(),
                    entries as u32,
                    (cols + gap) as u64,
                    list.read(),
                    y.write(),
                    stride as u64,
                    0,
                    device.fault(),
                )]);
                let row = |at: &u32| own[*at as usize * cols..][..cols].to_vec();
                let expect: Vec<f32> = at.iter().flat_map(row).map(|x| device.rounded(x)).collect();
                assert_eq!(
                    rows_of(&y.values(), n, cols, stride),
                    expect,
                    "{precision:?}: {n} x {cols} of {stride}"
                );
            }
        }
    }
}

/// Numbers, and what they are as brain floats: in the middle of two, beside it, at the ends.
const ROUNDED: [(u32, u16); 16] = [
    (0x3f80_8000, 0x3f80),
    (0x3f81_8000, 0x3f82),
    (0xbf80_8000, 0xbf80),
    (0xbf81_8000, 0xbf82),
    (0x3f80_8001, 0x3f81),
    (0x3f81_7fff, 0x3f81),
    (0x3f7f_8000, 0x3f80),
    (0x0000_0000, 0x0000),
    (0x8000_0000, 0x8000),
    (0x0000_8001, 0x0001),
    (0x7f7f_7fff, 0x7f7f),
    (0x7f7f_8000, 0x7f80),
    (0xff80_0000, 0xff80),
    (0x7fc0_0000, 0x7fff),
    (0x7f80_0001, 0x7fff),
    (0xffff_ffff, 0x7fff),
];

#[test]
fn what_is_rounded_goes_to_the_even_one_and_none_stays_none() {
    let device = Device::new(Precision::Bf16);
    let values = ROUNDED.map(|(x, _)| f32::from_bits(x));
    // In packs, and one by one.
    for cols in [16usize, 13] {
        let n = 3;
        let (c, stride) = (cols as u32, cols as u64);
        let data: Vec<f32> = (0..n).flat_map(|_| values[16 - cols..].to_vec()).collect();
        let expect: Vec<u16> = (0..n).flat_map(|_| ROUNDED[16 - cols..].iter().map(|(_, y)| *y)).collect();
        let (x, at, fault) = (Memory::of(&data), Memory::of(&[0u32, 1, 2]), device.fault());
        let mut results = [device.poisoned_reals(48), device.poisoned_reals(48), device.poisoned_reals(48)];
        let [a, b, d] = results.each_mut().map(super::device::Reals::write);
        device.run([
            rows::gather(3, c, x.read(), 3, stride, at.read(), 3, In::NULL, a, stride, 0, fault),
            rows::split(3, c, x.read(), 3, stride, at.read(), b, stride, 0, fault),
            elementwise::real_from_float(x.read(), stride, d, stride, 0, n as u64, stride),
        ]);
        for (result, what) in results.iter().zip(["gather", "split", "real_from_float"]) {
            let bits: Vec<u16> = result.values().iter().map(|x| (x.to_bits() >> 16) as u16).collect();
            assert_eq!(bits[..n * cols], expect, "{what} of {cols} columns");
            // And back as they are.
            let mut wide = [Memory::filled(n * cols, POISON), Memory::filled(n * cols, POISON)];
            let [a, b] = wide.each_mut().map(Memory::write);
            device.run([
                rows::merge(3, c, result.read(), stride, at.read(), a, 3, stride, fault),
                elementwise::float_from_real(result.read(), stride, b, stride, 0, n as u64, stride),
            ]);
            for wide in &wide {
                let bits: Vec<u32> = wide.iter().map(|x| x.to_bits()).collect();
                let expect: Vec<u32> = expect.iter().map(|x| u32::from(*x) << 16).collect();
                assert_eq!(bits, expect, "{what} of {cols} columns, widened");
            }
        }
    }
}

#[test]
fn a_place_out_of_range_is_told_and_passed_over() {
    let device = Device::new(Precision::Bf16);
    let (x, at, fault) = (device.reals(&[1.0, 2.0, 3.0]), Memory::of(&[1u32, 4, 0]), device.fault());
    let mut y = Memory::filled(3, POISON);
    assert_eq!(device.faults([rows::merge(3, 1, x.read(), 1, at.read(), y.write(), 3, 1, fault)]), 2);
    assert_eq!(y[..], [3.0, 1.0, POISON]);
    let (x, mut y) = (Memory::of(&[1.0f32, 2.0]), device.poisoned_reals(3));
    assert_eq!(device.faults([rows::split(3, 1, x.read(), 2, 1, at.read(), y.write(), 1, 0, fault)]), 2);
    assert_eq!(y.values(), [2.0, POISON, 1.0]);
}
