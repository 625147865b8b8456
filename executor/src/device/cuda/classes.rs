//! Classes of reuse distance on the device, and the positions of each.
//!
//! An owner knows the rows of the batches around, so classes need nothing of the host. How many positions each class
//! has the host must learn, since they have buffers and transfers of their own: when the numbers are there, ranges of the sorted
//! positions are copied to them.

use fs_kernels::cuda::catalogue::{classes, ids, sort};
use fs_kernels::cuda::driver::{Area, Driver, Memory, Touch};
use fs_kernels::cuda::lists::{Bitmap, bits_below, sort_by};
use fs_kernels::cuda::{In, Out};
use fs_schedule::{Action, Extent, Symbol, Way};

use super::Fault;
use super::ids::Ids;
use super::loaded::Name;
use super::numbers::{Room, Then};
use super::operands::Located;
use super::transfer::check;
use crate::device::cpu::reuse;
use crate::device::shards::shard_of;

/// A set of rows, with a value for each if uses are told.
struct Valued {
    set: Bitmap,
    values: In<u32>,
}

/// Rows of a batch, and two bytes of uses for each.
#[derive(Clone, Copy)]
struct Rows {
    rows: Located,
    uses: Option<Located>,
}

impl Rows {
    fn n(&self) -> u32 {
        self.rows.shape.rows as u32
    }

    fn list(&self) -> In<u32> {
        In::at(self.rows.area.address)
    }

    fn touches(&self) -> Vec<Touch> {
        [Some(self.rows), self.uses].into_iter().flatten().map(|at| Touch::In(at.area)).collect()
    }
}

impl<D: Driver> Ids<'_, D> {
    fn shard(&self, exchange: u32) -> Result<u64, Fault> {
        let (plan, table) = self.job.exchange(exchange)?;
        Ok(shard_of(table, plan.part, self.job.env.ranks))
    }

    /// The rows of a batch as a set, with the greatest last use of each, or the smallest first one.
    fn valued(&mut self, of: &Rows, shard: u64, greatest: bool) -> Result<Valued, Fault> {
        let (set, _) = self.bitmap(shard)?;
        let (n, fault, touches) = (of.n(), self.cuda.fault(), of.touches());
        let Some(uses) = of.uses else {
            self.run(&ids::bitmap_add_rows(n, of.list(), shard, set.bits, fault), &touches)?;
            return Ok(Valued { set, values: In::NULL });
        };
        self.run_all(set.of_rows(n, of.list(), Out::NULL, Out::NULL, fault), &touches)?;
        let (values, most, pairs) = (self.scratch.out(n)?, u32::from(greatest), In::at(uses.area.address));
        self.run(&classes::values_begin(n, most, values), &[])?;
        let (bits, before) = (set.bits.read(), set.before.read());
        let call = classes::values_mark(n, of.list(), shard, pairs, most, bits, before, values);
        self.run(&call, &touches)?;
        Ok(Valued { set, values: values.read() })
    }

    /// The last use by anybody of each of n rows.
    fn last_uses_of(
        &mut self,
        all: &Rows,
        shard: u64,
        (n, rows): (u32, Area),
        (to, touch): (Out<u8>, Touch),
    ) -> Result<(), Fault> {
        let of = self.valued(all, shard, true)?;
        let (bits, before) = (of.set.bits.read(), of.set.before.read());
        let call = classes::values_of(
            n,
            In::at(rows.address),
            shard,
            bits,
            before,
            of.values,
            to,
            self.cuda.fault(),
        );
        self.run(&call, &[Touch::In(rows), touch])
    }

    pub(super) fn partition(&mut self, exchange: u32, way: Way) -> Result<(), Fault> {
        let reuse = reuse(&self.call, exchange)?;
        let (plan, shard, fault) = (self.job.exchange(exchange)?.0, self.shard(exchange)?, self.cuda.fault());
        let each = 1 + usize::from(reuse.windows > 1);
        let batches = 1 + reuse.history() as usize;
        // Of batches that do not exist nothing is known: their rows were not used.
        let there = (1..batches).take_while(|h| self.call.exists(h * each)).count() + 1;
        let rows = |batch: usize| {
            let uses = (each > 1).then(|| self.read(batch * each + 1)).transpose()?;
            Ok::<_, Fault>(Rows { rows: self.read(batch * each)?, uses })
        };
        let all = (0..there).map(rows).collect::<Result<Vec<_>, _>>()?;
        let own = all[0];
        let (n, forward) = (own.n(), way == Way::Forward);
        let of_rank = || {
            let buffer = self.call.buffer_of(true, 0);
            buffer.is_some_and(|b| b.rows == Extent::Symbol(Symbol::Sent(plan.entries)))
        };
        let mut touches = vec![Touch::In(own.rows.area)];
        // The window that counts: of its first use, or of the last by anybody.
        let (mut uses, mut stride, mut read) = (In::NULL, 0, None);
        if let Some(told) = own.uses {
            (uses, stride) = if forward {
                touches.push(Touch::In(told.area));
                (In::at(told.area.address), 2)
            } else if of_rank() {
                let name = Name::LastUses(exchange);
                let kept = self.cuda.kept(self.job, name, 0..u64::from(n))?;
                touches.push(Touch::In(kept));
                read = Some(name);
                (In::at(kept.address), 1)
            } else {
                let last = self.scratch.words(u64::from(n).div_ceil(4))?;
                let to = (Out::at(last.address), Touch::InOut(last.area()));
                self.last_uses_of(&own, shard, (n, own.rows.area), to)?;
                (In::at(last.address), 1)
            };
        }
        let distance = self.scratch.words(u64::from(n))?;
        self.cuda.driver.fill(self.stream, distance.area(), 0)?;
        for (batches_away, other) in (1..).zip(&all[1..]) {
            let of = self.valued(other, shard, forward)?;
            let call = classes::distance_mark(
                n,
                own.list(),
                shard,
                uses,
                stride,
                batches_away,
                reuse.windows,
                u32::from(forward),
                of.set.bits.read(),
                of.set.before.read(),
                of.values,
                Out::at(distance.address),
                fault,
            );
            self.run(&call, &touches)?;
        }
        let numbers = self.cuda.shelf.classes.get(exchange as usize).map(|own| own[usize::from(!forward)]);
        let numbers = numbers.ok_or(Fault::NoExchange { exchange })?;
        let out = self.write(0)?;
        touches.push(Touch::Out(out.area));
        let call = classes::classes_of(
            n,
            uses,
            stride,
            In::at(distance.address),
            reuse.lookahead,
            reuse.windows,
            In::at(numbers.address),
            Out::at(out.area.address),
            fault,
        );
        self.run(&call, &touches)?;
        read.map_or(Ok(()), |name| self.cuda.kept_read(self.job, name, self.stream))
    }

    /// What all ranks use of a replicated table is known: the last use of each of this rank's own rows is kept.
    pub(super) fn keep_last_uses(
        &mut self,
        exchange: u32,
        (rows, uses): (Located, Located),
        own: Located,
    ) -> Result<(), Fault> {
        let (shard, n) = (self.shard(exchange)?, own.shape.rows as u32);
        let kept = self.cuda.keep(self.job, Name::LastUses(exchange), self.stream, u64::from(n))?;
        let all = Rows { rows, uses: Some(uses) };
        self.last_uses_of(&all, shard, (n, own.area), (Out::at(kept.address), Touch::Out(kept)))
    }

    pub(super) fn positions(&mut self, exchange: u32, way: Way) -> Result<(Room, Then), Fault> {
        let kinds = reuse(&self.call, exchange)?.count(way) as u32;
        let list = self.read(0)?;
        let n = list.shape.rows as u32;
        let mut ends = Vec::new();
        for count in self.call.read_counts(1)?.slice()? {
            ends.push(ends.last().copied().unwrap_or(0) + *count as u32);
        }
        check("entries", n as usize, ends.last().map_or(0, |end| *end as usize))?;
        let (ranks, of_ranks) = (ends.len() as u32, In::at(self.up(&ends)?));
        let room = self.room((kinds * ranks) as usize)?;
        let (keys, work) = (self.scratch.out(n)?, self.scratch.sorting(n)?);
        let call = classes::class_keys(n, In::at(list.area.address), kinds, keys, room.fault());
        self.run(&call, &[Touch::In(list.area)])?;
        let (calls, sorted) = sort_by(n, bits_below(u64::from(kinds)), keys.read(), In::NULL, &work, 0);
        self.run_all(calls, &[])?;
        let of_classes = self.scratch.out(kinds)?;
        self.run(&sort::bounds_of(kinds, n, sorted.keys, of_classes), &[])?;
        let (sorted, at) = (sorted.values, of_classes.read());
        self.run(&classes::count_by_class(kinds, ranks, sorted, at, of_ranks, room.counts()), &[])?;
        Ok((room, Then::Positions(sorted)))
    }

    /// How many positions each class has is known.
    pub(super) fn take_positions(&mut self, sorted: In<u32>, found: &[u64]) -> Result<(), Fault> {
        let Action::Positions { exchange, way } = self.job.op.action else { return Err(Fault::NotTransfer) };
        let entries = self.job.exchange(exchange)?.0.entries;
        let owner = self
            .call
            .buffer_of(false, 0)
            .is_some_and(|b| b.rows == Extent::Symbol(Symbol::Received(exchange)));
        let ranks = self.job.env.ranks.max(1);
        let (mut copies, mut start) = (Vec::new(), 0);
        for (class, numbers) in found.chunks_exact(ranks).enumerate() {
            let (number, n) = (class as u32, numbers.iter().sum::<u64>());
            let size = if owner {
                Symbol::ReceivedClass(exchange, way, number)
            } else {
                Symbol::SentClass(entries, way, number)
            };
            self.job.learn(size, n as usize);
            if !owner && way == Way::Forward {
                self.job.asked(exchange, class, n as usize);
            }
            let from = Memory { address: sorted.0 + 4 * start, bytes: 4 * n };
            copies.push((from.area(), self.write(2 * class)?.flat()));
            start += n;
            let mut counts = self.call.write_counts(2 * class + 1)?;
            let counts = counts.slice();
            check("ranks", counts.len(), ranks)?;
            counts.copy_from_slice(numbers);
        }
        Ok(self.cuda.driver.copy(self.stream, &copies)?)
    }
}
