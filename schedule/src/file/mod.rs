//! Reading and writing schedule.json.
//!
//! The text is canonical: fields in the order of the types, one operation, buffer or table a line, so that equal
//! schedules are equal bytes and differences read well. The digest covers the whole text (with its own digits
//! zeroed), so any changed byte is noticed.
//!
//! A file is untrusted: its size is bounded before it is read, its nesting by the parser, its counts by the verifier's
//! `limits` before anything is computed from them. Time and memory stay proportional to the bytes.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

mod atomic;

use fs_workload::encoding::{MARK, unmarked};
use serde::{Deserialize, Serialize};
use serde_json::ser::Formatter;

use crate::digest::sha256;
use crate::limits;
use crate::program::{FORMAT, Schedule, VERSION};
use crate::terminal::{inline, shown, steers};
use crate::verify::{self, Violation};

pub use atomic::{
    MadeFolders, PartFolder, Reserved, check_writable, remove_unfinished, write_atomically,
    write_atomically_with,
};

/// Bytes of the largest file that is read.
pub const MOST_BYTES: u64 = 1 << 28;
/// Bytes of the longest text in a schedule: pictures repeat them. The work of an operation with many operands is written
/// as one (of 20,000 operands 300 kB).
const MOST_TEXT: usize = 1 << 20;

/// Why a schedule could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file can't be read.
    #[error("cannot read schedule {path}: {source}", path = shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Larger than any schedule.
    #[error("{path} is larger than {MOST_BYTES} bytes, which no schedule is", path = shown(.path))]
    Large {
        /// The file.
        path: PathBuf,
    },
    /// Not JSON, or not a schedule.
    #[error("{path} is not a schedule: {reason}; compile one with `fsc compile MODEL.fs -o SCHEDULE.json`", path = shown(.path))]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Written by another version.
    #[error(
        "{path} has schedule version {found}, this program reads version {VERSION}; compile the model again with this version's fsc",
        path = shown(.path)
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The content does not match the digest.
    #[error(
        "{path} was changed after it was compiled: its digest is {stated}, its content has {actual}; compile it again, or check an edited schedule with `fsc verify --ignore-digest`",
        path = shown(.path)
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// The digest in the file.
        stated: String,
        /// The digest of its content.
        actual: String,
    },
    /// The verifier found broken invariants.
    #[error("{path} breaks the rules of schedules:{}", list(.violations), path = shown(.path))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is broken.
        violations: Vec<Violation>,
    },
}

fn list(violations: &[Violation]) -> String {
    use std::fmt::Write as _;
    violations.iter().take(8).fold(String::new(), |mut text, v| {
        let _ = write!(text, "\n  {v}");
        text
    })
}

/// Reads, checks the version and digest, and verifies.
pub fn read(path: &Path) -> Result<Schedule, LoadError> {
    parse(path, &bytes(path)?, true)
}

fn bytes(path: &Path) -> Result<Vec<u8>, LoadError> {
    read_some(path, MOST_BYTES + 1).map_err(|source| LoadError::Io { path: path.into(), source })
}

/// The first `most` bytes of a file or a pipe. A device is refused: it need not end, and holds no file of ours.
pub fn read_some(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    refuse_device(&file)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// [`read_text`] of a file only: a pipe is refused before it is opened, which may wait for good.
pub fn read_text_file(path: &Path, most: u64) -> io::Result<String> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_fifo() || kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe, not a file"));
    }
    read_text(path, most)
}

/// Bytes between looks at memory.
const LOOK: u64 = 16 << 20;

/// [`read_some`] of what may be far larger than memory, which is looked at before each piece: there must be as much again
/// as is read, for what is made of it. Too little is [`io::ErrorKind::OutOfMemory`].
pub fn read_within_memory(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    refuse_device(&file)?;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < most {
        let piece = LOOK.min(most - bytes.len() as u64);
        let need = 2 * (bytes.len() as u64 + piece);
        if limits::available(Path::new("/")).is_some_and(|free| free < need) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if (&file).take(piece).read_to_end(&mut bytes)? == 0 {
            break;
        }
    }
    Ok(bytes)
}

fn refuse_device(file: &fs::File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device, not a file"));
    }
    Ok(())
}

/// The text of a file or a pipe of at most `most` bytes; more are an error.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_some(path, most + 1)?;
    within(&bytes, most)?;
    text_of(&bytes)
}

/// The same of what can only be read on, such as standard input.
pub fn read_text_from(from: impl Read, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(most + 1).read_to_end(&mut bytes)?;
    within(&bytes, most)?;
    text_of(&bytes)
}

fn within(bytes: &[u8], most: u64) -> io::Result<()> {
    if bytes.len() as u64 <= most {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {most} bytes")))
}

/// A text, without a mark of the order of bytes.
fn text_of(bytes: &[u8]) -> io::Result<String> {
    let wrong = |e: Box<dyn std::error::Error + Send + Sync>| io::Error::new(io::ErrorKind::InvalidData, e);
    let text = unmarked(bytes).map_err(|e| wrong(e.into()))?;
    std::str::from_utf8(text)
        .map(str::to_owned)
        .map_err(|e| wrong(format!("it is not UTF-8 text: {e}").into()))
}

/// Like [`read`], for a schedule that was edited by hand: the digest may be wrong.
pub fn read_ignoring_digest(path: &Path) -> Result<Schedule, LoadError> {
    parse(path, &bytes(path)?, false)
}

/// The text of a schedule; `path` is for messages.
pub fn parse(path: &Path, bytes: &[u8], check_digest: bool) -> Result<Schedule, LoadError> {
    #[derive(Deserialize)]
    struct Head {
        format: Option<String>,
        version: Option<u64>,
    }
    let wrong = |reason: String| LoadError::Format { path: path.into(), reason };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(LoadError::Large { path: path.into() });
    }
    // Its digest is of every byte.
    if bytes.starts_with(MARK) {
        return Err(wrong(
            "it begins with a byte order mark, which its digest does not know; save it without".into(),
        ));
    }
    unmarked(bytes).map_err(|e| wrong(e.to_string()))?;
    let text = std::str::from_utf8(bytes).map_err(|e| wrong(format!("it is not UTF-8 text ({e})")))?;
    if text.trim().is_empty() {
        return Err(wrong("it is empty".into()));
    }
    let head: Head = serde_json::from_str(text).map_err(|e| wrong(inline(&e.to_string())))?;
    if head.format.as_deref() != Some(FORMAT) {
        return Err(wrong(format!("its `format` is not `{FORMAT}`")));
    }
    match head.version {
        Some(v) if v == u64::from(VERSION) => {}
        Some(found) => return Err(LoadError::Version { path: path.into(), found }),
        None => return Err(wrong("it has no `version`".into())),
    }
    if check_digest {
        let (stated, zeroed) = zero_digest(text).ok_or_else(|| {
            wrong("it has no `digest` of the form \"sha256:\" and 64 hexadecimal digits".into())
        })?;
        let actual = sha256(zeroed.as_bytes());
        if stated != actual {
            return Err(LoadError::Digest { path: path.into(), stated, actual });
        }
    }
    if steers(text) {
        return Err(wrong("a text in it has characters that steer a terminal".into()));
    }
    if let Some(message) = too_long(text) {
        return Err(wrong(message));
    }
    let schedule: Schedule = serde_json::from_str(text).map_err(|e| wrong(inline(&e.to_string())))?;
    let violations = verify::verify(&schedule);
    if violations.is_empty() {
        Ok(schedule)
    } else {
        Err(LoadError::Invalid { path: path.into(), violations })
    }
}

/// The canonical text with the right digest.
pub fn to_text(schedule: &Schedule) -> String {
    const KEY: &str = "\"digest\": ";
    let mut text = canonical(schedule);
    // Whatever it says before; what comes before it has no such key, as quotes in texts are escaped.
    let stated = serde_json::to_string(&schedule.digest).unwrap_or_default();
    let Some(start) = text.find(KEY).map(|at| at + KEY.len()) else { return text };
    let zeroed = format!("\"sha256:{}\"", "0".repeat(64));
    text.replace_range(start..start + stated.len(), &zeroed);
    let digest = sha256(text.as_bytes());
    text.replace_range(start + 1..start + zeroed.len() - 1, &digest);
    text
}

/// Writes the canonical text; see [`write_atomically`]. What could not be read again is an error.
pub fn write(path: &Path, schedule: &Schedule) -> io::Result<()> {
    write_text(path, &to_text(schedule))
}

/// Writes what [`to_text`] has given, as [`write`] does.
pub fn write_text(path: &Path, text: &str) -> io::Result<()> {
    match too_long(text) {
        Some(message) => Err(io::Error::other(message)),
        None => write_atomically(path, text.as_bytes()),
    }
}

/// What is wrong with a text of a schedule that is too long, if one is.
fn too_long(text: &str) -> Option<String> {
    let bytes = longest(text).filter(|bytes| *bytes > MOST_TEXT)?;
    Some(format!("a text in it has {bytes} bytes, at most {MOST_TEXT} are allowed"))
}

/// Bytes of the longest string of a JSON text, as it stands there.
fn longest(text: &str) -> Option<usize> {
    let (mut began, mut escaped, mut longest) = (None, false, None);
    for (at, byte) in text.bytes().enumerate() {
        match (began, byte) {
            (None, b'"') => began = Some(at + 1),
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(start), b'"') => {
                longest = longest.max(Some(at - start));
                began = None;
            }
            _ => {}
        }
    }
    longest
}

/// The stated digest, and the text with its digits zeroed.
fn zero_digest(text: &str) -> Option<(String, String)> {
    const KEY: &str = "\"digest\": ";
    const HEAD: &str = "\"sha256:";
    let start = text.find(KEY)? + KEY.len();
    let start = text.get(start..)?.starts_with(HEAD).then_some(start + HEAD.len())?;
    let digits = text.get(start..start + 64).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    let zeroed = format!("{}{}{}", &text[..start], "0".repeat(64), &text[start + 64..]);
    Some((format!("sha256:{digits}"), zeroed))
}

fn canonical(schedule: &Schedule) -> String {
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, Lines::default());
    // Serialising plain data into memory has no way to fail.
    let _ = schedule.serialize(&mut serializer);
    out.push(b'\n');
    String::from_utf8(out).unwrap_or_default()
}

/// Line breaks down to the third level (the operations of a program), compact below.
#[derive(Default)]
struct Lines {
    depth: usize,
    empty: bool,
}

impl Lines {
    const DEEPEST: usize = 3;
    fn open<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        w.write_all(bracket)
    }
    fn close<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.depth < Self::DEEPEST && !self.empty {
            self.line(w)?;
        }
        self.empty = false;
        w.write_all(bracket)
    }
    fn item<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            w.write_all(b",")?;
        }
        if self.depth <= Self::DEEPEST {
            self.line(w)
        } else if first {
            Ok(())
        } else {
            w.write_all(b" ")
        }
    }
    fn line<W: ?Sized + Write>(&self, w: &mut W) -> io::Result<()> {
        w.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| w.write_all(b" "))
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.open(w, b"[")
    }
    fn end_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.close(w, b"]")
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }
    fn begin_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.open(w, b"{")
    }
    fn end_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.close(w, b"}")
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn devices_and_large_files_are_not_read() {
        let said = read_text(Path::new("/dev/zero"), 10).unwrap_err().to_string();
        assert!(said.contains("device"), "{said}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("text");
        std::fs::write(&path, "0123456789").expect("written");
        assert_eq!(read_text(&path, 10).expect("read"), "0123456789");
        let said = read_text(&path, 9).unwrap_err().to_string();
        assert!(said.contains("larger than 9 bytes"), "{said}");
        assert_eq!(read_text_from(&b"0123456789"[..], 10).expect("read"), "0123456789");
        let said = read_text_from(&b"0123456789"[..], 9).unwrap_err().to_string();
        assert!(said.contains("larger than 9 bytes"), "{said}");
    }
}
