//! Records of all processes, laid beside each other by the first one's clock.

use fs_schedule::trace::ProcessClock;

use super::gather::Gather;
use super::phase::{Clocks, Results, rank_error};
use crate::device::Device;
use crate::error::Error;
use crate::runtime::record::Record;
use crate::transport::TransportError;
use crate::transport::frame::{BadFrame, Reader, Writer};
use crate::transport::tick::Reading;

/// What is gathered.
const WHAT: &str = "the trace";

/// What another process has recorded.
struct Part {
    /// When its run began, on its clock.
    began: i64,
    /// Per rank.
    ranks: Vec<(usize, Vec<Record>)>,
}

impl<D: Device> Gather<'_, D> {
    /// Per rank what was recorded, and the clocks of other processes: in the first process of all, in the others of their own
    /// ranks. Times count from the start of the run, and are those of the first process.
    pub(super) fn records(
        &self,
        results: &mut Results,
    ) -> Result<(Vec<Vec<Record>>, Vec<ProcessClock>), Error> {
        let own = std::mem::take(&mut results.records);
        let Some(clocks) = &results.clocks else { return Ok((own, Vec::new())) };
        let ranks: Vec<usize> = self.ranks.iter().map(|env| env.rank).collect();
        let mut bytes = Vec::new();
        if self.control.process() != 0 {
            write(&mut bytes, clocks.began, ranks.iter().copied().zip(&own));
        }
        let all = self.control.gather_at(0, WHAT, &bytes).map_err(rank_error)?;
        let Some(all) = all else { return Ok((own, Vec::new())) };
        let bad = |e: BadFrame| Error::Transport(TransportError::Sizes(e.to_string()));
        let processes = self.control.processes();
        let mut records: Vec<Vec<Record>> = processes.iter().flatten().map(|_| Vec::new()).collect();
        for (rank, own) in ranks.into_iter().zip(own) {
            records[rank] = own;
        }
        let mut others = Vec::new();
        for (process, bytes) in all.iter().enumerate().skip(1) {
            let (before, after) = readings(clocks, process).ok_or_else(|| {
                let (op, ranks) = ("the clocks".into(), processes[process].clone());
                Error::Transport(TransportError::Timeout {
                    op,
                    batch: None,
                    ranks,
                    seconds: self.control.timeout().as_secs_f64(),
                })
            })?;
            let part = read(bytes).map_err(bad)?;
            let time = |t: u64| {
                let of_other = part.began + i64::try_from(t).unwrap_or(i64::MAX / 2);
                // Before the first process's run began nothing of it ran here: that is an error of the clocks.
                u64::try_from(before.translate(after, of_other) - clocks.began).unwrap_or(0)
            };
            for (rank, own) in part.ranks {
                let place = records.get_mut(rank).ok_or_else(|| bad(BadFrame::Short("a trace")))?;
                *place = own.into_iter().map(|record| translated(record, time)).collect();
            }
            others.push(ProcessClock {
                ranks: processes[process].iter().map(|rank| *rank as u32).collect(),
                ahead_ns: [before.ahead, after.ahead],
                round_trip_ns: [before.round_trip, after.round_trip],
            });
        }
        Ok((records, others))
    }
}

/// A process's clock before and after the run; if it was read but once, that counts.
fn readings(clocks: &Clocks, process: usize) -> Option<(Reading, Reading)> {
    let of = |readings: &[Option<Reading>]| readings.get(process).copied().flatten();
    match (of(&clocks.before), of(&clocks.after)) {
        (Some(before), Some(after)) => Some((before, after)),
        (Some(one), None) | (None, Some(one)) => Some((one, one)),
        (None, None) => None,
    }
}

fn translated(r: Record, time: impl Fn(u64) -> u64) -> Record {
    Record { ready: time(r.ready), start: time(r.start), met: time(r.met), end: time(r.end), ..r }
}

fn write<'r>(
    bytes: &mut Vec<u8>,
    began: i64,
    ranks: impl ExactSizeIterator<Item = (usize, &'r Vec<Record>)>,
) {
    let w = Writer::plain(bytes).number(began as u64).number(ranks.len() as u64);
    ranks.fold(w, |w, (rank, records)| {
        let w = w.number(rank as u64).number(records.len() as u64);
        records.iter().fold(w, |w, r| {
            let what = (u64::from(r.op) << 8) | u64::from(r.engine);
            [what, r.batch, r.ready, r.start, r.met, r.end].into_iter().fold(w, Writer::number)
        })
    });
}

fn read(bytes: &[u8]) -> Result<Part, BadFrame> {
    let mut r = Reader::plain(bytes);
    let (began, n) = (r.number()? as i64, r.size()?);
    let mut ranks = Vec::new();
    for _ in 0..n {
        let (rank, n) = (r.size()?, r.size()?);
        let mut records = Vec::new();
        for _ in 0..n {
            let what = r.number()?;
            let op = u32::try_from(what >> 8).map_err(|_| BadFrame::Short("a record"))?;
            let (batch, ready, start, met, end) =
                (r.number()?, r.number()?, r.number()?, r.number()?, r.number()?);
            records.push(Record { op, engine: what as u8, batch, ready, start, met, end });
        }
        ranks.push((rank, records));
    }
    r.end()?;
    Ok(Part { began, ranks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_travel() {
        let record = |op: u32| Record { op, engine: 3, batch: 9, ready: 1, start: 2, met: 3, end: 1 << 60 };
        let ranks = [vec![record(0), record(1 << 30)], Vec::new()];
        let mut bytes = Vec::new();
        write(&mut bytes, -5, [4, 7].into_iter().zip(&ranks));
        let part = read(&bytes).unwrap();
        assert_eq!((part.began, part.ranks.len()), (-5, 2));
        assert_eq!(part.ranks[0], (4, ranks[0].clone()));
        assert_eq!(part.ranks[1], (7, Vec::new()));
        for n in 0..bytes.len() {
            assert!(read(&bytes[..n]).is_err());
        }
    }
}
