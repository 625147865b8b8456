//! Rows and their gradients: lookup, output dist, gradient dist, update.

use std::slice::from_ref;

use super::Effect::{ReadsTable, WritesTable};
use super::Flops::Each;
use super::exchange::{group, owns, subject, table_of};
use super::operands::{Context, Operands};
use super::table::entry::{AllGatherGrads, AllToAllGrads, AllToAllRows, Apply, Gather, Merge, Split};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Payload, Peers, Phase, Programs, Results,
    Runs, Scope, Transfer,
};
use crate::attribute::Way;
use crate::operand::Element;
use crate::signature::{counts, floats, index, real};

impl<'a> Entry<'a> for Gather<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::OutputDist,
            runs: Runs::Compute,
            programs: Programs::Both,
            transfer: None,
            effects: &[ReadsTable],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of {
                exchanges: from_ref(self.exchange),
                way: Some(Way::Forward),
                classes: self.class.as_slice(),
            },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Picked,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let class = *self.class;
        let f = subject(cx, *self.exchange)?;
        o.count(2 + usize::from(class.is_some()), 1)?;
        table_of(&f, o.reads.first(), At::Read(0))?;
        let (rows, _) = o.index(1)?;
        let owner = owns(&f, 1, rows)?;
        o.read(1, index(rows, 1))?;
        let extent = if owner { f.received(Way::Forward, class)? } else { f.sent(Way::Forward, class)? };
        if class.is_some() {
            o.read(2, index(extent, 1))?;
        }
        o.write(0, floats(cx.wire.rows, extent, f.columns))
    }
}

impl<'a> Entry<'a> for AllToAllRows<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::OutputDist,
            runs: Runs::Link,
            programs: Programs::Both,
            transfer: Some(Transfer { peers: Peers::FromOwners, payload: Payload::Rows, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: Some(Way::Forward), classes: self.class.as_slice() },
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
        let class = *self.class;
        let group = group(cx, self.exchanges)?;
        o.count(3 * group.len(), group.len())?;
        for (i, f) in group.iter().enumerate() {
            o.read(3 * i, floats(cx.wire.rows, f.received(Way::Forward, class)?, f.columns))?;
            o.read(3 * i + 1, counts())?;
            o.read(3 * i + 2, counts())?;
            o.write(i, floats(cx.wire.rows, f.sent(Way::Forward, class)?, f.columns))?;
        }
        Ok(())
    }
}

impl<'a> Entry<'a> for Merge<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::OutputDist,
            runs: Runs::Compute,
            // Without classes in evaluation, too.
            programs: if self.classes.is_empty() { Programs::Both } else { Programs::Training },
            transfer: None,
            effects: &[],
            results: Results::adding(&[0]),
            lists: Lists::NONE,
            of: Of { exchanges: from_ref(self.exchange), way: Some(Way::Forward), classes: self.classes },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Placed,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let classes = self.classes;
        let f = subject(cx, *self.exchange)?;
        let narrow = cx.wire.rows != Element::Real;
        let shares = f.of.of.and_then(|list| cx.exchanges.get(list as usize)?.shares);
        if (classes.is_empty() && !narrow && shares.is_none()) || classes.windows(2).any(|w| w[0] >= w[1]) {
            return Err(Misfit::NotRising("classes"));
        }
        let all = f.sent(Way::Forward, None)?;
        let arrived = if classes.is_empty() { 1 } else { 2 * classes.len() };
        // The first of all brings the hot rows.
        let hot = shares.filter(|_| o.reads.len() > arrived);
        o.count(arrived + usize::from(hot.is_some()), 1)?;
        if let Some(shares) = hot {
            let hot = subject(cx, shares.hot_of(f.of.part))?.sent(Way::Forward, None)?;
            o.read(arrived, floats(cx.wire.rows, hot, f.columns))?;
        }
        if classes.is_empty() {
            o.read(0, floats(cx.wire.rows, all, f.columns))?;
            return o.write(0, real(f.listed(), f.columns));
        }
        for (i, c) in classes.iter().enumerate() {
            let extent = f.sent(Way::Forward, Some(*c))?;
            o.read(2 * i, floats(cx.wire.rows, extent, f.columns))?;
            o.read(2 * i + 1, index(extent, 1))?;
        }
        o.write(0, real(f.listed(), f.columns))
    }
}

impl<'a> Entry<'a> for Split<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::GradientDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of {
                exchanges: from_ref(self.exchange),
                way: Some(Way::Backward),
                classes: self.class.as_slice(),
            },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops: Flops::None,
            memory: Memory::Picked,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let class = *self.class;
        let f = subject(cx, *self.exchange)?;
        let extent = f.sent(Way::Backward, class)?;
        // All of them as they are need nothing.
        if class.is_none() && cx.wire.gradients == Element::Real && f.of.of.is_none() {
            return Err(Misfit::NoClasses(*self.exchange));
        }
        o.count(1 + usize::from(class.is_some()), 1)?;
        o.read(0, real(f.listed(), f.columns))?;
        if class.is_some() {
            o.read(1, index(extent, 1))?;
        }
        o.write(0, floats(cx.wire.gradients, extent, f.columns))
    }
}

impl<'a> Entry<'a> for AllToAllGrads<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::GradientDist,
            runs: Runs::Link,
            programs: Programs::Training,
            transfer: Some(Transfer { peers: Peers::ToOwners, payload: Payload::Gradients, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: Some(Way::Backward), classes: self.class.as_slice() },
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
        gradients(o, cx, self.exchanges, *self.class)
    }
}

impl<'a> Entry<'a> for AllGatherGrads<'a> {
    fn facts(&self) -> Facts<'a> {
        Facts {
            phase: Phase::GradientDist,
            runs: Runs::Link,
            programs: Programs::Training,
            transfer: Some(Transfer { peers: Peers::Everyone, payload: Payload::Gradients, rounds: 1 }),
            effects: &[],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of { exchanges: self.exchanges, way: Some(Way::Backward), classes: self.class.as_slice() },
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
        gradients(o, cx, self.exchanges, *self.class)
    }
}

fn gradients(
    o: &Operands<'_>,
    cx: &Context<'_>,
    exchanges: &[u32],
    class: Option<u32>,
) -> Result<(), Misfit> {
    let group = group(cx, exchanges)?;
    o.count(3 * group.len(), group.len())?;
    for (i, f) in group.iter().enumerate() {
        o.read(3 * i, floats(cx.wire.gradients, f.sent(Way::Backward, class)?, f.columns))?;
        o.read(3 * i + 1, counts())?;
        o.read(3 * i + 2, counts())?;
        o.write(i, floats(cx.wire.gradients, f.received(Way::Backward, class)?, f.columns))?;
    }
    Ok(())
}

impl<'a> Entry<'a> for Apply<'a> {
    fn facts(&self) -> Facts<'a> {
        // A sum and about three operations of the update per received element.
        let flops = Each(4.0, At::Read(2 + usize::from(self.class.is_some())));
        Facts {
            phase: Phase::GradientDist,
            runs: Runs::Compute,
            programs: Programs::Training,
            transfer: None,
            effects: &[WritesTable],
            results: Results::FRESH,
            lists: Lists::NONE,
            of: Of {
                exchanges: from_ref(self.exchange),
                way: Some(Way::Backward),
                classes: self.class.as_slice(),
            },
            learns: Learns::NOTHING,
            scope: Scope::Entries,
            entries: None,
            loss: None,
            in_range: true,
            flops,
            memory: Memory::UpdatedRows,
        }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let class = *self.class;
        let f = subject(cx, *self.exchange)?;
        let more = usize::from(class.is_some());
        o.count(3 + more, 1)?;
        table_of(&f, o.writes.first(), At::Written(0))?;
        o.read(0, index(f.received(Way::Backward, None)?, 1))?;
        let extent = f.received(Way::Backward, class)?;
        if class.is_some() {
            o.read(1, index(extent, 1))?;
        }
        o.read(1 + more, counts())?;
        o.read(2 + more, floats(cx.wire.gradients, extent, f.columns))
    }
}
