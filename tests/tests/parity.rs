//! Training runs of PyTorch (TorchRec) are met step by step: `tests/fixtures`, models in `tests/models`.

use std::fs;

use fs_compiler::{Strategy, compile};
use fs_executor::{Options, Session};
use fs_tests::root;
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

fn parity(name: &str, ranks: usize) {
    for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
        parity_under(strategy, name, ranks);
    }
}

fn parity_under(strategy: Strategy, name: &str, ranks: usize) {
    let fixture = root(&format!("tests/fixtures/{name}.safetensors"));
    let bytes = fs::read(&fixture).expect("the fixture is there");
    let tensors = SafeTensors::deserialize(&bytes).expect("the fixture is whole");
    let model = root(&format!("tests/models/parity_{name}.fs"));
    let program = fs_dsl::load(&model).program.expect("the model checks");
    let schedule = compile(&program, strategy, ranks as u32).unwrap_or_else(|e| panic!("{e}")).schedule;
    let options = Options::default().ranks(ranks).init(fixture.clone());
    let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));

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

    let losses = floats(&tensors, "losses");
    assert_eq!(losses.len(), report.loss_per_rank.len() * ranks);
    for (step, per_rank) in report.loss_per_rank.iter().enumerate() {
        for (rank, loss) in per_rank.iter().enumerate() {
            let expected = losses[step * ranks + rank];
            let error = (loss - expected).abs() / expected.abs();
            assert!(
                error < 1e-4,
                "{strategy:?}, step {step}, rank {rank}: loss {loss}, PyTorch {expected}, off by {error:e}"
            );
        }
    }
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
}

#[test]
fn one_rank_one_table_sgd() {
    parity("w1_t1_sgd", 1);
}

#[test]
fn two_ranks_one_table_adagrad() {
    parity("w2_t1_adagrad", 2);
}

#[test]
fn two_ranks_two_tables_sgd() {
    parity("w2_t2_sgd", 2);
}

#[test]
fn three_ranks_two_tables_adagrad() {
    parity("w3_t2_adagrad", 3);
}
