//! The input dist: ids to the owners of their rows, and what tells rows apart. Reads ids only.

use std::slice::from_ref;

use super::Effect::{Random, ReadsBatch, ReadsBatches, ReadsUses, WritesUses};
use super::balance::assignment;
use super::exchange::{Subject, byte, group, owns, subject};
use super::operands::{Context, Operands, tokens};
use super::table::entry::{
    AllGatherIds, AllToAllClasses, AllToAllIds, AllToAllIdsFor, DrawNegatives, Partition, Positions, Unique,
    UniqueFor,
};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Payload, Peers, Phase, Programs, Results,
    Runs, Scope, Sizes, Transfer,
};
use crate::attribute::Way;
use crate::operand::Element;
use crate::reuse::Reuse;
use crate::signature::{OperandType, counts, id, index};

impl<'a> Entry<'a> for DrawNegatives<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[ReadsBatch, Random],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of::NONE,
            learns: Learns::NOTHING,
            scope: Scope::Samples,
            entries: None,
            loss: None,
            in_range: (1..=1 << 20).contains(self.count),
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        o.count(0, 1)?;
        if *self.table as usize >= cx.tables {
            return Err(Misfit::relation(format!("there is no table {}", self.table)));
        }
        o.write(0, id(tokens(*self.lengths), *self.count))
    }
}

impl<'a> Entry<'a> for Unique<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            programs: Programs::Both,
            transfer: None,
            effects: &[ReadsBatch],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: from_ref(self.exchange), way: None, classes: &[] },
            learns: Learns { sizes: Sizes::Sent, host_sync: true },
            scope: Scope::Listed,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Listed,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let f = first_part(cx, *self.exchange)?;
        let each = 2 + usize::from(f.uses());
        let shares = shares(cx, &f)?;
        // With hot rows all entries, then those of each share.
        let first = usize::from(f.of.shares.is_some());
        let (n, extra) = (o.reads.len(), first + each * shares.len());
        o.count(n, n + extra)?;
        sequences(cx, n)?;
        if first > 0 {
            o.write(0, id(f.sent(Way::Forward, None)?, 1))?;
        }
        for (at, share) in (first..).step_by(each).zip(&shares) {
            let sent = share.sent(Way::Forward, None)?;
            o.write(at, id(sent, 1))?;
            o.write(at + 1, counts())?;
            if f.uses() {
                o.write(at + 2, byte(sent, 2))?;
            }
        }
        for (i, r) in o.reads.iter().enumerate() {
            match r {
                OperandType::Ids { table, lengths } if *table == f.of.table => {
                    o.write(i + extra, index(tokens(*lengths), 1))?;
                }
                OperandType::Matrix { element: Element::Id, rows, columns } => {
                    o.write(i + extra, index(*rows, *columns))?;
                }
                other => {
                    return Err(Misfit::operand(
                        At::Read(i),
                        format!("ids of table {}", f.of.table),
                        Some(other),
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The exchanges whose entries are found with one's: itself, or those that have a share of them.
fn shares<'a>(cx: &Context<'a>, f: &Subject<'a>) -> Result<Vec<Subject<'a>>, Misfit> {
    if f.of.of.is_some() {
        return Err(Misfit::relation(format!("exchange {} has a share of another one's entries", f.number)));
    }
    let numbers = f.of.shares.map_or_else(|| vec![f.number], |shares| vec![shares.owned, shares.hot]);
    numbers.into_iter().map(|e| subject(cx, e)).collect()
}

/// An exchange that sends its own entries.
fn first_part<'a>(cx: &Context<'a>, exchange: u32) -> Result<Subject<'a>, Misfit> {
    let f = subject(cx, exchange)?;
    if f.of.entries != exchange {
        let entries = f.of.entries;
        return Err(Misfit::relation(format!("exchange {exchange} sends the entries of exchange {entries}")));
    }
    Ok(f)
}

/// So many sequences must be as many for every microbatch.
fn sequences(cx: &Context<'_>, n: usize) -> Result<(), Misfit> {
    if n == 0 || !n.is_multiple_of(cx.microbatches as usize) {
        let parts = cx.microbatches;
        return Err(Misfit::relation(format!("needs sequences of ids for each of {parts} microbatches")));
    }
    Ok(())
}

impl<'a> Entry<'a> for UniqueFor<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[ReadsBatch],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: from_ref(self.exchange), way: None, classes: &[] },
            learns: Learns { sizes: Sizes::Asked, host_sync: true },
            scope: Scope::Listed,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Listed,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let f = first_part(cx, *self.exchange)?;
        o.count(o.reads.len(), 3 + usize::from(f.uses()))?;
        o.read(0, assignment(cx))?;
        sequences(cx, o.reads.len() - 1)?;
        o.write(0, id(f.asked(), 1))?;
        o.write(1, counts())?;
        o.write(2, index(f.asked(), 1))?;
        if f.uses() {
            o.write(3, byte(f.asked(), 2))?;
        }
        for (i, r) in o.reads.iter().enumerate().skip(1) {
            let ids = match r {
                OperandType::Ids { table, .. } => *table == f.of.table,
                OperandType::Matrix { element, .. } => *element == Element::Id,
                _ => false,
            };
            if !ids {
                return Err(Misfit::operand(At::Read(i), format!("ids of table {}", f.of.table), Some(r)));
            }
        }
        Ok(())
    }
}

impl<'a> Entry<'a> for AllToAllIds<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Link,
            programs: Programs::Both,
            transfer: Some(Transfer { peers: Peers::ToOwners, payload: Payload::Ids, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: None, classes: &[] },
            learns: Learns { sizes: Sizes::Received, host_sync: true },
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        ids(o, cx, self.exchanges, false)
    }
}

impl<'a> Entry<'a> for AllToAllIdsFor<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Link,
            programs: Programs::Training,
            transfer: Some(Transfer { peers: Peers::ToOwners, payload: Payload::Asked, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: None, classes: &[] },
            learns: Learns { sizes: Sizes::Received, host_sync: true },
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let group = group(cx, self.exchanges)?;
        let count = |each: usize| group.iter().map(|f| each + usize::from(f.uses())).sum::<usize>();
        o.count(count(3), count(2))?;
        let (mut r, mut w) = (0, 0);
        for f in &group {
            let received = f.received(Way::Forward, None)?;
            o.read(r, id(f.asked(), 1))?;
            o.read(r + 1, counts())?;
            o.read(r + 2, index(f.asked(), 1))?;
            o.write(w, index(received, 1))?;
            o.write(w + 1, counts())?;
            (r, w) = (r + 3, w + 2);
            if f.uses() {
                o.read(r, byte(f.asked(), 2))?;
                o.write(w, byte(received, 2))?;
                (r, w) = (r + 1, w + 1);
            }
        }
        Ok(())
    }
}

impl<'a> Entry<'a> for AllGatherIds<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Link,
            programs: Programs::Both,
            transfer: Some(Transfer { peers: Peers::Everyone, payload: Payload::Ids, rounds: 1 }),
            effects: &[WritesUses],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: None, classes: &[] },
            learns: Learns { sizes: Sizes::Received, host_sync: true },
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        ids(o, cx, self.exchanges, true)
    }
}

fn ids(o: &Operands<'_>, cx: &Context<'_>, exchanges: &[u32], replicated: bool) -> Result<(), Misfit> {
    let (mut r, mut w) = (0, 0);
    let group = group(cx, exchanges)?;
    let count = |each: usize| group.iter().map(|f| each + usize::from(f.uses())).sum::<usize>();
    o.count(count(2), count(2 + usize::from(replicated)))?;
    for f in &group {
        let (sent, received) = (f.sent(Way::Forward, None)?, f.received(Way::Forward, None)?);
        o.read(r, id(sent, 1))?;
        o.read(r + 1, counts())?;
        o.write(w, index(received, 1))?;
        o.write(w + 1, counts())?;
        (r, w) = (r + 2, w + 2);
        if replicated {
            o.write(w, index(sent, 1))?;
            w += 1;
        }
        if f.uses() {
            o.read(r, byte(sent, 2))?;
            o.write(w, byte(received, 2))?;
            (r, w) = (r + 1, w + 1);
        }
    }
    Ok(())
}

impl<'a> Entry<'a> for Partition<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[ReadsBatches, ReadsUses],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: from_ref(self.exchange), way: Some(*self.way), classes: &[] },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let way = *self.way;
        let f = subject(cx, *self.exchange)?;
        f.classes(way)?;
        let each = 1 + usize::from(f.uses());
        let history = f.reuse.map_or(0, Reuse::history) as usize;
        o.count(each * (1 + history), 1)?;
        let (rows, _) = o.index(0)?;
        owns(&f, 0, rows)?;
        let received = f.received(way, None)?;
        for i in 0..=history {
            let extent = if i == 0 { rows } else { received };
            o.read(i * each, index(extent, 1))?;
            if f.uses() {
                o.read(i * each + 1, byte(extent, 2))?;
            }
        }
        o.write(0, byte(rows, 1))
    }
}

impl<'a> Entry<'a> for AllToAllClasses<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Link,
            programs: Programs::Training,
            transfer: Some(Transfer { peers: Peers::FromOwners, payload: Payload::Classes, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: Some(*self.way), classes: &[] },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let group = group(cx, self.exchanges)?;
        o.count(3 * group.len(), group.len())?;
        for (i, f) in group.iter().enumerate() {
            f.classes(Way::Forward)?;
            o.read(3 * i, byte(f.received(Way::Forward, None)?, 1))?;
            o.read(3 * i + 1, counts())?;
            o.read(3 * i + 2, counts())?;
            o.write(i, byte(f.sent(Way::Forward, None)?, 1))?;
        }
        Ok(())
    }
}

impl<'a> Entry<'a> for Positions<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::InputDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: from_ref(self.exchange), way: Some(*self.way), classes: &[] },
            learns: Learns { sizes: Sizes::Classes, host_sync: true },
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Once,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let way = *self.way;
        let f = subject(cx, *self.exchange)?;
        let n = f.classes(way)?;
        o.count(2, 2 * n)?;
        let rows = match o.reads[0] {
            OperandType::Matrix { element: Element::Byte, rows, columns: 1 } => rows,
            other => return Err(Misfit::operand(At::Read(0), "classes", Some(&other))),
        };
        let owner = owns(&f, 0, rows)?;
        o.read(1, counts())?;
        for c in 0..n as u32 {
            let extent = if owner { f.received(way, Some(c))? } else { f.sent(way, Some(c))? };
            o.write(2 * c as usize, index(extent, 1))?;
            o.write(2 * c as usize + 1, counts())?;
        }
        Ok(())
    }
}
