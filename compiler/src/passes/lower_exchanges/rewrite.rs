//! Operations on tables become operations on the rows of their exchange.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::{Extent, PoolMode};

use super::super::PassError;
use super::generate::{Emitter, Generator};
use super::sources::Gradients;
use super::table::Lowering;
use super::{backward, forward};
use crate::distribution::{Id, Op};
use crate::ir::attr::{boolean, int, typed};
use crate::ir::{Attr, AttrError, Attrs, OpData, Type, ValueId};

/// l2 normalisation's lower bound of the divisor, PyTorch's default.
pub(crate) const NORMALIZE_EPS: f64 = 1e-12;

/// Results of the normalisations in front of a cosine softmax.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normalised {
    h: (ValueId, ValueId),
    rows: (ValueId, ValueId),
}

/// What has become of a function's values.
#[derive(Debug)]
pub(super) struct Rewrite {
    pub tables: BTreeMap<ValueId, Lowering>,
    pub gradients: Gradients,
    pub replaced: BTreeMap<ValueId, ValueId>,
    /// The current microbatch, of how many.
    pub round: u32,
    pub rounds: u32,
    /// Normalised rows and their norms, by the scores' gradient that the forward operation keeps.
    pub normalised: BTreeMap<ValueId, Normalised>,
    /// What replaces a sparse gradient: rows of the exchange.
    pub sparse: BTreeMap<ValueId, ValueId>,
}

impl Rewrite {
    /// A microbatch ends, the next begins.
    pub(super) fn next_round(&mut self, g: &mut Generator<'_>, next: u32) -> Result<(), PassError> {
        if next != self.round + 1 {
            return Err(PassError::new("microbatches do not follow each other"));
        }
        g.e.microbatch = None;
        let all: Vec<ValueId> = self.gradients.keys().copied().collect();
        self.close(g, &all)?;
        self.round = next;
        forward::fetch(g, &self.tables, next)
    }

    /// The last microbatch of some tables ends: what is left of their gradients is sent and applied.
    pub(super) fn update(&mut self, g: &mut Generator<'_>, tables: &[ValueId]) -> Result<(), PassError> {
        if self.round + 1 != self.rounds {
            return Err(PassError::new(
                "a table is updated before its last microbatch; run `microbatch` first",
            ));
        }
        g.e.microbatch = None;
        self.close(g, tables)?;
        backward::send_all(g, &self.chosen(tables, |l| l.dist.reuse.is_none()))
    }

    /// Sums the gradients of the current microbatch and sends those that no later one adds to.
    fn close(&mut self, g: &mut Generator<'_>, tables: &[ValueId]) -> Result<(), PassError> {
        let round = self.round as usize;
        let wanted: BTreeSet<ValueId> = tables.iter().copied().collect();
        for l in self.tables.values_mut().filter(|l| wanted.contains(&l.table)) {
            let parts =
                self.gradients.get(&l.table).and_then(|g| g.get(round)).map_or(&[][..], Vec::as_slice);
            let mut sum: Vec<Id> = l.sum.into_iter().collect();
            for value in parts.iter().filter_map(|v| self.sparse.get(v)) {
                sum.push(l.gradients(g, *value)?);
            }
            l.sum = Some(match sum[..] {
                [] => return Err(PassError::new("a table is updated without gradients")),
                [one] => one,
                _ => {
                    let sum = g.terms.add(Op::Sum, &sum)?;
                    g.value(sum, &l.name)?;
                    sum
                }
            });
        }
        let apart = self.chosen(tables, |l| l.dist.reuse.is_some());
        if self.round == 0 {
            backward::plan(g, &apart)?;
        }
        backward::send_classes(g, &apart, self.round)
    }

    /// Some of the given tables, in the order of declaration.
    fn chosen(&self, tables: &[ValueId], which: impl Fn(&Lowering) -> bool) -> Vec<&Lowering> {
        let wanted: BTreeSet<ValueId> = tables.iter().copied().collect();
        self.tables.values().filter(|l| wanted.contains(&l.table) && which(l)).collect()
    }

    /// Replaces one operation.
    pub(super) fn lower(
        &mut self,
        g: &mut Generator<'_>,
        table: ValueId,
        op: &OpData,
    ) -> Result<(), PassError> {
        let l = self.tables.get(&table).ok_or_else(|| PassError::new("a table without an exchange"))?;
        g.e.microbatch = op.microbatch;
        let types: Vec<Type> = op.results.iter().map(|r| g.e.module.ty(*r)).collect();
        let round = op.microbatch.unwrap_or(0);
        let rows = l.rows(g, self.round)?;
        let entries = l.dist.entries;
        let wrong = |e: AttrError| PassError::of(op, e);
        let scope = &op.scope;
        match op.def.name {
            "model.lookup" => {
                let children = [rows, l.inverse(g, round, op.operands[1])?];
                let new = g.written(Op::Expand, &children, &Attrs::new(), scope)?;
                self.replaced.insert(op.results[0], new);
            }
            "model.pool" => {
                let children = [rows, l.inverse(g, round, op.operands[1])?, offsets(g, op.operands[2])?];
                let pool = Op::Pool { mean: mean(op)? };
                let new = g.written(pool, &children, &op.attrs, scope)?;
                self.replaced.insert(op.results[0], new);
            }
            "train.lookup_grad" => {
                let children = [given(g, op.operands[2])?, l.inverse(g, round, op.operands[1])?];
                let new = g.written(Op::ExpandGrad, &children, &Attrs::new(), scope)?;
                self.sparse.insert(op.results[0], new);
            }
            "train.pool_grad" => {
                let inverse = l.inverse(g, round, op.operands[1])?;
                let children = [given(g, op.operands[3])?, inverse, offsets(g, op.operands[2])?];
                let pool = Op::PoolGrad { mean: mean(op)? };
                let new = g.written(pool, &children, &op.attrs, scope)?;
                self.sparse.insert(op.results[0], new);
            }
            "model.sampled_softmax" => {
                let (rows, positions) = (g.value(rows, scope)?, drawn(g, l, round, op)?);
                let mut attrs = op.attrs.clone();
                let cosine = boolean(&attrs, "cosine").map_err(wrong)?;
                attrs.remove("cosine");
                let e = &mut g.e;
                let (mut h, mut rows) = (op.operands[0], rows);
                let norm =
                    cosine.then(|| Normalised { h: normalize(e, h, scope), rows: normalize(e, rows, scope) });
                if let Some(n) = norm {
                    (h, rows) = (n.h.0, n.rows.0);
                }
                let operands = vec![h, rows, positions[0], positions[1]];
                let new = e.emit("comm.sampled_softmax", operands, attrs, &types, scope);
                self.normalised.extend(norm.map(|n| (new[1], n)));
                self.replaced.extend(op.results.iter().copied().zip(new));
            }
            "train.sampled_softmax_grad" => {
                let (rows, positions) = (g.value(rows, scope)?, drawn(g, l, round, op)?);
                let negatives = int(&op.attrs, "negatives").map_err(wrong)?;
                let attrs = Attrs::from([("negatives".into(), Attr::Int(negatives.into()))]);
                let extent = g.terms.extent(entries).unwrap_or(Extent::Fixed(0));
                let e = &mut g.e;
                let gscores = op.operands[4];
                let norm = self.normalised.get(&gscores).copied();
                let (h, rows) = norm.map_or((op.operands[0], rows), |n| (n.h.0, n.rows.0));
                let operands = vec![h, rows, positions[0], positions[1], gscores];
                let types = [types[0], Type::real(extent, l.dim)];
                let mut new = e.emit("comm.sampled_softmax_grad", operands, attrs, &types, scope);
                if let Some(n) = norm {
                    new = vec![denormalize(e, n.h, new[0], scope), denormalize(e, n.rows, new[1], scope)];
                }
                self.replaced.insert(op.results[0], new[0]);
                self.sparse.insert(op.results[1], new[1]);
            }
            other => return Err(PassError::new(format!("{other} of a table is not known to this pass"))),
        }
        Ok(())
    }
}

/// Offsets as a term.
fn offsets(g: &mut Generator<'_>, value: ValueId) -> Result<Id, PassError> {
    let id = g.terms.add(Op::Offsets { source: value.0 }, &[])?;
    g.bind(id, value);
    Ok(id)
}

/// The gradient of what was made of rows, as a term.
fn given(g: &mut Generator<'_>, value: ValueId) -> Result<Id, PassError> {
    let ty = g.e.module.ty(value);
    let (rows, columns) =
        ty.as_real().ok_or_else(|| PassError::new(format!("{ty} is no gradient of rows")))?;
    let id = g.terms.add(Op::Given { source: value.0, rows, columns }, &[])?;
    g.bind(id, value);
    Ok(id)
}

/// Whether a pooling divides by the number of ids.
fn mean(op: &OpData) -> Result<bool, PassError> {
    let mode: PoolMode = typed(&op.attrs, "mode")?;
    Ok(mode == PoolMode::Mean)
}

fn normalize(e: &mut Emitter<'_>, x: ValueId, scope: &str) -> (ValueId, ValueId) {
    let ty = e.module.ty(x);
    let (rows, _) = ty.as_real().unwrap_or((Extent::Fixed(0), 0));
    let attrs = Attrs::from([("eps".into(), Attr::Float(NORMALIZE_EPS))]);
    let new = e.emit("model.l2_normalize", vec![x], attrs, &[ty, Type::real(rows, 1)], scope);
    (new[0], new[1])
}

fn denormalize(e: &mut Emitter<'_>, (y, norms): (ValueId, ValueId), gy: ValueId, scope: &str) -> ValueId {
    let ty = e.module.ty(y);
    let attrs = Attrs::from([("eps".into(), Attr::Float(NORMALIZE_EPS))]);
    e.emit("train.l2_normalize_grad", vec![y, norms, gy], attrs, &[ty], scope)[0]
}

/// Positions of the targets and negatives of a sampled softmax.
fn drawn(g: &mut Generator<'_>, l: &Lowering, round: u32, op: &OpData) -> Result<[ValueId; 2], PassError> {
    let (targets, negatives) = (l.inverse(g, round, op.operands[2])?, l.inverse(g, round, op.operands[3])?);
    Ok([g.value(targets, &op.scope)?, g.value(negatives, &op.scope)?])
}
