//! `--table NAME:KEY=VALUE,...`: other choices for one table than for the rest of its model.

use std::collections::BTreeMap;
use std::str::FromStr;

use fs_compiler::distribution::{Lookahead, TableOptions};
use fs_dsl::checked::Program;
use fs_schedule::terminal::{NoName, word};

/// What one `--table` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TableArg {
    name: String,
    unique: Option<bool>,
    lookahead: Option<Lookahead>,
    windows: Option<u32>,
    sharding: Option<String>,
    placement: Option<String>,
    hot: Option<u32>,
    group: Option<u32>,
    relay: Option<bool>,
    fold: Option<bool>,
}

/// Why the text of a `--table` says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TableArgError {
    /// No table, or no choice.
    #[error("write NAME:KEY=VALUE,..., for example items:lookahead=2,unique=off")]
    Form,
    /// What no message may repeat.
    #[error(transparent)]
    Name(#[from] NoName),
    /// A key that there is not.
    #[error(
        "there is no choice `{0}`; there are unique, lookahead, windows, sharding, placement, hot, relay, fold and group"
    )]
    Key(String),
    /// A key that is there twice.
    #[error("{0} is said twice")]
    Twice(String),
    /// A value that its key does not take.
    #[error("{key} must be {wanted}, is `{value}`")]
    Value {
        /// The key.
        key: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// What was given.
        value: String,
    },
}

/// Why choices of tables do not go with a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TablesError {
    /// A table that the model lacks.
    #[error("--table: there is no table `{name}`; there are {}", .known.join(", "))]
    Unknown {
        /// The table.
        name: String,
        /// Tables of the model.
        known: Vec<String>,
    },
    /// Something said twice.
    #[error("--table says {key} of `{name}` twice")]
    Twice {
        /// The key.
        key: &'static str,
        /// The table.
        name: String,
    },
}

impl FromStr for TableArg {
    type Err = TableArgError;
    fn from_str(text: &str) -> Result<Self, TableArgError> {
        word(text)?;
        let (name, choices) = text.split_once(':').ok_or(TableArgError::Form)?;
        let mut arg = Self { name: name.trim().to_owned(), ..Self::default() };
        let mut said = Vec::new();
        for choice in choices.split(',') {
            let (key, value) = choice.split_once('=').ok_or(TableArgError::Form)?;
            let value = value.trim();
            let key = key.trim();
            if said.contains(&key) {
                return Err(TableArgError::Twice(key.to_owned()));
            }
            said.push(key);
            let wrong = |key, wanted| TableArgError::Value { key, wanted, value: value.to_owned() };
            match key {
                "unique" => arg.unique = Some(switch(value).ok_or_else(|| wrong("unique", "on or off"))?),
                "relay" => arg.relay = Some(switch(value).ok_or_else(|| wrong("relay", "on or off"))?),
                "fold" => arg.fold = Some(switch(value).ok_or_else(|| wrong("fold", "on or off"))?),
                "lookahead" => {
                    let known = value.parse().map_err(|_| wrong("lookahead", "a number or none"))?;
                    arg.lookahead = Some(known);
                }
                "windows" => {
                    let number = value.parse().map_err(|_| wrong("windows", "a number from 1 to 64"));
                    arg.windows = Some(number?);
                }
                "sharding" => arg.sharding = Some(value.to_owned()),
                "placement" => arg.placement = Some(value.to_owned()),
                "hot" => {
                    let number = value.parse().map_err(|_| wrong("hot", "a number of rows from 0 to 4096"));
                    arg.hot = Some(number?);
                }
                "group" => {
                    let number = value.parse().map_err(|_| wrong("group", "a number from 0 to 4294967295"));
                    arg.group = Some(number?);
                }
                other => return Err(TableArgError::Key(other.to_owned())),
            }
        }
        Ok(arg)
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// All choices together.
pub(super) fn options(args: &[TableArg], program: &Program) -> Result<TableOptions, TablesError> {
    let known: Vec<String> = program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone()).collect();
    let mut options = TableOptions::default();
    for arg in args {
        if !known.contains(&arg.name) {
            return Err(TablesError::Unknown { name: arg.name.clone(), known });
        }
        put(&mut options.unique, "unique", arg, arg.unique)?;
        put(&mut options.lookahead, "lookahead", arg, arg.lookahead)?;
        put(&mut options.windows, "windows", arg, arg.windows)?;
        put(&mut options.sharding, "sharding", arg, arg.sharding.clone())?;
        put(&mut options.placement, "placement", arg, arg.placement.clone())?;
        put(&mut options.hot, "hot", arg, arg.hot)?;
        put(&mut options.relay, "relay", arg, arg.relay)?;
        put(&mut options.fold, "fold", arg, arg.fold)?;
        put(&mut options.groups, "group", arg, arg.group)?;
    }
    Ok(options)
}

fn put<T>(
    all: &mut BTreeMap<String, T>,
    key: &'static str,
    arg: &TableArg,
    value: Option<T>,
) -> Result<(), TablesError> {
    let before = value.and_then(|value| all.insert(arg.name.clone(), value));
    if before.is_some() { Err(TablesError::Twice { key, name: arg.name.clone() }) } else { Ok(()) }
}
