//! When a simulation repeats itself.
//!
//! Engines that work on batch after batch soon do the same for each. Whatever happens after a batch has ended follows from what is
//! under way then: which operations of later batches have started, what each engine and queue is at and for how long, and what
//! still lags. Keys, waits and what is ready follow from these, and are a batch later what they were for the batch before. So if all of
//! it is as it was when the batch before had ended, all that follows is what followed then, as much later as it took from one to the
//! other, and need not be simulated. Times are those of batches without end, so all of this is before the last batch has begun: what
//! runs ahead has nothing to do when there are no more.

use super::{Running, Simulator};

/// Not there.
const NONE: u64 = u64::MAX;

/// What is under way when batches have ended.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Batches that have ended.
    ended: usize,
    /// When the last of them had, and what was under way then, counted from it.
    at: Option<u64>,
    state: Vec<u64>,
    now: Vec<u64>,
}

impl Repeats {
    /// Before anything has started.
    pub(super) fn clear(&mut self) {
        (self.ended, self.at) = (0, None);
    }
}

impl Simulator<'_> {
    /// Whether all that comes is what came after the batch before had ended; then it is put down.
    pub(super) fn repeats(&mut self, now: u64) -> bool {
        let before = self.repeats.ended;
        let ended = before + self.left[before..].iter().take_while(|left| **left == 0).count();
        if ended == before {
            return false;
        }
        let mut state = std::mem::take(&mut self.repeats.now);
        self.state(now, ended, &mut state);
        let endless = self.begun < self.batches;
        let repeats = &mut self.repeats;
        let alike = ended == before + 1 && endless && state == repeats.state;
        let since = repeats.at.replace(now).filter(|_| alike);
        repeats.now = std::mem::replace(&mut repeats.state, state);
        repeats.ended = ended;
        if let Some(since) = since {
            self.repeat(ended, now - since);
        }
        since.is_some()
    }

    /// All that is under way when so many batches have ended, counted from these and from now.
    fn state(&self, now: u64, ended: usize, state: &mut Vec<u64>) {
        let n = self.work.graph.n;
        let of = |op: u32, batch: u32| u64::from(op) << 32 | u64::from(batch.wrapping_sub(ended as u32));
        state.clear();
        let begun = ended * n..self.begun.max(ended) * n;
        state.push(begun.len() as u64);
        // What has started and is neither under way nor interrupted has ended.
        let started = |word: u64, start: &u64| word << 1 | u64::from(*start != NONE);
        state.extend(self.times.start[begun].chunks(64).map(|starts| starts.iter().fold(0, started)));
        for running in &self.running {
            let Some(Running { instance, since, until, stops, .. }) = running else {
                state.push(NONE);
                continue;
            };
            let stops = stops.map_or(NONE, |stops| stops - now);
            state.extend([of(instance.op, instance.batch), now - since, until - now, stops]);
        }
        for rest in &self.rest {
            let Some((rank, rest)) = rest else {
                state.push(NONE);
                continue;
            };
            let (op, batch) = self.ranks.instance(*rank);
            state.extend([of(op, batch), *rest]);
        }
        // What holds up a queue is among what lags.
        let lagging = state.len();
        for std::cmp::Reverse((at, instance, lets_go)) in &self.lagging {
            let of = of(instance % n as u32, instance / n as u32);
            state.extend([at - now, of, u64::from(*lets_go)]);
        }
        state[lagging..].as_chunks_mut::<3>().0.sort_unstable();
    }

    /// Puts down what has not happened yet as what happened a batch before, so much later.
    fn repeat(&mut self, ended: usize, later: u64) {
        let n = self.work.graph.n;
        for times in [&mut self.times.start, &mut self.times.end] {
            for batch in ended..times.len() / n.max(1) {
                let (before, from) = times.split_at_mut(batch * n);
                for (time, before) in from.iter_mut().zip(&before[batch * n - n..]) {
                    *time = if *time == NONE { before.saturating_add(later) } else { *time };
                }
            }
        }
    }
}
