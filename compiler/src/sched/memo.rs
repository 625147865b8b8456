//! What a search works out for one schedule and asks for again for the next: schedules of one program for one target differ in
//! how tables travel, and hardly in how samples load ranks. What is drawn of that ([`stragglers`](super::stragglers)) is the answer to a
//! question that has all that it depends on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::answers::Answers;
use super::rows::Expected;
use fs_schedule::{Balance, CostModel, LengthDistribution, RankWork, Stragglers, Symbol, Travel, Unkept};

/// Sizes of the slowest rank over the mean rank's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spread {
    /// Its work.
    pub most: f64,
    /// How much longer that takes because ranks share cores: until a rank waits it leaves none to others.
    pub crowded: f64,
    pub samples: f64,
    pub tokens: Vec<f64>,
    pub squares: Vec<f64>,
}

impl Spread {
    /// The factor of a size; 1 of what does not depend on samples.
    pub(crate) fn of(&self, symbol: Symbol) -> f64 {
        let group = |list: &[f64], g: u32| list.get(g as usize).copied().unwrap_or(1.0);
        match symbol {
            Symbol::Samples => self.samples,
            Symbol::Tokens(g) => group(&self.tokens, g),
            Symbol::Squares(g) => group(&self.squares, g),
            _ => 1.0,
        }
    }
}

/// What came of drawing.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Drawn {
    /// Every sample is worked on where it is read.
    pub home: Spread,
    /// Samples are given to ranks; none if no plan keeps the limits that are asked for.
    pub planned: Option<Spread>,
    pub bound: f64,
    pub moved: f64,
    pub ranks: Vec<RankWork>,
    pub unkept: Option<Unkept>,
}

impl Drawn {
    /// For a schedule and for people.
    pub(crate) fn stragglers(&self) -> Stragglers {
        let planned = self.planned.as_ref().map_or(self.home.most, |p| p.most);
        Stragglers {
            at_home: self.home.most,
            planned,
            bound: self.bound,
            moved: self.moved,
            ranks: self.ranks.clone(),
            compared: None,
            unkept: self.unkept,
        }
    }

    /// Where samples are worked on.
    pub(crate) fn at(&self, planned: bool) -> &Spread {
        self.planned.as_ref().filter(|_| planned).unwrap_or(&self.home)
    }
}

/// All that what is drawn depends on, beside evidence.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub ranks: u32,
    /// Samples that a rank reads.
    pub read: u32,
    /// The law of lengths, if the workload has one, and the maximum of each group.
    pub law: Option<LengthDistribution>,
    pub groups: Vec<u32>,
    pub cost: CostModel,
    pub balance: Balance,
    pub microbatches: usize,
    /// Parts of a batch after each of which ranks meet.
    pub units: usize,
    /// Bytes of a sample on its way, and what it takes up of the limit, if there is one.
    pub travel: Travel,
    pub takes: Option<Travel>,
}

/// Answers, of one target: another profile or other counts have others.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    /// By the text of a question, in which numbers are exact.
    drawn: Answers<String, Option<Arc<Drawn>>>,
    /// What follows from laws of ids, whatever the target.
    pub(crate) rows: Expected,
    /// Operations that were simulated to find orders.
    simulated: AtomicU64,
}

impl Memo {
    /// Counts operations that were simulated.
    pub(super) fn simulate(&self, operations: usize) {
        self.simulated.fetch_add(operations as u64, Ordering::Relaxed);
    }

    /// Operations that were simulated to find orders, so far: what looking for one costs, on any machine.
    pub(crate) fn simulated(&self) -> u64 {
        self.simulated.load(Ordering::Relaxed)
    }

    /// What was drawn for a question, or is now.
    pub(super) fn drawn(
        &self,
        question: &Question,
        draw: impl FnOnce() -> Option<Drawn>,
    ) -> Option<Arc<Drawn>> {
        self.drawn.of(format!("{question:?}"), || draw().map(Arc::new))
    }
}
