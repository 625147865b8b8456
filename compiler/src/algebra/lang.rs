//! Terms as e-graphs hold them: an operation's parameters are operands, too, so that rules can name them.

use std::fmt;

use egg::{FromOp, FromOpError, Id, Language};
use fs_schedule::{Extent, Way};

use crate::distribution::Op;

/// What a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Name {
    /// An operation of terms; its parameters, then its operands.
    Op(&'static str),
    /// Operands, of operations that take any number.
    List,
    /// What becomes of one table in a step: what is made of its rows, and its update.
    Table,
    /// A number among parameters.
    Number(u32),
    /// A word among them.
    Word(&'static str),
    /// A number of rows among them.
    Rows(Extent),
}

/// A node of an e-graph.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    /// What it is.
    pub name: Name,
    /// Parameters and operands.
    pub children: Vec<Id>,
}

/// Operations by name: how many parameters each has, and whether its operands are a list.
const OPS: [(&str, usize, bool); 38] = [
    ("shard", 4, false),
    ("ids", 4, false),
    ("offsets", 1, false),
    ("given", 3, false),
    ("entries", 2, true),
    ("inverse", 0, false),
    ("ask", 1, false),
    ("ask_for", 2, true),
    ("ask_relay", 1, false),
    ("relayed", 1, false),
    ("places", 0, false),
    ("pass_classes", 0, false),
    ("pass_rows", 0, false),
    ("sum_asked", 0, false),
    ("ask_all", 1, false),
    ("own", 0, false),
    ("partition", 4, false),
    ("answer", 0, false),
    ("positions", 3, false),
    ("gather", 0, false),
    ("return", 0, false),
    ("merge", 0, true),
    ("concat", 0, true),
    ("expand", 0, false),
    ("pool", 1, false),
    ("expand_grad", 0, false),
    ("pool_grad", 1, false),
    ("sum", 0, true),
    ("columns", 2, false),
    ("split", 0, false),
    ("send", 0, false),
    ("send_all", 0, false),
    ("total", 0, false),
    ("update", 0, false),
    ("dispatch", 0, false),
    ("combine", 0, false),
    ("all_reduce", 0, false),
    ("joint", 1, true),
];
/// Those that only updates have.
const UPDATES: [(&str, usize, bool); 2] = [("join", 0, true), ("beside", 0, true)];

const WORDS: [&str; 8] = ["owners", "everywhere", "once", "each", "forward", "backward", "added", "averaged"];

/// The entry of an operation.
pub(super) fn shape(name: &str) -> Option<(&'static str, usize, bool)> {
    OPS.iter().chain(&UPDATES).find(|(n, ..)| *n == name).copied()
}

fn word(word: &'static str) -> Name {
    Name::Word(word)
}

fn way(way: Way) -> Name {
    word(if way == Way::Forward { "forward" } else { "backward" })
}

fn listed(unique: bool) -> Name {
    word(if unique { "once" } else { "each" })
}

fn pooled(mean: bool) -> Name {
    word(if mean { "averaged" } else { "added" })
}

/// An operation's name and parameters; `None` of those that no rule is about.
pub(super) fn encode(op: Op) -> Option<(&'static str, Vec<Name>)> {
    let number = Name::Number;
    Some(match op {
        Op::Shard { table, start, end, replicated } => {
            let place = word(if replicated { "everywhere" } else { "owners" });
            ("shard", vec![number(table), number(start), number(end), place])
        }
        Op::Ids { source, rows, columns, microbatch } => {
            ("ids", vec![number(source), Name::Rows(rows), number(columns), number(microbatch)])
        }
        Op::Offsets { source } => ("offsets", vec![number(source)]),
        Op::Given { source, rows, columns } => {
            ("given", vec![number(source), Name::Rows(rows), number(columns)])
        }
        // Whether uses are told follows from who asks for classes.
        Op::Entries { exchange, unique, uses: _ } => ("entries", vec![number(exchange), listed(unique)]),
        Op::AskFor { exchange, unique, uses: _ } => ("ask_for", vec![number(exchange), listed(unique)]),
        Op::Ask { exchange } => ("ask", vec![number(exchange)]),
        Op::AskAll { exchange } => ("ask_all", vec![number(exchange)]),
        Op::AskRelay { exchange } => ("ask_relay", vec![number(exchange)]),
        Op::Relayed { exchange, uses: _ } => ("relayed", vec![number(exchange)]),
        Op::Partition { way: w, lookahead, windows, each } => {
            ("partition", vec![way(w), number(lookahead), number(windows), number(each)])
        }
        Op::Positions { way: w, class, of } => ("positions", vec![way(w), number(class), number(of)]),
        Op::Pool { mean } => ("pool", vec![pooled(mean)]),
        Op::PoolGrad { mean } => ("pool_grad", vec![pooled(mean)]),
        Op::Columns { start, end } => ("columns", vec![number(start), number(end)]),
        Op::Joint { nth } => ("joint", vec![number(nth)]),
        Op::Gradients { .. }
        | Op::Cast { .. }
        | Op::Replicas { .. }
        | Op::Share { .. }
        | Op::Unite
        | Op::Cut { .. } => return None,
        plain => (shape(plain.name())?.0, Vec::new()),
    })
}

fn number(name: Option<&Name>) -> Option<u32> {
    match name {
        Some(Name::Number(n)) => Some(*n),
        _ => None,
    }
}

fn rows(name: Option<&Name>) -> Option<Extent> {
    match name {
        Some(Name::Rows(rows)) => Some(*rows),
        Some(Name::Number(n)) => Some(Extent::Fixed(*n)),
        _ => None,
    }
}

fn one_of(name: Option<&Name>, yes: &str, no: &str) -> Option<bool> {
    match name {
        Some(Name::Word(w)) if *w == yes => Some(true),
        Some(Name::Word(w)) if *w == no => Some(false),
        _ => None,
    }
}

/// The operation of a name and parameters; whether entries tell uses is for the caller to say.
pub(super) fn decode(name: &str, p: &[Name], uses: bool) -> Option<Op> {
    let number = |i: usize| number(p.get(i));
    let way = |i: usize| {
        one_of(p.get(i), "forward", "backward").map(|f| if f { Way::Forward } else { Way::Backward })
    };
    let mean = || one_of(p.first(), "averaged", "added");
    let once = |i: usize| one_of(p.get(i), "once", "each");
    Some(match name {
        "shard" => Op::Shard {
            table: number(0)?,
            start: number(1)?,
            end: number(2)?,
            replicated: one_of(p.get(3), "everywhere", "owners")?,
        },
        "ids" => {
            Op::Ids { source: number(0)?, rows: rows(p.get(1))?, columns: number(2)?, microbatch: number(3)? }
        }
        "offsets" => Op::Offsets { source: number(0)? },
        "given" => Op::Given { source: number(0)?, rows: rows(p.get(1))?, columns: number(2)? },
        "entries" => Op::Entries { exchange: number(0)?, unique: once(1)?, uses },
        "ask_for" => Op::AskFor { exchange: number(0)?, unique: once(1)?, uses },
        "inverse" => Op::Inverse,
        "ask" => Op::Ask { exchange: number(0)? },
        "ask_all" => Op::AskAll { exchange: number(0)? },
        "ask_relay" => Op::AskRelay { exchange: number(0)? },
        "relayed" => Op::Relayed { exchange: number(0)?, uses },
        "places" => Op::Places,
        "pass_classes" => Op::PassClasses,
        "pass_rows" => Op::PassRows,
        "sum_asked" => Op::SumAsked,
        "own" => Op::Own,
        "partition" => {
            Op::Partition { way: way(0)?, lookahead: number(1)?, windows: number(2)?, each: number(3)? }
        }
        "answer" => Op::Answer,
        "positions" => Op::Positions { way: way(0)?, class: number(1)?, of: number(2)? },
        "gather" => Op::Gather,
        "return" => Op::Return,
        "merge" => Op::Merge,
        "concat" => Op::Concat,
        "expand" => Op::Expand,
        "pool" => Op::Pool { mean: mean()? },
        "expand_grad" => Op::ExpandGrad,
        "pool_grad" => Op::PoolGrad { mean: mean()? },
        "sum" => Op::Sum,
        "columns" => Op::Columns { start: number(0)?, end: number(1)? },
        "split" => Op::Split,
        "send" => Op::Send,
        "send_all" => Op::SendAll,
        "total" => Op::Total,
        "update" => Op::Update,
        "dispatch" => Op::Dispatch,
        "combine" => Op::Combine,
        "all_reduce" => Op::AllReduce,
        "joint" => Op::Joint { nth: number(0)? },
        "join" => Op::Join,
        "beside" => Op::Beside,
        _ => return None,
    })
}

impl Language for Node {
    type Discriminant = Name;

    fn discriminant(&self) -> Name {
        self.name
    }
    fn matches(&self, other: &Self) -> bool {
        self.name == other.name && self.children.len() == other.children.len()
    }
    fn children(&self) -> &[Id] {
        &self.children
    }
    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Name::Op(name) | Name::Word(name) => f.write_str(name),
            Name::List => f.write_str("list"),
            Name::Table => f.write_str("table"),
            Name::Number(n) => write!(f, "{n}"),
            Name::Rows(rows) => write!(f, "{rows}"),
        }
    }
}

impl FromOp for Node {
    type Error = FromOpError;

    fn from_op(text: &str, children: Vec<Id>) -> Result<Self, FromOpError> {
        let leaf = || {
            let known = WORDS.iter().find(|w| **w == text).map(|w| Name::Word(w));
            let number = || text.parse().ok().map(Name::Number);
            known.or_else(number).or_else(|| text.parse().ok().map(Name::Rows))
        };
        let name = match text {
            "list" => Some(Name::List),
            "table" => Some(Name::Table),
            _ if children.is_empty() => leaf(),
            _ => shape(text).map(|(name, ..)| Name::Op(name)),
        };
        match name {
            Some(name) => Ok(Self { name, children }),
            None => Err(FromOpError::new(text, children)),
        }
    }
}
