//! What a caller may choose of a run, and whether it fits the schedule and the data.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fs_schedule::{Duration as Length, Element, Program, RowMap, Schedule, Table, limits};

use crate::data::Source;
use crate::data::samples::{Blocks, Deal};
use crate::error::Error;
use crate::evaluate::metric::Metric;
use crate::runtime::pace::Every;
use crate::stall::Watch;
use crate::transport::link::EmulatedLink;
use crate::transport::wire::World;
use crate::weights;

/// How long ranks wait for each other if nothing else is said.
pub const TIMEOUT: Duration = Duration::from_mins(5);
/// Waiting for longer is waiting for ever.
pub(super) const LONGEST: Duration = Duration::from_secs(1 << 28);

/// What a caller may choose; the rest is in the schedule. Said as a chain: `Options::default().ranks(2).steps(100)`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Number of ranks; the schedule's own without it.
    pub ranks: Option<usize>,
    /// Seed instead of the schedule's.
    pub seed: Option<u64>,
    /// Steps instead of the schedule's duration.
    pub steps: Option<u64>,
    /// Epochs instead of the schedule's duration.
    pub epochs: Option<u32>,
    /// Data file instead of the schedule's.
    pub data: Option<PathBuf>,
    /// Where the schedule lies; its data is looked for in that folder first.
    pub schedule_file: Option<PathBuf>,
    /// Initial values from this file.
    pub init: Option<PathBuf>,
    /// Go on with the run that left this checkpoint, or the newest one of this folder.
    pub resume: Option<PathBuf>,
    /// Checkpoints to leave.
    pub checkpoint: Option<Checkpoint>,
    /// Evaluate after training, if the schedule says how.
    pub evaluate: bool,
    /// Set from outside to stop after the batches in flight.
    pub stop: Arc<AtomicBool>,
    /// The ranks of this process and the way to the others; without it this process runs all ranks.
    pub world: Option<World>,
    /// How long anything of another rank is waited for.
    pub timeout: Duration,
    /// Ranks talk over emulated links of this speed.
    pub link: Option<EmulatedLink>,
    /// Random operations are delayed by random times, keyed by this: no result may depend on it.
    pub stress: Option<u64>,
    /// Training steps whose operations are recorded; see [`Session::take_records`](super::Session::take_records).
    pub record: Option<Range<u64>>,
    /// Which samples of a training batch each rank works on: blocks of it, if nothing else is said.
    pub deal: Arc<dyn Deal>,
    /// Says where all ranks are, if they wait for too long or it is asked.
    pub watch: Arc<Watch>,
    /// For tests: the rank, operation and step at which an engine's thread panics.
    pub panic_at: Option<(usize, String, u64)>,
}

/// Checkpoints that a run leaves; one more at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where. All processes must see this folder.
    pub folder: PathBuf,
    /// How often.
    pub every: Every,
    /// How many of them stay, the newest ones; at least one.
    pub keep: usize,
    /// The model is evaluated at each, and the best one by this stays too. They are then left after a number of steps.
    pub best: Option<Metric>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ranks: None,
            seed: None,
            steps: None,
            epochs: None,
            data: None,
            schedule_file: None,
            init: None,
            resume: None,
            checkpoint: None,
            evaluate: true,
            stop: Arc::default(),
            world: None,
            timeout: TIMEOUT,
            link: None,
            stress: None,
            record: None,
            deal: Arc::new(Blocks),
            watch: Arc::default(),
            panic_at: None,
        }
    }
}

impl Options {
    /// With so many ranks.
    #[must_use]
    pub fn ranks(mut self, ranks: impl Into<Option<usize>>) -> Self {
        self.ranks = ranks.into();
        self
    }

    /// With another seed.
    #[must_use]
    pub fn seed(mut self, seed: impl Into<Option<u64>>) -> Self {
        self.seed = seed.into();
        self
    }

    /// For so many steps.
    #[must_use]
    pub fn steps(mut self, steps: impl Into<Option<u64>>) -> Self {
        self.steps = steps.into();
        self
    }

    /// For so many epochs.
    #[must_use]
    pub fn epochs(mut self, epochs: impl Into<Option<u32>>) -> Self {
        self.epochs = epochs.into();
        self
    }

    /// On this data file.
    #[must_use]
    pub fn data(mut self, data: impl Into<Option<PathBuf>>) -> Self {
        self.data = data.into();
        self
    }

    /// With data beside this file.
    #[must_use]
    pub fn schedule_file(mut self, schedule_file: impl Into<Option<PathBuf>>) -> Self {
        self.schedule_file = schedule_file.into();
        self
    }

    /// From these initial values.
    #[must_use]
    pub fn init(mut self, init: impl Into<Option<PathBuf>>) -> Self {
        self.init = init.into();
        self
    }

    /// Going on with the run that left a checkpoint.
    #[must_use]
    pub fn resume(mut self, resume: impl Into<Option<PathBuf>>) -> Self {
        self.resume = resume.into();
        self
    }

    /// Leaving checkpoints.
    #[must_use]
    pub fn checkpoint(mut self, checkpoint: impl Into<Option<Checkpoint>>) -> Self {
        self.checkpoint = checkpoint.into();
        self
    }

    /// With or without evaluation.
    #[must_use]
    pub fn evaluate(mut self, evaluate: bool) -> Self {
        self.evaluate = evaluate;
        self
    }

    /// Stopping when this is set.
    #[must_use]
    pub fn stop(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = stop;
        self
    }

    /// As part of these processes.
    #[must_use]
    pub fn world(mut self, world: impl Into<Option<World>>) -> Self {
        self.world = world.into();
        self
    }

    /// Waiting at most so long for another rank.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Over emulated links.
    #[must_use]
    pub fn link(mut self, link: impl Into<Option<EmulatedLink>>) -> Self {
        self.link = link.into();
        self
    }

    /// With random delays, keyed by this.
    #[must_use]
    pub fn stress(mut self, stress: impl Into<Option<u64>>) -> Self {
        self.stress = stress.into();
        self
    }

    /// Recording these steps.
    #[must_use]
    pub fn record(mut self, record: impl Into<Option<Range<u64>>>) -> Self {
        self.record = record.into();
        self
    }

    /// With samples dealt in this way.
    #[must_use]
    pub fn deal(mut self, deal: Arc<dyn Deal>) -> Self {
        self.deal = deal;
        self
    }

    /// Watched by this.
    #[must_use]
    pub fn watch(mut self, watch: Arc<Watch>) -> Self {
        self.watch = watch;
        self
    }

    /// With a panic of this rank, operation and step.
    #[must_use]
    pub fn panic_at(mut self, panic_at: impl Into<Option<(usize, String, u64)>>) -> Self {
        self.panic_at = panic_at.into();
        self
    }
}

/// Number of ranks of all processes.
fn number(schedule: &Schedule, options: &Options) -> Result<usize, Error> {
    let Some(world) = &options.world else { return Ok(options.ranks.unwrap_or(schedule.ranks as usize)) };
    world.check()?;
    match options.ranks {
        Some(ranks) if ranks != world.ranks() => Err(Error::Settings(format!(
            "{ranks} ranks are asked for, and the processes run {}",
            world.ranks()
        ))),
        _ => Ok(world.ranks()),
    }
}

/// Checks the number of ranks against the batch, and that of this process's against what may be started.
pub(super) fn check_ranks(schedule: &Schedule, options: &Options) -> Result<usize, Error> {
    let ranks = number(schedule, options)?;
    check_batch(schedule, ranks)?;
    check_nodes(schedule, ranks)?;
    let own = options.world.as_ref().map_or(ranks, |world| world.processes[world.process].len());
    check_threads(schedule, own, limits::threads(Path::new("/")))?;
    Ok(ranks)
}

/// Of several nodes each one's sum of gradients is rounded where gradients are; on one node none is, which is another training.
fn check_nodes(schedule: &Schedule, ranks: usize) -> Result<(), Error> {
    let settings = &schedule.settings;
    let dense = settings.sums_by_node && settings.wire.dense != Element::Real;
    let rounds = dense || settings.wire.gradients != Element::Real;
    match schedule.settings.node {
        Some(node) if rounds && ranks <= node as usize => Err(Error::Settings(format!(
            "gradients travel as bf16 and were planned for nodes of {node} ranks, of which {ranks} ranks are one: use more ranks, or compile \
             for {ranks}"
        ))),
        _ => Ok(()),
    }
}

fn check_batch(schedule: &Schedule, ranks: usize) -> Result<(), Error> {
    let batch = schedule.settings.batch;
    if ranks == 0 {
        return Err(Error::NoRanks);
    }
    if batch == 0 {
        return Err(Error::Settings("the schedule has a batch of 0 samples".into()));
    }
    if (batch as usize).is_multiple_of(ranks) {
        return Ok(());
    }
    let divisors: Vec<String> =
        (1..=batch.min(1024)).filter(|r| batch.is_multiple_of(*r)).map(|r| r.to_string()).collect();
    let nearest = (batch as usize).next_multiple_of(ranks);
    let advice = format!("use {} ranks, or compile with a batch such as {nearest}", divisors.join(", "));
    Err(Error::BadBatch { batch, ranks, advice })
}

/// Checks that this process may start the threads of its ranks, of which there are `own`.
pub(super) fn check_threads(schedule: &Schedule, own: usize, available: Option<u64>) -> Result<(), Error> {
    /// The reader's, the signals' and some to spare.
    const OTHERS: u64 = 16;
    let engines = |program: &Program| program.ops.iter().map(|op| op.engine).collect::<BTreeSet<_>>().len();
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    let engines = programs.map(engines).max().unwrap_or(0).max(1) as u64;
    let threads = (own as u64).saturating_mul(engines).saturating_add(OTHERS);
    match available {
        Some(available) if threads > available => {
            Err(Error::TooManyThreads { ranks: own, threads, available })
        }
        _ => Ok(()),
    }
}

/// Checks that the ranks are those that tables were placed on.
pub(super) fn check_placement(schedule: &Schedule, ranks: usize) -> Result<(), Error> {
    let placed = schedule.tables.iter().find(|t| t.fixes_ranks());
    match placed {
        Some(table) if ranks != schedule.ranks as usize => Err(Error::Settings(format!(
            "table `{}` is placed on ranks of {}, so this schedule cannot run with {ranks}; compile it for {ranks} ranks",
            table.name, schedule.ranks
        ))),
        _ => Ok(()),
    }
}

/// Which slot each row of each table is in.
pub(super) fn row_maps(schedule: &Schedule, ranks: usize) -> Result<Arc<[RowMap]>, Error> {
    let map =
        |t: &Table| t.row_map(ranks as u32).map_err(|e| Error::Settings(format!("table `{}`: {e}", t.name)));
    schedule.tables.iter().map(map).collect()
}

/// Checks that checkpoints which are to be evaluated can be: `histories` says whether the data has what that needs.
pub(super) fn check_best(schedule: &Schedule, options: &Options, histories: bool) -> Result<(), Error> {
    let Some(Checkpoint { every, best: Some(metric), .. }) = &options.checkpoint else { return Ok(()) };
    let no = |reason: &str| {
        Err(Error::Settings(format!("the best checkpoint by {metric} cannot be known: {reason}")))
    };
    if !matches!(every, Every::Steps(_)) {
        return no("evaluation has its place between two steps, so give --every a number of steps");
    }
    match (options.evaluate, schedule.evaluate.is_some() && schedule.evaluation.is_some()) {
        (false, _) => no("--no-evaluate says that nothing is evaluated"),
        (true, false) => no(
            "the model does not say how it is evaluated; give `evaluate leave_last_out` in its workload block",
        ),
        (true, true) if !histories => no("the data has no users' histories to hold items out of"),
        (true, true) => Ok(()),
    }
}

/// Checks that something gets through a link.
pub(super) fn check_link(link: Option<EmulatedLink>) -> Result<(), Error> {
    match link {
        Some(EmulatedLink { bandwidth, latency })
            if !(bandwidth > 0.0 && bandwidth.is_finite() && (0.0..=60.0).contains(&latency)) =>
        {
            Err(Error::Settings(format!(
                "nothing gets through a link of {bandwidth} bytes a second and {latency} seconds of latency; give a \
                 bandwidth above zero and a latency of at most a minute"
            )))
        }
        _ => Ok(()),
    }
}

/// The seed of everything random: a run that goes on has its own.
pub(super) fn seed(schedule: &Schedule, options: &Options) -> Result<u64, Error> {
    let given = options.seed.unwrap_or(schedule.settings.seed);
    let Some(path) = &options.resume else { return Ok(given) };
    // The newest one may be another in a moment.
    if options.checkpoint.is_some() {
        weights::wait_for_writer(path);
    }
    let own = weights::seed(path)?;
    match options.seed {
        Some(seed) if seed != own => Err(Error::Settings(format!(
            "the run that is to go on has the seed {own}, not {seed}; leave out --seed, or start another run from it with --init"
        ))),
        _ => Ok(own),
    }
}

/// How long to train.
pub(super) fn steps(schedule: &Schedule, options: &Options, source: &dyn Source) -> Result<u64, Error> {
    let length = match (options.steps, options.epochs) {
        (Some(_), Some(_)) => {
            return Err(Error::Settings(
                "--steps and --epochs contradict each other; give one of them".into(),
            ));
        }
        (Some(steps), None) => Length::Steps(steps),
        (None, Some(epochs)) => Length::Epochs(epochs),
        (None, None) => schedule.settings.duration,
    };
    match (length, source.epoch_steps()) {
        (Length::Steps(n), _) => Ok(n),
        (Length::Epochs(n), Some(steps)) => Ok(u64::from(n) * steps),
        (Length::Epochs(_), None) => Err(Error::Settings(format!(
            "{} has no end, so training cannot be measured in epochs; give `samples` in the workload block, or --steps",
            source.describe()
        ))),
    }
}
