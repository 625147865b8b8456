//! How many microbatches, where the model leaves that to the compiler: each number is searched as if it were asked for.
//!
//! More microbatches overlap more and take less memory, but their operations are as many times more. So numbers are tried
//! from one upwards, doubled each time, and a larger one is taken if it is better by more than a prediction can err, or needs
//! less of what there is too little of. After some that were not the search ends: what comes behind them is not looked at.

use fs_dsl::checked::Program;
use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

use super::tables::{self, Outcome};
use super::{Best, Candidate, Cost, GAIN, Search};
use crate::compile::{Aim, CompileError, CompileOptions, Compiled};
use crate::emit;

/// The largest number that is tried.
const MOST: u32 = 64;
/// So many numbers in a row that bring nothing end the search.
const PATIENCE: u32 = 2;

/// The numbers that may be tried: powers of two that divide the batch, of which every rank has a sample or more for each
/// microbatch.
///
/// # Errors
/// If the program has no schedule for the ranks, whatever their number.
pub fn numbers(program: &Program, options: &CompileOptions) -> Result<Vec<u32>, CompileError> {
    let ranks = Aim::new(program, options)?.ranks;
    let batch = program.train.batch;
    let fits = |m: &u32| batch.is_multiple_of(*m) && batch / ranks >= *m;
    let doubled = (0..=MOST.ilog2()).map(|n| 1 << n);
    Ok(doubled.take_while(|m| *m == 1 || fits(m)).collect())
}

/// As [`super::search`] in the best of these numbers of microbatches, in the order given. Options are asked for when a number is
/// tried, because what was counted in data is of one number; an error of theirs ends the search.
///
/// # Errors
/// As there, or one of the options.
pub fn search<E: From<CompileError>>(
    program: &Program,
    numbers: impl IntoIterator<Item = u32>,
    candidates: &[Candidate],
    options: impl FnMut(u32) -> Result<CompileOptions, E>,
) -> Result<Best, E> {
    let (_, _, mut best) = climb(program, numbers, candidates, options)?;
    best.compiled.schedule.search = Some(Outcome::default().record(&best));
    emit::proved(&best.compiled.schedule).map_err(CompileError::from)?;
    Ok(best)
}

/// As [`search()`], and then with other choices for single tables where that is faster, in the number that was found.
///
/// # Errors
/// As there.
pub fn with_tables<E: From<CompileError>>(
    program: &Program,
    numbers: impl IntoIterator<Item = u32>,
    candidates: &[Candidate],
    options: impl FnMut(u32) -> Result<CompileOptions, E>,
) -> Result<(Best, Outcome), E> {
    let (search, cost, best) = climb(program, numbers, candidates, options)?;
    Ok(tables::finish(&search, cost, best)?)
}

/// The best so far, and what it is compiled again by.
struct Found<'a> {
    search: Search<'a>,
    cost: Cost,
    /// Its place among all that were tried.
    chosen: usize,
    compiled: Compiled,
}

fn climb<'a, E: From<CompileError>>(
    program: &'a Program,
    numbers: impl IntoIterator<Item = u32>,
    candidates: &[Candidate],
    mut options: impl FnMut(u32) -> Result<CompileOptions, E>,
) -> Result<(Search<'a>, Cost, Best), E> {
    let mut best: Option<Found<'a>> = None;
    let mut tried = Vec::new();
    let mut vain = 0;
    for number in numbers {
        let options = options(number)?.microbatches(number);
        let asked = candidates.iter().map(|c| c.microbatches(number));
        // The first number is as if it were asked for: if it cannot be, that is said.
        let asked: Vec<Candidate> =
            asked.filter(|c| best.is_none() || tells_apart(program, &options, c)).collect();
        let search = Search::new(program, &options)?;
        let before = tried.len();
        let beat = best.as_ref().map(|best| best.cost.longer(1.0 / GAIN));
        let mut round = search.over(asked, beat)?;
        tried.append(&mut round.tried);
        if let Some((cost, chosen, compiled)) = round.best {
            best = Some(Found { search, cost, chosen: before + chosen, compiled });
            vain = 0;
        } else {
            vain += 1;
        }
        if vain == PATIENCE {
            break;
        }
    }
    let Found { search, cost, chosen, compiled } = best.ok_or(CompileError::NoCandidate)?;
    Ok((search, cost, Best { compiled, chosen, tried }))
}

/// Whether a candidate makes no more classes of rows than can be told apart.
fn tells_apart(program: &Program, options: &CompileOptions, candidate: &Candidate) -> bool {
    if !candidate.policy.tells_rows_apart() {
        return true;
    }
    let lookahead = candidate.lookahead.unwrap_or(program.train.lookahead);
    let named = options.tables.lookahead.values().filter_map(|k| k.0);
    let most = named.chain([lookahead]).max().unwrap_or(lookahead);
    let reuse = Reuse { lookahead: most, microbatches: candidate.microbatches.unwrap_or(1) };
    reuse.count(Way::Forward) <= Reuse::MOST
}
