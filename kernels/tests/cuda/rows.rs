//! Moving rows.

use fs_kernels::cuda::catalogue::rows;
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
