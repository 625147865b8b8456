//! Entries of a table whose hot rows every rank has: found with the others, behind all that owners are asked for.

use fs_kernels::cuda::catalogue::ids;
use fs_kernels::cuda::driver::{Area, Driver, Memory, Touch};
use fs_kernels::cuda::{In, Out};
use fs_schedule::{Exchange, Table};

use super::Fault;
use super::ids::{Ids, List};
use super::loaded::HotNumbers;
use crate::device::cpu::Found;

/// Hot rows of a table as slots behind those of its owners.
#[derive(Clone, Copy)]
pub(super) struct Hot {
    numbers: HotNumbers,
    pub(super) rows: u64,
    /// Owners that would have as many slots.
    pub(super) owners: u32,
}

impl<'a, D: Driver> Ids<'a, D> {
    /// The exchange of those entries that owners are asked for.
    pub(super) fn owned(&self, listed: &'a Exchange) -> Result<&'a Exchange, Fault> {
        match listed.shares {
            Some(shares) => Ok(self.job.exchange(shares.owned)?.0),
            None => Ok(listed),
        }
    }

    /// Of a table each of whose owners has so many rows; none, if an exchange lists none apart.
    pub(super) fn hot(&self, listed: &Exchange, table: &Table, each: u64) -> Option<Hot> {
        listed.shares?;
        let (numbers, rows) = (self.cuda.shelf.hot(listed.table as usize)?, table.hot.len() as u64);
        Some(Hot { numbers, rows, owners: rows.div_ceil(each.max(1)) as u32 })
    }

    /// Hot rows among ids get other slots than those they have at their owners.
    pub(super) fn slots_of_hot(
        &self,
        lists: &[List],
        hot: Hot,
        behind: u64,
        slots: Memory,
    ) -> Result<(), Fault> {
        let HotNumbers { pairs, places } = hot.numbers;
        let mut at = slots.address;
        for list in lists {
            let call =
                ids::slots_of_hot(list.n, In::at(list.area.address), pairs, places, behind, Out::at(at));
            self.run(&call, &[Touch::In(list.area)])?;
            at += list.area.bytes();
        }
        Ok(())
    }

    /// At most n entries, and their uses if there are any, become those of both shares; slots of hot ones begin at `behind`.
    pub(super) fn cut_shares(
        &self,
        found: Found,
        (n, entries): (u32, Area),
        uses: Option<Area>,
        (behind, limit): (u64, u64),
    ) -> Result<(), Fault> {
        let [owned, hot] = [0, 1].map(|share| found.at(share));
        let result = |position: usize| Ok::<_, Fault>(self.write_at_most(position, n as usize)?.flat());
        let all = [result(owned)?, result(hot)?];
        let mut touches = vec![Touch::In(entries), Touch::Out(all[0]), Touch::Out(all[1])];
        let (mut told, mut to) = (In::NULL, [Out::NULL, Out::NULL]);
        if let Some(uses) = uses {
            let each = [result(owned + 2)?, result(hot + 2)?];
            touches.extend(each.map(Touch::Out));
            (told, to) = (In::at(uses.address), each.map(|area| Out::at(area.address)));
        }
        let [owned, hot] = all.map(|area| Out::at(area.address));
        let from = In::at(entries.address);
        let call = ids::shares_of_entries(n, from, told, behind, limit, owned, to[0], hot, to[1]);
        self.run(&call, &touches)
    }
}
