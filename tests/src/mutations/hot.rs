//! Corruptions of schedules of tables with hot rows.

use fs_schedule::{Action, Exchange, Schedule, Sharding};

use super::{Mutation, all, find, order, remove, says, unorder};

/// Whether an exchange moves hot rows.
fn is_hot(s: &Schedule, e: u32) -> bool {
    let x = s.exchanges.get(e as usize);
    x.is_some_and(|x| s.tables.get(x.table as usize).is_some_and(|t| t.is_hot(x.part)))
}

/// The first exchange of a kind.
fn exchange(s: &mut Schedule, is: impl Fn(&Exchange) -> bool) -> Option<&mut Exchange> {
    s.exchanges.iter_mut().find(|x| is(x))
}

/// Operations of hot rows of some kind.
fn of_hot(s: &Schedule, is: fn(&Action) -> bool) -> Vec<usize> {
    let mut found = all(s, is);
    found.retain(|at| s.train.ops[*at].action.exchanges().iter().all(|e| is_hot(s, *e)));
    found
}

/// Merges that bring hot rows.
fn bringing(s: &Schedule) -> Vec<usize> {
    let mut found = all(s, |a| matches!(a, Action::Merge { .. }));
    found.retain(|at| {
        let op = &s.train.ops[*at];
        let Action::Merge { classes, .. } = &op.action else { return false };
        op.reads.len() > (2 * classes.len()).max(1)
    });
    found
}

/// The last operand of one operation in place of another's, of some that differ there.
fn swap_last(s: &mut Schedule, list: &[usize], of: impl Fn(&Schedule, usize, usize) -> bool) -> Option<()> {
    let pairs = list.iter().flat_map(|a| list.iter().map(move |b| (*a, *b)));
    let last = |at: usize| s.train.ops[at].reads.last().map(|o| o.place);
    let (a, b) = pairs.into_iter().find(|(a, b)| last(*a) != last(*b) && of(s, *a, *b))?;
    let place = last(b)?;
    s.train.ops[a].reads.last_mut()?.place = place;
    Some(())
}

/// The table of an operation's first exchange.
fn table(s: &Schedule, at: usize) -> Option<u32> {
    let e = *s.train.ops[at].action.exchanges().first()?;
    Some(s.exchanges.get(e as usize)?.table)
}

/// For compiled models with hot rows; the same form as [`super::mutations`].
pub const HOT: &[Mutation] = &[
    says("hot rows that do not rise", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| t.hot.len() > 1)?;
        t.hot.swap(0, 1);
        Some(())
    }),
    says("a hot row twice", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| t.hot.len() > 1)?;
        t.hot[1] = t.hot[0];
        Some(())
    }),
    says("a hot row that the table lacks", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| !t.hot.is_empty())?;
        *t.hot.last_mut()? = t.rows;
        Some(())
    }),
    says("more hot rows than may be", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| !t.hot.is_empty())?;
        t.rows = 5000;
        t.hot = (0..4097).collect();
        Some(())
    }),
    says("hot rows of a table that every rank has", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| !t.hot.is_empty())?;
        t.sharding = Sharding::DataParallel;
        Some(())
    }),
    says("shares of entries without hot rows", "exchanges", |s| {
        let t = s.tables.iter_mut().find(|t| !t.hot.is_empty())?;
        t.hot.clear();
        Some(())
    }),
    says("hot rows that no exchange moves", "exchanges", |s| {
        let plain = s.tables.iter().position(|t| t.hot.is_empty())?;
        s.tables[plain].hot.push(0);
        Some(())
    }),
    says("a list that names another table's shares", "exchanges", |s| {
        let other = s.exchanges.iter().rev().find_map(|x| x.shares)?;
        let own = exchange(s, |x| x.shares.is_some_and(|shares| shares != other))?;
        own.shares = Some(other);
        Some(())
    }),
    says("a list that names owners for hot rows", "exchanges", |s| {
        let own = exchange(s, |x| x.shares.is_some())?;
        let shares = own.shares.as_mut()?;
        std::mem::swap(&mut shares.owned, &mut shares.hot);
        Some(())
    }),
    says("a share of another table's entries", "exchanges", |s| {
        let other = s.exchanges.iter().rev().find_map(|x| x.of)?;
        exchange(s, |x| x.of.is_some_and(|of| of != other))?.of = Some(other);
        Some(())
    }),
    says("a share of nothing", "exchanges", |s| {
        exchange(s, |x| x.of.is_some())?.of = None;
        Some(())
    }),
    says("hot rows that are told apart by other distances", "exchanges", |s| {
        let hot = (0..s.exchanges.len() as u32).find(|e| is_hot(s, *e))?;
        let x = &mut s.exchanges[hot as usize];
        x.lookahead = x.lookahead.map_or(Some(2), |k| Some(k + 1));
        Some(())
    }),
    says("hot rows of another part's columns", "exchanges", |s| {
        let hot: Vec<usize> = (0..s.exchanges.len()).filter(|e| is_hot(s, *e as u32)).collect();
        let pairs = hot.windows(2).find(|w| s.exchanges[w[0]].table == s.exchanges[w[1]].table)?;
        let (a, b) = (pairs[0], pairs[1]);
        let part = s.exchanges[a].part;
        s.exchanges[a].part = s.exchanges[b].part;
        s.exchanges[b].part = part;
        Some(())
    }),
    says("a list that asks owners by itself", "operands", |s| {
        let (list, owned) = (0..).zip(&s.exchanges).find_map(|(e, x)| Some((e, x.shares?.owned)))?;
        let ops = s.train.ops.iter_mut();
        let all = ops.filter_map(|op| match &mut op.action {
            Action::AllToAllIds { exchanges } => Some(exchanges),
            _ => None,
        });
        *all.flatten().find(|e| **e == owned)? = list;
        Some(())
    }),
    says("a share that lists its entries by itself", "operands", |s| {
        let owned = s.exchanges.iter().find_map(|x| x.shares)?.owned;
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        s.train.ops[at].action = Action::Unique { exchange: owned };
        Some(())
    }),
    says("rows that are merged without the hot ones", "exchange", |s| {
        let at = *bringing(s).first()?;
        // Rows that are all in one class remain.
        s.train.ops[at].reads.pop();
        Some(())
    }),
    says("hot rows that are merged again", "exchange", |s| {
        let first = *bringing(s).first()?;
        let Action::Merge { exchange, .. } = s.train.ops[first].action.clone() else { return None };
        let hot = *s.train.ops[first].reads.last()?;
        let later = all(s, |a| matches!(a, Action::Merge { exchange: e, .. } if *e == exchange));
        let later = later.into_iter().find(|at| *at != first)?;
        s.train.ops[later].reads.push(hot);
        Some(())
    }),
    says("hot rows of another table", "operands", |s| {
        let list = bringing(s);
        swap_last(s, &list, |s, a, b| table(s, a) != table(s, b))
    }),
    says("hot rows of another part", "exchange", |s| {
        let list = bringing(s);
        swap_last(s, &list, |s, a, b| table(s, a) == table(s, b))
    }),
    says("gradients of hot rows that nobody cuts out", "exchange", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Split { .. })).first()?;
        remove(s, at);
        Some(())
    }),
    says("gradients with owners cut out as those of hot rows", "operands", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Split { .. })).first()?;
        let Action::Split { exchange: e, class } = s.train.ops[at].action else { return None };
        let list = s.exchanges[e as usize].of?;
        let owned = s.exchanges[list as usize].shares?.owned;
        s.train.ops[at].action = Action::Split { exchange: owned, class };
        Some(())
    }),
    says("an update of hot rows that is left out", "exchange", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Apply { .. })).first()?;
        remove(s, at);
        Some(())
    }),
    says("hot rows that are not looked up", "exchange", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Gather { .. })).first()?;
        remove(s, at);
        Some(())
    }),
    says("hot rows in place of all", "exchange", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Gather { .. })).first()?;
        let (table, hot) = (table(s, at)?, s.train.ops[at].writes[0].place);
        let merge = bringing(s).into_iter().find(|at| self::table(s, *at) == Some(table))?;
        let whole = s.train.ops[merge].writes[0].place;
        let pools = s.train.ops.iter_mut().filter(|op| matches!(op.action, Action::Pool { .. }));
        pools.flat_map(|op| &mut op.reads).find(|o| o.place == whole)?.place = hot;
        Some(())
    }),
    order("hot rows that are updated before all gradients are there", "fresh", |s| {
        let at = *of_hot(s, |a| matches!(a, Action::Apply { .. })).first()?;
        let gradients = s.train.ops[at].reads.last()?.place;
        let from = s.train.ops.iter().position(|op| op.writes.iter().any(|w| w.place == gradients))?;
        unorder(s, from, at, 0)
    }),
];
