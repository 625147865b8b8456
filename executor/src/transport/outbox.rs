//! What a rank has for the others in one turn of a channel, wherever it lies.
//!
//! Outboxes belong to devices: a device makes its own, fills them, and reads those of others. A transport keeps two for
//! every channel and rank, says when one may be written again, and hands ranks of its process each other's where they
//! are. Only where an outbox has to leave the process is it asked for bytes, which another one, made by the receiver's
//! device, takes in.

use super::frame::{BadFrame, Reader};

/// What a rank has for the others in one turn of a channel.
///
/// A device may write and read it asynchronously: from when it is cleared until the fill has ended nobody else looks at
/// it, and it stays as it is until everyone's drain (or fill of the next round) has ended.
pub trait Outbox: Send + Sync {
    /// Makes room for `sections` sections, one per exchange of the collective, and empties them; allocations are kept.
    fn clear(&mut self, sections: usize);

    /// Bytes of the entries for a rank, as a network carries them. Of an outbox that is filled.
    fn wire(&self, to: usize) -> u64;

    /// Number of its sections.
    fn sections(&self) -> usize;

    /// Appends the entries for a rank, section by section: their number, how many reals, row numbers and bytes each
    /// has (8 bytes each, little-endian), and these. Of an outbox that is filled and was made for [`Reach::Bytes`].
    fn write(&self, to: usize, bytes: &mut Vec<u8>);

    /// Takes what an outbox of `sections` sections wrote for rank `to`, in place of whatever it holds; it is filled then.
    fn read(&mut self, to: usize, sections: usize, reader: &mut Reader<'_>) -> Result<(), BadFrame>;
}

/// Who sees an outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Devices of the same kind in this process, where it is.
    Process,
    /// Other processes too, as bytes, which the host must be able to write and read without waiting.
    Bytes,
}
