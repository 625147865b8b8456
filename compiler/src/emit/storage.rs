//! Where values live: buffers, and views into them.
//!
//! A split's results are column ranges of its operand; a concat's operands are computed into column ranges of its
//! result where they own their storage (else copied); a result that is added into a value takes over its storage.
//! Which buffers share memory is decided once it is known when they live (`sched/storage.rs`).

use std::collections::BTreeMap;

use fs_schedule::signature::OperandType;
use fs_schedule::{Buffer, Operand, Place};

use super::FormError;
use super::views::{Users, Views};
use crate::ir::{self, Module, OpData, OpId, ValueId};

/// Places of the values of one function.
#[derive(Debug)]
pub(super) struct Storage {
    fixed: BTreeMap<ValueId, Place>,
    views: Views,
    columns: BTreeMap<ValueId, u32>,
    ids: BTreeMap<ValueId, u32>,
    buffers: Vec<Buffer>,
    copied: BTreeMap<ValueId, Vec<(ValueId, u32)>>,
}

impl Storage {
    /// Decides for all values of a function.
    pub(super) fn assign(module: &Module, body: &[OpId]) -> Result<Self, FormError> {
        let mut this = Self {
            fixed: fixed_places(module, body)?,
            views: Views::default(),
            columns: BTreeMap::new(),
            ids: BTreeMap::new(),
            buffers: Vec::new(),
            copied: BTreeMap::new(),
        };
        let settings: fs_schedule::Settings = crate::ir::attr::typed(&module.attrs, "settings")?;
        let microbatches = settings.microbatches;
        for id in body {
            this.alias(module, module.op(*id));
        }
        let concats: Vec<OpId> =
            body.iter().copied().filter(|id| module.op(*id).def.view == Some(ir::View::Concat)).collect();
        if !concats.is_empty() {
            let mut users = Users::new(module, body, &mut this.views);
            for id in concats {
                this.host_concat(module, id, &mut users);
            }
        }
        for id in body {
            let op = module.op(*id);
            for (i, r) in op.results.iter().enumerate() {
                this.add_buffer(module, *r, op, microbatch(op, i, microbatches))?;
            }
        }
        Ok(this)
    }

    /// Results that are views of operands or take over their storage.
    fn alias(&mut self, module: &Module, op: &OpData) {
        for r in &op.results {
            self.columns.insert(*r, columns(module, *r));
        }
        if op.def.view == Some(ir::View::Split) {
            let mut start = 0;
            for r in &op.results {
                self.views.add(*r, op.operands[0], start);
                start += columns(module, *r);
            }
        }
        for (r, base) in op.results.iter().zip(&op.into) {
            if let Some(base) = base {
                self.views.add(*r, *base, 0);
            }
        }
    }

    /// Lets the operands of a concat be computed in place, and notes those that must be copied.
    fn host_concat(&mut self, module: &Module, id: OpId, users: &mut Users) {
        let op = module.op(id);
        let result = op.results[0];
        let mut start = 0;
        // Storage that several operands see cannot stand in two places: those are copied.
        let mut seen: BTreeMap<ValueId, u32> = BTreeMap::new();
        for v in &op.operands {
            *seen.entry(self.views.root(*v).0).or_insert(0) += 1;
        }
        for v in &op.operands {
            let width = columns(module, *v);
            let (root, offset) = self.views.root(*v);
            let (host, _) = self.views.root(result);
            let owns = offset == 0
                && seen.get(&root) == Some(&1)
                && !self.fixed.contains_key(&root)
                && columns(module, root) == width
                && root != host
                && module.def(root).def.view != Some(ir::View::Split);
            // Engines lend a buffer to an operation for reading or for writing, not both.
            if owns && users.may_share(root, host) {
                self.views.add(root, result, start);
                users.share(root, host);
            } else {
                users.copied(id, root, host);
                self.copied.entry(result).or_default().push((*v, start));
            }
            start += width;
        }
    }

    fn add_buffer(
        &mut self,
        module: &Module,
        v: ValueId,
        op: &OpData,
        microbatch: Option<u32>,
    ) -> Result<(), FormError> {
        if self.fixed.contains_key(&v) || self.views.has(v) {
            return Ok(());
        }
        let Some(OperandType::Matrix { element, rows, columns }) = module.ty(v).shape() else {
            return Err(FormError::NoStorage { op: op.def.name, ty: module.ty(v) });
        };
        let kind = op.def.name.rsplit('.').next().unwrap_or_default();
        let name = if op.scope.is_empty() { kind.to_owned() } else { format!("{}.{kind}", op.scope) };
        let name = if op.results.len() > 1 { format!("{name}.{}", module.value(v).result) } else { name };
        self.ids.insert(v, self.buffers.len() as u32);
        self.buffers.push(Buffer {
            name,
            element,
            rows,
            columns,
            microbatch,
            site: module.site(v),
            copies: 1,
            slot: 0,
            first: u32::MAX,
            last: 0,
        });
        Ok(())
    }

    /// The operand that names a value.
    pub(super) fn operand(&self, v: ValueId) -> Result<Operand, FormError> {
        if let Some(place) = self.fixed.get(&v) {
            return Ok(Operand::new(*place));
        }
        let (root, start) = self.views.find(v);
        if let Some(place) = self.fixed.get(&root) {
            return Ok(Operand::new(*place));
        }
        let id = *self.ids.get(&root).ok_or(FormError::NoBuffer)?;
        let width = *self.columns.get(&v).ok_or(FormError::NoBuffer)?;
        Ok(self.columns_of(id, start, width))
    }

    fn columns_of(&self, id: u32, start: u32, width: u32) -> Operand {
        let whole = start == 0 && self.buffers[id as usize].columns == width;
        Operand { columns: (!whole).then_some((start, start + width)), ..Operand::buffer(id) }
    }

    /// Parts of a concat that must be copied, and where to.
    pub(super) fn concat_copies(&self, module: &Module, op: &OpData) -> Vec<(ValueId, Operand)> {
        let result = op.results[0];
        let (root, base) = self.views.find(result);
        let Some(id) = self.ids.get(&root) else { return Vec::new() };
        let parts = self.copied.get(&result).map(Vec::as_slice).unwrap_or_default();
        parts.iter().map(|(v, start)| (*v, self.columns_of(*id, base + start, columns(module, *v)))).collect()
    }

    /// The buffers, each by itself.
    pub(super) fn buffers(&mut self) -> Vec<Buffer> {
        let mut buffers = std::mem::take(&mut self.buffers);
        for (slot, b) in buffers.iter_mut().enumerate() {
            b.slot = slot as u32;
        }
        buffers
    }
}

/// The microbatch of a result: that of the operation, but positions of ids are the ids', which a batch's `unique`
/// takes by microbatch.
fn microbatch(op: &OpData, result: usize, microbatches: u32) -> Option<u32> {
    let sources = op.operands.len();
    let first = op.results.len().saturating_sub(sources);
    if op.def.name != "comm.unique" || microbatches <= 1 || result < first {
        return op.microbatch;
    }
    Some(((result - first) / (sources / microbatches as usize).max(1)) as u32)
}

fn columns(module: &Module, v: ValueId) -> u32 {
    match module.ty(v).shape() {
        Some(OperandType::Matrix { columns, .. }) => columns,
        _ => 0,
    }
}

/// The places of declared values and of gradients.
fn fixed_places(module: &Module, body: &[OpId]) -> Result<BTreeMap<ValueId, Place>, FormError> {
    let mut places = BTreeMap::new();
    let mut number: BTreeMap<&str, u32> = BTreeMap::new();
    for id in &module.decls {
        let op = module.op(*id);
        let n = number.entry(op.def.name).or_insert(0);
        for r in &op.results {
            let place = match module.ty(*r).shape() {
                Some(OperandType::Table { .. }) => Place::Table(*n),
                Some(OperandType::Parameter { .. }) => Place::Parameter(*n),
                Some(OperandType::Offsets { .. }) => Place::Lengths(*n),
                Some(_) => Place::Input(*n),
                None => return Err(FormError::NoShape(op.def.name)),
            };
            places.insert(*r, place);
        }
        *n += 1;
    }
    // A gradient belongs to the parameter that the update pairs it with.
    for id in body.iter().rev() {
        let op = module.op(*id);
        if op.def.updates == ir::Updates::SecondHalf {
            let (gradients, params) = op.operands.split_at(op.operands.len() / 2);
            for (g, p) in gradients.iter().zip(params) {
                if let Some(Place::Parameter(n)) = places.get(p).copied() {
                    places.insert(*g, Place::Gradient(n));
                }
            }
        } else if op.def.updates == ir::Updates::All {
            for (from, to) in op.operands.iter().zip(&op.results) {
                if let Some(place) = places.get(to).copied() {
                    places.insert(*from, place);
                }
            }
        }
        // What a gradient is added into is that gradient, of the microbatches before.
        for (to, from) in op.results.iter().zip(&op.into) {
            if let (Some(place @ Place::Gradient(_)), Some(from)) = (places.get(to).copied(), from) {
                places.insert(*from, place);
            }
        }
    }
    Ok(places)
}
