//! What is chosen for each table: the plan that terms are built from.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use fs_schedule::{Reuse, Sharding};

/// One value for all tables, and others for some: `true;items:false;users:true`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PerTable<T> {
    /// Of tables that are not named; `None`: as it would be anyway.
    pub others: Option<T>,
    /// By name.
    pub named: BTreeMap<String, T>,
}

impl<T> Default for PerTable<T> {
    fn default() -> Self {
        Self { others: None, named: BTreeMap::new() }
    }
}

impl<T> PerTable<T> {
    /// The value of a table.
    pub fn get(&self, table: &str) -> Option<&T> {
        self.named.get(table).or(self.others.as_ref())
    }
    /// True if it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.others.is_none() && self.named.is_empty()
    }
    /// A table that is named and that `known` does not have.
    pub fn unknown<'a>(&'a self, known: &[&str]) -> Option<&'a str> {
        self.named.keys().map(String::as_str).find(|name| !known.contains(name))
    }
}

impl<T: fmt::Display> fmt::Display for PerTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.others.iter().map(ToString::to_string);
        let named = self.named.iter().map(|(table, value)| format!("{table}:{value}"));
        f.write_str(&others.chain(named).collect::<Vec<_>>().join(";"))
    }
}

/// Text that is not of the form `value;table:value`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a value nor table:value, or says the same twice")]
pub struct PerTableError(String);

impl<T: FromStr> FromStr for PerTable<T> {
    type Err = PerTableError;
    fn from_str(text: &str) -> Result<Self, PerTableError> {
        let mut this = Self::default();
        for part in text.split(';').map(str::trim) {
            let wrong = || PerTableError(part.into());
            let twice = match part.split_once(':') {
                None => this.others.replace(part.parse().map_err(|_| wrong())?).is_some(),
                Some((table, value)) => {
                    let value = value.trim().parse().map_err(|_| wrong())?;
                    this.named.insert(table.trim().into(), value).is_some()
                }
            };
            if twice {
                return Err(wrong());
            }
        }
        Ok(this)
    }
}

/// Reuse distances that are told apart: a number, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lookahead(pub Option<u32>);

impl fmt::Display for Lookahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(k) => write!(f, "{k}"),
            None => write!(f, "none"),
        }
    }
}

impl FromStr for Lookahead {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|k| Self(Some(k))) }
    }
}

/// What is chosen for one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Each row once per rank, or once per occurrence.
    pub unique: bool,
    /// Reuse distances (in windows) that are told apart; `None`: rows travel together.
    pub lookahead: Option<u32>,
    /// Windows of a batch, where rows are told apart; `None`, or no fewer than microbatches: each microbatch is one.
    pub windows: Option<u32>,
    /// Where rows live: at owners by row, table or columns, or everywhere (replicated).
    pub sharding: Sharding,
    /// Rows come through relays of the node, if they have owners.
    pub relayed: bool,
    /// Where samples move before their ids are looked at: owners are asked by those who read them, not by those who work on them.
    pub folded: bool,
}

impl Choice {
    /// As many windows as a batch can have microbatches: each is one.
    pub const EACH: u32 = 64;

    /// How rows are told apart in so many microbatches; `None`: they travel together, or windows do not cut these evenly.
    pub fn reuse(&self, microbatches: u32) -> Option<Reuse> {
        let windows = self.windows.filter(|windows| *windows < microbatches);
        Reuse::in_windows(self.lookahead?, microbatches, windows.unwrap_or(microbatches))
    }
}

/// What is chosen for the tables of a model, by name: what options say, on top of what holds anyway.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TableChoices {
    /// Each row once per rank, or once per occurrence (default: once per rank).
    pub unique: PerTable<bool>,
    /// Reuse distances that are told apart (default: none).
    pub lookahead: PerTable<Lookahead>,
    /// Windows of a batch (default: each microbatch is one).
    pub windows: PerTable<u32>,
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// Through relays of the node, or from owners to whoever asks (default: that).
    pub relay: PerTable<bool>,
    /// Tables whose entries stay unique whatever is asked for: a sampled softmax tells a negative that equals its
    /// target by their common entry.
    pub sampled: BTreeSet<String>,
}

impl TableChoices {
    /// The choice for a table that lives as `sharding` says.
    pub(crate) fn choice(&self, table: &str, sharding: &Sharding) -> Choice {
        let lookahead = self.lookahead.get(table).and_then(|l| l.0);
        let windows = self.windows.get(table).copied().filter(|windows| *windows < self.microbatches);
        Choice {
            unique: self.sampled.contains(table) || self.unique.get(table).copied().unwrap_or(true),
            lookahead,
            windows: windows.filter(|_| lookahead.is_some()),
            sharding: sharding.clone(),
            relayed: *sharding != Sharding::DataParallel && self.relay.get(table).copied().unwrap_or(false),
            // Samples move behind all this.
            folded: false,
        }
    }
}

/// What somebody asks for some tables, on top of what holds for all of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TableOptions {
    /// Each row once per rank, or once per occurrence.
    pub unique: BTreeMap<String, bool>,
    /// Reuse distances that are told apart, where a strategy tells rows apart at all.
    pub lookahead: BTreeMap<String, Lookahead>,
    /// Windows of a batch, where a strategy tells rows apart at all.
    pub windows: BTreeMap<String, u32>,
    /// Where rows live, in the language's words: `row_wise`, `table_wise`, `column_wise`, `data_parallel` or `auto`.
    pub sharding: BTreeMap<String, String>,
    /// Which rows the ranks of a row-wise table own, in the language's words: `range`, `hashed` or `planned`.
    pub placement: BTreeMap<String, String>,
    /// Rows, of those that are asked for most, which all ranks have.
    pub hot: BTreeMap<String, u32>,
    /// Through relays of the node, or from owners to whoever asks.
    pub relay: BTreeMap<String, bool>,
    /// Owners are asked by those who read samples that move, or by those who work on them.
    pub fold: BTreeMap<String, bool>,
    /// Tables with the same number travel together, wherever their operands are ready, and with no others.
    pub groups: BTreeMap<String, u32>,
}

impl TableOptions {
    /// With rows of these tables once per rank, or once per occurrence.
    #[must_use]
    pub fn unique(mut self, unique: impl IntoIterator<Item = (String, bool)>) -> Self {
        self.unique.extend(unique);
        self
    }

    /// With these reuse distances told apart.
    #[must_use]
    pub fn lookahead(mut self, lookahead: impl IntoIterator<Item = (String, Lookahead)>) -> Self {
        self.lookahead.extend(lookahead);
        self
    }

    /// With so many windows of a batch.
    #[must_use]
    pub fn windows(mut self, windows: impl IntoIterator<Item = (String, u32)>) -> Self {
        self.windows.extend(windows);
        self
    }

    /// With rows of these tables at these places.
    #[must_use]
    pub fn sharding(mut self, sharding: impl IntoIterator<Item = (String, String)>) -> Self {
        self.sharding.extend(sharding);
        self
    }

    /// With rows of these row-wise tables placed so.
    #[must_use]
    pub fn placement(mut self, placement: impl IntoIterator<Item = (String, String)>) -> Self {
        self.placement.extend(placement);
        self
    }

    /// With so many hot rows of these tables on all ranks.
    #[must_use]
    pub fn hot(mut self, hot: impl IntoIterator<Item = (String, u32)>) -> Self {
        self.hot.extend(hot);
        self
    }

    /// With rows of these tables through relays, or not.
    #[must_use]
    pub fn relay(mut self, relay: impl IntoIterator<Item = (String, bool)>) -> Self {
        self.relay.extend(relay);
        self
    }

    /// With owners of these tables asked by those who read samples, or not.
    #[must_use]
    pub fn fold(mut self, fold: impl IntoIterator<Item = (String, bool)>) -> Self {
        self.fold.extend(fold);
        self
    }

    /// With these tables travelling together.
    #[must_use]
    pub fn groups(mut self, groups: impl IntoIterator<Item = (String, u32)>) -> Self {
        self.groups.extend(groups);
        self
    }
}
