//! Samples on their way between lists, and single numbers.

use fs_kernels::cuda::catalogue::{carry, ids, rows, sort};
use fs_kernels::cuda::lists::{scan, scan_room};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{In, Out};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};

const STALE: u32 = 0xabab_abab;

fn words(offsets: &[usize]) -> Memory<u32> {
    Memory::of(&offsets.iter().map(|o| *o as u32).collect::<Vec<_>>())
}

/// A drawn order of numbers below n, of which some are left out.
fn some_of(source: &mut Source, n: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..n as u32).collect();
    for i in (1..n).rev() {
        all.swap(i, source.below(i + 1));
    }
    all.truncate(n - n / 4);
    all
}

/// The numbers of the rows that samples have, in their order.
fn rows_of_samples(
    device: &Device,
    samples: &[u32],
    offsets: Option<&Memory<u32>>,
    count: usize,
) -> (Memory<u32>, Memory<u32>) {
    let (moves, fault) = (samples.len() as u32, device.fault());
    let (list, mut lengths) = (Memory::of(samples), Memory::filled(samples.len(), STALE));
    let (mut tiles, mut total) = (Memory::filled(scan_room(moves), STALE), Memory::filled(1, STALE));
    let o = offsets.map_or(In::NULL, Memory::read);
    device.run([carry::lengths_of_moves(moves, list.read(), count as u32, o, lengths.write(), fault)]);
    let starts = lengths.write();
    device.run(scan(moves, lengths.read(), starts, tiles.write(), total.write()));
    let mut found = Memory::filled(total[0] as usize, STALE);
    let n = total[0];
    device.run([carry::rows_of_moves(
        n,
        moves,
        lengths.read(),
        list.read(),
        count as u32,
        o,
        found.write(),
        fault,
    )]);
    (found, lengths)
}

#[test]
fn samples_go_there_and_come_back() {
    let mut source = Source::new(31);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let fault = device.fault();
        for (samples, longest, cols, jagged) in
            [(0, 3, 4, true), (1, 0, 4, true), (5, 9, 7, true), (90, 40, 16, true), (300, 1, 20, false)]
        {
            let offsets = if jagged { source.offsets(samples, longest) } else { (0..=samples).collect() };
            let n = offsets[samples];
            let values: Vec<f32> = (0..n * cols).map(|_| device.rounded(source.signed() as f32)).collect();
            let (x, ends) = (device.reals(&values), words(&offsets));
            let moved = some_of(&mut source, samples);
            let of = jagged.then_some(&ends);
            let (list, starts) = rows_of_samples(&device, &moved, of, samples);
            let expect: Vec<u32> = moved
                .iter()
                .flat_map(|s| offsets[*s as usize] as u32..offsets[*s as usize + 1] as u32)
                .collect();
            assert_eq!(&list[..], expect);
            let lengths: Vec<usize> =
                moved.iter().map(|s| offsets[*s as usize + 1] - offsets[*s as usize]).collect();
            assert!(
                starts.iter().enumerate().all(|(k, s)| *s as usize == lengths[..k].iter().sum::<usize>())
            );
            // Out of the list, and back to where they were.
            let (m, c, stride) = (list.len() as u32, cols as u32, cols as u64);
            let mut sent = device.poisoned_reals(list.len() * cols);
            let mut back = device.poisoned_reals(n * cols);
            device.run([
                rows::expand(m, c, x.read(), n as u32, stride, list.read(), sent.write(), stride, 0, fault),
                rows::scatter(m, c, sent.read(), stride, list.read(), back.write(), n as u32, stride, fault),
            ]);
            let sent_values = sent.values();
            for (row, at) in sent_values.chunks_exact(cols).zip(&expect) {
                assert_eq!(row, &values[*at as usize * cols..][..cols]);
            }
            for (row, (found, value)) in
                back.values().chunks_exact(cols).zip(values.chunks_exact(cols)).enumerate()
            {
                let stays = expect.contains(&(row as u32));
                assert!(found.iter().zip(value).all(|(x, y)| *x == if stays { *y } else { POISON }));
            }
        }
    }
}

#[test]
fn samples_that_there_are_not_are_told() {
    let device = Device::new(Precision::F32);
    let (list, ends, fault) = (Memory::of(&[0u32, 3]), words(&[0, 2, 2, 5]), device.fault());
    let mut lengths = Memory::filled(2, STALE);
    let told =
        device.faults([carry::lengths_of_moves(2, list.read(), 3, ends.read(), lengths.write(), fault)]);
    assert_eq!((told, &lengths[..]), (2, &[2, 0][..]));
    // More rows than the samples have.
    let (list, starts, mut rows) = (Memory::of(&[0u32, 2]), Memory::of(&[0u32, 2]), Memory::filled(6, STALE));
    let out = rows.write();
    let told =
        device.faults([carry::rows_of_moves(6, 2, starts.read(), list.read(), 3, ends.read(), out, fault)]);
    assert_eq!((told, &rows[..]), (8, &[0, 1, 2, 3, 4, STALE][..]));
}

#[test]
fn jagged_parts_become_one() {
    let (mut source, device) = (Source::new(32), Device::new(Precision::F32));
    let fault = device.fault();
    for samples in [0, 1, 40, 300] {
        let parts: Vec<Vec<usize>> = (0..3).map(|_| source.offsets(samples, 7)).collect();
        let length = |part: &[usize], s: usize| part[s + 1] - part[s];
        let mut offsets = vec![0];
        for s in 0..samples {
            offsets.push(offsets[s] + parts.iter().map(|p| length(p, s)).sum::<usize>());
        }
        let mut joined = vec![(9, STALE); offsets[samples]];
        let mut expect = vec![];
        for s in 0..samples {
            for (p, part) in (0..).zip(&parts) {
                expect.extend((part[s]..part[s + 1]).map(|row| (p, row as u32)));
            }
        }
        for (p, part) in parts.iter().enumerate() {
            let before: Vec<usize> =
                (0..samples).map(|s| parts[..p].iter().map(|q| length(q, s)).sum()).collect();
            let (n, mut found) = (part[samples], Memory::filled(part[samples], STALE));
            let (own, all, before) = (words(part), words(&offsets), words(&before));
            let count = samples as u32;
            device.run([carry::rows_of_joined(
                n as u32,
                count,
                own.read(),
                all.read(),
                before.read(),
                found.write(),
                fault,
            )]);
            for (row, to) in (0..).zip(found.iter()) {
                joined[*to as usize] = (p, row);
            }
        }
        assert_eq!(joined, expect);
    }
}

#[test]
fn single_numbers_and_rows_of_gradients() {
    let (mut source, device) = (Source::new(33), Device::new(Precision::F32));
    let fault = device.fault();
    for n in [0, 1, 33, 700] {
        let (cols, m) = (12, n + 3);
        let at = some_of(&mut source, m);
        let at = Memory::of(&at[..n.min(at.len())]);
        let k = at.len();
        let numbers: Vec<u32> = (0..m).map(|_| source.below(1 << 30) as u32).collect();
        let ids: Vec<i64> = numbers.iter().map(|x| i64::from(*x) << 20).collect();
        let bytes: Vec<u8> = numbers.iter().map(|x| *x as u8).collect();
        let floats: Vec<f32> = (0..m * cols).map(|_| source.signed() as f32).collect();
        let (a, b, c, x) = (Memory::of(&numbers), Memory::of(&ids), Memory::of(&bytes), Memory::of(&floats));
        let (mut u, mut v, mut w) =
            (Memory::filled(k, STALE), Memory::filled(k, -7i64), Memory::filled(k, 0xab_u8));
        let mut taken = Memory::filled(k * cols, POISON);
        let mut put = Memory::filled(m * cols, POISON);
        let (count, limit, stride) = (k as u32, m as u32, cols as u64);
        let out: Out<f32> = taken.write();
        device.run([
            sort::take_words(count, a.read(), limit, at.read(), u.write(), fault),
            sort::take_ids(count, b.read(), limit, at.read(), v.write(), fault),
            sort::take_bytes(count, c.read(), limit, at.read(), w.write(), fault),
            rows::split(
                count,
                cols as u32,
                x.read(),
                limit,
                stride,
                at.read(),
                Out::at(out.0),
                stride,
                0,
                fault,
            ),
            rows::scatter_floats(
                count,
                cols as u32,
                out.read(),
                stride,
                at.read(),
                put.write(),
                limit,
                stride,
                fault,
            ),
        ]);
        for (i, from) in at.iter().enumerate() {
            let from = *from as usize;
            assert_eq!((u[i], v[i], w[i]), (numbers[from], ids[from], bytes[from]));
            let row = &floats[from * cols..][..cols];
            assert_eq!((&taken[i * cols..][..cols], &put[from * cols..][..cols]), (row, row));
        }
        assert_eq!(put.iter().filter(|x| **x == POISON).count(), (m - k) * cols);
        // Of each position its sample's number.
        let samples = n.min(50);
        let offsets = source.offsets(samples, 5);
        let keys: Vec<u64> = (0..samples).map(|s| ((7 * s) % samples.max(1)) as u64).collect();
        let of_sample: Vec<u32> = (0..2 * samples).map(|_| source.below(100) as u32).collect();
        let positions = offsets[samples] * 3;
        let (o, k, f, mut out) =
            (words(&offsets), Memory::of(&keys), Memory::of(&of_sample), Memory::filled(positions, STALE));
        let s = samples as u32;
        device.run([ids::spread_over_positions(
            positions as u32,
            s,
            o.read(),
            3,
            k.read(),
            s,
            f.read(),
            2,
            out.write(),
            fault,
        )]);
        for s in 0..samples {
            assert!(
                out[3 * offsets[s]..3 * offsets[s + 1]].iter().all(|x| *x == of_sample[2 * keys[s] as usize])
            );
        }
    }
}
