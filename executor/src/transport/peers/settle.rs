//! Which failure counts, settled by all processes alike.
//!
//! Everyone waits a moment until all have said what they know of a failure. Who stands still, or is not heard, has not, and
//! those that are left may not know the same: one that is not heard hears what others say, and knows what it has noticed
//! itself. So one process decides, the first that has said anything, and tells the others; if that one is gone, the next. If
//! nothing comes of it, everyone decides for itself.

use std::time::{Duration, Instant};

use super::super::failure::write_failure;
use super::super::frame::FrameKind;
use super::{Shared, State, TransportError};

impl Shared {
    /// The failure that counts; waits for `patience` at most, and half as long again for who decides and began later.
    pub(super) fn settle(&self, patience: Duration) -> Option<TransportError> {
        self.that_counts(&self.lock())?;
        let all_said = |state: &State| {
            let mut processes = state.failures.iter().zip(&state.lost);
            state.verdict.is_some() || processes.all(|(said, lost)| said.is_some() || lost.is_some())
        };
        // Who has said something and is still there.
        let first = |state: &State| {
            let mut processes = state.failures.iter().zip(&state.lost);
            processes.position(|(said, lost)| said.is_some() && lost.is_none())
        };
        let (mut decides, mut counts) = {
            let state = self.wait_until(Instant::now() + patience, all_said);
            if state.verdict.is_some() {
                return state.verdict.clone();
            }
            (first(&state), self.that_counts(&state)?)
        };
        let until = Instant::now() + patience + patience / 2;
        while decides != Some(self.process) {
            let Some(other) = decides else { return Some(counts) };
            let decided = |state: &State| state.verdict.is_some() || state.lost[other].is_some();
            let state = self.wait_until(until, decided);
            if state.verdict.is_some() || state.lost[other].is_none() {
                return Some(state.verdict.clone().unwrap_or(counts));
            }
            (decides, counts) = (first(&state), self.that_counts(&state)?);
        }
        self.lock().verdict = Some(counts.clone());
        if let Some(wire) = self.wire.upgrade() {
            let mut frame = Vec::new();
            write_failure(&mut frame, FrameKind::Verdict, self.process, &counts);
            (0..self.ranks.len()).filter(|p| *p != self.process).for_each(|p| wire.send(p, &frame));
        }
        Some(counts)
    }
}
