//! How many batches there are: as many as planned, or fewer if somebody wants to stop. All ranks of all processes do
//! the same number.
//!
//! In one process the first rank that asks for a batch decides. Of several processes the first one decides, and the
//! others must not ask it for every batch: it grants batches ahead, more than any process can be ahead of it while it
//! waits for them. A stop takes effect after what has been granted.
//!
//! It also says before which batches checkpoints cut: among those that no rank may have begun, and before any rank may.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pace::Pace;
use crate::transport::TransportError;
use crate::transport::control::Control;
use crate::transport::frame::{BadFrame, FrameKind, Reader, Writer};

/// Says for all ranks alike whether a batch will be trained.
pub(crate) struct Gate {
    /// Set from outside to stop.
    stop: Arc<AtomicBool>,
    planned: u64,
    /// Batches granted ahead.
    ahead: u64,
    control: Arc<dyn Control>,
    /// When checkpoints are left.
    pace: Option<Arc<Pace>>,
    run: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Batches decided on.
    decided: u64,
    /// How many there are at most.
    end: u64,
    /// Batches that any process may begin.
    granted: u64,
    /// The batch before which the last checkpoint cuts.
    cut: Option<u64>,
    /// The end is known.
    fixed: bool,
    /// Another process wants to stop.
    wished: bool,
    /// The first process knows that this one wants to stop.
    told: bool,
    /// Grants on their way out.
    frame: Vec<u8>,
}

/// How often a thread that waits for a grant looks whether the run has failed.
const LOOK: Duration = Duration::from_millis(20);

impl Gate {
    /// For at most `planned` batches, of which a rank holds at most `held` at once.
    pub(crate) fn new(
        stop: &Arc<AtomicBool>,
        planned: u64,
        held: usize,
        control: &Arc<dyn Control>,
        pace: Option<&Arc<Pace>>,
    ) -> Self {
        // Who asks for a batch so far ahead has ended all that the first process can be in.
        let ahead = held as u64 + 1;
        let several = control.processes().len() > 1;
        // Before what nobody has been told of nothing can be cut.
        let granted = match pace {
            _ if !several => planned,
            None => ahead.min(planned),
            Some(_) => 1.min(planned),
        };
        let state = State {
            decided: 0,
            end: planned,
            granted,
            cut: None,
            fixed: false,
            wished: false,
            told: false,
            frame: Vec::new(),
        };
        Self {
            stop: Arc::clone(stop),
            planned,
            ahead,
            control: Arc::clone(control),
            pace: pace.cloned(),
            run: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The number of the run, once it is known.
    pub(crate) fn set_run(&self, run: u64) {
        self.run.store(run, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a batch will be trained; `failed` says that there is no use in waiting.
    pub(crate) fn admit(&self, batch: u64, failed: impl Fn() -> bool) -> Result<bool, TransportError> {
        if self.control.process() == 0 { Ok(self.decide(batch)) } else { self.ask(batch, failed) }
    }

    /// The batch before which the last checkpoint cuts, of those that were admitted.
    pub(crate) fn cut(&self) -> Option<u64> {
        if self.pace.is_some() { self.lock().cut } else { None }
    }

    /// Batches in the end.
    pub(crate) fn batches(&self) -> u64 {
        self.lock().end
    }

    fn decide(&self, batch: u64) -> bool {
        let mut state = self.lock();
        let several = self.control.processes().len() > 1;
        if batch >= state.decided && batch < state.end {
            let before = (state.granted, state.fixed);
            let begun = if several { state.granted } else { batch };
            if !state.fixed && (state.wished || self.stop.load(Ordering::Relaxed)) {
                state.end = if several { state.granted } else { batch };
                state.fixed = true;
            }
            if batch < state.end {
                state.decided = batch + 1;
            }
            if several && !state.fixed {
                state.granted = self.planned.min(state.decided + self.ahead);
            }
            let free = begun..if several { state.granted } else { state.decided.min(state.end) };
            if let Some(cut) = self.pace.as_ref().and_then(|pace| pace.choose(free)) {
                state.cut = Some(cut);
            }
            if several && before != (state.granted, state.fixed) {
                let (granted, fixed) = (state.granted, u64::from(state.fixed));
                let cut = state.cut.map_or(0, |cut| cut + 1);
                Writer::new(&mut state.frame, FrameKind::Grant, self.run.load(Ordering::Acquire))
                    .number(granted)
                    .number(fixed)
                    .number(cut);
                self.control.tell(&state.frame);
            }
        }
        batch < state.end
    }

    fn ask(&self, batch: u64, failed: impl Fn() -> bool) -> Result<bool, TransportError> {
        let until = Instant::now() + self.control.timeout();
        let mut state = self.lock();
        if self.stop.load(Ordering::Relaxed) && !state.told {
            state.told = true;
            let mut frame = Vec::new();
            Writer::new(&mut frame, FrameKind::Stop, self.run.load(Ordering::Acquire));
            self.control.send(0, &frame);
        }
        while batch >= state.granted && batch < state.end && !failed() {
            if Instant::now() >= until {
                return Err(TransportError::Timeout {
                    op: "leave to load".into(),
                    batch: Some(batch),
                    ranks: self.control.processes()[0].clone(),
                    seconds: self.control.timeout().as_secs_f64(),
                });
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(batch < state.end && batch < state.granted)
    }

    /// Takes what another process says: a grant, or its wish to stop.
    pub(crate) fn take(&self, kind: FrameKind, mut reader: Reader<'_>) -> Result<(), BadFrame> {
        let mut state = self.lock();
        if kind == FrameKind::Stop {
            state.wished = true;
            return Ok(());
        }
        let (granted, fixed, cut) = (reader.number()?, reader.number()? != 0, reader.number()?);
        // Said before any batch after it may begin.
        state.cut = cut.checked_sub(1).or(state.cut);
        state.granted = state.granted.max(granted);
        if fixed {
            (state.end, state.fixed) = (granted.min(self.planned), true);
        }
        drop(state);
        self.changed.notify_all();
        reader.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::control::Alone;

    #[test]
    fn alone_a_stop_takes_effect_at_once() {
        let stop = Arc::new(AtomicBool::new(false));
        let control: Arc<dyn Control> = Arc::new(Alone::new(2, Duration::from_secs(1)));
        let gate = Gate::new(&stop, 10, 3, &control, None);
        let admit = |batch| gate.admit(batch, || false).unwrap();
        assert!(admit(0) && admit(1) && admit(0));
        stop.store(true, Ordering::Relaxed);
        assert!(admit(1), "another rank has begun it");
        assert!(!admit(2) && !admit(3));
        assert_eq!(gate.batches(), 2);
    }
}
