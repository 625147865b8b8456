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
    for l in tables.values() {
        for p in &l.dist.parts {
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
    let classes = |l: &Lowering| -> Vec<Classes> {
        let of = l.dist.parts.iter().filter_map(|p| match way {
            Way::Forward => p.lookups.as_ref(),
            Way::Backward => p.updates.as_ref(),
        });
        of.filter(|_| !l.dist.replicated).cloned().collect()
    };
    let all: Vec<(&str, Classes)> =
        tables.iter().flat_map(|l| classes(l).into_iter().map(|c| (l.name.as_str(), c))).collect();
    for (name, c) in &all {
        g.value(c.of_rows.owner, name)?;
    }
    for (name, c) in &all {
        g.value(c.of_rows.asker, name)?;
    }
    for (name, c) in &all {
        if let Some(list) = c.lists.first() {
            g.value(list.owner, name)?;
            g.value(list.asker, name)?;
        }
    }
    Ok(())
}

/// Rows that a microbatch is the first to use; of tables that are not told apart everything, with the first.
pub(super) fn fetch(g: &mut Generator<'_>, tables: &Tables, round: u32) -> Result<(), PassError> {
    if round == 0 {
        together(g, tables)?;
    }
    let apart: Vec<&Lowering> = tables.values().filter(|l| told_apart(l).is_some()).collect();
    for reuse in reuses(&apart) {
        for class in classes_of(reuse, Way::Forward, round) {
            let chosen = || apart.iter().filter(|l| l.dist.reuse == Some(reuse)).flat_map(|l| each_part(l));
            for (l, i) in chosen() {
                let y = l.dist.looked_up(&mut g.terms, i, Some(class))?;
                g.value(y, &l.name)?;
            }
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
    for (l, i) in chosen().flat_map(each_part) {
        let y = l.dist.looked_up(&mut g.terms, i, None)?;
        g.value(y, &l.name)?;
    }
    for (l, i) in chosen().flat_map(each_part) {
        let z = l.dist.fetched(&mut g.terms, i, None)?;
        g.value(z, &l.name)?;
    }
    for l in chosen() {
        let rows = l.dist.rows(&mut g.terms, 0)?;
        g.value(rows, &l.name)?;
    }
    Ok(())
}

/// How the lookups of a table are told apart, if they are.
fn told_apart(l: &Lowering) -> Option<Reuse> {
    l.dist.reuse.filter(|_| !l.dist.replicated)
}

fn each_part(l: &Lowering) -> impl Iterator<Item = (&Lowering, usize)> {
    (0..l.dist.parts.len()).map(move |i| (l, i))
}
