//! Ranks held-out items against a sharded table.
//!
//! Queries travel instead of the table: every rank scores a block of rows for all queries of the batch, the rank with
//! a target's row tells its score, and the numbers of better rows are added up. The block is the rank's shard of a
//! row-wise table, everything or nothing of a table-wise one, and an even share of a data-parallel one. No rank has
//! whole rows of a column-wise table: there each adds up the products of its columns, and the sums over ranks of a
//! block of rows become that block's scores.

use fs_kernels::matmul::matmul_nt;
use fs_kernels::{Mat, MatMut, Real};
use fs_schedule::Sharding;
use parking_lot::RwLockReadGuard;

use super::Outcome;
use crate::runtime::state::shard_rows;
use crate::runtime::{Call, Fault, Shard};
use crate::transport::Section;

/// Scores held at once.
const SCORES: usize = 1 << 22;
/// Lower bound of a norm that divides.
const EPS: f64 = 1e-12;
/// Counts travel as two digits of this base, because `f32` holds integers up to 2^24 only.
const BASE: u64 = 1 << 12;

/// State of an evaluation.
#[derive(Debug)]
pub struct Ranking<T> {
    /// One over the norm of each row of the block.
    inverse_norms: Vec<T>,
    queries: Vec<T>,
    gathered: Vec<T>,
    scores: Vec<T>,
    /// Products of this rank's columns with all rows.
    products: Vec<T>,
    seen: Vec<u32>,
    /// Uses of the channel so far.
    turn: u64,
    /// Outcomes of all users so far; every rank has all of them.
    pub outcomes: Vec<Outcome>,
}

impl<T> Default for Ranking<T> {
    fn default() -> Self {
        Self {
            inverse_norms: Vec::new(),
            queries: Vec::new(),
            gathered: Vec::new(),
            scores: Vec::new(),
            products: Vec::new(),
            seen: Vec::new(),
            turn: 0,
            outcomes: Vec::new(),
        }
    }
}

/// Where ranks meet, time and again, within one operation.
struct Meeting<'c, 'a, T: Real> {
    call: &'c Call<'a, T>,
    channel: usize,
    turn: &'c mut u64,
}

impl<T: Real> Meeting<'_, '_, T> {
    /// Gives everyone `values`; `take` gets every rank's, in rank order.
    fn exchange(&mut self, values: &[T], mut take: impl FnMut(&Section<T>)) -> Result<(), Fault> {
        let (hub, env) = (self.call.hub, self.call.env);
        hub.outbox(self.channel, *self.turn, env.rank, 1).sections[0].reals.extend_from_slice(values);
        hub.post(self.channel);
        hub.wait(self.channel, *self.turn, env.rank)?;
        for from in 0..env.ranks {
            take(&hub.inbox(self.channel, *self.turn, from).sections[0]);
        }
        *self.turn += 1;
        Ok(())
    }

    /// Replaces values by their sums over ranks, added in rank order.
    fn add_up(&mut self, values: &mut [T]) -> Result<(), Fault> {
        let own = values.to_vec();
        values.fill(T::ZERO);
        self.exchange(&own, |section| {
            for (sum, value) in values.iter_mut().zip(&section.reals) {
                *sum += *value;
            }
        })
    }
}

/// Scores a block of rows.
struct Scorer<'c, 'a, T: Real> {
    meeting: Meeting<'c, 'a, T>,
    parts: Vec<RwLockReadGuard<'a, Shard<T>>>,
    /// Rows of the table, and the first and number of those in the block.
    all: usize,
    first: usize,
    rows: usize,
    by_columns: bool,
    products: &'c mut Vec<T>,
    inverse_norms: Option<&'c [T]>,
}

impl<T: Real> Scorer<'_, '_, T> {
    /// The rows of the block, where ranks have whole rows.
    fn block(&self) -> Mat<'_, T> {
        let shard = &self.parts[0];
        let start = self.first - (shard.rows.start as usize).min(self.first);
        Mat::new(&shard.values, shard.len(), shard.dim).rows_range(start..start + self.rows)
    }

    /// Sums over ranks of `n` numbers per row of the table, for the rows of the block.
    fn sums(&mut self, n: usize, out: &mut [T]) -> Result<(), Fault> {
        let (all, first, rows) = (self.all, self.first, self.rows);
        out.fill(T::ZERO);
        let products = std::mem::take(self.products);
        let done = self.meeting.exchange(&products[..n * all], |section| {
            for (sums, values) in
                out.chunks_exact_mut(rows.max(1)).zip(section.reals.chunks_exact(all.max(1)))
            {
                for (sum, value) in sums.iter_mut().zip(&values[first..first + rows]) {
                    *sum += *value;
                }
            }
        });
        *self.products = products;
        done
    }

    /// One over the norm of each row of the block.
    fn inverse_norms(&mut self, out: &mut Vec<T>) -> Result<(), Fault> {
        out.clear();
        if !self.by_columns {
            let block = self.block();
            out.extend((0..self.rows).map(|i| inverse_norm(block.row(i))));
            return Ok(());
        }
        self.products.resize(self.all.max(self.products.len()), T::ZERO);
        self.products[..self.all].fill(T::ZERO);
        for part in &self.parts {
            let rows = Mat::new(&part.values, part.len(), part.dim);
            for (i, square) in self.products[..part.len()].iter_mut().enumerate() {
                *square += rows.row(i).iter().fold(T::ZERO, |sum, x| sum + *x * *x);
            }
        }
        out.resize(self.rows, T::ZERO);
        self.sums(1, out)?;
        for x in out.iter_mut() {
            *x = T::from_f64(x.to_f64().sqrt().max(EPS).recip());
        }
        Ok(())
    }

    /// Scores of every row of the block for each query.
    fn score<'s>(&mut self, queries: Mat<'_, T>, scores: &'s mut [T]) -> Result<&'s [T], Fault> {
        let (n, rows) = (queries.rows(), self.rows);
        let scores = &mut scores[..n * rows];
        if self.by_columns {
            let len = n * self.all;
            self.products.resize((2 * len).max(self.products.len()), T::ZERO);
            let (sums, product) = self.products.split_at_mut(len);
            sums.fill(T::ZERO);
            for part in self.parts.iter().filter(|p| !p.is_empty()) {
                let table = Mat::new(&part.values, part.len(), part.dim);
                matmul_nt(queries.columns(part.columns.clone()), table, MatMut::new(product, n, self.all));
                for (sum, x) in sums.iter_mut().zip(product.iter()) {
                    *sum += *x;
                }
            }
            self.sums(n, scores)?;
        } else {
            matmul_nt(queries, self.block(), MatMut::new(scores, n, rows));
        }
        if let Some(inverse) = self.inverse_norms {
            for scores in scores.chunks_exact_mut(rows.max(1)) {
                for (score, inverse) in scores.iter_mut().zip(inverse) {
                    *score *= *inverse;
                }
            }
        }
        Ok(scores)
    }
}

pub(crate) fn rank_items<T: Real>(c: &Call<T>, cosine: bool) -> Result<(), Fault> {
    let env = c.env;
    let (h, offsets) = (c.read(0)?, c.offsets(1)?);
    let (number, _) = c.table(false, 2, 0)?;
    let table = &env.schedule.tables[number];
    let missing = || Fault::Unsupported("ranking needs data with held-out items".into());
    let histories = env.histories.as_ref().ok_or_else(missing)?;
    let questions = &c.batch.share.batch().questions;
    let mut ranking = env.ranking.lock();
    let Ranking { inverse_norms, queries, gathered, scores, products, seen, turn, outcomes } = &mut *ranking;

    let parts: Vec<_> = env.tables[number].iter().map(|t| t.read()).collect();
    let by_columns = matches!(table.sharding, Sharding::ColumnWise { .. });
    let block = match table.sharding {
        Sharding::ColumnWise { .. } | Sharding::DataParallel => shard_rows(table.rows, env.rank, env.ranks),
        Sharding::RowWise | Sharding::TableWise { .. } => parts[0].rows.clone(),
    };
    let (first, rows) = (block.start as usize, (block.end - block.start) as usize);
    let (all, dim) = (table.rows as usize, table.dim as usize);
    let meeting = Meeting { call: c, channel: c.channel()?, turn };
    let mut scorer = Scorer { meeting, parts, all, first, rows, by_columns, products, inverse_norms: None };

    // The query of a sample is its last token; samples without tokens ask with zeros.
    queries.clear();
    for span in offsets.windows(2) {
        let start = queries.len();
        if span[1] > span[0] {
            queries.extend_from_slice(h.mat().row(span[1] - 1));
        } else {
            queries.resize(start + dim, T::ZERO);
        }
        if cosine {
            let inverse = inverse_norm(&queries[start..]);
            queries[start..].iter_mut().for_each(|x| *x *= inverse);
        }
    }
    gathered.clear();
    scorer.meeting.exchange(queries, |section| gathered.extend_from_slice(&section.reals))?;
    if cosine {
        // The table does not change while it is evaluated.
        if c.number == 0 {
            scorer.inverse_norms(inverse_norms)?;
        }
        scorer.inverse_norms = Some(inverse_norms);
    }

    let n = questions.len();
    let first = first as i64;
    let local = |item: i64| usize::try_from(item - first).ok().filter(|&row| row < rows);
    let mut targets = vec![T::ZERO; n];
    // Scores are kept between the two passes if they all fit, else computed again. All ranks take the same turns.
    let chunk = (SCORES / if by_columns { all } else { rows }.max(1)).clamp(1, n.max(1));
    let all_fit = chunk >= n;
    scores.resize((chunk * rows).max(scores.len()), T::ZERO);
    let queries = Mat::new(gathered, n, dim);
    for start in (0..n).step_by(chunk) {
        let block = queries.rows_range(start..(start + chunk).min(n));
        let scores = scorer.score(block, scores)?;
        for (i, scores) in scores.chunks_exact(rows.max(1)).enumerate() {
            if let Some(row) = local(questions[start + i].target) {
                targets[start + i] = scores[row];
            }
        }
    }
    scorer.meeting.add_up(&mut targets)?;

    let mut digits = vec![T::ZERO; 4 * n];
    for start in (0..n).step_by(chunk) {
        let block = queries.rows_range(start..(start + chunk).min(n));
        let scores = if all_fit { &scores[..n * rows] } else { scorer.score(block, scores)? };
        for (i, scores) in scores.chunks_exact(rows.max(1)).enumerate() {
            let (question, target) = (&questions[start + i], targets[start + i]);
            let below = (question.target - first).clamp(0, rows as i64) as usize;
            let better = |row: usize, s: T| s > target || (s == target && row < below);
            let ahead = scores.iter().enumerate().filter(|(row, s)| better(*row, **s)).count() as u64;
            histories.seen(question.user, seen);
            let known = seen.iter().filter(|&&item| {
                i64::from(item) != question.target
                    && local(i64::from(item)).is_some_and(|row| better(row, scores[row]))
            });
            let known = known.count() as u64;
            for (digit, n) in digits[4 * (start + i)..].iter_mut().zip([
                ahead / BASE,
                ahead % BASE,
                known / BASE,
                known % BASE,
            ]) {
                *digit = T::from_f64(n as f64);
            }
        }
    }
    scorer.meeting.add_up(&mut digits)?;
    for (question, digits) in questions.iter().zip(digits.chunks_exact(4)) {
        let number = |high: T, low: T| high.to_f64() as u64 * BASE + low.to_f64() as u64;
        let (all, known) = (number(digits[0], digits[1]), number(digits[2], digits[3]));
        outcomes.push(Outcome { user: question.user, all, unseen: all - known });
    }
    Ok(())
}

fn inverse_norm<T: Real>(row: &[T]) -> T {
    let square: f64 = row.iter().map(|x| x.to_f64() * x.to_f64()).sum();
    T::from_f64(square.sqrt().max(EPS).recip())
}
