//! Terms: what values are computed of, each term once, so that equal numbers are equal computations.
//!
//! Columns side by side and column ranges have one form: a list of ranges of terms that are neither, of which
//! neighbours that continue each other are one. Sums go from the left.

use std::collections::{BTreeMap, HashMap};

/// A term's number.
pub(super) type Id = u32;
/// The microbatch of an operation.
pub(super) type Part = Option<u32>;

/// Columns `[start, end)` of a term.
pub(super) type Piece = (Id, u32, u32);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    /// Inputs and offsets of a microbatch; parameters; the rows of a table that ids use.
    Input(u32, Part),
    Lengths(u32, Part),
    Parameter(u32),
    Rows(u32),
    /// As many columns of zeros as a range says.
    Zero,
    /// An action on a microbatch: its number, and operands.
    Made(u32, Part, Box<[Id]>),
    /// One of its results.
    Result(Id, u32),
    /// The second added to the first.
    Sum(Id, Id),
    Pieces(Box<[Piece]>),
    /// Something that is not of the model.
    Other(u32),
}

/// All terms.
#[derive(Default)]
pub(super) struct Terms {
    numbers: HashMap<Node, Id>,
    nodes: Vec<Node>,
    columns: Vec<u32>,
    actions: HashMap<String, u32>,
    others: u32,
}

impl Terms {
    /// The number of a term with so many columns.
    pub(super) fn term(&mut self, node: Node, columns: u32) -> Id {
        if let Some(id) = self.numbers.get(&node) {
            return *id;
        }
        let id = self.nodes.len() as Id;
        self.nodes.push(node.clone());
        self.columns.push(columns);
        self.numbers.insert(node, id);
        id
    }

    /// The number of an action: of its text, which has every constant.
    pub(super) fn action(&mut self, action: &crate::action::Action) -> u32 {
        let text = serde_json::to_string(action).unwrap_or_default();
        let next = self.actions.len() as u32;
        *self.actions.entry(text).or_insert(next)
    }

    /// Something that nothing else equals.
    pub(super) fn other(&mut self, columns: u32) -> Id {
        self.others += 1;
        self.term(Node::Other(self.others), columns)
    }

    pub(super) fn zeros(&mut self, columns: u32) -> Id {
        let zero = self.term(Node::Zero, 1);
        self.beside(vec![(zero, 0, columns)])
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The sums among the first so many, in the order in which they came to be.
    pub(super) fn sums(&self, first: usize) -> impl Iterator<Item = Id> {
        let all = (0..).zip(&self.nodes[..first]);
        all.filter(|(_, node)| matches!(node, Node::Sum(..))).map(|(id, _)| id)
    }

    /// The second added to the first.
    pub(super) fn sum(&mut self, a: Id, b: Id) -> Id {
        let columns = self.columns[a as usize];
        self.term(Node::Sum(a, b), columns)
    }

    /// Its ranges of other terms, or all of itself.
    pub(super) fn pieces(&self, id: Id) -> Vec<Piece> {
        match &self.nodes[id as usize] {
            Node::Pieces(list) => list.to_vec(),
            _ => vec![(id, 0, self.columns[id as usize])],
        }
    }

    /// Some of its columns.
    pub(super) fn slice(&mut self, id: Id, start: u32, end: u32) -> Id {
        if (start, end) == (0, self.columns[id as usize]) {
            return id;
        }
        let mut at = 0;
        let mut cut = Vec::new();
        for (term, from, to) in self.pieces(id) {
            let (a, z) = (start.max(at), end.min(at + to - from));
            if a < z {
                cut.push((term, from + a - at, from + z - at));
            }
            at += to - from;
        }
        self.beside(cut)
    }

    /// Columns side by side.
    pub(super) fn beside(&mut self, pieces: Vec<Piece>) -> Id {
        let mut merged: Vec<Piece> = Vec::with_capacity(pieces.len());
        for (term, mut from, mut to) in pieces {
            let zero = self.nodes[term as usize] == Node::Zero;
            if zero {
                (from, to) = (0, to - from);
            }
            match merged.last_mut() {
                Some(last) if last.0 == term && zero => last.2 += to,
                Some(last) if last.0 == term && last.2 == from => last.2 = to,
                _ => merged.push((term, from, to)),
            }
        }
        match merged[..] {
            [(term, 0, to)]
                if to == self.columns[term as usize] && self.nodes[term as usize] != Node::Zero =>
            {
                term
            }
            _ => {
                let columns = merged.iter().map(|(_, from, to)| to - from).sum();
                self.term(Node::Pieces(merged.into()), columns)
            }
        }
    }
}

/// What a buffer holds, by the first column of each range.
#[derive(Debug, Clone, Default)]
pub(super) struct Columns(BTreeMap<u32, Piece>);

impl Columns {
    /// The term in some columns; `None` if a part of them was never written.
    pub(super) fn read(&self, terms: &mut Terms, start: u32, end: u32) -> Option<Id> {
        let mut at = start;
        let mut found = Vec::new();
        let first = self.0.range(..=start).next_back().map_or(start, |(k, _)| *k);
        for (k, (term, from, to)) in self.0.range(first..end) {
            let (a, z) = ((*k).max(start), (k + to - from).min(end));
            if a >= z {
                continue;
            }
            if a != at {
                return None;
            }
            found.push((*term, from + a - k, from + z - k));
            at = z;
        }
        (at == end).then(|| terms.beside(found))
    }

    /// Ranges that reading or writing some columns looks at.
    pub(super) fn touched(&self, start: u32, end: u32) -> usize {
        let first = self.0.range(..=start).next_back().map_or(start, |(k, _)| *k);
        self.0.range(first..end.max(first)).count()
    }

    /// Puts a term into columns from `start` on.
    pub(super) fn write(&mut self, terms: &Terms, start: u32, value: Id) {
        let pieces = terms.pieces(value);
        let end = start + pieces.iter().map(|(_, from, to)| to - from).sum::<u32>();
        let first = self.0.range(..=start).next_back().map_or(start, |(k, _)| *k);
        let touched: Vec<u32> = self.0.range(first..end).map(|(k, _)| *k).collect();
        for k in touched {
            let Some((term, from, to)) = self.0.get(&k).copied() else { continue };
            let last = k + to - from;
            if last <= start {
                continue;
            }
            self.0.remove(&k);
            if k < start {
                self.0.insert(k, (term, from, from + start - k));
            }
            if last > end {
                self.0.insert(end, (term, from + end - k, to));
            }
        }
        let mut at = start;
        for (term, from, to) in pieces {
            self.0.insert(at, (term, from, to));
            at += to - from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of ranges, put together again, are what they were.
    #[test]
    fn ranges_have_one_form() {
        let mut t = Terms::default();
        let (a, b) = (t.term(Node::Parameter(0), 8), t.term(Node::Parameter(1), 4));
        let both = t.beside(vec![(a, 0, 8), (b, 0, 4)]);
        let middle = t.slice(both, 6, 10);
        assert_eq!(t.pieces(middle), vec![(a, 6, 8), (b, 0, 2)]);
        let mut buffer = Columns::default();
        buffer.write(&t, 0, both);
        assert_eq!(buffer.read(&mut t, 0, 12), Some(both));
        assert_eq!(buffer.read(&mut t, 0, 8), Some(a));
        assert_eq!(buffer.read(&mut t, 6, 10), Some(middle));
        assert_eq!(buffer.read(&mut t, 6, 13), None);
        let zeros = t.zeros(3);
        buffer.write(&t, 2, zeros);
        let (left, right) = (t.zeros(1), t.zeros(2));
        let pieces = [t.pieces(left), t.pieces(right)].concat();
        assert_eq!(t.beside(pieces), zeros);
        assert_eq!(buffer.read(&mut t, 2, 5), Some(zeros));
        let back = t.slice(a, 2, 5);
        buffer.write(&t, 2, back);
        assert_eq!(buffer.read(&mut t, 0, 12), Some(both));
        assert_ne!(t.sum(a, b), t.sum(b, a));
    }

    /// What is of no model equals nothing, whatever its shape.
    #[test]
    fn other_terms_are_all_different() {
        let mut t = Terms::default();
        let (a, b) = (t.other(2), t.other(2));
        assert_ne!(a, b);
        assert_eq!(t.pieces(b), vec![(b, 0, 2)]);
    }

    /// A range that is written splits what it does not cover, and work is counted by ranges.
    #[test]
    fn ranges_are_counted() {
        let mut t = Terms::default();
        let (a, b) = (t.term(Node::Parameter(0), 8), t.term(Node::Parameter(1), 2));
        let mut buffer = Columns::default();
        assert_eq!(buffer.touched(0, 8), 0);
        buffer.write(&t, 0, a);
        buffer.write(&t, 3, b);
        assert_eq!([buffer.touched(0, 8), buffer.touched(4, 5), buffer.touched(4, 6)], [3, 1, 2]);
        assert_eq!([buffer.touched(5, 8), buffer.touched(0, 3), buffer.touched(9, 9)], [1, 1, 1]);
    }

    /// Against columns one by one: whatever is written and read, in any order.
    #[test]
    fn ranges_are_columns() {
        const WIDE: u32 = 12;
        let mut state = 5u64;
        let mut next = |n: u32| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32 % n
        };
        let mut t = Terms::default();
        let widths = [1, 3, 4, WIDE];
        let of_model: Vec<Id> = (0..4).map(|n| t.term(Node::Parameter(n), widths[n as usize])).collect();
        let one_by_one = |t: &Terms, id: Id| -> Vec<(Id, u32)> {
            let zero = |term: Id| t.nodes[term as usize] == Node::Zero;
            let each = |(term, from, to): Piece| (from..to).map(move |c| (term, c));
            t.pieces(id).into_iter().flat_map(each).map(|(x, c)| (x, if zero(x) { 0 } else { c })).collect()
        };
        for _ in 0..300 {
            let (mut buffer, mut columns) = (Columns::default(), vec![None; WIDE as usize]);
            let mut known = of_model.clone();
            for _ in 0..8 {
                let all = known[next(known.len() as u32) as usize];
                let width = one_by_one(&t, all).len() as u32;
                let start = next(width);
                let end = start + 1 + next(width - start);
                let zeros = next(5) == 0;
                let slice = if zeros { t.zeros(end - start) } else { t.slice(all, start, end) };
                let value = one_by_one(&t, slice);
                if !zeros {
                    assert_eq!(value, one_by_one(&t, all)[start as usize..end as usize], "{start}..{end}");
                }
                let at = next(WIDE - value.len() as u32 + 1);
                buffer.write(&t, at, slice);
                for (c, v) in (at as usize..).zip(&value) {
                    columns[c] = Some(*v);
                }
                let a = next(WIDE);
                let z = a + 1 + next(WIDE - a);
                let want: Option<Vec<(Id, u32)>> = columns[a as usize..z as usize].iter().copied().collect();
                let read = buffer.read(&mut t, a, z);
                assert_eq!(read.map(|id| one_by_one(&t, id)), want, "{a}..{z}");
                // One form: what is equal column by column is one term.
                if let (Some(id), Some(want)) = (read, want) {
                    let single = want.iter().map(|(x, c)| (*x, *c, c + 1)).collect();
                    assert_eq!(t.beside(single), id, "{a}..{z}");
                    known.push(id);
                }
            }
        }
    }
}
