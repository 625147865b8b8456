//! Ranks held-out items against a sharded table.
//!
//! Queries travel instead of the table: every rank scores its own rows for all queries of the batch, the owner of a
//! target's row tells its score, and the numbers of better rows are added up.

use fs_kernels::matmul::matmul_nt;
use fs_kernels::{Mat, MatMut, Real};

use super::Outcome;
use crate::runtime::{Call, Fault, Shard};

/// Scores held at once.
const SCORES: usize = 1 << 22;
/// Lower bound of a norm that divides.
const EPS: f64 = 1e-12;
/// Counts travel as two digits of this base, because `f32` holds integers up to 2^24 only.
const BASE: u64 = 1 << 12;

/// State of an evaluation.
#[derive(Debug)]
pub struct Ranking<T> {
    /// One over the norm of each row of the shard.
    inverse_norms: Vec<T>,
    queries: Vec<T>,
    gathered: Vec<T>,
    scores: Vec<T>,
    seen: Vec<u32>,
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
            seen: Vec::new(),
            outcomes: Vec::new(),
        }
    }
}

pub(crate) fn rank_items<T: Real>(c: &Call<T>, cosine: bool) -> Result<(), Fault> {
    let env = c.env;
    let (h, offsets) = (c.read(0)?, c.offsets(1)?);
    let (_, table) = c.table(false, 2)?;
    let shard = table.read();
    let missing = || Fault::Unsupported("ranking needs data with held-out items".into());
    let histories = env.histories.as_ref().ok_or_else(missing)?;
    let questions = &c.current.share.batch().questions;
    let mut ranking = env.ranking.lock();
    let Ranking { inverse_norms, queries, gathered, scores, seen, outcomes } = &mut *ranking;

    // The query of a sample is its last token; samples without tokens ask with zeros.
    queries.clear();
    for span in offsets.windows(2) {
        let start = queries.len();
        if span[1] > span[0] {
            queries.extend_from_slice(h.mat().row(span[1] - 1));
        } else {
            queries.resize(start + shard.dim, T::ZERO);
        }
        if cosine {
            let inverse = inverse_norm(&queries[start..]);
            queries[start..].iter_mut().for_each(|x| *x *= inverse);
        }
    }
    gathered.clear();
    env.transport.lock().all_gather(queries, gathered)?;
    if cosine && inverse_norms.len() != shard.len() {
        inverse_norms.clear();
        inverse_norms.extend(shard.values.chunks_exact(shard.dim).map(inverse_norm));
    }

    let inverse_norms = cosine.then_some(inverse_norms.as_slice());
    let n = questions.len();
    let rows = shard.len();
    let first = shard.rows.start as i64;
    let local = |item: i64| usize::try_from(item - first).ok().filter(|&row| row < rows);
    let mut targets = vec![T::ZERO; n];
    // Scores are kept between the two passes if they all fit, else computed again.
    let chunk = (SCORES / rows.max(1)).clamp(1, n.max(1));
    let all_fit = chunk >= n;
    scores.resize((chunk * rows).max(scores.len()), T::ZERO);
    let queries = Mat::new(gathered, n, shard.dim);
    for start in (0..n).step_by(chunk) {
        let block = queries.rows_range(start..(start + chunk).min(n));
        let scores = score(block, &shard, inverse_norms, scores);
        for (i, scores) in scores.chunks_exact(rows.max(1)).enumerate() {
            if let Some(row) = local(questions[start + i].target) {
                targets[start + i] = scores[row];
            }
        }
    }
    env.transport.lock().all_reduce(&mut [&mut targets])?;

    let mut digits = vec![T::ZERO; 4 * n];
    for start in (0..n).step_by(chunk) {
        let block = queries.rows_range(start..(start + chunk).min(n));
        let scores = if all_fit { &scores[..n * rows] } else { score(block, &shard, inverse_norms, scores) };
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
    env.transport.lock().all_reduce(&mut [&mut digits])?;
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

/// Scores of every row of the shard for each query.
fn score<'s, T: Real>(
    queries: Mat<'_, T>,
    shard: &Shard<T>,
    inverse_norms: Option<&[T]>,
    scores: &'s mut [T],
) -> &'s [T] {
    let rows = shard.len();
    let scores = &mut scores[..queries.rows() * rows];
    let table = Mat::new(&shard.values, rows, shard.dim);
    matmul_nt(queries, table, MatMut::new(scores, queries.rows(), rows));
    if let Some(inverse) = inverse_norms {
        for scores in scores.chunks_exact_mut(rows.max(1)) {
            for (score, inverse) in scores.iter_mut().zip(inverse) {
                *score *= *inverse;
            }
        }
    }
    scores
}
