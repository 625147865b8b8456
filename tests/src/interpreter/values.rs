//! What operations do to symbolic values: rows are lists of (who asked, row, history), everything dense is a hash of
//! what it was computed from. Equal hashes mean the same computation in the same order.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes;
pub(crate) use super::nodes::word;
pub(crate) use super::pieces::{Data, Entry, Pieces, Rows, beside};
use super::used::{DRAWN, Workload, of_window, owned, used, windows};
use fs_schedule::{Action, Extent, Op, Operand, Place, Reuse, Schedule, Sharding, Symbol, Way};

/// Everything that one rank's operation sees.
pub(crate) struct Call<'a> {
    pub s: &'a Schedule,
    pub op: &'a Op,
    pub rank: u32,
    pub batch: i64,
    pub work: &'a Workload,
    /// Contents of the operands; none for those of batches that do not exist.
    pub reads: Vec<Option<Pieces>>,
    /// Versions of the rows that a lookup or update concerns, of this rank.
    pub rows: BTreeMap<u64, u64>,
}

/// Why an operation makes no sense: a fault of the schedule.
pub(crate) type Wrong = String;

/// The rank that owns a row in an exchange; `None`: every one.
pub(crate) fn owner(s: &Schedule, e: u32, row: u64, ranks: u32) -> Option<u32> {
    let x = &s.exchanges[e as usize];
    let t = &s.tables[x.table as usize];
    match &t.sharding {
        _ if t.is_hot(x.part) => None,
        Sharding::RowWise => {
            let map = t.row_map(ranks).unwrap_or_else(|e| panic!("{e}"));
            Some((map.slot(row) / t.rows.div_ceil(u64::from(ranks))) as u32)
        }
        Sharding::TableWise { rank } => Some(*rank),
        Sharding::ColumnWise { ranks } => Some(ranks[x.part as usize]),
        Sharding::DataParallel => None,
    }
}

impl Call<'_> {
    pub(super) fn one(&self, i: usize) -> Result<&Data, Wrong> {
        match self.reads.get(i).and_then(Option::as_ref).map(Vec::as_slice) {
            Some([(_, data)]) => Ok(data),
            _ => Err(format!("operand {i} of `{}` is not one value", self.op.name)),
        }
    }
    pub(super) fn entries(&self, i: usize) -> Result<&[Entry], Wrong> {
        match self.one(i)? {
            Data::Entries(list) => Ok(list),
            _ => Err(format!("operand {i} of `{}` is not a list of entries", self.op.name)),
        }
    }
    pub(super) fn places(&self, i: usize) -> Result<&[(u32, u64)], Wrong> {
        match self.one(i)? {
            Data::Places(list) => Ok(list),
            _ => Err(format!("operand {i} of `{}` is not a list of places", self.op.name)),
        }
    }
    pub(super) fn rows_of(&self, i: usize) -> Result<&Rows, Wrong> {
        match self.one(i)? {
            Data::Rows(rows) => Ok(rows),
            _ => Err(format!("operand {i} of `{}` is not rows", self.op.name)),
        }
    }
    fn hash(&self, i: usize) -> u64 {
        word(&self.reads.get(i))
    }
    fn microbatch(&self) -> u32 {
        self.op.microbatch.unwrap_or(0)
    }
    fn reuse(&self, e: u32) -> Option<Reuse> {
        self.s.exchanges[e as usize].reuse(self.s.settings.microbatches)
    }

    /// Rows that a lookup or update concerns.
    pub(crate) fn concerns(&self) -> Result<Vec<u64>, Wrong> {
        let (list, at) = match &self.op.action {
            Action::Gather { class, .. } => (self.entries(1)?, class.map(|_| 2)),
            Action::Apply { class, .. } => (self.entries(0)?, class.map(|_| 1)),
            other => return Err(format!("{other:?} touches a table in a way that is not known")),
        };
        match at {
            None => Ok(list.iter().map(|e| e.row).collect()),
            Some(i) => Ok(self.places(i)?.iter().map(|(_, row)| *row).collect()),
        }
    }

    /// Results of an operation that concerns this rank only; updated rows come as values of result 0.
    pub(crate) fn compute(&self) -> Result<Vec<Data>, Wrong> {
        Ok(match &self.op.action {
            Action::Unique { exchange } => self.unique(*exchange)?,
            Action::DrawNegatives { table, stream, .. } => {
                let rows = self.s.tables[*table as usize].rows;
                let stream = DRAWN + u64::from(*stream);
                vec![Data::Ids(self.work.ids(rows, stream, self.rank, self.batch, self.microbatch()))]
            }
            Action::CopyIds => {
                let Some(Place::Input(n)) = self.op.reads.first().map(|o| o.place) else {
                    return Err("a copy of no input".into());
                };
                let rows = self.s.input_table(n as usize).ok_or("a copy of no ids")?.rows;
                vec![Data::Ids(self.work.ids(rows, u64::from(n), self.rank, self.batch, self.microbatch()))]
            }
            Action::Partition { exchange, way } => vec![Data::Classes(self.partition(*exchange, *way)?)],
            Action::Positions { exchange, way } => self.positions(*exchange, *way)?,
            Action::Gather { class, .. } => {
                let list = self.entries(1)?;
                let chosen: Vec<Entry> = match class {
                    None => list.to_vec(),
                    Some(_) => self.places(2)?.iter().map(|(at, _)| list[*at as usize]).collect(),
                };
                let version = |row: u64| self.rows.get(&row).copied().unwrap_or(0);
                let rows = chosen.iter().map(|e| (e.from, e.row, version(e.row)));
                vec![Data::Rows((0..).zip(rows).collect())]
            }
            // Together, as they are on their way; numbers are not looked at here.
            Action::Merge { exchange, classes } if classes.is_empty() => {
                let mut all = self.rows_of(0)?.clone();
                all.extend(self.hot_rows(*exchange, 1)?);
                vec![Data::Rows(all)]
            }
            Action::Split { exchange, class: None } => {
                let (own, all) = (self.share(*exchange), self.rows_of(0)?);
                let own = all.range(own).map(|(_, row)| *row);
                vec![Data::Rows((0..).zip(own).collect())]
            }
            Action::Merge { exchange, classes } => {
                let mut all = Rows::new();
                all.extend(self.hot_rows(*exchange, 2 * classes.len())?);
                for n in 0..classes.len() {
                    let (rows, places) = (self.rows_of(2 * n)?, self.places(2 * n + 1)?);
                    if rows.len() != places.len() {
                        return Err(format!(
                            "`{}` has {} rows for {} places",
                            self.op.name,
                            rows.len(),
                            places.len()
                        ));
                    }
                    all.extend(rows.values().zip(places).map(|(v, (at, _))| (*at, *v)));
                }
                vec![Data::Rows(all)]
            }
            Action::Split { exchange, .. } => {
                let (first, grads) = (self.share(*exchange).start, self.rows_of(0)?);
                let mut out = Rows::new();
                for (n, (at, row)) in (0..).zip(self.places(1)?) {
                    let Some((_, _, v)) = grads.get(&(first + at)) else {
                        return Err(format!(
                            "`{}` sends row {row}, whose gradient is not there",
                            self.op.name
                        ));
                    };
                    out.insert(n, (self.rank, *row, *v));
                }
                vec![Data::Rows(out)]
            }
            Action::Apply { class, .. } => {
                let (rows, more) = (self.concerns()?, usize::from(class.is_some()));
                let received = self.rows_of(2 + more)?;
                if rows.len() != received.len() || rows.iter().zip(received.values()).any(|(a, b)| *a != b.1)
                {
                    return Err(format!("`{}` has gradients of other rows than it updates", self.op.name));
                }
                let exchange = self.op.action.exchanges().first().copied().unwrap_or(0);
                let sums = nodes::by_row(self.s, exchange, received.values().copied());
                let sums: BTreeMap<u64, u64> = sums.into_iter().map(|(row, of)| (row, word(&of))).collect();
                let new =
                    |(row, sum): (&u64, &u64)| (*row as u32, (0, *row, word(&(self.rows.get(row), sum))));
                vec![Data::Rows(sums.iter().map(new).collect())]
            }
            Action::Expand | Action::Pool { .. } => vec![Data::Word(word(&("rows", self.picked(0, 1)?)))],
            Action::SampledSoftmax { .. } => {
                let x = word(&(self.hash(0), self.picked(1, 2)?, self.picked(1, 3)?));
                vec![Data::Word(word(&(0, x))), Data::Word(word(&(1, x)))]
            }
            Action::ExpandGrad | Action::PoolGrad { .. } => vec![self.spread(self.hash(0), &[1])?],
            Action::SampledSoftmaxGrad { .. } => {
                let x = word(&(self.hash(0), self.hash(4), self.picked(1, 2)?, self.picked(1, 3)?));
                vec![Data::Word(x), self.spread(x, &[2, 3])?]
            }
            Action::DenseUpdate => {
                let n = self.op.writes.len();
                (0..n).map(|i| Data::Word(word(&(self.hash(i), self.hash(n + i))))).collect()
            }
            // A sum of one value is that value.
            Action::Copy | Action::Add if self.op.reads.len() == 1 && self.one(0).is_ok() => {
                vec![self.one(0)?.clone()]
            }
            // A function of its operands.
            action if action.exchanges().is_empty() && action.facts().transfer.is_none() => self.dense(),
            other => return Err(format!("{other:?} is not known")),
        })
    }

    /// Dense operations; those with a row per entry work row by row.
    fn dense(&self) -> Vec<Data> {
        let action = match &self.op.action {
            Action::Add if self.reads.len() == 1 => &Action::Copy,
            action => action,
        };
        let what = format!("{action:?}");
        let per_entry = |o: &Operand| match o.place {
            Place::Buffer(b) => {
                matches!(self.s.train.buffers[b as usize].rows, Extent::Symbol(Symbol::Sent(_)))
            }
            _ => false,
        };
        // Also those of a part of the columns beside those of the others.
        let whole: Vec<_> = self.reads.iter().flatten().map(|pieces| beside(pieces, false)).collect();
        let rows: Vec<&Rows> = whole.iter().filter_map(|data| data.rows()).collect();
        let all = word(&(&what, &self.reads));
        (0..)
            .zip(&self.op.writes)
            .map(|(n, w): (u32, _)| {
                if per_entry(w) && !rows.is_empty() {
                    // Rows that are not there are zero: nothing comes of them, and a sum is of the others.
                    let sums = matches!(self.op.action, Action::Add);
                    let keys: BTreeSet<u32> = rows.iter().flat_map(|r| r.keys().copied()).collect();
                    let value = |at: u32| {
                        let parts: Vec<_> = rows.iter().filter_map(|r| r.get(&at)).collect();
                        let (from, row, v) = *parts.first().copied()?;
                        let v = match parts.len() {
                            1 if sums => v,
                            k if sums || k == rows.len() => word(&(&what, n, parts)),
                            _ => return None,
                        };
                        Some((at, (from, row, v)))
                    };
                    Data::Rows(keys.into_iter().filter_map(value).collect())
                } else {
                    Data::Word(word(&(all, n)))
                }
            })
            .collect()
    }

    /// The rows that ids stand for, in their order; all must have arrived.
    fn picked(&self, rows: usize, inverse: usize) -> Result<u64, Wrong> {
        let pieces = self.reads[rows].as_ref().ok_or("rows of another batch")?;
        let mut all = Vec::new();
        for (at, row) in self.places(inverse)? {
            for (_, data) in pieces {
                let Data::Rows(have) = data else { return Err(format!("`{}` reads no rows", self.op.name)) };
                match have.get(at) {
                    Some((_, r, v)) if r == row => all.push(*v),
                    _ => return Err(format!("`{}` reads row {row}, which is not there", self.op.name)),
                }
            }
        }
        Ok(word(&all))
    }

    /// Gradients per entry, summed in position order.
    fn spread(&self, g: u64, inverses: &[usize]) -> Result<Data, Wrong> {
        let mut sums: BTreeMap<u32, (u64, Vec<(usize, usize)>)> = BTreeMap::new();
        for i in inverses {
            for (n, (at, row)) in self.places(*i)?.iter().enumerate() {
                sums.entry(*at).or_insert((*row, Vec::new())).1.push((*i, n));
            }
        }
        let rows = sums.into_iter().map(|(at, (row, list))| (at, (self.rank, row, word(&(g, list)))));
        Ok(Data::Rows(rows.collect()))
    }

    /// Hot rows behind the others, if a merge brings some.
    fn hot_rows(&self, e: u32, operand: usize) -> Result<Rows, Wrong> {
        if self.op.reads.len() <= operand {
            return Ok(Rows::new());
        }
        let first = owned(self.s, self.work, e, self.rank, self.batch);
        Ok((first..).zip(self.rows_of(operand)?.values().copied()).collect())
    }

    /// Which of all entries an exchange has a share of.
    fn share(&self, e: u32) -> std::ops::Range<u32> {
        let x = &self.s.exchanges[e as usize];
        let first = owned(self.s, self.work, e, self.rank, self.batch);
        match x.of {
            None => 0..u32::MAX,
            Some(_) if self.s.tables[x.table as usize].is_hot(x.part) => first..u32::MAX,
            Some(_) => 0..first,
        }
    }

    fn unique(&self, e: u32) -> Result<Vec<Data>, Wrong> {
        let shares = self.s.exchanges[e as usize].shares;
        // What is said of those who are asked is said of the share with owners.
        let list = e;
        let e = shares.map_or(e, |shares| shares.owned);
        let x = &self.s.exchanges[e as usize];
        let table = &self.s.tables[x.table as usize];
        let microbatches = self.s.settings.microbatches as usize;
        let each = self.op.reads.len() / microbatches;
        let mut lists: Vec<(u32, Vec<u64>)> = Vec::new();
        for (i, o) in self.op.reads.iter().enumerate() {
            let part = (i / each) as u32;
            let ids = match o.place {
                Place::Buffer(_) => match self.one(i)? {
                    Data::Ids(list) => list.clone(),
                    _ => return Err(format!("operand {i} of `{}` is not ids", self.op.name)),
                },
                Place::Input(n) => {
                    // The ids that follow are another sequence over the same rows.
                    self.work.ids(table.rows, u64::from(n), self.rank, self.batch, part)
                }
                _ => return Err("ids from elsewhere".into()),
            };
            lists.push((part, ids));
        }
        // Of owners that one relay stands for one after the other.
        let hot = |row: &u64| shares.is_some() && table.hot.contains(row);
        let home = |row: u64| {
            if hot(&row) {
                return (u32::MAX, u32::MAX);
            }
            let owner = owner(self.s, e, row, self.work.ranks).unwrap_or(0);
            (nodes::asked(self.s, e, self.rank, owner, self.work.ranks), owner)
        };
        let mut order: Vec<((u32, u32), u64, usize, usize)> = Vec::new();
        for (i, (_, ids)) in lists.iter().enumerate() {
            for (n, row) in ids.iter().enumerate() {
                // One row once, or once per occurrence.
                let (i, n) = if x.unique { (0, 0) } else { (i, n) };
                order.push((home(*row), *row, i, n));
            }
        }
        if x.unique || x.folded {
            order.sort_unstable();
            order.dedup();
        } else {
            order.sort_by_key(|(home, _, i, n)| (*home, *i, *n));
        }
        let index: BTreeMap<(u64, usize, usize), u32> =
            (0..).zip(&order).map(|(at, (_, row, i, n))| ((*row, *i, *n), at)).collect();
        let mut entries: Vec<Entry> = order
            .iter()
            .map(|(_, row, ..)| Entry { from: self.rank, row: *row, first: u32::MAX, last: 0 })
            .collect();
        let mut inverses = Vec::new();
        for (i, (part, ids)) in lists.iter().enumerate() {
            let mut places = Vec::new();
            for (n, row) in ids.iter().enumerate() {
                let at = index[&if x.unique { (*row, 0, 0) } else { (*row, i, n) }];
                let (entry, window) = (&mut entries[at as usize], part / of_window(self.s, e));
                (entry.first, entry.last) = (entry.first.min(window), entry.last.max(window));
                places.push((at, *row));
            }
            inverses.push(Data::Places(places));
        }
        let uses = self.s.exchanges[list as usize].lookahead.is_some() && windows(self.s, e) > 1;
        let mut out = Vec::new();
        let mut put = |entries: Vec<Entry>| {
            let count = Data::Word(entries.len() as u64);
            out.extend([Data::Entries(entries.clone()), count]);
            if uses {
                out.push(Data::Entries(entries));
            }
        };
        if shares.is_some() {
            let (of_all, with_owners) = entries.iter().partition(|entry| hot(&entry.row));
            put(with_owners);
            put(of_all);
            out.insert(0, Data::Entries(entries));
        } else {
            put(entries);
        }
        out.extend(inverses);
        Ok(out)
    }

    /// Classes from the rows themselves: where was, or will be, the nearest other use?
    fn partition(&self, e: u32, way: Way) -> Result<Vec<(u32, u64, u32)>, Wrong> {
        let reuse = self.reuse(e).ok_or("rows that are not told apart")?;
        let classes = reuse.classes(way);
        let m = i64::from(windows(self.s, e));
        let each = 1 + usize::from(m > 1);
        let of = self.entries(0)?;
        // The last use in this batch by any rank. A replica that classes its own entries knows the others' too.
        let mut last: BTreeMap<u64, u32> = BTreeMap::new();
        let replicated = self.s.exchanges[e as usize].replicated(&self.s.tables);
        for entry in of {
            let own = last.entry(entry.row).or_insert(entry.last);
            *own = entry.last.max(*own);
        }
        if replicated {
            for rank in 0..self.work.ranks {
                for (window, row) in used(self.s, self.work, e, rank, self.batch) {
                    if let Some(l) = last.get_mut(&row) {
                        *l = window.max(*l);
                    }
                }
            }
        }
        let mut out = Vec::new();
        for entry in of {
            let own = if way == Way::Forward { entry.first } else { last[&entry.row] };
            let mut distance = None;
            for i in 1..=i64::from(reuse.history()) {
                let n = i as usize * each;
                // Batches before the first and after the last have no rows.
                if self.reads[n].is_none() {
                    continue;
                }
                let there = self.entries(n + each - 1)?.iter().filter(|x| x.row == entry.row);
                let nearest = match way {
                    Way::Forward => there.map(|x| i * m + i64::from(own) - i64::from(x.last)).min(),
                    Way::Backward => there.map(|x| i * m + i64::from(x.first) - i64::from(own)).min(),
                };
                if nearest.is_some() {
                    distance = nearest;
                    break;
                }
            }
            let distance = distance.filter(|d| *d <= i64::from(reuse.lookahead));
            let class = classes
                .iter()
                .position(|c| c.window == own && c.distance.map(i64::from) == distance)
                .ok_or_else(|| format!("row {} has no class: {own}, {distance:?}", entry.row))?;
            out.push((class as u32, entry.row, entry.from));
        }
        Ok(out)
    }

    fn positions(&self, e: u32, way: Way) -> Result<Vec<Data>, Wrong> {
        let Data::Classes(list) = self.one(0)? else { return Err("positions of no classes".into()) };
        let count = self.reuse(e).map_or(0, |r| r.count(way)) as u32;
        Ok((0..count)
            .flat_map(|c| {
                let places = (0..).zip(list).filter(|(_, x)| x.0 == c).map(|(at, x)| (at, x.1));
                let places: Vec<(u32, u64)> = places.collect();
                let n = places.len() as u64;
                [Data::Places(places), Data::Word(n)]
            })
            .collect())
    }
}

/// Results of a collective for every rank, from every rank's operands.
pub(crate) fn meet(calls: &[Call<'_>]) -> Result<Vec<Vec<Data>>, Wrong> {
    let s = calls[0].s;
    let ranks = calls.len() as u32;
    // Whether what one rank sends of a row goes to another.
    let mine = |e: u32, from: u32, rank: u32, row: u64| {
        owner(s, e, row, ranks).is_none_or(|o| nodes::asked(s, e, from, o, ranks) == rank)
    };
    let mut out = vec![Vec::new(); calls.len()];
    match &calls[0].op.action {
        Action::AllReduce => {
            for i in 0..calls[0].op.reads.len() {
                let parts: Vec<u64> = calls.iter().map(|c| c.hash(i)).collect();
                for o in &mut out {
                    o.push(Data::Word(word(&parts)));
                }
            }
        }
        Action::AllToAllIds { exchanges } | Action::AllGatherIds { exchanges } => {
            let mut at = 0;
            for e in exchanges {
                let uses = s.exchanges[*e as usize].lookahead.is_some() && windows(s, *e) > 1;
                for (rank, o) in (0..).zip(&mut out) {
                    let mut list = Vec::new();
                    for c in calls {
                        list.extend(c.entries(at)?.iter().filter(|x| mine(*e, c.rank, rank, x.row)).copied());
                    }
                    let count = Data::Word(list.len() as u64);
                    o.extend([Data::Entries(list.clone()), count]);
                    if matches!(calls[0].op.action, Action::AllGatherIds { .. }) {
                        o.push(Data::Entries(calls[rank as usize].entries(at)?.to_vec()));
                    }
                    if uses {
                        o.push(Data::Entries(list));
                    }
                }
                at += 2 + usize::from(uses);
            }
        }
        Action::AllToAllClasses { exchanges, .. } => {
            for n in 0..exchanges.len() {
                for (rank, o) in (0..).zip(&mut out) {
                    let mut list = Vec::new();
                    for c in calls {
                        let Data::Classes(all) = c.one(3 * n)? else { return Err("no classes".into()) };
                        list.extend(all.iter().filter(|x| x.2 == rank).copied());
                    }
                    o.push(Data::Classes(list));
                }
            }
        }
        Action::AllToAllRows { exchanges, .. } => {
            for n in 0..exchanges.len() {
                for (rank, o) in (0..).zip(&mut out) {
                    let mut list = Vec::new();
                    for c in calls {
                        list.extend(c.rows_of(3 * n)?.values().filter(|v| v.0 == rank).copied());
                    }
                    o.push(Data::Rows((0..).zip(list).collect()));
                }
            }
        }
        Action::AllToAllGrads { exchanges, .. } | Action::AllGatherGrads { exchanges, .. } => {
            for (n, e) in exchanges.iter().enumerate() {
                for (rank, o) in (0..).zip(&mut out) {
                    let mut list = Vec::new();
                    for c in calls {
                        list.extend(
                            c.rows_of(3 * n)?.values().filter(|v| mine(*e, c.rank, rank, v.1)).copied(),
                        );
                    }
                    o.push(Data::Rows((0..).zip(list).collect()));
                }
            }
        }
        Action::ShareLengths => {
            let lengths = word(&calls.iter().map(|c| c.reads.clone()).collect::<Vec<_>>());
            for o in &mut out {
                o.push(Data::Word(lengths));
            }
        }
        // To each rank something of what every rank has.
        Action::DispatchRows { .. } | Action::Combine { .. } => {
            let parts: Vec<_> = calls.iter().map(|c| (c.hash(0), c.hash(1))).collect();
            // The share that is expected to move is the plan's, not the values'.
            let what = calls[0].op.action.name();
            for (rank, o) in out.iter_mut().enumerate() {
                o.push(Data::Word(word(&(&what, rank, &parts))));
            }
        }
        // What arrives is held with the batch.
        Action::Dispatch { .. } => {}
        other => return Err(format!("{other:?} is no collective")),
    }
    Ok(out)
}
