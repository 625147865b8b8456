//! Entries that samples at home need where they are worked on, and what an owner makes of what it is asked for on behalf of
//! users.
//!
//! Whoever reads samples finds the rows of each user as those of one table in which every user has a copy of it. They come out by
//! user; then they are put in the order of their owners, for which the host must know how many there are.

use fs_kernels::cuda::catalogue::{classes, ids, sort};
use fs_kernels::cuda::driver::{Driver, Memory, Touch};
use fs_kernels::cuda::lists::{bits_below, scan, scan_room, sort_by};
use fs_kernels::cuda::{In, Out};
use fs_schedule::{Action, Sharding, Site, Symbol};

use super::Fault;
use super::ids::{Ids, List};
use super::numbers::{Listed, Room, Then};
use super::transfer::check;
use crate::device::cpu::shape;
use crate::device::shards::rows_per_rank;

/// Whose rows are asked for.
#[derive(Clone, Copy)]
struct Owners {
    /// The one who has all, if there is.
    sole: Option<usize>,
    /// Rows of each.
    rows: u64,
    /// Numbers from a user's copy of the table to the next.
    space: u64,
    ranks: u32,
}

impl Owners {
    /// Groups that entries of one user fall into.
    fn groups(&self) -> u32 {
        if self.sole.is_some() { 1 } else { self.ranks }
    }
}

impl<D: Driver> Ids<'_, D> {
    fn owners(&self, exchange: u32) -> Result<Owners, Fault> {
        let (plan, table) = self.job.exchange(exchange)?;
        let ranks = self.job.env.ranks;
        let sole = table.sharding.owner(plan.part).map(|rank| rank as usize);
        let rows =
            if table.sharding == Sharding::RowWise { rows_per_rank(table.rows, ranks) } else { table.rows };
        let space = if sole.is_some() { table.rows } else { rows.saturating_mul(ranks as u64) }.max(1);
        Ok(Owners { sole, rows: if sole.is_some() { space } else { rows }, space, ranks: ranks as u32 })
    }

    /// Rows of all users, each as that of the user's copy of the table.
    fn slots_for(
        &mut self,
        table: u32,
        lists: &[List],
        part: impl Fn(usize) -> Option<u32>,
        (space, fault): (u64, Out<u32>),
    ) -> Result<Memory, Fault> {
        let rows = self.job.env.schedule.tables.get(table as usize).ok_or(Fault::NoTable { table })?.rows;
        let assignment = self.call.read_indices(0)?.slice()?.to_vec();
        let (samples, assigned) = ((assignment.len() / 2) as u32, In::at(self.up(&assignment)?));
        let out = self.scratch.ids(lists.iter().map(|list| list.n).sum())?;
        let slots = self.cuda.shelf.slots(table as usize);
        let mut at = out.address;
        for (i, list) in lists.iter().enumerate() {
            let (group, columns) = shape(&self.call, 1 + i)?;
            let span = self.job.batch.share.part(Site::Home, part(i));
            let offsets: Vec<u32> = span.offsets(group).iter().map(|o| *o as u32).collect();
            check("ids of samples", list.n as usize, offsets.last().map_or(0, |n| *n as usize * columns))?;
            let keys = span.sample_keys().to_vec();
            let (begins, own) = (In::at(self.up(&offsets)?), In::at(self.up(&keys)?));
            let users = self.scratch.out(list.n)?;
            let call = ids::spread_over_positions(
                list.n,
                keys.len() as u32,
                begins,
                columns as u32,
                own,
                samples,
                assigned,
                2,
                users,
                fault,
            );
            self.run(&call, &[])?;
            let call = ids::slots_of_ids(
                list.n,
                In::at(list.area.address),
                rows,
                slots.permutation,
                slots.moved,
                slots.places,
                users.read(),
                space,
                Out::at(at),
                fault,
            );
            self.run(&call, &[Touch::In(list.area)])?;
            at += list.area.bytes();
        }
        Ok(out)
    }

    pub(super) fn unique_for(&mut self, exchange: u32) -> Result<(Room, Then), Fault> {
        let plan = self.job.exchange(exchange)?.0;
        let owners = self.owners(exchange)?;
        let microbatches = self.job.env.schedule.settings.microbatches.max(1) as usize;
        let count = self.job.op.reads.len() - 1;
        let each = (count / microbatches).max(1);
        let part = |list: usize| (microbatches > 1).then_some((list / each) as u32);
        let lists = (0..count).map(|i| self.list(1 + i, part(i))).collect::<Result<Vec<_>, _>>()?;
        let n: u32 = lists.iter().map(|list| list.n).sum();
        // Of ascending entries those of each user and owner stand together.
        let grouped = !plan.unique;
        let numbers = if grouped { owners.groups() } else { owners.ranks * owners.groups() };
        let room = self.room(numbers as usize)?;
        let list = self.slots_for(plan.table, &lists, part, (owners.space, room.fault()))?;
        self.have_read(&lists)?;
        let (list, fault) = (In::at(list.address), room.fault());
        let (limit, entries) = (owners.space.saturating_mul(u64::from(owners.ranks)), self.scratch.ids(n)?);
        let all = entries.first(8 * u64::from(n));
        let inverse = if plan.unique {
            let inverse = self.distinct((n, list, limit), all, &[], fault)?;
            let found = In::at(entries.address);
            self.run(&ids::count_by_owner(numbers, n, found, owners.rows, room.counts()), &[])?;
            inverse
        } else {
            let keys = self.scratch.out(n)?;
            let call = ids::owners_of_ids(n, list, limit, owners.space, owners.ranks, limit, keys, fault);
            self.run(&call, &[])?;
            self.grouped((n, list), (keys.read(), u64::from(owners.ranks)), (all, &[]), fault)?.0
        };
        let uses = if self.job.op.writes.len() > 3 {
            let uses = self.scratch.words(u64::from(n).div_ceil(2))?;
            self.uses(exchange, &lists, In::at(inverse.address), uses.first(2 * u64::from(n)), fault)?;
            Some(uses)
        } else {
            None
        };
        let listed = Listed { entries, uses, grouped };
        if grouped {
            self.by_owner(listed, n, owners, fault, Some(room.counts()))?;
        }
        Ok((room, Then::Asked(listed)))
    }

    /// Entries by user become results, by owner.
    fn by_owner(
        &mut self,
        listed: Listed,
        n: u32,
        owners: Owners,
        fault: Out<u32>,
        counts: Option<Out<u64>>,
    ) -> Result<(), Fault> {
        let (entries, keys, groups) = (In::at(listed.entries.address), self.scratch.out(n)?, owners.groups());
        let limit = owners.space.saturating_mul(u64::from(owners.ranks));
        let call = ids::owners_of_ids(n, entries, owners.space, owners.rows, groups, limit, keys, fault);
        self.run(&call, &[])?;
        let work = self.scratch.sorting(n)?;
        let (calls, sorted) = sort_by(n, bits_below(u64::from(groups)), keys.read(), In::NULL, &work, 0);
        self.run_all(calls, &[])?;
        let (rows, users) = (self.write_at_most(0, n as usize)?, self.write_at_most(2, n as usize)?);
        let mut touches = vec![Touch::Out(rows.area), Touch::Out(users.area)];
        let (mut from, mut to) = (In::NULL, Out::NULL);
        if let Some(uses) = listed.uses {
            let at = self.write_at_most(3, n as usize)?;
            (from, to) = (In::at(uses.address), Out::at(at.area.address));
            touches.push(Touch::Out(at.area));
        }
        let (row, user) = (Out::at(rows.area.address), Out::at(users.area.address));
        let call = classes::place_asked(n, sorted.values, entries, owners.space, from, row, user, to, fault);
        self.run(&call, &touches)?;
        if let Some(counts) = counts {
            let ends = self.scratch.out(groups)?;
            self.run(&sort::bounds_of(groups, n, sorted.keys, ends), &[])?;
            self.run(&sort::counts_of(groups, ends.read(), counts), &[])?;
        }
        Ok(())
    }

    /// The numbers of entries are known.
    pub(super) fn take_asked(&mut self, listed: Listed, found: &[u64]) -> Result<(), Fault> {
        let Action::UniqueFor { exchange } = self.job.op.action else { return Err(Fault::NotTransfer) };
        let owners = self.owners(exchange)?;
        let n: u64 = found.iter().sum();
        self.job.learn(Symbol::Asked(exchange), n as usize);
        if !listed.grouped {
            self.by_owner(listed, n as u32, owners, self.cuda.fault(), None)?;
        }
        let mut counts = self.call.write_counts(1)?;
        let counts = counts.slice();
        check("ranks", counts.len(), owners.ranks as usize)?;
        counts.fill(0);
        match owners.sole {
            Some(owner) => {
                let table = self.job.exchange(exchange)?.1.name.clone();
                let missing = || Fault::NoOwner { table, owner, ranks: self.job.env.ranks };
                *counts.get_mut(owner).ok_or_else(missing)? = n;
            }
            None => {
                for own in found.chunks_exact(counts.len()) {
                    counts.iter_mut().zip(own).for_each(|(sum, n)| *sum += n);
                }
            }
        }
        Ok(())
    }

    /// n requests, as pairs of a row and a user, become a list for each user: one after the other in results `first` and
    /// (uses) `first + 2`, with the numbers of each user on their way.
    pub(super) fn join(
        &mut self,
        (exchange, first): (u32, usize),
        n: u32,
        pairs: In<u32>,
        uses: Option<In<u8>>,
    ) -> Result<Room, Fault> {
        let (plan, owners) = (self.job.exchange(exchange)?.0, self.owners(exchange)?);
        let room = self.room(owners.ranks as usize)?;
        let (keys, work) = (self.scratch.out(n)?, self.scratch.sorting(n)?);
        let from = uses.unwrap_or(In::NULL);
        let (mut order, mut half) = (In::NULL, 0);
        let digits = [(2, 16), (0, bits_below(owners.rows)), (1, bits_below(u64::from(owners.ranks)))];
        // The last sort counts most; without uses there is nothing to tell requests of a user for a row apart.
        for (which, bits) in digits.into_iter().skip(usize::from(uses.is_none())) {
            self.run(&classes::request_keys(n, order, pairs, from, which, keys), &[])?;
            let (calls, sorted) = sort_by(n, bits, keys.read(), order, &work, half);
            self.run_all(calls, &[])?;
            (order, half) = (sorted.values, 1 - sorted.half);
        }
        let (flags, sums) = (self.scratch.out(n)?, self.scratch.out(scan_room(n) as u32)?);
        let distinct = u32::from(plan.unique);
        let call = classes::join_flags(n, order, pairs, distinct, owners.ranks, flags, room.fault());
        self.run(&call, &[])?;
        self.run_all(scan(n, flags.read(), flags, sums, Out::NULL), &[])?;
        let rows = self.write_at_most(first, n as usize)?.flat();
        let users = self.scratch.words(u64::from(n))?;
        // Behind the last request stands a user that there is not.
        self.cuda.driver.fill(self.stream, users.first(4 * u64::from(n)), 0xff)?;
        let mut touches = vec![Touch::InOut(rows)];
        let mut to = Out::NULL;
        if uses.is_some() {
            let at = self.write_at_most(first + 2, n as usize)?.flat();
            to = Out::at(at.address);
            touches.push(Touch::InOut(at));
        }
        let (row, user) = (Out::at(rows.address), Out::at(users.address));
        let call = classes::join_requests(n, order, pairs, from, distinct, flags.read(), row, user, to);
        self.run(&call, &touches)?;
        let ends = self.scratch.out(owners.ranks)?;
        self.run(&sort::bounds_of(owners.ranks, n, user.read(), ends), &[])?;
        self.run(&sort::counts_of(owners.ranks, ends.read(), room.counts()), &[])?;
        Ok(room)
    }

    /// Each user's requests are known.
    pub(super) fn take_requests(&self, (exchange, first): (u32, usize), found: &[u64]) -> Result<(), Fault> {
        let n = found.iter().sum::<u64>() as usize;
        self.job.learn(Symbol::Received(exchange), n);
        self.job.served(exchange, n);
        // As the CPU counts them: what each user would have sent for itself.
        let entry = 4 + if self.job.op.reads.len() > 3 * self.exchanges() { 2 } else { 0 };
        let own = found.get(self.job.env.rank).copied().unwrap_or(0) as usize;
        self.job.spared(entry * (n - own));
        let mut counts = self.call.write_counts(first + 1)?;
        let counts = counts.slice();
        check("ranks", counts.len(), found.len())?;
        counts.copy_from_slice(found);
        Ok(())
    }

    fn exchanges(&self) -> usize {
        self.job.op.action.facts().of.exchanges.len()
    }
}
