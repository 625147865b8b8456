//! Rules about what a schedule declares.

use std::collections::BTreeSet;

use super::Report;
use crate::model::{DenseOptimizer, Duration, FORMAT, Init, InputKind, Schedule, SparseOptimizer, VERSION};

/// Rows of a table beyond which 64-bit offsets of its elements might overflow.
const MOST_ROWS: u64 = 1 << 48;
/// Columns, lengths, batch sizes and ranks beyond which products might overflow.
const MOST: u32 = 1 << 24;

pub(super) fn check(s: &Schedule, r: &mut Report) {
    r.check(s.format == FORMAT && s.version == VERSION, "version", || {
        format!("format is `{}` version {}, expected `{FORMAT}` version {VERSION}", s.format, s.version)
    });
    settings(s, r);
    tables(s, r);
    inputs(s, r);
    for (i, e) in s.exchanges.iter().enumerate() {
        r.check((e.table as usize) < s.tables.len(), "tables", || {
            format!("exchange {i} is of table {}, there are {}", e.table, s.tables.len())
        });
    }
}

fn settings(s: &Schedule, r: &mut Report) {
    let in_range = |n: u32| (1..=MOST).contains(&n);
    r.check(in_range(s.ranks), "settings", || format!("ranks is {}, must be in 1..={MOST}", s.ranks));
    let batch = s.settings.batch;
    r.check(in_range(batch), "settings", || format!("batch is {batch}, must be in 1..={MOST}"));
    let endless = matches!(s.settings.duration, Duration::Steps(0) | Duration::Epochs(0));
    r.check(!endless, "settings", || "the duration is zero".into());
    let numbers: Vec<(&str, f64, bool)> = match s.settings.optimizer {
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
            vec![
                ("lr", lr, lr >= 0.0),
                ("momentum", momentum, momentum >= 0.0),
                ("weight_decay", weight_decay, weight_decay >= 0.0),
            ]
        }
        DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay } => vec![
            ("lr", lr, lr >= 0.0),
            ("beta1", beta1, (0.0..1.0).contains(&beta1)),
            ("beta2", beta2, (0.0..1.0).contains(&beta2)),
            ("eps", eps, eps >= 0.0),
            ("weight_decay", weight_decay, weight_decay >= 0.0),
        ],
    };
    for (name, value, ok) in numbers {
        r.check(ok && value.is_finite(), "settings", || format!("the dense optimizer's {name} is {value}"));
    }
}

fn sparse_numbers(o: SparseOptimizer) -> Vec<(&'static str, f64, bool)> {
    match o {
        SparseOptimizer::Sgd { lr } => vec![("lr", lr, lr >= 0.0)],
        SparseOptimizer::RowwiseAdagrad { lr, eps } | SparseOptimizer::Adagrad { lr, eps } => {
            vec![("lr", lr, lr >= 0.0), ("eps", eps, eps >= 0.0)]
        }
        SparseOptimizer::Adam { lr, beta1, beta2, eps } => vec![
            ("lr", lr, lr >= 0.0),
            ("beta1", beta1, (0.0..1.0).contains(&beta1)),
            ("beta2", beta2, (0.0..1.0).contains(&beta2)),
            ("eps", eps, eps >= 0.0),
        ],
    }
}

fn init_is_finite(init: Init) -> bool {
    match init {
        Init::Constant(x) => x.is_finite(),
        Init::Normal { mean, std } => mean.is_finite() && std.is_finite() && std >= 0.0,
        Init::Uniform { low, high } => low.is_finite() && high.is_finite() && low <= high,
        Init::Hash { scale, .. } => scale.is_finite(),
    }
}

fn tables(s: &Schedule, r: &mut Report) {
    let mut names = BTreeSet::new();
    for t in &s.tables {
        r.check(names.insert(&t.name), "tables", || format!("two tables are called `{}`", t.name));
        let sizes = (1..=MOST_ROWS).contains(&t.rows) && (1..=MOST).contains(&t.dim);
        r.check(sizes, "tables", || format!("table `{}` has {} rows of {} columns", t.name, t.rows, t.dim));
        r.check(init_is_finite(t.init), "tables", || format!("table `{}` starts from {:?}", t.name, t.init));
        for (name, value, ok) in sparse_numbers(t.optimizer) {
            r.check(ok && value.is_finite(), "tables", || format!("table `{}`: {name} is {value}", t.name));
        }
    }
    let mut names = BTreeSet::new();
    for p in &s.parameters {
        r.check(names.insert(&p.name), "tables", || format!("two parameters are called `{}`", p.name));
        let sizes =
            (1..=MOST).contains(&p.rows) && (1..=MOST).contains(&p.columns) && (!p.vector || p.rows == 1);
        r.check(sizes, "tables", || format!("parameter `{}` has shape {} x {}", p.name, p.rows, p.columns));
        r.check(init_is_finite(p.init), "tables", || {
            format!("parameter `{}` starts from {:?}", p.name, p.init)
        });
    }
}

fn inputs(s: &Schedule, r: &mut Report) {
    for l in &s.lengths {
        r.check((1..=MOST).contains(&l.max), "inputs", || {
            format!("length group `{}` has maximum {}", l.name, l.max)
        });
    }
    let mut names = BTreeSet::new();
    let (tables, groups) = (s.tables.len() as u64, s.lengths.len() as u64);
    for i in &s.inputs {
        r.check(names.insert(&i.name), "inputs", || format!("two inputs are called `{}`", i.name));
        let ok = match i.kind {
            InputKind::Ids { table, lengths } => u64::from(table) < tables && u64::from(lengths) < groups,
            InputKind::Next { of } => {
                s.inputs.get(of as usize).is_some_and(|o| matches!(o.kind, InputKind::Ids { .. }))
            }
            InputKind::Dense { width } => (1..=MOST).contains(&width),
            InputKind::SampleLabel => true,
            InputKind::TokenLabel { lengths } => u64::from(lengths) < groups,
        };
        r.check(ok, "inputs", || {
            format!("input `{}` refers to something that is not declared: {:?}", i.name, i.kind)
        });
    }
}
