//! What a search asks the passes for, and changes of it.

use fs_schedule::Sharding;

use crate::algebra::explanation::{explain, rules};
use crate::algebra::rules::{Context, together};
use crate::distribution::{Choice, Lookahead, TableOptions};

/// What is asked for beside what holds for all of a model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    /// Of tables.
    pub tables: TableOptions,
    /// Bytes of dense gradients that are summed at once.
    pub bucket_bytes: Option<u64>,
}

/// A change of what is asked for.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// Tables are distributed otherwise.
    Distribution {
        /// What rules may know of each.
        context: Context,
        /// As they are.
        from: Choice,
        /// As they would be.
        to: Choice,
    },
    /// Tables are owned by others.
    Owners {
        /// By whom.
        owners: Owners,
        /// The rules by which it means the same: of tables that stay whole none, the terms are the same.
        rules: Vec<&'static str>,
    },
    /// Tables get the number of those that they travel with.
    Groups(Vec<(String, u32)>),
    /// Dense gradients are summed by so many bytes.
    Buckets(u64),
}

/// Who owns a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owners {
    /// All ranks.
    All,
    /// One.
    One,
}

impl Owners {
    /// Of a table that stays whole.
    pub(super) fn of(sharding: &Sharding) -> Option<Self> {
        match sharding {
            Sharding::RowWise => Some(Self::All),
            Sharding::TableWise { .. } => Some(Self::One),
            Sharding::ColumnWise { .. } | Sharding::DataParallel => None,
        }
    }

    /// For people.
    pub(super) fn told(self) -> &'static str {
        match self {
            Self::All => "row-wise",
            Self::One => "table-wise",
        }
    }

    /// As options have it.
    fn word(self) -> &'static str {
        match self {
            Self::All => "row_wise",
            Self::One => "table_wise",
        }
    }
}

impl Change {
    pub(super) fn made(&self, tables: &[String], asked: &Asked) -> Asked {
        let mut asked = asked.clone();
        match self {
            Self::Distribution { context, from, to } => {
                asked.tables = asking(&asked.tables, tables, (from, to), context.folds.is_none());
            }
            Self::Owners { owners, .. } => {
                let each = tables.iter().map(|name| (name.clone(), owners.word().to_owned()));
                asked.tables = asked.tables.sharding(each);
            }
            Self::Groups(groups) => asked.tables = asked.tables.groups(groups.iter().cloned()),
            Self::Buckets(bytes) => asked.bucket_bytes = Some(*bytes),
        }
        asked
    }

    /// The rules by which it means the same; none where the terms are the same.
    pub(super) fn rules(&self) -> Vec<&'static str> {
        match self {
            Self::Distribution { context, from, to } => between(context, from, to),
            Self::Owners { rules, .. } => rules.clone(),
            Self::Groups(_) | Self::Buckets(_) => vec![together::RULE.name],
        }
    }
}

/// The rules by which a table may be distributed one way in place of another.
pub(super) fn between(context: &Context, from: &Choice, to: &Choice) -> Vec<&'static str> {
    rules(&explain(context, from, to).ok().flatten().unwrap_or_default())
}

/// Options with another choice for some tables than there is now; `folds`: nobody has said who asks for their rows.
pub fn asking(
    tables: &TableOptions,
    names: &[String],
    (now, choice): (&Choice, &Choice),
    folds: bool,
) -> TableOptions {
    let each = || names.iter().cloned();
    let mut asked = tables.clone();
    if choice.unique != now.unique {
        asked = asked.unique(each().map(|name| (name, choice.unique)));
    }
    if choice.lookahead != now.lookahead {
        asked = asked.lookahead(each().map(|name| (name, Lookahead(choice.lookahead))));
    }
    if choice.windows != now.windows && choice.lookahead.is_some() {
        let windows = choice.windows.unwrap_or(Choice::EACH);
        asked = asked.windows(each().map(|name| (name, windows)));
    }
    if choice.sharding != now.sharding {
        let word = match choice.sharding {
            Sharding::DataParallel => "data_parallel",
            Sharding::ColumnWise { .. } => "column_wise",
            Sharding::TableWise { .. } => "table_wise",
            Sharding::RowWise => "row_wise",
        };
        asked = asked.sharding(each().map(|name| (name, word.to_owned())));
    }
    if choice.relayed != now.relayed {
        asked = asked.relay(each().map(|name| (name, choice.relayed)));
    }
    // Of what was replicated before nothing was said.
    let owned = |c: &Choice| c.sharding != Sharding::DataParallel;
    if folds && (choice.folded != now.folded || (owned(choice) && !owned(now))) {
        asked = asked.fold(each().map(|name| (name, choice.folded)));
    }
    asked
}

/// A choice of which it does not matter who owns what.
pub(super) fn anywhere(choice: &Choice) -> Choice {
    let mut choice = choice.clone();
    match &mut choice.sharding {
        Sharding::TableWise { rank } => *rank = 0,
        Sharding::ColumnWise { ranks } => ranks.fill(0),
        _ => {}
    }
    choice
}
