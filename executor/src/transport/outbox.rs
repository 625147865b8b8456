//! What ranks hand each other in one turn of a channel.

use std::ops::Range;

/// What a rank has for the others.
#[derive(Debug, Default)]
pub struct Outbox<T> {
    /// One per exchange of the collective.
    pub sections: Vec<Section<T>>,
    /// Over an emulated link: when pieces started, on the clock of whoever holds the outbox.
    pub pieces: Vec<Piece>,
}

/// Pieces of a message that took a link one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The receiver.
    pub to: usize,
    /// When the first one started, in nanoseconds.
    pub start: u64,
    /// When the last one was sent.
    pub end: u64,
}

/// The data of one exchange: entries for each rank, one rank's after the other's.
#[derive(Debug, Default)]
pub struct Section<T> {
    /// Entries for each rank. A rank's own part does not travel, and may be left out.
    pub counts: Vec<u64>,
    /// All ranks get the same entries, which are there once.
    pub everyone: bool,
    /// Numbers of each kind in an entry.
    pub widths: Widths,
    /// Rows or gradients.
    pub reals: Vec<T>,
    /// Row numbers.
    pub indices: Vec<u32>,
    /// Classes or uses.
    pub bytes: Vec<u8>,
}

/// What an entry of a section consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Widths {
    /// Reals.
    pub reals: usize,
    /// Row numbers.
    pub indices: usize,
    /// Bytes.
    pub bytes: usize,
}

impl<T: Default> Outbox<T> {
    /// Makes room for `sections` sections and clears them; allocations are kept.
    pub fn clear(&mut self, sections: usize) {
        let sections = sections.max(self.sections.len());
        self.sections.resize_with(sections, Section::default);
        for section in &mut self.sections {
            section.clear();
        }
        self.pieces.clear();
    }
}

impl<T> Outbox<T> {
    /// Bytes for a rank, as a network carries them.
    pub fn wire(&self, to: usize) -> u64 {
        self.sections.iter().map(|s| s.counts.get(to).map_or(0, |n| n * s.bytes_of_entry())).sum()
    }
}

impl<T> Section<T> {
    /// Empties it.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.everyone = false;
        self.widths = Widths::default();
        self.reals.clear();
        self.indices.clear();
        self.bytes.clear();
    }

    fn bytes_of_entry(&self) -> u64 {
        let Widths { reals, indices, bytes } = self.widths;
        (reals * size_of::<T>() + indices * size_of::<u32>() + bytes) as u64
    }

    /// The entries for rank `to`.
    fn entries(&self, to: usize) -> Range<usize> {
        let start = if self.everyone { 0 } else { self.counts[..to].iter().sum::<u64>() as usize };
        start..start + self.counts[to] as usize
    }

    /// What rank `to` gets; `None` if the section does not hold what it says.
    pub fn part(&self, to: usize) -> Option<Part<'_, T>> {
        self.counts.get(to)?;
        let entries = self.entries(to);
        let of = |width: usize| entries.start * width..entries.end * width;
        Some(Part {
            count: entries.len(),
            reals: self.reals.get(of(self.widths.reals))?,
            indices: self.indices.get(of(self.widths.indices))?,
            bytes: self.bytes.get(of(self.widths.bytes))?,
        })
    }
}

/// What one rank gets of a section.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a, T> {
    /// Number of entries.
    pub count: usize,
    /// Their reals.
    pub reals: &'a [T],
    /// Their row numbers.
    pub indices: &'a [u32],
    /// Their classes or uses.
    pub bytes: &'a [u8],
}

/// What one rank got from another one.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a, T> {
    outbox: &'a Outbox<T>,
    to: usize,
}

impl<'a, T> Message<'a, T> {
    /// What `outbox` has for rank `to`.
    pub fn new(outbox: &'a Outbox<T>, to: usize) -> Self {
        Self { outbox, to }
    }

    /// A section's part; `None` if it has none.
    pub fn part(&self, section: usize) -> Option<Part<'a, T>> {
        self.outbox.sections.get(section)?.part(self.to)
    }

    /// When its pieces took the sender's side of an emulated link, on the receiver's clock.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + 'a {
        let to = self.to;
        self.outbox.pieces.iter().filter(move |piece| piece.to == to).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_from_counts_and_widths() {
        let mut section = Section::<f32> {
            counts: vec![1, 0, 2],
            widths: Widths { reals: 2, indices: 1, bytes: 0 },
            reals: (0..6).map(|x| x as f32).collect(),
            indices: vec![7, 8, 9],
            ..Section::default()
        };
        let part = section.part(2).unwrap();
        assert_eq!((part.count, part.reals, part.indices), (2, &[2.0, 3.0, 4.0, 5.0][..], &[8, 9][..]));
        assert_eq!(section.part(1).unwrap().count, 0);
        assert!(section.part(3).is_none());
        section.everyone = true;
        assert_eq!(section.part(2).unwrap().indices, [7, 8]);
        let outbox = Outbox { sections: vec![section], pieces: Vec::new() };
        assert_eq!([0, 1, 2, 3].map(|to| outbox.wire(to)), [12, 0, 24, 0]);
    }

    #[test]
    fn a_section_that_lacks_entries_has_no_part() {
        let section = Section::<f32> {
            counts: vec![3],
            widths: Widths { indices: 1, ..Widths::default() },
            indices: vec![1],
            ..Section::default()
        };
        assert!(section.part(0).is_none());
    }
}
