//! Outboxes in the host's memory.

use std::ops::Range;

use fs_kernels::{Mat, Real, mxint8};
use fs_schedule::Element;

use super::envelope::Message;
use super::frame::{BadFrame, Reader};
use super::outbox::Outbox;

/// An outbox in the host's memory, which every thread reads where it is.
#[derive(Debug, Default)]
pub struct HostOutbox<T> {
    /// One per exchange of the collective.
    pub sections: Vec<Section<T>>,
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
    /// What they are on their way.
    pub coding: Coding,
    /// Row numbers.
    pub indices: Vec<u32>,
    /// Classes or uses.
    pub bytes: Vec<u8>,
}

/// What reals are on their way; where ranks share memory they are numbers that were rounded to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Coding {
    /// As they are.
    #[default]
    Real,
    /// Brain floats.
    Brain,
    /// [`mxint8`], by entry.
    Mxint8,
}

impl Coding {
    /// That of a buffer's elements.
    pub(crate) fn of(element: Element) -> Self {
        match element {
            Element::Bf16 => Self::Brain,
            Element::Mxint8 => Self::Mxint8,
            Element::Real | Element::Id | Element::Index | Element::Count | Element::Byte => Self::Real,
        }
    }
    fn numbered(n: u64) -> Result<Self, BadFrame> {
        [Self::Real, Self::Brain, Self::Mxint8].into_iter().nth(n as usize).ok_or(BadFrame::Coding(n))
    }
    /// Bytes of an entry of so many.
    pub(crate) fn bytes<T>(self, reals: usize) -> usize {
        match self {
            Self::Real => reals.saturating_mul(size_of::<T>()),
            Self::Brain => reals.saturating_mul(2),
            Self::Mxint8 => mxint8::row_bytes(reals),
        }
    }
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

impl<T: Real> Outbox for HostOutbox<T> {
    fn clear(&mut self, sections: usize) {
        let sections = sections.max(self.sections.len());
        self.sections.resize_with(sections, Section::default);
        for section in &mut self.sections {
            section.clear();
        }
    }

    fn wire(&self, to: usize) -> u64 {
        self.sections.iter().map(|s| s.counts.get(to).map_or(0, |n| n * s.bytes_of_entry())).sum()
    }

    fn sections(&self) -> usize {
        self.sections.len()
    }

    fn write(&self, to: usize, bytes: &mut Vec<u8>) {
        for section in &self.sections {
            let Widths { reals, indices, bytes: small } = section.widths;
            let part = section.part(to);
            for n in [part.map_or(0, |part| part.count), reals, section.coding as usize, indices, small] {
                bytes.extend_from_slice(&(n as u64).to_le_bytes());
            }
            let Some(part) = part else { continue };
            match section.coding {
                Coding::Real => T::write_le(part.reals, bytes),
                Coding::Brain => T::write_bf16(part.reals, bytes),
                Coding::Mxint8 => mxint8::write(Mat::new(part.reals, part.count, reals), bytes),
            }
            part.indices.iter().for_each(|n| bytes.extend_from_slice(&n.to_le_bytes()));
            bytes.extend_from_slice(part.bytes);
        }
    }

    /// All of what it holds is for the one receiver then.
    fn read(&mut self, to: usize, sections: usize, reader: &mut Reader<'_>) -> Result<(), BadFrame> {
        for i in 0..sections {
            let count = reader.size()?;
            let (reals, coding) = (reader.size()?, Coding::numbered(reader.number()?)?);
            let widths = Widths { reals, indices: reader.size()?, bytes: reader.size()? };
            let bytes = |width: usize, size: usize| {
                count.checked_mul(width).and_then(|n| n.checked_mul(size)).ok_or(BadFrame::Short("a section"))
            };
            let reals = reader.bytes(bytes(coding.bytes::<T>(widths.reals), 1)?)?;
            let indices = reader.bytes(bytes(widths.indices, size_of::<u32>())?)?;
            let small = reader.bytes(bytes(widths.bytes, 1)?)?;
            if self.sections.len() == i {
                self.sections.push(Section::default());
            }
            let section = &mut self.sections[i];
            section.clear();
            (section.everyone, section.widths, section.coding) = (true, widths, coding);
            section.counts.resize(to + 1, count as u64);
            match coding {
                Coding::Real => T::read_le(reals, &mut section.reals),
                Coding::Brain => T::read_bf16(reals, &mut section.reals),
                Coding::Mxint8 => mxint8::read(reals, widths.reals, &mut section.reals),
            }
            section
                .indices
                .extend(indices.chunks_exact(4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]])));
            section.bytes.extend_from_slice(small);
        }
        self.sections.truncate(sections);
        Ok(())
    }
}

impl<'a, T> Message<'a, HostOutbox<T>> {
    /// A section's part; `None` if it has none.
    pub fn part(&self, section: usize) -> Option<Part<'a, T>> {
        self.outbox().sections.get(section)?.part(self.to())
    }
}

impl<T> Section<T> {
    /// Empties it.
    pub(crate) fn clear(&mut self) {
        self.counts.clear();
        self.everyone = false;
        self.widths = Widths::default();
        self.coding = Coding::Real;
        self.reals.clear();
        self.indices.clear();
        self.bytes.clear();
    }

    fn bytes_of_entry(&self) -> u64 {
        let Widths { reals, indices, bytes } = self.widths;
        (self.coding.bytes::<T>(reals) + indices * size_of::<u32>() + bytes) as u64
    }

    /// The entries for rank `to`.
    fn entries(&self, to: usize) -> Range<usize> {
        let start = if self.everyone { 0 } else { self.counts[..to].iter().sum::<u64>() as usize };
        start..start + self.counts[to] as usize
    }

    /// What rank `to` gets; `None` if the section does not hold what it says.
    pub(crate) fn part(&self, to: usize) -> Option<Part<'_, T>> {
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
        let outbox = HostOutbox { sections: vec![section] };
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
