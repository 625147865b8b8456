//! Losses on their way to the host, and how far it may be ahead of the device.
//!
//! An operation that makes a loss ends when it is enqueued, like any other. A stream of its own, which waits for the kernels
//! alone, copies the value down, so neither the host nor the queue waits for that; who accounts for steps asks after it.
//! Nothing else holds the host back in steady state, so a batch is loaded only once the loss of one far before has come.

use std::collections::BTreeMap;

use fs_kernels::cuda::driver::{Driver, DriverError, Memory, Stream};
use parking_lot::Mutex;

use super::lane::Staging;
use super::{Cuda, Fault, Job};

/// The name of that stream's work.
pub const LATE_LOSS: &str = "a loss on its way to the host";

/// Batches that may be loaded beyond those in flight before the device has come to their losses.
const AHEAD: u64 = 2;

/// Parts of losses by batch: which part, and where it comes down.
type Parts = BTreeMap<u64, Vec<(usize, Staging)>>;

#[derive(Debug)]
pub(super) struct Losses {
    pub(super) stream: Stream,
    under_way: Mutex<Parts>,
}

impl Losses {
    pub(super) fn new<D: Driver>(driver: &D) -> Result<Self, DriverError> {
        let stream = driver.stream(0)?;
        driver.name(stream, LATE_LOSS);
        Ok(Self { stream, under_way: Mutex::default() })
    }
}

impl<D: Driver> Cuda<D> {
    /// A loss of double precision, which work of the stream makes, begins to come down; its memory is gone then.
    pub(super) fn send_loss(&self, job: &Job<'_>, stream: Stream, loss: Memory) -> Result<(), Fault> {
        let driver = &*self.driver;
        let Some(part) = job.loss_slot() else { return Ok(driver.release(stream, loss)?) };
        let (staging, down) = (self.staging.take(driver, 8)?, self.losses.stream);
        driver.record(stream, staging.free)?;
        driver.wait(down, staging.free)?;
        driver.download(down, loss.first(8), (staging.pinned, 0))?;
        driver.record(down, staging.free)?;
        driver.release(down, loss)?;
        self.losses.under_way.lock().entry(job.number).or_default().push((part, staging));
        Ok(())
    }

    /// This rank's part of the loss of a batch, once all of it has come.
    pub(super) fn loss_of(&self, batch: u64) -> Result<Option<f64>, Fault> {
        let driver = &*self.driver;
        let mut under_way = self.losses.under_way.lock();
        let Some(parts) = under_way.get(&batch) else { return Ok(Some(0.0)) };
        for (_, staging) in parts {
            if !driver.has_come(staging.free)? {
                return Ok(None);
            }
        }
        let mut parts = under_way.remove(&batch).unwrap_or_default();
        drop(under_way);
        parts.sort_by_key(|(part, _)| *part);
        let mut sum = 0.0;
        for (_, staging) in parts {
            let mut bytes = [0; 8];
            driver.read(staging.pinned, 0, &mut bytes)?;
            self.staging.give(driver, self.losses.stream, staging)?;
            sum += f64::from_le_bytes(bytes);
        }
        Ok(Some(sum))
    }

    /// Whether the device is so far behind that this batch should not be loaded yet.
    pub(super) fn is_behind(&self, job: &Job<'_>) -> Result<bool, Fault> {
        let ahead = AHEAD + job.env.batches.len() as u64;
        let under_way = self.losses.under_way.lock();
        for (_, parts) in under_way.iter().take_while(|(batch, _)| **batch + ahead <= job.number) {
            for (_, staging) in parts {
                if !self.driver.has_come(staging.free)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Nobody asks any more after losses of a run that has failed.
    pub(super) fn forget_losses(&self) -> Result<(), Fault> {
        let left = std::mem::take(&mut *self.losses.under_way.lock());
        let mut parts = left.into_values().flatten();
        Ok(parts
            .try_for_each(|(_, staging)| self.staging.give(&*self.driver, self.losses.stream, staging))?)
    }

    /// Gives their memory back, at the end of the device.
    pub(super) fn drop_losses(&self) {
        let left = std::mem::take(&mut *self.losses.under_way.lock());
        for (_, staging) in left.into_values().flatten() {
            // Of a device that is lost nothing can be given back.
            let _ = self.driver.unpin(staging.pinned);
        }
    }
}
