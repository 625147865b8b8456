//! An outbox on its way: with what its transport knows of it, and as the frame that other processes get.

use super::frame::{BadFrame, FrameKind, Header, Reader, Writer, overhead};
use super::outbox::Outbox;

/// An outbox, and what its transport knows of it.
#[derive(Debug)]
pub struct Envelope<O> {
    /// What is sent.
    pub outbox: O,
    /// Over an emulated link: when pieces started, on the clock of whoever holds the envelope.
    pub(crate) pieces: Vec<Piece>,
}

/// Pieces of a message that took a link one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The receiver.
    pub to: usize,
    /// When the first one started, in nanoseconds.
    pub start: u64,
    /// When the last one was sent.
    pub end: u64,
}

/// What one rank got from another one.
#[derive(Debug)]
pub struct Message<'a, O> {
    outbox: &'a O,
    pieces: &'a [Piece],
    to: usize,
}

impl<O> Clone for Message<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Message<'_, O> {}

impl<O> Envelope<O> {
    /// Of an outbox that nothing was sent of.
    pub fn new(outbox: O) -> Self {
        Self { outbox, pieces: Vec::new() }
    }

    /// What it has for rank `to`.
    pub fn message(&self, to: usize) -> Message<'_, O> {
        Message { outbox: &self.outbox, pieces: &self.pieces, to }
    }
}

impl<'a, O> Message<'a, O> {
    /// What was sent, to all.
    pub fn outbox(&self) -> &'a O {
        self.outbox
    }

    /// The receiver.
    pub(crate) fn to(&self) -> usize {
        self.to
    }

    /// The same of an outbox within the outbox.
    pub fn map<P>(self, within: impl FnOnce(&'a O) -> &'a P) -> Message<'a, P> {
        Message { outbox: within(self.outbox), pieces: self.pieces, to: self.to }
    }

    /// When its pieces took the sender's side of an emulated link, on the receiver's clock.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> + 'a {
        let to = self.to;
        self.pieces.iter().filter(move |piece| piece.to == to).copied()
    }
}

impl<O: Outbox> Envelope<O> {
    /// Empties it for `sections` sections.
    pub fn clear(&mut self, sections: usize) {
        self.pieces.clear();
        self.outbox.clear(sections);
    }

    /// How many bytes what it has for a rank takes as a frame, about.
    pub(crate) fn about(&self, to: usize) -> usize {
        let frame = overhead(self.outbox.sections(), self.pieces.len());
        usize::try_from(self.outbox.wire(to).saturating_add(frame)).unwrap_or(0)
    }

    /// Appends what it has for a rank as a frame. Times in it count from `now` on, when it is posted.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>, run: u64, head: Header, now: u64) {
        let pieces = self.pieces.iter().filter(|piece| piece.to == head.to);
        let mut writer = Writer::behind(bytes, FrameKind::Data, run)
            .number(head.channel as u64)
            .number(head.turn)
            .number(head.from as u64)
            .number(head.to as u64)
            .number(head.since)
            .number(pieces.clone().count() as u64)
            .number(self.outbox.sections() as u64);
        for piece in pieces {
            writer = writer.number(piece.start.wrapping_sub(now)).number(piece.end - piece.start);
        }
        self.outbox.write(head.to, bytes);
    }

    /// Reads what follows a header, of a message that was first seen at `seen` on the receiver's clock.
    pub(crate) fn read(&mut self, mut reader: Reader<'_>, head: Header, seen: u64) -> Result<(), BadFrame> {
        self.pieces.clear();
        let (pieces, sections) = (reader.size()?, reader.size()?);
        for _ in 0..pieces {
            // What started before the run did, by this clock, started with it.
            let start = seen.saturating_add_signed(reader.number()? as i64);
            self.pieces.push(Piece { to: head.to, start, end: start.saturating_add(reader.number()?) });
        }
        self.outbox.read(head.to, sections, &mut reader)?;
        reader.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::frame::read_header;
    use crate::transport::sections::{Coding, HostOutbox, Section, Widths};
    use fs_kernels::Real;
    use proptest::prelude::*;

    const HEAD: Header = Header { channel: 3, turn: 9, from: 0, to: 1, since: 70 };

    fn envelope() -> Envelope<HostOutbox<f32>> {
        let section = Section {
            counts: vec![1, 2, 1],
            widths: Widths { reals: 2, indices: 1, bytes: 3 },
            reals: (0..8).map(|x| x as f32 - 0.1).collect(),
            indices: vec![5, 6, 7, 8],
            bytes: (0..12).collect(),
            ..Section::default()
        };
        let everyone = Section {
            counts: vec![2; 3],
            everyone: true,
            widths: Widths { reals: 1, ..Widths::default() },
            reals: vec![f32::NAN, -0.0],
            ..Section::default()
        };
        let brain = Section {
            counts: vec![1, 1, 0],
            coding: Coding::Brain,
            widths: Widths { reals: 3, ..Widths::default() },
            reals: [0.1f32, -7.3, f32::NAN, f32::INFINITY, -0.0, 3e38].map(Real::to_bf16).to_vec(),
            ..Section::default()
        };
        // Multiples of 1/64, in a block of 32 and one of 3.
        let blocks = Section {
            counts: vec![1, 2, 0],
            coding: Coding::Mxint8,
            widths: Widths { reals: 35, ..Widths::default() },
            reals: (0..105).map(|x| f32::from(100 - x as i8) / 64.0).collect(),
            ..Section::default()
        };
        let pieces = vec![Piece { to: 1, start: 100, end: 130 }, Piece { to: 2, start: 130, end: 150 }];
        Envelope {
            outbox: HostOutbox { sections: vec![section, everyone, brain, blocks, Section::default()] },
            pieces,
        }
    }

    /// Count, bits of reals, indices, bytes.
    type Parts = Vec<(usize, Vec<u32>, Vec<u32>, Vec<u8>)>;

    fn parts(sent: &Envelope<HostOutbox<f32>>) -> Parts {
        (0..sent.outbox.sections())
            .filter_map(|i| sent.message(1).part(i))
            .map(|p| {
                let reals = p.reals.iter().map(|x| x.to_bits()).collect();
                (p.count, reals, p.indices.to_vec(), p.bytes.to_vec())
            })
            .collect()
    }

    #[test]
    fn what_is_sent_arrives() {
        let (sent, mut bytes) = (envelope(), vec![9; 5]);
        sent.write(&mut bytes, 7, HEAD, 120);
        assert_eq!(bytes[..5], [9; 5], "it is appended");
        assert_eq!(bytes.len() as u64 - 5, sent.outbox.wire(1) + overhead(5, 1));
        let (kind, run, mut reader) = Reader::new(&bytes[5..]).unwrap();
        assert_eq!((kind, run), (FrameKind::Data, 7));
        assert_eq!(read_header(&mut reader).unwrap(), HEAD);
        // Whatever was there before.
        let mut found = envelope();
        found.read(reader, HEAD, 1000).unwrap();
        assert_eq!(parts(&found)[..4], parts(&sent)[..]);
        assert_eq!(sent.outbox.sections[2].part(1).map(|p| p.reals.len()), Some(3));
        assert_eq!(found.pieces, [Piece { to: 1, start: 980, end: 1010 }]);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(cut in 0..600usize, change in 0..600usize, to: u8) {
            let mut bytes = Vec::new();
            envelope().write(&mut bytes, 7, HEAD, 120);
            let whole = bytes.len();
            if let Some(byte) = bytes.get_mut(change) {
                *byte = to;
            }
            bytes.truncate(cut);
            let mut found = Envelope::new(HostOutbox::<f32>::default());
            let outcome = Reader::new(&bytes).and_then(|(_, _, mut reader)| {
                read_header(&mut reader)?;
                found.read(reader, HEAD, 0)
            });
            prop_assert!(cut >= whole || outcome.is_err());
        }
    }
}
