//! What expressions evaluate to while a program is checked.

use crate::ast::Ident;
use crate::checked::{InputId, TableId, ValueId};
use crate::source::Span;
use crate::units::Unit;
use std::rc::Rc;

/// A compile-time value.
#[derive(Debug, Clone)]
pub(crate) enum Val {
    /// The result of something wrong that has been reported: fits everywhere, silently.
    Poison,
    /// A value of the graph.
    Tensor(ValueId),
    /// Several values.
    Results(Vec<Given>),
    /// A number.
    Number { value: f64, unit: Option<&'static Unit> },
    /// A string.
    Text(String),
    /// A name that nothing is bound to: a word such as `tokens`, or a mistake.
    Symbol(String),
    /// A table.
    Table(TableId),
    /// An input.
    Input(InputId),
    /// A list.
    List(Vec<Given>),
    /// A call of something that is neither primitive nor block: `normal(0, 0.02)`.
    Make(Rc<Make>),
}

/// A value with the place that it came from.
#[derive(Debug, Clone)]
pub(crate) struct Given {
    pub(crate) val: Val,
    pub(crate) span: Span,
}

/// A constructor with its arguments, waiting to learn what it constructs.
#[derive(Debug, Clone)]
pub(crate) struct Make {
    pub(crate) name: Ident,
    pub(crate) args: Vec<Arg>,
}

/// An evaluated argument or setting.
#[derive(Debug, Clone)]
pub(crate) struct Arg {
    pub(crate) name: Option<Ident>,
    pub(crate) given: Given,
}

impl Val {
    /// Words for "found ...".
    pub(crate) fn words(&self) -> String {
        match self {
            Val::Poison => "something wrong".into(),
            Val::Tensor(_) => "a value of the graph".into(),
            Val::Results(r) => format!("{} results", r.len()),
            Val::Number { value, unit: None } => format!("the number {}", plain(*value)),
            Val::Number { unit: Some(u), .. } => u.dimension.noun().into(),
            Val::Text(_) => "a string".into(),
            Val::Symbol(name) => format!("the word `{name}`"),
            Val::Table(_) => "a table".into(),
            Val::Input(_) => "an input".into(),
            Val::List(_) => "a list".into(),
            Val::Make(make) => format!("`{}(..)`", make.name.text),
        }
    }
}

/// A number as a person would write it.
pub(crate) fn plain(value: f64) -> String {
    if value != 0.0 && (value.abs() < 1e-4 || value.abs() >= 1e15) {
        format!("{value:e}")
    } else {
        format!("{value}")
    }
}

/// Something was wrong and has been reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed;
