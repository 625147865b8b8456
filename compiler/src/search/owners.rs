//! Who owns the rows of tables that stay whole: one rank each, or all ranks some of each.
//!
//! Terms say that owners have a table's rows and not who they are, so both ways are the same term and no rule leads from one to
//! the other. What they cost is not: whoever owns a whole table sends and looks up as much of it as all ranks together ask for,
//! and where several do, a step waits for the one that has most to do until all of them have less.

use fs_schedule::Sharding;

use super::asked::{Change, Owners};
use super::climb::Move;
use super::outcome::Way;
use super::travel::Kind;

/// Changes of tables whose place the model leaves open, with how they are sharded: of all that single ranks own, and of each
/// kind.
pub(super) fn moves(open: &[(&Sharding, Kind<'_>)]) -> Vec<Move> {
    let of = |owners| {
        let whole = open.iter().filter(move |(sharding, _)| Owners::of(sharding) == Some(owners));
        whole.map(|(_, kind)| *kind)
    };
    let owned: Vec<Kind<'_>> = of(Owners::One).collect();
    let all = (owned.len() > 1).then(|| change(&owned, Owners::All));
    let mut moves: Vec<Move> = all.into_iter().collect();
    moves.extend(owned.iter().map(|kind| change(&[*kind], Owners::All)));
    moves.extend(of(Owners::All).map(|kind| change(&[kind], Owners::One)));
    moves
}

fn way(owners: Owners) -> Way {
    Way::Owned(owners.told().into())
}

fn change(kinds: &[Kind<'_>], to: Owners) -> Move {
    let sum = |of: fn(&Kind<'_>) -> f64| kinds.iter().map(of).sum::<f64>();
    let (wire, far) = (sum(|kind| kind.wire), sum(|kind| kind.far));
    let from = if to == Owners::All { Owners::One } else { Owners::All };
    Move {
        tables: kinds.iter().flat_map(|kind| kind.tables).cloned().collect(),
        ways: (way(from), way(to)),
        change: Change::Owners { owners: to, rules: Vec::new() },
        wire: (wire, wire),
        far: (far, far),
        covered: false,
    }
}
