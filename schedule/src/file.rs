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
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

use serde::Deserialize;
use serde::Serialize;
use serde_json::ser::Formatter;

use crate::digest::sha256;
use crate::program::{FORMAT, Schedule, VERSION};
use crate::verify::{self, Violation};

/// Bytes of the largest file that is read.
pub const MOST_BYTES: u64 = 1 << 28;

/// Why a schedule could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file can't be read.
    #[error("cannot read schedule {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Larger than any schedule.
    #[error("{path} is larger than {MOST_BYTES} bytes, which no schedule is")]
    Large {
        /// The file.
        path: PathBuf,
    },
    /// Not JSON, or not a schedule.
    #[error("{path} is not a schedule: {reason}; compile one with `fsc compile MODEL.fs -o SCHEDULE.json`")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Written by another version.
    #[error(
        "{path} has schedule version {found}, this program reads version {VERSION}; compile the model again with this version's fsc"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The content does not match the digest.
    #[error(
        "{path} was changed after it was compiled: its digest is {stated}, its content has {actual}; compile it again, or check an edited schedule with `fsc verify --ignore-digest`"
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
    #[error("{path} breaks the rules of schedules:{}", list(.violations))]
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
    let kind = file.metadata()?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a device, not a file"));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a file or a pipe of at most `most` bytes; more are an error.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let bytes = read_some(path, most + 1)?;
    if bytes.len() as u64 > most {
        let why = format!("it is larger than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
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
    let text = std::str::from_utf8(bytes).map_err(|e| wrong(format!("it is not UTF-8 text ({e})")))?;
    if text.trim().is_empty() {
        return Err(wrong("it is empty".into()));
    }
    let head: Head = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    if head.format.as_deref() != Some(FORMAT) {
        return Err(wrong(format!("its `format` is not `{FORMAT}`")));
    }
    match head.version {
        Some(v) if v == u64::from(VERSION) => {}
        Some(found) => return Err(LoadError::Version { path: path.into(), found }),
        None => return Err(wrong("it has no `version`".into())),
    }
    if check_digest {
        let (stated, zeroed) = zero_digest(text).ok_or_else(|| wrong("it has no `digest`".into()))?;
        let actual = sha256(zeroed.as_bytes());
        if stated != actual {
            return Err(LoadError::Digest { path: path.into(), stated, actual });
        }
    }
    if steers(text) {
        return Err(wrong("a text in it has characters that steer a terminal".into()));
    }
    let schedule: Schedule = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let violations = verify::verify(&schedule);
    if violations.is_empty() {
        Ok(schedule)
    } else {
        Err(LoadError::Invalid { path: path.into(), violations })
    }
}

/// Whether strings of a JSON text have control characters, or change the direction of what follows: names and reasons
/// are printed as they are.
pub fn steers(text: &str) -> bool {
    let bad = steers_by;
    // Between strings only white space is left of them.
    if text.chars().any(|c| bad(c) && !matches!(c, '\n' | '\r' | '\t')) {
        return true;
    }
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at + 1..];
        let code = |digits: &str| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        let steers = match escape.as_bytes().first() {
            Some(b'u') => escape.get(1..5).and_then(code).is_some_and(bad),
            Some(b'b' | b'f' | b'n' | b'r' | b't') => true,
            _ => false,
        };
        if steers {
            return true;
        }
        rest = escape.get(1..).unwrap_or_default();
    }
    false
}

/// Whether a character controls a terminal, or changes the direction of what follows.
pub(crate) fn steers_by(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text for a terminal: what would steer it stands there as its escape, but for the ends of lines.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers_by(c) && c != '\n' {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// The canonical text with the right digest.
pub fn to_text(schedule: &Schedule) -> String {
    let mut schedule = schedule.clone();
    schedule.digest = format!("sha256:{}", "0".repeat(64));
    let zeroed = canonical(&schedule);
    let digest = sha256(zeroed.as_bytes());
    zeroed.replacen(&schedule.digest, &digest, 1)
}

/// Writes the canonical text; see [`write_atomically`].
pub fn write(path: &Path, schedule: &Schedule) -> io::Result<()> {
    write_atomically(path, to_text(schedule).as_bytes())
}

/// Writes beside the target and renames, so that a full disk or a crash never leaves half a file.
/// Something that is not a plain file (a pipe, a device) is written directly.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomically_with(path, |out| out.write_all(bytes))
}

/// The same for what is too large to hold as text: `fill` writes it piece by piece.
pub fn write_atomically_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        let mut out = io::BufWriter::new(fs::OpenOptions::new().write(true).open(path)?);
        fill(&mut out)?;
        return out.flush();
    }
    // What a link points to is replaced, not the link, and keeps its mode.
    let target = target_of(path)?;
    let path = target.as_path();
    let temporary = beside(path, "tmp");
    let (unfinished, file) = Unfinished::create(&temporary);
    let result = file.and_then(|file| {
        let mut out = io::BufWriter::new(file);
        fill(&mut out)?;
        let file = out.into_inner()?;
        if let Ok(old) = fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.sync_all()
    });
    let result = result.and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    });
    drop(unfinished);
    result
}

/// Finds out whether [`write_atomically`] can write a file, before there is something to write.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory")),
        Ok(found) if !found.is_file() => fs::OpenOptions::new().write(true).open(path).map(drop),
        _ => {
            let temporary = beside(&target_of(path)?, "check");
            let (_unfinished, file) = Unfinished::create(&temporary);
            drop(file?);
            fs::remove_file(&temporary)
        }
    }
}

/// A file beside another, of this process alone.
fn beside(target: &Path, what: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.{what}", std::process::id()));
    target.with_file_name(name)
}

/// Where a path leads through links, also if nothing is there yet.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    /// Links behind links, as the system allows.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        let Ok(next) = fs::read_link(&path) else { return Ok(fs::canonicalize(&path).unwrap_or(path)) };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::other("its links lead in a circle"))
}

/// Files that are being written.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file in [`UNFINISHED`], for as long as it lives.
struct Unfinished<'a>(&'a Path);

impl<'a> Unfinished<'a> {
    /// Under the lock, so that no file comes to be once all are being removed.
    fn create(path: &'a Path) -> (Self, io::Result<fs::File>) {
        let mut all = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(path.into());
        (Self(path), fs::File::create(path))
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let mut all = UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = all.iter().position(|p| p == self.0) {
            all.swap_remove(i);
        }
    }
}

/// Removes what is half written, for a process that is about to end: nothing is begun any more after it. Whoever is just
/// beginning a file is waited for, no longer than half a second: among thousands of threads its turn may not come.
pub fn remove_unfinished() {
    const TRIES: u32 = 500;
    for _ in 0..TRIES {
        let all = match UNFINISHED.try_lock() {
            Ok(all) => all,
            Err(TryLockError::Poisoned(all)) => all.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
        };
        for path in all.iter() {
            let _ = fs::remove_file(path);
        }
        // What another thread begins now waits for the end of the process.
        std::mem::forget(all);
        return;
    }
}

/// The stated digest, and the text with its digits zeroed.
fn zero_digest(text: &str) -> Option<(String, String)> {
    const KEY: &str = "\"digest\": \"sha256:";
    let start = text.find(KEY)? + KEY.len();
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
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_written_through() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("far")).expect("a folder");
        symlink("far/target", at("link")).expect("a link");
        symlink("link", at("again")).expect("a link");
        // Nothing is there yet, then something is.
        for text in ["one", "two"] {
            write_atomically(&at("again"), text.as_bytes()).expect("written");
            assert_eq!(std::fs::read_to_string(at("far/target")).expect("the target"), text);
            assert!(at("link").is_symlink() && at("again").is_symlink());
        }
        assert_eq!(std::fs::read_dir(at("far")).expect("listed").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn links_in_a_circle_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        symlink("b", at("a")).expect("a link");
        symlink("a", at("b")).expect("a link");
        let said = write_atomically(&at("a"), b"text").unwrap_err().to_string();
        assert!(said.contains("circle") && at("a").is_symlink() && at("b").is_symlink(), "{said}");
    }

    #[test]
    fn half_written_files_can_be_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("result");
        let _ = write_atomically_with(&path, |out| {
            out.write_all(b"half")?;
            let name = std::fs::read_dir(folder.path())?.next().expect("a file")?.path();
            assert!(UNFINISHED.lock().is_ok_and(|all| all.contains(&name)));
            Ok(())
        });
        let left = UNFINISHED.lock().map(|all| all.iter().filter(|p| p.starts_with(folder.path())).count());
        assert_eq!(left.ok(), Some(0));
    }

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
    }

    #[test]
    fn what_is_printed_steers_nothing() {
        assert_eq!(printable("a\u{1b}[31m\u{202e}\nb\t"), "a\\u{1b}[31m\\u{202e}\nb\\u{9}");
    }

    #[test]
    fn what_steers_a_terminal() {
        for harmless in ["{\n\t\"a\": \"b\"\r\n}", r#"{"a": "\u00e9 \\ \" é ü 漢"}"#, r#""\\u001b""#] {
            assert!(!steers(harmless), "{harmless}");
        }
        for harmful in [
            r#""\u001b[31m""#,
            r#""a\nb""#,
            r#""\u202e""#,
            "\"\u{202e}\"",
            "\"\u{1b}\"",
            r#""\u009b""#,
            "\"\u{85}\"",
        ] {
            assert!(steers(harmful), "{harmful}");
        }
    }
}
