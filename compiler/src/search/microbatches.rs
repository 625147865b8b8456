//! How many microbatches, where the model leaves that to the compiler: each number is searched as if it were asked for.
//!
//! More microbatches overlap more and take less memory, but their operations are as many times more. So numbers are tried
//! from one upwards, doubled each time, and a larger one is taken if it is better by more than a prediction can err, or needs
//! less of what there is too little of. After some that were not the search ends: what comes behind them is not looked at.

use fs_dsl::checked::Program;
use fs_schedule::search::TriedStrategy;

use super::tables::Outcome;
use super::{Best, Candidate, Cost, GAIN, Round, Scheduled, Search, Tried, can_be_told_apart};
use crate::compile::{Aim, CompileError, CompileOptions, Compiled};
use crate::emit;

/// The largest number that is tried.
const MOST: u32 = 64;
/// How many times as long a number's step may be as the shortest before it for tables to be changed in it as well, which may
/// gain more there.
const NEAR: f64 = 1.1;
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
    let (mut leaders, tried) = climb(program, numbers, candidates, options, None)?;
    let (_, chosen, compiled) = leaders.pop().and_then(|last| last.best).ok_or(CompileError::NoCandidate)?;
    let mut best = Best { compiled, chosen, tried };
    best.compiled.schedule.search = Some(Outcome::default().record(&best));
    emit::proved(&best.compiled.schedule).map_err(CompileError::from)?;
    Ok(best)
}

/// What numbers cost once single tables are changed: the candidates that led, and seconds of a step.
pub type Changed = Vec<(Candidate, f64)>;

/// As [`search()`], and then with other choices for single tables where that is faster: in each number that was better than those
/// before it, or not much worse, because tables gain more in one than in another. So the outcome is never worse than that of the first number.
///
/// # Errors
/// As there.
pub fn with_tables<E: From<CompileError>>(
    program: &Program,
    numbers: impl IntoIterator<Item = u32>,
    candidates: &[Candidate],
    options: impl FnMut(u32) -> Result<CompileOptions, E>,
) -> Result<(Best, Outcome, Changed), E> {
    let (leaders, tried) = climb(program, numbers, candidates, options, Some(NEAR))?;
    let mut found: Option<(Cost, usize, Compiled, Outcome)> = None;
    let (mut changed, mut simulated, mut defects) = (Vec::new(), 0, 0);
    for Leader { search, best, one } in leaders {
        let (cost, best, outcome) = search.improve_both(Round { best, tried: tried.clone() }, one)?;
        changed.push((tried[best.chosen].candidate, cost.step));
        (simulated, defects) = (simulated + outcome.simulated, defects + outcome.defects);
        if found.as_ref().is_none_or(|found| cost < found.0.longer(1.0 / GAIN)) {
            found = Some((cost, best.chosen, best.compiled, outcome));
        }
    }
    let (_, chosen, compiled, mut outcome) = found.ok_or(CompileError::NoCandidate)?;
    (outcome.simulated, outcome.defects) = (simulated, defects);
    let mut best = Best { compiled, chosen, tried };
    let mut record = outcome.record(&best);
    if changed.len() > 1 {
        record.strategies.extend(changed.iter().map(|(candidate, step)| TriedStrategy {
            name: format!("{}, single tables changed", candidate.describe()),
            step: Some(*step),
            at_least: None,
        }));
    }
    best.compiled.schedule.search = Some(record);
    emit::proved(&best.compiled.schedule).map_err(CompileError::from)?;
    Ok((best, outcome, changed))
}

/// What was better than all before it, and what it is compiled again by.
struct Leader<'a> {
    search: Search<'a>,
    /// The best, with its place among all that were tried.
    best: Option<Scheduled>,
    /// The best in one window, where single tables are to be changed.
    one: Option<Scheduled>,
}

/// The best of each number whose step was less than so many times as long as that of those before it, with the best in one window;
/// without a number better than those before it, so that the last is the best of all.
fn climb<'a, E: From<CompileError>>(
    program: &'a Program,
    numbers: impl IntoIterator<Item = u32>,
    candidates: &[Candidate],
    mut options: impl FnMut(u32) -> Result<CompileOptions, E>,
    near: Option<f64>,
) -> Result<(Vec<Leader<'a>>, Vec<Tried>), E> {
    let mut leaders: Vec<Leader<'a>> = Vec::new();
    let mut best: Option<Cost> = None;
    let mut tried = Vec::new();
    let mut vain = 0;
    for number in numbers {
        let options = options(number)?.microbatches(number);
        let asked = candidates.iter().map(|c| c.microbatches(number));
        // The first number is as if it were asked for: if it cannot be, that is said.
        let fits = |c: &Candidate| {
            let open = c.windows.or(options.windows).is_none();
            let evenly = |n: u32| n >= number || number.is_multiple_of(n.max(1));
            let mut said = options.tables.windows.values().copied().chain(c.windows.or(options.windows));
            let apart = c.policy.tells_rows_apart();
            (!apart || said.all(evenly))
                && can_be_told_apart(program, &options, &if open { c.windows(1) } else { *c })
        };
        // Where windows that are asked for do not cut it, in one.
        let cut = |c: Candidate| {
            let one = c.windows(1);
            if leaders.is_empty() || fits(&c) { Some(c) } else { Some(one).filter(|one| fits(one)) }
        };
        let asked: Vec<Candidate> = asked.filter_map(cut).collect();
        let search = Search::new(program, &options)?;
        let beat = best.map(|best| best.longer(near.unwrap_or(1.0 / GAIN)));
        let (mut round, one) = match near {
            Some(_) => search.over_both(&asked, beat)?,
            None => (search.over(search.in_windows(asked), beat)?, None),
        };
        let before = tried.len();
        tried.append(&mut round.tried);
        let placed = |(cost, chosen, compiled)| (cost, before + chosen, compiled);
        let leader = Leader { search, best: round.best.map(placed), one: one.map(placed) };
        let costs = [&leader.best, &leader.one].into_iter().flatten().map(|found| found.0);
        let least = costs.reduce(|a, b| if b < a { b } else { a });
        if let Some(cost) = least {
            leaders.push(leader);
            let better = best.is_none_or(|best| cost < best.longer(1.0 / GAIN));
            best = if better { Some(cost) } else { best };
            vain = if better { 0 } else { vain + 1 };
        } else {
            vain += 1;
        }
        if vain == PATIENCE {
            break;
        }
    }
    Ok((leaders, tried))
}
