//! What the device is asked for: work is put into queues, and the host waits or looks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::super::super::sources::Precision;
use super::super::{
    Area, Copies, Driver, DriverError, Event, Facts, Launch, Memory, Pinned, Product, Stream, Way,
    same_shape, shape,
};
use super::hazards::{Clock, Stamp};
use super::memory::{self, Block, POISON};
use super::work::{Part, Task};
use super::{Emulated, Point, Queue};

impl Driver for Emulated {
    fn facts(&self) -> &Facts {
        &self.shared.options.facts
    }

    fn prepare(&self, precision: Precision) -> Result<(), DriverError> {
        if self.shared.kernels.has(precision) { Ok(()) } else { Err(DriverError::NoPrecision(precision)) }
    }

    fn stream(&self, priority: i32) -> Result<Stream, DriverError> {
        let mut state = self.state()?;
        let number = state.streams.len() as u32;
        let user = state.users;
        state.users += 1;
        state.streams.push(Queue {
            user,
            priority,
            tasks: VecDeque::new(),
            clock: Clock::default(),
            name: "work without a name".into(),
            end: 0.0,
            busy: false,
        });
        Ok(Stream(number))
    }

    fn event(&self) -> Result<Event, DriverError> {
        let mut state = self.state()?;
        state.events.push(Point::default());
        Ok(Event(state.events.len() as u32 - 1))
    }

    fn timer(&self) -> Result<Event, DriverError> {
        self.event()
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let state = self.state()?;
        let at = |event: Event| {
            let Point { recorded, come, since, .. } = &state.events[event.0 as usize];
            let none = || DriverError::Misuse("the time of an event that has not come".into());
            since.filter(|_| come == recorded).ok_or_else(none)
        };
        let (from, to) = (at(from)?, at(to)?);
        let ns = |time: Duration| time.as_nanos() as i64;
        Ok(ns(to.saturating_duration_since(from)) - ns(from.saturating_duration_since(to)))
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let mut state = self.state()?;
        let event = event.0 as usize;
        state.events[event].name = Some(Arc::clone(&state.streams[stream.0 as usize].name));
        state.events[event].recorded += 1;
        let record = state.events[event].recorded;
        state.push(stream, Task::Record { event, record });
        self.shared.work.notify_one();
        Ok(())
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let mut state = self.state()?;
        let event = event.0 as usize;
        let record = state.events[event].recorded;
        state.push(stream, Task::Wait { event, record });
        self.shared.work.notify_one();
        Ok(())
    }

    fn has_come(&self, event: Event) -> Result<bool, DriverError> {
        let mut state = self.looked()?;
        let Point { recorded, come, clock, at, name, .. } = state.events[event.0 as usize].clone();
        if come < recorded || name.is_some() && name == state.unseen {
            return Ok(false);
        }
        state.host().1.join(&clock);
        state.now = state.now.max(at);
        Ok(true)
    }

    fn allocate(&self, stream: Stream, bytes: u64) -> Result<Memory, DriverError> {
        let mut state = self.state()?;
        let free = self.facts().memory.saturating_sub(state.blocks.held);
        let none = DriverError::NoMemory { bytes, free };
        if bytes > free {
            return Err(none);
        }
        let address = state.blocks.add(bytes, POISON).ok_or(none)?;
        // Whoever does not wait for the stream has no right to it.
        let queue = &mut state.streams[stream.0 as usize];
        let user = queue.user;
        let at = queue.clock.advance(user);
        let (clock, name) = (queue.clock.clone(), Arc::clone(&queue.name));
        let memory = Memory { address, bytes };
        let stamp = Stamp { user, at, name };
        state.history.touch(memory.area(), true, &clock, &stamp);
        Ok(memory)
    }

    fn release(&self, stream: Stream, memory: Memory) -> Result<(), DriverError> {
        self.push(stream, Task::Release { address: memory.address })
    }

    fn pin(&self, bytes: u64) -> Result<Pinned, DriverError> {
        let mut state = self.state()?;
        let block = Block::new(bytes, POISON).ok_or(DriverError::NoMemory { bytes, free: 0 })?;
        let number = state.next_pinned;
        state.next_pinned += 1;
        state.pinned.insert(number, (block, bytes));
        Ok(Pinned(number))
    }

    fn unpin(&self, pinned: Pinned) -> Result<(), DriverError> {
        let mut state = self.state()?;
        if let Some((block, bytes)) = state.pinned.remove(&pinned.0) {
            state.history.forget(block.address(), block.address() + bytes);
        }
        Ok(())
    }

    fn read(&self, pinned: Pinned, offset: u64, to: &mut [u8]) -> Result<(), DriverError> {
        let (_state, area) = self.host((pinned, offset), to.len(), false)?;
        to.copy_from_slice(memory::bytes(area));
        Ok(())
    }

    fn write(&self, pinned: Pinned, offset: u64, from: &[u8]) -> Result<(), DriverError> {
        let (_state, area) = self.host((pinned, offset), from.len(), true)?;
        memory::bytes_mut(area).copy_from_slice(from);
        Ok(())
    }

    fn upload(&self, stream: Stream, (pinned, offset): (Pinned, u64), to: Area) -> Result<(), DriverError> {
        let from = Self::pinned(&*self.state()?, (pinned, offset), to.bytes())?;
        self.push(stream, Task::Copy { way: Way::In, copies: vec![(from, to)] })
    }

    fn download(
        &self,
        stream: Stream,
        from: Area,
        (pinned, offset): (Pinned, u64),
    ) -> Result<(), DriverError> {
        let to = Self::pinned(&*self.state()?, (pinned, offset), from.bytes())?;
        self.push(stream, Task::Copy { way: Way::Out, copies: vec![(from, to)] })
    }

    fn copy(&self, stream: Stream, copies: &[(Area, Area)]) -> Result<(), DriverError> {
        copies.iter().try_for_each(|(from, to)| same_shape(*from, *to))?;
        let copies = copies.iter().copied().filter(|(from, _)| !from.is_empty()).collect();
        self.push(stream, Task::Copy { way: Way::Within, copies })
    }

    fn fill(&self, stream: Stream, area: Area, byte: u8) -> Result<(), DriverError> {
        self.push(stream, Task::Fill { area, byte })
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DriverError> {
        if launch.call.shape.is_empty() {
            return Ok(());
        }
        let (call, touches) = (Box::new(launch.call.clone()), launch.touches.to_vec());
        self.count(call.kernel.name);
        self.push(stream, Task::Launch { call, touches })
    }

    fn launch_joined(&self, stream: Stream, launches: &[(Launch<'_>, &str)]) -> Result<(), DriverError> {
        let there = launches.iter().filter(|(launch, _)| !launch.call.shape.is_empty());
        let part = |(launch, name): &(Launch<'_>, &str)| Part {
            call: Box::new(launch.call.clone()),
            touches: launch.touches.to_vec(),
            name: (*name).into(),
        };
        let parts: Vec<Part> = there.map(part).collect();
        let Some(first) = parts.first() else { return Ok(()) };
        self.count(first.call.kernel.name);
        self.push(stream, Task::Joined(parts))
    }

    fn upload_all(&self, stream: Stream, copies: &[((Pinned, u64), Area)]) -> Result<(), DriverError> {
        let from =
            |(from, to): &((Pinned, u64), Area)| Ok((Self::pinned(&*self.state()?, *from, to.bytes())?, *to));
        let copies = copies.iter().map(from).collect::<Result<_, DriverError>>()?;
        self.push(stream, Task::Copy { way: Way::In, copies })
    }

    fn download_all(&self, stream: Stream, copies: &[(Area, (Pinned, u64))]) -> Result<(), DriverError> {
        let to = |(from, to): &(Area, (Pinned, u64))| {
            Ok((*from, Self::pinned(&*self.state()?, *to, from.bytes())?))
        };
        let copies = copies.iter().map(to).collect::<Result<_, DriverError>>()?;
        self.push(stream, Task::Copy { way: Way::Out, copies })
    }

    fn product(&self, stream: Stream, product: &Product) -> Result<(), DriverError> {
        shape(product)?;
        self.push(stream, Task::Product(*product))
    }

    fn write_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.push(stream, Task::WriteValue { at: at.first(4), value })
    }

    fn wait_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.push(stream, Task::WaitValue { at: at.first(4), value })
    }

    fn name(&self, stream: Stream, what: &str) {
        if let Some(queue) = self.shared.state.lock().streams.get_mut(stream.0 as usize) {
            queue.name = what.into();
        }
    }

    fn watch_copies(&self) -> Result<(), DriverError> {
        self.state()?.copies.get_or_insert_default();
        Ok(())
    }

    fn copies(&self) -> Result<Vec<Copies>, DriverError> {
        Ok(self.state()?.copies.clone().unwrap_or_default())
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        let mut state = self.state()?;
        loop {
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            let queue = &state.streams[stream.0 as usize];
            if queue.tasks.is_empty() {
                let (clock, end) = (queue.clock.clone(), queue.end);
                state.host().1.join(&clock);
                state.now = state.now.max(end);
                return Ok(());
            }
            self.shared.done.wait(&mut state);
        }
    }
}
