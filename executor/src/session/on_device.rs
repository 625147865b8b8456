//! Records of devices that have a clock of their own: what they noted replaces the times of the host that enqueued.

use std::ops::Range;

use fs_schedule::Program;

use crate::device::{Device, Env, Fault, Noted};
use crate::error::Error;
use crate::runtime::Process;
use crate::runtime::record::Record;
use crate::transport::Outbox;

/// Tells devices of which batches times are wanted; of those that note them, when that began, in nanoseconds of the run.
pub(super) fn note<D: Device, O: Outbox + 'static>(
    envs: &[Env],
    devices: &[D],
    batches: &Range<u64>,
    process: &Process<O>,
) -> Vec<Option<u64>> {
    let mut first = None;
    let note = |(env, device): (&Env, &D)| match device.note_times(batches.clone(), &devices[0]) {
        Ok(Noted::No) => None,
        Ok(Noted::SinceFirst) => first,
        Ok(Noted::SinceNow) => {
            let now = Some(process.clock.now());
            first = first.or(now);
            now
        }
        Err(fault) => {
            process.fail(env.rank, "start of a run", &fault.to_string());
            None
        }
    };
    envs.iter().zip(devices).map(note).collect()
}

/// Puts into records per rank what devices have noted since.
pub(super) fn replace<D: Device>(
    envs: &[Env],
    devices: &[D],
    noted: &[Option<u64>],
    (program, first_step): (&Program, u64),
    ranks: &mut [Vec<Record>],
) -> Result<(), Error> {
    for (((began, env), device), records) in noted.iter().zip(envs).zip(devices).zip(&mut *ranks) {
        let Some(began) = began else { continue };
        let replaced = device.settle().and_then(|()| of_rank(device, *began, first_step, records));
        replaced.map_err(|fault| {
            let (op, message) = ("end of a run".into(), fault.to_string());
            Error::Rank { rank: env.rank, op, message }
        })?;
    }
    if noted.iter().any(Option::is_some) {
        meet(program, ranks);
    }
    Ok(())
}

fn of_rank<D: Device>(device: &D, began: u64, first_step: u64, records: &mut [Record]) -> Result<(), Fault> {
    for record in records {
        let times = device.times(record.op as usize, record.batch - first_step)?;
        let Some(times) = times else { continue };
        let [start, end] = times.map(|t| began.saturating_add_signed(t));
        *record = Record { ready: start, start, met: start, end: end.max(start), ..*record };
    }
    Ok(())
}

/// Transfers have met when the last rank of those here has begun.
fn meet(program: &Program, ranks: &mut [Vec<Record>]) {
    let crossing = |r: &&mut Record| program.ops[r.op as usize].action.is_transfer();
    let first = ranks.iter().flatten().map(|r| r.batch).min().unwrap_or(0);
    let last = ranks.iter().flatten().map(|r| r.batch).max().unwrap_or(0);
    let place = |r: &Record| (r.batch - first) as usize * program.ops.len() + r.op as usize;
    let mut begun = vec![0; (last + 1 - first) as usize * program.ops.len()];
    for r in ranks.iter_mut().flatten().filter(crossing) {
        begun[place(r)] = r.start.max(begun[place(r)]);
    }
    for r in ranks.iter_mut().flatten().filter(crossing) {
        r.met = begun[place(r)].clamp(r.start, r.end);
    }
}
