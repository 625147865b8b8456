//! Corruptions of schedules whose rows come through relays.

use fs_schedule::{Action, Leg, Place, Schedule, Way};

use super::{Mutation, all, find, order, remove, says, unorder};

/// A small model of three tables, one of them cut by columns.
pub const RELAYED_MODEL: &str = "model click {
      table a { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
      table b { rows 40  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
      table c { rows 30  dim 8  init normal(0, 0.5)  optimizer sgd(lr: 0.05)  sharding column_wise }
      input x: ids(a) { max 9 }
      input y: ids(b) { max 5 }
      input z: ids(c) { max 5 }
      input click: label
      let h = pool(x, sum) + pool(y, mean) + pool(z, sum)
      loss bce_with_logits(linear(relu(h), 1), click, normalize: samples)
    }
    train { batch 24  steps 6  optimizer adam(lr: 1e-2) }
    workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels bernoulli(0.5)  samples 48 } }";

fn is_rows(action: &Action) -> bool {
    matches!(action, Action::PassRows { .. })
}

fn is_sum(action: &Action) -> bool {
    matches!(action, Action::SumAsked { .. })
}

fn is_classes(action: &Action) -> bool {
    matches!(action, Action::PassClasses { .. })
}

fn is_asked(action: &Action) -> bool {
    matches!(action, Action::UniqueAsked { .. })
}

/// Gives the first operation of a kind an operand of another one, of those that differ there.
fn swap(s: &mut Schedule, is: fn(&Action) -> bool, read: usize) -> Option<()> {
    let list = all(s, is);
    let of = |at: &usize| s.train.ops[*at].reads.get(read).map(|o| o.place);
    let (a, b) = list.iter().flat_map(|a| list.iter().map(move |b| (*a, *b))).find(|(a, b)| {
        let (x, y) = (of(a), of(b));
        x != y && x.zip(y).is_some()
    })?;
    s.train.ops[a].reads[read].place = of(&b)?;
    Some(())
}

/// Gives what takes places of what a node asks for the rows that it asks for, which are as many numbers.
fn rows_for_places(s: &mut Schedule, is: fn(&Action) -> bool, read: usize) -> Option<()> {
    let at = find(s, is)?;
    let places = s.train.ops[at].reads[read];
    let makes = |op: &fs_schedule::Op| op.writes.iter().any(|w| w.place == places.place);
    let relayed = s.train.ops.iter().find(|op| is_asked(&op.action) && makes(op))?;
    s.train.ops[at].reads[read].place = relayed.reads[0].place;
    Some(())
}

/// The exchange of some leg.
fn leg(s: &Schedule, is: fn(Leg) -> bool) -> Option<u32> {
    s.exchanges.iter().position(|x| is(x.leg)).map(|e| e as u32)
}

/// What a transfer of some kind gives an exchange: its n-th result.
fn result(s: &Schedule, is: fn(&Action) -> bool, e: u32, n: usize) -> Option<Place> {
    let mut transfers = s.train.ops.iter().filter(|op| is(&op.action) && op.action.exchanges().contains(&e));
    let op = transfers.next()?;
    let list = op.action.exchanges();
    let at = list.iter().position(|x| *x == e)?;
    op.writes.get(at * (op.writes.len() / list.len()) + n).map(|o| o.place)
}

/// What an operation of the two exchanges of relays reads of the other leg, taken for its own.
fn other_leg(s: &mut Schedule, of: fn(&mut Action, u32, u32) -> bool) -> Option<()> {
    let between = leg(s, |l| l.within().is_some())?;
    let within = s.exchanges[between as usize].leg.within()?;
    s.train.ops.iter_mut().find_map(|op| of(&mut op.action, within, between).then_some(()))
}

/// For compiled models whose rows come through relays; the same form as [`super::mutations`].
pub const RELAYED: &[Mutation] = &[
    says("relays of ranks on one node", "exchanges", |s| {
        s.settings.node.take()?;
        Some(())
    }),
    says("nodes of more ranks than there are", "settings", |s| {
        *s.settings.node.as_mut()? = s.ranks;
        Some(())
    }),
    says("nodes of no rank", "settings", |s| {
        *s.settings.node.as_mut()? = 0;
        Some(())
    }),
    says("an exchange within nodes that names another one between them", "exchanges", |s| {
        let all: Vec<usize> =
            (0..s.exchanges.len()).filter(|e| s.exchanges[*e].leg.between().is_some()).collect();
        let [a, b, ..] = all[..] else { return None };
        s.exchanges[a].leg = s.exchanges[b].leg;
        Some(())
    }),
    says("an exchange between nodes that belongs to none within", "exchanges", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        s.exchanges[between as usize].leg = Leg::Whole;
        Some(())
    }),
    says("relays that ask for a row twice", "exchanges", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        s.exchanges[between as usize].unique = false;
        Some(())
    }),
    says("relays that tell other distances apart", "exchanges", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        let lookahead = &mut s.exchanges[between as usize].lookahead;
        *lookahead = Some(lookahead.map_or(1, |k| k + 1));
        Some(())
    }),
    says("relays of rows of which every rank asks for others", "exchanges", |s| {
        let within = leg(s, |l| l.between().is_some())?;
        s.exchanges[within as usize].folded = true;
        Some(())
    }),
    says("a table of more rows than relays can number", "exchanges", |s| {
        let within = leg(s, |l| l.between().is_some())?;
        let table = s.exchanges[within as usize].table;
        s.tables[table as usize].rows = (1 << 32) + 1;
        Some(())
    }),
    says("relays that send entries of the first part", "exchanges", |s| {
        let at = s.exchanges.iter().position(|x| x.leg.within().is_some() && x.part > 0)?;
        let first = s
            .exchanges
            .iter()
            .position(|x| x.leg.within().is_some() && x.part == 0 && x.table == s.exchanges[at].table)?;
        s.exchanges[at].entries = first as u32;
        Some(())
    }),
    says("a relay that asks for what another table's ranks ask for", "operands", |s| swap(s, is_asked, 0)),
    says("a relay that counts what another one is asked for", "collective", |s| swap(s, is_asked, 1)),
    says("places of rows that another relay asks for", "operands", |s| swap(s, is_rows, 1)),
    says("rows of another table handed on", "operands", |s| swap(s, is_rows, 0)),
    says("rows handed on by positions of another class", "operands", |s| swap(s, is_rows, 2)),
    says("rows handed on to those that ask for another class", "operands", |s| swap(s, is_rows, 3)),
    says("classes of another table handed on", "operands", |s| swap(s, is_classes, 0)),
    says("classes handed on by another relay's places", "operands", |s| swap(s, is_classes, 1)),
    says("gradients summed by another relay's places", "operands", |s| swap(s, is_sum, 0)),
    says("gradients summed with counts of others", "collective", |s| swap(s, is_sum, 1)),
    says("gradients of another table summed for a node", "operands", |s| swap(s, is_sum, 2)),
    says("gradients summed by positions of another class", "operands", |s| swap(s, is_sum, 3)),
    says("gradients summed into positions of another class", "operands", |s| swap(s, is_sum, 4)),
    says("classes of gradients handed on for lookups", "exchange", |s| {
        let list = all(s, is_classes);
        let way = |at: usize| match s.train.ops[at].action {
            Action::PassClasses { exchange, way } => Some((exchange, way)),
            _ => None,
        };
        let forward = |at: &&usize| way(**at).is_some_and(|(_, way)| way == Way::Forward);
        let f = *list.iter().find(forward)?;
        let (exchange, _) = way(f)?;
        let b = *list.iter().find(|at| way(**at) == Some((exchange, Way::Backward)))?;
        s.train.ops[f].reads[0] = s.train.ops[b].reads[0];
        Some(())
    }),
    says("rows that a relay does not hand on", "exchange", |s| {
        let at = find(s, is_rows)?;
        remove(s, at);
        Some(())
    }),
    says("a node's gradients that nobody sums", "exchange", |s| {
        let at = find(s, is_sum)?;
        remove(s, at);
        Some(())
    }),
    says("a relay's lookup in a table of which it owns other rows", "operands", |s| {
        other_leg(s, |action, within, between| match action {
            Action::Gather { exchange, .. } if *exchange == between => {
                *exchange = within;
                true
            }
            _ => false,
        })
    }),
    says("an update by a relay", "operands", |s| {
        other_leg(s, |action, within, between| match action {
            Action::Apply { exchange, .. } if *exchange == between => {
                *exchange = within;
                true
            }
            _ => false,
        })
    }),
    says("rows handed on as those of owners", "operands", |s| {
        other_leg(s, |action, within, between| match action {
            Action::PassRows { exchange, .. } if *exchange == within => {
                *exchange = between;
                true
            }
            _ => false,
        })
    }),
    says("what a rank asks for as what a relay asks for", "operands", |s| {
        other_leg(s, |action, within, between| match action {
            Action::UniqueAsked { exchange } if *exchange == between => {
                *exchange = within;
                true
            }
            _ => false,
        })
    }),
    says("rows in place of their places, handed on", "exchange", |s| rows_for_places(s, is_rows, 1)),
    says("rows in place of their places, for classes", "exchange", |s| rows_for_places(s, is_classes, 1)),
    says("rows in place of their places, for sums", "exchange", |s| rows_for_places(s, is_sum, 0)),
    says("counts of what a relay sends for those of what it is asked", "collective", |s| {
        let at = find(s, is_asked)?;
        s.train.ops[at].reads[1].place = {
            let sends = s.train.ops.iter().find(|op| matches!(op.action, Action::Unique { .. }))?;
            sends.writes[1].place
        };
        Some(())
    }),
    says("uses of another's entries in place of what a node asks for", "operands", |s| swap(s, is_asked, 2)),
    says("rows of a relay in place of a rank's", "exchange", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        let theirs = result(s, |a| matches!(a, Action::AllToAllRows { class: None, .. }), between, 0)?;
        let within = s.exchanges[between as usize].leg.within()?;
        let own = result(s, |a| matches!(a, Action::AllToAllRows { class: None, .. }), within, 0)?;
        let pools = s.train.ops.iter_mut().filter(|op| matches!(op.action, Action::Pool { .. }));
        let read = pools.flat_map(|op| &mut op.reads).find(|o| o.place == own)?;
        read.place = theirs;
        Some(())
    }),
    says("a relay that updates by what its node sends", "exchange", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        let within = s.exchanges[between as usize].leg.within()?;
        let ids = |a: &Action| matches!(a, Action::AllToAllIds { .. });
        let rows = [result(s, ids, within, 0)?, result(s, ids, within, 1)?];
        let sent = result(s, |a| matches!(a, Action::AllToAllGrads { class: None, .. }), within, 0)?;
        let at = find(s, |a| matches!(a, Action::Apply { class: None, .. }))?;
        let op = &mut s.train.ops[at];
        op.action = Action::Apply { exchange: within, class: None };
        op.reads.iter_mut().zip([rows[0], rows[1], sent]).for_each(|(o, place)| o.place = place);
        Some(())
    }),
    says("a relay that looks up what its node asks for", "exchange", |s| {
        let between = leg(s, |l| l.within().is_some())?;
        let within = s.exchanges[between as usize].leg.within()?;
        let rows = result(s, |a| matches!(a, Action::AllToAllIds { .. }), within, 0)?;
        let at = find(s, |a| *a == Action::PassRows { exchange: within, class: None })?;
        let table = s.exchanges[within as usize].table;
        let op = &mut s.train.ops[at];
        op.action = Action::Gather { exchange: within, class: None };
        (op.reads[0].place, op.reads[1].place) = (Place::Table(table), rows);
        Some(())
    }),
    order("rows handed on before they are there", "fresh", |s| {
        let at = find(s, is_rows)?;
        let rows = s.train.ops[at].reads[0].place;
        let makes = |op: &fs_schedule::Op| op.writes.iter().any(|w| w.place == rows);
        let from = s.train.ops.iter().position(makes)?;
        unorder(s, from, at, 0)
    }),
    order("a node's gradients sent before they are summed", "fresh", |s| {
        let at = find(s, is_sum)?;
        let sums = s.train.ops[at].writes[0].place;
        let to = s.train.ops.iter().position(|op| op.reads.iter().any(|r| r.place == sums))?;
        unorder(s, at, to, 0)
    }),
];
