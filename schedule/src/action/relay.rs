//! Relays: what a rank does for its node between those who use rows and the owners in other nodes.
//!
//! An exchange within the node brings requests to the relay and rows back, one between nodes does the same between relay and
//! owners; what stands between the two is here.

use std::slice::from_ref;

use super::exchange::{Subject, byte, subject};
use super::operands::{Context, Operands};
use super::table::entry::{PassClasses, PassRows, SumAsked, UniqueAsked};
use super::{
    At, Entry, Facts, Flops, Learns, Lists, Memory, Misfit, Of, Phase, Programs, Results, Runs, Scope, Sizes,
};
use crate::attribute::Way;
use crate::signature::{counts, floats, id, index};

/// What all of them are.
const fn facts(phase: Phase, programs: Programs, of: Of<'_>, flops: Flops, memory: Memory) -> Facts<'_> {
    Facts {
        phase,
        runs: Runs::Compute,
        programs,
        transfer: None,
        effects: &[],
        results: Results::FRESH,
        lists: Lists::NONE,
        of,
        learns: Learns::NOTHING,
        scope: Scope::Entries,
        entries: None,
        loss: None,
        in_range: true,
        flops,
        memory,
    }
}

/// The exchange within the node, and the one between nodes that it names.
fn legs<'a>(cx: &Context<'a>, number: u32) -> Result<(Subject<'a>, Subject<'a>), Misfit> {
    let within = subject(cx, number)?;
    let between = within.of.leg.between();
    let between =
        between.ok_or_else(|| Misfit::relation(format!("exchange {number} is not within nodes")))?;
    Ok((within, subject(cx, between)?))
}

impl<'a> Entry<'a> for UniqueAsked<'a> {
    fn facts(&self) -> Facts<'a> {
        let of = Of { exchanges: from_ref(self.exchange), way: None, classes: &[] };
        let learns = Learns { sizes: Sizes::Sent, host_sync: true };
        Facts { learns, ..facts(Phase::InputDist, Programs::Both, of, Flops::None, Memory::Once) }
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let between = subject(cx, *self.exchange)?;
        let within = between.of.leg.within();
        let outside = || Misfit::relation(format!("exchange {} is not between nodes", self.exchange));
        let within = subject(cx, within.ok_or_else(outside)?)?;
        let uses = usize::from(between.uses());
        o.count(2 + uses, 3 + uses)?;
        let (asked, sent) = (within.received(Way::Forward, None)?, between.sent(Way::Forward, None)?);
        o.read(0, index(asked, 1))?;
        o.read(1, counts())?;
        o.write(0, id(sent, 1))?;
        o.write(1, counts())?;
        if between.uses() {
            o.read(2, byte(asked, 2))?;
            o.write(2, byte(sent, 2))?;
        }
        o.write(2 + uses, index(asked, 1))
    }
}

impl<'a> Entry<'a> for PassClasses<'a> {
    fn facts(&self) -> Facts<'a> {
        let of = Of { exchanges: from_ref(self.exchange), way: Some(*self.way), classes: &[] };
        facts(Phase::InputDist, Programs::Training, of, Flops::None, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let (within, between) = legs(cx, *self.exchange)?;
        within.classes(*self.way)?;
        o.count(2, 1)?;
        let asked = within.received(*self.way, None)?;
        o.read(0, byte(between.sent(*self.way, None)?, 1))?;
        o.read(1, index(asked, 1))?;
        o.write(0, byte(asked, 1))
    }
}

impl<'a> Entry<'a> for PassRows<'a> {
    fn facts(&self) -> Facts<'a> {
        let of = Of {
            exchanges: from_ref(self.exchange),
            way: Some(Way::Forward),
            classes: self.class.as_slice(),
        };
        facts(Phase::OutputDist, Programs::Both, of, Flops::None, Memory::Repeated)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let class = *self.class;
        let (within, between) = legs(cx, *self.exchange)?;
        o.count(if class.is_some() { 4 } else { 2 }, 1)?;
        let (there, asked) = (between.sent(Way::Forward, class)?, within.received(Way::Forward, class)?);
        o.read(0, floats(cx.wire.rows, there, within.columns))?;
        o.read(1, index(within.received(Way::Forward, None)?, 1))?;
        if class.is_some() {
            o.read(2, index(there, 1))?;
            o.read(3, index(asked, 1))?;
        }
        o.write(0, floats(cx.wire.rows, asked, within.columns))
    }
}

impl<'a> Entry<'a> for SumAsked<'a> {
    fn facts(&self) -> Facts<'a> {
        let of = Of {
            exchanges: from_ref(self.exchange),
            way: Some(Way::Backward),
            classes: self.class.as_slice(),
        };
        let flops = Flops::Each(1.0, At::Read(2));
        facts(Phase::GradientDist, Programs::Training, of, flops, Memory::Once)
    }
    fn operands(&self, o: &Operands<'_>, cx: &Context<'_>) -> Result<(), Misfit> {
        let class = *self.class;
        let (within, between) = legs(cx, *self.exchange)?;
        o.count(if class.is_some() { 5 } else { 3 }, 1)?;
        let (there, asked) = (between.sent(Way::Backward, class)?, within.received(Way::Backward, class)?);
        o.read(0, index(within.received(Way::Backward, None)?, 1))?;
        o.read(1, counts())?;
        o.read(2, floats(cx.wire.gradients, asked, within.columns))?;
        if class.is_some() {
            o.read(3, index(asked, 1))?;
            o.read(4, index(there, 1))?;
        }
        o.write(0, floats(cx.wire.gradients, there, within.columns))
    }
}
