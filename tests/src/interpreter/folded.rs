//! Rows that are asked for on behalf of other ranks: who reads an id is anybody but who works on it.

use fs_schedule::{Action, Place};

use super::used::{used, windows};
use super::values::{self, Call, Data, Entry, Wrong, owner, word};

/// Results of an operation that concerns one rank only.
pub(super) fn compute(call: &Call<'_>) -> Result<Vec<Data>, Wrong> {
    match call.op.action {
        Action::UniqueFor { exchange } => asks(call, exchange),
        _ => call.compute(),
    }
}

/// Results of a collective for every rank.
pub(super) fn meet(calls: &[Call<'_>]) -> Result<Vec<Vec<Data>>, Wrong> {
    match &calls[0].op.action {
        Action::AllToAllIdsFor { exchanges } => {
            let mut out = vec![Vec::new(); calls.len()];
            joined(calls, exchanges, &mut out)?;
            Ok(out)
        }
        _ => values::meet(calls),
    }
}

/// What a rank asks for: of every use by any rank it has read some, whichever, before they moved.
fn asks(call: &Call<'_>, e: u32) -> Result<Vec<Data>, Wrong> {
    let (s, work) = (call.s, call.work);
    let x = &s.exchanges[e as usize];
    // What it lists must be there.
    for (i, o) in call.op.reads.iter().enumerate() {
        match (o.place, i) {
            (Place::Buffer(_), 0) => drop(call.one(i)?),
            (Place::Buffer(_), _) if !matches!(call.one(i)?, Data::Ids(_)) => {
                return Err(format!("operand {i} of `{}` is not ids", call.op.name));
            }
            _ => {}
        }
    }
    let mut list: Vec<(u32, Entry)> = Vec::new();
    for user in 0..work.ranks {
        for (n, (window, row)) in used(s, work, e, user, call.batch).into_iter().enumerate() {
            let home = word(&(work.seed, "home", user, call.batch, n)) % u64::from(work.ranks);
            if home == u64::from(call.rank) {
                let entry = Entry { from: user, row, first: window, last: window };
                list.push((owner(s, e, row, work.ranks).unwrap_or(0), entry));
            }
        }
    }
    list.sort_unstable();
    let entries = distinct(list.into_iter().map(|(_, entry)| entry).collect(), x.unique);
    let whom: Vec<u32> = entries.iter().map(|entry| entry.from).collect();
    let mut out =
        vec![Data::Entries(entries.clone()), Data::Word(entries.len() as u64), Data::Word(word(&whom))];
    if call.op.writes.len() > 3 {
        out.push(Data::Entries(entries));
    }
    Ok(out)
}

/// What follows each other and is of one row and user as one, if rows are asked for once.
fn distinct(mut entries: Vec<Entry>, unique: bool) -> Vec<Entry> {
    if unique {
        entries.dedup_by(|again, kept| {
            let same = (again.from, again.row) == (kept.from, kept.row);
            if same {
                (kept.first, kept.last) = (kept.first.min(again.first), kept.last.max(again.last));
            }
            same
        });
    }
    entries
}

/// The lists of all users that each owner puts together.
fn joined(calls: &[Call<'_>], exchanges: &[u32], out: &mut [Vec<Data>]) -> Result<(), Wrong> {
    let (s, ranks) = (calls[0].s, calls.len() as u32);
    let mut at = 0;
    for e in exchanges {
        let x = &s.exchanges[*e as usize];
        let uses = x.lookahead.is_some() && windows(s, *e) > 1;
        for (rank, o) in (0..).zip(&mut *out) {
            let mut list = Vec::new();
            for c in calls {
                let own = c.entries(at)?.iter().filter(|entry| owner(s, *e, entry.row, ranks) == Some(rank));
                list.extend(own.copied());
            }
            list.sort_unstable();
            let list = distinct(list, x.unique);
            o.extend([Data::Entries(list.clone()), Data::Word(list.len() as u64)]);
            if uses {
                o.push(Data::Entries(list));
            }
        }
        at += 3 + usize::from(uses);
    }
    Ok(())
}
