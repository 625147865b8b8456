//! What a schedule is a schedule *of*: the model's step as terms, before anything is said of ranks, transfers or order.
//!
//! A term is one operation of a microbatch of a whole model: forward, derivatives, losses. Tables are whole (`t0` is "the
//! rows of table 0"), ids are ids, and how rows come and gradients go is left out. What updates parameters and tables is
//! the list of gradients to be added, from the left. The same model gives the same reference for every strategy, number
//! of ranks and lookahead; its [`digest`](Reference::digest) names it. The verifier checks the schedule's results against it (rule `model`).
//!
//! Texts keep it short: `a3 v1 p0` is the action number 3 of term 1's first result and parameter 0; `v7.1[0:64]` are
//! columns of term 7's second result, `z16` is 16 columns of zeros, `concat v1 v2` puts columns side by side.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::size::{ParseError, as_text, decimal};

/// A model's step, one microbatch of it, and its evaluation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    /// `sha256:` and the digest of this and of the declarations that decide what is trained.
    pub digest: String,
    /// What terms do, each once: `a<n>`.
    pub actions: Vec<Action>,
    /// Terms of a microbatch of training: `v<n>`. Those that are losses are what training reports.
    pub train: Vec<Term>,
    /// What is added up, over microbatches and then from the left, to update each parameter and table.
    pub updates: Vec<Update>,
    /// Terms of an evaluation batch; those that rank items are what it reports.
    pub evaluation: Option<Vec<Term>>,
    /// How the sums of training and of evaluation round, in the order in which terms and updates make them: `i4` are four
    /// that an operation makes where the sum stands, and may round within; `a2` are two of values that are rounded
    /// before; `b1` is one that is made twice, once in each way; `n1` is one that is not made. The schedule must make them so.
    pub sums: [String; 2],
}

/// An operation over values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Term {
    /// Number of the action; `None` puts the operands' columns side by side.
    pub action: Option<u32>,
    /// Operands, as of the action; tables stand for their rows, ids for the places of their rows.
    pub operands: Vec<Value>,
}

/// The gradients of a parameter or table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// A parameter or a table.
    pub of: Source,
    /// What is added up.
    pub parts: Vec<Value>,
}

/// A value, or some of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Where it comes from.
    pub source: Source,
    /// Columns `[start, end)`; `None`: all.
    pub columns: Option<(u32, u32)>,
}

impl Value {
    /// All of something.
    pub fn all(source: Source) -> Self {
        Self { source, columns: None }
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// `v<term>`, `v<term>.<result>`: a result of an earlier term.
    Term(u32, u32),
    /// `p<n>`: a dense parameter.
    Parameter(u32),
    /// `t<n>`: the rows of a table that the ids use.
    Table(u32),
    /// `i<n>`: an input of the batch.
    Input(u32),
    /// `l<n>`: offsets of a length group.
    Lengths(u32),
    /// `z<columns>`: zeros, beside other columns.
    Zero(u32),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Term(n, 0) => write!(f, "v{n}"),
            Self::Term(n, r) => write!(f, "v{n}.{r}"),
            Self::Parameter(n) => write!(f, "p{n}"),
            Self::Table(n) => write!(f, "t{n}"),
            Self::Input(n) => write!(f, "i{n}"),
            Self::Lengths(n) => write!(f, "l{n}"),
            Self::Zero(n) => write!(f, "z{n}"),
        }
    }
}

impl FromStr for Source {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "value");
        let head = s.chars().next().ok_or_else(fail)?;
        let rest = &s[head.len_utf8()..];
        let number = || decimal(rest).ok_or_else(fail);
        Ok(match head {
            'v' => match rest.split_once('.') {
                None => Self::Term(number()?, 0),
                Some((term, result)) => {
                    let result = decimal(result).filter(|r| *r > 0).ok_or_else(fail)?;
                    Self::Term(decimal(term).ok_or_else(fail)?, result)
                }
            },
            'p' => Self::Parameter(number()?),
            't' => Self::Table(number()?),
            'i' => Self::Input(number()?),
            'l' => Self::Lengths(number()?),
            'z' => Self::Zero(number()?),
            _ => return Err(fail()),
        })
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        self.columns.map_or(Ok(()), |(start, end)| write!(f, "[{start}:{end}]"))
    }
}

impl FromStr for Value {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "value");
        let Some(rest) = s.strip_suffix(']') else { return Ok(Self::all(s.parse()?)) };
        let (source, range) = rest.split_once('[').ok_or_else(fail)?;
        let (start, end) = range.split_once(':').ok_or_else(fail)?;
        let columns = (decimal(start).ok_or_else(fail)?, decimal(end).ok_or_else(fail)?);
        Ok(Self { source: source.parse()?, columns: Some(columns) })
    }
}

fn list(f: &mut fmt::Formatter<'_>, values: &[Value]) -> fmt::Result {
    values.iter().try_for_each(|v| write!(f, " {v}"))
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Some(n) => write!(f, "a{n}")?,
            None => write!(f, "concat")?,
        }
        list(f, &self.operands)
    }
}

impl FromStr for Term {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let mut words = s.split(' ');
        let action = match words.next() {
            Some("concat") => None,
            Some(head) => {
                let number = head.strip_prefix('a').and_then(decimal);
                Some(number.ok_or_else(|| ParseError::new(s, "term"))?)
            }
            None => return Err(ParseError::new(s, "term")),
        };
        Ok(Self { action, operands: words.map(str::parse).collect::<Result<_, _>>()? })
    }
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.of)?;
        list(f, &self.parts)
    }
}

impl FromStr for Update {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let mut words = s.split(' ');
        let of = words.next().unwrap_or_default().parse()?;
        Ok(Self { of, parts: words.map(str::parse).collect::<Result<_, _>>()? })
    }
}

as_text!(Term, "Term", r"^(a[0-9]+|concat)( [vptilz][0-9]+(\.[0-9]+)?(\[[0-9]+:[0-9]+\])?)*$");
as_text!(Update, "Update", r"^[pt][0-9]+( v[0-9]+(\.[0-9]+)?(\[[0-9]+:[0-9]+\])?)*$");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_round_trip() {
        for text in ["a0", "a3 v1 p0", "concat v1.1[0:4] z16 v2", "a7 t0 i1 l0"] {
            assert_eq!(text.parse::<Term>().map(|t| t.to_string()), Ok(text.into()));
        }
        for text in ["p0 v3.1", "t2 v3 v4"] {
            assert_eq!(text.parse::<Update>().map(|t| t.to_string()), Ok(text.into()));
        }
        for text in ["", "a", "a01", "a0 ", "a0 v1.0", "b1", "a0 v1[2]", "a0 v", "concat x1", "a0  v1"] {
            assert!(text.parse::<Term>().is_err(), "{text}");
        }
    }
}
