//! Rows of 8 bits a number.

use fs_kernels::cuda::catalogue::mxint8 as kernels;
use fs_kernels::cuda::{In, sources::Precision};
use fs_kernels::{Mat, mxint8};

use super::common::{Grid, Source};
use super::device::{Device, Memory, POISON};
use super::rows::{SHAPES, rows_of};

/// A number of any size, or none.
fn number(source: &mut Source) -> f32 {
    let x = source.signed() as f32;
    match source.below(40) {
        0 => f32::from_bits(source.below(1 << 32) as u32),
        1 => 0.0,
        2 => -x * f32::from_bits((source.below(254) as u32 + 1) << 23),
        3 => 2.0,
        4 => 1.9999,
        _ => x,
    }
}

fn packed(rows: &[f32], cols: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let n = rows.len().checked_div(cols).unwrap_or(0);
    mxint8::write(Mat::new(rows, n, cols), &mut bytes);
    bytes
}

/// Lookups have the bytes of the CPU's, arrive as its numbers do, and pass a relay as they are.
#[test]
fn rows_travel_as_on_the_cpu() {
    let mut source = Source::new(71);
    let device = Device::new(Precision::F32);
    let more = [(5, 32, 0), (40, 33, 1), (9, 129, 3), (70, 256, 0), (3, 2, 2)];
    for (n, cols, gap) in SHAPES.into_iter().chain(more) {
        let (m, c) = (n as u32, cols as u32);
        let table_rows = 1 + source.below(300);
        let mut table = Grid::<f32>::zeros(table_rows, cols, gap);
        for row in table.data.chunks_exact_mut(cols + gap) {
            // Some blocks are of the least normal numbers, and of less.
            let tiny = source.below(4) == 0;
            let least = |x: f32| x * f32::from_bits(6 << 23) / if x > 0.5 { 1.0 } else { 64.0 };
            row[..cols].iter_mut().for_each(|x| {
                *x = if tiny { least(source.signed() as f32) } else { number(&mut source) };
            });
        }
        let entries = n + 5;
        let listed: Vec<u32> = (0..entries).map(|_| source.below(table_rows) as u32).collect();
        let at: Vec<u32> = (0..n).map(|_| source.below(entries) as u32).collect();
        let (values, list, places) = (Memory::of(&table.data), Memory::of(&listed), Memory::of(&at));
        for with_at in [false, true] {
            let row = |i: usize| listed[if with_at { at[i] as usize } else { i }] as usize;
            let rows: Vec<f32> = (0..n).flat_map(|i| table.view().row(row(i)).to_vec()).collect();
            let expected = packed(&rows, cols);
            let mut y = Memory::filled(expected.len(), 0xabu8);
            let at_memory = if with_at { places.read() } else { In::NULL };
            let stride = (cols + gap) as u64;
            device.run([kernels::gather_mxint8(
                m,
                c,
                values.read(),
                table_rows as u32,
                stride,
                list.read(),
                entries as u32,
                at_memory,
                y.write(),
                device.fault(),
            )]);
            assert_eq!(&*y, &*expected, "{n} x {cols}, {with_at}");
            let mut numbers: Vec<f32> = Vec::new();
            mxint8::read(&expected, cols, &mut numbers);
            // Places in a drawn order, some left free.
            let there = if with_at { 2 * n + 1 } else { n };
            let mut to: Vec<u32> = (0..there as u32).collect();
            (1..there).for_each(|i| to.swap(i, source.below(i + 1)));
            to.truncate(n);
            let to_memory = Memory::of(&to);
            for stride in [cols, cols + 1, cols + 4] {
                let mut out = Memory::filled(there * stride, POISON);
                let at = if with_at { to_memory.read() } else { In::NULL };
                device.run([kernels::merge_mxint8(
                    m,
                    c,
                    y.read(),
                    at,
                    out.write(),
                    there as u32,
                    stride as u64,
                    device.fault(),
                )]);
                let mut expected = vec![POISON; there * cols];
                for i in 0..n {
                    let place = if with_at { to[i] as usize } else { i };
                    expected[place * cols..][..cols].copy_from_slice(&numbers[i * cols..][..cols]);
                }
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(
                    bits(&rows_of(&out, there, cols, stride)),
                    bits(&expected),
                    "{n} x {cols}, {with_at}"
                );
            }
            let passed: Vec<u32> = (0..2 * n).map(|_| source.below(n) as u32).collect();
            let mut out = Memory::filled(2 * y.len(), 0xabu8);
            let list = Memory::of(&passed);
            device.run([kernels::pass_mxint8(
                2 * m,
                c,
                y.read(),
                m,
                list.read(),
                out.write(),
                device.fault(),
            )]);
            let width = mxint8::row_bytes(cols);
            let expected: Vec<u8> =
                passed.iter().flat_map(|i| y[*i as usize * width..][..width].to_vec()).collect();
            assert_eq!(&*out, &*expected, "{n} x {cols}");
        }
    }
}

#[test]
fn what_is_out_of_range_is_told_and_passed_over() {
    let device = Device::new(Precision::F32);
    let (table, listed) = (Memory::of(&[1.0f32; 6]), Memory::of(&[1u32, 3, 2]));
    let mut y = Memory::filled(9, 0xabu8);
    let fault = device.fault();
    let call = kernels::gather_mxint8(3, 2, table.read(), 3, 2, listed.read(), 3, In::NULL, y.write(), fault);
    assert_eq!(device.faults([call]), 2);
    assert_eq!(*y, [64, 64, 127, 0xab, 0xab, 0xab, 64, 64, 127]);
    // An entry that there is not.
    let (at, mut y) = (Memory::of(&[0u32, 3]), Memory::filled(6, 0xabu8));
    let call =
        kernels::gather_mxint8(2, 2, table.read(), 3, 2, listed.read(), 3, at.read(), y.write(), fault);
    assert_eq!(device.faults([call]), 2);
    assert_eq!(y[3..], [0xab; 3]);
    let (x, at) = (Memory::of(&[64u8, 64, 127, 32, 32, 127]), Memory::of(&[0u32, 2]));
    let mut out = Memory::filled(4, POISON);
    assert_eq!(
        device.faults([kernels::merge_mxint8(2, 2, x.read(), at.read(), out.write(), 2, 2, fault)]),
        2
    );
    assert_eq!(*out, [1.0, 1.0, POISON, POISON]);
    let mut y = Memory::filled(6, 0xabu8);
    assert_eq!(device.faults([kernels::pass_mxint8(2, 2, x.read(), 2, at.read(), y.write(), fault)]), 2);
    assert_eq!(*y, [64, 64, 127, 0xab, 0xab, 0xab]);
}
