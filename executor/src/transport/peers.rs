//! Control over other processes, by frames.
//!
//! What comes for the run under way goes to its listener; what comes for a later one, because its sender is ahead,
//! waits until that begins. A gathering has a number, by which processes that are apart do not mix two.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::TransportError;
use super::control::{Control, Listener};
use super::frame::{BadFrame, FrameKind, Reader, Writer};
use super::wire::{Sink, World};

/// Speaks to the other processes of a world.
#[derive(Debug)]
pub struct Peers {
    world: World,
    timeout: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The first rank of each process.
    ranks: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Runs begun.
    runs: u64,
    listener: Option<Arc<dyn Listener>>,
    /// The listener of the present run is being told what came early.
    entering: bool,
    /// Frames of runs to come, with their sender.
    early: VecDeque<(u64, usize, Vec<u8>, Instant)>,
    /// Gatherings done.
    gathered: u64,
    /// Contributions: number, process, what for, bytes.
    parts: Vec<(u64, usize, String, Vec<u8>)>,
    /// Why nothing more comes of a process.
    lost: Vec<Option<String>>,
    failure: Option<TransportError>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("runs", &self.runs)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_failure(&self, failure: &TransportError) {
        let listener = {
            let mut state = self.lock();
            state.failure.get_or_insert_with(|| failure.clone());
            state.listener.clone()
        };
        self.changed.notify_all();
        if let Some(listener) = listener {
            listener.failed(failure);
        }
    }

    fn gone(&self, process: usize, reason: &str) -> TransportError {
        TransportError::Failed {
            rank: self.ranks[process],
            op: "connection".into(),
            message: format!("its process is gone: {reason}"),
        }
    }

    fn take(&self, process: usize, frame: &[u8], seen: Instant) -> Result<(), BadFrame> {
        let (kind, run, mut reader) = Reader::new(frame)?;
        match kind {
            FrameKind::Failure => {
                let failure = read_failure(&mut reader)?;
                self.set_failure(&failure);
            }
            FrameKind::Gather => {
                let what = reader.text()?.to_owned();
                self.lock().parts.push((run, process, what, reader.rest().to_vec()));
                self.changed.notify_all();
            }
            FrameKind::Data | FrameKind::Report | FrameKind::Ended | FrameKind::Grant | FrameKind::Stop => {
                let listener = {
                    let mut state = self.lock();
                    if run > state.runs || run == state.runs && state.entering {
                        state.early.push_back((run, process, frame.to_vec(), seen));
                        return Ok(());
                    }
                    // Of a run that is over, after a failure.
                    state.listener.clone().filter(|_| run == state.runs)
                };
                if let Some(listener) = listener {
                    listener.frame(process, frame, seen);
                }
            }
        }
        Ok(())
    }
}

impl Sink for Shared {
    fn frame(&self, process: usize, frame: &[u8], seen: Instant) {
        if let Err(error) = self.take(process, frame, seen) {
            self.set_failure(&TransportError::Failed {
                rank: self.ranks[process],
                op: "connection".into(),
                message: error.to_string(),
            });
        }
    }

    fn lost(&self, process: usize, reason: &str) {
        let listener = {
            let mut state = self.lock();
            state.lost[process].get_or_insert_with(|| reason.to_owned());
            state.listener.clone()
        };
        self.changed.notify_all();
        // Who has come to the end may go.
        if let Some(listener) = listener.filter(|l| l.waits_for(process)) {
            listener.failed(&self.gone(process, reason));
        }
    }
}

impl Peers {
    /// Speaks to the others of `world`; `timeout` is how long anything is waited for.
    pub fn new(world: World, timeout: Duration) -> Self {
        let ranks = world.processes.iter().map(|own| own[0]).collect();
        let state = State { lost: vec![None; world.processes.len()], ..State::default() };
        let shared = Arc::new(Shared { ranks, state: Mutex::new(state), changed: Condvar::new() });
        world.wire.start(Arc::clone(&shared) as Arc<dyn Sink>);
        Self { world, timeout, shared }
    }
}

impl Control for Peers {
    fn processes(&self) -> &[Vec<usize>] {
        &self.world.processes
    }

    fn process(&self) -> usize {
        self.world.process
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn gather(&self, what: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, TransportError> {
        let until = Instant::now() + self.timeout;
        let number = {
            let mut state = self.shared.lock();
            state.gathered += 1;
            state.gathered
        };
        let mut frame = Vec::new();
        Writer::new(&mut frame, FrameKind::Gather, number).text(what).bytes(own);
        self.tell(&frame);
        let mut found: Vec<Option<Vec<u8>>> = vec![None; self.world.processes.len()];
        found[self.world.process] = Some(own.to_vec());
        let mut state = self.shared.lock();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let mut at = 0;
            while at < state.parts.len() {
                if state.parts[at].0 != number {
                    at += 1;
                    continue;
                }
                let (_, process, of, bytes) = state.parts.swap_remove(at);
                if of != what {
                    let failure = TransportError::Differ {
                        name: "what is gathered".into(),
                        rank: self.shared.ranks[self.world.process],
                        own: what.into(),
                        other_rank: self.shared.ranks[process],
                        other: of,
                    };
                    drop(state);
                    self.fail(&failure);
                    return Err(failure);
                }
                found[process] = Some(bytes);
            }
            let missing: Vec<usize> = (0..found.len()).filter(|p| found[*p].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            let gone = missing.iter().find_map(|p| Some((*p, state.lost[*p].clone()?)));
            let left = until.saturating_duration_since(Instant::now());
            let failure = if let Some((process, reason)) = gone {
                self.shared.gone(process, &reason)
            } else if left.is_zero() {
                let ranks = missing.iter().flat_map(|p| self.world.processes[*p].clone()).collect();
                TransportError::Timeout {
                    op: what.into(),
                    batch: None,
                    ranks,
                    seconds: self.timeout.as_secs_f64(),
                }
            } else {
                let waited = self.shared.changed.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(state);
            self.fail(&failure);
            return Err(failure);
        }
        drop(state);
        Ok(found.into_iter().flatten().collect())
    }

    fn send(&self, process: usize, frame: &[u8]) {
        self.world.wire.send(process, frame);
    }

    fn fail(&self, failure: &TransportError) {
        let first = {
            let mut state = self.shared.lock();
            let first = state.failure.is_none();
            state.failure.get_or_insert_with(|| failure.clone());
            first
        };
        self.shared.changed.notify_all();
        if first {
            let mut frame = Vec::new();
            write_failure(&mut frame, failure);
            self.tell(&frame);
        }
    }

    fn failure(&self) -> Option<TransportError> {
        self.shared.lock().failure.clone()
    }

    fn enter(&self, listener: Arc<dyn Listener>) -> u64 {
        let mut state = self.shared.lock();
        state.runs += 1;
        state.entering = true;
        let run = state.runs;
        // In order: nothing that comes now may pass what came before.
        while let Some(at) = state.early.iter().position(|(of, ..)| *of == run) {
            let Some((_, process, frame, seen)) = state.early.remove(at) else { break };
            drop(state);
            listener.frame(process, &frame, seen);
            state = self.shared.lock();
        }
        state.entering = false;
        state.listener = Some(Arc::clone(&listener));
        let failure = state.failure.clone();
        let lost: Vec<(usize, String)> =
            state.lost.iter().enumerate().filter_map(|(p, lost)| Some((p, lost.clone()?))).collect();
        drop(state);
        if let Some(failure) = failure {
            listener.failed(&failure);
        }
        for (process, reason) in lost.iter().filter(|(process, _)| listener.waits_for(*process)) {
            listener.failed(&self.shared.gone(*process, reason));
        }
        run
    }

    fn leave(&self) {
        self.shared.lock().listener = None;
    }
}

fn write_failure(frame: &mut Vec<u8>, failure: &TransportError) {
    let numbers = |writer: Writer<'_>, ranks: &[usize]| {
        ranks.iter().fold(writer, |w, rank| w.number(*rank as u64));
    };
    let writer = Writer::new(frame, FrameKind::Failure, 0);
    match failure {
        TransportError::Failed { rank, op, message } => {
            writer.number(0).number(*rank as u64).text(op).text(message);
        }
        TransportError::Sizes(message) => {
            writer.number(1).text(message);
        }
        TransportError::Timeout { op, batch, ranks, seconds } => {
            let batch = batch.map_or(0, |batch| batch + 1);
            let writer = writer.number(2).text(op).number(batch).number(seconds.to_bits());
            numbers(writer.number(ranks.len() as u64), ranks);
        }
        TransportError::Differ { name, rank, own, other_rank, other } => {
            let ranks = [*rank, *other_rank];
            numbers(writer.number(3).text(name).text(own).text(other), &ranks);
        }
    }
}

fn read_failure(reader: &mut Reader<'_>) -> Result<TransportError, BadFrame> {
    Ok(match reader.number()? {
        0 => TransportError::Failed {
            rank: reader.size()?,
            op: reader.text()?.into(),
            message: reader.text()?.into(),
        },
        1 => TransportError::Sizes(reader.text()?.into()),
        2 => {
            let (op, batch) = (reader.text()?.to_owned(), reader.number()?.checked_sub(1));
            let (seconds, n) = (f64::from_bits(reader.number()?), reader.size()?);
            let ranks = (0..n).map(|_| reader.size()).collect::<Result<_, _>>()?;
            TransportError::Timeout { op, batch, ranks, seconds }
        }
        _ => {
            let (name, own, other) = (reader.text()?.into(), reader.text()?.into(), reader.text()?.into());
            TransportError::Differ { name, rank: reader.size()?, own, other_rank: reader.size()?, other }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_travel() {
        let failures = [
            TransportError::Failed { rank: 3, op: "rows".into(), message: "out of luck".into() },
            TransportError::Sizes("3 of 4".into()),
            TransportError::Timeout { op: "ids".into(), batch: Some(0), ranks: vec![1, 2], seconds: 0.5 },
            TransportError::Timeout { op: "end".into(), batch: None, ranks: Vec::new(), seconds: 2.0 },
            TransportError::Differ {
                name: "seed".into(),
                rank: 0,
                own: "1".into(),
                other_rank: 2,
                other: "7".into(),
            },
        ];
        for failure in failures {
            let mut frame = Vec::new();
            write_failure(&mut frame, &failure);
            let (kind, _, mut reader) = Reader::new(&frame).unwrap();
            assert_eq!(kind, FrameKind::Failure);
            assert_eq!(read_failure(&mut reader).unwrap(), failure);
            reader.end().unwrap();
        }
    }
}
