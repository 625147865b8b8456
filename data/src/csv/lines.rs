//! A text as lines, none of which is without end.

use std::io::{self, Read};

/// Bytes of the longest record that is read.
const LONGEST_RECORD: usize = 1 << 20;
/// Lines in turn that may be empty.
const MOST_EMPTY: usize = 1 << 20;

/// A text whose lines end in `\n` alone, so that they are counted where they end, and none of whose records is too long to
/// be one of interactions: a file without ends of lines would be read whole, and so would one that a quote opens.
pub(super) struct Lines<R> {
    inner: R,
    /// Bytes of the record so far, and the line that it began in, from 0.
    record: usize,
    began: u64,
    line: u64,
    /// Lines before it without anything, which belong to no record.
    empty: usize,
    at: At,
    /// Bytes of a mark of the order of bytes at the start, which readers pass over.
    mark: usize,
    /// A `\r` that may belong to the next byte.
    held: bool,
    raw: Vec<u8>,
}

/// Where in a record a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The start of a field.
    Start,
    Plain,
    Quoted,
    /// Behind a quote within quotes: their end, or one of two.
    Quote,
}

impl At {
    fn next(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Start | Self::Quote, b'"') | (Self::Quoted, _) => Self::Quoted,
            (_, b',' | b'\n') => Self::Start,
            _ => Self::Plain,
        }
    }
}

impl<R: Read> Lines<R> {
    /// All of a text.
    pub(super) fn of(inner: R) -> Self {
        let (record, began, line, at, mark) = (0, 0, 0, At::Start, 0);
        Self { inner, record, began, line, empty: 0, at, mark, held: false, raw: Vec::new() }
    }

    /// Counts a byte, if there may be another one.
    fn count(&mut self, byte: u8) -> io::Result<()> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if self.line == 0 && self.record == self.mark && MARK.get(self.mark) == Some(&byte) {
            self.mark += 1;
        } else {
            self.at = self.at.next(byte);
        }
        self.record += 1;
        if byte == b'\n' {
            self.line += 1;
            if self.at != At::Quoted {
                self.empty = if self.record == 1 { self.empty + 1 } else { 0 };
                (self.record, self.began) = (0, self.line);
            }
            if self.empty > MOST_EMPTY {
                let why = format!("line {}: {MOST_EMPTY} lines before it are empty", self.line);
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
        if self.record > LONGEST_RECORD {
            let line = self.began + 1;
            let quoted = if self.line > self.began { "; does a quote in it end?" } else { "" };
            let why = format!("line {line}: a record has more than {LONGEST_RECORD} bytes{quoted}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // One place is kept for what was held.
        let Some(room) = out.len().checked_sub(1).filter(|n| *n > 0) else {
            return Err(io::Error::other("lines are read in larger pieces"));
        };
        loop {
            self.raw.resize(room, 0);
            let n = self.inner.read(&mut self.raw)?;
            let mut filled = 0;
            for k in 0..n {
                let byte = self.raw[k];
                if std::mem::take(&mut self.held) && byte != b'\n' {
                    // By itself it ends a line too, but for one within quotes.
                    out[filled] = if self.at == At::Quoted { b'\r' } else { b'\n' };
                    self.count(out[filled])?;
                    filled += 1;
                }
                if byte == b'\r' {
                    self.held = true;
                    continue;
                }
                self.count(byte)?;
                out[filled] = byte;
                filled += 1;
            }
            if n == 0 && std::mem::take(&mut self.held) {
                out[0] = b'\r';
                filled = 1;
            }
            if filled > 0 || n == 0 {
                return Ok(filled);
            }
        }
    }
}
