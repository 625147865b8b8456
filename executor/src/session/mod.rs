//! A run from schedule to report.
//!
//! The session owns the ranks' state, so that tests and callers can look at tables and parameters between runs. A
//! *phase* ([`phase`]) runs one program over a range of steps: a thread per rank and engine, one thread that reads
//! ahead, and the calling thread, which collects results and reports progress.

mod crowd;
mod device_accounts;
mod evaluating;
mod gather;
mod observer;
mod on_device;
mod options;
mod phase;
mod saving;
mod traced;
mod turns;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use fs_kernels::Real;
use fs_schedule::trace::ProcessClock;
use fs_schedule::{Engine, Program, Schedule};

use crowd::give_way;

use crate::data::{self, Histories, Source, Vocabulary};
use crate::device::cpu::Cpu;
use crate::device::shards::table_bytes;
use crate::device::{Device, Env, Fault, Stored, Values};
use crate::error::Error;
use crate::memory::{self, Memory};
use crate::report::accounting::{self, Clock, Entries};
use crate::report::balance::{Balance, Sent};
use crate::report::{Accounting, Evaluation, Report, Spread, Truncations, op_totals};
use crate::runtime::engine::panic_message;
use crate::runtime::plan;
use crate::runtime::record::Record;
use crate::runtime::tables::{self, Field};
use crate::trace::{Timeline, Traced, window};
use crate::transport::TransportError;
use crate::transport::control::{Alone, Control};
use crate::transport::frame::LAYOUT;
use crate::transport::link::EmulatedLink;
use crate::transport::peers::Peers;
use crate::weights::{Loading, Taken};

pub use crate::runtime::pace::{BadEvery, Every};
pub use crate::step::{Account, StepEvent};
use gather::Gather;
pub use observer::Observer;
pub use options::{Checkpoint, Options, TIMEOUT};
use options::{LONGEST, check_best, check_link, check_placement, check_ranks, row_maps, seed, steps};
use phase::{Checkpoints, Phase, Results, rank_error};
use saving::Leaving;
use turns::Trained;

/// Loss and gradients of one batch, as after the all-reduce.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<T> {
    /// The global loss.
    pub loss: f64,
    /// Per dense parameter.
    pub parameters: Vec<Vec<T>>,
    /// Per table, over all rows.
    pub tables: Vec<Vec<T>>,
}

/// A schedule with its data and ranks, whose operations run on devices of one kind.
pub struct Session<T: Real, D: Device<Real = T> = Cpu<T>> {
    schedule: Arc<Schedule>,
    source: Box<dyn Source>,
    histories: Option<Arc<Histories>>,
    /// Those of this process.
    ranks: Vec<Env>,
    devices: Vec<D>,
    control: Arc<dyn Control>,
    options: Options,
    seed: u64,
    steps: u64,
    next_step: u64,
    /// The schedule was planned by what was counted in other data.
    other_data: bool,
    taken: Option<Taken>,
    /// A vocabulary that the data has no use for.
    kept: Option<Arc<Vocabulary>>,
    /// Of a run that leaves checkpoints.
    leaving: Option<Leaving>,
    records: Vec<Vec<Record>>,
    /// Of other processes whose records are among them.
    clocks: Vec<ProcessClock>,
}

impl<T: Real, D: Device<Real = T>> Session<T, D> {
    /// Checks the settings, opens the data, allocates and initialises the ranks.
    pub fn new(schedule: Schedule, options: Options) -> Result<Self, Error> {
        Self::with_device(schedule, options, &D::Options::default())
    }

    /// The same with devices as the caller wants them.
    pub fn with_device(schedule: Schedule, options: Options, device: &D::Options) -> Result<Self, Error> {
        let schedule = Arc::new(schedule);
        check_ranks(&schedule, &options)?;
        let seed = seed(&schedule, &options)?;
        let source = data::open(&schedule, options.data.as_deref(), options.schedule_file.as_deref(), seed)?;
        Self::on(schedule, options, source, device)
    }

    /// The same with a source of the caller's.
    pub fn with_source(
        schedule: Arc<Schedule>,
        options: Options,
        source: Box<dyn Source>,
    ) -> Result<Self, Error> {
        Self::on(schedule, options, source, &D::Options::default())
    }

    /// The same with a source and with devices as the caller wants them.
    pub fn on(
        schedule: Arc<Schedule>,
        options: Options,
        mut source: Box<dyn Source>,
        device: &D::Options,
    ) -> Result<Self, Error> {
        let ranks = check_ranks(&schedule, &options)?;
        check_placement(&schedule, ranks)?;
        check_link(options.link)?;
        let seed = seed(&schedule, &options)?;
        let steps = steps(&schedule, &options, source.as_ref())?;
        // Other devices look at their own when they are opened.
        let available = if D::IN_HOST_MEMORY { memory::available() } else { None };
        memory::check(&schedule, ranks, size_of::<T>(), available)?;
        // Before a vocabulary is taken on, which may number the ids otherwise.
        let planned = schedule.counted.as_ref();
        let asked = options.resume.is_some() || options.checkpoint.is_some() || planned.is_some();
        let read = if asked { source.digest()? } else { String::new() };
        let other_data = planned.is_some_and(|counted| counted.digest != read);
        let init = options.resume.as_deref().or(options.init.as_deref());
        let goes_on = options.resume.as_ref().map(|_| read.as_str());
        let loading =
            init.map(|path| Loading::prepare(&schedule, path, source.as_mut(), goes_on)).transpose()?;
        let histories = source.histories();
        check_best(&schedule, &options, histories.is_some())?;
        let first = loading.as_ref().map_or(0, |l| l.taken.step);
        // Those of a run that goes on count from its first start.
        let steps = if options.resume.is_some() { steps.saturating_sub(first) } else { steps };
        let timeout = options.timeout.min(LONGEST);
        let control: Arc<dyn Control> = match options.world.clone() {
            Some(world) => Arc::new(Peers::new(world, timeout, Some(options.watch.witness()))),
            None => Arc::new(Alone::new(ranks, timeout).with_witness(options.watch.witness())),
        };
        options.watch.attach(&schedule, &control);
        let goes_on = loading.as_ref().filter(|_| options.resume.is_some()).map(Loading::path);
        let leaves = options.checkpoint.as_ref();
        let leaves = leaves.map_or("never".into(), |of| {
            let best = of.best.map_or(String::new(), |metric| format!(" and the best by {metric}"));
            format!("every {:?}, the newest {}{best}", of.every, of.keep)
        });
        // Of one process there is nobody to differ from.
        let several = control.processes().len() > 1;
        let data = if several { source.digest()? } else { String::new() };
        let values = match loading.as_ref().filter(|_| several) {
            Some(loading) => loading.digest()?,
            None => "nothing".into(),
        };
        let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
        let facts = [
            ("the schedule", schedule.digest.clone()),
            ("the program's version", env!("CARGO_PKG_VERSION").to_owned()),
            ("the layout of frames", LAYOUT.to_string()),
            ("the seed", seed.to_string()),
            ("the number of steps", steps.to_string()),
            ("the first step", first.to_string()),
            ("the digest of the checkpoint or file of initial values", values),
            ("the number of bytes of a real", size_of::<T>().to_string()),
            ("the order of bytes", order.to_owned()),
            ("the number of users", histories.as_ref().map_or(0, |h| h.users()).to_string()),
            ("the number of ids", source.vocabulary().map_or(0, |v| v.ids()).to_string()),
            ("the digest of the data", data),
            ("when checkpoints are left", leaves),
        ];
        control.agree("the start", &facts).map_err(rank_error)?;
        // Of a run that does not begin nothing is left there.
        let leaving = options
            .checkpoint
            .as_ref()
            .map(|of| Leaving::new(of, (first, read), goes_on, control.process() == 0));
        let leaving = leaving.transpose().inspect_err(|error| {
            let (rank, op) = (control.processes()[control.process()][0], "checkpoints".into());
            control.fail(&TransportError::Failed { rank, op, message: error.to_string() });
        })?;
        let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
        let ring = programs.map(plan::ring).max().unwrap_or(1);
        let maps = row_maps(&schedule, ranks)?;
        let env = |rank: &usize| Env {
            deal: Arc::clone(&options.deal),
            ..Env::new(&schedule, &maps, (*rank, ranks), seed, ring, histories.clone())
        };
        let ranks: Vec<Env> = control.processes()[control.process()].iter().map(env).collect();
        // Each rank's thread touches its own pages first.
        let devices: Vec<_> = std::thread::scope(|scope| {
            let crowd = ranks.len();
            let threads: Vec<_> = ranks
                .iter()
                .map(|env| {
                    let name = format!("rank-{}-start", env.rank);
                    let open = move || {
                        give_way(crowd);
                        D::open(env, device)
                    };
                    std::thread::Builder::new().name(name).spawn_scoped(scope, open)
                })
                .collect();
            threads.into_iter().map(|thread| thread.map(std::thread::ScopedJoinHandle::join)).collect()
        });
        let failed = |rank, message| Error::Rank { rank, op: "initial values".into(), message };
        let devices = ranks.iter().zip(devices).map(|(env, device)| match device {
            Ok(Ok(device)) => device.map_err(Error::from),
            Ok(Err(panic)) => Err(failed(env.rank, panic_message(panic.as_ref()))),
            Err(error) => Err(failed(env.rank, format!("cannot start a thread: {error}"))),
        });
        let devices = devices.collect::<Result<Vec<D>, Error>>()?;
        if let Some(loading) = &loading {
            loading.fill((&ranks, &devices)).inspect_err(|error| {
                let (rank, op) = (ranks[0].rank, "initial values".into());
                control.fail(&TransportError::Failed { rank, op, message: error.to_string() });
            })?;
            if let Some(fitted) = loading.fitted().filter(|_| options.resume.is_some()) {
                for env in &ranks {
                    env.assigner.lock().begin_with(fitted.clone());
                }
            }
        }
        let (taken, kept) = loading.map_or((None, None), |l| (Some(l.taken), l.kept));
        let own = Self {
            schedule,
            source,
            histories,
            ranks,
            devices,
            control,
            options,
            seed,
            steps,
            next_step: first,
            other_data,
            taken,
            kept,
            leaving,
            records: Vec::new(),
            clocks: Vec::new(),
        };
        own.each_device("initial values", Device::check)?;
        Ok(own)
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Number of ranks, of all processes.
    pub fn ranks(&self) -> usize {
        self.control.processes().iter().map(Vec::len).sum()
    }

    /// The ranks of this process.
    pub(crate) fn own_ranks(&self) -> &[usize] {
        &self.control.processes()[self.control.process()]
    }

    fn gather(&self) -> Gather<'_, D> {
        let (control, schedule) = (&self.control, &*self.schedule);
        Gather { control, schedule, ranks: &self.ranks, devices: &self.devices }
    }

    /// What truncation leaves out of the data.
    pub fn truncation(&self) -> Truncations {
        let (training, evaluation) = self.source.truncation();
        let evaluated = self.options.evaluate && self.schedule.evaluation.is_some();
        Truncations { training, evaluation: evaluation.filter(|_| evaluated) }
    }

    /// Steps of a whole run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The engines that a training step uses, in the order of their numbers.
    pub fn engines(&self) -> Vec<Engine> {
        plan::Plan::new(&self.schedule.train).engines
    }

    /// Whether lengths and ids that the schedule was planned with were counted in other data than these.
    pub fn is_of_other_data(&self) -> bool {
        self.other_data
    }

    /// What the data is, for messages.
    pub fn describe_data(&self) -> String {
        self.source.describe()
    }

    /// Trains for all steps (or until stopped) and evaluates. May be called again to train further.
    pub fn run(&mut self, observer: &mut dyn Observer) -> Result<Report, Error> {
        let Trained { mut results, seconds, validations } = if let Some(every) = self.validates() {
            self.train_in_turns(every, observer)?
        } else {
            observer.training(0, self.steps);
            let (results, seconds) = self.train(self.steps, observer)?;
            self.leave_last(None)?;
            Trained { results, seconds, validations: Vec::new() }
        };
        let interrupted = results.stopped;
        let last = validations.last().filter(|last| last.step == self.next_step);
        let evaluation = match last {
            _ if interrupted => None,
            Some(last) => Some(last.evaluation),
            None => self.evaluate(observer)?,
        };
        // Told to stop while it was evaluating: what is missing must not look whole.
        let interrupted = interrupted
            || (evaluation.is_none() && self.options.stop.load(std::sync::atomic::Ordering::Relaxed));
        let report = self.report(&mut results, seconds, interrupted, evaluation)?;
        let checkpoints = self.checkpoints(&results.steps);
        Ok(Report { checkpoints, validations, ..report })
    }

    /// Trains for some steps and returns them.
    pub fn advance(&mut self, steps: u64, observer: &mut dyn Observer) -> Result<Vec<StepEvent>, Error> {
        observer.training(0, steps);
        let steps = self.train(steps, observer)?.0.steps;
        self.leave_last(None)?;
        Ok(steps)
    }

    fn train(&mut self, steps: u64, observer: &mut dyn Observer) -> Result<(Results, f64), Error> {
        let range = self.next_step..self.next_step.saturating_add(steps);
        let started = Instant::now();
        let schedule = Arc::clone(&self.schedule);
        let record = match &self.options.record {
            // Accounts are of steps that are recorded, where the device has a clock of its own.
            None if D::HAS_CLOCK && steps > 0 => {
                let usual = window::choose(None, &schedule, self.ranks(), steps)?;
                Some(range.start + usual.start..range.start + usual.end)
            }
            record => record.clone(),
        };
        let written = self.leaving.as_ref().map(|leaving| Arc::clone(&leaving.written));
        let mut each = |event: &StepEvent| {
            observer.step(event);
            if let Some((step, why)) = written.as_ref().and_then(|written| written.lock().news()) {
                observer.unusable(step, &why);
            }
        };
        let mut results = self.phase(&schedule.train, range, None, record, &mut each)?;
        (self.records, self.clocks) = self.gather().records(&mut results)?;
        if self.options.record.is_none() {
            self.records.clear();
        }
        self.next_step += results.steps.len() as u64;
        Ok((results, started.elapsed().as_secs_f64()))
    }

    /// Records these training steps in runs to come, or none; replaces [`Options::record`].
    pub fn record(&mut self, steps: Option<std::ops::Range<u64>>) {
        self.options.record = steps;
    }

    /// Takes what the last training run (or [`advance`](Self::advance)) recorded of the steps of [`Options::record`]:
    /// per rank every execution of every operation, by start. Times count from the start of that run. Of several processes
    /// the first has all ranks', the others their own.
    pub fn take_records(&mut self) -> Vec<Vec<Record>> {
        let mut records = std::mem::take(&mut self.records);
        if let Some(steps) = &self.options.record {
            for own in &mut records {
                own.retain(|r| steps.contains(&r.batch));
            }
        }
        records
    }

    /// What the last training run recorded, with the steps around it, and the steps that were asked for; `None` if
    /// nothing was to be recorded, and in all processes but the first.
    pub fn timeline(&self) -> Option<(Timeline<'_>, std::ops::Range<u64>)> {
        // Other processes have their own ranks' only.
        let all = self.records.len() == self.ranks() && !self.records.is_empty();
        let steps = self.options.record.clone().filter(|_| all)?;
        let timeline = Timeline::new(&self.schedule, &self.records, steps.clone());
        Some((Timeline { clocks: self.clocks.clone(), ..timeline }, steps))
    }

    /// For measurements: the schedule to keep while the session runs.
    pub(crate) fn shared_schedule(&self) -> Arc<Schedule> {
        Arc::clone(&self.schedule)
    }

    /// The emulated link.
    pub(crate) fn link(&self) -> Option<EmulatedLink> {
        self.options.link
    }

    pub(crate) fn set_link(&mut self, link: Option<EmulatedLink>) {
        self.options.link = link;
    }

    pub(crate) fn set_record(&mut self, steps: Option<std::ops::Range<u64>>) {
        self.options.record = steps;
    }

    /// The step that is trained next.
    pub fn next_step(&self) -> u64 {
        self.next_step
    }

    /// The data, and the seed of what is drawn.
    pub(crate) fn source_and_seed(&mut self) -> (&mut dyn Source, u64) {
        (self.source.as_mut(), self.seed)
    }

    /// Loss and gradients of the batch of `step`, with the present values and without changing them.
    pub fn loss_and_gradients(&mut self, step: u64) -> Result<Gradients<T>, Error> {
        self.devices.iter().for_each(|device| device.capture(true));
        let schedule = Arc::clone(&self.schedule);
        let results = self.phase(&schedule.train, step..step + 1, None, None, &mut |_| {});
        let tables = (0..schedule.tables.len())
            .map(|t| self.gather().table(&Field::captured(&schedule, t)))
            .collect::<Result<_, _>>();
        let parameters =
            (0..schedule.parameters.len()).map(|p| self.devices[0].all(Stored::Gradient(p))).collect();
        self.devices.iter().for_each(|device| device.capture(false));
        let (results, tables) = (results?, tables?);
        Ok(Gradients { loss: results.steps.iter().map(StepEvent::loss).sum(), parameters, tables })
    }

    /// All values of a table. Of several processes all must ask.
    pub fn table(&self, table: usize) -> Result<Vec<T>, Error> {
        self.of_table(table, Values::Weights)
    }

    /// Optimizer state of a table, of all rows: first and second; row-wise state of a column-wise table has a number for
    /// each part of a row. Of several processes all must ask.
    pub fn table_state(&self, table: usize) -> Result<[Vec<T>; 2], Error> {
        Ok([self.of_table(table, Values::First)?, self.of_table(table, Values::Second)?])
    }

    fn of_table(&self, table: usize, values: Values) -> Result<Vec<T>, Error> {
        self.gather().table(&Field::of(&self.schedule, table, values))
    }

    /// Replaces all values of a table.
    pub fn set_table(&mut self, table: usize, values: &[T]) -> Result<(), Error> {
        let whole = &self.schedule.tables[table];
        let expected = whole.rows as usize * whole.dim as usize;
        if values.len() != expected {
            return Err(Error::Weights(format!("{} values for a table of {expected}", values.len())));
        }
        let weights = Field::of(&self.schedule, table, Values::Weights);
        tables::write((&self.ranks, &self.devices), &weights, (0, &(0..weights.width)), values);
        self.each_device("new values", Device::check)
    }

    /// Values of a dense parameter.
    pub fn parameter(&self, parameter: usize) -> Vec<T> {
        self.devices[0].all(Stored::Parameter(parameter, Values::Weights))
    }

    /// Optimizer state of a dense parameter: first and second.
    pub fn parameter_state(&self, parameter: usize) -> [Vec<T>; 2] {
        [Values::First, Values::Second]
            .map(|values| self.devices[0].all(Stored::Parameter(parameter, values)))
    }

    /// Replaces the values of a dense parameter on every rank.
    pub fn set_parameter(&mut self, parameter: usize, values: &[T]) -> Result<(), Error> {
        let weights = Stored::Parameter(parameter, Values::Weights);
        for device in &self.devices {
            let own = device.len(weights);
            if own != values.len() {
                let message = format!("{} values for a parameter of {own}", values.len());
                return Err(Error::Weights(message));
            }
            device.write(weights, 0, values);
        }
        self.each_device("new values", Device::check)
    }

    fn phase(
        &mut self,
        program: &Program,
        steps: std::ops::Range<u64>,
        source: Option<&mut dyn Source>,
        record: Option<std::ops::Range<u64>>,
        each: &mut dyn FnMut(&StepEvent),
    ) -> Result<Results, Error> {
        // Evaluation changes nothing, and what asks for gradients once keeps nothing.
        let leaves = source.is_none() && std::ptr::eq(program, &raw const self.schedule.train);
        let parts = if leaves { self.parts() } else { None };
        let control = &self.control;
        let checkpoints = self.leaving.as_ref().zip(parts.as_ref()).map(|(leaving, parts)| {
            leaving.pace.begin(steps.start);
            let held = (&*self.schedule, &self.ranks[..], &self.devices[..]);
            Checkpoints {
                pace: &leaving.pace,
                writing: leaving.writing(parts, held, &**control),
                written: &leaving.written,
            }
        });
        let source = source.unwrap_or(self.source.as_mut());
        let watch = (&self.schedule, &self.options.watch);
        let Options { stop, link, stress, panic_at, .. } = &self.options;
        let (link, stress, panic_at) = (*link, *stress, panic_at.clone());
        let phase = Phase { program, steps, source, stop, control, watch, link, stress, record, panic_at };
        let results = phase.run(&self.ranks, &self.devices, checkpoints, each)?;
        self.each_device("end of a run", Device::settle)?;
        // What evaluates changes nothing.
        if std::ptr::eq(program, &raw const self.schedule.train) {
            tables::settle((&self.ranks, &self.devices));
        }
        Ok(results)
    }

    /// Asks all devices; what one of them says against it ends the run everywhere.
    fn each_device(&self, op: &str, ask: impl Fn(&D) -> Result<(), Fault>) -> Result<(), Error> {
        for (env, device) in self.ranks.iter().zip(&self.devices) {
            if let Err(fault) = ask(device) {
                let (rank, op, message) = (env.rank, op.to_owned(), fault.to_string());
                self.control.fail(&TransportError::Failed { rank, op: op.clone(), message: message.clone() });
                return Err(Error::Rank { rank, op, message });
            }
        }
        Ok(())
    }

    fn report(
        &self,
        results: &mut Results,
        seconds: f64,
        interrupted: bool,
        evaluation: Option<Evaluation>,
    ) -> Result<Report, Error> {
        let schedule = &self.schedule;
        let first_step = self.next_step - results.steps.len() as u64;
        let totals = self.gather().totals(results)?;
        let [parameters, buffers, batches, spared] = totals.bytes;
        let entries = Entries { asked: &totals.asked, served: &totals.served };
        let (tables, state) = schedule
            .tables
            .iter()
            .map(|t| table_bytes(t, self.ranks(), size_of::<T>()))
            .fold((0, 0), |(values, state), (v, s)| (values + v, state + s));
        let mut held =
            Memory { tables, optimizer_state: state, parameters, buffers, batches, peak_ratio: 0.0 };
        let peak = memory::peak();
        held.peak_ratio = peak as f64 / held.total().max(1) as f64;
        let steps = &results.steps;
        let (clock, timed) = if D::HAS_CLOCK {
            let timed = |s: &&StepEvent| results.timed.as_ref().is_some_and(|timed| timed.contains(&s.step));
            (Clock::Device, steps.iter().filter(timed).cloned().collect())
        } else {
            (Clock::Host, Cow::Borrowed(&steps[..]))
        };
        let mut report = Report::begun(schedule, self.ranks(), self.seed);
        report.count(steps, seconds);
        Ok(Report {
            data: self.source.describe(),
            planned_steps: self.steps,
            interrupted,
            step_ms: Spread::of(steps.iter().map(|s| s.seconds * 1e3).collect()),
            data_wait_ms: Spread::of(steps.iter().map(|s| s.data_wait * 1e3).collect()),
            straggler_ms: Spread::of(timed.iter().map(|s| s.waited * 1e3).collect()),
            peak_memory_bytes: peak,
            memory: held,
            accounting: Accounting {
                issue_ms: results.issued.as_secs_f64() * 1e3 / steps.len().max(1) as f64,
                ..accounting::of(schedule, entries, (clock, &timed), &results.engines, &totals.profiles)
            },
            // All ranks plan alike.
            balance: self.ranks.first().and_then(|rank| {
                let plans = rank.assigner.lock().take_totals();
                Balance::of(
                    schedule,
                    &plans,
                    Sent { profiles: &totals.profiles, batches: steps.len() as u64, spared },
                )
            }),
            ops: op_totals(&schedule.train, &totals.profiles),
            first_step,
            init: self.taken.clone(),
            truncation: self.truncation(),
            traced: self.timeline().and_then(|(timeline, _)| Traced::of(&timeline, steps)),
            evaluation,
            ..report
        })
    }
}
