//! Where samples go to other ranks, if they do.

use std::fmt;
use std::str::FromStr;

use fs_schedule::action::Effect;
use fs_schedule::{Schedule, Sharding};

/// Where samples go to other ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Before their ids are looked at.
    #[default]
    Ids,
    /// Behind the output dist: what is made of their rows travels.
    Rows,
    /// Inside the output dist: who reads samples asks for their rows, which go to who works on them.
    Folded,
}

impl At {
    /// All places.
    pub const ALL: [Self; 3] = [Self::Ids, Self::Rows, Self::Folded];

    /// Where samples of a schedule go; none if they stay. Of tables of which only some are folded, `ids`.
    pub fn of(schedule: &Schedule) -> Option<Self> {
        let ops = &schedule.train.ops;
        ops.iter().find(|op| op.action.has(Effect::AssignsBatch))?;
        let [folded, others] = Self::folded(schedule);
        Some(if !folded.is_empty() && others.is_empty() {
            Self::Folded
        } else if ops.iter().any(|op| op.action.facts().carries().is_some()) {
            Self::Rows
        } else {
            Self::Ids
        })
    }

    /// Tables whose owners are asked for rows by those who read samples that move, and those whose owners are asked by those who
    /// work on them.
    pub(crate) fn folded(schedule: &Schedule) -> [Vec<&str>; 2] {
        let mut names = [Vec::new(), Vec::new()];
        // Relays are asked by the ranks of their node, for themselves; replicas by nobody.
        for x in schedule.exchanges.iter().filter(|x| x.leg.is_whole()) {
            let table = schedule.tables.get(x.table as usize);
            let Some(table) = table.filter(|t| t.sharding != Sharding::DataParallel) else { continue };
            let of = &mut names[usize::from(!x.folded)];
            if !of.contains(&table.name.as_str()) {
                of.push(&table.name);
            }
        }
        names
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ids => "ids",
            Self::Rows => "rows",
            Self::Folded => "folded",
        })
    }
}

/// No place where samples can go to other ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("samples move at `ids`, `rows` or `folded`, not at `{0}`")]
pub struct AtError(String);

impl FromStr for At {
    type Err = AtError;
    fn from_str(text: &str) -> Result<Self, AtError> {
        Self::ALL.into_iter().find(|at| at.to_string() == text).ok_or_else(|| AtError(text.into()))
    }
}
