//! Two uses of one range of memory, one of them a write, that nothing orders.
//!
//! Every stream counts its work, and knows of each other stream how much of it surely comes before its own: what it waited
//! for, and what that had waited for. So does every thread of the host, which knows what it has asked after itself. For each
//! byte it is kept who wrote it last and who has read it since; whoever uses it next must know of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::Area;

/// Per user (a stream, a thread of the host), how much of its work is known to be done before.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    pub(super) fn of(&self, user: usize) -> u64 {
        self.0.get(user).copied().unwrap_or(0)
    }

    /// One more piece of a user's own work.
    pub(super) fn advance(&mut self, user: usize) -> u64 {
        self.0.resize(self.0.len().max(user + 1), 0);
        self.0[user] += 1;
        self.0[user]
    }

    /// All that another one knows is known.
    pub(super) fn join(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*other);
        }
    }
}

/// A piece of work.
#[derive(Debug, Clone)]
pub(super) struct Stamp {
    pub(super) user: usize,
    pub(super) at: u64,
    pub(super) name: Arc<str>,
}

/// What was done to a range of bytes.
#[derive(Debug, Clone)]
struct Segment {
    end: u64,
    write: Option<Stamp>,
    reads: Vec<Stamp>,
}

/// What was done to all memory.
#[derive(Debug, Default)]
pub(super) struct History(BTreeMap<u64, Segment>);

impl History {
    /// Notes a use by whoever knows `clock`, and gives the name of one that it does not know of and should.
    pub(super) fn touch(&mut self, area: Area, written: bool, clock: &Clock, by: &Stamp) -> Option<Arc<str>> {
        let area = area.joined();
        if area.is_empty() {
            return None;
        }
        let mut unknown = None;
        for row in 0..area.rows {
            let start = area.address + row * area.pitch;
            unknown = unknown.or(self.range(start, start + area.width, written, clock, by));
        }
        unknown
    }

    fn range(&mut self, start: u64, end: u64, written: bool, clock: &Clock, by: &Stamp) -> Option<Arc<str>> {
        self.split(start);
        self.split(end);
        let known = |stamp: &&Stamp| clock.of(stamp.user) < stamp.at && stamp.user != by.user;
        let mut unknown = None;
        let mut at = start;
        let mut gaps = Vec::new();
        for (from, segment) in self.0.range_mut(start..end) {
            if at < *from {
                gaps.push((at, *from));
            }
            at = segment.end;
            unknown = unknown.or_else(|| segment.write.iter().find(known).map(|s| Arc::clone(&s.name)));
            if written {
                unknown = unknown.or_else(|| segment.reads.iter().find(known).map(|s| Arc::clone(&s.name)));
            } else {
                segment.reads.retain(|s| s.user != by.user);
                segment.reads.push(by.clone());
            }
        }
        if at < end {
            gaps.push((at, end));
        }
        if written {
            let inside: Vec<u64> = self.0.range(start..end).map(|(from, _)| *from).collect();
            for from in &inside {
                self.0.remove(from);
            }
            self.0.insert(start, Segment { end, write: Some(by.clone()), reads: Vec::new() });
        } else {
            for (from, end) in gaps {
                self.0.insert(from, Segment { end, write: None, reads: vec![by.clone()] });
            }
        }
        unknown
    }

    fn split(&mut self, at: u64) {
        if let Some((_, segment)) = self.0.range_mut(..at).next_back()
            && segment.end > at
        {
            let right = segment.clone();
            segment.end = at;
            self.0.insert(at, right);
        }
    }

    /// Memory that is gone has none.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        let inside: Vec<u64> = self.0.range(start..end).map(|(from, _)| *from).collect();
        for from in &inside {
            self.0.remove(from);
        }
    }
}
