//! Terms: how the rows of one table and their gradients travel, each a value of its own.
//!
//! A term is an operation on other terms. The arena holds every term once, so equal terms have equal numbers and a
//! number says all: its type ([`super::ty`]) and the number of its rows ([`super::extent`]) follow from it.

use std::collections::BTreeMap;
use std::fmt;

use super::infer::infer;
use super::op::Op;
use super::ty::{Type, TypeError};

/// A term of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u32);

/// An operation and what it works on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    /// What it does.
    pub op: Op,
    /// To what.
    pub children: Vec<Id>,
}

/// An arena of well-typed terms.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    nodes: Vec<Node>,
    types: Vec<Type>,
    numbers: BTreeMap<Node, Id>,
}

impl Terms {
    /// The term of an operation and its children; the same twice is one term.
    ///
    /// # Errors
    /// If the children do not have the types that the operation needs.
    pub fn add(&mut self, op: Op, children: &[Id]) -> Result<Id, TypeError> {
        let node = Node { op, children: children.to_vec() };
        if let Some(id) = self.numbers.get(&node) {
            return Ok(*id);
        }
        let types: Vec<Type> = children.iter().map(|c| self.ty(*c)).collect();
        let mut ty = infer(op, &types)?;
        if matches!(op, Op::ExpandGrad | Op::PoolGrad { .. }) {
            let entries = self.entries_of(children[1]);
            ty.per = entries.map_or(ty.per, |e| self.ty(e).per);
        }
        // What entries say of ids holds for those that they were made of.
        if op == Op::Inverse && !self.node(children[0]).children.contains(&children[1]) {
            return Err(TypeError { op: op.name(), operand: 1, wanted: "ids that the entries were made of" });
        }
        if matches!(op, Op::Share { .. }) && !matches!(self.node(children[0]).op, Op::Entries { .. }) {
            return Err(TypeError { op: op.name(), operand: 0, wanted: "all entries of a rank" });
        }
        if matches!(op, Op::Cut { .. })
            && self.node(children[1]).children.first().copied() != self.summed_for(children[0])
        {
            return Err(TypeError {
                op: op.name(),
                operand: 1,
                wanted: "a share of the entries that are summed",
            });
        }
        if op == Op::Places && self.node(children[0]).children != children[1..] {
            return Err(TypeError { op: op.name(), operand: 1, wanted: "what the relay's list was made of" });
        }
        if matches!(op, Op::Joint { .. }) {
            self.travel_together(children)?;
        }
        let id = Id(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.types.push(ty);
        self.numbers.insert(node, id);
        Ok(id)
    }
    /// How classes are told apart, by owners or as relays pass them on.
    fn partition(&self, classes: Id) -> Option<Op> {
        match self.node(classes).op {
            Op::PassClasses | Op::Answer => self.partition(self.child(classes, 0)?),
            op => Some(op),
        }
    }
    /// Whether transfers may be one: they do the same, of the same class and on the same leg, for other exchanges.
    fn travel_together(&self, transfers: &[Id]) -> Result<(), TypeError> {
        let what = |id: Id| {
            let op = self.node(id).op;
            let apart =
                self.child(id, 0).filter(|_| op == Op::Answer).and_then(|classes| self.partition(classes));
            (op.name(), self.class(id), self.ty(id).sharded, apart)
        };
        let travels = |id: Id| {
            matches!(
                self.node(id).op,
                Op::Ask { .. }
                    | Op::AskAll { .. }
                    | Op::AskRelay { .. }
                    | Op::Answer
                    | Op::Return
                    | Op::Send
                    | Op::SendAll
                    | Op::AllReduce
            )
        };
        let own = |id: Id| self.exchange(id).filter(|_| self.node(id).op != Op::AllReduce);
        for (i, id) in transfers.iter().enumerate() {
            let same = |other: &Id| own(*other).map_or(other == id, |exchange| own(*id) == Some(exchange));
            if !travels(*id) || what(*id) != what(transfers[0]) || transfers[..i].iter().any(same) {
                let wanted = "a transfer that does the same, of another exchange";
                return Err(TypeError { op: "joint", operand: i, wanted });
            }
        }
        Ok(())
    }
    /// Operation and children.
    pub(crate) fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0 as usize]
    }
    /// The i-th child.
    pub(crate) fn child(&self, id: Id, i: usize) -> Option<Id> {
        self.node(id).children.get(i).copied()
    }
    /// The type.
    pub(crate) fn ty(&self, id: Id) -> Type {
        self.types[id.0 as usize]
    }
    /// The entries that a rank's gradients are summed for.
    fn summed_for(&self, id: Id) -> Option<Id> {
        match self.node(id).op {
            Op::ExpandGrad | Op::PoolGrad { .. } => self.entries_of(self.child(id, 1)?),
            Op::Gradients { .. } => self.child(id, 0),
            Op::Sum | Op::Columns { .. } => self.summed_for(self.child(id, 0)?),
            _ => None,
        }
    }
    /// The entries that positions of ids, or lists of a rank's rows, are about.
    pub(crate) fn entries_of(&self, id: Id) -> Option<Id> {
        match self.node(id).op {
            Op::Entries { .. } | Op::Relayed { .. } | Op::Share { .. } => Some(id),
            Op::Inverse | Op::Dispatch | Op::Combine | Op::Gradients { .. } => {
                self.entries_of(self.child(id, 0)?)
            }
            Op::PassClasses | Op::Own | Op::Answer => self.entries_of(self.child(id, 1)?),
            Op::Partition { .. } | Op::Positions { .. } | Op::Places => self.entries_of(self.child(id, 0)?),
            _ => None,
        }
    }
    /// Number of terms.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    /// True without terms.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// A term as text: `(return (gather shard ask) ask entries)`.
    pub(crate) fn display(&self, id: Id) -> Text<'_> {
        Text { terms: self, id }
    }
}

/// A term to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text<'a> {
    terms: &'a Terms,
    id: Id,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.terms.node(self.id);
        if node.children.is_empty() {
            return write!(f, "{}", node.op.name());
        }
        write!(f, "({}", node.op.name())?;
        for child in &node.children {
            write!(f, " {}", self.terms.display(*child))?;
        }
        write!(f, ")")
    }
}
