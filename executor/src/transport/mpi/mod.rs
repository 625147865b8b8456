//! Ranks in several processes that MPI joins: what carries frames between them, and who is who.
//!
//! One thread of a process makes all calls of MPI ([`calls`]) and carries all frames ([`courier`]); ranks hand it frames and
//! never wait for it. MPI makes progress only when it is called, and most MPIs spin while they wait, so nothing here waits
//! in MPI: the thread asks what is done and sleeps between, for longer the longer nothing has come, and is woken by whoever
//! hands it a frame. No core is taken from compute; a message is noticed up to a sleep after it has come.
//!
//! The end of one process is the end of all. After an error each says why it ends, waits a moment for the others to do
//! so, and aborts the job.

mod apart;
mod calls;
mod courier;
mod mailbox;
mod pace;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::calls::Mpi;
use self::courier::{CONTROL, Courier, HEADER, Messages};
use self::mailbox::End;
use super::launch::launched;
use super::wire::{Sink, Wire, World};

/// Why processes cannot be joined, or their wire broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// Started by no launcher.
    #[error(
        "`--transport mpi` needs a launcher, which starts a process for each rank or for several: `mpirun -n 4 fsx run S.json`, or `srun --mpi=pmix -n 4 fsx run S.json`"
    )]
    NotLaunched,
    /// A launcher that this MPI does not know.
    #[error(
        "{launcher} has started {processes} processes, and MPI sees one: it was built without this launcher; try `srun --mpi=pmix` or mpirun of the same MPI"
    )]
    Alone {
        /// Who has started this process.
        launcher: &'static str,
        /// How many it has started.
        processes: usize,
    },
    /// More processes than ranks.
    #[error(
        "{processes} processes for {ranks} rank(s): start at most one a rank, or compile for more with `fsc compile --ranks {processes}`"
    )]
    Processes {
        /// Processes.
        processes: usize,
        /// Ranks.
        ranks: usize,
    },
    /// MPI was started by somebody else.
    #[error("MPI was started in this process before")]
    StartedBefore,
    /// MPI may not be called by a thread of a process of several.
    #[error("this MPI does not allow processes with threads (MPI_THREAD_FUNNELED)")]
    Threads,
    /// MPI has not started in time: it waits for all processes of the job.
    #[error(
        "MPI has not started within {} s: a process of this job is gone, or its host cannot be reached; see what the launcher says of it, or give it longer with `--timeout SECONDS`",
        .timeout.as_secs_f64()
    )]
    Late {
        /// For how long it was waited for.
        timeout: Duration,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// The call.
        call: &'static str,
        /// What MPI says of it.
        reason: String,
    },
    /// A message that no process of this version sends.
    #[error("process {from} has sent what is not a message of this version")]
    Message {
        /// The sender.
        from: usize,
    },
    /// The thread that calls MPI is gone.
    #[error("the thread that speaks MPI has ended")]
    Gone,
}

/// How long the thread sleeps when nothing was done: after a burst, after a while, and after long.
const SLEEPS: [(Duration, Duration); 3] = [
    (Duration::from_millis(5), Duration::from_micros(40)),
    (Duration::from_millis(200), Duration::from_micros(200)),
    (Duration::MAX, Duration::from_millis(1)),
];
/// How long processes that end after an error wait for each other.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How exactly the system wakes it, in nanoseconds.
const TIMER_SLACK: u64 = 1_000;

impl std::fmt::Debug for dyn Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a sink")
    }
}

/// What ranks' threads hand over.
type Mailbox = mailbox::Mailbox<Arc<dyn Sink>>;

/// The wire that MPI is.
#[derive(Debug)]
struct MpiWire(Arc<Mailbox>);

impl Wire for MpiWire {
    fn start(&self, sink: Arc<dyn Sink>) {
        self.0.listen(sink);
    }

    fn send(&self, process: usize, frame: &[u8]) {
        self.0.hand(process, CONTROL, frame.len(), &mut |bytes| bytes.extend_from_slice(frame));
    }

    fn send_data(
        &self,
        process: usize,
        (priority, bytes): (i32, usize),
        _: &mut Vec<u8>,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) {
        self.0.hand(process, i64::from(priority), bytes, write);
    }
}

/// This process among those that a launcher has started together.
#[derive(Debug)]
pub struct Job {
    process: usize,
    processes: usize,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<Result<(), MpiError>>>,
}

impl Job {
    /// Starts MPI. Whoever says nothing for `timeout` counts as lost.
    ///
    /// # Errors
    /// If no launcher has started this process, or MPI does not start, or not in that time. Then the thread that starts it is
    /// left behind.
    pub fn join(timeout: Duration) -> Result<Self, MpiError> {
        let launched = launched().ok_or(MpiError::NotLaunched)?;
        let mailbox = Arc::new(Mailbox::new(HEADER));
        let (started, place) = sync_channel(1);
        let own = Arc::clone(&mailbox);
        let run = move || speak(&own, timeout, &started);
        let thread = std::thread::Builder::new().name("mpi".into()).spawn(run);
        let thread = thread.map_err(|e| MpiError::Call { call: "spawn", reason: e.to_string() })?;
        let (process, processes) = wait_for_place(&place, timeout)?;
        if processes == 1 && launched.processes > 1 {
            return Err(MpiError::Alone { launcher: launched.by, processes: launched.processes });
        }
        Ok(Self { process, processes, mailbox, thread: Some(thread) })
    }

    /// The number of this process, and of all.
    pub fn place(&self) -> (usize, usize) {
        (self.process, self.processes)
    }

    /// The world of so many ranks, of which each process runs some that follow each other.
    ///
    /// # Errors
    /// If there are more processes than ranks.
    pub fn world(&self, ranks: usize) -> Result<World, MpiError> {
        if ranks < self.processes {
            return Err(MpiError::Processes { processes: self.processes, ranks });
        }
        let first = |process: usize| process * ranks / self.processes;
        let processes = (0..self.processes).map(|p| (first(p)..first(p + 1)).collect()).collect();
        Ok(World { processes, process: self.process, wire: Arc::new(MpiWire(Arc::clone(&self.mailbox))) })
    }

    fn end(&mut self, end: End) -> Result<(), MpiError> {
        self.mailbox.end(end);
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(MpiError::Gone)))
    }

    /// Waits until all processes have come here, and ends MPI.
    ///
    /// # Errors
    /// If a process is lost before it has come here.
    pub fn finish(mut self) -> Result<(), MpiError> {
        self.end(End::Finish)
    }

    /// Tells the others why this process ends, waits a moment until they end too, and aborts the job.
    pub fn abort(mut self, reason: &str, status: u8) -> ! {
        let _ = self.end(End::Abort(reason.to_owned(), i32::from(status)));
        std::process::exit(i32::from(status))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end(End::Abort("it has ended".into(), 1));
        }
    }
}

fn wait_for_place(
    place: &Receiver<Result<(usize, usize), MpiError>>,
    timeout: Duration,
) -> Result<(usize, usize), MpiError> {
    place.recv_timeout(timeout).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => Err(MpiError::Late { timeout }),
        RecvTimeoutError::Disconnected => Err(MpiError::Gone),
    })
}

/// What the thread does, from MPI's start to its end.
fn speak(
    mailbox: &Arc<Mailbox>,
    timeout: Duration,
    started: &SyncSender<Result<(usize, usize), MpiError>>,
) -> Result<(), MpiError> {
    mailbox.attach();
    // Without it short sleeps are half as long again; what cannot be had is not needed.
    let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK);
    let mpi = match Mpi::start() {
        Ok(mpi) => mpi,
        Err(error) => {
            let _ = started.send(Err(error.clone()));
            return Err(error);
        }
    };
    let place = mpi.place();
    let _ = started.send(Ok(place));
    let mut courier = Courier::new(mpi, place, timeout, Instant::now())?;
    let outcome = carry(mailbox, &mut courier, timeout);
    mailbox.close();
    match outcome {
        Ok(End::Finish) => Ok(()),
        Ok(End::Abort(_, status)) => courier.into_messages().abort(status),
        Err(error) => {
            // Nothing can be said any more; whoever waits for others learns it here.
            courier.lose_all(&error.to_string());
            wait_for_end(mailbox);
            courier.into_messages().abort(1)
        }
    }
}

fn wait_for_end(mailbox: &Mailbox) {
    let until = Instant::now() + LAST_WORDS;
    while !mailbox.is_ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Carries frames until the end is said and all is done for it.
fn carry<M: Messages>(
    mailbox: &Mailbox,
    courier: &mut Courier<M>,
    timeout: Duration,
) -> Result<End, MpiError> {
    let mut frames = Vec::new();
    let mut busy = Instant::now();
    // The end, since when, and whether the others have been told.
    let mut ending: Option<(End, Instant, bool)> = None;
    loop {
        let (sink, end) = mailbox.take(&mut frames, || courier.spare());
        let now = Instant::now();
        let mut moved = !frames.is_empty();
        if let Some(sink) = sink {
            courier.listen(sink);
        }
        frames.drain(..).for_each(|frame| courier.take(frame));
        moved |= courier.step(now)?;
        if let Some(end) = end {
            ending = Some((end, now, false));
        }
        if let Some((end, since, told)) = &mut ending {
            let (reason, patience) = match end {
                End::Finish => ("it has come to its end", timeout),
                End::Abort(reason, _) => (reason.as_str(), LAST_WORDS / 2),
            };
            let late = now.saturating_duration_since(*since) > patience;
            if !*told && (courier.is_idle() || late) {
                courier.bye(reason, now)?;
                (*told, *since) = (true, now);
            } else if *told && (courier.all_said_bye() || late) {
                return Ok(end.clone());
            }
        }
        if moved {
            busy = now;
            continue;
        }
        let idle = now.saturating_duration_since(busy);
        let (_, sleep) = SLEEPS[SLEEPS.iter().position(|(most, _)| idle < *most).unwrap_or(SLEEPS.len() - 1)];
        mailbox.sleep(Some(now + sleep));
    }
}
