//! Operations on tables become operations on the rows of their exchange.

use std::collections::BTreeMap;

use fs_schedule::op::Extent;

use super::super::PassError;
use super::plan::{Emitter, Gradients, Lowering};
use super::{backward, forward};
use crate::ir::attr::{boolean, int};
use crate::ir::{Attr, Attrs, OpData, Type, ValueId};

/// l2 normalisation's lower bound of the divisor, PyTorch's default.
const NORMALIZE_EPS: f64 = 1e-12;

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
    pub(super) fn next_round(&mut self, e: &mut Emitter<'_>, next: u32) -> Result<(), PassError> {
        if next != self.round + 1 {
            return Err(PassError::new("microbatches do not follow each other"));
        }
        e.microbatch = None;
        let all: Vec<ValueId> = self.gradients.keys().copied().collect();
        self.close(e, &all)?;
        self.round = next;
        forward::fetch(e, &mut self.tables, next);
        Ok(())
    }

    /// The last microbatch of some tables ends: what is left of their gradients is sent and applied.
    pub(super) fn update(&mut self, e: &mut Emitter<'_>, tables: &[ValueId]) -> Result<(), PassError> {
        if self.round + 1 != self.rounds {
            return Err(PassError::new(
                "a table is updated before its last microbatch; run `microbatch` first",
            ));
        }
        e.microbatch = None;
        self.close(e, tables)?;
        let together: Vec<&mut Lowering> =
            chosen(&mut self.tables, tables).filter(|l| l.reuse.is_none()).collect();
        backward::send_all(e, &together);
        Ok(())
    }

    /// Sums the gradients of the current microbatch and sends those that no later one adds to.
    fn close(&mut self, e: &mut Emitter<'_>, tables: &[ValueId]) -> Result<(), PassError> {
        let round = self.round as usize;
        for l in chosen(&mut self.tables, tables) {
            let parts =
                self.gradients.get(&l.table).and_then(|g| g.get(round)).map_or(&[][..], Vec::as_slice);
            let parts = parts.iter().filter_map(|v| self.sparse.get(v).copied());
            let parts: Vec<ValueId> = l.sum.into_iter().chain(parts).collect();
            l.sum = Some(match parts[..] {
                [] => return Err(PassError::new("a table is updated without gradients")),
                [one] => one,
                _ => e.emit("model.add", parts, Attrs::new(), &[l.rows_type()], &l.name)[0],
            });
        }
        let mut apart: Vec<&mut Lowering> =
            chosen(&mut self.tables, tables).filter(|l| l.reuse.is_some()).collect();
        if self.round == 0 {
            backward::plan(e, &mut apart);
        }
        backward::send_classes(e, &apart, self.round);
        Ok(())
    }

    /// Replaces one operation.
    pub(super) fn lower(
        &mut self,
        e: &mut Emitter<'_>,
        table: ValueId,
        op: &OpData,
    ) -> Result<(), PassError> {
        let l = self.tables.get(&table).ok_or_else(|| PassError::new("a table without an exchange"))?;
        e.microbatch = op.microbatch;
        let types: Vec<Type> = op.results.iter().map(|r| e.module.ty(*r)).collect();
        let (rows, rows_type) = (l.rows, l.rows_type());
        let round = op.microbatch.unwrap_or(0);
        let inverse = |v: ValueId| {
            l.inverse.get(&(round, v)).copied().ok_or_else(|| PassError::new("ids without positions"))
        };
        let wrong = |e: String| PassError::new(format!("{}: {e}", op.def.name));
        let scope = &op.scope;
        match op.def.name {
            "model.lookup" => {
                let operands = vec![rows, inverse(op.operands[1])?];
                let new = e.emit("comm.expand", operands, Attrs::new(), &types, scope);
                self.replaced.insert(op.results[0], new[0]);
            }
            "model.pool" => {
                let operands = vec![rows, inverse(op.operands[1])?, op.operands[2]];
                let new = e.emit("comm.pool", operands, op.attrs.clone(), &types, scope);
                self.replaced.insert(op.results[0], new[0]);
            }
            "train.lookup_grad" => {
                let operands = vec![op.operands[2], inverse(op.operands[1])?];
                let new = e.emit("comm.expand_grad", operands, Attrs::new(), &[rows_type], scope);
                self.sparse.insert(op.results[0], new[0]);
            }
            "train.pool_grad" => {
                let operands = vec![op.operands[3], inverse(op.operands[1])?, op.operands[2]];
                let new = e.emit("comm.pool_grad", operands, op.attrs.clone(), &[rows_type], scope);
                self.sparse.insert(op.results[0], new[0]);
            }
            "model.sampled_softmax" => {
                let positions = [inverse(op.operands[2])?, inverse(op.operands[3])?];
                let mut attrs = op.attrs.clone();
                let cosine = boolean(&attrs, "cosine").map_err(wrong)?;
                attrs.remove("cosine");
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
                let positions = [inverse(op.operands[2])?, inverse(op.operands[3])?];
                let negatives = int(&op.attrs, "negatives").map_err(wrong)?;
                let attrs = Attrs::from([("negatives".into(), Attr::Int(negatives.into()))]);
                let gscores = op.operands[4];
                let norm = self.normalised.get(&gscores).copied();
                let (h, rows) = norm.map_or((op.operands[0], rows), |n| (n.h.0, n.rows.0));
                let operands = vec![h, rows, positions[0], positions[1], gscores];
                let types = [types[0], rows_type];
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

/// The lowerings of some tables, in the order of declaration.
fn chosen<'a>(
    tables: &'a mut BTreeMap<ValueId, Lowering>,
    wanted: &[ValueId],
) -> impl Iterator<Item = &'a mut Lowering> {
    let wanted: std::collections::BTreeSet<ValueId> = wanted.iter().copied().collect();
    tables.iter_mut().filter(move |(t, _)| wanted.contains(t)).map(|(_, l)| l)
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
