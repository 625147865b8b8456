//! Row gradients to the owners, and the updates.

use fs_schedule::{Reuse, Way};

use super::super::PassError;
use super::forward::tell_apart;
use super::generate::Generator;
use super::table::{Lowering, reuses};
use crate::distribution::build::classes_of;

/// Who has which class of gradients.
pub(super) fn plan(g: &mut Generator<'_>, tables: &[&Lowering]) -> Result<(), PassError> {
    tell_apart(g, tables, Way::Backward)?;
    // Of replicated rows every rank knows all: it classifies those that it sends and those that it receives.
    for l in tables {
        let replicated = l.dist.parts.iter().chain(&l.dist.hot).filter(|p| p.own.is_some());
        for classes in replicated.filter_map(|p| p.updates.as_ref()) {
            g.value(classes.of_rows.owner, &l.name)?;
            g.value(classes.of_rows.asker, &l.name)?;
            if let Some(list) = classes.lists.first() {
                g.value(list.owner, &l.name)?;
                g.value(list.asker, &l.name)?;
            }
        }
    }
    Ok(())
}

/// Gradients of rows that the windows which end with a microbatch are the last to use, and their updates.
pub(super) fn send_classes(g: &mut Generator<'_>, tables: &[&Lowering], round: u32) -> Result<(), PassError> {
    let ends = |reuse: Reuse| round == reuse.end(reuse.window(round));
    let tables: Vec<&Lowering> = tables.iter().copied().filter(|l| l.dist.reuse.is_some_and(ends)).collect();
    columns(g, &tables)?;
    for reuse in reuses(&tables) {
        let alike: Vec<&Lowering> = tables.iter().copied().filter(|l| l.dist.reuse == Some(reuse)).collect();
        for class in classes_of(reuse, Way::Backward, reuse.window(round)) {
            send(g, &alike, Some(class))?;
        }
    }
    Ok(())
}

/// All gradients of tables that are not told apart, and their updates.
pub(super) fn send_all(g: &mut Generator<'_>, tables: &[&Lowering]) -> Result<(), PassError> {
    columns(g, tables)?;
    send(g, tables, None)
}

/// Cuts the sums of column-wise tables.
fn columns(g: &mut Generator<'_>, tables: &[&Lowering]) -> Result<(), PassError> {
    for l in tables.iter().filter(|l| l.dist.parts.len() > 1) {
        let Some(sum) = l.sum else { continue };
        let parts = (0..l.dist.parts.len()).map(|i| l.dist.columns(&mut g.terms, i, sum));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        g.columns(&parts, &l.name)?;
    }
    Ok(())
}

/// Gradients of a class, or all: picked, sent, applied, each for all tables before the next.
fn send(g: &mut Generator<'_>, tables: &[&Lowering], class: Option<u32>) -> Result<(), PassError> {
    let sums = tables.iter().filter_map(|l| Some((*l, l.sum?)));
    let each: Vec<_> = sums.flat_map(|(l, s)| l.dist.exchanges().map(move |i| (l, s, i))).collect();
    for (l, sum, i) in &each {
        let own = l.dist.to_send(&mut g.terms, *i, class, *sum)?;
        g.value(own, &l.name)?;
        // What is cut out is written as it leaves.
        if class.is_none() && l.dist.hot.is_empty() {
            let part = &l.dist.parts[*i];
            let list = part.relay.as_ref().map_or(part.all.owner, |relay| relay.all.owner);
            g.leaving(own, list, &l.name)?;
        }
    }
    for (l, sum, i) in &each {
        if let Some(received) = l.dist.sent_within(&mut g.terms, *i, class, *sum)? {
            g.value(received, &l.name)?;
        }
    }
    for (l, sum, i) in &each {
        if let Some(sums) = l.dist.summed(&mut g.terms, *i, class, *sum)? {
            g.value(sums, &l.name)?;
        }
    }
    for (l, sum, i) in &each {
        let received = l.dist.sent(&mut g.terms, *i, class, *sum)?;
        g.value(received, &l.name)?;
    }
    for (l, sum, i) in &each {
        let total = l.dist.total(&mut g.terms, *i, class, *sum)?;
        g.apply(total, l.table, &l.name)?;
    }
    Ok(())
}
