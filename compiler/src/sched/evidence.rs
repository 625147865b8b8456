//! What is known beside the model and its workload: a profile of a run, or what was counted in the data.

use fs_schedule::counts::Counts;
use fs_schedule::profile::Rows;
use fs_schedule::{Profile, Schedule};

use super::memo::Memo;

/// One of the two, or neither.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Evidence<'a> {
    /// Times and sizes.
    pub profile: Option<&'a Profile>,
    /// Sizes.
    pub counts: Option<&'a Counts>,
    /// What was drawn by this evidence for other schedules.
    pub memo: Option<&'a Memo>,
}

impl<'a> Evidence<'a> {
    /// Of the data, if anything was counted.
    pub(crate) fn counted(counts: Option<&'a Counts>) -> Self {
        Self { counts, ..Self::default() }
    }

    /// Lengths of some samples in the order of the data, a list for each group; none if nobody has looked at any.
    pub(crate) fn lengths(self) -> Vec<&'a [u32]> {
        let lists: Vec<&[u32]> = match (self.profile, self.counts) {
            (Some(profile), _) => profile.lengths.iter().map(Vec::as_slice).collect(),
            (None, Some(counts)) => counts.groups.iter().map(|g| g.lengths.as_slice()).collect(),
            (None, None) => Vec::new(),
        };
        if lists.first().is_some_and(|list| list.is_empty()) { Vec::new() } else { lists }
    }

    /// What was counted of an exchange's rows before a run, as it sends them.
    pub(crate) fn rows(self, s: &Schedule, exchange: u32) -> Option<&'a Rows> {
        let x = s.exchanges.get(exchange as usize)?;
        self.counts?.rows_of(&s.tables.get(x.table as usize)?.name, x.unique)
    }
}
