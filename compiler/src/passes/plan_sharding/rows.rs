//! Which rows of a row-wise table a rank owns.
//!
//! Ranges cost nothing, and are even where rows are numbered at random. Where the rows that are asked for most have
//! numbers near each other, their owner keeps all others waiting; hashed rows are spread whatever their numbers are.
//! Everything else of a step is the same, so the placement with the smaller busiest owner has the smaller predicted
//! step: it is taken where nobody asks for one, and ranges where that gains nothing worth having. Planned rows are never
//! taken unasked: they belong to one number of ranks, and to the data that were counted.

use std::collections::BTreeMap;

use fs_schedule::profile::Rows;
use fs_schedule::{RowMap, RowPlacement, Settings, Table};
use fs_workload::ids::{Draws, IdSampler, RowLaw};
use fs_workload::placement::{MOST_HOT, busiest, deal};
use serde::{Deserialize, Serialize};

use super::{PassError, PlacementError};
use crate::ir::attr::{boolean, typed};
use crate::ir::{Attr, Attrs, Module};
use crate::sched::owners::Requests;

/// The module's attribute with what was counted.
const COUNTED: &str = "counted_rows";
/// By how much the busiest owner of ranges must exceed that of hashed rows for these to be taken.
const WORTH: f64 = 1.05;
/// Hot rows are asked for so many times as often as the mean row.
const HOT: f64 = 1.25;

/// What a profile has counted of a table's rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Counted {
    /// Entries that a rank sends.
    sent: f64,
    /// The busiest owner of ranges over the mean.
    range: f64,
    /// The same of hashed rows.
    hashed: Option<f64>,
    /// Rows that are asked for most, with how often.
    hot: Vec<(u64, f64)>,
}

/// Puts down what was counted.
pub(super) fn put(module: &mut Module, rows: &[Rows]) {
    let of = |r: &Rows| Counted { sent: r.sent, range: r.busiest, hashed: r.hashed, hot: r.hot.clone() };
    let first = rows.iter().filter(|r| r.part == 0);
    let counted: Attrs = first.map(|r| (r.table.clone(), Attr::from(&of(r)))).collect();
    module.attrs.insert(COUNTED.into(), Attr::Dict(counted));
}

/// What somebody asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// The compiler chooses.
    Open,
    Range,
    Hashed,
    /// Hot rows are still to be found.
    Planned,
    /// Nothing is left to decide.
    Placed(RowPlacement),
}

impl Wish {
    /// In the language's words.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        match word {
            "range" => Some(Self::Range),
            "hashed" => Some(Self::Hashed),
            "planned" => Some(Self::Planned),
            _ => None,
        }
    }

    /// As a declaration says.
    pub(super) fn of(attr: Option<&Attr>) -> Result<Self, PassError> {
        let Some(attr) = attr else { return Ok(Self::Open) };
        let word = if let Attr::Str(word) = attr { Self::of_word(word) } else { None };
        word.map_or_else(|| Ok(Self::Placed(attr.to()?)), Ok)
    }
}

/// What is known of the rows that are asked for.
pub(super) struct Known<'a> {
    counted: BTreeMap<String, Counted>,
    seed: u64,
    unique: bool,
    ranks: u32,
    /// Of each table: the law of its ids, where it has one that is not just assumed, and draws of a rank.
    laws: &'a [Option<(fs_schedule::IdDistribution, Draws)>],
}

/// A placement and why.
type Placed = (RowPlacement, String);

impl<'a> Known<'a> {
    /// Takes what was counted out of the module.
    pub(super) fn take(
        module: &mut Module,
        ranks: u32,
        laws: &'a [Option<(fs_schedule::IdDistribution, Draws)>],
    ) -> Result<Self, PassError> {
        let counted = match module.attrs.remove(COUNTED) {
            Some(counted) => counted.to()?,
            None => BTreeMap::new(),
        };
        let seed = typed::<Settings>(&module.attrs, "settings").map_or(0, |s| s.seed);
        let unique = boolean(&module.attrs, "unique_rows").unwrap_or(true);
        Ok(Self { counted, seed, unique, ranks, laws })
    }

    /// The placement of a row-wise table's rows; no reason, if there is nothing to say.
    pub(super) fn place(&self, number: usize, table: &Table, wish: Wish) -> Result<Placed, PassError> {
        match wish {
            Wish::Placed(placement) => Ok((placement, String::new())),
            Wish::Range => Ok((RowPlacement::Range, "rows by range, as asked for".into())),
            Wish::Hashed => Ok((RowPlacement::Hashed, "rows hashed, as asked for".into())),
            Wish::Planned => self.plan(number, table),
            Wish::Open => Ok(self.choose(number, table)),
        }
    }

    fn choose(&self, number: usize, table: &Table) -> Placed {
        let range = (RowPlacement::Range, String::new());
        let Some((by_range, hashed)) = self.busiest(number, table).filter(|_| self.ranks > 1) else {
            return range;
        };
        if by_range < WORTH * hashed {
            return range;
        }
        let reason = format!(
            "rows hashed: the busiest owner would serve {by_range:.2} times the mean by ranges, and serves {hashed:.2} times"
        );
        (RowPlacement::Hashed, reason)
    }

    /// The busiest owner over the mean, by ranges and hashed; `None`: rows are taken to be even.
    fn busiest(&self, number: usize, table: &Table) -> Option<(f64, f64)> {
        if let Some(counted) = self.counted.get(&table.name) {
            return counted.hashed.map(|hashed| (counted.range, hashed));
        }
        let (ids, draws) = self.laws.get(number).copied().flatten()?;
        let law = RowLaw::new(ids, table.rows);
        let requests = Requests { ids, law: &law, draws, unique: self.unique, hot: 0 };
        let of = |placement| {
            let map = RowMap::new(&placement, table.rows, self.ranks.into()).ok()?;
            let shared = Table { sharding: fs_schedule::Sharding::RowWise, ..table.clone() };
            Some(busiest(&requests.loads(&shared, &map, self.ranks)?))
        };
        Some((of(RowPlacement::Range)?, of(RowPlacement::Hashed)?))
    }

    /// So many of the rows that are asked for most, rising, and why; fewer, if no more are known.
    pub(super) fn hottest(
        &self,
        number: usize,
        table: &Table,
        most: u32,
    ) -> Result<(Vec<u64>, String), PassError> {
        let most = (most as usize).min(MOST_HOT);
        let (mut hot, by): (Vec<u64>, _) = if let Some(counted) = self.counted.get(&table.name) {
            let mut rows = counted.hot.clone();
            rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            (rows.into_iter().map(|row| row.0).filter(|row| *row < table.rows).collect(), "counted")
        } else if let Some((ids, _)) = self.laws.get(number).copied().flatten() {
            let sampler = IdSampler::new(ids, table.rows, self.seed, number as u32)
                .map_err(|law| PlacementError::Law { table: table.name.clone(), law })?;
            ((0..table.rows.min(most as u64)).map(|rank| sampler.row(rank)).collect(), "expected")
        } else {
            return Err(PlacementError::NoneHot { table: table.name.clone() }.into());
        };
        hot.truncate(most);
        hot.sort_unstable();
        let reason = format!("{} hot rows on every rank, by {by} requests", hot.len());
        Ok((hot, reason))
    }

    /// Deals the rows that are asked for most.
    fn plan(&self, number: usize, table: &Table) -> Result<Placed, PassError> {
        let (hot, rest, by) = if let Some(counted) = self.counted.get(&table.name) {
            let hot: Vec<(u64, f64)> =
                counted.hot.iter().copied().filter(|(row, _)| *row < table.rows).collect();
            let rest = counted.sent - hot.iter().map(|row| row.1).sum::<f64>();
            (hot, rest.max(0.0), "counted")
        } else if let Some((ids, draws)) = self.laws.get(number).copied().flatten() {
            let sampler = IdSampler::new(ids, table.rows, self.seed, number as u32)
                .map_err(|law| PlacementError::Law { table: table.name.clone(), law })?;
            let (hot, rest) = self.expected(&RowLaw::new(ids, table.rows), draws, table.rows);
            let row = |(rank, requests): (u64, f64)| (sampler.row(rank), requests);
            (hot.into_iter().map(row).collect(), rest, "expected")
        } else {
            return Err(PlacementError::Uncounted { table: table.name.clone() }.into());
        };
        let placement = deal(&hot, rest, table.rows, self.ranks.into());
        let reason = format!("rows planned: {} hot ones are dealt by {by} requests", hot.len());
        Ok((placement, reason))
    }

    /// Popularity ranks of the hot rows with their expected requests, and the requests for all other rows.
    fn expected(&self, law: &RowLaw, draws: Draws, rows: u64) -> (Vec<(u64, f64)>, f64) {
        let (mut hot, mut rest, mut rank) = (Vec::new(), 0.0, 0);
        let each: Vec<f64> = law.bins().iter().map(|bin| law.requests(bin, draws, self.unique)).collect();
        let all: f64 = law.bins().iter().zip(&each).map(|(bin, requests)| bin.rows * requests).sum();
        let mean = all / rows.max(1) as f64;
        for (bin, requests) in law.bins().iter().zip(each) {
            let room = (MOST_HOT - hot.len()) as u64;
            let taken = if requests > HOT * mean { room.min(bin.rows as u64) } else { 0 };
            hot.extend((rank..rank + taken).map(|rank| (rank, requests)));
            rest += (bin.rows - taken as f64) * requests;
            rank += bin.rows as u64;
        }
        (hot, rest)
    }
}
