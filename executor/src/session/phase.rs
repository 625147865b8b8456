//! One program over a range of steps, on all ranks.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use fs_kernels::Real;
use fs_schedule::Program;

use crate::data::reader::{Delivery, reader};
use crate::data::{DataError, Source};
use crate::error::Error;
use crate::runtime::dispatch::{self, Stopped};
use crate::runtime::profile::Profile;
use crate::runtime::{Env, Fault};
use crate::transport::TransportError;

/// A step that all ranks have finished.
#[derive(Debug, Clone, Default)]
pub struct StepEvent {
    /// From 0.
    pub step: u64,
    /// Each rank's contribution to the loss; their sum is the loss of the global batch.
    pub contributions: Vec<f64>,
    /// Samples of the global batch.
    pub samples: u64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Duration on the slowest rank, from the moment all were ready.
    pub seconds: f64,
    /// Longest wait of a rank for its batch.
    pub data_wait: f64,
    /// Mean time that ranks waited for others.
    pub waited: f64,
}

impl StepEvent {
    /// The loss of the global batch.
    pub fn loss(&self) -> f64 {
        self.contributions.iter().sum()
    }

    /// Each rank's loss, so that their mean is the loss.
    pub fn loss_per_rank(&self) -> Vec<f64> {
        self.contributions.iter().map(|c| c * self.contributions.len() as f64).collect()
    }
}

/// What a phase gave.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) steps: Vec<StepEvent>,
    pub(super) profiles: Vec<Profile>,
    /// Ended early because it was told to.
    pub(super) stopped: bool,
    /// Memory of the batches read ahead.
    pub(super) batch_bytes: usize,
}

pub(super) struct Phase<'a> {
    pub(super) program: &'a Program,
    pub(super) steps: std::ops::Range<u64>,
    pub(super) source: &'a mut dyn Source,
    pub(super) stop: &'a AtomicBool,
}

/// A rank's part of a finished step.
struct Finished {
    rank: usize,
    step: u64,
    contribution: f64,
    samples: u64,
    tokens: u64,
    seconds: f64,
    data_wait: f64,
    waited: f64,
}

/// Why a rank stopped.
enum Failure {
    Data(Arc<DataError>),
    /// The first failure of any rank, as the transport tells everyone.
    Rank(TransportError),
}

struct RankDone {
    profile: Profile,
    stopped: bool,
}

impl Phase<'_> {
    pub(super) fn run<T: Real>(
        self,
        ranks: &mut [Env<T>],
        each: &mut dyn FnMut(&StepEvent),
    ) -> Result<Results, Error> {
        let Self { program, steps, source, stop } = self;
        let world = ranks.len();
        let (reader, batches) = reader(world);
        let (sender, finished) = channel();
        std::thread::scope(|scope| {
            let range = steps.clone();
            let name = "rank-reader".to_owned();
            let reading =
                std::thread::Builder::new().name(name).spawn_scoped(scope, move || reader.run(source, range));
            let reading =
                reading.map_err(|e| Error::Settings(format!("cannot start the reader's thread: {e}")))?;
            let mut threads = Vec::with_capacity(world);
            for (env, batches) in ranks.iter_mut().zip(batches) {
                let (sender, steps) = (sender.clone(), steps.clone());
                let body = move || rank_thread(env, program, steps, &batches, &sender, stop);
                let name = format!("rank-{}", threads.len());
                let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, body);
                threads.push(
                    thread.map_err(|e| Error::Settings(format!("cannot start a thread for a rank: {e}")))?,
                );
            }
            drop(sender);
            let mut results = Results { steps: collect(&finished, world, each), ..Results::default() };
            let mut failure = None;
            for (rank, thread) in threads.into_iter().enumerate() {
                match thread.join() {
                    Ok(Ok(done)) => {
                        results.stopped |= done.stopped;
                        results.profiles.push(done.profile);
                    }
                    Ok(Err(Failure::Data(error))) => failure = Some(Error::Data(error)),
                    Ok(Err(Failure::Rank(error))) => failure = failure.or(Some(rank_error(rank, error))),
                    Err(panic) => {
                        let (op, message) = ("start".into(), panic_message(panic.as_ref()));
                        failure = failure.or(Some(Error::Rank { rank, op, message }));
                    }
                }
            }
            let read = reading.join().map_err(|panic| {
                Error::Settings(format!("reading data failed: {}", panic_message(panic.as_ref())))
            })?;
            match failure {
                Some(failure) => Err(failure),
                None => Ok(Results { batch_bytes: read, ..results }),
            }
        })
    }
}

fn rank_error(rank: usize, error: TransportError) -> Error {
    match error {
        TransportError::Failed { rank, op, message } => Error::Rank { rank, op, message },
        TransportError::Sizes(message) => Error::Rank { rank, op: "start of a step".into(), message },
    }
}

/// Puts the ranks' messages together, step by step.
fn collect(finished: &Receiver<Finished>, world: usize, each: &mut dyn FnMut(&StepEvent)) -> Vec<StepEvent> {
    let mut steps = Vec::new();
    // Ranks are at most a few steps apart.
    let mut open: VecDeque<(usize, StepEvent)> = VecDeque::new();
    for part in finished {
        let index = open.iter().position(|(_, e)| e.step == part.step).unwrap_or_else(|| {
            let event =
                StepEvent { step: part.step, contributions: vec![0.0; world], ..StepEvent::default() };
            open.push_back((0, event));
            open.len() - 1
        });
        let (parts, event) = &mut open[index];
        *parts += 1;
        event.contributions[part.rank] = part.contribution;
        event.samples = part.samples;
        event.tokens = part.tokens;
        event.seconds = event.seconds.max(part.seconds);
        event.data_wait = event.data_wait.max(part.data_wait);
        event.waited += part.waited / world as f64;
        while open.front().is_some_and(|(parts, _)| *parts == world) {
            let Some((_, event)) = open.pop_front() else { break };
            each(&event);
            steps.push(event);
        }
    }
    steps
}

fn rank_thread<T: Real>(
    env: &mut Env<T>,
    program: &Program,
    steps: std::ops::Range<u64>,
    batches: &Receiver<Delivery>,
    finished: &Sender<Finished>,
    stop: &AtomicBool,
) -> Result<RankDone, Failure> {
    // Where the rank is, for the message if it panics.
    let mut at = usize::MAX;
    let body = AssertUnwindSafe(|| rank_steps(env, program, steps, batches, finished, stop, &mut at));
    let outcome = catch_unwind(body).unwrap_or_else(|panic| {
        let op = program.ops.get(at).map_or("start of a step", |op| op.name.as_str());
        env.transport.lock().poison(op, &panic_message(panic.as_ref()));
        Err(Broken::Poisoned)
    });
    match outcome {
        Ok(done) => Ok(done),
        Err(Broken::Data(error)) => Err(Failure::Data(error)),
        Err(Broken::Op(Stopped { op, fault })) => {
            // A failure that came through the transport is already known to everyone.
            if !matches!(fault, Fault::Transport(TransportError::Failed { .. })) {
                env.transport.lock().poison(&op, &fault.to_string());
            }
            Err(first_failure(env))
        }
        Err(Broken::Transport(_) | Broken::Poisoned) => Err(first_failure(env)),
        Err(Broken::NoData) => {
            env.transport.lock().poison("reading data", "the reader stopped");
            Err(first_failure(env))
        }
    }
}

/// The failure that poisoned the transport.
fn first_failure<T: Real>(env: &Env<T>) -> Failure {
    let unknown = TransportError::Sizes("it stopped without a reason".into());
    Failure::Rank(env.transport.lock().any(true).err().unwrap_or(unknown))
}

enum Broken {
    Data(Arc<DataError>),
    NoData,
    Op(Stopped),
    Transport(#[expect(dead_code, reason = "the first failure is asked for instead")] TransportError),
    Poisoned,
}

fn rank_steps<T: Real>(
    env: &mut Env<T>,
    program: &Program,
    steps: std::ops::Range<u64>,
    batches: &Receiver<Delivery>,
    finished: &Sender<Finished>,
    stop: &AtomicBool,
    at: &mut usize,
) -> Result<RankDone, Broken> {
    let mut profile = Profile::new(program.ops.len());
    for step in steps {
        *at = usize::MAX;
        let asked = Instant::now();
        let batch = match batches.recv() {
            Ok(Ok(batch)) => batch,
            Ok(Err(error)) => return Err(Broken::Data(error)),
            Err(_) => return Err(Broken::NoData),
        };
        let data_wait = asked.elapsed().as_secs_f64();
        if env.transport.lock().any(stop.load(Ordering::Relaxed)).map_err(Broken::Transport)? {
            return Ok(RankDone { profile, stopped: true });
        }
        let (samples, tokens) = (batch.samples as u64, batch.tokens() as u64);
        *env.next.lock() = Some((step, batch));
        *env.loss.lock() = 0.0;
        let waited = env.transport.lock().waited();
        let start = Instant::now();
        dispatch::run(env, program, &mut profile, at).map_err(Broken::Op)?;
        let seconds = start.elapsed().as_secs_f64();
        let waited = env.transport.lock().waited().saturating_sub(waited).as_secs_f64();
        let contribution = *env.loss.lock();
        let rank = env.rank;
        let part = Finished { rank, step, contribution, samples, tokens, seconds, data_wait, waited };
        // Nobody listens any more only when the run is being torn down.
        let _ = finished.send(part);
    }
    Ok(RankDone { profile, stopped: false })
}

/// The text of a panic.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".into())
}
