//! Transfers that stay on the device, by what moves.

use fs_kernels::cuda::driver::Driver;
use fs_schedule::Action;

use super::carry::moves_samples;
use super::ids_transfer::moves_lists;
use super::outbox::CudaOutbox;
use super::transfer::moves_rows;
use super::{Cuda, Cursor, Fault, Job, Lane};
use crate::device::{Inbox, Progress, Urgent};

/// Whether what an action moves stays on the device where ranks share it.
pub(super) fn stays(action: &Action) -> bool {
    moves_rows(action) || moves_lists(action) || moves_samples(action)
}

impl<D: Driver> Cuda<D> {
    /// Fills an outbox of what stays on the device.
    pub(super) fn fill_here(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        outbox: &mut CudaOutbox,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        if moves_lists(&job.op.action) {
            self.fill_lists(lane, job, from, outbox, urgent)
        } else if moves_samples(&job.op.action) {
            self.fill_samples(lane, job, from, outbox, urgent)
        } else {
            self.fill_rows(job, from, outbox, urgent)
        }
    }

    /// Takes in what the others sent and stays on the device.
    pub(super) fn drain_here(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        from: Option<Cursor>,
        inbox: Inbox<'_, CudaOutbox>,
        urgent: Urgent<'_>,
    ) -> Result<Progress<Cursor>, Fault> {
        if moves_lists(&job.op.action) {
            self.drain_lists(lane, job, from, inbox, urgent)
        } else if moves_samples(&job.op.action) {
            self.drain_samples(lane, job, from, inbox, urgent)
        } else {
            self.drain_rows(job, from, inbox, urgent)
        }
    }
}
