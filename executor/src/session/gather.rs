//! What a session needs of all ranks, gathered from the processes that run them.
//!
//! Everything here is called by all processes in the same order. Of one process nothing is written or copied.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fs_schedule::Schedule;

use super::phase::{Results, rank_error};
use crate::device::{Device, Env};
use crate::error::Error;
use crate::runtime::profile::{OpTime, Profile};
use crate::runtime::tables::{self, Field};
use crate::transport::TransportError;
use crate::transport::control::Control;
use crate::transport::frame::{BadFrame, Reader};

/// Elements of a table that are gathered at once.
const PIECE: usize = 1 << 18;

/// Speaks to all processes about the ranks of this one.
pub(super) struct Gather<'a, D> {
    pub(super) control: &'a Arc<dyn Control>,
    pub(super) schedule: &'a Schedule,
    pub(super) ranks: &'a [Env],
    pub(super) devices: &'a [D],
}

/// What the ranks of all processes have done and hold.
pub(super) struct Totals {
    /// Per rank.
    pub(super) profiles: Vec<Profile>,
    /// Per exchange and class of lookups, entries that all ranks asked for.
    pub(super) asked: Vec<Vec<u64>>,
    /// Per rank and exchange, entries that it was asked for.
    pub(super) served: Vec<Vec<u64>>,
    /// Bytes of dense parameters, buffers and batches, and those that others spared ranks to send.
    pub(super) bytes: [u64; 4],
}

impl<D: Device> Gather<'_, D> {
    fn alone(&self) -> bool {
        self.control.processes().len() == 1
    }

    /// Whether devices have given what they hold.
    fn check(&self) -> Result<(), Error> {
        self.ranks.iter().zip(self.devices).try_for_each(|(env, device)| {
            let failed = |fault: crate::device::Fault| Error::Rank {
                rank: env.rank,
                op: "values".into(),
                message: fault.to_string(),
            };
            device.check().map_err(failed)
        })
    }

    /// The numbers of all rows.
    pub(super) fn table(&self, field: &Field) -> Result<Vec<D::Real>, Error> {
        let mut out = Vec::with_capacity(field.rows as usize * field.width);
        self.pieces(field, None, |values| {
            out.extend_from_slice(values);
            Ok(())
        })?;
        Ok(out)
    }

    /// The same, handed out in order, whole rows at a time: in all processes, or in one, and then only it is sent
    /// anything.
    pub(super) fn pieces(
        &self,
        field: &Field,
        at: Option<usize>,
        mut take: impl FnMut(&[D::Real]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut values = Vec::new();
        for block in field.blocks(PIECE) {
            values.clear();
            if self.alone() {
                tables::read((self.ranks, self.devices), field, &block, &mut values);
                self.check()?;
                take(&values)?;
                continue;
            }
            let (name, own) = (
                &self.schedule.tables[field.table].name,
                tables::pieces((self.ranks, self.devices), field, &block),
            );
            let all = match at {
                None => self.control.gather(name, &own).map(Some),
                Some(process) => self.control.gather_at(process, name, &own),
            };
            if let Some(all) = all.map_err(rank_error)? {
                for bytes in all {
                    tables::place(&bytes, &block, field.width, &mut values).map_err(|e| bad(&e))?;
                }
                take(&values)?;
            }
        }
        Ok(())
    }

    /// What a training run has given, of all ranks.
    pub(super) fn totals(&self, results: &Results) -> Result<Totals, Error> {
        let mut numbers = Vec::new();
        for (env, profile) in self.ranks.iter().zip(&results.profiles) {
            numbers.push(env.rank as u64);
            for op in &profile.ops {
                let times = [op.busy, op.waited, op.exposed].map(|t| t.as_nanos() as u64);
                numbers.extend(times.into_iter().chain([op.sent, op.count]));
            }
            numbers.extend(env.served.iter().map(|n| n.load(Ordering::Relaxed)));
        }
        let asked: Vec<Vec<u64>> = (0..self.schedule.exchanges.len())
            .map(|e| {
                let classes = 0..self.ranks[0].asked[e].len();
                let sum =
                    |c: usize| self.ranks.iter().map(|env| env.asked[e][c].load(Ordering::Relaxed)).sum();
                classes.map(sum).collect()
            })
            .collect();
        numbers.extend(asked.iter().flatten());
        numbers.extend([
            self.devices.iter().map(|d| d.held().parameters).sum::<u64>(),
            self.devices.iter().map(|d| d.held().buffers).sum::<u64>(),
            results.batch_bytes as u64,
            self.ranks.iter().map(|env| env.spared.swap(0, Ordering::Relaxed)).sum::<u64>(),
        ]);
        let own: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let processes = self.control.processes();
        let ops = self.schedule.train.ops.len();
        let ranks = processes.iter().map(Vec::len).sum();
        let mut totals = Totals {
            profiles: vec![Profile::new(ops); ranks],
            served: vec![vec![0; asked.len()]; ranks],
            asked: asked.iter().map(|classes| vec![0; classes.len()]).collect(),
            bytes: [0; 4],
        };
        let all = self.control.gather("the report", &own).map_err(rank_error)?;
        for (bytes, ranks) in all.iter().zip(processes) {
            totals.add(bytes, ranks.len()).map_err(|e| bad(&e))?;
        }
        Ok(totals)
    }
}

impl Totals {
    fn add(&mut self, bytes: &[u8], ranks: usize) -> Result<(), BadFrame> {
        let mut reader = Reader::plain(bytes);
        for _ in 0..ranks {
            let rank = reader.size()?;
            let profile = self.profiles.get_mut(rank).ok_or(BadFrame::Short("a report"))?;
            for op in &mut profile.ops {
                let mut time = || Ok(Duration::from_nanos(reader.number()?));
                let (busy, waited, exposed) = (time()?, time()?, time()?);
                // What was enqueued is only asked of devices of one process.
                let issued = Duration::ZERO;
                *op =
                    OpTime { busy, waited, exposed, issued, sent: reader.number()?, count: reader.number()? };
            }
            for served in self.served.get_mut(rank).into_iter().flatten() {
                *served = reader.number()?;
            }
        }
        for sum in self.asked.iter_mut().flatten().chain(&mut self.bytes) {
            *sum += reader.number()?;
        }
        reader.end()
    }
}

fn bad(error: &BadFrame) -> Error {
    Error::Transport(TransportError::Sizes(error.to_string()))
}
