//! Clocks of other processes, by questions and answers on the wire.

use std::time::Instant;

use super::super::control::Control;
use super::super::frame::{BadFrame, FrameKind, Reader, Writer};
use super::super::tick::Reading;
use super::{Peers, SETTLING, Shared, State};

/// Questions for the time, of whose answers the quickest counts.
const TICKS: u64 = 32;

impl Shared {
    /// Says what the time is, or takes note of what another process says it is.
    pub(super) fn ticked(
        &self,
        process: usize,
        kind: FrameKind,
        number: u64,
        mut reader: Reader<'_>,
        seen: Instant,
    ) -> Result<(), BadFrame> {
        if kind == FrameKind::Tock {
            let time = reader.number()? as i64;
            self.lock().tock = Some((number, seen, time));
            self.changed.notify_all();
        } else if let Some(wire) = self.wire.upgrade() {
            let mut frame = Vec::new();
            Writer::new(&mut frame, FrameKind::Tock, number).number(self.time(Instant::now()) as u64);
            wire.send(process, &frame);
        }
        reader.end()
    }
}

impl Peers {
    /// Another process's clock, by the quickest of some answers; none if one does not come.
    pub(super) fn read_clock(&self, process: usize) -> Option<Reading> {
        let mut best: Option<Reading> = None;
        for _ in 0..TICKS {
            let number = {
                let mut state = self.shared.lock();
                state.ticks += 1;
                state.ticks
            };
            let mut frame = Vec::new();
            Writer::new(&mut frame, FrameKind::Tick, number);
            let asked = Instant::now();
            self.send(process, &frame);
            let came = |state: &State| state.tock.is_some_and(|tock| tock.0 == number);
            let until = asked + SETTLING.0.min(self.timeout);
            let ended = |s: &State| came(s) || s.lost[process].is_some();
            let (_, seen, time) = self.shared.wait_until(until, ended).tock.filter(|t| t.0 == number)?;
            let reading = Reading::of(self.shared.time(asked), self.shared.time(seen), time);
            best = Some(best.filter(|best| best.round_trip <= reading.round_trip).unwrap_or(reading));
        }
        best
    }
}
