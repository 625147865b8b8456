//! Training runs of PyTorch (TorchRec) are met step by step: `tests/fixtures`, models in `tests/models`. So they are where
//! samples go to other ranks than those that read them, on other numbers of ranks too: placement is no part of the loss. And so
//! they are on a GPU, which is emulated here.

use std::fs;

use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::{Options, Session};
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_tests::{emulated, root};
use safetensors::{Dtype, SafeTensors};

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let t = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    match t.dtype() {
        Dtype::F32 => {
            t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
        }
        Dtype::F64 => t
            .data()
            .chunks_exact(8)
            .map(|b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
        other => panic!("{name} is {other:?}"),
    }
}

/// On as many ranks as PyTorch had, where each has the loss that it had there; then by plan.
fn parity(name: &str, ranks: usize, others: &[usize]) {
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
        at_home(&trained::<Cpu<f32>>(strategy, name, (ranks, 1), (false, None), &()), ranks, strategy);
        let places = At::ALL.map(Some).into_iter().chain([None]);
        let ways = places.flat_map(|at| others.iter().flat_map(move |n| [(*n, 1, at), (*n, 2, at)]));
        for (others, microbatches, at) in ways {
            let balanced = trained::<Cpu<f32>>(strategy, name, (others, microbatches), (true, at), &());
            assert!(balanced.moved > 0.0, "{name} on {others} ranks: nothing moved");
            for (step, per_rank) in balanced.losses.iter().enumerate() {
                let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
                let expected = mean(&balanced.expected[step * ranks..(step + 1) * ranks]);
                let name = format!(
                    "{strategy:?}, balanced on {others} ranks at {at:?}, {microbatches} microbatches, step {step}"
                );
                close(mean(per_rank), expected, &name);
            }
        }
    }
}

/// Each rank has the loss that it had there.
fn at_home(home: &Trained, ranks: usize, strategy: Strategy) {
    assert_eq!(home.losses.len() * ranks, home.expected.len());
    for (step, per_rank) in home.losses.iter().enumerate() {
        for (rank, loss) in per_rank.iter().enumerate() {
            let what = format!("{strategy:?}, step {step}, rank {rank}");
            close(*loss, home.expected[step * ranks + rank], &what);
        }
    }
}

/// The same on a GPU.
fn on_a_gpu(name: &str, ranks: usize, strategies: &[Strategy]) {
    let Some(kernels) = emulated::kernels(env!("CARGO_TARGET_TMPDIR")) else { return };
    let all = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec];
    let some = if emulated::thorough() { &all[..] } else { strategies };
    for (seed, strategy) in (0..).zip(some) {
        let device = emulated::device(&kernels, seed);
        let home = trained::<Cuda<Emulated>>(*strategy, name, (ranks, 1), (false, None), &device);
        at_home(&home, ranks, *strategy);
    }
}

fn close(loss: f64, expected: f64, what: &str) {
    let error = (loss - expected).abs() / expected.abs();
    assert!(error < 1e-4, "{what}: loss {loss}, PyTorch {expected}, off by {error:e}");
}

/// What came of a run whose end is where PyTorch's was.
struct Trained {
    /// By step and rank.
    losses: Vec<Vec<f64>>,
    /// PyTorch's, step by step those of all of its ranks.
    expected: Vec<f64>,
    /// Samples of a batch that moved, in the mean.
    moved: f64,
}

/// Where samples move, they do there or where the compiler chooses.
fn trained<D: Device<Real = f32>>(
    strategy: Strategy,
    name: &str,
    (ranks, microbatches): (usize, u32),
    (balance, at): (bool, Option<At>),
    device: &D::Options,
) -> Trained {
    let fixture = root(&format!("tests/fixtures/{name}.safetensors"));
    let bytes = fs::read(&fixture).expect("the fixture is there");
    let tensors = SafeTensors::deserialize(&bytes).expect("the fixture is whole");
    let model = root(&format!("tests/models/parity_{name}.fs"));
    let program = fs_dsl::load(&model).program.expect("the model checks");
    let options = CompileOptions::new(strategy, ranks as u32).microbatches(microbatches);
    let options = options.balance(balance).balance_at(at);
    let schedule = compile_with(&program, &options).unwrap_or_else(|e| panic!("{e}")).schedule;
    assert!(At::of(&schedule).is_some() == balance && (at.is_none() || At::of(&schedule) == at));
    let options = Options::default().ranks(ranks).init(fixture.clone());
    let session = Session::<f32, D>::with_device(schedule, options, device);
    let mut session = session.unwrap_or_else(|e| panic!("{e}"));

    // Training must start where PyTorch's did.
    let parameters = session.schedule().parameters.clone();
    for (i, p) in parameters.iter().enumerate() {
        let start: Vec<f64> = session.parameter(i).iter().map(|x| f64::from(*x)).collect();
        assert_eq!(
            start,
            floats(&tensors, &format!("init.{}", p.name)),
            "{} starts from the fixture",
            p.name
        );
    }
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));

    let close = |have: Vec<f32>, want: Vec<f64>, what: &str| {
        assert_eq!(have.len(), want.len(), "{what}");
        for (i, (h, w)) in have.iter().zip(&want).enumerate() {
            assert!((f64::from(*h) - w).abs() < 1e-3, "{what}[{i}] is {h}, PyTorch {w}");
        }
    };
    for (i, p) in parameters.iter().enumerate() {
        close(session.parameter(i), floats(&tensors, &format!("final.{}", p.name)), &p.name);
    }
    for (i, t) in session.schedule().tables.clone().iter().enumerate() {
        close(session.table(i).unwrap(), floats(&tensors, &format!("table.{}", t.name)), &t.name);
    }
    Trained {
        losses: report.loss_per_rank,
        expected: floats(&tensors, "losses"),
        moved: report.balance.map_or(0.0, |b| b.moved_samples),
    }
}

#[test]
fn one_rank_one_table_sgd() {
    parity("w1_t1_sgd", 1, &[2]);
}

#[test]
fn two_ranks_one_table_adagrad() {
    parity("w2_t1_adagrad", 2, &[2, 4]);
}

#[test]
fn two_ranks_two_tables_sgd() {
    parity("w2_t2_sgd", 2, &[2, 4]);
}

#[test]
fn three_ranks_two_tables_adagrad() {
    parity("w3_t2_adagrad", 3, &[2, 3, 4]);
}

#[test]
fn one_table_on_a_gpu() {
    on_a_gpu("w1_t1_sgd", 1, &[Strategy::Prefetch]);
    on_a_gpu("w2_t1_adagrad", 2, &[Strategy::Pec]);
}

#[test]
fn two_tables_on_a_gpu() {
    on_a_gpu("w2_t2_sgd", 2, &[Strategy::Serial]);
    on_a_gpu("w3_t2_adagrad", 3, &[Strategy::Pec]);
}
