//! Bytes that processes send each other.
//!
//! Numbers are little-endian. A frame is one message, whole; whatever carries it keeps frames of two processes in
//! order. It begins with its kind and the number of the program's run that it belongs to, and what follows depends on
//! the kind. Readers check every length and never trust one.

use fs_kernels::Real;

use super::outbox::{Outbox, Piece, Section, Widths};

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// They end too early.
    #[error("a frame ends within {0}")]
    Short(&'static str),
    /// They go on after the end.
    #[error("{0} bytes after the end of a frame")]
    Long(usize),
    /// Not a kind of frame.
    #[error("kind {0} of a frame is not known")]
    Kind(u8),
    /// A message for a rank or channel that is not here, or of a rank that is not there.
    #[error("a message from rank {from} to rank {to} on channel {channel}, which do not meet there")]
    Nowhere {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The channel.
        channel: usize,
    },
    /// Bytes that are not text.
    #[error("a text that is not UTF-8")]
    Text,
}

/// What a frame is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// What a rank has for another one in a turn of a channel.
    Data = 1,
    /// A rank's part of a batch is done.
    Report = 2,
    /// The process's ranks are done with the run.
    Ended = 3,
    /// How many batches there are.
    Grant = 4,
    /// The user of this process wants to stop.
    Stop = 5,
    /// A rank has failed.
    Failure = 6,
    /// This process's part of something that all gather.
    Gather = 7,
}

impl FrameKind {
    const ALL: [Self; 7] =
        [Self::Data, Self::Report, Self::Ended, Self::Grant, Self::Stop, Self::Failure, Self::Gather];
}

/// Writes a frame.
#[derive(Debug)]
pub struct Writer<'b>(&'b mut Vec<u8>);

#[allow(clippy::return_self_not_must_use, reason = "what is appended is in the bytes")]
impl<'b> Writer<'b> {
    /// Begins a frame of a run in `bytes`, which are overwritten.
    pub fn new(bytes: &'b mut Vec<u8>, kind: FrameKind, run: u64) -> Self {
        bytes.clear();
        bytes.push(kind as u8);
        Self(bytes).number(run)
    }

    /// Appends a number.
    pub fn number(self, n: u64) -> Self {
        self.0.extend_from_slice(&n.to_le_bytes());
        self
    }

    /// Appends a text and its length.
    pub fn text(self, text: &str) -> Self {
        let own = self.number(text.len() as u64);
        own.0.extend_from_slice(text.as_bytes());
        own
    }

    /// Appends bytes as they are.
    pub fn bytes(self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Reads a frame from its start.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    /// Its kind and its run; the reader goes on behind them.
    pub fn new(frame: &'b [u8]) -> Result<(FrameKind, u64, Self), BadFrame> {
        let (kind, rest) = frame.split_first().ok_or(BadFrame::Short("its kind"))?;
        let known = FrameKind::ALL.into_iter().find(|k| *k as u8 == *kind).ok_or(BadFrame::Kind(*kind))?;
        let mut reader = Self(rest);
        let run = reader.number()?;
        Ok((known, run, reader))
    }

    /// Of bytes that are no frame.
    pub fn plain(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next number.
    pub fn number(&mut self) -> Result<u64, BadFrame> {
        let (head, rest) = self.0.split_first_chunk::<8>().ok_or(BadFrame::Short("a number"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    /// The next number, as a size.
    pub fn size(&mut self) -> Result<usize, BadFrame> {
        Ok(usize::try_from(self.number()?).unwrap_or(usize::MAX))
    }

    /// The next text.
    pub fn text(&mut self) -> Result<&'b str, BadFrame> {
        let n = self.size()?;
        std::str::from_utf8(self.bytes(n)?).map_err(|_| BadFrame::Text)
    }

    /// The next bytes.
    pub fn bytes(&mut self, n: usize) -> Result<&'b [u8], BadFrame> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(BadFrame::Short("its contents"))?;
        self.0 = rest;
        Ok(head)
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'b [u8] {
        self.0
    }

    /// Checks that nothing is left.
    pub fn end(self) -> Result<(), BadFrame> {
        if self.0.is_empty() { Ok(()) } else { Err(BadFrame::Long(self.0.len())) }
    }
}

/// Bytes of a [`FrameKind::Data`] frame beside the entries themselves, for a message of some sections, that took an
/// emulated link in some pieces (0 without one).
pub fn overhead(sections: usize, pieces: usize) -> u64 {
    (1 + 8 * 8 + 8 * 4 * sections + 8 * 2 * pieces) as u64
}

/// Where a message goes, and when it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The channel.
    pub channel: usize,
    /// The channel's turn.
    pub turn: u64,
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// Nanoseconds from when the sender began the collective to when it posted.
    pub since: u64,
}

/// Writes what an outbox has for a rank. Times in it count from `now` on, when it is posted.
pub fn write_message<T: Real>(bytes: &mut Vec<u8>, run: u64, head: Header, outbox: &Outbox<T>, now: u64) {
    let pieces = outbox.pieces.iter().filter(|piece| piece.to == head.to);
    let mut writer = Writer::new(bytes, FrameKind::Data, run)
        .number(head.channel as u64)
        .number(head.turn)
        .number(head.from as u64)
        .number(head.to as u64)
        .number(head.since)
        .number(pieces.clone().count() as u64)
        .number(outbox.sections.len() as u64);
    for piece in pieces {
        writer = writer.number(piece.start.wrapping_sub(now)).number(piece.end - piece.start);
    }
    for section in &outbox.sections {
        let Widths { reals, indices, bytes } = section.widths;
        let part = section.part(head.to);
        writer = writer
            .number(part.map_or(0, |part| part.count as u64))
            .number(reals as u64)
            .number(indices as u64)
            .number(bytes as u64);
        let Some(part) = part else { continue };
        T::write_le(part.reals, writer.0);
        part.indices.iter().for_each(|n| writer.0.extend_from_slice(&n.to_le_bytes()));
        writer = writer.bytes(part.bytes);
    }
}

/// Reads the header of a message; the reader goes on behind it.
pub fn read_header(reader: &mut Reader<'_>) -> Result<Header, BadFrame> {
    Ok(Header {
        channel: reader.size()?,
        turn: reader.number()?,
        from: reader.size()?,
        to: reader.size()?,
        since: reader.number()?,
    })
}

/// Reads what follows a header: an outbox of which all is for the one receiver, on whose clock the message was first
/// seen at `seen`.
pub fn read_message<T: Real>(
    mut reader: Reader<'_>,
    head: Header,
    seen: u64,
    outbox: &mut Outbox<T>,
) -> Result<(), BadFrame> {
    outbox.pieces.clear();
    let (pieces, sections) = (reader.size()?, reader.size()?);
    for _ in 0..pieces {
        // What started before the run did, by this clock, started with it.
        let start = seen.saturating_add_signed(reader.number()? as i64);
        outbox.pieces.push(Piece { to: head.to, start, end: start.saturating_add(reader.number()?) });
    }
    for i in 0..sections {
        let count = reader.size()?;
        let widths = Widths { reals: reader.size()?, indices: reader.size()?, bytes: reader.size()? };
        let bytes = |width: usize, size: usize| {
            count.checked_mul(width).and_then(|n| n.checked_mul(size)).ok_or(BadFrame::Short("a section"))
        };
        let reals = reader.bytes(bytes(widths.reals, size_of::<T>())?)?;
        let indices = reader.bytes(bytes(widths.indices, size_of::<u32>())?)?;
        let small = reader.bytes(bytes(widths.bytes, 1)?)?;
        if outbox.sections.len() == i {
            outbox.sections.push(Section::default());
        }
        let section = &mut outbox.sections[i];
        section.clear();
        (section.everyone, section.widths) = (true, widths);
        section.counts.resize(head.to + 1, count as u64);
        T::read_le(reals, &mut section.reals);
        section.indices.extend(indices.chunks_exact(4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]])));
        section.bytes.extend_from_slice(small);
    }
    outbox.sections.truncate(sections);
    reader.end()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Message;
    use proptest::prelude::*;

    const HEAD: Header = Header { channel: 3, turn: 9, from: 0, to: 1, since: 70 };

    fn outbox() -> Outbox<f32> {
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
        let pieces = vec![Piece { to: 1, start: 100, end: 130 }, Piece { to: 2, start: 130, end: 150 }];
        Outbox { sections: vec![section, everyone, Section::default()], pieces }
    }

    /// Count, bits of reals, indices, bytes.
    type Parts = Vec<(usize, Vec<u32>, Vec<u32>, Vec<u8>)>;

    fn parts(outbox: &Outbox<f32>) -> Parts {
        (0..outbox.sections.len())
            .filter_map(|i| Message::new(outbox, 1).part(i))
            .map(|p| {
                let reals = p.reals.iter().map(|x| x.to_bits()).collect();
                (p.count, reals, p.indices.to_vec(), p.bytes.to_vec())
            })
            .collect()
    }

    #[test]
    fn what_is_sent_arrives() {
        let (sent, mut bytes) = (outbox(), vec![9; 5]);
        write_message(&mut bytes, 7, HEAD, &sent, 120);
        assert_eq!(bytes.len() as u64, sent.wire(1) + overhead(3, 1));
        let (kind, run, mut reader) = Reader::new(&bytes).unwrap();
        assert_eq!((kind, run), (FrameKind::Data, 7));
        assert_eq!(read_header(&mut reader).unwrap(), HEAD);
        // Whatever was there before.
        let mut found = outbox();
        read_message(reader, HEAD, 1000, &mut found).unwrap();
        assert_eq!(parts(&found)[..2], parts(&sent)[..]);
        assert_eq!(found.pieces, [Piece { to: 1, start: 980, end: 1010 }]);
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(cut in 0..400usize, change in 0..400usize, to: u8) {
            let mut bytes = Vec::new();
            write_message(&mut bytes, 7, HEAD, &outbox(), 120);
            let whole = bytes.len();
            if let Some(byte) = bytes.get_mut(change) {
                *byte = to;
            }
            bytes.truncate(cut);
            let mut found = Outbox::<f32>::default();
            let outcome = Reader::new(&bytes).and_then(|(_, _, mut reader)| {
                read_header(&mut reader)?;
                read_message(reader, HEAD, 0, &mut found)
            });
            prop_assert!(cut >= whole || outcome.is_err());
        }
    }
}
