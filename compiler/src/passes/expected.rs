//! How many rows values are expected to have, as far as the module tells.

use fs_schedule::{Data, Extent, IdDistribution, Lengths, Settings, Symbol};

use crate::ir::Module;
use crate::ir::attr::{record, typed};
use crate::sched::stragglers::lengths_of;

/// What a rank's share of a batch is expected to hold.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Expected {
    /// Samples.
    pub samples: f64,
    /// Tokens of a sample, by group of lengths.
    pub means: Vec<f64>,
    /// The law of ids.
    pub ids: IdDistribution,
    /// Whether the data state it.
    pub stated: bool,
}

impl Expected {
    /// Of each of so many ranks.
    pub(super) fn of(module: &Module, ranks: f64) -> Self {
        let batch = typed::<Settings>(&module.attrs, "settings").map_or(1.0, |s| f64::from(s.batch));
        let data = typed::<Option<Data>>(&module.attrs, "data").ok().flatten();
        let (lengths, ids, stated) = match data {
            Some(Data::Generate { lengths, ids, .. }) => (Some(lengths), ids, true),
            _ => (None, IdDistribution::ASSUMED, false),
        };
        let means = module
            .decls_of("model.lengths")
            .map(|op| record::<Lengths>(&op.attrs).map_or(1.0, |l| lengths_of(lengths, l.max).mean()))
            .collect();
        Self { samples: batch / ranks, means, ids, stated }
    }

    /// Tokens of a group.
    pub(super) fn tokens(&self, group: u32) -> f64 {
        self.samples * self.means.get(group as usize).copied().unwrap_or(1.0)
    }

    /// Rows of an extent; none where they depend on ids.
    pub(super) fn rows(&self, extent: Extent) -> Option<f64> {
        match extent {
            Extent::Fixed(rows) => Some(rows as f64),
            Extent::Symbol(Symbol::Samples) => Some(self.samples),
            Extent::Symbol(Symbol::Tokens(group)) => Some(self.tokens(group)),
            Extent::Symbol(_) => None,
        }
    }
}
