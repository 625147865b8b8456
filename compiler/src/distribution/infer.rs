//! The types of operations: what operands must be, and what comes out.

use fs_schedule::Site;

use super::op::Op;
use super::ty::{Holds, Per, Precision, Sharded, Type, TypeError};

/// The operands of an operation, to be checked.
struct Operands<'a> {
    op: Op,
    types: &'a [Type],
}

impl Operands<'_> {
    fn get(&self, i: usize, wanted: &'static str, fits: impl Fn(&Type) -> bool) -> Result<Type, TypeError> {
        let found = self.types.get(i).copied().filter(|t| fits(t));
        found.ok_or(TypeError { op: self.op.name(), operand: i, wanted })
    }
    fn count(&self, fits: bool, wanted: &'static str) -> Result<(), TypeError> {
        if fits { Ok(()) } else { Err(TypeError { op: self.op.name(), operand: self.types.len(), wanted }) }
    }
    /// All operands, at least one, alike but for columns.
    fn alike(&self, holds: Holds) -> Result<Type, TypeError> {
        let first = self.get(0, "there, and of the right kind", |t| t.holds == holds)?;
        for i in 1..self.types.len() {
            self.get(i, "like the first", |t| Type { columns: first.columns, ..*t } == first)?;
        }
        Ok(first)
    }
    /// A list that tells how many go where: requests, entries, or positions of a class among them.
    fn list(&self, i: usize, sharded: Sharded) -> Result<Type, TypeError> {
        self.get(i, "a list of entries at the right side", |t| {
            let a_list = matches!(t.holds, Holds::Ids | Holds::Requests | Holds::Positions);
            a_list && t.sharded == sharded && matches!(t.per, Per::Entry { .. })
        })
    }
}

/// Whether one side asks the other: ranks ask relays and owners, relays ask owners.
fn asks(who: Sharded, whom: Sharded) -> bool {
    matches!(
        (who, whom),
        (Sharded::Sample, Sharded::Relay | Sharded::Owner) | (Sharded::Relay, Sharded::Owner)
    )
}

/// Places among a relay's list.
fn is_places(t: &Type) -> bool {
    t.holds == Holds::Positions && t.sharded == Sharded::Relay && is_entry(t)
}

/// Begins and ends of samples where they are read.
fn offsets_at_home(t: &Type) -> bool {
    t.holds == Holds::Offsets && t.site == Site::Home
}

const fn is_entry(t: &Type) -> bool {
    matches!(t.per, Per::Entry { .. })
}

/// The type of an operation on operands.
pub(crate) fn infer(op: Op, types: &[Type]) -> Result<Type, TypeError> {
    let o = Operands { op, types };
    let leaf = |holds, sharded, per, columns| {
        o.count(types.is_empty(), "left out")?;
        Ok(Type { holds, sharded, per, columns, site: Site::Home, precision: Precision::F32 })
    };
    match op {
        Op::Shard { start, end, replicated, .. } => {
            let sharded = if replicated { Sharded::Replicated } else { Sharded::Owner };
            leaf(Holds::Rows, sharded, Per::Row, end.saturating_sub(start))
        }
        Op::Replicas { start, end, .. } => {
            leaf(Holds::Rows, Sharded::Replicated, Per::Row, end.saturating_sub(start))
        }
        Op::Ids { columns, .. } => leaf(Holds::Ids, Sharded::Sample, Per::Id, columns),
        Op::Offsets { .. } => leaf(Holds::Offsets, Sharded::Sample, Per::Sample, 1),
        Op::Given { rows, columns, .. } => {
            let samples = rows == fs_schedule::Extent::Symbol(fs_schedule::Symbol::Samples);
            let per = if samples { Per::Sample } else { Per::Id };
            leaf(Holds::Gradients, Sharded::Sample, per, columns)
        }
        Op::Entries { unique, .. } => {
            let ids = o.alike(Holds::Ids)?;
            o.get(0, "ids of samples", |t| t.sharded == Sharded::Sample && t.per == Per::Id)?;
            Ok(Type { per: Per::Entry { unique }, columns: 1, ..ids })
        }
        Op::Share { .. }
        | Op::Inverse
        | Op::Ask { .. }
        | Op::AskAll { .. }
        | Op::AskRelay { .. }
        | Op::Relayed { .. }
        | Op::Places
        | Op::Own
        | Op::Gradients { .. } => asked(&o),
        Op::Partition { .. } | Op::Answer | Op::PassClasses | Op::Positions { .. } => classes(&o),
        Op::Gather
        | Op::Return
        | Op::PassRows
        | Op::Merge
        | Op::Unite
        | Op::Concat
        | Op::Expand
        | Op::Pool { .. } => rows(&o),
        Op::ExpandGrad
        | Op::PoolGrad { .. }
        | Op::Sum
        | Op::Columns { .. }
        | Op::Split
        | Op::Cut { .. }
        | Op::Send
        | Op::SumAsked
        | Op::SendAll
        | Op::Total
        | Op::Update
        | Op::Join
        | Op::Beside => gradients(&o),
        Op::Dispatch | Op::Combine => {
            let (from, to) = match op {
                Op::Dispatch => (Site::Home, Site::Assigned),
                _ => (Site::Assigned, Site::Home),
            };
            let wanted = "of samples, and where they are taken from";
            let of_samples = |t: &Type| {
                t.sharded == Sharded::Sample && matches!(t.per, Per::Sample | Per::Id) && t.site == from
            };
            let of = o.get(0, wanted, of_samples)?;
            // How many each sample has, where it is read.
            let each = usize::from(of.per == Per::Id);
            o.count(types.len() == 1 + each, "as many as it takes")?;
            if each > 0 {
                o.get(1, "offsets at home", offsets_at_home)?;
            }
            Ok(Type { site: to, ..of })
        }
        Op::AllReduce => {
            o.count(types.len() == 1, "one")?;
            let of = o.get(0, "dense gradients of a rank", |t| {
                t.holds == Holds::Gradients && t.sharded == Sharded::Sample && !is_entry(t)
            })?;
            Ok(Type { sharded: Sharded::Replicated, ..of })
        }
        Op::Joint { nth } => {
            o.count(types.len() > 1, "at least two")?;
            o.get(nth as usize, "one of the transfers", |_| true)
        }
        Op::AskFor { unique, .. } => {
            o.count(types.len() >= 2 && types.len().is_multiple_of(2), "left out")?;
            let ids = |t: &Type| {
                let of_samples = t.sharded == Sharded::Sample && t.per == Per::Id;
                t.holds == Holds::Ids && of_samples && t.site == Site::Home
            };
            for i in (0..types.len()).step_by(2) {
                o.get(i, "ids of samples at home", ids)?;
                o.get(i + 1, "offsets at home", offsets_at_home)?;
            }
            let per = Per::Entry { unique };
            let first = o.get(0, "there", ids)?;
            Ok(Type {
                holds: Holds::Requests,
                sharded: Sharded::Owner,
                per,
                columns: 1,
                site: Site::Assigned,
                ..first
            })
        }
        Op::Cast { to } => {
            o.count(types.len() == 1, "one")?;
            let reals = |t: &Type| matches!(t.holds, Holds::Rows | Holds::Gradients);
            Ok(Type { precision: to, ..o.get(0, "rows or gradients", reals)? })
        }
    }
}

/// Who asks for what.
fn asked(o: &Operands<'_>) -> Result<Type, TypeError> {
    let wanted = "the entries of a rank";
    let entries = |i| o.get(i, wanted, |t| t.holds == Holds::Ids && is_entry(t));
    // Of a rank itself, not of a relay.
    let own = |i| {
        let of = |t: &Type| t.holds == Holds::Ids && is_entry(t) && t.sharded == Sharded::Sample;
        o.get(i, wanted, of)
    };
    let of_node = |i| {
        let of = |t: &Type| t.holds == Holds::Requests && t.sharded == Sharded::Relay;
        o.get(i, "what a node asks its relay for", of)
    };
    match o.op {
        Op::Share { .. } => {
            o.count(o.types.len() == 1, "one")?;
            own(0)
        }
        Op::Inverse => {
            o.count(o.types.len() == 2, "two")?;
            let entries = own(0)?;
            let ids = o.get(1, "ids of the same samples", |t| {
                t.holds == Holds::Ids && t.per == Per::Id && t.site == entries.site
            })?;
            Ok(Type { holds: Holds::Positions, ..ids })
        }
        Op::Own => {
            o.count(o.types.len() == 2, "two")?;
            let asked = o.get(0, "what all asked for", |t| {
                t.holds == Holds::Requests && t.sharded == Sharded::Replicated
            })?;
            let entries = o.get(1, wanted, |t| t.holds == Holds::Ids && t.per == asked.per)?;
            Ok(Type { holds: Holds::Requests, ..entries })
        }
        Op::Gradients { columns, .. } => {
            o.count(o.types.len() == 1, "one")?;
            Ok(Type { holds: Holds::Gradients, columns, ..own(0)? })
        }
        Op::Relayed { .. } => {
            o.count(o.types.len() == 1, "one")?;
            Ok(Type { holds: Holds::Ids, per: Per::Entry { unique: true }, ..of_node(0)? })
        }
        Op::Places => {
            o.count(o.types.len() == 2, "two")?;
            o.get(0, "a relay's list", |t| t.holds == Holds::Ids && t.sharded == Sharded::Relay)?;
            Ok(Type { holds: Holds::Positions, ..of_node(1)? })
        }
        Op::AskAll { .. } | Op::AskRelay { .. } => {
            o.count(o.types.len() == 1, "one")?;
            let all = matches!(o.op, Op::AskAll { .. });
            let sharded = if all { Sharded::Replicated } else { Sharded::Relay };
            Ok(Type { holds: Holds::Requests, sharded, ..own(0)? })
        }
        // A rank's, or a relay's.
        _ => {
            o.count(o.types.len() == 1, "one")?;
            Ok(Type { holds: Holds::Requests, sharded: Sharded::Owner, ..entries(0)? })
        }
    }
}

/// By reuse distance.
fn classes(o: &Operands<'_>) -> Result<Type, TypeError> {
    let classes = |t: &Type| t.holds == Holds::Classes;
    match o.op {
        Op::Partition { .. } => {
            o.count(o.types.len() == 2, "two")?;
            let rows = o.get(0, "rows that are asked for", |t| {
                t.holds == Holds::Requests && t.sharded != Sharded::Relay
            })?;
            o.get(1, "what owners or replicas know", |t| {
                let knows = matches!(t.sharded, Sharded::Owner | Sharded::Replicated);
                t.holds == Holds::Requests && knows && t.per == rows.per
            })?;
            Ok(Type { holds: Holds::Classes, ..rows })
        }
        Op::Answer => {
            o.count(o.types.len() == 2, "two")?;
            let of = o.get(0, "classes at owners or relays", |t| {
                classes(t) && matches!(t.sharded, Sharded::Owner | Sharded::Relay)
            })?;
            let entries = o.get(1, "the entries of who asked", |t| {
                t.holds == Holds::Ids && t.per == of.per && asks(t.sharded, of.sharded)
            })?;
            Ok(Type { holds: Holds::Classes, ..entries })
        }
        Op::PassClasses => {
            o.count(o.types.len() == 2, "two")?;
            o.get(0, "a relay's classes", |t| classes(t) && t.sharded == Sharded::Relay)?;
            let places = o.get(1, "places of what its node asks for", is_places)?;
            Ok(Type { holds: Holds::Classes, ..places })
        }
        _ => {
            o.count(o.types.len() == 1, "one")?;
            Ok(Type { holds: Holds::Positions, ..o.get(0, "classes", classes)? })
        }
    }
}

/// Lookups.
fn rows(o: &Operands<'_>) -> Result<Type, TypeError> {
    let rows = |t: &Type| t.holds == Holds::Rows && is_entry(t);
    match o.op {
        Op::Gather => {
            o.count((2..=3).contains(&o.types.len()), "left out")?;
            let shard = o.get(0, "a shard", |t| t.holds == Holds::Rows && t.per == Per::Row)?;
            let asked = o.get(1, "rows asked for where the shard is", |t| {
                let there = match shard.sharded {
                    Sharded::Replicated => true,
                    sharded => t.sharded == sharded,
                };
                t.holds == Holds::Requests && there
            })?;
            if o.types.len() == 3 {
                o.list(2, asked.sharded)?;
            }
            Ok(Type { holds: Holds::Rows, columns: shard.columns, precision: shard.precision, ..asked })
        }
        Op::Return => {
            o.count(o.types.len() == 3, "three")?;
            let y = o.get(0, "rows at owners or relays", |t| {
                rows(t) && matches!(t.sharded, Sharded::Owner | Sharded::Relay)
            })?;
            o.list(1, y.sharded)?;
            let to = o.get(2, "a list of entries of who asked", |t| {
                let a_list = matches!(t.holds, Holds::Ids | Holds::Positions) && is_entry(t);
                a_list && asks(t.sharded, y.sharded)
            })?;
            Ok(Type { holds: Holds::Rows, columns: y.columns, precision: y.precision, ..to })
        }
        Op::PassRows => {
            o.count(matches!(o.types.len(), 2 | 4), "left out")?;
            let y = o.get(0, "rows at a relay", |t| rows(t) && t.sharded == Sharded::Relay)?;
            let places = o.get(1, "places of what its node asks for", is_places)?;
            for i in 2..o.types.len() {
                o.list(i, Sharded::Relay)?;
            }
            Ok(Type { holds: Holds::Rows, columns: y.columns, precision: y.precision, ..places })
        }
        Op::Merge => {
            let odd = o.types.len() % 2;
            o.count(o.types.len() >= 2, "there")?;
            let first = o.get(0, "rows of a rank", |t| rows(t) && t.sharded == Sharded::Sample)?;
            for i in (odd..o.types.len()).step_by(2) {
                o.get(i, "like the first rows", |t| *t == first)?;
                o.list(i + 1, Sharded::Sample)?;
            }
            Ok(first)
        }
        Op::Unite => {
            let n = o.types.len();
            o.count(n == 3 || (n > 3 && n.is_multiple_of(2)), "as many as it takes")?;
            let first = o.get(0, "rows of a rank", |t| rows(t) && t.sharded == Sharded::Sample)?;
            o.get(n - 2, "hot rows like the first", |t| *t == first)?;
            o.get(n - 1, "all entries of a rank", |t| {
                t.holds == Holds::Ids && t.per == first.per && t.sharded == Sharded::Sample
            })?;
            for i in (0..n - 2).step_by(2).filter(|_| n > 3) {
                o.get(i, "like the first rows", |t| *t == first)?;
                o.list(i + 1, Sharded::Sample)?;
            }
            Ok(first)
        }
        Op::Concat => {
            let first = o.alike(Holds::Rows)?;
            let columns = o.types.iter().fold(0u32, |sum, t| sum.saturating_add(t.columns));
            Ok(Type { columns, ..first })
        }
        _ => {
            let pools = matches!(o.op, Op::Pool { .. });
            o.count(o.types.len() == 2 + usize::from(pools), "as many as it takes")?;
            let of = o.get(0, "rows of a rank", |t| rows(t) && t.sharded == Sharded::Sample)?;
            o.get(1, "positions of ids of the same samples", |t| {
                t.holds == Holds::Positions && t.per == Per::Id && t.site == of.site
            })?;
            if pools {
                o.get(2, "offsets", |t| t.holds == Holds::Offsets && t.site == of.site)?;
            }
            Ok(Type { per: if pools { Per::Sample } else { Per::Id }, ..of })
        }
    }
}

/// Gradients.
fn gradients(o: &Operands<'_>) -> Result<Type, TypeError> {
    let gradients = |t: &Type| t.holds == Holds::Gradients;
    let at_rank = |t: &Type| gradients(t) && is_entry(t) && t.sharded == Sharded::Sample;
    let sends =
        |t: &Type| gradients(t) && is_entry(t) && matches!(t.sharded, Sharded::Sample | Sharded::Relay);
    match o.op {
        Op::ExpandGrad | Op::PoolGrad { .. } => {
            let pools = matches!(o.op, Op::PoolGrad { .. });
            o.count(o.types.len() == 2 + usize::from(pools), "as many as it takes")?;
            let per = if pools { Per::Sample } else { Per::Id };
            let of = o.get(0, "gradients per id or sample", |t| gradients(t) && t.per == per)?;
            o.get(1, "positions of ids of the same samples", |t| {
                t.holds == Holds::Positions && t.per == Per::Id && t.site == of.site
            })?;
            if pools {
                o.get(2, "offsets", |t| t.holds == Holds::Offsets && t.site == of.site)?;
            }
            // The arena knows which entries the positions are of, and sets whether they are unique.
            Ok(Type { per: Per::Entry { unique: true }, ..of })
        }
        Op::Sum => {
            let first = o.alike(Holds::Gradients)?;
            for i in 1..o.types.len() {
                o.get(i, "like the first", |t| t.columns == first.columns)?;
            }
            Ok(first)
        }
        Op::Columns { start, end } => {
            o.count(o.types.len() == 1, "one")?;
            let of =
                o.get(0, "gradients with those columns", |t| at_rank(t) && start < end && end <= t.columns)?;
            Ok(Type { columns: end - start, ..of })
        }
        Op::Split => {
            o.count(o.types.len() == 2, "two")?;
            let of = o.get(0, "gradients of a rank's entries", at_rank)?;
            o.list(1, Sharded::Sample)?;
            Ok(of)
        }
        Op::Cut { .. } => {
            o.count(o.types.len() == 2, "two")?;
            let of = o.get(0, "gradients of a rank's entries", at_rank)?;
            o.get(1, "a share of the entries", |t| {
                t.holds == Holds::Ids && t.per == of.per && t.sharded == Sharded::Sample
            })?;
            Ok(of)
        }
        Op::Send | Op::SendAll => {
            o.count(o.types.len() == 3, "three")?;
            let all = o.op == Op::SendAll;
            let of = o.get(0, "gradients of a rank's or relay's entries", |t| {
                if all { at_rank(t) } else { sends(t) }
            })?;
            o.list(1, of.sharded)?;
            let to = o.get(2, "a list of entries where they go", |t| {
                let a_list = matches!(t.holds, Holds::Requests | Holds::Positions) && is_entry(t);
                let there = if all { t.sharded == Sharded::Replicated } else { asks(of.sharded, t.sharded) };
                a_list && there
            })?;
            Ok(Type { holds: Holds::Gradients, columns: of.columns, precision: of.precision, ..to })
        }
        Op::SumAsked => {
            o.count(matches!(o.types.len(), 3 | 5), "left out")?;
            o.get(0, "places of what its node asks for", is_places)?;
            o.get(1, "what a node asks its relay for", |t| {
                t.holds == Holds::Requests && t.sharded == Sharded::Relay
            })?;
            let received =
                o.get(2, "gradients at a relay", |t| gradients(t) && t.sharded == Sharded::Relay)?;
            for i in 3..o.types.len() {
                o.list(i, Sharded::Relay)?;
            }
            Ok(Type { per: Per::Entry { unique: true }, ..received })
        }
        Op::Update => {
            o.count(o.types.len() == 1, "one")?;
            let of = o.get(0, "sums where the rows are", |t| {
                gradients(t) && t.per == Per::Row && matches!(t.sharded, Sharded::Owner | Sharded::Replicated)
            })?;
            Ok(Type { sharded: Sharded::Replicated, ..of })
        }
        Op::Join | Op::Beside => {
            let first = o.alike(Holds::Gradients)?;
            let whole = |t: &Type| t.per == Per::Row && t.sharded == Sharded::Replicated;
            o.get(0, "an update", whole)?;
            if o.op == Op::Beside {
                let columns = o.types.iter().fold(0u32, |sum, t| sum.saturating_add(t.columns));
                return Ok(Type { columns, ..first });
            }
            for i in 1..o.types.len() {
                o.get(i, "like the first", |t| t.columns == first.columns)?;
            }
            Ok(first)
        }
        _ => {
            o.count((2..=3).contains(&o.types.len()), "left out")?;
            let asked = o.get(0, "what was asked for", |t| {
                t.holds == Holds::Requests && matches!(t.sharded, Sharded::Owner | Sharded::Replicated)
            })?;
            let received =
                o.get(1, "gradients that arrived there", |t| gradients(t) && t.sharded == asked.sharded)?;
            if o.types.len() == 3 {
                o.list(2, asked.sharded)?;
            }
            Ok(Type { per: Per::Row, ..received })
        }
    }
}
