//! Terms to nodes and back.

use std::collections::BTreeMap;

use egg::{Id as Class, RecExpr};

use super::lang::{Name, Node, decode, encode, shape};
use crate::distribution::{Id, Op, Terms, TypeError};

/// A term or node that the other side does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// No rule is about it.
    #[error("{0} has no place in the algebra")]
    Op(&'static str),
    /// Nodes that are no term.
    #[error("`{0}` is no term")]
    Node(String),
    /// Nodes of a term without a type.
    #[error(transparent)]
    Type(#[from] TypeError),
}

/// What becomes of a table in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What is made of its rows, in the order of its uses.
    pub uses: Vec<Id>,
    /// Its update; none of a function that only reads.
    pub update: Option<Id>,
}

/// A table's terms as one expression.
///
/// # Errors
/// If a term's operation is none that rules are about.
pub fn to_nodes(terms: &Terms, table: &Table) -> Result<RecExpr<Node>, ConvertError> {
    let mut out = Writer { terms, nodes: RecExpr::default(), known: BTreeMap::new() };
    let mut lists = Vec::new();
    for list in [table.uses.clone(), table.update.into_iter().collect()] {
        let children = list.into_iter().map(|id| out.term(id)).collect::<Result<_, _>>()?;
        lists.push(out.add(Name::List, children));
    }
    out.add(Name::Table, lists);
    Ok(out.nodes)
}

struct Writer<'a> {
    terms: &'a Terms,
    nodes: RecExpr<Node>,
    known: BTreeMap<Node, Class>,
}

impl Writer<'_> {
    fn add(&mut self, name: Name, children: Vec<Class>) -> Class {
        let node = Node { name, children };
        if let Some(known) = self.known.get(&node) {
            return *known;
        }
        let class = self.nodes.add(node.clone());
        self.known.insert(node, class);
        class
    }

    fn term(&mut self, id: Id) -> Result<Class, ConvertError> {
        let node = self.terms.node(id);
        let (name, parameters) = encode(node.op).ok_or(ConvertError::Op(node.op.name()))?;
        let mut children: Vec<Class> = parameters.into_iter().map(|p| self.add(p, Vec::new())).collect();
        let operands: Vec<Class> = node.children.iter().map(|c| self.term(*c)).collect::<Result<_, _>>()?;
        match shape(name) {
            Some((_, _, true)) => children.push(self.add(Name::List, operands)),
            _ => children.extend(operands),
        }
        Ok(self.add(Name::Op(name), children))
    }
}

/// What a node of an expression is.
enum Read {
    Parameter(Name),
    Term(Id),
    List(Vec<Id>),
    Table(Table),
}

/// A table's terms of an expression, in an arena.
///
/// # Errors
/// If they are none, or have no type.
pub fn to_terms(nodes: &RecExpr<Node>, terms: &mut Terms) -> Result<Table, ConvertError> {
    match read(nodes, terms)? {
        Read::Table(table) => Ok(table),
        _ => Err(ConvertError::Node(nodes.to_string())),
    }
}

/// A term of an expression, in an arena.
///
/// # Errors
/// If it is none, or has no type.
pub fn to_term(nodes: &RecExpr<Node>, terms: &mut Terms) -> Result<Id, ConvertError> {
    match read(nodes, terms)? {
        Read::Term(id) => Ok(id),
        _ => Err(ConvertError::Node(nodes.to_string())),
    }
}

/// The last node of an expression.
fn read(nodes: &RecExpr<Node>, terms: &mut Terms) -> Result<Read, ConvertError> {
    // Owners that tell classes of several windows apart must be told who uses a row first and last.
    let number = |class: &Class| match nodes[*class].name {
        Name::Number(n) => n,
        _ => 0,
    };
    let tells =
        |n: &Node| n.name == Name::Op("partition") && n.children.get(2).is_some_and(|m| number(m) > 1);
    let uses = nodes.as_ref().iter().any(tells);
    let mut read: Vec<Read> = Vec::with_capacity(nodes.as_ref().len());
    for node in nodes.as_ref() {
        let wrong = || ConvertError::Node(node.to_string());
        let child = |c: &Class| read.get(usize::from(*c)).ok_or_else(wrong);
        let now = match node.name {
            Name::Table => {
                let [uses, update] = node.children[..] else { return Err(wrong()) };
                let (Read::List(uses), Read::List(update)) = (child(&uses)?, child(&update)?) else {
                    return Err(wrong());
                };
                Read::Table(Table { uses: uses.clone(), update: update.first().copied() })
            }
            Name::List => {
                let of = |c| match child(c)? {
                    Read::Term(id) => Ok(*id),
                    _ => Err(wrong()),
                };
                Read::List(node.children.iter().map(of).collect::<Result<_, _>>()?)
            }
            Name::Op(name) => {
                let (mut parameters, mut operands) = (Vec::new(), Vec::new());
                for c in &node.children {
                    match child(c)? {
                        Read::Parameter(p) => parameters.push(*p),
                        Read::Term(id) => operands.push(*id),
                        Read::List(list) => operands.extend(list),
                        Read::Table(_) => return Err(wrong()),
                    }
                }
                let op: Op = decode(name, &parameters, uses).ok_or_else(wrong)?;
                Read::Term(terms.add(op, &operands)?)
            }
            parameter => Read::Parameter(parameter),
        };
        read.push(now);
    }
    read.pop().ok_or_else(|| ConvertError::Node("nothing".into()))
}
