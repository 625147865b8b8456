//! How many parts a row is cut into.

use fs_schedule::{Element, Table};

/// Narrower parts send more than they spare.
const NARROWEST: u32 = 16;

/// Columns of so many parts, as [`Table::part_columns`] has them; none of fewer than two.
pub(crate) fn columns(dim: u32, parts: u32) -> Vec<(u32, u32)> {
    let at = |n: u32| (u64::from(dim) * u64::from(n) / u64::from(parts)) as u32;
    if parts < 2 { Vec::new() } else { (0..parts).map(|n| (at(n), at(n + 1))).collect() }
}

/// Whether a row that travels as `element` can be cut as its table is.
pub(super) fn fits(table: &Table, element: Element) -> bool {
    (0..table.sharding.parts()).all(|part| element.cuts_at(table.part_columns(part).0))
}

/// The parts for so many ranks, as many as are wide enough, of a row that travels as `element`: no cut goes through a block. None if it
/// cannot be cut, or, with `any`, not even into narrow parts.
pub(crate) fn parts(dim: u32, ranks: u32, element: Element, any: bool) -> Option<u32> {
    let wide = dim / NARROWEST;
    let most = if any { wide.max(2).min(dim) } else { wide };
    (2..=most.min(ranks))
        .rev()
        .find(|parts| columns(dim, *parts).iter().all(|(start, _)| element.cuts_at(*start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_block_is_cut() {
        for dim in 1..300 {
            for ranks in 1..12 {
                let whole = parts(dim, ranks, Element::Real, false);
                assert_eq!(whole, Some((dim / NARROWEST).min(ranks)).filter(|n| *n > 1), "{dim} on {ranks}");
                let Some(blocks) = parts(dim, ranks, Element::Mxint8, true) else { continue };
                assert!(blocks <= ranks && columns(dim, blocks).iter().all(|(start, _)| start % 32 == 0));
            }
        }
        let of = |dim, ranks| parts(dim, ranks, Element::Mxint8, true);
        assert_eq!(
            [of(128, 8), of(128, 3), of(96, 8), of(64, 2), of(48, 4), of(33, 2)],
            [Some(4), Some(2), Some(3), Some(2), None, None]
        );
        assert_eq!(parts(20, 4, Element::Real, true), Some(2));
        assert_eq!(parts(1, 4, Element::Real, true), None);
    }
}
