//! What carried out copies, from the driver's words to a report's.

use fs_kernels::cuda::driver::{Copies, Driver, Mover, Way};

use super::{Options, open_error};
use crate::device::{CopyUse, OpenError, TransferCopies};

pub(super) fn watch<D: Driver>(options: &Options<D>) -> Result<(), OpenError> {
    options.drivers.iter().try_for_each(|driver| driver.watch_copies().map_err(|error| open_error(&error)))
}

pub(super) fn copies<D: Driver>(options: &Options<D>) -> Result<Option<CopyUse>, OpenError> {
    let Some(driver) = options.drivers.first() else { return Ok(None) };
    let mut transfers: Vec<TransferCopies> =
        driver.copies().map_err(|error| open_error(&error))?.into_iter().map(transfer).collect();
    transfers.sort_by(|a, b| (&a.operation, a.way, &a.by).cmp(&(&b.operation, b.way, &b.by)));
    let facts = driver.facts();
    let (device, copy_engines) = (facts.name.clone(), facts.copy_engines);
    Ok(Some(CopyUse { device, copy_engines, multiprocessors: facts.multiprocessors, transfers }))
}

fn transfer(copies: Copies) -> TransferCopies {
    let way = match copies.way {
        Way::In => "to the device",
        Way::Out => "to the host",
        Way::Within => "within the device",
        Way::Other => "other",
    };
    let by = match copies.by {
        Mover::CopyEngine(number) => format!("a copy engine (channel {number})"),
        Mover::Multiprocessors => "multiprocessors".into(),
        Mover::Unknown => "unknown".into(),
    };
    let Copies { name: operation, copies, bytes, nanoseconds, .. } = copies;
    TransferCopies { operation, way, by, copies, bytes, nanoseconds }
}
