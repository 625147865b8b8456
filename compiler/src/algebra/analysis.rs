//! What a class of equal nodes is: its type and its size, if it is a term.

use egg::{Analysis, DidMerge, EGraph, Id};
use fs_schedule::reuse::Reuse;
use fs_schedule::{Extent, Symbol as Sized};

use super::lang::{Name, Node, decode, shape};
use super::size::{Class, List, Size, Symbol};
use crate::distribution::ty::{Per, Type};
use crate::distribution::{Op, infer};

/// What all nodes of a class are.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A parameter.
    Parameter(Name),
    /// A term.
    Term(Term),
    /// Operands.
    List(Vec<Id>),
    /// What becomes of a table.
    Table,
    /// Operands do not fit, or equal nodes are of different types or sizes: a rule is wrong.
    Ill,
}

/// What all terms of a class are.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    /// Their type.
    pub ty: Type,
    /// How many rows a rank has of it.
    pub size: Size,
    /// Of places: what is in the list that they are in.
    pub among: Option<Among>,
    /// Of classes: how they are told apart, and whether as relays pass them on.
    pub told: Option<(Reuse, bool)>,
}

/// A list that places are in.
#[derive(Debug, Clone, PartialEq)]
pub struct Among {
    /// One per what.
    pub per: Per,
    /// How many.
    pub size: Size,
}

/// The analysis of types and sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kinds;

/// Rows of a sequence, or of what is given for it.
fn of_sequence(source: u32, rows: Extent) -> Option<Size> {
    match rows {
        Extent::Fixed(n) => Some(Size::fixed(n)),
        Extent::Symbol(Sized::Samples) => Some(Size::of(Symbol::Samples)),
        Extent::Symbol(Sized::Tokens(_)) => Some(Size::of(Symbol::Ids(source))),
        Extent::Symbol(_) => None,
    }
}

/// How many there are of an operation's value; none if operands do not have as many of each other's as they must.
fn size(op: Op, of: &[&Term]) -> Option<Size> {
    let size = |i: usize| of.get(i).map(|term| term.size.clone());
    let among = |i: usize| of.get(i).and_then(|term| term.among.as_ref()).map(|among| among.size.clone());
    let fits = |fits: bool| fits.then_some(());
    match op {
        // Of a shard whatever is asked for; sums are by row of the table.
        Op::Shard { .. } | Op::Replicas { .. } | Op::Update | Op::Join | Op::Beside => Some(Size::none()),
        Op::Total => {
            let list = if of.len() == 3 { 2 } else { 0 };
            fits(size(1) == size(list))?;
            Some(Size::none())
        }
        Op::Ids { source, rows, .. } | Op::Given { source, rows, .. } => of_sequence(source, rows),
        Op::Offsets { .. } => Some(Size::of(Symbol::Samples)),
        // Whoever asks for them, these are what a rank needs.
        Op::Entries { unique, .. } | Op::AskFor { unique, .. } => Some(Size::rows(List::of_rank(unique))),
        Op::Relayed { .. } => Some(Size::rows(List::Relayed)),
        Op::AskAll { .. } => Some(size(0)?.of_all()),
        Op::Positions { way, class, .. } => {
            let (reuse, passed) = of.first()?.told?;
            Some(size(0)?.in_class(Class { reuse, way, class, passed }))
        }
        Op::Inverse | Op::Places | Op::PassClasses | Op::Own | Op::Answer => size(1),
        Op::Ask { .. }
        | Op::AskRelay { .. }
        | Op::Partition { .. }
        | Op::Gradients { .. }
        | Op::Columns { .. }
        | Op::Dispatch
        | Op::Combine
        | Op::AllReduce
        | Op::Cast { .. } => size(0),
        Op::Sum | Op::Concat => {
            let first = size(0)?;
            fits(of.iter().all(|term| term.size == first))?;
            Some(first)
        }
        Op::Joint { nth } => size(nth as usize),
        // No rule is about them.
        Op::Share { .. } | Op::Unite | Op::Cut { .. } => None,
        // From one list to the other, of which both sides know how many.
        Op::Return | Op::Send => {
            fits(size(0) == size(1) && size(1) == size(2))?;
            size(2)
        }
        Op::SendAll => {
            fits(size(0) == size(1))?;
            size(2)
        }
        Op::Gather if of.len() == 2 => size(1),
        Op::Gather => {
            fits(among(2) == size(1))?;
            size(2)
        }
        Op::Split => {
            fits(among(1) == size(0))?;
            size(1)
        }
        Op::PassRows => {
            let there = if of.len() == 4 { size(2) } else { among(1) };
            fits(size(0) == there)?;
            size(of.len() - 1)
        }
        Op::SumAsked => {
            let asked = if of.len() == 5 { 3 } else { 1 };
            fits(size(2) == size(asked))?;
            if of.len() == 5 { size(4) } else { among(0) }
        }
        // All that places are among, whatever has arrived of it.
        Op::Merge => {
            let odd = of.len() % 2;
            let all = among(of.len() - 1)?;
            fits(odd == 0 || size(0)? == all)?;
            let pairs = of.get(odd..)?.chunks(2);
            fits(pairs.clone().all(|pair| pair[0].size == pair[pair.len() - 1].size))?;
            Some(all)
        }
        Op::Expand | Op::Pool { .. } => {
            fits(among(1) == size(0))?;
            if op == Op::Expand { size(1) } else { size(2) }
        }
        Op::ExpandGrad | Op::PoolGrad { .. } => among(1),
    }
}

fn of(graph: &EGraph<Node, Kinds>, node: &Node) -> Option<Kind> {
    let name = match node.name {
        Name::Table => return Some(Kind::Table),
        Name::List => return Some(Kind::List(node.children.clone())),
        Name::Op(name) => name,
        parameter => return Some(Kind::Parameter(parameter)),
    };
    let (_, count, list) = shape(name)?;
    let (parameters, operands) = node.children.split_at_checked(count)?;
    let parameter = |c: &Id| match graph[*c].data {
        Kind::Parameter(name) => Some(name),
        _ => None,
    };
    let parameters: Vec<Name> = parameters.iter().map(parameter).collect::<Option<_>>()?;
    let operands = match operands {
        [one] if list => match &graph[*one].data {
            Kind::List(of) => of,
            _ => return None,
        },
        operands => operands,
    };
    let term = |c: &Id| match &graph[*c].data {
        Kind::Term(term) => Some(term),
        _ => None,
    };
    let of: Vec<&Term> = operands.iter().map(term).collect::<Option<_>>()?;
    let types: Vec<Type> = of.iter().map(|term| term.ty).collect();
    let op = decode(name, &parameters, false)?;
    let mut ty = infer(op, &types).ok()?;
    let list = |i: usize| of.get(i).map(|list| Among { per: list.ty.per, size: list.size.clone() });
    let (mut among, mut told) = (None, None);
    match op {
        Op::Inverse | Op::Places | Op::Positions { .. } => among = list(0),
        Op::ExpandGrad | Op::PoolGrad { .. } => ty.per = of.get(1)?.among.as_ref()?.per,
        Op::Partition { lookahead, windows, each, .. } => {
            told = Some((Reuse { lookahead, windows, each }, false));
        }
        Op::Answer => told = of.first()?.told,
        Op::PassClasses => told = of.first()?.told.map(|(reuse, _)| (reuse, true)),
        Op::Joint { nth } => told = of.get(nth as usize)?.told,
        _ => {}
    }
    Some(Kind::Term(Term { ty, size: size(op, &of)?, among, told }))
}

impl Analysis<Node> for Kinds {
    type Data = Kind;

    fn make(graph: &mut EGraph<Node, Self>, node: &Node, _: Id) -> Kind {
        of(graph, node).unwrap_or(Kind::Ill)
    }

    fn merge(&mut self, a: &mut Kind, b: Kind) -> DidMerge {
        // Lists are equal where their elements are, which have other numbers before they are found to be equal.
        if *a == b || matches!((&*a, &b), (Kind::List(_), Kind::List(_))) {
            return DidMerge(false, false);
        }
        let both = (*a != Kind::Ill, b != Kind::Ill);
        *a = Kind::Ill;
        DidMerge(both.0, both.1)
    }
}
