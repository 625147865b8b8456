//! Who owns the rows of tables that stay whole: one rank each, or all ranks some of each.
//!
//! Terms say that owners have a table's rows and not who they are, so both ways are the same term and no rule leads from one to
//! the other. What they cost is not: whoever owns a whole table sends and looks up as much of it as all ranks together ask for,
//! and where several do, a step waits for the one that has most to do until all of them have less.

use fs_schedule::Sharding;

use super::asked::Change;
use super::climb::Move;
use super::outcome::Way;
use super::tables::Alike;
use super::travel::Kind;

/// Changes of tables whose place the model leaves open: of all that single ranks own, and of each kind.
pub(super) fn moves(classes: &[Alike], kinds: &[Kind<'_>]) -> (Option<Move>, Vec<Move>) {
    let of = |way: fn(&Sharding) -> bool| {
        let open = move |class: &Alike| class.context.moves && way(&class.now.sharding);
        classes.iter().zip(kinds).filter(move |(class, _)| open(class)).map(|(_, kind)| *kind)
    };
    let owned: Vec<Kind<'_>> = of(|s| matches!(s, Sharding::TableWise { .. })).collect();
    let all = (owned.len() > 1).then(|| change(&owned, Owners::All));
    let mut each: Vec<Move> = owned.iter().map(|kind| change(&[*kind], Owners::All)).collect();
    each.extend(of(|s| *s == Sharding::RowWise).map(|kind| change(&[kind], Owners::One)));
    (all, each)
}

/// Who owns a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owners {
    /// All ranks.
    All,
    /// One.
    One,
}

impl Owners {
    /// As options have it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::All => "row_wise",
            Self::One => "table_wise",
        }
    }

    fn way(self) -> Way {
        Way::Owned(match self {
            Self::All => "row-wise",
            Self::One => "table-wise",
        })
    }
}

fn change(kinds: &[Kind<'_>], to: Owners) -> Move {
    let sum = |of: fn(&Kind<'_>) -> f64| kinds.iter().map(of).sum::<f64>();
    let (wire, far) = (sum(|kind| kind.wire), sum(|kind| kind.far));
    let from = if to == Owners::All { Owners::One } else { Owners::All };
    Move {
        tables: kinds.iter().flat_map(|kind| kind.tables).cloned().collect(),
        ways: (from.way(), to.way()),
        change: Change::Owners(to),
        wire: (wire, wire),
        far: (far, far),
        covered: false,
    }
}
