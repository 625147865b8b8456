//! Values of the host: what is read and written between runs, and gradients that are kept.
//!
//! Between runs nothing is under way once all streams have been waited for ([`Cuda::settle_all`]), so a stream of its own copies
//! without any more waiting.

use std::ops::Range;
use std::sync::atomic::Ordering;

use fs_kernels::cuda::catalogue::elementwise;
use fs_kernels::cuda::driver::{Driver, DriverError, Memory, Touch};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{In, Out};
use parking_lot::Mutex;

use super::plain::{bytes_of, values_of};
use super::{Cuda, Fault};
use crate::device::{Stored, Values};

/// Numbers that are copied at once.
const PIECE: usize = 1 << 20;

/// Where gradients go instead of updates while they are asked for: per table and part.
#[derive(Debug, Default)]
pub(super) struct Captured(Mutex<Option<Vec<Vec<Memory>>>>);

/// Where the gradients of a shard go.
pub(super) enum Capture {
    /// Into updates.
    No,
    /// There.
    Into(Memory),
}

impl<D: Driver> Cuda<D> {
    /// Waits for everything: between runs only.
    pub(super) fn settle_all(&self) -> Result<(), Fault> {
        if self.settled.load(Ordering::Acquire) {
            return Ok(());
        }
        for stream in self.order.streams().chain([self.between, self.taking, self.losses.stream]) {
            self.driver.synchronize(stream)?;
        }
        let staging = self.staging.take(&*self.driver, 4)?;
        self.driver.download(self.between, self.fault.first(4), (staging.pinned, 0))?;
        self.driver.synchronize(self.between)?;
        let mut fault = [0; 4];
        self.driver.read(staging.pinned, 0, &mut fault)?;
        self.staging.give(&*self.driver, self.between, staging)?;
        match u32::from_le_bytes(fault) {
            0 => self.settled.store(true, Ordering::Release),
            bits => {
                let what = format!("a kernel met an index that is out of range ({bits:#x})");
                return Err(DriverError::Misuse(what).into());
            }
        }
        Ok(())
    }

    /// The memory of values.
    fn memory(&self, what: Stored) -> Option<Memory> {
        match what {
            Stored::Parameter(p, values) => Some(self.trained.dense.get(p)?.field(values)),
            Stored::Gradient(p) => Some(self.trained.dense.get(p)?.gradient),
            Stored::Table(t, part, values) => Some(self.trained.tables.get(t)?.get(part)?.field(values)),
            Stored::Captured(t, part) => {
                self.captured.0.lock().as_ref().and_then(|c| Some(*c.get(t)?.get(part)?))
            }
        }
    }

    /// How many numbers there are.
    pub(super) fn numbers(&self, what: Stored) -> usize {
        self.memory(what).map_or(0, |memory| memory.bytes as usize / 4)
    }

    /// Hands some values to `take`, a piece at a time.
    pub(super) fn read_values(
        &self,
        what: Stored,
        elements: Range<usize>,
        take: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Fault> {
        let missing = || Fault::Unwritten(format!("{what:?}"));
        let memory = self.memory(what).ok_or_else(missing)?;
        self.settle_all()?;
        for first in elements.clone().step_by(PIECE) {
            let n = PIECE.min(elements.end - first);
            let bytes = 4 * n as u64;
            let staging = self.staging.take(&*self.driver, bytes)?;
            let area = memory.from(4 * first as u64, bytes);
            self.driver.download(self.between, area, (staging.pinned, 0))?;
            self.driver.synchronize(self.between)?;
            let mut out = vec![0; bytes as usize];
            self.driver.read(staging.pinned, 0, &mut out)?;
            self.staging.give(&*self.driver, self.between, staging)?;
            take(&values_of(&out));
        }
        Ok(())
    }

    /// Replaces values from `first` on.
    pub(super) fn write_values(&self, what: Stored, first: usize, values: &[f32]) -> Result<(), Fault> {
        let missing = || Fault::Unwritten(format!("{what:?}"));
        let memory = self.memory(what).ok_or_else(missing)?;
        self.settle_all()?;
        for (n, piece) in values.chunks(PIECE).enumerate() {
            let at = 4 * (first + n * PIECE) as u64;
            let bytes = bytes_of(piece);
            self.send(self.between, &bytes, memory.from(at, bytes.len() as u64))?;
        }
        if let Stored::Table(t, part, _) = what {
            self.written((t, part))?;
        }
        if let Stored::Parameter(p, Values::Weights) = what {
            self.round_parameter(p)?;
        }
        // A run begins when these are there too.
        self.settled.store(false, Ordering::Release);
        Ok(())
    }

    /// Makes the brain floats of a parameter's values, if products read those.
    fn round_parameter(&self, parameter: usize) -> Result<(), Fault> {
        let Some(dense) = self.trained.dense.get(parameter).filter(|dense| dense.rounded.bytes > 0) else {
            return Ok(());
        };
        let (from, to, n) = (In::at(dense.values.address), Out::at(dense.rounded.address), dense.elements);
        let call = elementwise::real_from_float(from, n, to, n, 0, 1, n).of(Precision::Bf16);
        let touches = [Touch::In(dense.values.area()), Touch::Out(dense.rounded.area())];
        self.run(self.between, &call, &touches)
    }

    /// Gradients are kept, from zero on, instead of updating anything; or no longer so.
    pub(super) fn capture_gradients(&self, on: bool) -> Result<(), Fault> {
        self.settle_all()?;
        let mut captured = self.captured.0.lock();
        for memory in captured.take().into_iter().flatten().flatten().filter(|m| m.bytes > 0) {
            self.driver.release(self.between, memory)?;
        }
        if !on {
            return Ok(());
        }
        let zeros = |bytes: u64| {
            if bytes == 0 {
                return Ok(Memory::default());
            }
            let memory = self.driver.allocate(self.between, bytes)?;
            self.driver.fill(self.between, memory.area(), 0)?;
            Ok::<_, DriverError>(memory)
        };
        let all: Result<Vec<Vec<Memory>>, _> = self
            .trained
            .tables
            .iter()
            .map(|parts| parts.iter().map(|t| zeros(t.values.bytes)).collect())
            .collect();
        *captured = Some(all?);
        self.settled.store(false, Ordering::Release);
        Ok(())
    }

    /// Where the gradients of a shard go.
    pub(super) fn capture_of(&self, table: usize, part: usize) -> Result<Capture, Fault> {
        if !self.captures() {
            return Ok(Capture::No);
        }
        let memory = self.memory(Stored::Captured(table, part));
        memory.map(Capture::Into).ok_or_else(|| Fault::Unwritten("captured gradients".into()))
    }

    /// Before the first batch of a run: what ran before is another program, or had been read and written by the host.
    pub(super) fn begin_run(&self) -> Result<(), Fault> {
        self.forget_losses()?;
        self.settle_all()
    }
}
