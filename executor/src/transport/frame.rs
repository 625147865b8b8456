//! Bytes that processes send each other.
//!
//! Numbers are little-endian. A frame is one message, whole; whatever carries it keeps frames of two processes in
//! order. It begins with its kind and the number of the program's run that it belongs to, and what follows depends on
//! the kind. Readers check every length and never trust one.

/// Bytes that are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
    /// Not what reals can be on their way.
    #[error("coding {0} of reals is not known")]
    Coding(u64),
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
    /// Another process wants to know where all ranks are.
    Ask = 8,
    /// Where this process's ranks are.
    Where = 9,
    /// The first process asks for the time.
    Tick = 10,
    /// This process's time.
    Tock = 11,
    /// The failure that counts.
    Verdict = 12,
    /// This process is at work that takes long.
    Working = 13,
}

impl FrameKind {
    const ALL: [Self; 13] = [
        Self::Data,
        Self::Report,
        Self::Ended,
        Self::Grant,
        Self::Stop,
        Self::Failure,
        Self::Gather,
        Self::Ask,
        Self::Where,
        Self::Tick,
        Self::Tock,
        Self::Verdict,
        Self::Working,
    ];
}

/// Writes a frame.
#[derive(Debug)]
pub(crate) struct Writer<'b>(&'b mut Vec<u8>);

#[allow(clippy::return_self_not_must_use, reason = "what is appended is in the bytes")]
impl<'b> Writer<'b> {
    /// Begins a frame of a run in `bytes`, which are overwritten.
    pub(crate) fn new(bytes: &'b mut Vec<u8>, kind: FrameKind, run: u64) -> Self {
        bytes.clear();
        Self::behind(bytes, kind, run)
    }

    /// Begins a frame behind what is in `bytes`.
    pub(crate) fn behind(bytes: &'b mut Vec<u8>, kind: FrameKind, run: u64) -> Self {
        bytes.push(kind as u8);
        Self(bytes).number(run)
    }

    /// Begins bytes that are no frame.
    pub(crate) fn plain(bytes: &'b mut Vec<u8>) -> Self {
        bytes.clear();
        Self(bytes)
    }

    /// Appends a number.
    pub(crate) fn number(self, n: u64) -> Self {
        self.0.extend_from_slice(&n.to_le_bytes());
        self
    }

    /// Appends a text and its length.
    pub(crate) fn text(self, text: &str) -> Self {
        let own = self.number(text.len() as u64);
        own.0.extend_from_slice(text.as_bytes());
        own
    }

    /// Appends bytes as they are.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
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
    pub(crate) fn plain(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next number.
    pub(crate) fn number(&mut self) -> Result<u64, BadFrame> {
        let (head, rest) = self.0.split_first_chunk::<8>().ok_or(BadFrame::Short("a number"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*head))
    }

    /// The next number, as a size.
    pub fn size(&mut self) -> Result<usize, BadFrame> {
        Ok(usize::try_from(self.number()?).unwrap_or(usize::MAX))
    }

    /// The next text.
    pub(crate) fn text(&mut self) -> Result<&'b str, BadFrame> {
        let n = self.size()?;
        std::str::from_utf8(self.bytes(n)?).map_err(|_| BadFrame::Text)
    }

    /// The next bytes.
    pub(crate) fn bytes(&mut self, n: usize) -> Result<&'b [u8], BadFrame> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(BadFrame::Short("its contents"))?;
        self.0 = rest;
        Ok(head)
    }

    /// All bytes that are left.
    pub(crate) fn rest(self) -> &'b [u8] {
        self.0
    }

    /// Checks that nothing is left.
    pub(crate) fn end(self) -> Result<(), BadFrame> {
        if self.0.is_empty() { Ok(()) } else { Err(BadFrame::Long(self.0.len())) }
    }
}

/// Raised when frames are laid out in another way: who writes others is told apart before the first.
pub(crate) const LAYOUT: u32 = 2;

/// Bytes of a [`FrameKind::Data`] frame beside the entries themselves, for a message of some sections, that took an
/// emulated link in some pieces (0 without one).
pub fn overhead(sections: usize, pieces: usize) -> u64 {
    (1 + 8 * 8 + 8 * 5 * sections + 8 * 2 * pieces) as u64
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
