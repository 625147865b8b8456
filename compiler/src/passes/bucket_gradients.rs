//! Buckets of dense gradients: the sum over ranks of those that backward has ready runs under the rest of it.
//!
//! The one `all_reduce` and `dense_update` at the end become one of each per bucket, in the order in which backward
//! produces gradients. A bucket's sum stands right behind its last gradient, its update behind that and behind the
//! last operation that reads one of its parameters: a layer's input gradient still needs the weight. Sums go in rank
//! order however they are cut, so buckets never change a bit.

use std::collections::BTreeMap;

use fs_schedule::signature::OperandType;

use super::{Options, PassError, Statistics, option};
use crate::dialect::named;
use crate::ir::{Attrs, Module, OpId, Type, ValueId};

/// Gradients of less than this are not worth a transfer of their own, unless the option `least` says otherwise.
const LEAST: u64 = 1 << 20;
/// Even on links without latency a transfer of less is not worth its wake-ups.
const LEAST_OF_ALL: u64 = 1 << 14;
/// More than this at once hides no better.
const MOST: u64 = 25 << 20;

/// A gradient and where it is ready.
struct Gradient {
    ready: usize,
    value: ValueId,
    param: ValueId,
    bytes: u64,
}

/// Cuts up the sum of `@train`.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let body = module.func("train").ok_or_else(|| PassError::missing("train"))?.body.clone();
    let of = |name: &str| -> Vec<OpId> {
        body.iter().copied().filter(|id| module.op(*id).def.name == name).collect()
    };
    // Several mean that it has been done; none that nothing is trained.
    let (&[reduce], &[update]) = (&of("comm.all_reduce")[..], &of("train.dense_update")[..]) else {
        return Ok(());
    };
    let gradients = gradients(module, &body, reduce, update)?;
    let total: u64 = gradients.iter().map(|g| g.bytes).sum();
    let least = option(options, "least")?.unwrap_or(LEAST).clamp(LEAST_OF_ALL, LEAST);
    let limit = option(options, "bytes")?.unwrap_or((total / 8).clamp(least, MOST));
    let last_read = last_reads(module, &body, update);
    let mut sums: BTreeMap<usize, Vec<OpId>> = BTreeMap::new();
    let mut updates: BTreeMap<usize, Vec<OpId>> = BTreeMap::new();
    for bucket in cut(&gradients, limit) {
        statistics.count("buckets");
        let ready = bucket.iter().map(|g| g.ready).max().unwrap_or(0);
        let read = bucket.iter().filter_map(|g| last_read.get(&g.param)).max().copied().unwrap_or(0);
        let values: Vec<ValueId> = bucket.iter().map(|g| g.value).collect();
        let types: Vec<Type> = values.iter().map(|v| module.ty(*v)).collect();
        let sum = module.create(named("comm.all_reduce"), values, Attrs::new(), &types, "");
        let operands = module.op(sum).results.iter().copied().chain(bucket.iter().map(|g| g.param)).collect();
        let step = module.create(named("train.dense_update"), operands, Attrs::new(), &[], "");
        sums.entry(ready).or_default().push(sum);
        updates.entry(ready.max(read)).or_default().push(step);
    }
    let mut new = Vec::with_capacity(body.len() + 2 * sums.len());
    for (i, id) in body.into_iter().enumerate() {
        if id != reduce && id != update {
            new.push(id);
        }
        new.extend(sums.remove(&i).into_iter().flatten());
        new.extend(updates.remove(&i).into_iter().flatten());
    }
    if let Some(func) = module.func_mut("train") {
        func.body = new;
    }
    Ok(())
}

/// What is summed, in the order in which it is ready.
fn gradients(module: &Module, body: &[OpId], reduce: OpId, update: OpId) -> Result<Vec<Gradient>, PassError> {
    let position: BTreeMap<OpId, usize> = body.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let (summed, params) = {
        let operands = &module.op(update).operands;
        operands.split_at(operands.len() / 2)
    };
    let param: BTreeMap<ValueId, ValueId> = summed.iter().copied().zip(params.iter().copied()).collect();
    let op = module.op(reduce);
    let mut list = Vec::new();
    for (value, sum) in op.operands.iter().zip(&op.results) {
        let (Some(ready), Some(param)) = (position.get(&module.value(*value).def), param.get(sum)) else {
            return Err(PassError::new("a summed gradient does not reach its parameter"));
        };
        let bytes = match module.ty(*value).shape() {
            Some(OperandType::Gradient { rows, columns }) => 4 * u64::from(rows) * u64::from(columns),
            _ => 0,
        };
        list.push(Gradient { ready: *ready, value: *value, param: *param, bytes });
    }
    list.sort_by_key(|g| (g.ready, module.value(g.value).result));
    Ok(list)
}

/// Where each parameter is read last, updates aside.
fn last_reads(module: &Module, body: &[OpId], update: OpId) -> BTreeMap<ValueId, usize> {
    let mut last = BTreeMap::new();
    for (i, id) in body.iter().enumerate().filter(|(_, id)| **id != update) {
        for v in &module.op(*id).operands {
            if matches!(module.ty(*v), Type::Operand(OperandType::Parameter { .. })) {
                last.insert(*v, i);
            }
        }
    }
    last
}

/// Runs of at least `limit` bytes, but for the last.
fn cut(gradients: &[Gradient], limit: u64) -> Vec<&[Gradient]> {
    let mut buckets = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, g) in gradients.iter().enumerate() {
        bytes += g.bytes;
        // Gradients of one layer are ready at once and stay together.
        let same_layer = gradients.get(i + 1).is_some_and(|next| next.ready == g.ready);
        if bytes >= limit && !same_layer {
            buckets.push(&gradients[start..=i]);
            (start, bytes) = (i + 1, 0);
        }
    }
    if start < gradients.len() {
        buckets.push(&gradients[start..]);
    }
    buckets
}
