//! Counts that were made before, in a small file beside the data (`.NAME.counts.json`), or where that folder cannot be
//! written in the user's cache folder.
//!
//! Nothing depends on the cache but time: what is damaged, of another version or of other data is passed over and
//! written anew, and where nothing can be written nothing is kept.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use fs_schedule::counts::Counts;
use fs_schedule::digest::sha256;
use fs_schedule::file::{read_text_file, write_atomically};
use serde::{Deserialize, Serialize};

/// What the file says that it is.
const FORMAT: &str = "fs-counts-1";
/// Bytes of the largest file that is read.
const MOST_BYTES: u64 = 1 << 26;
/// Counts that are kept, of one file with different settings.
const MOST_ENTRIES: usize = 8;

/// The places where counts of a file may be.
#[derive(Debug)]
pub(crate) struct Cache {
    places: Vec<PathBuf>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: String,
    /// The latest first.
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    key: String,
    /// Of key and counts.
    seal: String,
    counts: Counts,
}

/// Tells an entry that was changed from what was written.
fn seal(key: &str, counts: &Counts) -> Option<String> {
    Some(sha256(format!("{key} {}", serde_json::to_string(counts).ok()?).as_bytes()))
}

impl Cache {
    /// Of a data file; none if it has no name to derive one from.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        // Two names of one file have one cache.
        let file = fs::canonicalize(file).ok()?;
        let mut name = OsString::from(".");
        name.push(file.file_name()?);
        name.push(".counts.json");
        let beside = file.with_file_name(&name);
        let of_user = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|folder| folder.is_absolute())
            .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
        let elsewhere = of_user.map(|folder| {
            let digest = sha256(file.as_os_str().as_encoded_bytes());
            folder.join("fsc").join(format!("{}.counts.json", digest.trim_start_matches("sha256:")))
        });
        Some(Self { places: std::iter::once(beside).chain(elsewhere).collect() })
    }

    /// Counts that were kept under this key, unless they were changed since.
    pub(crate) fn find(&self, key: &str) -> Option<Counts> {
        self.places.iter().find_map(|place| {
            let entry = read(place).into_iter().find(|entry| entry.key == key)?;
            (seal(key, &entry.counts)? == entry.seal).then_some(entry.counts)
        })
    }

    /// Keeps counts in the first place that can be written, if there is one.
    pub(crate) fn keep(&self, key: &str, counts: &Counts) {
        let Some(seal) = seal(key, counts) else { return };
        for place in &self.places {
            let mut entries = read(place);
            entries.retain(|entry| entry.key != key);
            entries.insert(0, Entry { key: key.into(), seal: seal.clone(), counts: counts.clone() });
            entries.truncate(MOST_ENTRIES);
            let Ok(text) = serde_json::to_string(&Kept { format: FORMAT.into(), entries }) else { return };
            if place != &self.places[0] {
                let _ = place.parent().map(fs::create_dir_all);
            }
            // A folder, a pipe or the like with that name is somebody else's.
            let free = fs::symlink_metadata(place).map_or(true, |m| m.is_file());
            if free && write_atomically(place, text.as_bytes()).is_ok() {
                return;
            }
        }
    }
}

/// What a place holds; nothing where that is not what is kept here.
fn read(place: &Path) -> Vec<Entry> {
    let plain = fs::metadata(place).is_ok_and(|m| m.is_file());
    let text = plain.then(|| read_text_file(place, MOST_BYTES).ok()).flatten();
    let kept = text.and_then(|text| serde_json::from_str::<Kept>(&text).ok());
    kept.filter(|kept| kept.format == FORMAT).map_or_else(Vec::new, |kept| kept.entries)
}
