//! Ranks held-out items against a sharded table.
//!
//! Queries travel instead of the table: every rank scores a block of rows for all queries of the batch, the rank with
//! a target's row tells its score, and the numbers of better rows are added up. The block is the rank's shard of a
//! row-wise table, everything or nothing of a table-wise one, and an even share of a data-parallel one. No rank has
//! whole rows of a column-wise table: there each adds up the products of its columns, and the sums over ranks of a
//! block of rows become that block's scores.
//!
//! It is a transfer of several rounds: each takes in what the round before has brought, works, and fills the next
//! outbox.

use std::ops::Range;

use fs_kernels::matmul::matmul_nt;
use fs_kernels::{Mat, MatMut, Real};
use fs_schedule::ranking::{DIGITS, Round, Rounds};
use fs_schedule::{Action, RowMap, Sharding, Table};
use parking_lot::RwLockReadGuard;

use super::inbox::receive;
use super::{Call, Fault, Shard};
use crate::data::{Histories, Question};
use crate::device::shards::shard_rows;
use crate::device::{Env, Inbox};
use crate::evaluate::Outcome;
use crate::transport::{HostOutbox, Section};

/// Lower bound of a norm that divides.
pub(crate) const EPS: f64 = 1e-12;
/// Counts travel as two digits of this base, because `f32` holds integers up to 2^24 only.
const BASE: u64 = 1 << 12;

/// A number of rows that are better than a target, and of those that the user knows, as they travel.
pub(crate) fn digits_of(ahead: u64, known: u64) -> [u64; DIGITS] {
    [ahead / BASE, ahead % BASE, known / BASE, known % BASE]
}

/// Puts down how high the targets of a batch rank, by the sums of all ranks' digits.
pub(crate) fn put_down<T: Real>(env: &Env, questions: &[Question], digits: &[T]) {
    let mut outcomes = env.outcomes.lock();
    for (question, digits) in questions.iter().zip(digits.chunks_exact(DIGITS)) {
        let number = |high: T, low: T| high.to_f64() as u64 * BASE + low.to_f64() as u64;
        let (all, known) = (number(digits[0], digits[1]), number(digits[2], digits[3]));
        outcomes.push(Outcome { user: question.user, all, unseen: all - known });
    }
}

/// State of an evaluation.
#[derive(Debug)]
pub(crate) struct Ranking<T> {
    /// One over the norm of each row of the block.
    inverse_norms: Vec<T>,
    /// Of all samples.
    queries: Vec<T>,
    /// Of the rows of the block, for a chunk of queries.
    scores: Vec<T>,
    /// Products of this rank's columns with all rows, and room for one part's.
    products: Vec<T>,
    /// Each target's score.
    targets: Vec<T>,
    /// Numbers of better rows.
    digits: Vec<T>,
    seen: Vec<u32>,
}

impl<T> Default for Ranking<T> {
    fn default() -> Self {
        Self {
            inverse_norms: Vec::new(),
            queries: Vec::new(),
            scores: Vec::new(),
            products: Vec::new(),
            targets: Vec::new(),
            digits: Vec::new(),
            seen: Vec::new(),
        }
    }
}

/// A batch of questions to a table.
struct Asking<'c, 'a, T: Real> {
    call: &'c Call<'a, T>,
    table: &'a Table,
    map: &'a RowMap,
    histories: &'a Histories,
    questions: &'c [Question],
    parts: Vec<RwLockReadGuard<'a, Shard<T>>>,
    cosine: bool,
    by_columns: bool,
    rounds: Rounds,
}

impl<'c, 'a, T: Real> Asking<'c, 'a, T> {
    fn new(call: &'c Call<'a, T>) -> Result<Self, Fault> {
        let env = call.env;
        let cosine = matches!(call.op.action, Action::RankItems { cosine: true });
        let (number, _) = call.table(false, 2, 0)?;
        let histories = env.histories.as_deref().ok_or(Fault::NoHistories)?;
        let table = &env.schedule.tables[number];
        let by_columns = matches!(table.sharding, Sharding::ColumnWise { .. });
        // Between runs owners have what hot rows have become.
        let owned = table.sharding.parts() as usize;
        let parts: Vec<_> = call.cpu.tables[number].iter().take(owned).map(|t| t.read()).collect();
        let questions = &call.batch.share.batch().questions;
        let block = block(table, &parts[0].rows, env.rank, env.ranks).len();
        let first = call.number == 0;
        let rounds = Rounds::new(table, cosine, first, questions.len(), block);
        let map = &env.maps[number];
        Ok(Self { call, table, map, histories, questions, parts, cosine, by_columns, rounds })
    }

    /// The rows that a rank scores; of another rank only where all have every row.
    fn block(&self, rank: usize) -> Range<usize> {
        block(self.table, &self.parts[0].rows, rank, self.call.env.ranks)
    }

    fn own(&self) -> Range<usize> {
        self.block(self.call.env.rank)
    }

    /// The table does not change while it is evaluated, so its norms are found once.
    fn finds_norms(&self) -> bool {
        self.cosine && self.call.number == 0
    }

    fn queries_from(&self, start: usize) -> Range<usize> {
        self.rounds.queries_from(start)
    }

    /// The own block, where ranks have whole rows.
    fn rows(&self) -> Mat<'_, T> {
        let (shard, own) = (&self.parts[0], self.own());
        let start = own.start - (shard.rows.start as usize).min(own.start);
        Mat::new(&shard.values, shard.len(), shard.dim).rows_range(start..start + own.len())
    }

    /// Takes in what a round has brought.
    fn take(
        &self,
        round: Round,
        ranking: &mut Ranking<T>,
        inbox: Inbox<'_, HostOutbox<T>>,
    ) -> Result<(), Fault> {
        match round {
            Round::Queries => {
                ranking.queries.clear();
                let queries = &mut ranking.queries;
                self.each(inbox, |values| queries.extend_from_slice(values))?;
                if self.finds_norms() && !self.by_columns {
                    let rows = self.rows();
                    ranking.inverse_norms.clear();
                    ranking.inverse_norms.extend((0..rows.rows()).map(|i| inverse_norm(rows.row(i))));
                }
                ranking.targets.clear();
                ranking.targets.resize(self.questions.len(), T::ZERO);
                ranking.digits.clear();
                ranking.digits.resize(DIGITS * self.questions.len(), T::ZERO);
            }
            Round::Norms => {
                ranking.inverse_norms.clear();
                ranking.inverse_norms.resize(self.own().len(), T::ZERO);
                self.add_up(inbox, &mut ranking.inverse_norms)?;
                for x in &mut ranking.inverse_norms {
                    *x = T::from_f64(x.to_f64().sqrt().max(EPS).recip());
                }
            }
            Round::Scores(start) | Round::Again(start) => {
                let queries = self.queries_from(start);
                let n = queries.len() * self.own().len();
                ranking.scores.resize(n.max(ranking.scores.len()), T::ZERO);
                self.add_up(inbox, &mut ranking.scores[..n])?;
                self.scale(ranking, n);
                if round == Round::Scores(start) {
                    self.find_targets(ranking, queries);
                } else {
                    self.count(ranking, queries);
                }
            }
            Round::Targets => self.add_up(inbox, &mut ranking.targets)?,
            Round::Digits => {
                self.add_up(inbox, &mut ranking.digits)?;
                put_down(self.call.env, self.questions, &ranking.digits);
            }
        }
        Ok(())
    }

    /// Fills the outbox of a round.
    fn give(&self, round: Round, ranking: &mut Ranking<T>, outbox: &mut HostOutbox<T>) -> Result<(), Fault> {
        let section = &mut outbox.sections[0];
        match round {
            Round::Queries => {
                self.ask(&mut section.reals)?;
                self.to_everyone(section);
            }
            Round::Norms => {
                let all = self.table.rows as usize;
                ranking.products.resize(all.max(ranking.products.len()), T::ZERO);
                let squares = &mut ranking.products[..all];
                squares.fill(T::ZERO);
                for part in &self.parts {
                    let rows = Mat::new(&part.values, part.len(), part.dim);
                    for (i, square) in squares[..part.len()].iter_mut().enumerate() {
                        *square += rows.row(i).iter().fold(T::ZERO, |sum, x| sum + *x * *x);
                    }
                }
                self.to_blocks(section, squares);
            }
            Round::Scores(start) | Round::Again(start) => {
                let products = self.products(ranking, self.queries_from(start));
                self.to_blocks(section, products);
            }
            Round::Targets => {
                if !self.by_columns {
                    self.in_chunks(ranking, Self::find_targets);
                }
                section.reals.extend_from_slice(&ranking.targets);
                self.to_everyone(section);
            }
            Round::Digits => {
                if self.rounds.all_fit() {
                    self.count(ranking, 0..self.questions.len());
                } else if !self.by_columns {
                    self.in_chunks(ranking, Self::count);
                }
                section.reals.extend_from_slice(&ranking.digits);
                self.to_everyone(section);
            }
        }
        Ok(())
    }

    /// The query of a sample is its last token; samples without tokens ask with zeros.
    fn ask(&self, queries: &mut Vec<T>) -> Result<(), Fault> {
        let (h, offsets) = (self.call.read(0)?, self.call.offsets(1)?);
        for span in offsets.windows(2) {
            let start = queries.len();
            if span[1] > span[0] {
                queries.extend_from_slice(h.mat().row(span[1] - 1));
            } else {
                queries.resize(start + self.table.dim as usize, T::ZERO);
            }
            if self.cosine {
                let inverse = inverse_norm(&queries[start..]);
                queries[start..].iter_mut().for_each(|x| *x *= inverse);
            }
        }
        Ok(())
    }

    /// Products of the own columns with every row of the table, for some queries.
    fn products<'s>(&self, ranking: &'s mut Ranking<T>, queries: Range<usize>) -> &'s [T] {
        let (n, all) = (queries.len(), self.table.rows as usize);
        let asked = Mat::new(&ranking.queries, self.questions.len(), self.table.dim as usize);
        let asked = asked.rows_range(queries);
        let products = &mut ranking.products;
        products.resize((2 * n * all).max(products.len()), T::ZERO);
        let (sums, product) = products.split_at_mut(n * all);
        sums.fill(T::ZERO);
        for part in self.parts.iter().filter(|p| !p.is_empty()) {
            let rows = Mat::new(&part.values, part.len(), part.dim);
            matmul_nt(asked.columns(part.columns.clone()), rows, MatMut::new(product, n, all));
            for (sum, x) in sums.iter_mut().zip(product.iter()) {
                *sum += *x;
            }
        }
        sums
    }

    /// Scores the own block for all queries, a chunk at a time.
    fn in_chunks(&self, ranking: &mut Ranking<T>, then: fn(&Self, &mut Ranking<T>, Range<usize>)) {
        let (n, rows) = (self.questions.len(), self.own().len());
        for start in (0..n).step_by(self.rounds.chunk()) {
            let queries = self.queries_from(start);
            let len = queries.len() * rows;
            ranking.scores.resize(len.max(ranking.scores.len()), T::ZERO);
            let asked = Mat::new(&ranking.queries, n, self.table.dim as usize).rows_range(queries.clone());
            matmul_nt(asked, self.rows(), MatMut::new(&mut ranking.scores[..len], queries.len(), rows));
            self.scale(ranking, len);
            then(self, ranking, queries);
        }
    }

    /// Divides scores by the norms of their rows.
    fn scale(&self, ranking: &mut Ranking<T>, len: usize) {
        if !self.cosine {
            return;
        }
        for scores in ranking.scores[..len].chunks_exact_mut(self.own().len().max(1)) {
            for (score, inverse) in scores.iter_mut().zip(&ranking.inverse_norms) {
                *score *= *inverse;
            }
        }
    }

    /// An item's place in the own block.
    fn local(&self, item: i64) -> Option<usize> {
        let own = self.own();
        let slot = self.map.slot(u64::try_from(item).ok().filter(|row| *row < self.table.rows)?);
        usize::try_from(slot).ok()?.checked_sub(own.start).filter(|row| *row < own.len())
    }

    /// Rows of the own block, with these scores, that are better than a target: of equal ones, those with lower ids.
    fn better(&self, scores: &[T], (target, score): (i64, T)) -> u64 {
        let own = self.own();
        let count = if self.map.is_range() {
            let below = (target - own.start as i64).clamp(0, own.len() as i64) as usize;
            let better = |row: usize, s: T| s > score || (s == score && row < below);
            scores.iter().enumerate().filter(|(row, s)| better(*row, **s)).count()
        } else {
            // Few scores are equal, so few rows are looked up.
            let equal = scores.iter().zip(own.start..).filter(|(s, _)| **s == score);
            let lower = equal.filter(|(_, slot)| (self.map.row(*slot as u64) as i64) < target).count();
            lower + scores.iter().filter(|s| **s > score).count()
        };
        count as u64
    }

    /// Puts down the scores of targets that lie in the own block.
    fn find_targets(&self, ranking: &mut Ranking<T>, queries: Range<usize>) {
        let rows = self.own().len();
        for (i, scores) in queries.zip(ranking.scores.chunks_exact(rows.max(1))) {
            if let Some(row) = self.local(self.questions[i].target) {
                ranking.targets[i] = scores[row];
            }
        }
    }

    /// Counts the rows of the own block that are better than the targets.
    fn count(&self, ranking: &mut Ranking<T>, queries: Range<usize>) {
        let own = self.own();
        let Ranking { scores, targets, digits, seen, .. } = ranking;
        if own.is_empty() {
            return;
        }
        for (i, scores) in queries.zip(scores.chunks_exact(own.len())) {
            let (question, target) = (&self.questions[i], targets[i]);
            let ahead = self.better(scores, (question.target, target));
            self.histories.seen(question.user, seen);
            let known = seen.iter().filter(|&&item| {
                let item = i64::from(item);
                let better = |s: T| s > target || (s == target && item < question.target);
                item != question.target && self.local(item).is_some_and(|row| better(scores[row]))
            });
            let known = known.count() as u64;
            for (digit, n) in digits[DIGITS * i..].iter_mut().zip(digits_of(ahead, known)) {
                *digit = T::from_f64(n as f64);
            }
        }
    }

    /// All ranks get everything in a section.
    fn to_everyone(&self, section: &mut Section<T>) {
        section.everyone = true;
        section.widths.reals = 1;
        section.counts.resize(self.call.env.ranks, section.reals.len() as u64);
    }

    /// Each rank gets the numbers of its block of rows, of lists with one number per row of the table.
    fn to_blocks(&self, section: &mut Section<T>, values: &[T]) {
        section.widths.reals = 1;
        for to in 0..self.call.env.ranks {
            let (before, block) = (section.reals.len(), self.block(to));
            for list in values.chunks_exact((self.table.rows as usize).max(1)) {
                section.reals.extend_from_slice(&list[block.clone()]);
            }
            section.counts.push((section.reals.len() - before) as u64);
        }
    }

    /// What each rank sent, in rank order.
    fn each(&self, inbox: Inbox<'_, HostOutbox<T>>, mut take: impl FnMut(&[T])) -> Result<(), Fault> {
        (0..self.call.env.ranks).try_for_each(|from| {
            receive(inbox, from, 0, |part| {
                take(part.reals);
                Ok(())
            })
        })
    }

    /// Sums over ranks, added in rank order.
    fn add_up(&self, inbox: Inbox<'_, HostOutbox<T>>, sums: &mut [T]) -> Result<(), Fault> {
        sums.fill(T::ZERO);
        self.each(inbox, |values| {
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += *value;
            }
        })
    }
}

/// The rows that a rank scores: `own` are those of the shard that it has of the first part.
pub(crate) fn block(table: &Table, own: &Range<u64>, rank: usize, ranks: usize) -> Range<usize> {
    let rows = match table.sharding {
        Sharding::ColumnWise { .. } | Sharding::DataParallel => shard_rows(table.rows, rank, ranks),
        Sharding::RowWise | Sharding::TableWise { .. } => own.clone(),
    };
    rows.start as usize..rows.end as usize
}

/// Rounds of a batch.
pub(super) fn rounds<T: Real>(c: &Call<T>) -> Result<u64, Fault> {
    let asking = Asking::new(c)?;
    Ok(asking.rounds.count())
}

/// Takes in the round before, and fills the outbox of this one.
pub(super) fn fill<T: Real>(
    c: &Call<T>,
    round: u64,
    outbox: &mut HostOutbox<T>,
    inbox: Inbox<'_, HostOutbox<T>>,
) -> Result<(), Fault> {
    let asking = Asking::new(c)?;
    let mut ranking = c.cpu.ranking.lock();
    if let Some(before) = round.checked_sub(1).and_then(|n| asking.rounds.round(n)) {
        asking.take(before, &mut ranking, inbox)?;
    }
    asking.rounds.round(round).map_or(Ok(()), |round| asking.give(round, &mut ranking, outbox))
}

/// Takes in the last round.
pub(super) fn drain<T: Real>(c: &Call<T>, inbox: Inbox<'_, HostOutbox<T>>) -> Result<(), Fault> {
    Asking::new(c)?.take(Round::Digits, &mut c.cpu.ranking.lock(), inbox)
}

fn inverse_norm<T: Real>(row: &[T]) -> T {
    let square: f64 = row.iter().map(|x| x.to_f64() * x.to_f64()).sum();
    T::from_f64(square.sqrt().max(EPS).recip())
}
