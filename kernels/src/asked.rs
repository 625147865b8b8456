//! Rows that are asked for on behalf of other ranks.
//!
//! A rank asks each owner for what several users need; an owner joins what several ranks ask for one user into the list
//! that the user finds by itself ([`unique`](crate::unique)), so that nobody has to tell it.

/// Groups entries by owner and user. Each of `entries` is `user * space + row`, grouped by user, where row `row` lies at rank
/// `row / rows_per_owner`; `place(from, to, row, user)` hears where each goes, and `counts` holds how many each owner gets.
/// Those of one owner and user keep their order.
pub fn group_by_owner(
    entries: &[i64],
    space: u64,
    rows_per_owner: u64,
    counts: &mut [u64],
    next: &mut Vec<usize>,
    mut place: impl FnMut(usize, usize, i64, u32),
) {
    assert!(space > 0 && rows_per_owner > 0 && !counts.is_empty(), "no rows, or nobody who owns them");
    let last = counts.len() as u64 - 1;
    let owner = |row: u64| (row / rows_per_owner).min(last) as usize;
    counts.fill(0);
    for entry in entries {
        counts[owner(*entry as u64 % space)] += 1;
    }
    next.clear();
    let mut start = 0;
    for count in counts.iter() {
        next.push(start);
        start += *count as usize;
    }
    for (from, entry) in entries.iter().enumerate() {
        let (user, row) = (*entry as u64 / space, *entry as u64 % space);
        let to = &mut next[owner(row)];
        place(from, *to, row as i64, user as u32);
        *to += 1;
    }
}

/// A row that somebody asks for on behalf of a user, and the windows of its first and last use (0 if there is one).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Who needs it.
    pub user: u32,
    /// The row of the owner's shard.
    pub row: u32,
    /// Its first use.
    pub first: u8,
    /// Its last use.
    pub last: u8,
}

/// Puts what all ranks ask for into one list for each user, one after the other, ascending rows in each; `distinct`: each row
/// once, used from the first of all uses to the last.
pub fn join(requests: &mut Vec<Request>, distinct: bool) {
    requests.sort_unstable();
    if distinct {
        requests.dedup_by(|again, kept| {
            let same = (again.user, again.row) == (kept.user, kept.row);
            if same {
                kept.last = kept.last.max(again.last);
            }
            same
        });
    }
}
