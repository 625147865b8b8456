//! What terms mean: values of all ranks, computed one term after the other from ids, tables and gradients.
//!
//! Nothing here is fast or parallel. It is what rules and the code generator are held against: two terms mean the same
//! if their values are the same in every bit on any data.

mod hot;
mod joint;
mod moved;
mod relay;
mod rows;

use std::collections::BTreeMap;

use fs_schedule::reuse::Reuse;
use fs_schedule::{BLOCK, Element, Way, WirePrecision};

use super::op::Op;
use super::term::{Id, Terms};
use super::ty::{Precision, Sharded};

/// Of each rank a list, and how much of it goes where.
type Lists<'o, T> = Vec<(&'o [T], &'o [usize])>;

/// A row that a rank asks for, and the microbatches that use it first and last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The row.
    pub row: u64,
    /// First microbatch.
    pub first: u32,
    /// Last microbatch.
    pub last: u32,
}

/// What a message is made of.
#[derive(Debug, Clone, PartialEq)]
enum Item {
    /// So many items of the next list follow.
    Next(usize),
    /// Nothing more follows.
    End,
    Real(Vec<f32>),
    Request(Request),
    Class(u32),
}

/// What one rank has of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Rows or gradients.
    Reals(Vec<Vec<f32>>),
    /// Ids, by row.
    Ids(Vec<Vec<u64>>),
    /// Entries or requests.
    Requests(Vec<Request>),
    /// Places in a list, by row.
    Positions(Vec<Vec<usize>>),
    /// Classes.
    Classes(Vec<u32>),
    /// Begins and ends of samples.
    Offsets(Vec<usize>),
    /// Sums of gradients by row of the table.
    Sums(BTreeMap<u64, Vec<f32>>),
}

/// One rank's part of a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// What it holds.
    pub values: Values,
    /// Of lists: how many go to, or came from, each rank.
    pub counts: Vec<usize>,
}

/// Data to compute with: some ranks, one table, batches around the one in question.
#[derive(Debug, Clone, PartialEq)]
pub struct World {
    /// Number of ranks.
    pub ranks: usize,
    /// Of how many nodes they are, as many of each. Ranks are dealt to them one after the other, which is not what clusters
    /// do, but lists by owner are then lists by relay.
    pub nodes: usize,
    /// The table's rows.
    pub table: Vec<Vec<f32>>,
    /// Rows that are hot where a term tells hot ones apart.
    pub hot: std::collections::BTreeSet<u64>,
    /// Ids by source and batch, then by rank.
    pub ids: BTreeMap<(u32, i32), Vec<Vec<Vec<u64>>>>,
    /// Offsets by source and batch, then by rank.
    pub offsets: BTreeMap<(u32, i32), Vec<Vec<usize>>>,
    /// Gradients by source, then by rank.
    pub gradients: BTreeMap<u32, Vec<Vec<Vec<f32>>>>,
    /// Who works on each sample of each rank, by batch.
    pub assigned: BTreeMap<i32, Vec<Vec<usize>>>,
    /// What rows and gradients are on their way.
    pub wire: WirePrecision,
}

/// A term that cannot be computed: data is missing, or values do not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} cannot be computed: {1}")]
pub struct EvalError(String, &'static str);

impl World {
    /// The rank that owns a row.
    pub(crate) fn owner(&self, row: u64) -> usize {
        (row % self.ranks as u64) as usize
    }

    /// The value of a term for batch 0, by rank.
    ///
    /// # Errors
    /// If data that it needs is missing.
    pub fn eval(&self, terms: &Terms, id: Id) -> Result<Vec<Part>, EvalError> {
        Evaluation { world: self, terms, known: BTreeMap::new() }.value(id, 0)
    }
}

struct Evaluation<'a> {
    world: &'a World,
    terms: &'a Terms,
    known: BTreeMap<(Id, i32), Vec<Part>>,
}

/// Operands of all ranks, of one term.
struct Operands<'a> {
    name: String,
    parts: Vec<&'a [Part]>,
}

impl Operands<'_> {
    fn wrong(&self, what: &'static str) -> EvalError {
        EvalError(self.name.clone(), what)
    }
    fn part(&self, i: usize, rank: usize) -> Result<&Part, EvalError> {
        self.parts.get(i).and_then(|p| p.get(rank)).ok_or_else(|| self.wrong("an operand is missing"))
    }
    fn reals(&self, i: usize, rank: usize) -> Result<&[Vec<f32>], EvalError> {
        match &self.part(i, rank)?.values {
            Values::Reals(v) => Ok(v),
            _ => Err(self.wrong("an operand has no reals")),
        }
    }
    fn requests(&self, i: usize, rank: usize) -> Result<&[Request], EvalError> {
        match &self.part(i, rank)?.values {
            Values::Requests(v) => Ok(v),
            _ => Err(self.wrong("an operand has no requests")),
        }
    }
    fn positions(&self, i: usize, rank: usize) -> Result<&[Vec<usize>], EvalError> {
        match &self.part(i, rank)?.values {
            Values::Positions(v) => Ok(v),
            _ => Err(self.wrong("an operand has no positions")),
        }
    }
    fn picked<'v, T>(&self, values: &'v [T], at: usize) -> Result<&'v T, EvalError> {
        values.get(at).ok_or_else(|| self.wrong("a position is out of range"))
    }
}

/// Items of a list that go to each rank.
fn segments<'a, T>(items: &'a [T], counts: &[usize]) -> Vec<&'a [T]> {
    let mut rest = items;
    let cut = |n: &usize| {
        let (head, tail) = rest.split_at((*n).min(rest.len()));
        rest = tail;
        head
    };
    counts.iter().map(cut).collect()
}

/// What arrives everywhere when every rank sends its segments: of rank r at o, what r has for o.
fn exchanged<T: Clone>(lists: &[(&[T], &[usize])]) -> Vec<(Vec<T>, Vec<usize>)> {
    let cut: Vec<Vec<&[T]>> = lists.iter().map(|(items, counts)| segments(items, counts)).collect();
    (0..lists.len())
        .map(|to| {
            let arriving: Vec<&[T]> = cut.iter().map(|from| from.get(to).copied().unwrap_or(&[])).collect();
            (arriving.concat(), arriving.iter().map(|s| s.len()).collect())
        })
        .collect()
}

impl Evaluation<'_> {
    fn value(&mut self, id: Id, batch: i32) -> Result<Vec<Part>, EvalError> {
        if let Some(known) = self.known.get(&(id, batch)) {
            return Ok(known.clone());
        }
        let node = self.terms.node(id).clone();
        if let Op::Joint { nth } = node.op {
            let all = self.joint(id, nth as usize, batch)?;
            self.known.insert((id, batch), all.clone());
            return Ok(all);
        }
        let mut of_children = Vec::with_capacity(node.children.len());
        for child in &node.children {
            of_children.push(self.value(*child, batch)?);
        }
        // A partition also sees what is asked for in the batches around.
        let mut around = Vec::new();
        if let Op::Partition { way, lookahead, windows, each } = node.op {
            let sign = if way == Way::Forward { -1 } else { 1 };
            let reuse = Reuse { lookahead, windows, each };
            for distance in 1..=reuse.history() as i32 {
                around.push(self.value(node.children[1], batch + sign * distance)?);
            }
        }
        let o = Operands {
            name: self.terms.display(id).to_string(),
            parts: of_children.iter().map(Vec::as_slice).collect(),
        };
        let ranks = 0..self.world.ranks;
        let all = ranks.map(|rank| self.on(id, &o, &around, rank, batch)).collect::<Result<Vec<_>, _>>()?;
        self.known.insert((id, batch), all.clone());
        Ok(all)
    }

    /// A term on one rank.
    fn on(
        &self,
        id: Id,
        o: &Operands<'_>,
        around: &[Vec<Part>],
        rank: usize,
        batch: i32,
    ) -> Result<Part, EvalError> {
        let world = self.world;
        let op = self.terms.node(id).op;
        let missing = || o.wrong("there is no such data");
        let plain = |values| Part { values, counts: Vec::new() };
        let like = |i, values| Ok::<_, EvalError>(Part { values, counts: o.part(i, rank)?.counts.clone() });
        match op {
            Op::Shard { start, end, replicated, .. } => {
                let cut = |(i, row): (usize, &Vec<f32>)| {
                    let columns = row.get(start as usize..end as usize)?;
                    // What a rank does not own is nothing that it may read: it shows.
                    let own = replicated || world.owner(i as u64) == rank;
                    Some(if own { columns.to_vec() } else { vec![f32::NAN; columns.len()] })
                };
                let rows = world.table.iter().enumerate().map(cut).collect::<Option<Vec<_>>>();
                Ok(plain(Values::Reals(rows.ok_or_else(missing)?)))
            }
            Op::Replicas { start, end, .. } => {
                let cut = |(i, row): (usize, &Vec<f32>)| {
                    let columns = row.get(start as usize..end as usize)?;
                    let hot = world.hot.contains(&(i as u64));
                    Some(if hot { columns.to_vec() } else { vec![f32::NAN; columns.len()] })
                };
                let rows = world.table.iter().enumerate().map(cut).collect::<Option<Vec<_>>>();
                Ok(plain(Values::Reals(rows.ok_or_else(missing)?)))
            }
            Op::Share { hot, .. } => self.share(o, hot, rank),
            Op::Unite => self.unite(id, o, rank),
            Op::Cut { .. } => self.cut(id, o, rank),
            Op::Ids { source, .. } => {
                let ids = world.ids.get(&(source, batch)).and_then(|by_rank| by_rank.get(rank));
                Ok(plain(Values::Ids(ids.ok_or_else(missing)?.clone())))
            }
            Op::Offsets { source } => {
                let offsets = world.offsets.get(&(source, batch)).and_then(|by_rank| by_rank.get(rank));
                Ok(plain(Values::Offsets(offsets.ok_or_else(missing)?.clone())))
            }
            Op::Given { source, .. } | Op::Gradients { source, .. } => {
                let gradients = world.gradients.get(&source).and_then(|by_rank| by_rank.get(rank));
                Ok(plain(Values::Reals(gradients.ok_or_else(missing)?.clone())))
            }
            Op::Entries { unique, .. } => self.entries(id, o, unique, rank),
            Op::Inverse => self.inverse(id, o, rank),
            Op::Ask { .. } => {
                let lists = self.lists(o, 0, |p, r| p.requests(0, r))?;
                let (requests, counts) = exchanged(&lists).swap_remove(rank);
                Ok(Part { values: Values::Requests(requests), counts })
            }
            Op::AskRelay { .. } => {
                let lists = self.lists(o, 0, |p, r| p.requests(0, r))?;
                let (requests, counts) = self.within(&lists, rank);
                Ok(Part { values: Values::Requests(requests), counts })
            }
            Op::Relayed { .. } => self.relayed(o, rank),
            Op::Places => {
                let places = relay::places(o, rank)?.into_iter().map(|at| vec![at]);
                like(1, Values::Positions(places.collect()))
            }
            Op::PassClasses => {
                let Values::Classes(classes) = &o.part(0, rank)?.values else { return Err(missing()) };
                let passed = o.positions(1, rank)?.iter().map(|p| o.picked(classes, p[0]).copied());
                like(1, Values::Classes(passed.collect::<Result<_, _>>()?))
            }
            Op::PassRows => {
                let rows = o.reals(0, rank)?;
                let (groups, list) = relay::groups(o, rank, (1, 2, 3))?;
                let passed = groups.into_iter().map(|at| o.picked(rows, at).cloned());
                like(list, Values::Reals(passed.collect::<Result<_, _>>()?))
            }
            Op::SumAsked => self.sum_asked(id, o, rank),
            Op::AskAll { .. } => {
                let lists = self.lists(o, 0, |p, r| p.requests(0, r))?;
                let requests: Vec<&[Request]> = lists.iter().map(|l| l.0).collect();
                let counts = requests.iter().map(|r| r.len()).collect();
                Ok(Part { values: Values::Requests(requests.concat()), counts })
            }
            Op::Own => like(1, Values::Requests(o.requests(1, rank)?.to_vec())),
            Op::Partition { way, lookahead, windows, each } => {
                let reuse = Reuse { lookahead, windows, each };
                let classes = rows::partition(o, around, reuse, way, rank)?;
                like(0, Values::Classes(classes))
            }
            Op::Answer => {
                let lists = self.lists(o, 0, |p, r| match &p.part(0, r)?.values {
                    Values::Classes(c) => Ok(c.as_slice()),
                    _ => Err(p.wrong("an operand has no classes")),
                })?;
                let (classes, counts) = exchanged(&lists).swap_remove(rank);
                Ok(Part { values: Values::Classes(classes), counts })
            }
            Op::Positions { class, .. } => {
                let part = o.part(0, rank)?;
                let Values::Classes(classes) = &part.values else { return Err(missing()) };
                let of = |c: &[u32]| c.iter().filter(|c| **c == class).count();
                let counts = segments(classes, &part.counts).into_iter().map(of).collect();
                let at = classes.iter().enumerate().filter(|(_, c)| **c == class).map(|(i, _)| vec![i]);
                Ok(Part { values: Values::Positions(at.collect()), counts })
            }
            Op::Gather => {
                let (shard, asked) = (o.reals(0, rank)?, o.requests(1, rank)?);
                let row = |r: &Request| -> Result<Vec<f32>, EvalError> {
                    Ok(travelling(o.picked(shard, r.row as usize)?, world.wire.rows))
                };
                if o.parts.len() == 2 {
                    return like(1, Values::Reals(asked.iter().map(row).collect::<Result<_, _>>()?));
                }
                let picked = o.positions(2, rank)?.iter().map(|p| row(o.picked(asked, p[0])?));
                like(2, Values::Reals(picked.collect::<Result<_, EvalError>>()?))
            }
            Op::Return | Op::Send => {
                // Cut as the sender's list says; what arrives has the receiver's.
                let lists = self.lists(o, 1, |p, r| p.reals(0, r))?;
                let asks = op == Op::Send && self.terms.ty(id).sharded == Sharded::Relay;
                let (rows, _) =
                    if asks { self.within(&lists, rank) } else { exchanged(&lists).swap_remove(rank) };
                let what = if op == Op::Send { world.wire.gradients } else { Element::Real };
                like(2, Values::Reals(rows.iter().map(|row| travelling(row, what)).collect()))
            }
            Op::SendAll => {
                let rows: Result<Vec<&[Vec<f32>]>, EvalError> =
                    (0..world.ranks).map(|r| o.reals(0, r)).collect();
                let rows = rows?.concat();
                like(2, Values::Reals(rows.iter().map(|row| travelling(row, world.wire.gradients)).collect()))
            }
            Op::Merge => self.merge(id, o, rank),
            Op::Concat => {
                let mut rows = o.reals(0, rank)?.to_vec();
                for i in 1..o.parts.len() {
                    rows.iter_mut().zip(o.reals(i, rank)?).for_each(|(row, more)| row.extend(more));
                }
                like(0, Values::Reals(rows))
            }
            Op::Expand => {
                let rows = o.reals(0, rank)?;
                let of = |at: &Vec<usize>| {
                    let each = at.iter().map(|p| o.picked(rows, *p).cloned());
                    each.collect::<Result<Vec<_>, _>>().map(|rows| rows.concat())
                };
                let expanded = o.positions(1, rank)?.iter().map(of).collect::<Result<_, _>>()?;
                Ok(plain(Values::Reals(expanded)))
            }
            Op::Pool { mean } => self.pool(id, o, mean, rank),
            Op::ExpandGrad | Op::PoolGrad { .. } => {
                let entries = self.known_part(self.entries_of(id, o)?, o, rank)?;
                let Values::Requests(requests) = &entries.values else { return Err(missing()) };
                let mut sums = vec![vec![0.0; self.terms.ty(id).columns as usize]; requests.len()];
                self.add_by_entry(id, o, rank, &mut sums)?;
                Ok(Part { values: Values::Reals(sums), counts: entries.counts.clone() })
            }
            Op::Sum => {
                let mut sum = o.reals(0, rank)?.to_vec();
                for (i, child) in self.terms.node(id).children.iter().enumerate().skip(1) {
                    // What is summed by entry is added into what is there, one by one.
                    if matches!(self.terms.node(*child).op, Op::ExpandGrad | Op::PoolGrad { .. }) {
                        self.add_by_entry(*child, o, rank, &mut sum)?;
                    } else {
                        add_rows(&mut sum, o.reals(i, rank)?);
                    }
                }
                like(0, Values::Reals(sum))
            }
            Op::Columns { start, end } => {
                let cut = |g: &Vec<f32>| g.get(start as usize..end as usize).map(<[f32]>::to_vec);
                let rows = o.reals(0, rank)?.iter().map(cut).collect::<Option<_>>().ok_or_else(missing)?;
                like(0, Values::Reals(rows))
            }
            Op::Split => {
                let gradients = o.reals(0, rank)?;
                let list = self.terms.child(id, 1).and_then(|list| self.terms.entries_of(list));
                let places = list.map(|list| self.places_among_all(list, o, rank)).transpose()?.flatten();
                let at = |p: usize| places.as_ref().map_or(Ok(p), |places| o.picked(places, p).copied());
                let picked = o.positions(1, rank)?.iter().map(|p| o.picked(gradients, at(p[0])?).cloned());
                like(1, Values::Reals(picked.collect::<Result<_, _>>()?))
            }
            Op::Total => self.total(o, rank),
            Op::AllReduce => {
                let mut sum = o.reals(0, 0)?.to_vec();
                for from in 1..world.ranks {
                    add_rows(&mut sum, o.reals(0, from)?);
                }
                Ok(plain(Values::Reals(sum)))
            }
            // It sees the operands of its transfers, and not what these bring.
            Op::Joint { .. } => Err(missing()),
            Op::Update => {
                let total = self.terms.child(id, 0).ok_or_else(missing)?;
                let parts = o.parts.first().ok_or_else(missing)?;
                Ok(plain(Values::Sums(joined(self.terms.ty(total).sharded, parts)?)))
            }
            Op::Join => rows::together(o, rank, |whole, _| whole.is_none()),
            Op::Beside => rows::together(o, rank, |whole, first| whole.is_some() != first),
            Op::AskFor { unique, .. } => self.ask_for(id, o, unique, (batch, rank)),
            Op::Dispatch => self.dispatch(o, batch, rank),
            Op::Combine => self.combine(o, batch, rank),
            Op::Cast { to } => {
                let cast = |x: &f32| match to {
                    Precision::F32 => *x,
                    Precision::Bf16 => bf16(*x),
                };
                let rows = o.reals(0, rank)?.iter().map(|row| row.iter().map(cast).collect());
                like(0, Values::Reals(rows.collect()))
            }
        }
    }

    /// Every rank's list with how much of it goes where, as operand `counts` says.
    fn lists<'o, T>(
        &self,
        o: &'o Operands<'_>,
        counts: usize,
        of: impl Fn(&'o Operands<'_>, usize) -> Result<&'o [T], EvalError>,
    ) -> Result<Lists<'o, T>, EvalError> {
        (0..self.world.ranks).map(|r| Ok((of(o, r)?, o.part(counts, r)?.counts.as_slice()))).collect()
    }
}

fn add_rows(sum: &mut [Vec<f32>], more: &[Vec<f32>]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        sum.iter_mut().zip(more).for_each(|(s, x)| *s += x);
    }
}

/// A row as it travels.
fn travelling(row: &[f32], element: Element) -> Vec<f32> {
    match element {
        Element::Bf16 => row.iter().map(|x| bf16(*x)).collect(),
        Element::Mxint8 => row.chunks(BLOCK as usize).flat_map(mxint8).collect(),
        _ => row.to_vec(),
    }
}

/// A block in multiples of a power of two: the greatest number takes 64 to 127 of them, or 127 where it would round to
/// 128.
fn mxint8(block: &[f32]) -> Vec<f32> {
    if !block.iter().all(|x| x.is_finite()) {
        return vec![f32::NAN; block.len()];
    }
    let greatest = block.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
    let unit = (-119..=127)
        .map(|e| f64::from(e - 6).exp2())
        .take_while(|u| *u == 2f64.powi(-125) || 64.0 * u <= greatest);
    let unit = unit.last().unwrap_or(1.0);
    let number =
        |x: &f32| ((f64::from(*x) / unit).round_ties_even().clamp(-127.0, 127.0) * unit + 0.0) as f32;
    block.iter().map(number).collect()
}

/// Rounded to 8 bits of mantissa, to even.
fn bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// The ranks' shares of what all ranks have are one: sums by row of owners do not overlap, those of replicas are equal.
///
/// # Errors
/// If replicas differ, or two owners have one row.
pub fn joined(sharded: Sharded, parts: &[Part]) -> Result<BTreeMap<u64, Vec<f32>>, EvalError> {
    let wrong = |what| EvalError("a sum".into(), what);
    let mut all = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        let Values::Sums(sums) = &part.values else { return Err(wrong("it has no sums")) };
        match sharded {
            Sharded::Replicated if i > 0 && *sums != all => return Err(wrong("replicas differ")),
            Sharded::Replicated => all.clone_from(sums),
            _ => {
                for (row, sum) in sums {
                    if all.insert(*row, sum.clone()).is_some() {
                        return Err(wrong("two ranks own a row"));
                    }
                }
            }
        }
    }
    Ok(all)
}
