//! Writes terms as operations: each once, its children before it, and with it what the same operation gives besides.

use std::collections::BTreeMap;

use fs_schedule::reuse::Reuse;
use fs_schedule::signature::{OperandType, counts, id as id_matrix, index, real};
use fs_schedule::{Element, Extent, Way, WirePrecision};

use super::super::PassError;
use crate::dialect::named;
use crate::distribution::{Id, Op, Terms};
use crate::ir::{Attr, Attrs, Module, OpId, Type, ValueId};

/// Appends operations to a list.
pub(super) struct Emitter<'a> {
    pub module: &'a mut Module,
    pub body: Vec<OpId>,
    /// Of the operations to come.
    pub microbatch: Option<u32>,
}

impl Emitter<'_> {
    pub(super) fn emit(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        attrs: Attrs,
        types: &[Type],
        scope: &str,
    ) -> Vec<ValueId> {
        let id = self.module.create(named(name), operands, attrs, types, scope);
        self.module.op_mut(id).microbatch = self.microbatch;
        self.body.push(id);
        self.module.op(id).results.clone()
    }
    /// Operands of other batches, for the operation appended last.
    pub(super) fn offsets(&mut self, offsets: Vec<i32>) {
        if let Some(id) = self.body.last().filter(|_| offsets.iter().any(|o| *o != 0)) {
            self.module.op_mut(*id).offsets = offsets;
        }
    }
    /// What the first result of the operation appended last is added into.
    pub(super) fn add_into(&mut self, base: Option<ValueId>) {
        if let (Some(id), Some(_)) = (self.body.last(), base) {
            self.module.op_mut(*id).into = vec![base];
        }
    }
}

/// What has become of a term.
#[derive(Debug, Clone, Copy)]
struct Made {
    value: ValueId,
    /// Of lists: how many go to, or come from, each rank.
    counts: Option<ValueId>,
    /// Of entries: the windows that use each first and last.
    uses: Option<ValueId>,
}

impl Made {
    fn plain(value: ValueId) -> Self {
        Self { value, counts: None, uses: None }
    }
}

/// Terms, and the operations written so far.
pub(super) struct Generator<'a> {
    pub e: Emitter<'a>,
    pub terms: Terms,
    made: BTreeMap<Id, Made>,
    /// Gradients as they leave, where that is not as they are.
    left: BTreeMap<Id, ValueId>,
    /// Of entries those with owners and those of hot rows.
    shares: BTreeMap<Id, Vec<Id>>,
    /// What rows and gradients are on their way.
    wire: WirePrecision,
}

impl<'a> Generator<'a> {
    pub(super) fn new(e: Emitter<'a>, wire: WirePrecision) -> Self {
        let (made, left, shares) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { e, terms: Terms::default(), made, left, shares, wire }
    }

    /// A leaf is a value that is there.
    pub(super) fn bind(&mut self, leaf: Id, value: ValueId) {
        self.made.insert(leaf, Made::plain(value));
    }

    /// What `unique` gives with entries.
    pub(super) fn share(&mut self, entries: Id, shares: &[Id]) {
        self.shares.insert(entries, shares.to_vec());
    }

    /// The value of a term, which is written now if it has not been.
    pub(super) fn value(&mut self, id: Id, scope: &str) -> Result<ValueId, PassError> {
        Ok(self.made(id, scope)?.value)
    }

    /// The value of a use of rows: written anew for each that uses them.
    pub(super) fn written(
        &mut self,
        op: Op,
        children: &[Id],
        attrs: &Attrs,
        scope: &str,
    ) -> Result<ValueId, PassError> {
        let id = self.terms.add(op, children)?;
        let operands = self.values(children, scope)?;
        let name = match op {
            Op::Expand => "comm.expand",
            Op::Pool { .. } => "comm.pool",
            Op::ExpandGrad => "comm.expand_grad",
            Op::PoolGrad { .. } => "comm.pool_grad",
            other => return Err(PassError::new(format!("{} is no use of rows", other.name()))),
        };
        let ty = self.real(id)?;
        Ok(self.e.emit(name, operands, attrs.clone(), &[ty], scope)[0])
    }

    /// Writes the update of a table by a sum of gradients.
    pub(super) fn apply(&mut self, total: Id, table: ValueId, scope: &str) -> Result<(), PassError> {
        let node = self.terms.node(total).clone();
        let (asked, received) = (self.made(node.children[0], scope)?, self.value(node.children[1], scope)?);
        let mut operands = vec![asked.value];
        let list = match node.children.get(2) {
            None => asked,
            Some(positions) => {
                let positions = self.made(*positions, scope)?;
                operands.push(positions.value);
                positions
            }
        };
        operands.extend([counts_of(list)?, received, table]);
        let attrs = self.of_class(self.single(total)?, total);
        self.e.emit("comm.apply", operands, attrs, &[], scope);
        Ok(())
    }

    /// Writes ranges of columns that are all of a sum's: one operation gives them.
    pub(super) fn columns(&mut self, parts: &[Id], scope: &str) -> Result<(), PassError> {
        let Some(sum) = parts.first().and_then(|p| self.terms.child(*p, 0)) else { return Ok(()) };
        let operand = self.value(sum, scope)?;
        let sizes = parts.iter().map(|p| Attr::Int(self.terms.ty(*p).columns.into())).collect();
        let attrs = Attrs::from([("sizes".into(), Attr::List(sizes))]);
        let types = parts.iter().map(|p| self.real(*p)).collect::<Result<Vec<_>, _>>()?;
        let made = self.e.emit("model.split", vec![operand], attrs, &types, scope);
        self.made.extend(parts.iter().copied().zip(made.into_iter().map(Made::plain)));
        Ok(())
    }

    /// Rows that travelled together, of a term that is written, are f32 from here on.
    pub(super) fn arrived(&mut self, id: Id, scope: &str) -> Result<(), PassError> {
        if self.wire.rows == Element::Real {
            return Ok(());
        }
        let value = self.value(id, scope)?;
        let mut attrs = self.single(id)?;
        attrs.insert("classes".into(), Attr::List(Vec::new()));
        let ty = self.real(id)?;
        let value = self.e.emit("comm.merge", vec![value], attrs, &[ty], scope)[0];
        self.made.insert(id, Made::plain(value));
        Ok(())
    }

    /// A rank's gradients that travel together are rounded before they leave, as those of a class are. `list` says whose they
    /// are.
    pub(super) fn leaving(&mut self, own: Id, list: Id, scope: &str) -> Result<(), PassError> {
        if self.wire.gradients == Element::Real {
            return Ok(());
        }
        let value = self.value(own, scope)?;
        let attrs = self.single(list)?;
        let ty = Type::floats(self.wire.gradients, self.extent(own)?, self.terms.ty(own).columns);
        let value = self.e.emit("comm.split", vec![value], attrs, &[ty], scope)[0];
        self.left.insert(own, value);
        Ok(())
    }

    fn values(&mut self, ids: &[Id], scope: &str) -> Result<Vec<ValueId>, PassError> {
        ids.iter().map(|id| self.value(*id, scope)).collect()
    }

    fn made(&mut self, id: Id, scope: &str) -> Result<Made, PassError> {
        if let Some(made) = self.made.get(&id) {
            return Ok(*made);
        }
        let node = self.terms.node(id).clone();
        let of = node.children.iter().map(|c| self.made(*c, scope)).collect::<Result<Vec<_>, _>>()?;
        // Some are written together with a child.
        if let Some(made) = self.made.get(&id) {
            return Ok(*made);
        }
        let made = match node.op {
            Op::Entries { .. } => self.entries(id, &of, scope)?,
            Op::Ask { .. } | Op::AskAll { .. } | Op::AskRelay { .. } => self.ask(id, of[0], scope)?,
            Op::Relayed { .. } => self.relayed(id, of[0], scope)?,
            Op::PassClasses => {
                let way = self.way(id)?;
                let operands = of.iter().map(|m| m.value).collect();
                let attrs = with_way(self.single(id)?, way);
                let types = [byte(self.extent(id)?, 1)];
                let value = self.e.emit("comm.pass_classes", operands, attrs, &types, scope)[0];
                Made { value, counts: of[1].counts, uses: None }
            }
            Op::PassRows => {
                let operands = of.iter().map(|m| m.value).collect();
                self.rows("comm.pass_rows", operands, self.single(id)?, id, scope)?
            }
            Op::SumAsked => {
                // How many gradients are whose: of the class, or of all that is asked for.
                let list = of.get(3).copied().unwrap_or(of[1]);
                let mut operands = vec![of[0].value, counts_of(list)?, of[2].value];
                operands.extend(of[3..].iter().map(|m| m.value));
                self.rows("comm.sum_asked", operands, self.single(id)?, id, scope)?
            }
            Op::Partition { .. } => self.partition(id, &of, scope)?,
            Op::Answer => {
                let way = self.way(id)?;
                let operands = vec![of[0].value, counts_of(of[0])?, counts_of(of[1])?];
                let attrs = with_way(self.grouped(id)?, way);
                let types = [byte(self.extent(id)?, 1)];
                let value = self.e.emit("comm.all_to_all_classes", operands, attrs, &types, scope)[0];
                Made { value, counts: of[1].counts, uses: None }
            }
            Op::Positions { way, class, of: classes } => {
                let operands = vec![of[0].value, counts_of(of[0])?];
                let mut all = Vec::new();
                for class in 0..classes {
                    all.push(self.terms.add(Op::Positions { way, class, of: classes }, &node.children)?);
                }
                let mut types = Vec::new();
                for of_class in &all {
                    types.extend([Type::from(index(self.extent(*of_class)?, 1)), counts().into()]);
                }
                let attrs = with_way(self.single(id)?, way);
                let made = self.e.emit("comm.positions", operands, attrs, &types, scope);
                for (id, made) in all.into_iter().zip(made.chunks_exact(2)) {
                    self.made.insert(id, Made { value: made[0], counts: Some(made[1]), uses: None });
                }
                return self
                    .made
                    .get(&id)
                    .copied()
                    .ok_or_else(|| PassError::new(format!("class {class} is not among {classes}")));
            }
            Op::Gather => {
                let operands = of.iter().map(|m| m.value).collect();
                self.rows("comm.gather", operands, self.single(id)?, id, scope)?
            }
            Op::Return => {
                let operands = vec![of[0].value, counts_of(of[1])?, counts_of(of[2])?];
                self.rows("comm.all_to_all_rows", operands, self.grouped(id)?, id, scope)?
            }
            Op::Split | Op::Cut { .. } => {
                // Of all gradients of a share it says which.
                let of = if matches!(node.op, Op::Cut { .. }) { &of[..1] } else { &of[..] };
                let operands = of.iter().map(|m| m.value).collect();
                self.rows("comm.split", operands, self.single(id)?, id, scope)?
            }
            Op::Send | Op::SendAll => {
                let name =
                    if node.op == Op::Send { "comm.all_to_all_grads" } else { "comm.all_gather_grads" };
                let own = self.left.get(&node.children[0]).copied().unwrap_or(of[0].value);
                let operands = vec![own, counts_of(of[1])?, counts_of(of[2])?];
                self.rows(name, operands, self.grouped(id)?, id, scope)?
            }
            Op::Merge => {
                let odd = of.len() % 2;
                let lists = node.children[odd..].iter().skip(1).step_by(2);
                let classes = lists.filter_map(|list| self.terms.class(*list));
                let mut attrs = self.single(id)?;
                attrs.insert("classes".into(), Attr::List(classes.map(|c| Attr::Int(c.into())).collect()));
                let operands = of[odd..].iter().map(|m| m.value).collect();
                let value = self.e.emit("comm.merge", operands, attrs, &[self.real(id)?], scope)[0];
                self.e.add_into(of.first().filter(|_| odd == 1).map(|m| m.value));
                Made::plain(value)
            }
            Op::Unite => {
                let (lists, hot) = (&node.children[..of.len() - 2], of[of.len() - 2]);
                let classes = lists.iter().skip(1).step_by(2).filter_map(|list| self.terms.class(*list));
                let mut attrs = self.single(id)?;
                attrs.insert("classes".into(), Attr::List(classes.map(|c| Attr::Int(c.into())).collect()));
                let operands = of[..lists.len()].iter().chain([&hot]).map(|m| m.value).collect();
                Made::plain(self.e.emit("comm.merge", operands, attrs, &[self.real(id)?], scope)[0])
            }
            Op::Concat => {
                let operands = of.iter().map(|m| m.value).collect();
                let ty = self.real(id)?;
                Made::plain(self.e.emit("model.concat", operands, Attrs::new(), &[ty], scope)[0])
            }
            Op::Sum => {
                let operands = of.iter().map(|m| m.value).collect();
                let ty = self.real(id)?;
                Made::plain(self.e.emit("model.add", operands, Attrs::new(), &[ty], scope)[0])
            }
            other => {
                return Err(PassError::new(format!(
                    "{} is not a term that is written by itself",
                    other.name()
                )));
            }
        };
        self.made.insert(id, made);
        Ok(made)
    }

    /// `unique`, with the positions of all ids that it takes.
    fn entries(&mut self, id: Id, ids: &[Made], scope: &str) -> Result<Made, PassError> {
        let node = self.terms.node(id).clone();
        let uses = matches!(node.op, Op::Entries { uses: true, .. });
        let sent = self.extent(id)?;
        let shares = self.shares.get(&id).cloned().unwrap_or_default();
        let mut types: Vec<Type> = Vec::new();
        if !shares.is_empty() {
            types.push(id_matrix(sent, 1).into());
        }
        let first = types.len();
        let sizes = shares.iter().map(|share| self.extent(*share)).collect::<Result<Vec<_>, _>>()?;
        for sent in if shares.is_empty() { vec![sent] } else { sizes } {
            types.extend([Type::from(id_matrix(sent, 1)), counts().into()]);
            if uses {
                types.push(byte(sent, 2));
            }
        }
        let extra = types.len();
        for ids in &node.children {
            types.push(index(self.extent(*ids)?, self.terms.ty(*ids).columns).into());
        }
        let operands = ids.iter().map(|m| m.value).collect();
        let made = self.e.emit("comm.unique", operands, self.single(id)?, &types, scope);
        for (ids, inverse) in node.children.iter().zip(&made[extra..]) {
            let term = self.terms.add(Op::Inverse, &[id, *ids])?;
            self.made.insert(term, Made::plain(*inverse));
        }
        let of = |at: usize| Made {
            value: made[at],
            counts: Some(made[at + 1]),
            uses: uses.then(|| made[at + 2]),
        };
        if shares.is_empty() {
            return Ok(of(0));
        }
        self.made
            .extend(shares.iter().zip((first..).step_by(2 + usize::from(uses))).map(|(s, at)| (*s, of(at))));
        Ok(Made::plain(made[0]))
    }

    /// What a relay asks for, with the places of all that its node asks it for.
    fn relayed(&mut self, id: Id, asked: Made, scope: &str) -> Result<Made, PassError> {
        let node = self.terms.node(id).clone();
        let (sent, received) = (self.extent(id)?, self.extent(node.children[0])?);
        let mut operands = vec![asked.value, counts_of(asked)?];
        operands.extend(asked.uses);
        let mut types: Vec<Type> = vec![id_matrix(sent, 1).into(), counts().into()];
        types.extend(asked.uses.map(|_| byte(sent, 2)));
        types.push(index(received, 1).into());
        let made = self.e.emit("comm.unique_asked", operands, self.single(id)?, &types, scope);
        let places = self.terms.add(Op::Places, &[id, node.children[0]])?;
        let at = Made { value: made[made.len() - 1], counts: asked.counts, uses: None };
        self.made.insert(places, at);
        Ok(Made { value: made[0], counts: Some(made[1]), uses: asked.uses.map(|_| made[2]) })
    }

    /// Input dist; of replicas with the rank's own rows.
    fn ask(&mut self, id: Id, entries: Made, scope: &str) -> Result<Made, PassError> {
        let node = self.terms.node(id).clone();
        let received = self.extent(id)?;
        let mut operands = vec![entries.value, counts_of(entries)?];
        operands.extend(entries.uses);
        let mut types: Vec<Type> = vec![index(received, 1).into(), counts().into()];
        let all = matches!(node.op, Op::AskAll { .. });
        if all {
            types.push(index(self.extent(node.children[0])?, 1).into());
        }
        if entries.uses.is_some() {
            types.push(byte(received, 2));
        }
        let name = if all { "comm.all_gather_ids" } else { "comm.all_to_all_ids" };
        let made = self.e.emit(name, operands, self.grouped(id)?, &types, scope);
        if all {
            let own = self.terms.add(Op::Own, &[id, node.children[0]])?;
            self.made.insert(own, Made { value: made[2], ..entries });
        }
        Ok(Made { value: made[0], counts: Some(made[1]), uses: entries.uses.map(|_| made[made.len() - 1]) })
    }

    /// Classes of rows, by those that the owner knows of the batches around.
    fn partition(&mut self, id: Id, of: &[Made], scope: &str) -> Result<Made, PassError> {
        let Op::Partition { way, lookahead, windows, each } = self.terms.node(id).op else {
            return Err(PassError::new("not a partition"));
        };
        let sign = match way {
            Way::Forward => -1,
            Way::Backward => 1,
        };
        let mut operands = vec![of[0].value];
        operands.extend(of[0].uses);
        let mut offsets = vec![0; operands.len()];
        for distance in 1..=(Reuse { lookahead, windows, each }).history() as i32 {
            operands.push(of[1].value);
            operands.extend(of[1].uses);
            offsets.resize(operands.len(), sign * distance);
        }
        let attrs = with_way(self.single(id)?, way);
        let types = [byte(self.extent(id)?, 1)];
        let value = self.e.emit("comm.partition", operands, attrs, &types, scope)[0];
        self.e.offsets(offsets);
        Ok(Made { value, counts: of[0].counts, uses: None })
    }

    /// An operation that gives the rows or gradients of a term.
    fn rows(
        &mut self,
        name: &str,
        operands: Vec<ValueId>,
        attrs: Attrs,
        id: Id,
        scope: &str,
    ) -> Result<Made, PassError> {
        let element = match self.terms.node(id).op {
            Op::Gather | Op::Return | Op::PassRows => self.wire.rows,
            _ => self.wire.gradients,
        };
        let ty = Type::floats(element, self.extent(id)?, self.terms.ty(id).columns);
        let attrs = self.of_class(attrs, id);
        Ok(Made::plain(self.e.emit(name, operands, attrs, &[ty], scope)[0]))
    }

    fn extent(&self, id: Id) -> Result<Extent, PassError> {
        let text = || format!("{} has no rows of its own", self.terms.display(id));
        self.terms.extent(id).ok_or_else(|| PassError::new(text()))
    }
    fn real(&self, id: Id) -> Result<Type, PassError> {
        Ok(real(self.extent(id)?, self.terms.ty(id).columns).into())
    }
    fn exchange(&self, id: Id) -> Result<Attr, PassError> {
        let text = || format!("{} belongs to no exchange", self.terms.display(id));
        self.terms.exchange(id).map(|e| Attr::Int(e.into())).ok_or_else(|| PassError::new(text()))
    }
    /// `{exchange = e}`.
    fn single(&self, id: Id) -> Result<Attrs, PassError> {
        Ok(Attrs::from([("exchange".into(), self.exchange(id)?)]))
    }
    /// `{exchanges = [e]}`.
    fn grouped(&self, id: Id) -> Result<Attrs, PassError> {
        Ok(Attrs::from([("exchanges".into(), Attr::List(vec![self.exchange(id)?]))]))
    }
    fn of_class(&self, mut attrs: Attrs, id: Id) -> Attrs {
        attrs.extend(self.terms.class(id).map(|c| ("class".into(), Attr::Int(c.into()))));
        attrs
    }
    /// Lookups or gradients, of classes.
    fn way(&self, id: Id) -> Result<Way, PassError> {
        match self.terms.node(id).op {
            Op::Partition { way, .. } | Op::Positions { way, .. } => Ok(way),
            _ => match self.terms.child(id, 0) {
                Some(of) => self.way(of),
                None => Err(PassError::new("classes of neither lookups nor gradients")),
            },
        }
    }
}

/// Classes, or windows of first and last use.
fn byte(rows: Extent, columns: u32) -> Type {
    OperandType::Matrix { element: Element::Byte, rows, columns }.into()
}

/// Attributes and a direction.
fn with_way(mut attrs: Attrs, way: Way) -> Attrs {
    attrs.insert("way".into(), Attr::from(&way));
    attrs
}

/// How many entries of a list go where.
fn counts_of(made: Made) -> Result<ValueId, PassError> {
    made.counts.ok_or_else(|| PassError::new("a list does not say how many go where"))
}
