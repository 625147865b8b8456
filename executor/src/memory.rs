//! How much memory there is, and whether what is known before a run fits: tables, and buffers of a fixed size.

use std::path::Path;

use fs_schedule::{Buffer, Element, Extent, Schedule, limits};
use serde::Serialize;

use crate::device::shards::table_bytes;
use crate::error::Error;

/// What a run holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Memory {
    /// Values of all tables.
    pub tables: u64,
    /// Optimizer state of all tables.
    pub optimizer_state: u64,
    /// Dense parameters with gradients and optimizer state, of all ranks.
    pub parameters: u64,
    /// Intermediate values of all ranks.
    pub buffers: u64,
    /// Batches that were read ahead.
    pub batches: u64,
    /// Peak of the whole process over the sum of the above.
    pub peak_ratio: f64,
}

impl Memory {
    /// Sum of the parts.
    pub(crate) fn total(&self) -> u64 {
        self.tables + self.optimizer_state + self.parameters + self.buffers + self.batches
    }
}

/// Peak resident memory of this process; 0 where the system does not tell.
pub(crate) fn peak() -> u64 {
    field("/proc/self/status", "VmHWM:").unwrap_or(0)
}

/// Memory that may still be taken: what the machine, control groups and the process's own limits leave.
pub(crate) fn available() -> Option<u64> {
    limits::available(Path::new("/"))
}

fn field(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
}

/// Checks, before anything is allocated, that tables and buffers whose size no batch decides fit into `available`
/// bytes.
pub(crate) fn check(
    schedule: &Schedule,
    ranks: usize,
    element: usize,
    available: Option<u64>,
) -> Result<(), Error> {
    let size = |t| {
        let (values, state) = table_bytes(t, ranks, element);
        values.saturating_add(state)
    };
    let needed = schedule.tables.iter().map(size).fold(0, u64::saturating_add);
    let Some(available) = available else { return Ok(()) };
    if let Some(largest) = schedule.tables.iter().max_by_key(|t| size(t)).filter(|_| needed > available) {
        let table = largest.name.clone();
        return Err(Error::TableTooLarge { table, bytes: size(largest), needed, available });
    }
    let (bytes, available) =
        (fixed_bytes(schedule, element).saturating_mul(ranks as u64), available.saturating_sub(needed));
    if bytes > available {
        return Err(Error::BuffersTooLarge { bytes, available });
    }
    Ok(())
}

/// Bytes of a rank's buffers that have as many rows whatever the batch.
fn fixed_bytes(schedule: &Schedule, real: usize) -> u64 {
    let bytes = |b: &Buffer| {
        let Extent::Fixed(rows) = b.rows else { return 0 };
        let element = match b.element {
            // The CPU keeps shorter numbers as its own.
            Element::Real | Element::Bf16 | Element::Mxint8 => real as u64,
            Element::Id | Element::Count => 8,
            Element::Index => 4,
            Element::Byte => 1,
        };
        [u64::from(b.columns), u64::from(b.copies), element]
            .into_iter()
            .fold(u64::from(rows), u64::saturating_mul)
    };
    let programs = std::iter::once(&schedule.train).chain(&schedule.evaluation);
    programs.flat_map(|p| &p.buffers).map(bytes).fold(0, u64::saturating_add)
}
