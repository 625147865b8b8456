//! Rows that come through relays: a rank of each node that asks owners for all of it.

use std::collections::BTreeMap;

use fs_schedule::Action;

use super::folded;
use super::values::{Call, Data, Entry, Rows, Wrong, owner, word};

/// Results of an operation that concerns one rank only.
pub(super) fn compute(call: &Call<'_>) -> Result<Vec<Data>, Wrong> {
    let name = &call.op.name;
    let of_node = |i: usize| match call.one(i)? {
        Data::Asked(list) => Ok(list),
        _ => Err(format!("operand {i} of `{name}` is not what a node asks for")),
    };
    // Which of what the node asks for is meant, with where it stands among what is there.
    let listed = |list: &[(u32, u64, u32)], class: Option<(usize, usize)>| {
        let Some((asked, there)) = class else {
            return Ok(list.iter().map(|(at, row, from)| (*at, *row, *from)).collect::<Vec<_>>());
        };
        let there = call.places(there)?;
        let mut found = Vec::new();
        for (at, row) in call.places(asked)? {
            let Some((place, of, from)) = list.get(*at as usize).filter(|(_, of, _)| of == row) else {
                return Err(format!("`{name}` has places of other rows"));
            };
            let at = there.iter().position(|p| p == &(*place, *of));
            let at = at
                .ok_or_else(|| format!("`{name}` is asked for row {row}, which is of another class there"))?;
            found.push((at as u32, *of, *from));
        }
        Ok(found)
    };
    match call.op.action {
        Action::UniqueAsked { exchange } => {
            let list = call.entries(0)?;
            let mut of: BTreeMap<(u32, u64), Entry> = BTreeMap::new();
            for entry in list {
                let home = owner(call.s, exchange, entry.row, call.work.ranks).unwrap_or(0);
                let own = of.entry((home, entry.row)).or_insert(Entry { from: call.rank, ..*entry });
                (own.first, own.last) = (own.first.min(entry.first), own.last.max(entry.last));
            }
            let entries: Vec<Entry> = of.into_values().collect();
            let at: BTreeMap<u64, u32> = entries.iter().map(|e| e.row).zip(0..).collect();
            let places = list.iter().map(|e| (at[&e.row], e.row, e.from)).collect();
            let mut out = vec![Data::Entries(entries.clone()), Data::Word(entries.len() as u64)];
            if call.op.writes.len() > 3 {
                out.push(Data::Entries(entries));
            }
            out.push(Data::Asked(places));
            Ok(out)
        }
        Action::PassClasses { .. } => {
            let Data::Classes(classes) = call.one(0)? else {
                return Err(format!("`{name}` reads no classes"));
            };
            let mut passed = Vec::new();
            for (at, row, from) in of_node(1)? {
                match classes.get(*at as usize) {
                    Some((class, of, _)) if of == row => passed.push((*class, *row, *from)),
                    _ => return Err(format!("`{name}` has the class of another row than {row}")),
                }
            }
            Ok(vec![Data::Classes(passed)])
        }
        Action::PassRows { class, .. } => {
            let rows = call.rows_of(0)?;
            let mut passed = Rows::new();
            for (n, (at, row, from)) in (0..).zip(listed(of_node(1)?, class.map(|_| (3, 2)))?) {
                match rows.get(&at) {
                    Some((_, of, v)) if *of == row => passed.insert(n, (from, row, *v)),
                    _ => return Err(format!("`{name}` hands on row {row}, which is not there")),
                };
            }
            Ok(vec![Data::Rows(passed)])
        }
        Action::SumAsked { class, .. } => {
            let received = call.rows_of(2)?;
            let list = listed(of_node(0)?, class.map(|_| (3, 4)))?;
            if list.len() != received.len() {
                return Err(format!("`{name}` has {} gradients for {} rows", received.len(), list.len()));
            }
            let mut sums: BTreeMap<u32, (u64, Vec<u64>)> = BTreeMap::new();
            for ((at, row, from), (sender, of, v)) in list.into_iter().zip(received.values()) {
                if (row, from) != (*of, *sender) {
                    return Err(format!("`{name}` adds up the gradient of row {of} for that of {row}"));
                }
                sums.entry(at).or_insert((row, Vec::new())).1.push(*v);
            }
            let sum = |(at, (row, list))| (at, (call.rank, row, word(&list)));
            Ok(vec![Data::Rows(sums.into_iter().map(sum).collect())])
        }
        _ => folded::compute(call),
    }
}
