//! Ids out, rows back: in which order the terms of all tables are written.
//!
//! The order is by stages over all tables, so that collectives of one kind stand side by side.

use std::collections::BTreeMap;

use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

use super::super::PassError;
use super::generate::Generator;
use super::table::{Lowering, reuses};
use crate::distribution::build::{Classes, classes_of};
use crate::ir::ValueId;

pub(super) type Tables = BTreeMap<ValueId, Lowering>;

/// Input dist: what to ask for, and asking.
pub(super) fn ask(g: &mut Generator<'_>, tables: &Tables) -> Result<(), PassError> {
    for l in tables.values() {
        g.value(l.dist.entries, &l.name)?;
    }
    // Relays hear of all before they ask.
    for l in tables.values() {
        for relay in l.dist.parts.iter().filter_map(|p| p.relay.as_ref()) {
            g.value(relay.all.owner, &l.name)?;
        }
    }
    for l in tables.values() {
        for p in &l.dist.parts {
            g.value(p.all.asker, &l.name)?;
        }
    }
    for l in tables.values() {
        for p in l.dist.parts.iter().chain(&l.dist.hot) {
            g.value(p.all.owner, &l.name)?;
        }
    }
    Ok(())
}

/// Who has which class of lookups. Rows of replicated tables are at home, so their lookups are not told apart.
pub(super) fn plan(g: &mut Generator<'_>, tables: &Tables) -> Result<(), PassError> {
    let chosen: Vec<&Lowering> = tables.values().collect();
    tell_apart(g, &chosen, Way::Forward)
}

/// Classes at the owners, then at those who asked, then the positions at both, for tables that rows are sent of.
pub(super) fn tell_apart(g: &mut Generator<'_>, tables: &[&Lowering], way: Way) -> Result<(), PassError> {
    let mut all: Vec<(&str, &Classes, Option<&Classes>)> = Vec::new();
    for l in tables.iter().filter(|l| !l.dist.replicated) {
        for p in &l.dist.parts {
            let relay = p.relay.as_ref();
            let (of_owners, of_relays) = match way {
                Way::Forward => (&p.lookups, relay.and_then(|r| r.lookups.as_ref())),
                Way::Backward => (&p.updates, relay.and_then(|r| r.updates.as_ref())),
            };
            all.extend(of_owners.as_ref().map(|c| (l.name.as_str(), c, of_relays)));
        }
    }
    for (name, c, _) in &all {
        g.value(c.of_rows.owner, name)?;
    }
    for (name, c, _) in &all {
        g.value(c.of_rows.asker, name)?;
    }
    let relays = || all.iter().filter_map(|(name, _, relay)| Some((*name, (*relay)?)));
    for (name, c) in relays() {
        g.value(c.of_rows.owner, name)?;
    }
    for (name, c) in relays() {
        g.value(c.of_rows.asker, name)?;
    }
    for (name, c) in all.iter().map(|(name, c, _)| (*name, *c)).chain(relays()) {
        if let Some(list) = c.lists.first() {
            g.value(list.owner, name)?;
            g.value(list.asker, name)?;
        }
    }
    Ok(())
}

/// Rows that the windows which begin with a microbatch are the first to use; of tables that are not told apart everything, with the first.
pub(super) fn fetch(g: &mut Generator<'_>, tables: &Tables, round: u32) -> Result<(), PassError> {
    if round == 0 {
        together(g, tables)?;
    }
    let apart: Vec<&Lowering> = tables.values().filter(|l| told_apart(l).is_some()).collect();
    if round == 0 {
        hot(g, apart.iter().copied())?;
    }
    for reuse in reuses(&apart).into_iter().filter(|reuse| round.is_multiple_of(reuse.each)) {
        for class in classes_of(reuse, Way::Forward, reuse.window(round)) {
            let chosen = || apart.iter().filter(|l| l.dist.reuse == Some(reuse)).flat_map(|l| each_part(l));
            for (l, i) in chosen() {
                let y = l.dist.looked_up(&mut g.terms, i, Some(class))?;
                g.value(y, &l.name)?;
            }
            through_relays(g, chosen(), Some(class))?;
            for (l, i) in chosen() {
                let z = l.dist.fetched(&mut g.terms, i, Some(class))?;
                g.value(z, &l.name)?;
            }
        }
    }
    for (l, i) in apart.iter().flat_map(|l| each_part(l)) {
        let merged = l.dist.arrived(&mut g.terms, i, round)?;
        g.value(merged, &l.name)?;
    }
    for l in apart {
        let rows = l.dist.rows(&mut g.terms, round)?;
        g.value(rows, &l.name)?;
    }
    Ok(())
}

/// Lookup and output dist of tables whose rows travel together, or not at all.
fn together(g: &mut Generator<'_>, tables: &Tables) -> Result<(), PassError> {
    let chosen = || tables.values().filter(|l| told_apart(l).is_none());
    hot(g, chosen())?;
    for (l, i) in chosen().flat_map(each_part) {
        let y = l.dist.looked_up(&mut g.terms, i, None)?;
        g.value(y, &l.name)?;
    }
    through_relays(g, chosen().flat_map(each_part), None)?;
    for (l, i) in chosen().flat_map(each_part) {
        let z = l.dist.fetched(&mut g.terms, i, None)?;
        g.value(z, &l.name)?;
    }
    // With hot rows they are put together.
    for (l, i) in chosen().filter(|l| l.dist.hot.is_empty()).flat_map(each_part) {
        let z = l.dist.fetched(&mut g.terms, i, None)?;
        g.arrived(z, &l.name)?;
    }
    for l in chosen() {
        let rows = l.dist.rows(&mut g.terms, 0)?;
        g.value(rows, &l.name)?;
    }
    Ok(())
}

/// Lookups of hot rows, which are at home.
fn hot<'l>(g: &mut Generator<'_>, tables: impl Iterator<Item = &'l Lowering>) -> Result<(), PassError> {
    for l in tables {
        for i in l.dist.exchanges().skip(l.dist.parts.len()) {
            let rows = l.dist.looked_up(&mut g.terms, i, None)?;
            g.value(rows, &l.name)?;
        }
    }
    Ok(())
}

/// Rows to the relays and there to each that asked, of tables that have some.
fn through_relays<'l>(
    g: &mut Generator<'_>,
    tables: impl Iterator<Item = (&'l Lowering, usize)> + Clone,
    class: Option<u32>,
) -> Result<(), PassError> {
    for (l, i) in tables.clone() {
        if let Some(rows) = l.dist.relayed(&mut g.terms, i, class)? {
            g.value(rows, &l.name)?;
        }
    }
    for (l, i) in tables {
        if let Some(rows) = l.dist.passed(&mut g.terms, i, class)? {
            g.value(rows, &l.name)?;
        }
    }
    Ok(())
}

/// How the lookups of a table are told apart, if they are.
fn told_apart(l: &Lowering) -> Option<Reuse> {
    l.dist.reuse.filter(|_| !l.dist.replicated)
}

fn each_part(l: &Lowering) -> impl Iterator<Item = (&Lowering, usize)> + Clone {
    (0..l.dist.parts.len()).map(move |i| (l, i))
}
