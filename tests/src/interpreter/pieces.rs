//! What buffers hold: symbolic values by ranges of columns.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::nodes::word;

/// An entry of an exchange: who asks for which row, and the windows of its first and last use by that rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub from: u32,
    pub row: u64,
    pub first: u32,
    pub last: u32,
}

/// A value per row, with its entry's place, who asked and which row.
pub(crate) type Rows = BTreeMap<u32, (u32, u64, u64)>;

/// Contents of a buffer, or of a column range of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Data {
    Word(u64),
    Ids(Vec<u64>),
    Entries(Vec<Entry>),
    /// Places and their rows: inverses and positions.
    Places(Vec<(u32, u64)>),
    /// Places of rows that others ask for: where, which row, and who asked.
    Asked(Vec<(u32, u64, u32)>),
    /// Class, row and who asked.
    Classes(Vec<(u32, u64, u32)>),
    Rows(Rows),
}

impl Data {
    /// If it is rows.
    pub(crate) fn rows(&self) -> Option<&Rows> {
        if let Self::Rows(rows) = self { Some(rows) } else { None }
    }
}

/// Pieces of a buffer by column range.
pub(crate) type Pieces = Vec<((u32, u32), Data)>;

/// Ranges that have a column in common.
pub(crate) fn meets(a: (u32, u32), b: (u32, u32)) -> bool {
    a.0 < b.1 && b.0 < a.1
}

/// What pieces hold of some columns.
pub(crate) fn cut(pieces: &Pieces, wanted: (u32, u32)) -> Pieces {
    let mut out = Pieces::new();
    for (range, data) in pieces.iter().filter(|(r, _)| meets(*r, wanted)) {
        let data = match data {
            // Some columns of rows are other values than all of them.
            Data::Rows(rows) if range.0 < wanted.0 || range.1 > wanted.1 => {
                let part = (wanted.0 - range.0.min(wanted.0), wanted.1 - range.0.min(wanted.1));
                Data::Rows(rows.iter().map(|(at, (f, r, v))| (*at, (*f, *r, word(&(v, part))))).collect())
            }
            data => data.clone(),
        };
        out.push(((range.0.max(wanted.0), range.1.min(wanted.1)), data));
    }
    out
}

/// What pieces hold of all other columns.
pub(crate) fn without(pieces: &Pieces, range: (u32, u32)) -> Pieces {
    let mut rest = cut(pieces, (0, range.0));
    rest.extend(cut(pieces, (range.1, u32::MAX)));
    rest
}

/// How many columns pieces hold.
pub(crate) fn width(pieces: &Pieces) -> u32 {
    pieces.iter().map(|((a, z), _)| z - a).sum()
}

/// Pieces as one value: rows whose columns lie beside each other are rows, of those places that are in `any` of them or in each.
pub(crate) fn beside(pieces: &Pieces, any: bool) -> Cow<'_, Data> {
    if let [(_, data)] = pieces.as_slice() {
        return Cow::Borrowed(data);
    }
    let Some(parts) = pieces.iter().map(|(_, data)| data.rows()).collect::<Option<Vec<&Rows>>>() else {
        return Cow::Owned(Data::Word(word(pieces)));
    };
    let places: BTreeSet<u32> = parts.iter().flat_map(|rows| rows.keys().copied()).collect();
    let value = |at: u32| {
        let values: Vec<_> = parts.iter().map(|rows| rows.get(&at)).collect();
        let (from, row, _) = *values.iter().flatten().next()?;
        (any || values.iter().all(Option::is_some)).then(|| (at, (*from, *row, word(&values))))
    };
    Cow::Owned(Data::Rows(places.into_iter().filter_map(value).collect()))
}
