//! What a class of equal nodes is: its type, if it is a term.

use egg::{Analysis, DidMerge, EGraph, Id};

use super::lang::{Name, Node, decode, shape};
use crate::distribution::ty::{Per, Type};
use crate::distribution::{Op, infer};

/// What all nodes of a class are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A parameter.
    Parameter(Name),
    /// A term.
    Term {
        /// Its type.
        ty: Type,
        /// Of places among entries: what the entries are one per.
        entries: Option<Per>,
    },
    /// Operands.
    List(Vec<Id>),
    /// What becomes of a table.
    Table,
    /// Operands do not fit, or equal nodes are of different types: a rule is wrong.
    Ill,
}

/// The analysis of types.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kinds;

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
            Kind::List(of) => of.clone(),
            _ => return None,
        },
        operands => operands.to_vec(),
    };
    let term = |c: &Id| match graph[*c].data {
        Kind::Term { ty, entries } => Some((ty, entries)),
        _ => None,
    };
    let of: Vec<(Type, Option<Per>)> = operands.iter().map(term).collect::<Option<_>>()?;
    let types: Vec<Type> = of.iter().map(|(ty, _)| *ty).collect();
    let op = decode(name, &parameters, false)?;
    let mut ty = infer(op, &types).ok()?;
    let mut entries = None;
    match op {
        Op::Inverse => entries = Some(types.first()?.per),
        Op::ExpandGrad | Op::PoolGrad { .. } => ty.per = of.get(1)?.1?,
        _ => {}
    }
    Some(Kind::Term { ty, entries })
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
