//! One program over a range of steps, on all ranks of this process: a thread per rank and engine, one that reads ahead, and the
//! calling thread, which puts the ranks' messages together.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel, sync_channel};
use std::time::Duration;

use fs_schedule::{Program, Schedule};
use parking_lot::Mutex;

use super::crowd::give_way;
use super::{device_accounts, on_device};
use crate::data::reader::reader;
use crate::data::{Source, Wanted};
use crate::device::{Device, Env};
use crate::error::Error;
use crate::runtime::account::TimeUse;
use crate::runtime::engine::{self, panic_message};
use crate::runtime::finished::{ENGINES, Finished};
use crate::runtime::gate::Gate;
use crate::runtime::pace::Pace;
use crate::runtime::profile::Profile;
use crate::runtime::rank::{Rank, Settings};
use crate::runtime::record::{self, Record};
use crate::runtime::{Plan, Process};
use crate::stall::Watch;
use crate::stall::look::Look;
use crate::step::{Account, StepEvent};
use crate::transport::control::Control;
use crate::transport::link::EmulatedLink;
use crate::transport::tick::Reading;
use crate::transport::{Outbox, Reach, TransportError};
use crate::weights::checkpoint::run::{Ended, Totals, Writing};

/// Messages of ranks that may wait.
const MESSAGES: usize = 1024;

/// What a phase gave.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) steps: Vec<StepEvent>,
    /// Per rank.
    pub(super) profiles: Vec<Profile>,
    /// The program's engines.
    pub(super) engines: Vec<fs_schedule::Engine>,
    /// Ended early because it was told to.
    pub(super) stopped: bool,
    /// Memory of the batches read ahead.
    pub(super) batch_bytes: usize,
    /// Per rank, by start.
    pub(super) records: Vec<Vec<Record>>,
    /// Steps whose accounts, and whose operations' times in profiles, are by the clock of devices that have one of their own: of
    /// the other steps there are none then.
    pub(super) timed: Option<Range<u64>>,
    /// How long the host took to enqueue all operations, in the mean of the ranks, where devices have a clock of their own
    /// ([`device_accounts::issued`]).
    pub(super) issued: Duration,
    /// What is needed to lay records of other processes beside them, if there are any of either.
    pub(super) clocks: Option<Clocks>,
}

/// When the run began on this process's clock, and in the first process the others' clocks before and after.
#[derive(Debug)]
pub(super) struct Clocks {
    pub(super) began: i64,
    pub(super) before: Vec<Option<Reading>>,
    pub(super) after: Vec<Option<Reading>>,
}

impl Results {
    /// Takes in those of steps that were trained next.
    pub(super) fn join(&mut self, next: Self) {
        self.steps.extend(next.steps);
        match (&self.timed, next.timed) {
            (None, None) => {
                self.profiles.iter_mut().zip(&next.profiles).for_each(|(own, next)| own.add(next));
            }
            (own, Some(timed))
                if own.as_ref().is_none_or(|own| own.end - own.start < timed.end - timed.start) =>
            {
                (self.profiles, self.timed) = (next.profiles, Some(timed));
            }
            _ => {}
        }
        self.stopped |= next.stopped;
        self.issued += next.issued;
        self.batch_bytes = self.batch_bytes.max(next.batch_bytes);
    }
}

pub(super) struct Phase<'a> {
    pub(super) program: &'a Program,
    pub(super) steps: Range<u64>,
    pub(super) source: &'a mut dyn Source,
    pub(super) stop: &'a Arc<AtomicBool>,
    pub(super) control: &'a Arc<dyn Control>,
    /// Of the program, and who is told where its ranks are.
    pub(super) watch: (&'a Arc<Schedule>, &'a Arc<Watch>),
    pub(super) link: Option<EmulatedLink>,
    pub(super) stress: Option<u64>,
    /// Steps to record.
    pub(super) record: Option<Range<u64>>,
    /// Rank, operation and step that panic.
    pub(super) panic_at: Option<(usize, String, u64)>,
}

/// Checkpoints of a phase.
pub(super) struct Checkpoints<'a, D: Device> {
    pub(super) pace: &'a Arc<Pace>,
    pub(super) writing: Writing<'a, D>,
    /// Those that are whole.
    pub(super) written: &'a Mutex<Totals>,
}

impl Phase<'_> {
    /// `checkpoints`: when they are left, who writes them, and who is told of each.
    pub(super) fn run<D: Device>(
        self,
        envs: &[Env],
        devices: &[D],
        checkpoints: Option<Checkpoints<'_, D>>,
        each: &mut dyn FnMut(&StepEvent),
    ) -> Result<Results, Error> {
        let Self { program, steps, source, stop, control, watch, link, stress, record, panic_at } = self;
        let world: usize = control.processes().iter().map(Vec::len).sum();
        let own = &control.processes()[control.process()];
        let (first, planned) = (steps.start, steps.end - steps.start);
        let plan = Arc::new(Plan::new(program));
        if plan.load.is_none() && planned > 0 {
            return Err(Error::Settings("the program loads no batches".into()));
        }
        // What is recorded, and what must be to know when that was ready.
        let recorded = record.unwrap_or(0..0);
        let margin = if recorded.is_empty() { 0 } else { record::margin(&plan, program) };
        let batch = |step: u64| step.saturating_sub(steps.start).min(planned);
        let held = batch(recorded.start.saturating_sub(margin))..batch(recorded.end.saturating_add(margin));
        let pace = checkpoints.as_ref().map(|checkpoints| checkpoints.pace);
        let gate = Arc::new(Gate::new(stop, planned, envs[0].batches.len(), control, pace));
        let (sender, finished) = sync_channel(MESSAGES);
        let place = |rank: usize| own.iter().position(|own| *own == rank).unwrap_or(0);
        let outbox = |rank: usize, reach: Reach| devices[place(rank)].outbox(reach);
        let (schedule, watch) = watch;
        watch.attach(schedule, control);
        let process =
            Process::new(control, plan.engines.len(), &plan.channels, link, &gate, &sender, &outbox)
                .map_err(rank_error)?;
        let mut clocks = (own.len() < world && !recorded.is_empty()).then(|| Clocks {
            began: process.clock.since(control.epoch()),
            before: control.read_clocks(),
            after: Vec::new(),
        });
        let noted = on_device::note(envs, devices, &held, &process);
        let ending = Arc::new(process.ending());
        let (reader, batches) = reader(envs.len(), program.in_flight as usize, envs[0].batches.len());
        // Ranks of other processes read their samples there.
        let reader = if own.len() < world {
            reader.wanting(Wanted::Ranks { ranks: own.clone(), world })
        } else {
            reader
        };
        let ranks: Vec<Rank<D>> = envs
            .iter()
            .zip(devices)
            .zip(batches)
            .map(|(place, batches)| {
                let panic_at = panic_at.as_ref().and_then(|(rank, op, step)| {
                    let op = program.ops.iter().position(|o| o.name == *op)?;
                    Some((*rank, op, step.checked_sub(steps.start)?))
                });
                let settings = Settings { first_step: steps.start, stress, record: held.clone(), panic_at };
                let ending = Arc::clone(&ending);
                Rank::new(place, program, &plan, &process, batches, sender.clone(), ending, settings)
            })
            .collect();
        drop((sender, ending));
        let standing = ranks.iter().map(|rank| {
            let (progress, places) = rank.standing();
            (rank.env.rank, progress, places)
        });
        let evaluation = !std::ptr::eq(program, &raw const schedule.train);
        watch.begin(Look::new(
            (program, &plan),
            (process.clock, evaluation, steps.start),
            standing.collect(),
            process.missing(),
        ));
        // Dropped before the threads are joined, so that the reader sees it if the ranks have failed.
        let ranks = ranks.into_iter().map(Arc::new).collect::<Vec<_>>();
        std::thread::scope(|scope| {
            let (range, awake) = (steps.clone(), process.threads.awake());
            let name = "rank-reader".to_owned();
            let reading = std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, move || reader.run(source, range, awake));
            let reading =
                reading.map_err(|e| Error::Settings(format!("cannot start the reader's thread: {e}")))?;
            let (cuts, asked) = channel();
            let mut cuts = checkpoints.is_some().then(|| Ended::new(own, steps.start, cuts));
            let writing = checkpoints.map(|checkpoints| {
                let process = &process;
                let write = move || {
                    let mut done = |written| {
                        checkpoints.written.lock().add(written);
                        checkpoints.pace.done();
                    };
                    let ended = || process.failures.has_failed();
                    let Checkpoints { writing, pace, .. } = &checkpoints;
                    if let Err(error) = writing.serve(&asked, pace, &ended, &mut done) {
                        process.fail(own[0], "checkpoint", &error.to_string());
                    }
                };
                std::thread::Builder::new().name("rank-checkpoint".into()).spawn_scoped(scope, write)
            });
            let writing = writing
                .transpose()
                .map_err(|e| Error::Settings(format!("cannot start the thread of checkpoints: {e}")))?;
            let crowd = ranks.len() * plan.engines.len();
            let mut threads = Vec::with_capacity(crowd);
            for (at, rank) in ranks.into_iter().enumerate() {
                let r = envs[at].rank;
                for (e, engine) in plan.engines.iter().enumerate() {
                    let own = Arc::clone(&rank);
                    let body = move || {
                        give_way(crowd);
                        let (profile, records) = engine::run(&own, e);
                        let data_error = own.data_error.lock().take();
                        (profile, records, data_error)
                    };
                    let name = format!("rank-{r}-{engine:?}");
                    match std::thread::Builder::new().name(name).spawn_scoped(scope, body) {
                        Ok(thread) => threads.push((at, thread)),
                        Err(error) => {
                            process.fail(r, "start", &format!("cannot start a thread: {error}"));
                        }
                    }
                }
            }
            let mut ended = |rank, step| {
                cuts.as_mut().zip(pace).is_some_and(|(cuts, pace)| {
                    pace.ended(cuts.step(rank, step, gate.cut()));
                    pace.is_writing()
                })
            };
            let steps = collect(&finished, &process, (world, planned, D::HAS_CLOCK), &mut ended, each);
            let mut results = Results { steps, ..Results::default() };
            results.profiles = envs.iter().map(|_| Profile::new(program.ops.len())).collect();
            results.records = envs.iter().map(|_| Vec::new()).collect();
            let mut failure = None;
            for (at, thread) in threads {
                match thread.join() {
                    Ok((profile, records, data_error)) => {
                        results.profiles[at].add(&profile);
                        results.records[at].extend(records);
                        failure = failure.or(data_error.map(Error::Data));
                    }
                    Err(panic) => process.fail(envs[at].rank, "start", &panic_message(panic.as_ref())),
                }
            }
            // What was begun is written.
            if let Some(pace) = pace {
                pace.hurry();
            }
            drop(cuts);
            if let Some(Err(panic)) = writing.map(std::thread::ScopedJoinHandle::join) {
                process.fail(own[0], "checkpoint", &panic_message(panic.as_ref()));
            }
            watch.end();
            control.leave();
            let read = reading.join().map_err(|panic| {
                Error::Settings(format!("reading data failed: {}", panic_message(panic.as_ref())))
            })?;
            // All processes say the same, whichever of them noticed it first.
            let settled = || {
                let own = process.failures.first()?;
                Some(rank_error(control.settle().unwrap_or(own)))
            };
            if let Some(failure) = failure.or_else(settled) {
                return Err(failure);
            }
            if let Some(clocks) = &mut clocks {
                clocks.after = control.read_clocks();
            }
            on_device::replace(envs, devices, &noted, (program, first), &mut results.records)?;
            for records in &mut results.records {
                *records = record::sort(&plan, std::mem::take(records));
            }
            (results.stopped, results.batch_bytes) = (gate.batches() < planned, read);
            (results.engines, results.clocks) = (plan.engines.clone(), clocks);
            if D::HAS_CLOCK {
                results.issued = device_accounts::issued(program, &results.profiles);
                let Results { steps, profiles, records, .. } = &mut results;
                results.timed = device_accounts::put(&plan, first, &recorded, records, (steps, profiles));
            }
            Ok(results)
        })
    }
}

pub(super) fn rank_error(error: TransportError) -> Error {
    match error {
        TransportError::Failed { rank, op, message } => Error::Rank { rank, op, message },
        TransportError::Sizes(message) => Error::Rank { rank: 0, op: "start of a step".into(), message },
        error => Error::Transport(error),
    }
}

/// How often threads look whether they have waited too long, when nothing else happens: at least, at most.
const TICKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(1));
/// Steps whose events are made ready before the first one.
const READY: u64 = 1 << 16;
/// Steps whose events are made ready at once after those.
const BLOCK: usize = 1024;

/// A step that some ranks have not ended.
struct Open {
    /// Ranks that have.
    parts: usize,
    /// The first rank's start.
    since: u64,
    /// The last one's end.
    until: u64,
    event: StepEvent,
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

/// Takes in where a rank's time of a step went; `before`: work of its engines up to the step before.
fn account(event: &mut StepEvent, part: &Finished, before: &[u64; ENGINES]) {
    let of = |kind: TimeUse| part.split[kind as usize];
    let world = event.accounts.len() as f64;
    let account = Account {
        time: part.at - part.since,
        compute: of(TimeUse::Compute),
        exposed: of(TimeUse::Exposed),
        straggler: of(TimeUse::Straggler),
        host: of(TimeUse::Host),
        other: of(TimeUse::Other),
    };
    event.accounts[part.rank] = account;
    for (mean, own) in [
        (&mut event.compute, account.compute),
        (&mut event.exposed, account.exposed),
        (&mut event.waited, account.straggler),
        (&mut event.host, account.host),
        (&mut event.other, account.other),
    ] {
        *mean += seconds(own) / world;
    }
    // What was done before the first step's time starts cannot be told apart: none of it is counted.
    for (sum, (now, before)) in event.busy.iter_mut().zip(part.busy.iter().zip(before)) {
        *sum += seconds(now - before) / world;
    }
}

/// Puts the ranks' messages together, step by step; `enqueues`: a device has a clock of its own.
fn collect<O: Outbox + 'static>(
    finished: &Receiver<Finished>,
    process: &Process<O>,
    (world, planned, enqueues): (usize, u64, bool),
    done: &mut dyn FnMut(usize, u64) -> bool,
    each: &mut dyn FnMut(&StepEvent),
) -> Vec<StepEvent> {
    let fresh = || StepEvent {
        contributions: vec![0.0; world],
        accounts: vec![Account::default(); world],
        ..StepEvent::default()
    };
    // What is kept of every step has its place before the first one begins.
    let ready = planned.min(READY) as usize;
    let mut blank: Vec<StepEvent> = (0..ready).map(|_| fresh()).collect();
    let mut steps = Vec::with_capacity(ready);
    // Ranks are at most a few steps apart.
    let mut open: VecDeque<Open> = VecDeque::with_capacity(64);
    let mut ended: Option<u64> = None;
    // Work only grows: a step's part is the difference to the rank's message before.
    let mut before: Vec<Option<[u64; ENGINES]>> = vec![None; world];
    let tick = Duration::from_nanos(process.timeout / 4).clamp(TICKS.0, TICKS.1);
    loop {
        let part = match finished.recv_timeout(tick) {
            Ok(part) => part,
            Err(RecvTimeoutError::Disconnected) => break,
            // Who reports from other processes may be gone.
            Err(RecvTimeoutError::Timeout) if process.failures.has_failed() => break,
            Err(RecvTimeoutError::Timeout) => {
                // They sleep without a deadline of their own.
                process.threads.call_all();
                continue;
            }
        };
        let index = open.iter().position(|o| o.event.step == part.step).unwrap_or_else(|| {
            if blank.is_empty() {
                blank.extend((0..BLOCK).map(|_| fresh()));
            }
            let event = blank.pop().unwrap_or_else(fresh);
            let event = StepEvent { step: part.step, ..event };
            open.push_back(Open { parts: 0, since: u64::MAX, until: 0, event });
            open.len() - 1
        });
        let Open { parts, since, until, event } = &mut open[index];
        *parts += 1;
        *since = part.since.min(*since);
        *until = part.at.max(*until);
        event.contributions[part.rank] = part.contribution;
        event.checkpoint |= done(part.rank, part.step);
        event.samples = part.samples;
        event.tokens = part.tokens;
        event.data_wait = event.data_wait.max(seconds(part.data_wait));
        let last = before[part.rank].replace(part.busy).unwrap_or(part.busy);
        // Who only enqueues knows nothing of where time goes.
        if !enqueues {
            account(event, &part, &last);
        }
        while open.front().is_some_and(|o| o.parts == world) {
            let Some(Open { since, until, mut event, .. }) = open.pop_front() else { break };
            event.seconds = seconds(until.saturating_sub(ended.replace(until).unwrap_or(since)));
            each(&event);
            steps.push(event);
        }
    }
    steps
}
