//! Losses and their gradients.

use fs_kernels::cuda::Out;
use fs_kernels::cuda::catalogue::loss as cuda;
use fs_kernels::loss::{bce_with_logits, sampled_softmax, sampled_softmax_grad};
use fs_kernels::{MatMut, Write};

use super::common::Source;
use super::device::{Device, Memory, POISON, PRECISIONS};
use super::matrix::{LAYOUTS, Matrix, assert_floats, assert_near, made, made_and_added, mat, random};

#[track_caller]
fn assert_loss(loss: &Memory<f32>, total: &Memory<f64>, expect: f64) {
    assert!((total[0] - expect).abs() <= 1e-5 * expect.abs(), "a loss of {}, not {expect}", total[0]);
    assert_eq!(loss[0].to_bits(), (total[0] as f32).to_bits());
}

#[test]
fn cross_entropy_of_labels() {
    let mut source = Source::new(41);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for n in [0, 1, 5, 255, 1001] {
            for layout in LAYOUTS {
                let mut logits: Vec<f32> =
                    random(&mut source, &device, n).iter().map(|x| device.rounded(x * 20.0)).collect();
                if n > 3 {
                    logits[..3].copy_from_slice(&[0.0, 120.0, -120.0]);
                }
                let labels: Vec<f32> = (0..n).map(|_| source.below(2) as f32).collect();
                let labels_in = Memory::of(&labels);
                let x = Matrix::of(&device, n, 1, layout, &logits);
                for (wanted, add) in [(true, false), (true, true), (false, false)] {
                    let old = random(&mut source, &device, n);
                    let old = add.then_some(&old[..]);
                    let mut g = Matrix::target(&device, n, 1, LAYOUTS[1], old);
                    let (mut terms, mut loss) = (Memory::filled(n, f64::NAN), Memory::filled(1, POISON));
                    let mut total = Memory::filled(1, f64::NAN);
                    let norm = 1.0 / 37.0;
                    let target = if wanted { g.write() } else { Out::NULL };
                    device.run([
                        cuda::bce_with_logits(
                            x.read(),
                            x.stride(),
                            labels_in.read(),
                            norm,
                            terms.write(),
                            target,
                            g.stride(),
                            u32::from(add),
                            n as u64,
                        ),
                        cuda::sum_terms(terms.read(), norm, loss.write(), total.write(), n as u64),
                    ]);
                    let mut value = 0.0;
                    let expect = made_and_added(n, 1, old, |g| {
                        value = bce_with_logits(mat(&logits, n, 1), &labels, norm, Some(g));
                    });
                    assert_loss(&loss, &total, value);
                    if wanted {
                        assert_near(&device, "glogits", &g.values(), &expect);
                    } else {
                        assert!(g.values().iter().all(|x| *x == POISON));
                    }
                }
            }
        }
    }
}

/// Where each row stands among targets followed by negatives.
fn lists(rows: usize, targets: &[u32], negatives: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let mut found = vec![vec![]; rows];
    for (i, row) in (0..).zip(targets.iter().chain(negatives)) {
        found[*row as usize].push(i);
    }
    let mut starts = vec![0];
    for list in &found {
        starts.push(starts[starts.len() - 1] + list.len() as u32);
    }
    (starts, found.concat())
}

#[test]
fn sampled_softmax_and_its_gradients() {
    let mut source = Source::new(42);
    for precision in PRECISIONS {
        let device = Device::new(precision);
        for (tokens, rows, count, cols) in
            [(0, 3, 2, 4), (1, 1, 1, 1), (5, 4, 3, 37), (33, 50, 7, 64), (10, 20, 100, 24), (3, 6, 0, 8)]
        {
            for (i, layout) in LAYOUTS.into_iter().enumerate() {
                let other = LAYOUTS[(i + 1) % LAYOUTS.len()];
                let h = random(&mut source, &device, tokens * cols);
                let table = random(&mut source, &device, rows * cols);
                let below = |source: &mut Source| source.below(rows) as u32;
                let targets: Vec<u32> = (0..tokens).map(|_| below(&mut source)).collect();
                let mut drawn: Vec<u32> = (0..tokens * count).map(|_| below(&mut source)).collect();
                if tokens > 1 && count > 0 {
                    drawn[0] = targets[0];
                }
                let (h_in, table_in) = (
                    Matrix::of(&device, tokens, cols, layout, &h),
                    Matrix::of(&device, rows, cols, other, &table),
                );
                let (targets_in, drawn_in) = (Memory::of(&targets), Memory::of(&drawn));
                let (temperature, norm) = (0.07, 1.0 / 61.0);
                let logits = tokens * (count + 1);
                let mut gscores = Memory::filled(logits, POISON);
                let mut terms = Memory::filled(tokens, f64::NAN);
                let (mut loss, mut total) = (Memory::filled(1, POISON), Memory::filled(1, f64::NAN));
                let (m, n) = (tokens as u64, cols as u64);
                device.run([
                    cuda::sampled_softmax(
                        h_in.read(),
                        h_in.stride(),
                        table_in.read(),
                        table_in.stride(),
                        rows as u64,
                        targets_in.read(),
                        drawn_in.read(),
                        count as u32,
                        (1.0 / temperature) as f32,
                        norm / temperature,
                        terms.write(),
                        gscores.write(),
                        m,
                        n,
                        device.fault(),
                    ),
                    cuda::sum_terms(terms.read(), norm, loss.write(), total.write(), m),
                ]);
                let mut cpu_scores = vec![0.0; logits];
                let (h_mat, table_mat) = (mat(&h, tokens, cols), mat(&table, rows, cols));
                let value = sampled_softmax(
                    h_mat,
                    table_mat,
                    &targets,
                    &drawn,
                    count,
                    temperature,
                    norm,
                    &mut cpu_scores,
                );
                assert_loss(&loss, &total, value);
                assert_floats("gscores", &gscores, &cpu_scores, 1e-5);
                let excluded = drawn.iter().enumerate().filter(|(i, d)| **d == targets[i / count]);
                for (i, _) in excluded {
                    assert_eq!(gscores[i / count * (count + 1) + 1 + i % count], 0.0);
                }

                let (starts, listed) = lists(rows, &targets, &drawn);
                let (starts_in, listed_in) = (Memory::of(&starts), Memory::of(&listed));
                let scores_in = Memory::of(&cpu_scores);
                for add in [false, true] {
                    let old = random(&mut source, &device, tokens * cols);
                    let old_rows: Vec<f32> = (0..rows * cols).map(|_| source.signed() as f32).collect();
                    let old = add.then_some(&old[..]);
                    let mut gh = Matrix::target(&device, tokens, cols, other, old);
                    let mut grows =
                        if add { Memory::of(&old_rows) } else { Memory::filled(rows * cols, POISON) };
                    device.run([
                        cuda::sampled_softmax_grad(
                            table_in.read(),
                            table_in.stride(),
                            rows as u64,
                            targets_in.read(),
                            drawn_in.read(),
                            count as u32,
                            scores_in.read(),
                            gh.write(),
                            gh.stride(),
                            u32::from(add),
                            m,
                            n,
                            device.fault(),
                        ),
                        cuda::sampled_softmax_grad_rows(
                            h_in.read(),
                            h_in.stride(),
                            starts_in.read(),
                            listed_in.read(),
                            count as u32,
                            scores_in.read(),
                            grows.write(),
                            n,
                            u32::from(add),
                            m,
                            rows as u64,
                            n,
                        ),
                    ]);
                    let mode = if add { Write::Add } else { Write::Set };
                    let mut cpu_rows = old_rows;
                    let expect = made(tokens, cols, old, |gh| {
                        let (targets, drawn, scores) = (&targets[..], &drawn[..], &cpu_scores[..]);
                        let grows = MatMut::new(&mut cpu_rows, rows, cols);
                        sampled_softmax_grad(
                            h_mat, table_mat, targets, drawn, count, scores, gh, mode, grows, mode,
                        );
                    });
                    assert_near(&device, "gh", &gh.values(), &expect);
                    let same = grows.iter().zip(&cpu_rows).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "the rows' gradients, in every bit");
                }
            }
        }
    }
}

#[test]
fn rows_that_there_are_not_are_faults() {
    for precision in PRECISIONS {
        let device = Device::new(precision);
        let (h, table) = (device.reals(&[1.0; 4]), device.reals(&[1.0; 8]));
        for (target, negative) in [(2u32, 0u32), (0, 2), (u32::MAX, 1)] {
            let (targets, drawn) = (Memory::of(&[target]), Memory::of(&[negative]));
            let (mut terms, mut scores) = (Memory::filled(1, 0.0f64), Memory::filled(2, POISON));
            let faults = device.faults([cuda::sampled_softmax(
                h.read(),
                4,
                table.read(),
                4,
                2,
                targets.read(),
                drawn.read(),
                1,
                1.0,
                1.0,
                terms.write(),
                scores.write(),
                1,
                4,
                device.fault(),
            )]);
            assert_ne!(faults, 0);
            let mut gh = device.poisoned_reals(4);
            let faults = device.faults([cuda::sampled_softmax_grad(
                table.read(),
                4,
                2,
                targets.read(),
                drawn.read(),
                1,
                scores.read(),
                gh.write(),
                4,
                0,
                1,
                4,
                device.fault(),
            )]);
            assert_ne!(faults, 0);
        }
    }
}
