//! Kernels from their sources by NVRTC, kept on disk.
//!
//! A compiled source is a file whose name is the digest of all that it depends on: the source, the headers, the options, the
//! architecture and the compiler's version. The file holds that digest, the digest of the code, and the code. One
//! that is damaged, or of another layout, is made anew, and whoever asked for it is told once. Files are written aside and
//! renamed, so two runs that compile at once do not disturb each other.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};

use super::super::DriverError;

/// Begins every file; another number is another layout.
const MAGIC: &[u8; 16] = b"fs-cuda-code-001";

/// What is compiled.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// The source.
    pub source: &'a str,
    /// What it may include: names and texts.
    pub headers: &'a [(&'a str, &'a str)],
    /// Of the compiler.
    pub options: &'a [&'a str],
}

impl Unit<'_> {
    /// The digest of all that its code depends on.
    pub fn key(&self, architecture: &str, compiler: (i32, i32)) -> String {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        part(architecture);
        part(&format!("{}.{}", compiler.0, compiler.1));
        part(self.source);
        for (name, text) in self.headers {
            part(name);
            part(text);
        }
        part("");
        self.options.iter().for_each(|option| part(option));
        hex(&hash.finalize())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A folder of compiled sources.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

/// What was found in a cache.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The code.
    Code(Vec<u8>),
    /// Nothing.
    Nothing,
    /// A file that is not what it should be: why.
    Damaged(&'static str),
}

impl Cache {
    /// In this folder, which need not be there.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.cubin"))
    }

    /// What is kept under a key.
    pub fn get(&self, key: &str) -> Found {
        let Ok(bytes) = fs::read(self.file(key)) else { return Found::Nothing };
        let Some((magic, rest)) = bytes.split_at_checked(MAGIC.len()) else {
            return Found::Damaged("it is cut off");
        };
        if magic != MAGIC {
            return Found::Damaged("it is of another version");
        }
        let Some((own, code)) = rest.split_at_checked(64 + 32) else {
            return Found::Damaged("it is cut off");
        };
        if &own[..64] != key.as_bytes() {
            return Found::Damaged("it is that of another source");
        }
        if own[64..] != *Sha256::digest(code) {
            return Found::Damaged("its digest is another one");
        }
        Found::Code(code.to_vec())
    }

    /// Keeps code under a key.
    pub fn put(&self, key: &str, code: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let (file, aside) = (self.file(key), self.folder.join(format!("{key}.{}.tmp", std::process::id())));
        let write = || {
            let mut out = fs::File::create(&aside)?;
            out.write_all(MAGIC)?;
            out.write_all(key.as_bytes())?;
            out.write_all(&Sha256::digest(code))?;
            out.write_all(code)?;
            out.sync_all()?;
            fs::rename(&aside, &file)
        };
        write().inspect_err(|_| {
            // It may not even be there.
            let _ = fs::remove_file(&aside);
        })
    }
}

/// The compiler's version.
///
/// # Safety
/// Its library is there.
pub(super) unsafe fn version() -> Result<(i32, i32), DriverError> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the caller has found the library.
    let asked = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result();
    asked.map_err(|e| failed("nvrtcVersion", e))?;
    Ok((major, minor))
}

fn failed(call: &str, error: result::NvrtcError) -> DriverError {
    DriverError::Failed { call: call.into(), reason: format!("{:?}", error.0) }
}

/// A program of the compiler's, given back when it goes.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `compile`, and gone after this.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn text(name: &str, text: &str) -> Result<CString, DriverError> {
    CString::new(text).map_err(|_| DriverError::Misuse(format!("{name} holds a zero byte")))
}

/// Compiles for an architecture (`sm_90`).
///
/// # Safety
/// The compiler's library is there.
pub(super) unsafe fn compile(unit: &Unit<'_>, architecture: &str) -> Result<Vec<u8>, DriverError> {
    let (name, source) = (text(unit.name, unit.name)?, text(unit.name, unit.source)?);
    let pairs = unit.headers.iter().map(|(name, own)| Ok((text(name, name)?, text(name, own)?)));
    let pairs = pairs.collect::<Result<Vec<_>, DriverError>>()?;
    let names: Vec<_> = pairs.iter().map(|(name, _)| name.as_ptr()).collect();
    let texts: Vec<_> = pairs.iter().map(|(_, text)| text.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: all texts end with a zero byte and live longer than the program; both lists have that length.
    let made = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            source.as_ptr(),
            name.as_ptr(),
            pairs.len() as i32,
            texts.as_ptr(),
            names.as_ptr(),
        )
    };
    made.result().map_err(|e| failed("nvrtcCreateProgram", e))?;
    let program = Program(program);
    let architecture = format!("--gpu-architecture={architecture}");
    let options: Vec<&str> = unit.options.iter().copied().chain([architecture.as_str()]).collect();
    // SAFETY: the program lives.
    if unsafe { result::compile_program(program.0, &options) }.is_err() {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|c| *c as u8).chain([0]).collect();
        let log =
            CStr::from_bytes_until_nul(&log).map(|l| l.to_string_lossy().into_owned()).unwrap_or_default();
        return Err(DriverError::Compile { source_name: unit.name.into(), log });
    }
    let mut size = 0;
    // SAFETY: the program lives and is compiled for a real architecture, so it has code.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }
        .result()
        .map_err(|e| failed("nvrtcGetCUBINSize", e))?;
    let mut code = vec![0u8; size];
    // SAFETY: as many bytes as the program has just said.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }
        .result()
        .map_err(|e| failed("nvrtcGetCUBIN", e))?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_gives_back_what_it_was_given_or_says_why_not() {
        let folder = std::env::temp_dir().join(format!("fs-cuda-cache-{}", std::process::id()));
        let cache = Cache::at(&folder);
        let unit = Unit { name: "a.cu", source: "x", headers: &[("h", "y")], options: &["-o"] };
        let key = unit.key("sm_90", (13, 0));
        assert_eq!(cache.get(&key), Found::Nothing);
        cache.put(&key, b"code").unwrap();
        assert_eq!(cache.get(&key), Found::Code(b"code".to_vec()));
        // Whatever the code depends on is another key.
        let others = [
            unit.key("sm_100", (13, 0)),
            unit.key("sm_90", (13, 1)),
            Unit { source: "xy", headers: &[("h", "")], ..unit }.key("sm_90", (13, 0)),
            Unit { options: &[], ..unit }.key("sm_90", (13, 0)),
        ];
        assert!(others.iter().all(|other| *other != key && cache.get(other) == Found::Nothing));
        let file = cache.file(&key);
        let whole = fs::read(&file).unwrap();
        let damaged: [(Vec<u8>, &str); 5] = [
            (whole[..10].to_vec(), "it is cut off"),
            (whole[..40].to_vec(), "it is cut off"),
            (whole[..whole.len() - 1].to_vec(), "its digest is another one"),
            ([b"fs-cuda-code-000".as_slice(), &whole[16..]].concat(), "it is of another version"),
            ([&whole[..16], others[0].as_bytes(), &whole[80..]].concat(), "it is that of another source"),
        ];
        for (bytes, why) in damaged {
            fs::write(&file, bytes).unwrap();
            assert_eq!(cache.get(&key), Found::Damaged(why));
        }
        cache.put(&key, b"code").unwrap();
        assert_eq!(cache.get(&key), Found::Code(b"code".to_vec()));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
        fs::remove_dir_all(folder).unwrap();
    }
}
