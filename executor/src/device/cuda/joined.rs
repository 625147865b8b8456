//! One launch for operations that are the same for a table each.
//!
//! A [`Joining`] driver hands on what it is told, but for streams in which a group of such operations begins: what these
//! are told is put into a list for each member, and once the last member's is there the lists are gone through side by side. Launches of one kernel
//! that stand first in several lists are [one](fs_kernels::cuda::joined); so are fills, copies, and what goes up and comes down. What stands
//! first in one list and comes later in others waits for them, so lists line up again behind what only some of them have. Each
//! list keeps its own order, and members are independent of each other, so what comes out is what they would have made one after the other.
//!
//! Memory is handed out when it is asked for, and taken back when all lists are through: what a member gives back no other gets. Waits are
//! told at once, so all of the group comes after what any of it waits for. An event that stands in a list has
//! not come; should another stream wait for one, the lists are told as far as they are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

use fs_kernels::cuda::catalogue::sort;
use fs_kernels::cuda::driver::{
    Area, Copies, Driver, DriverError, Event, Facts, Launch, Memory, Pinned, Product, Stream, Touch,
};
use fs_kernels::cuda::joined::{MOST, alike};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, Out};
use parking_lot::Mutex;

/// What a member was told.
#[derive(Debug)]
enum Item {
    Launch(Box<Call>, Vec<Touch>),
    Fill(Area, u8),
    Copy(Vec<(Area, Area)>),
    Up((Pinned, u64), Area),
    Down(Area, (Pinned, u64)),
    Record(Event),
}

impl Item {
    /// Whether both can be done at once.
    fn goes_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch(a, _), Self::Launch(b, _)) => alike(a, b),
            (Self::Record(_), _) => false,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

#[derive(Debug)]
struct Member {
    name: String,
    /// The driver knows its name.
    named: bool,
    items: VecDeque<Item>,
}

impl Member {
    /// Whether its list has more than events.
    fn has_work(&self) -> bool {
        self.items.iter().any(|item| !matches!(item, Item::Record(_)))
    }
}

/// A group whose members are being started.
#[derive(Debug)]
struct Group {
    by: ThreadId,
    members: Vec<Member>,
    /// What they no longer need.
    released: Vec<Memory>,
}

impl Group {
    fn put(&mut self, item: Item) {
        if let Some(member) = self.members.last_mut() {
            member.items.push_back(item);
        }
    }

    fn has(&self, event: Event) -> bool {
        let mut items = self.members.iter().flat_map(|member| &member.items);
        items.any(|item| matches!(item, Item::Record(own) if *own == event))
    }

    /// Members whose first items can be done at once, and least keep others waiting.
    fn next(&self) -> Vec<usize> {
        let heads: Vec<(usize, &Item)> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.has_work())
            .filter_map(|(n, member)| Some((n, member.items.front()?)))
            .collect();
        let of = |item: &Item| -> Vec<usize> {
            heads.iter().filter(|(_, other)| item.goes_with(other)).map(|(n, _)| *n).collect()
        };
        let Some((first, item)) = heads.first() else { return Vec::new() };
        let mut best = of(item);
        if best.is_empty() {
            return vec![*first];
        }
        if best.len() == heads.len() {
            return best;
        }
        let later = |own: &[usize], item: &Item| {
            let others = self.members.iter().enumerate().filter(|(n, _)| !own.contains(n));
            others.filter(|(_, other)| other.items.iter().any(|other| item.goes_with(other))).count()
        };
        let mut least = later(&best, item);
        let mut seen = best.clone();
        for (n, item) in &heads {
            if seen.contains(n) {
                continue;
            }
            let mut own = of(item);
            if own.is_empty() {
                own.push(*n);
            }
            seen.extend(&own);
            let waiting = later(&own, item);
            if waiting < least {
                (best, least) = (own, waiting);
            }
        }
        best
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Joining<D> {
    own: Arc<D>,
    groups: Mutex<BTreeMap<Stream, Group>>,
    /// How many groups there are: usually none.
    open: AtomicUsize,
}

impl<D: Driver> Joining<D> {
    pub(super) fn new(own: Arc<D>) -> Self {
        Self { own, groups: Mutex::default(), open: AtomicUsize::new(0) }
    }

    /// Whether both are of one device.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.own, &other.own)
    }

    /// What the calling thread tells the stream from now on is of a group; each member has a [name](Driver::name).
    pub(super) fn join(&self, stream: Stream) -> Result<(), DriverError> {
        self.part(stream)?;
        let group = Group { by: std::thread::current().id(), members: Vec::new(), released: Vec::new() };
        self.groups.lock().insert(stream, group);
        self.open.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The group in a stream, if there is one, is whole.
    pub(super) fn part(&self, stream: Stream) -> Result<(), DriverError> {
        if self.open.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut groups = self.groups.lock();
        let Some(mut group) = groups.remove(&stream) else { return Ok(()) };
        let told = self.tell(stream, &mut group);
        self.open.fetch_sub(1, Ordering::Release);
        told
    }

    /// Records an event for what was told at once.
    pub(super) fn record_now(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.own.record(stream, event)
    }

    /// Does something with the group in a stream, if the calling thread has one there.
    fn grouped<R>(&self, stream: Stream, then: impl FnOnce(&mut Group) -> R) -> Option<R> {
        if self.open.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut groups = self.groups.lock();
        let group = groups.get_mut(&stream).filter(|group| group.by == std::thread::current().id())?;
        (!group.members.is_empty()).then(|| then(group))
    }

    /// Puts something into the list of a group's last member, or does it.
    fn put(
        &self,
        stream: Stream,
        item: impl FnOnce() -> Item,
        or: impl FnOnce(&D) -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        self.grouped(stream, |group| group.put(item())).map_or_else(|| or(&self.own), Ok)
    }

    /// Tells what the lists of a stream's group have so far.
    fn tell_so_far(&self, stream: Stream) -> Result<(), DriverError> {
        if self.open.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        match self.groups.lock().get_mut(&stream) {
            Some(group) => self.tell(stream, group),
            None => Ok(()),
        }
    }

    fn tell(&self, stream: Stream, group: &mut Group) -> Result<(), DriverError> {
        for member in group.members.iter_mut().filter(|member| !member.named) {
            self.own.name(stream, &member.name);
            member.named = true;
        }
        loop {
            for member in group.members.iter_mut().filter(|member| member.has_work()) {
                self.record_first(stream, member)?;
            }
            let next = group.next();
            if next.is_empty() {
                break;
            }
            let items =
                next.iter().filter_map(|n| Some((*n, group.members[*n].items.pop_front()?))).collect();
            self.at_once(stream, group, items)?;
        }
        // Who waits for a member need not wait for those before it, so what stands for its end comes after theirs.
        group.members.iter_mut().try_for_each(|member| self.record_first(stream, member))?;
        let released = std::mem::take(&mut group.released);
        released.into_iter().try_for_each(|memory| self.own.release(stream, memory))
    }

    /// Records the events that stand first in a list.
    fn record_first(&self, stream: Stream, member: &mut Member) -> Result<(), DriverError> {
        if matches!(member.items.front(), Some(Item::Record(_))) {
            self.own.resume(stream, &member.name);
        }
        while let Some(Item::Record(event)) = member.items.front() {
            self.own.record(stream, *event)?;
            member.items.pop_front();
        }
        Ok(())
    }

    /// Does what goes together.
    fn at_once(&self, stream: Stream, group: &Group, items: Vec<(usize, Item)>) -> Result<(), DriverError> {
        let name = |n: usize| group.members[n].name.as_str();
        if let Some((n, _)) = items.first() {
            self.own.resume(stream, name(*n));
        }
        let (mut launches, mut copies, mut up, mut down) = (vec![], vec![], vec![], vec![]);
        let alone = items.len() == 1;
        for (n, item) in items {
            match item {
                Item::Launch(call, touches) => launches.push((n, *call, touches)),
                Item::Fill(area, byte) => match words(area, byte).filter(|_| !alone) {
                    Some(call) => launches.push((n, call, vec![Touch::Out(area.joined())])),
                    None => self.own.fill(stream, area, byte)?,
                },
                Item::Copy(own) => copies.extend(own),
                Item::Up(from, to) => up.push((from, to)),
                Item::Down(from, to) => down.push((from, to)),
                Item::Record(event) => self.own.record(stream, event)?,
            }
        }
        for some in launches.chunks(MOST) {
            let launch = |(n, call, touches)| (Launch { call, touches }, name(n));
            match some {
                [(_, call, touches)] => self.own.launch(stream, &Launch { call, touches })?,
                some => {
                    let some = some.iter().map(|(n, call, touches)| launch((*n, call, touches)));
                    self.own.launch_joined(stream, &some.collect::<Vec<_>>())?;
                }
            }
        }
        if !copies.is_empty() {
            self.own.copy(stream, &copies)?;
        }
        match &up[..] {
            [] => {}
            [(from, to)] => self.own.upload(stream, *from, *to)?,
            all => self.own.upload_all(stream, all)?,
        }
        match &down[..] {
            [] => Ok(()),
            [(from, to)] => self.own.download(stream, *from, *to),
            all => self.own.download_all(stream, all),
        }
    }
}

/// A fill by a kernel, if it is one of whole words.
fn words(area: Area, byte: u8) -> Option<Call> {
    let area = area.joined();
    let whole = area.rows == 1 && area.address.is_multiple_of(4) && area.width.is_multiple_of(4);
    let value = u32::from_ne_bytes([byte; 4]);
    whole.then(|| sort::fill_words(value, area.width / 4, Out::at(area.address)))
}

impl<D: Driver> Driver for Joining<D> {
    fn facts(&self) -> &Facts {
        self.own.facts()
    }

    fn prepare(&self, precision: Precision) -> Result<(), DriverError> {
        self.own.prepare(precision)
    }

    fn stream(&self, priority: i32) -> Result<Stream, DriverError> {
        self.own.stream(priority)
    }

    fn event(&self) -> Result<Event, DriverError> {
        self.own.event()
    }

    fn timer(&self) -> Result<Event, DriverError> {
        self.own.timer()
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        self.own.elapsed(from, to)
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        self.put(stream, || Item::Record(event), |own| own.record(stream, event))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        if self.open.load(Ordering::Acquire) > 0 {
            let mut groups = self.groups.lock();
            let holder = groups.iter_mut().find(|(_, group)| group.has(event));
            match holder {
                // What the stream is told from now on comes after it.
                Some((own, _)) if *own == stream => return Ok(()),
                Some((own, group)) => self.tell(*own, group)?,
                None => {}
            }
        }
        self.own.wait(stream, event)
    }

    fn has_come(&self, event: Event) -> Result<bool, DriverError> {
        if self.open.load(Ordering::Acquire) > 0 && self.groups.lock().values().any(|g| g.has(event)) {
            return Ok(false);
        }
        self.own.has_come(event)
    }

    fn allocate(&self, stream: Stream, bytes: u64) -> Result<Memory, DriverError> {
        self.own.allocate(stream, bytes)
    }

    fn release(&self, stream: Stream, memory: Memory) -> Result<(), DriverError> {
        let kept = self.grouped(stream, |group| group.released.push(memory));
        kept.map_or_else(|| self.own.release(stream, memory), Ok)
    }

    fn pin(&self, bytes: u64) -> Result<Pinned, DriverError> {
        self.own.pin(bytes)
    }

    fn unpin(&self, pinned: Pinned) -> Result<(), DriverError> {
        self.own.unpin(pinned)
    }

    fn read(&self, pinned: Pinned, offset: u64, to: &mut [u8]) -> Result<(), DriverError> {
        self.own.read(pinned, offset, to)
    }

    fn write(&self, pinned: Pinned, offset: u64, from: &[u8]) -> Result<(), DriverError> {
        self.own.write(pinned, offset, from)
    }

    fn upload(&self, stream: Stream, from: (Pinned, u64), to: Area) -> Result<(), DriverError> {
        self.put(stream, || Item::Up(from, to), |own| own.upload(stream, from, to))
    }

    fn download(&self, stream: Stream, from: Area, to: (Pinned, u64)) -> Result<(), DriverError> {
        self.put(stream, || Item::Down(from, to), |own| own.download(stream, from, to))
    }

    fn copy(&self, stream: Stream, copies: &[(Area, Area)]) -> Result<(), DriverError> {
        self.put(stream, || Item::Copy(copies.to_vec()), |own| own.copy(stream, copies))
    }

    fn fill(&self, stream: Stream, area: Area, byte: u8) -> Result<(), DriverError> {
        if area.is_empty() {
            return Ok(());
        }
        self.put(stream, || Item::Fill(area, byte), |own| own.fill(stream, area, byte))
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DriverError> {
        if launch.call.shape.is_empty() {
            return Ok(());
        }
        let item = || Item::Launch(Box::new(launch.call.clone()), launch.touches.to_vec());
        self.put(stream, item, |own| own.launch(stream, launch))
    }

    fn product(&self, stream: Stream, product: &Product) -> Result<(), DriverError> {
        self.tell_so_far(stream)?;
        self.own.product(stream, product)
    }

    fn write_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.tell_so_far(stream)?;
        self.own.write_value(stream, at, value)
    }

    fn wait_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.tell_so_far(stream)?;
        self.own.wait_value(stream, at, value)
    }

    fn resume(&self, stream: Stream, what: &str) {
        self.own.resume(stream, what);
    }

    fn name(&self, stream: Stream, what: &str) {
        if self.open.load(Ordering::Acquire) > 0
            && let Some(group) = self.groups.lock().get_mut(&stream)
            && group.by == std::thread::current().id()
        {
            group.members.push(Member { name: what.into(), named: false, items: VecDeque::new() });
        } else {
            self.own.name(stream, what);
        }
    }

    fn watch_copies(&self) -> Result<(), DriverError> {
        self.own.watch_copies()
    }

    fn copies(&self) -> Result<Vec<Copies>, DriverError> {
        self.own.copies()
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        self.tell_so_far(stream)?;
        self.own.synchronize(stream)
    }
}
