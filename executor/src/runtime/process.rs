//! What the threads of this process share while they run a program, whichever ranks they run.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;

use super::finished::Finished;
use super::gate::Gate;
use crate::transport::bytes::Bytes;
use crate::transport::clock::Clock;
use crate::transport::control::{Control, Failures, Listener};
use crate::transport::frame::{BadFrame, FrameKind, Reader, Writer};
use crate::transport::link::EmulatedLink;
use crate::transport::local::Local;
use crate::transport::paced::Paced;
use crate::transport::threads::Threads;
use crate::transport::{CONNECTION, Channel, Outbox, Reach, Transport, TransportError, Turn};

/// What the threads of this process share.
pub(crate) struct Process<O> {
    /// Time since the start of the run.
    pub clock: Clock,
    /// Who sleeps, and on what.
    pub threads: Arc<Threads>,
    /// Whether a rank has failed.
    pub failures: Arc<Failures>,
    /// Hands data from rank to rank.
    pub transport: Arc<dyn Transport<O>>,
    /// Speaks to other processes.
    pub control: Arc<dyn Control>,
    /// Decides for all ranks how many batches there are.
    pub gate: Arc<Gate>,
    /// How long a transfer waits, in nanoseconds.
    pub timeout: u64,
    /// The run's number among those of the processes.
    run: u64,
    /// Reports on their way out.
    frame: Mutex<Vec<u8>>,
}

impl<O: Outbox + 'static> Process<O> {
    /// Runs the ranks that `control` speaks for, with `engines` engines each; `channels` are the
    /// program's, `make` makes outboxes for a rank. What is finished elsewhere is told to `finished`. Waits until all
    /// processes are there.
    pub(crate) fn new(
        control: &Arc<dyn Control>,
        engines: usize,
        channels: &[Channel],
        link: Option<EmulatedLink>,
        gate: &Arc<Gate>,
        finished: &SyncSender<Finished>,
        make: &dyn Fn(usize, Reach) -> O,
    ) -> Result<Self, TransportError> {
        let ranks = control.processes().iter().map(Vec::len).sum();
        let own = &control.processes()[control.process()];
        let threads = Arc::new(Threads::new(ranks, own, engines));
        let failures = Arc::new(Failures::new(&threads));
        let clock = Clock::start();
        let mut run = 0;
        let mut transport: Arc<dyn Transport<O>> = if own.len() == ranks {
            Arc::new(Local::new(ranks, channels, &threads, |rank| make(rank, Reach::Process)))
        } else {
            let bytes =
                Arc::new(Bytes::new(control, channels, &threads, clock, |rank| make(rank, Reach::Bytes)));
            let hearing = Hearing {
                bytes: Arc::clone(&bytes),
                failures: Arc::clone(&failures),
                control: Arc::downgrade(control),
                gate: Arc::clone(gate),
                finished: Mutex::new(Some(finished.clone())),
                ended: Mutex::new((0..control.processes().len()).map(|p| p == control.process()).collect()),
                ranks: control.processes().iter().map(|own| own[0]).collect(),
            };
            run = control.enter(Arc::new(hearing));
            bytes.set_run(run);
            gate.set_run(run);
            // Nobody begins before all listen.
            if let Err(failure) = control.gather("the start of a run", &[]) {
                control.leave();
                return Err(failure);
            }
            bytes
        };
        if let Some(link) = link.filter(|_| ranks > 1) {
            transport = Arc::new(Paced::new(transport, link, ranks, channels.len()));
        }
        let timeout = u64::try_from(control.timeout().as_nanos()).unwrap_or(u64::MAX);
        let (control, gate) = (Arc::clone(control), Arc::clone(gate));
        Ok(Self { clock, threads, failures, transport, control, gate, timeout, run, frame: Mutex::default() })
    }

    /// Tells every thread of every rank that a rank of this process cannot go on. The first failure wins.
    pub(crate) fn fail(&self, rank: usize, op: &str, message: &str) {
        self.fail_with(&TransportError::Failed { rank, op: op.into(), message: message.into() });
    }

    /// The same with a failure that is already put together.
    pub(crate) fn fail_with(&self, failure: &TransportError) {
        if failure.is_stall() {
            self.control.freeze();
        }
        if self.failures.set(failure) {
            self.control.fail(failure);
        }
    }

    /// Says which ranks have not posted a turn, for as long as anybody asks.
    pub(crate) fn missing(&self) -> impl Fn(Turn) -> Vec<usize> + Send + Sync + 'static {
        let transport = Arc::clone(&self.transport);
        move |turn| transport.missing(turn)
    }

    /// Tells other processes of a rank's part of a batch.
    pub(crate) fn report(&self, finished: &Finished) {
        if self.control.processes().len() > 1 {
            let mut frame = self.frame.lock();
            finished.write(Writer::new(&mut frame, FrameKind::Report, self.run));
            self.control.tell(&frame);
        }
    }

    /// To be held by all who report: when nobody does any more, other processes know that nothing more comes.
    pub(crate) fn ending(&self) -> Ending {
        Ending { control: Arc::clone(&self.control), run: self.run }
    }
}

/// Says at its end that this process's ranks have reported everything.
pub(crate) struct Ending {
    control: Arc<dyn Control>,
    run: u64,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.control.processes().len() > 1 {
            let mut frame = Vec::new();
            Writer::new(&mut frame, FrameKind::Ended, self.run);
            self.control.tell(&frame);
        }
    }
}

/// Hears what other processes send of a run.
struct Hearing<O> {
    bytes: Arc<Bytes<O>>,
    failures: Arc<Failures>,
    /// Not held, because the control holds this.
    control: Weak<dyn Control>,
    gate: Arc<Gate>,
    /// Until nothing more comes.
    finished: Mutex<Option<SyncSender<Finished>>>,
    /// Processes that have reported everything; this one counts as such.
    ended: Mutex<Vec<bool>>,
    /// The first rank of each process.
    ranks: Vec<usize>,
}

impl<O: Outbox> Hearing<O> {
    fn take(&self, process: usize, frame: &[u8], seen: Instant) -> Result<(), BadFrame> {
        let (kind, _, reader) = Reader::new(frame)?;
        match kind {
            FrameKind::Data => self.bytes.deliver(process, reader, seen)?,
            FrameKind::Report => {
                let finished = Finished::read(reader, self.bytes.clock().at(seen))?;
                let sender = self.finished.lock().clone();
                // Nobody listens any more only when the run is being torn down.
                if let Some(sender) = sender {
                    let _ = sender.send(finished);
                }
            }
            FrameKind::Ended => {
                let mut ended = self.ended.lock();
                ended[process] = true;
                if ended.iter().all(|ended| *ended) {
                    *self.finished.lock() = None;
                }
            }
            FrameKind::Grant | FrameKind::Stop => self.gate.take(kind, reader)?,
            // The control's own.
            FrameKind::Failure
            | FrameKind::Gather
            | FrameKind::Ask
            | FrameKind::Where
            | FrameKind::Tick
            | FrameKind::Tock
            | FrameKind::Verdict
            | FrameKind::Working => {}
        }
        Ok(())
    }
}

impl<O: Outbox> Listener for Hearing<O> {
    fn frame(&self, process: usize, frame: &[u8], seen: Instant) {
        if let Err(error) = self.take(process, frame, seen) {
            let (rank, op) = (self.ranks[process], CONNECTION.into());
            let failure = TransportError::Failed { rank, op, message: error.to_string() };
            self.failed(&failure);
            if let Some(control) = self.control.upgrade() {
                control.fail(&failure);
            }
        }
    }

    fn failed(&self, failure: &TransportError) {
        self.failures.set(failure);
        *self.finished.lock() = None;
    }

    fn waits_for(&self, process: usize) -> bool {
        !self.ended.lock()[process]
    }
}
