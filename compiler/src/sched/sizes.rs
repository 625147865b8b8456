//! Expected value of every size symbol, per rank, from the workload.
//!
//! Lengths and ids follow the workload's distributions. Samples, tokens and their squares are those of the rank that has most
//! to do ([`super::stragglers`]), because the others wait for it; rows that travel are a mean rank's; see [`super::rows`] for
//! unique rows and classes. What an owner receives is what ranks send on average, and more where one owner of a row-wise
//! table is asked more than others ([`super::owners`]): the rank described is the busiest owner. So it is where one rank
//! owns a whole table or part. What was counted in the data takes the place of laws: lengths, rows and their classes are then
//! those of its batches. Of data that were not read lengths are taken to be uniform up to their maximum and ids to follow
//! Zipf's law, and the schedule says so.

use std::collections::BTreeMap;

use fs_schedule::action::{self, Facts};
use fs_schedule::profile::{Busiest, ReuseCounts, Rows};
use fs_schedule::{
    Action, Buffer, Data, Element, Extent, IdDistribution, InputKind, Op, Place, Profile, Reuse, Schedule,
    Site, Stragglers, Symbol, Table, Way,
};
use fs_workload::ids::{ASSUMED_EXPONENT, Draws};
use fs_workload::placement::busiest;

use super::evidence::Evidence;
use super::owners::Requests;
use super::relays;
use super::rows::{Entries, Expected, Law, Popular};
use super::stragglers;

/// Expected sizes of one rank.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sizes {
    values: BTreeMap<Symbol, f64>,
    /// Those that differ where samples are as assigned.
    assigned: BTreeMap<Symbol, f64>,
    /// Those of the mean rank where the values are the slowest one's.
    means: BTreeMap<Symbol, f64>,
    microbatches: f64,
    /// How much longer compute takes on cores that ranks share than where it was measured.
    pub crowded: f64,
    /// The rank whose transfers are described where a profile says what each is asked for.
    pub busiest: Busiest,
    /// How many times as unevenly samples load ranks as when rows were counted.
    pub uneven: f64,
    /// How unevenly samples load ranks; none if they do not.
    pub stragglers: Option<Stragglers>,
    /// Per exchange, expected requests to each owner, where they are not even.
    owners: BTreeMap<u32, Vec<f64>>,
    /// What had to be assumed, in sentences.
    pub assumptions: Vec<String>,
}

const NOT_READ: &str = "was not read: lengths are assumed";

/// The share of samples' inputs that is expected to move.
pub(crate) fn moved(s: &Schedule) -> f64 {
    let of = s.train.ops.iter().find_map(|op| match op.action {
        Action::Dispatch { moved } => Some(moved),
        _ => None,
    });
    of.unwrap_or(0.0)
}

impl Sizes {
    /// Of a schedule whose operations are known, for its number of ranks, by laws or as they were counted.
    pub(crate) fn expect(s: &Schedule, evidence: Evidence<'_>) -> Self {
        let mut sizes = Self::mean(s, evidence);
        let Some(drawn) = stragglers::draw(s, evidence) else { return sizes };
        sizes.stragglers = Some(drawn.stragglers());
        // Of lengths that are only assumed nobody knows that much.
        if stragglers::known(s, evidence) {
            let planned = s.settings.balance.is_some();
            let slowest = drawn.at(planned);
            sizes.straggle(planned, |symbol| (slowest.of(symbol), 1.0));
        }
        sizes
    }

    /// Puts the slowest rank's sizes in place of those that are known: a factor for operations, and that of the mean rank, which is what is
    /// done where samples are read if that is elsewhere.
    fn straggle(&mut self, planned: bool, factors: impl Fn(Symbol) -> (f64, f64)) {
        let known: Vec<(Symbol, f64)> = self.values.iter().map(|(s, v)| (*s, *v)).collect();
        let samples = |s: &Symbol| matches!(s, Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_));
        for (symbol, value) in known.into_iter().filter(|(s, _)| samples(s)) {
            let (slowest, home) = factors(symbol);
            self.means.insert(symbol, value * home);
            if planned {
                self.assigned.insert(symbol, value * slowest);
                self.values.insert(symbol, value * home);
            } else {
                self.values.insert(symbol, value * slowest);
            }
        }
    }

    /// If all ranks had the same to do.
    pub(crate) fn mean(s: &Schedule, evidence: Evidence<'_>) -> Self {
        let counts = evidence.counts;
        let mut sizes = Self {
            values: BTreeMap::from([(Symbol::Ranks, f64::from(s.ranks))]),
            assigned: BTreeMap::new(),
            means: BTreeMap::new(),
            microbatches: f64::from(s.settings.microbatches.max(1)),
            crowded: 1.0,
            busiest: Busiest::default(),
            uneven: 1.0,
            stragglers: None,
            owners: BTreeMap::new(),
            assumptions: Vec::new(),
        };
        let samples = counts.map_or(f64::from(s.settings.batch) / f64::from(s.ranks), |c| c.samples);
        sizes.values.insert(Symbol::Samples, samples);
        let (lengths, ids) = match &s.data {
            Some(Data::Generate { lengths, ids, .. }) => (Some(*lengths), *ids),
            _ if counts.is_some() => (None, IdDistribution::ASSUMED),
            Some(_) => {
                sizes.assume("the data file");
                (None, IdDistribution::ASSUMED)
            }
            None => {
                sizes.assume("the data, which the model's file does not name,");
                (None, IdDistribution::ASSUMED)
            }
        };
        let mut known: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for (g, group) in s.lengths.iter().enumerate() {
            let (mean, square) = *known
                .entry(group.max)
                .or_insert_with(|| stragglers::lengths_of(lengths, group.max).moments());
            let counted = counts.and_then(|c| c.groups.get(g)).map(|g| (g.tokens, g.squares));
            let (tokens, squares) = counted.unwrap_or((samples * mean, samples * square));
            sizes.values.insert(Symbol::Tokens(g as u32), tokens);
            sizes.values.insert(Symbol::Squares(g as u32), squares);
        }
        sizes.exchanges(s, ids, evidence);
        sizes
    }

    /// As a profile has them; classes that it did not count follow from the workload's law, in proportion.
    pub(crate) fn measured(s: &Schedule, profile: &Profile, evidence: Evidence<'_>) -> Self {
        let mut sizes = Self::mean(s, evidence);
        sizes.assumptions.clear();
        for (symbol, value) in &profile.sizes {
            if let Ok(symbol) = symbol.parse::<Symbol>() {
                sizes.values.insert(symbol, *value);
            }
        }
        if let Some(drawn) = stragglers::draw(s, evidence).filter(|_| stragglers::known(s, evidence)) {
            // What was measured is the slowest rank's, under the plan of the run.
            let planned = s.settings.balance.is_some();
            let (then, now) = (drawn.at(profile.balanced), drawn.at(planned));
            sizes.straggle(planned, |symbol| (now.of(symbol) / then.of(symbol), 1.0 / then.of(symbol)));
            sizes.crowded = now.crowded / then.crowded;
            let tokens = (0..s.lengths.len() as u32).map(Symbol::Tokens);
            let uneven = tokens.map(|symbol| now.of(symbol) / then.of(symbol));
            sizes.uneven = uneven.reduce(f64::max).unwrap_or(1.0);
            sizes.stragglers = Some(drawn.stragglers());
        }
        for e in 0..s.exchanges.len() as u32 {
            let x = &s.exchanges[e as usize];
            // Shares of what is listed follow it.
            if x.list() != x.entries || x.leg.within().is_some_and(|within| is_share(s, within)) {
                continue;
            }
            let Some(rows) = rows_of(profile, s, e) else { continue };
            let Some((sent, reuse_counts)) = rows.of_leg(x.leg, s.settings.node) else { continue };
            let whole = relays::whole(s, x);
            let sent = sent * whole;
            let get = |sizes: &Self, symbol| sizes.values.get(&symbol).copied().unwrap_or(0.0);
            let before = get(&sizes, Symbol::Sent(e));
            // Owners receive in proportion to what is sent, as before.
            let scale = if before > 0.0 { sent / before } else { 1.0 };
            let received = get(&sizes, Symbol::Received(e));
            let factor = if before > 0.0 { received / before } else { 1.0 };
            sizes.values.insert(Symbol::Sent(e), sent);
            let asked = get(&sizes, Symbol::Asked(e));
            if asked > 0.0 {
                sizes.values.insert(Symbol::Asked(e), asked * scale);
            }
            if x.shares.is_some() {
                sizes.scale_shares(s, e, scale);
                continue;
            }
            sizes.values.insert(Symbol::Received(e), sent * factor);
            let Some(reuse) = x.reuse(s.settings.microbatches) else { continue };
            for way in [Way::Forward, Way::Backward] {
                let counted = reuse_counts.iter().find_map(|counts| counts.classes(reuse, way));
                let known = counted.is_some();
                for c in 0..reuse.count(way) {
                    let class = Symbol::SentClass(e, way, c as u32);
                    let expected = get(&sizes, class) * scale;
                    let n = counted.as_ref().map_or(expected, |counts| counts[c] * whole);
                    sizes.values.insert(class, n);
                    sizes.values.insert(Symbol::ReceivedClass(e, way, c as u32), n * factor);
                }
                if !known && way == Way::Forward {
                    sizes.assumptions.push(format!(
                        "the profile did not count rows of `{}` for lookahead {} and {} windows of a batch: their shares follow from the workload",
                        rows.table, reuse.lookahead, reuse.windows
                    ));
                }
            }
        }
        sizes
    }

    /// Shares of an exchange's entries, so many times as many as they were taken to be.
    fn scale_shares(&mut self, s: &Schedule, list: u32, scale: f64) {
        for (e, x) in (0..).zip(&s.exchanges) {
            let of = x.leg.within().and_then(|within| s.exchanges.get(within as usize)).unwrap_or(x);
            if of.of != Some(list) {
                continue;
            }
            for (symbol, value) in &mut self.values {
                let own = match symbol {
                    Symbol::Sent(n)
                    | Symbol::Received(n)
                    | Symbol::SentClass(n, ..)
                    | Symbol::ReceivedClass(n, ..) => *n == e,
                    _ => false,
                };
                if own {
                    *value *= scale;
                }
            }
        }
    }

    /// Of given values, for tests and for schedules that carry them.
    pub(crate) fn given(values: impl IntoIterator<Item = (Symbol, f64)>, microbatches: u32) -> Self {
        Self {
            values: values.into_iter().collect(),
            assigned: BTreeMap::new(),
            means: BTreeMap::new(),
            microbatches: f64::from(microbatches.max(1)),
            crowded: 1.0,
            busiest: Busiest::default(),
            uneven: 1.0,
            stragglers: None,
            owners: BTreeMap::new(),
            assumptions: Vec::new(),
        }
    }

    fn assume(&mut self, what: &str) {
        self.assumptions.push(format!(
            "{what} {NOT_READ} uniform from 1 to their maximum, ids Zipf with exponent {ASSUMED_EXPONENT}"
        ));
    }

    /// Whether one of a prediction's limits says that lengths are only assumed.
    pub(crate) fn assumed(limits: &[String]) -> bool {
        limits.iter().any(|limit| limit.contains(NOT_READ))
    }

    /// Value of a symbol for operations or buffers of a site and a microbatch (`None`: of the whole batch).
    pub(crate) fn get(&self, symbol: Symbol, site: Site, microbatch: Option<u32>) -> f64 {
        let assigned = if site.is_home() { None } else { self.assigned.get(&symbol) };
        let value = assigned.or_else(|| self.values.get(&symbol)).copied().unwrap_or(0.0);
        match symbol {
            Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) if microbatch.is_some() => {
                value / self.microbatches
            }
            _ => value,
        }
    }

    /// Value of a symbol for an operation of the mean rank, of which what is asked for stands for what owners are.
    pub(crate) fn mean_of(&self, op: &Op, symbol: Symbol) -> f64 {
        match self.means.get(&symbol) {
            Some(mean) if op.microbatch.is_some() => mean / self.microbatches,
            Some(mean) => *mean,
            None => self.of(op, symbol),
        }
    }

    /// Value of a symbol for an operation.
    pub(crate) fn of(&self, op: &Op, symbol: Symbol) -> f64 {
        self.get(symbol, op.site, op.microbatch)
    }

    /// Rows of a buffer.
    pub(crate) fn rows(&self, b: &Buffer) -> f64 {
        self.extent(b.rows, b.site, b.microbatch)
    }

    /// Rows of something of a site and a microbatch.
    pub(crate) fn extent(&self, rows: Extent, site: Site, microbatch: Option<u32>) -> f64 {
        match rows {
            Extent::Fixed(n) => n.into(),
            Extent::Symbol(s) => self.get(s, site, microbatch),
        }
    }

    /// Expected requests to each owner of an exchange's rows; `None`: they are asked evenly.
    pub(crate) fn owners(&self, exchange: u32) -> Option<&[f64]> {
        self.owners.get(&exchange).map(Vec::as_slice)
    }

    /// Symbols with their values, of the whole batch where it is worked on.
    pub(crate) fn list(&self) -> Vec<(String, f64)> {
        let worked_on = |(s, v): (&Symbol, &f64)| (s.to_string(), *self.assigned.get(s).unwrap_or(v));
        self.values.iter().map(worked_on).collect()
    }

    /// Entries that a rank asks for on behalf of others, of which `moved` is the share of its tokens that leave: once those of the
    /// samples that stay, and those of each that leaves, for its own rank.
    pub(crate) fn asked(
        &self,
        known: &Expected,
        (law, d): (Law, Draws),
        (ranks, unique): (f64, bool),
        moved: f64,
    ) -> f64 {
        let of = |share: f64| {
            let draws = Draws { by_law: d.by_law * share, uniform: d.uniform * share };
            known.entries(law, draws, ranks, unique, None).sent
        };
        let samples = self.values.get(&Symbol::Samples).copied().unwrap_or(1.0).max(1.0);
        of(1.0 - moved) + moved * samples * of(1.0 / samples)
    }

    fn exchanges(&mut self, s: &Schedule, ids: IdDistribution, evidence: Evidence<'_>) {
        let ranks = f64::from(s.ranks);
        let draws = draws(s, self);
        let moved = moved(s);
        let own = Expected::default();
        let expected = evidence.memo.map_or(&own, |memo| &memo.rows);
        let mut load: BTreeMap<u32, f64> = BTreeMap::new();
        let mut entries: Vec<Option<Entries>> = Vec::new();
        for (e, x) in s.exchanges.iter().enumerate() {
            // What relays ask for is of what ranks ask them for.
            let asks = x.leg.within().and_then(|within| s.exchanges.get(within as usize)).unwrap_or(x);
            let (Some(d), Some(table)) = (draws.get(&asks.list()).copied(), s.tables.get(x.table as usize))
            else {
                entries.push(None);
                continue;
            };
            let relays = x.leg.within().is_some();
            let reuse = x.reuse(s.settings.microbatches);
            let law = Law { ids, rows: table.rows, of: Popular::All };
            let of_law = |of| {
                let law = Law { of, ..law };
                if relays {
                    relays::expect(expected, law, d, relays::nodes(s), reuse)
                } else {
                    expected.entries(law, d, ranks, asks.unique, reuse)
                }
            };
            let by_law = of_law(Popular::All);
            let evidence = evidence.rows(s, x.leg.within().unwrap_or(e as u32));
            let of_leg = evidence.and_then(|rows| rows.of_leg(x.leg, s.settings.node));
            let found = &match (evidence, of_leg) {
                (Some(rows), Some(of_leg)) => {
                    let (found, known) = counted(of_leg, &by_law, reuse);
                    if let Some(Reuse { lookahead, windows, .. }) = reuse.filter(|_| !known) {
                        self.assumptions.push(format!(
                            "rows of `{}` were not counted for lookahead {lookahead} and {windows} windows of a batch: their shares follow from a law that is assumed",
                            rows.table
                        ));
                    }
                    found
                }
                _ => by_law.clone(),
            };
            // Of what is listed the share of hot rows, or the others.
            let hot = table.hot.len() as u64;
            let found = &if asks.of.is_some() {
                let hot = match evidence {
                    Some(rows) => hottest(rows, table, &of_law(Popular::Hottest(hot)), &by_law, found),
                    None => of_law(Popular::Hottest(hot)),
                };
                if table.is_hot(x.part) { hot } else { relays::without(found, &hot) }
            } else {
                found.clone()
            };
            let found = &relays::share(found, relays::whole(s, x));
            if x.shares.is_some() {
                self.values.insert(Symbol::Sent(e as u32), found.sent);
                entries.push(None);
                continue;
            }
            if let Some(owner) = table.sharding.owner(x.part) {
                *load.entry(owner).or_insert(0.0) += found.sent * f64::from(x.columns(&s.tables));
            }
            self.values.insert(Symbol::Sent(e as u32), found.sent);
            if x.folded {
                let scale = if by_law.sent > 0.0 { found.sent / by_law.sent } else { 1.0 };
                let asked = self.asked(expected, (law, d), (ranks, x.unique), moved) * scale;
                self.values.insert(Symbol::Asked(e as u32), asked);
            }
            entries.push(Some(found.clone()));
            if let (false, Ok(map)) = (table.is_hot(x.part), table.row_map(s.ranks)) {
                let requests = Requests { ids, law: &expected.law(law), draws: d, unique: x.unique, hot };
                let loads = requests.loads(table, &map, s.ranks);
                self.owners.extend(loads.map(|loads| (e as u32, loads)));
            }
        }
        let owner = load.iter().fold(None, |best: Option<(u32, f64)>, (rank, l)| match best {
            Some((_, most)) if most >= *l => best,
            _ => Some((*rank, *l)),
        });
        for (e, (x, found)) in s.exchanges.iter().zip(&entries).enumerate() {
            let Some(found) = found else { continue };
            let nodes = relays::nodes(s);
            let factor = match s.tables.get(x.table as usize).map(|t| (&t.sharding, t.sharding.owner(x.part)))
            {
                // A relay is asked by its node, an owner by one relay of each node.
                Some((_, Some(rank))) if !x.leg.is_whole() => {
                    let many = if x.leg.between().is_some() { nodes.each() } else { nodes.count() };
                    if owner.is_some_and(|b| b.0 == rank) { many.into() } else { 0.0 }
                }
                _ if x.leg.between().is_some() => {
                    self.owners(e as u32).map_or(1.0, |loads| relays::busiest_place(loads, nodes))
                }
                _ if x.replicated(&s.tables) => ranks,
                Some((_, Some(rank))) if owner.is_some_and(|b| b.0 == rank) => ranks,
                Some((_, Some(_))) => 0.0,
                _ => match (evidence.rows(s, e as u32), s.tables.get(x.table as usize)) {
                    (Some(rows), Some(table)) => rows.busiest_of(table, s.ranks),
                    _ => self.owners(e as u32).map_or(1.0, busiest),
                },
            };
            let e = e as u32;
            self.values.insert(Symbol::Received(e), found.sent * factor);
            let ways = [(Way::Forward, &found.forward), (Way::Backward, &found.backward)];
            for (way, list) in ways {
                for (c, n) in list.iter().enumerate() {
                    self.values.insert(Symbol::SentClass(e, way, c as u32), *n);
                    self.values.insert(Symbol::ReceivedClass(e, way, c as u32), n * factor);
                }
            }
        }
    }
}

/// Entries of hot rows, of those that were counted: as often as these are asked for, told apart in proportion to the law.
fn hottest(rows: &Rows, table: &Table, by_law: &Entries, all_by_law: &Entries, all: &Entries) -> Entries {
    let known: BTreeMap<u64, f64> = rows.hot.iter().copied().collect();
    let sent: f64 = table.hot.iter().filter_map(|row| known.get(row)).sum();
    if sent <= 0.0 || by_law.sent <= 0.0 {
        let scale = if all_by_law.sent > 0.0 { all.sent / all_by_law.sent } else { 1.0 };
        return relays::share(by_law, scale);
    }
    relays::share(by_law, sent.min(all.sent) / by_law.sent)
}

/// Entries as they were counted; classes that were not follow from the law, in proportion, and then it is false.
pub(crate) fn counted(
    (sent, counted): (f64, &[ReuseCounts]),
    law: &Entries,
    reuse: Option<Reuse>,
) -> (Entries, bool) {
    let classes = |way| {
        let Some(reuse) = reuse else { return Some(Vec::new()) };
        counted.iter().find_map(|counts| counts.classes(reuse, way))
    };
    if let (Some(forward), Some(backward)) = (classes(Way::Forward), classes(Way::Backward)) {
        return (Entries { sent, forward, backward }, true);
    }
    let scale = if law.sent > 0.0 { sent / law.sent } else { 1.0 };
    (relays::share(&Entries { sent: law.sent, ..law.clone() }, scale), false)
}

/// The law of a schedule's ids, or what is assumed of them.
pub(crate) fn ids_of(s: &Schedule) -> IdDistribution {
    match &s.data {
        Some(Data::Generate { ids, .. }) => *ids,
        _ => IdDistribution::ASSUMED,
    }
}

/// Draws of each exchange, from the ids that its `unique` reads.
pub(crate) fn draws(s: &Schedule, sizes: &Sizes) -> BTreeMap<u32, Draws> {
    let mut all = BTreeMap::new();
    for op in &s.train.ops {
        let Facts { learns, of, .. } = op.action.facts();
        let (action::Sizes::Sent, [exchange]) = (learns.sizes, of.exchanges) else { continue };
        let mut d = Draws { by_law: 0.0, uniform: 0.0 };
        let mut inputs: Vec<u32> = Vec::new();
        for r in &op.reads {
            match s.train.ids_of(r) {
                Place::Input(i) if !inputs.contains(&i) => inputs.push(i),
                Place::Buffer(b) => {
                    if let Some(b) = s.train.buffers.get(b as usize).filter(|b| b.element == Element::Id) {
                        d.uniform += sizes.rows(b) * f64::from(b.columns);
                    }
                }
                _ => {}
            }
        }
        for i in &inputs {
            d.by_law += match s.inputs.get(*i as usize).map(|i| i.kind) {
                Some(InputKind::Ids { lengths, .. }) => sizes.get(Symbol::Tokens(lengths), op.site, None),
                // What follows a sequence is the sequence but for one id of each sample.
                Some(InputKind::Next { of }) if inputs.contains(&of) => {
                    sizes.get(Symbol::Samples, op.site, None)
                }
                Some(InputKind::Next { of }) => match s.inputs.get(of as usize).map(|i| i.kind) {
                    Some(InputKind::Ids { lengths, .. }) => sizes.get(Symbol::Tokens(lengths), op.site, None),
                    _ => 0.0,
                },
                _ => 0.0,
            };
        }
        all.insert(*exchange, d);
    }
    all
}

/// Whether an exchange has a share of another one's entries.
fn is_share(s: &Schedule, exchange: u32) -> bool {
    s.exchanges.get(exchange as usize).is_some_and(|x| x.of.is_some())
}

/// What a profile knows of an exchange's rows.
pub(crate) fn rows_of<'a>(
    profile: &'a Profile,
    s: &Schedule,
    exchange: u32,
) -> Option<&'a fs_schedule::profile::Rows> {
    let x = s.exchanges.get(exchange as usize)?;
    profile.rows_of(&s.tables.get(x.table as usize)?.name, x.part)
}

/// Bytes of an input of the batch.
pub(crate) fn input_bytes(
    s: &Schedule,
    sizes: &Sizes,
    input: u32,
    site: Site,
    microbatch: Option<u32>,
) -> f64 {
    let size = |symbol| sizes.get(symbol, site, microbatch);
    match s.inputs.get(input as usize).map(|i| i.kind) {
        Some(InputKind::Ids { lengths, .. }) => 8.0 * size(Symbol::Tokens(lengths)),
        // Stored as the end of the sequence that it continues.
        Some(InputKind::Next { .. }) => 8.0 * size(Symbol::Samples),
        Some(InputKind::Dense { width }) => 4.0 * f64::from(width) * size(Symbol::Samples),
        Some(InputKind::SampleLabel) => 4.0 * size(Symbol::Samples),
        Some(InputKind::TokenLabel { lengths }) => 4.0 * size(Symbol::Tokens(lengths)),
        None => 0.0,
    }
}
