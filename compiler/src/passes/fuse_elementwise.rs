//! Neighbours that a device does in one launch: what the first makes is still there when the second wants it.
//!
//! A launch costs a GPU microseconds, whatever it does; where what the second reads and writes is moved in less, most of the
//! two is launches. [`PAIRS`] says which pairs there is a kernel for. The first moves down to the second, so between the two
//! nothing may use what it makes, nor write what it reads. Both results are kept, as derivatives need them, and the
//! numbers are those of one after the other: the verifier takes a fused operation for its parts.

use std::collections::BTreeMap;

use fs_schedule::Settings;

use super::expected::Expected;
use super::{Options, PassError, Statistics, option};
use crate::dialect::named;
use crate::ir::attr::{boolean, typed};
use crate::ir::{Attrs, Module, OpData, OpId, Type, ValueId};

/// Two operations for which there is one.
struct Pair {
    first: &'static str,
    second: &'static str,
    /// What becomes of both.
    fused: &'static str,
    /// Its operands: of the first, of the second without what the first makes. None if there is no kernel for these.
    operands: fn(&OpData, &OpData) -> Option<Vec<ValueId>>,
    /// Its results, by whose they are and which.
    results: &'static [(Of, usize)],
    /// Whose constants it has.
    constants: Of,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    First,
    Second,
}

/// What the first makes is the second's first operand, and its only use there.
static PAIRS: &[Pair] = &[
    Pair {
        first: "model.linear",
        second: "model.unary",
        fused: "train.linear_unary",
        // Without a bias the product is the driver's alone.
        operands: |linear, _| boolean(&linear.attrs, "bias").ok()?.then(|| linear.operands.clone()),
        results: &[(Of::First, 0), (Of::Second, 0)],
        constants: Of::Second,
    },
    Pair {
        first: "model.add",
        second: "model.layer_norm",
        fused: "train.add_layer_norm",
        operands: |add, norm| {
            (add.operands.len() == 2).then(|| [&add.operands[..], &norm.operands[1..]].concat())
        },
        results: &[(Of::First, 0), (Of::Second, 0), (Of::Second, 1)],
        constants: Of::Second,
    },
    Pair {
        first: "model.layer_norm",
        second: "model.mul",
        fused: "train.layer_norm_mul",
        operands: |norm, mul| Some([&norm.operands[..], &mul.operands[1..]].concat()),
        results: &[(Of::First, 0), (Of::Second, 0), (Of::First, 1)],
        constants: Of::First,
    },
];

/// Fuses neighbours of all functions.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let launch: u64 = option(options, "launch_bytes")?.unwrap_or(0);
    let ranks: u32 = option(options, "ranks")?.unwrap_or(1);
    let expected = Expected::of(module, f64::from(ranks.max(1)));
    let microbatches = typed::<Settings>(&module.attrs, "settings").map_or(1, |s| s.microbatches.max(1));
    for f in 0..module.funcs.len() {
        let parts = if module.funcs[f].name == "train" { f64::from(microbatches) } else { 1.0 };
        let small = |module: &Module, op: &OpData| {
            let bytes = bytes(module, op, &expected).map(|bytes| bytes / parts);
            bytes.is_some_and(|bytes| bytes < launch as f64)
        };
        fuse(module, f, small, statistics);
    }
    Ok(())
}

/// Bytes that an operation is expected to read and write; none if nobody knows.
fn bytes(module: &Module, op: &OpData, expected: &Expected) -> Option<f64> {
    let mut all = 0.0;
    for v in op.operands.iter().chain(&op.results) {
        if let Some((element, rows, columns)) = module.ty(*v).as_floats() {
            all += element.row_bytes(columns) as f64 * expected.rows(rows)?;
        }
    }
    Some(all)
}

fn fuse(
    module: &mut Module,
    f: usize,
    small: impl Fn(&Module, &OpData) -> bool,
    statistics: &mut Statistics,
) {
    let body = module.funcs[f].body.clone();
    let position: BTreeMap<OpId, usize> = body.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    // By position of the second: the first's, and which pair they are.
    let mut found: BTreeMap<usize, (usize, &'static Pair)> = BTreeMap::new();
    let mut taken = vec![false; body.len()];
    for (at, id) in body.iter().enumerate() {
        let second = module.op(*id);
        let Some(value) = second.operands.first().map(|v| module.value(*v)) else { continue };
        let Some(&from) = position.get(&value.def) else { continue };
        let first = module.op(value.def);
        let pair = PAIRS.iter().find(|p| (p.first, p.second) == (first.def.name, second.def.name));
        let Some(pair) = pair.filter(|_| value.result == 0 && !taken[from] && !taken[at]) else { continue };
        if alike(first, second)
            && second.operands[1..].iter().all(|v| !first.results.contains(v))
            && (pair.operands)(first, second).is_some()
            && small(module, second)
            && body[from + 1..at].iter().all(|between| passes(first, module.op(*between)))
        {
            (taken[from], taken[at]) = (true, true);
            found.insert(at, (from, pair));
        }
    }
    let mut new: Vec<Option<OpId>> = body.iter().copied().map(Some).collect();
    for (at, (from, pair)) in found {
        let (first, second) = (module.op(body[from]).clone(), module.op(body[at]).clone());
        let Some(operands) = (pair.operands)(&first, &second) else { continue };
        let of = |of: Of| if of == Of::First { &first } else { &second };
        let attrs: Attrs = of(pair.constants).attrs.clone();
        let results: Vec<ValueId> = pair.results.iter().map(|(o, i)| of(*o).results[*i]).collect();
        let fused = module.create(named(pair.fused), operands, attrs, &[] as &[Type], &second.scope);
        module.adopt(fused, results);
        let op = module.op_mut(fused);
        (op.microbatch, op.site) = (second.microbatch, second.site);
        (new[from], new[at]) = (None, Some(fused));
        statistics.count("fused");
    }
    module.funcs[f].body = new.into_iter().flatten().collect();
}

/// Whether both work on the same samples, and write fresh results.
fn alike(first: &OpData, second: &OpData) -> bool {
    let plain = |op: &OpData| op.into.iter().all(Option::is_none) && op.offsets.is_empty();
    plain(first) && plain(second) && (first.microbatch, first.site) == (second.microbatch, second.site)
}

/// Whether the first may move down past an operation: it uses nothing that the first makes, and writes nothing where it stands.
fn passes(first: &OpData, between: &OpData) -> bool {
    let uses = between.uses().any(|v| first.results.contains(&v));
    // What takes over storage, or updates what is declared, may write what the first reads.
    let writes = between.into.iter().any(Option::is_some) || between.def.effects.acts();
    !uses && !writes
}
