//! Where values live: buffers, views into them, and slots that buffers share.
//!
//! A split's results are column ranges of its operand; a concat's operands are computed into column ranges of its
//! result where they own their storage (else copied); a result that is added into a value takes over its storage.
//! Buffers whose lifetimes do not overlap share a slot, chosen so that little memory is added.

use std::collections::BTreeMap;

use fs_schedule::Symbol;
use fs_schedule::op::{Buffer, Element, Extent, Op, Operand, Place};
use fs_schedule::signature::Shape;

use crate::ir::{Module, OpData, OpId, ValueId};

/// A column range of another value's storage.
#[derive(Debug, Clone, Copy)]
struct View {
    of: ValueId,
    start: u32,
}

/// Places of the values of one function.
#[derive(Debug)]
pub(super) struct Storage {
    fixed: BTreeMap<ValueId, Place>,
    views: BTreeMap<ValueId, View>,
    columns: BTreeMap<ValueId, u32>,
    ids: BTreeMap<ValueId, u32>,
    buffers: Vec<Buffer>,
    copied: BTreeMap<ValueId, Vec<(ValueId, u32)>>,
}

impl Storage {
    /// Decides for all values of a function.
    pub(super) fn assign(module: &Module, body: &[OpId]) -> Result<Self, String> {
        let mut this = Self {
            fixed: super::fixed_places(module, body)?,
            views: BTreeMap::new(),
            columns: BTreeMap::new(),
            ids: BTreeMap::new(),
            buffers: Vec::new(),
            copied: BTreeMap::new(),
        };
        for id in body {
            this.alias(module, module.op(*id));
        }
        for id in body {
            this.host_concat(module, body, module.op(*id));
        }
        for id in body {
            let op = module.op(*id);
            for r in &op.results {
                this.add_buffer(module, *r, op)?;
            }
        }
        Ok(this)
    }

    /// Results that are views of operands or take over their storage.
    fn alias(&mut self, module: &Module, op: &OpData) {
        for r in &op.results {
            self.columns.insert(*r, columns(module, *r));
        }
        if op.def.name == "model.split" {
            let mut start = 0;
            for r in &op.results {
                self.views.insert(*r, View { of: op.operands[0], start });
                start += columns(module, *r);
            }
        }
        for (r, base) in op.results.iter().zip(&op.into) {
            if let Some(base) = base {
                self.views.insert(*r, View { of: *base, start: 0 });
            }
        }
    }

    /// The value whose storage holds this one, and where in it.
    fn root(&self, mut v: ValueId) -> (ValueId, u32) {
        let mut start = 0;
        while let Some(view) = self.views.get(&v) {
            start += view.start;
            v = view.of;
        }
        (v, start)
    }

    /// Lets the operands of a concat be computed in place, and notes those that must be copied.
    fn host_concat(&mut self, module: &Module, body: &[OpId], op: &OpData) {
        if op.def.name != "model.concat" {
            return;
        }
        let result = op.results[0];
        let mut start = 0;
        // Storage that several operands see cannot stand in two places: those are copied.
        let roots: Vec<ValueId> = op.operands.iter().map(|v| self.root(*v).0).collect();
        for v in &op.operands {
            let width = columns(module, *v);
            let (root, offset) = self.root(*v);
            let owns = offset == 0
                && roots.iter().filter(|r| **r == root).count() == 1
                && !self.fixed.contains_key(&root)
                && columns(module, root) == width
                && root != result
                && module.def(root).def.name != "model.split";
            if owns {
                self.views.insert(root, View { of: result, start });
            }
            if owns && self.reads_what_it_writes(module, body, result) {
                self.views.remove(&root);
                self.copied.entry(result).or_default().push((*v, start));
            } else if !owns {
                self.copied.entry(result).or_default().push((*v, start));
            }
            start += width;
        }
    }

    /// True if some operation would read and write the buffer of a value: engines lend a buffer either way, not both.
    fn reads_what_it_writes(&self, module: &Module, body: &[OpId], v: ValueId) -> bool {
        let (buffer, _) = self.root(v);
        let inside = |v: &ValueId| self.root(*v).0 == buffer;
        body.iter().map(|id| module.op(*id)).any(|op| {
            if op.def.name == "model.concat" && inside(&op.results[0]) {
                let copied = self.copied.get(&op.results[0]).map_or(&[][..], Vec::as_slice);
                return copied.iter().any(|(v, _)| inside(v));
            }
            !matches!(op.def.name, "model.split" | "model.concat")
                && op.results.iter().any(inside)
                && op.operands.iter().any(inside)
        })
    }

    fn add_buffer(&mut self, module: &Module, v: ValueId, op: &OpData) -> Result<(), String> {
        if self.fixed.contains_key(&v) || self.views.contains_key(&v) {
            return Ok(());
        }
        let Some(Shape::Matrix { element, rows, columns }) = module.ty(v).shape() else {
            return Err(format!("{} gives {}, which has no storage", op.def.name, module.ty(v)));
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
            microbatch: op.microbatch,
            copies: 1,
            slot: 0,
            first: u32::MAX,
            last: 0,
        });
        Ok(())
    }

    /// The operand that names a value.
    pub(super) fn operand(&self, v: ValueId) -> Result<Operand, String> {
        if let Some(place) = self.fixed.get(&v) {
            return Ok(Operand::new(*place));
        }
        let (root, start) = self.root(v);
        if let Some(place) = self.fixed.get(&root) {
            return Ok(Operand::new(*place));
        }
        let id = *self.ids.get(&root).ok_or("a value without storage")?;
        let width = *self.columns.get(&v).ok_or("a value of no operation")?;
        Ok(self.columns_of(id, start, width))
    }

    fn columns_of(&self, id: u32, start: u32, width: u32) -> Operand {
        let whole = start == 0 && self.buffers[id as usize].columns == width;
        Operand { columns: (!whole).then_some((start, start + width)), ..Operand::buffer(id) }
    }

    /// Parts of a concat that must be copied, and where to.
    pub(super) fn concat_copies(&self, module: &Module, op: &OpData) -> Vec<(ValueId, Operand)> {
        let result = op.results[0];
        let (root, base) = self.root(result);
        let Some(id) = self.ids.get(&root) else { return Vec::new() };
        let parts = self.copied.get(&result).map(Vec::as_slice).unwrap_or_default();
        parts.iter().map(|(v, start)| (*v, self.columns_of(*id, base + start, columns(module, *v)))).collect()
    }

    /// Lifetimes and slots, once the operations are known.
    pub(super) fn finish(&mut self, ops: &[Op]) -> Vec<Buffer> {
        let mut buffers = std::mem::take(&mut self.buffers);
        for (i, op) in ops.iter().enumerate() {
            for operand in op.reads.iter().chain(&op.writes) {
                if let Place::Buffer(b) = operand.place {
                    let buffer = &mut buffers[b as usize];
                    buffer.first = buffer.first.min(i as u32);
                    buffer.last = buffer.last.max(i as u32);
                }
            }
        }
        for b in &mut buffers {
            b.first = b.first.min(b.last);
        }
        share_slots(&mut buffers);
        buffers
    }
}

fn columns(module: &Module, v: ValueId) -> u32 {
    match module.ty(v).shape() {
        Some(Shape::Matrix { columns, .. }) => columns,
        _ => 0,
    }
}

/// A guess of rows, only to judge which buffers fit each other.
fn typical(rows: Extent) -> u64 {
    match rows {
        Extent::Fixed(n) => n.into(),
        Extent::Symbol(Symbol::Samples) => 1 << 6,
        Extent::Symbol(Symbol::Ranks) => 8,
        Extent::Symbol(_) => 1 << 12,
    }
}

/// First-fit by start of life: a free slot that grows least, else a new one if growth would exceed the buffer.
fn share_slots(buffers: &mut [Buffer]) {
    struct Slot {
        element: Element,
        size: u64,
        free_from: u32,
    }
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|b| (buffers[*b].first, *b));
    let mut slots: Vec<Slot> = Vec::new();
    let mut per_element: BTreeMap<Element, u32> = BTreeMap::new();
    let mut numbers: Vec<u32> = Vec::new();
    for b in order {
        let buffer = &mut buffers[b];
        let size = typical(buffer.rows) * u64::from(buffer.columns);
        let fits = |s: &Slot| s.element == buffer.element && s.free_from <= buffer.first;
        let best = slots
            .iter()
            .enumerate()
            .filter(|(_, s)| fits(s))
            .min_by_key(|(i, s)| (size.saturating_sub(s.size), s.size.saturating_sub(size), *i))
            .map(|(i, _)| i);
        let at = best.unwrap_or_else(|| {
            slots.push(Slot { element: buffer.element, size: 0, free_from: 0 });
            let n = per_element.entry(buffer.element).or_insert(0);
            numbers.push(*n);
            *n += 1;
            slots.len() - 1
        });
        slots[at].size = slots[at].size.max(size);
        slots[at].free_from = buffer.last + 1;
        buffer.slot = numbers[at];
    }
}
