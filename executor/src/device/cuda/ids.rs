//! Ids on the device: drawn, copied, and made entries of an exchange.
//!
//! How many entries there are, and how many of them each owner has, the host must learn: a few words come down, and until
//! they have the operation is under way. Kernels do not wait for that: they are launched with as many entries as there are ids,
//! and what lies behind the last entry is not looked at. Ids that no row has set a word that comes down with the numbers,
//! and the host, which has them, says which.

use fs_kernels::cuda::catalogue::{ids, sort};
use fs_kernels::cuda::driver::{Area, Driver, DriverError, Memory, Stream, Touch};
use fs_kernels::cuda::lists::{Bitmap, Sorted, Sorting, bits_below, scan_room, sort_by};
use fs_kernels::cuda::{Call as Launched, In, Out};
use fs_schedule::{Action, Exchange, Operand, Place, Sharding, Site, Symbol, Table};

use super::kernels::{Enqueued, Scratch};
use super::loaded::Name;
use super::numbers::{Numbers, Room, Then};
use super::operands::Located;
use super::plain::{Plain, bytes_of, values_of};
use super::transfer::{asked_of, check};
use super::{Cuda, Fault, Job, Lane};
use crate::data::share::Column;
use crate::device::cpu::arena::ColumnRange;
use crate::device::cpu::{Call, Found, Rails, bound_lists, reuse, shape};
use crate::device::shards::rows_per_rank;

/// An operation on ids that is being enqueued.
pub(super) struct Ids<'a, D: Driver> {
    pub(super) cuda: &'a Cuda<D>,
    pub(super) job: &'a Job<'a>,
    /// What the host knows of it.
    pub(super) call: Call<'a, f32>,
    pub(super) stream: Stream,
    pub(super) scratch: Scratch<'a, D>,
}

/// Ids that an operation reads.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) area: Area,
    pub(super) n: u32,
    /// If they are of an input.
    name: Option<Name>,
}

impl<D: Driver> Scratch<'_, D> {
    /// For sorting so many items.
    pub(super) fn sorting(&mut self, n: u32) -> Result<Sorting, Fault> {
        let counts = Sorting::counts(n);
        Ok(Sorting {
            keys: [self.out(n)?, self.out(n)?],
            values: [self.out(n)?, self.out(n)?],
            counts: self.out(counts)?,
            sums: self.out(scan_room(counts) as u32)?,
        })
    }

    /// Room for so many ids.
    pub(super) fn ids(&mut self, n: u32) -> Result<Memory, Fault> {
        self.words(2 * u64::from(n))
    }
}

impl<D: Driver> Cuda<D> {
    /// Enqueues an operation on ids, if it is one of this rank alone.
    pub(super) fn enqueue_ids(&self, lane: &Lane, job: &Job<'_>, stream: Stream) -> Result<Enqueued, Fault> {
        let mut ids = Ids::new(self, lane, job, stream);
        let then = match &job.op.action {
            Action::DrawNegatives { table, lengths, count, stream } => {
                ids.draw_negatives(*table, *lengths, *count, *stream).map(|()| None)
            }
            Action::CopyIds => ids.copy_ids().map(|()| None),
            Action::Unique { exchange } => ids.unique(*exchange).map(Some),
            Action::UniqueFor { exchange } => ids.unique_for(*exchange).map(Some),
            Action::UniqueAsked { exchange } => ids.unique_asked(*exchange).map(Some),
            Action::PassClasses { .. } => ids.pass_classes().map(|()| None),
            Action::PassRows { class, .. } => ids.pass_rows(*class).map(|()| None),
            Action::SumAsked { class, .. } => ids.sum_asked(*class).map(|()| None),
            Action::Partition { exchange, way } => ids.partition(*exchange, *way).map(|()| None),
            Action::Positions { exchange, way } => ids.positions(*exchange, *way).map(Some),
            _ => return Ok(Enqueued::No),
        };
        match then {
            Ok(Some((room, then))) => ids.numbers(room, then).map(Enqueued::Numbers),
            done => ids.scratch.end().and(done).map(|_| Enqueued::Done),
        }
    }

    /// Whether numbers are there; then the operation ends.
    pub(super) fn learn(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        numbers: Numbers,
    ) -> Result<Option<Numbers>, Fault> {
        if !self.driver.has_come(numbers.staging.free)? {
            return Ok(Some(numbers));
        }
        let stream = self.order.stream(job);
        // Others may have been started behind it.
        self.driver.resume(stream, &job.op.name);
        let mut ids = Ids::new(self, lane, job, stream);
        let done = ids.take_numbers(numbers);
        ids.scratch.end().and(done)?;
        self.order.end(&*self.driver, job)?;
        Ok(None)
    }
}

impl<'a, D: Driver> Ids<'a, D> {
    pub(super) fn new(cuda: &'a Cuda<D>, lane: &'a Lane, job: &'a Job<'a>, stream: Stream) -> Self {
        let (call, scratch) = (Call::new(&cuda.host, &lane.work, job), Scratch::new(cuda, stream));
        Self { cuda, job, call, stream, scratch }
    }

    pub(super) fn run(&self, call: &Launched, touches: &[Touch]) -> Result<(), Fault> {
        self.cuda.run(self.stream, call, touches)
    }

    /// Calls of which only some touch an operand: the others find nothing else than scratch.
    pub(super) fn run_all(
        &self,
        calls: impl IntoIterator<Item = Launched>,
        touches: &[Touch],
    ) -> Result<(), Fault> {
        calls.into_iter().try_for_each(|call| self.run(&call, touches))
    }

    pub(super) fn read(&self, position: usize) -> Result<Located, Fault> {
        self.cuda.read_operand(self.job, position, self.stream)
    }

    pub(super) fn write(&self, position: usize) -> Result<Located, Fault> {
        self.cuda.written_operand(self.job, position, self.stream).map(|(at, _)| at)
    }

    /// A result of which the host only knows that it has no more rows than these.
    pub(super) fn write_at_most(&self, position: usize, rows: usize) -> Result<Located, Fault> {
        let wrong = || self.call.wrong(true, position, "a buffer on the device");
        let operand = *self.job.op.writes.get(position).ok_or_else(wrong)?;
        let Place::Buffer(n) = operand.place else { return Err(wrong()) };
        let buffer = self.job.program.buffers.get(n as usize).ok_or_else(wrong)?;
        let batch = self.job.batch_of(operand).ok_or_else(wrong)?;
        let shape = ColumnRange::whole(rows, buffer.columns as usize);
        let width = buffer.element.row_bytes(buffer.columns);
        let bytes = rows as u64 * width;
        let memory = self
            .cuda
            .buffers
            .get(&*self.cuda.driver, (buffer, batch), bytes, self.stream, true)?
            .ok_or_else(wrong)?;
        let area = Area { address: memory.address, width, rows: rows as u64, pitch: width };
        Ok(Located { area, shape, element: buffer.element })
    }

    /// Numbers of the host, on the device for the length of the operation.
    pub(super) fn up<E: Plain>(&mut self, values: &[E]) -> Result<u64, Fault> {
        let bytes = bytes_of(values);
        let memory = self.scratch.words((bytes.len() as u64).div_ceil(4))?;
        self.cuda.send(self.stream, &bytes, memory.first(bytes.len() as u64))?;
        Ok(memory.address)
    }

    /// Room for numbers that come down.
    pub(super) fn room(&mut self, counts: usize) -> Result<Room, Fault> {
        let memory = self.scratch.words(2 + 2 * counts as u64)?;
        self.cuda.driver.fill(self.stream, memory.first(8), 0)?;
        Ok(Room { memory, counts })
    }

    /// Numbers begin to come down. What they are about is kept until then.
    pub(super) fn numbers(self, room: Room, then: Then) -> Result<Numbers, Fault> {
        let (driver, bytes) = (&*self.cuda.driver, 8 + 8 * room.counts as u64);
        let staging = self.cuda.staging.take(driver, bytes)?;
        driver.download(self.stream, room.memory.first(bytes), (staging.pinned, 0))?;
        driver.record(self.stream, staging.free)?;
        let kept = match &then {
            Then::Entries | Then::Requests => self.scratch.end().map(|()| Vec::new())?,
            Then::Positions(_) | Then::Asked(_) => self.scratch.keep(),
        };
        Ok(Numbers { staging, counts: room.counts, then, kept })
    }

    /// They have come down.
    fn take_numbers(&mut self, numbers: Numbers) -> Result<(), Fault> {
        let Numbers { staging, counts, then, kept } = numbers;
        let mut bytes = vec![0; 8 + 8 * counts];
        self.cuda.driver.read(staging.pinned, 0, &mut bytes)?;
        self.cuda.staging.give(&*self.cuda.driver, self.stream, staging)?;
        let words: Vec<u64> = values_of(&bytes);
        self.scratch.take_back(kept);
        let (fault, counts) = words.split_first().ok_or(Fault::NotTransfer)?;
        if *fault != 0 {
            return Err(self.out_of_range(*fault));
        }
        match then {
            Then::Entries => self.take_entries(counts),
            Then::Positions(sorted) => self.take_positions(sorted, counts),
            Then::Asked(listed) => self.take_asked(listed, counts),
            Then::Requests => Err(Fault::InParts),
        }
    }

    /// Which id of the batch its table does not have, or what else a kernel has met.
    fn out_of_range(&self, fault: u64) -> Fault {
        let schedule = &self.job.env.schedule;
        let table = self.job.op.action.facts().of.exchanges.first();
        let table = table.and_then(|e| schedule.tables.get(self.job.exchange(*e).ok()?.0.table as usize));
        for (input, site) in (0..schedule.inputs.len())
            .flat_map(|input| [Site::Home, Site::Assigned].map(|site| (input, site)))
        {
            let Some(table) = table.filter(|t| schedule.input_table(input).is_some_and(|i| i.name == t.name))
            else {
                continue;
            };
            let Some(Column::Ids(ids)) = self.job.batch.share.input(schedule, input, site, None) else {
                continue;
            };
            if let Some(id) = ids.iter().find(|id| **id as u64 >= table.rows) {
                return Fault::IdOutOfRange { id: *id, table: table.name.clone(), rows: table.rows };
            }
        }
        DriverError::Misuse(format!(
            "a kernel of `{}` met an index that is out of range ({fault:#x})",
            self.job.op.name
        ))
        .into()
    }

    fn draw_negatives(&mut self, table: u32, lengths: u32, count: u32, stream: u32) -> Result<(), Fault> {
        let rows = self.job.env.schedule.tables.get(table as usize).ok_or(Fault::NoTable { table })?.rows;
        let out = self.write(0)?;
        let keys = self.job.span().token_keys(lengths as usize).to_vec();
        let [a, b] = self.job.key(stream).mixed();
        let at = In::at(self.up(&keys)?);
        let call = ids::negatives(keys.len() as u32, count, a, b, rows, at, Out::at(out.area.address));
        self.run(&call, &[Touch::Out(out.area)])
    }

    fn copy_ids(&mut self) -> Result<(), Fault> {
        let (from, to) = (self.list(0, self.job.op.microbatch)?, self.write(0)?);
        self.cuda.driver.copy(self.stream, &[(from.area, to.flat())])?;
        self.have_read(&[from])
    }

    /// Ids of an input or of a buffer.
    pub(super) fn list(&self, position: usize, microbatch: Option<u32>) -> Result<List, Fault> {
        let Some(column) = self.call.input(position, microbatch)? else {
            let at = self.read(position)?;
            return Ok(List { area: at.flat(), n: (at.shape.rows * at.shape.columns()) as u32, name: None });
        };
        let (Column::Ids(ids), Some(Operand { place: Place::Input(input), .. })) =
            (column, self.job.op.reads.get(position))
        else {
            return Err(self.call.wrong(false, position, "ids"));
        };
        let (group, site) = (shape(&self.call, position)?.0, self.job.op.site);
        let begin = 8 * self.job.batch.share.part(site, microbatch).tokens(group).start as u64;
        let name = Name::Input(site, *input as usize);
        let area = self.cuda.kept(self.job, name, begin..begin + 8 * ids.len() as u64)?;
        Ok(List { area, n: ids.len() as u32, name: Some(name) })
    }

    /// All work on lists has been enqueued.
    pub(super) fn have_read(&self, lists: &[List]) -> Result<(), Fault> {
        let mut names = lists.iter().filter_map(|list| list.name);
        names.try_for_each(|name| self.cuda.kept_read(self.job, name, self.stream))
    }

    /// The slots of ids, one list after the other.
    fn slots(&mut self, table: u32, lists: &[List], fault: Out<u32>) -> Result<Memory, Fault> {
        let rows = self.job.env.schedule.tables.get(table as usize).ok_or(Fault::NoTable { table })?.rows;
        let out = self.scratch.ids(lists.iter().map(|list| list.n).sum())?;
        let slots = self.cuda.shelf.slots(table as usize);
        let mut at = out.address;
        for list in lists {
            let call = ids::slots_of_ids(
                list.n,
                In::at(list.area.address),
                rows,
                slots.permutation,
                slots.moved,
                slots.places,
                In::NULL,
                0,
                Out::at(at),
                fault,
            );
            self.run(&call, &[Touch::In(list.area)])?;
            at += list.area.bytes();
        }
        Ok(out)
    }

    /// A set of numbers below a limit, with nothing in it.
    pub(super) fn bitmap(&mut self, limit: u64) -> Result<(Bitmap, Memory), Fault> {
        let bits = self.scratch.words(Bitmap::words(limit) as u64)?;
        self.cuda.driver.fill(self.stream, bits.area(), 0)?;
        let set = Bitmap {
            limit,
            bits: Out::at(bits.address),
            before: self.scratch.out(Bitmap::groups(limit))?,
            sums: self.scratch.out(Bitmap::tiles(limit))?,
        };
        Ok((set, bits))
    }

    /// Each of n ids once, ascending, in `entries`, behind which stand greater numbers than ids; where each stands among them.
    pub(super) fn distinct(
        &mut self,
        (n, list, limit): (u32, In<i64>, u64),
        entries: Area,
        touches: &[Touch],
        fault: Out<u32>,
    ) -> Result<Memory, Fault> {
        let (set, _) = self.bitmap(limit)?;
        let inverse = self.scratch.words(u64::from(n))?;
        self.cuda.driver.fill(self.stream, entries, 0xff)?;
        let members = Out::at(entries.address);
        let calls = set.of_ids(n, list, members, Out::at(inverse.address), Out::NULL, fault);
        self.run_all(calls, touches)?;
        Ok(inverse)
    }

    /// Every one of n ids, in the order of its key, stably; where each stands.
    pub(super) fn grouped(
        &mut self,
        (n, list): (u32, In<i64>),
        (keys, below): (In<u32>, u64),
        (entries, touches): (Area, &[Touch]),
        fault: Out<u32>,
    ) -> Result<(Memory, Sorted), Fault> {
        let work = self.scratch.sorting(n)?;
        let inverse = self.scratch.words(u64::from(n))?;
        let (calls, sorted) = sort_by(n, bits_below(below), keys, In::NULL, &work, 0);
        self.run_all(calls, &[])?;
        let (to, at) = (Out::at(entries.address), Out::at(inverse.address));
        self.run(&ids::place_entries(n, sorted.values, list, to, at, fault), touches)?;
        Ok((inverse, sorted))
    }

    /// First and last window of each of at most n entries, as two bytes.
    pub(super) fn uses(
        &mut self,
        exchange: u32,
        lists: &[List],
        inverse: In<u32>,
        uses: Area,
        fault: Out<u32>,
    ) -> Result<(), Fault> {
        let n: u32 = lists.iter().map(|list| list.n).sum();
        let mut ends = Vec::new();
        let windows = reuse(&self.call, exchange)?.windows;
        bound_lists(windows, lists.iter().map(|list| list.n as usize), &mut ends);
        let ends: Vec<u32> = ends.into_iter().map(|end| end as u32).collect();
        let boundaries = In::at(self.up(&ends)?);
        let (first, last) = (self.scratch.out(n)?, self.scratch.out(n)?);
        self.run(&ids::uses_begin(n, first, last), &[])?;
        let call = ids::uses_mark(n, inverse, ends.len() as u32, boundaries, n, first, last, fault);
        self.run(&call, &[])?;
        let call = ids::uses_end(n, first.read(), last.read(), Out::at(uses.address));
        self.run(&call, &[Touch::Out(uses)])
    }

    /// Rows of each owner of a table, and how many there are; one where all entries are asked of one rank.
    pub(super) fn shares(&self, table: &Table) -> (u64, u32) {
        match &table.sharding {
            Sharding::RowWise => (rows_per_rank(table.rows, self.job.env.ranks), self.job.env.ranks as u32),
            _ => (table.rows, 1),
        }
    }

    /// Of several owners, those that one relay stands for are asked one after the other.
    fn rails(&self, exchange: &Exchange, owners: u32) -> Option<&'a Rails> {
        (owners > 1 && exchange.leg.between().is_some()).then_some(&self.cuda.host.rails)
    }

    /// Slots of a table whose owners come in another order.
    fn in_order(
        &mut self,
        (n, slots): (u32, Memory),
        (rows, owners): (u64, u32),
        to: &[u32],
        touches: &[Touch],
    ) -> Result<(), Fault> {
        let to = In::at(self.up(to)?);
        self.run(&ids::slots_in_order(n, Out::at(slots.address), rows, owners, to), touches)
    }

    fn unique(&mut self, exchange: u32) -> Result<(Room, Then), Fault> {
        let (listed, table) = self.job.exchange(exchange)?;
        let plan = self.owned(listed)?;
        let (rows, owners) = self.shares(table);
        let rails = self.rails(plan, owners);
        let behind = rows.saturating_mul(u64::from(owners));
        let hot = self.hot(listed, table, rows);
        let found = Found::of(listed, self.job.op.reads.len(), self.job.op.writes.len());
        let (with_uses, inverses) = (found.uses, found.inverses());
        let mut lists = Vec::with_capacity(self.job.op.reads.len());
        for position in 0..self.job.op.reads.len() {
            let microbatch = self.call.buffer_of(true, inverses + position).and_then(|b| b.microbatch);
            lists.push(self.list(position, microbatch)?);
        }
        let n: u32 = lists.iter().map(|list| list.n).sum();
        let places = owners + hot.map_or(0, |hot| hot.owners);
        let room = self.room(places as usize)?;
        let slots = self.slots(plan.table, &lists, room.fault())?;
        if let Some(hot) = hot {
            self.slots_of_hot(&lists, hot, behind, slots)?;
        }
        self.have_read(&lists)?;
        if let Some(rails) = rails {
            self.in_order((n, slots), (rows, owners), rails.places(), &[])?;
        }
        let list = In::at(slots.address);
        let (limit, fault) = (behind.saturating_add(hot.map_or(0, |hot| hot.rows)), room.fault());
        let entries = self.write_at_most(0, n as usize)?.flat();
        let touches = [Touch::InOut(entries)];
        let inverse = if plan.unique {
            self.distinct((n, list, limit), entries, &touches, fault)?
        } else {
            let (keys, below) = if plan.folded {
                // Ascending: by where each stands among the distinct ones.
                let members = self.scratch.ids(n)?.first(8 * u64::from(n));
                let ranks = self.distinct((n, list, limit), members, &[], fault)?;
                (In::at(ranks.address), u64::from(n))
            } else {
                let keys = self.scratch.out(n)?;
                self.run(&ids::owners_of_ids(n, list, limit, rows, places, limit, keys, fault), &[])?;
                (keys.read(), u64::from(places))
            };
            let (inverse, sorted) = self.grouped((n, list), (keys, below), (entries, &touches), fault)?;
            if !plan.folded {
                let ends = self.scratch.out(places)?;
                self.run(&sort::bounds_of(places, n, sorted.keys, ends), &[])?;
                self.run(&sort::counts_of(places, ends.read(), room.counts()), &[])?;
            }
            inverse
        };
        if plan.unique || plan.folded {
            let call = ids::count_by_owner(places, n, In::at(entries.address), rows, room.counts());
            self.run(&call, &[Touch::In(entries)])?;
        }
        if let Some(rails) = rails {
            let memory = Memory { address: entries.address, bytes: entries.bytes() };
            self.in_order((n, memory), (rows, owners), rails.owners(), &touches)?;
        }
        let mut uses = None;
        if with_uses {
            let all = if listed.shares.is_some() {
                self.scratch.words(u64::from(n).div_ceil(2))?.first(2 * u64::from(n))
            } else {
                self.write_at_most(2, n as usize)?.flat()
            };
            self.uses(exchange, &lists, In::at(inverse.address), all, fault)?;
            uses = Some(all);
        }
        if listed.shares.is_some() {
            self.cut_shares(found, (n, entries), uses, (behind, limit))?;
        }
        let mut copies = Vec::with_capacity(lists.len());
        let mut at = 0;
        for (i, list) in lists.iter().enumerate() {
            let to = self.write(inverses + i)?.flat();
            copies.push((inverse.from(at, 4 * u64::from(list.n)), to));
            at += 4 * u64::from(list.n);
        }
        self.cuda.driver.copy(self.stream, &copies)?;
        Ok((room, Then::Entries))
    }

    /// Entries of each owner are known.
    fn take_entries(&self, found: &[u64]) -> Result<(), Fault> {
        let (Action::Unique { exchange } | Action::UniqueAsked { exchange }) = self.job.op.action else {
            return Err(Fault::NotTransfer);
        };
        let (listed, table) = self.job.exchange(exchange)?;
        let plan = self.owned(listed)?;
        let all: u64 = found.iter().sum();
        self.job.learn(Symbol::Sent(exchange), all as usize);
        let (mut found, mut position) = (found, 1);
        if let Some(shares) = listed.shares {
            let at = Found::of(listed, self.job.op.reads.len(), self.job.op.writes.len());
            position = at.at(0) + 1;
            let hot;
            (found, hot) = found.split_at(found.len().min(self.shares(table).1 as usize));
            let hot: u64 = hot.iter().sum();
            self.job.learn(Symbol::Sent(shares.owned), (all - hot) as usize);
            self.job.learn(Symbol::Sent(shares.hot), hot as usize);
            let mut counts = self.call.write_counts(at.at(1) + 1)?;
            let counts = counts.slice();
            check("ranks", counts.len(), self.job.env.ranks)?;
            counts.fill(0);
            counts[self.job.env.rank] = hot;
        }
        let n: u64 = found.iter().sum();
        let mut counts = self.call.write_counts(position)?;
        let counts = counts.slice();
        check("ranks", counts.len(), self.job.env.ranks)?;
        counts.fill(0);
        if table.sharding == Sharding::RowWise {
            let rails = self.rails(plan, found.len() as u32);
            for (place, n) in found.iter().enumerate() {
                counts[rails.map_or(place, |rails| rails.relay(place))] += n;
            }
            return Ok(());
        }
        let owner = asked_of(self.job, plan, table).unwrap_or(self.job.env.rank);
        let ranks = self.job.env.ranks;
        let missing = || Fault::NoOwner { table: table.name.clone(), owner, ranks };
        *counts.get_mut(owner).ok_or_else(missing)? = n;
        Ok(())
    }
}
