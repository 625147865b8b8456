//! Profiles: what operations of a model cost on a machine, measured by `fsx profile`, used by `fsc compile --profile`.
//!
//! A profile is of a model on a number of ranks, not of a schedule: it holds the mean sizes of batches, how soon rows
//! are used again, the time of each operation that ran, per kind of operation a line through those times, and the
//! constants of transfers. From these follow the times of schedules that never ran. Whether a profile fits a schedule
//! is told by its *shape*: a digest over what all schedules of one model share.

mod check;
mod rows;
mod work;

pub use rows::{Relayed, ReuseCounts, Rows};
pub use work::{Busiest, Work};

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use fs_workload::encoding::unmarked;

use crate::model::{CostModel, Lengths};
use crate::program::Schedule;
use crate::terminal::{inline, shown};
use crate::{digest, file, terminal};

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 2;
/// The value of [`Profile::format`].
pub const FORMAT: &str = "fs-profile";
/// Bytes of the largest profile that is read.
const MOST_BYTES: u64 = 1 << 26;
/// Samples whose lengths a profile lists at most.
pub const MOST_LENGTHS: usize = 1 << 12;
/// Reuse distances that are counted one by one, in windows.
pub const DISTANCES: u32 = 8;

/// What a model costs on a machine. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Always [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Name of the model.
    pub model: String,
    /// [`shape`] of the schedule that ran.
    pub shape: String,
    /// Ranks that it ran on.
    pub ranks: u32,
    /// The machine, for people.
    pub machine: String,
    /// The emulated link between ranks, if there was one.
    pub link: Option<String>,
    /// The strategy of the schedule that ran.
    pub strategy: crate::Strategy,
    /// Its microbatches a batch.
    pub microbatches: u32,
    /// Steps measured.
    pub steps: u64,
    /// A step as it was measured.
    pub step: f64,
    /// From the 10th to the 90th percentile of steps, over their median.
    pub scatter: f64,
    /// Mean sizes of a batch on the rank that took longest: `B`, `T<g>` and `Q<g>`.
    pub sizes: Vec<(String, f64)>,
    /// What a sample takes by its lengths, fitted to the times of all ranks in typical batches; none if those were too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<CostModel>,
    /// Rows of each exchange.
    pub rows: Vec<Rows>,
    /// Times of the operations that ran.
    pub ops: Vec<OpCost>,
    /// Times of the kinds of operations.
    pub kinds: Vec<KindCost>,
    /// Times of transfers.
    pub transfers: Transfers,
    /// Time between operations.
    pub overhead: Overhead,
    /// Seconds of a core in which the host produces a batch of all ranks.
    pub batch: f64,
    /// Share of the processor time of transfers and of the host that compute loses while they overlap: 1 if the ranks' compute engines
    /// take all cores, 0 if every engine has one of its own.
    pub sharing: f64,
    /// Cores that the ranks share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Whether the schedule that ran gave samples to ranks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub balanced: bool,
    /// Lengths of some samples, in the order of the data, one batch after the other: a list for each length group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lengths: Vec<Vec<u32>>,
}

/// Time of an operation that ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpCost {
    /// Its name.
    pub name: String,
    /// Its kind: the name of its action.
    pub kind: String,
    /// Floating-point operations, by its cost formula at the mean sizes.
    pub flops: f64,
    /// Bytes in memory, or on the link for transfers.
    pub bytes: f64,
    /// Seconds from start to end, without waiting for other ranks.
    pub time: f64,
}

/// Time of a kind of operation: `fixed + per_flop * flops + per_byte * bytes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KindCost {
    /// The name of the action.
    pub kind: String,
    /// Seconds.
    pub fixed: f64,
    /// Seconds per floating-point operation.
    pub per_flop: f64,
    /// Seconds per byte.
    pub per_byte: f64,
    /// Operations and sizes that it was fitted to.
    pub points: u64,
    /// Median relative error there.
    pub error: f64,
}

/// Time of a transfer: `rounds * (fixed + latency) + bytes * (per_byte + 1 / bandwidth)`, for the bytes through
/// the busiest rank's side of the link.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfers {
    /// Processor time of each round, in seconds.
    pub fixed: f64,
    /// Processor time per byte.
    pub per_byte: f64,
    /// What the link adds, if there is one that the processor does not drive itself.
    pub link: Option<LinkCost>,
}

/// Constants of a link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkCost {
    /// Seconds.
    pub latency: f64,
    /// Bytes per second.
    pub bandwidth: f64,
}

/// Time between operations, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Overhead {
    /// From one operation to the next of the same engine.
    pub dispatch: f64,
    /// From the end of an operation to the start of one on another engine that waited for it.
    pub wake: f64,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file can't be read.
    #[error("cannot read profile {path}: {source}", path = shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not JSON, cut off, or not a profile.
    #[error(
        "{path} is not a profile: {reason}; measure one with `fsx profile SCHEDULE.json -o PROFILE.json`",
        path = shown(.path)
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Written by another version.
    #[error(
        "{path} has profile version {found}, this program reads version {VERSION}; measure it again with this version's fsx",
        path = shown(.path)
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// A number that is no measurement.
    #[error("the profile is damaged: {0}; measure it again with `fsx profile`")]
    Number(String),
    /// Measured for another model.
    #[error("the profile is of another schedule: {0}; measure this model with `fsx profile`")]
    Other(String),
}

/// Reads and checks a profile.
pub fn read(path: &Path) -> Result<Profile, ProfileError> {
    let bytes = file::read_some(path, MOST_BYTES + 1)
        .map_err(|source| ProfileError::Io { path: path.into(), source })?;
    parse(path, &bytes)
}

/// The text of a profile; `path` is for messages.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Profile, ProfileError> {
    #[derive(Deserialize)]
    struct Head {
        format: Option<String>,
        version: Option<u64>,
    }
    let wrong = |reason: String| ProfileError::Format { path: path.into(), reason };
    if bytes.len() as u64 > MOST_BYTES {
        return Err(wrong(format!("it is larger than {MOST_BYTES} bytes")));
    }
    if bytes.trim_ascii().is_empty() {
        return Err(wrong("it is empty".into()));
    }
    let bytes = unmarked(bytes).map_err(|e| wrong(e.to_string()))?;
    let head: Head = serde_json::from_slice(bytes).map_err(|e| wrong(inline(&e.to_string())))?;
    if head.format.as_deref() != Some(FORMAT) {
        return Err(wrong(format!("its `format` is not `{FORMAT}`")));
    }
    match head.version {
        Some(v) if v == u64::from(VERSION) => {}
        Some(found) => return Err(ProfileError::Version { path: path.into(), found }),
        None => return Err(wrong("it has no `version`".into())),
    }
    if terminal::steers(&String::from_utf8_lossy(bytes)) {
        return Err(wrong("a text in it has characters that steer a terminal".into()));
    }
    let profile: Profile = serde_json::from_slice(bytes).map_err(|e| wrong(inline(&e.to_string())))?;
    profile.check()?;
    Ok(profile)
}

/// Writes a profile; see [`file::write_atomically`].
pub fn write(path: &Path, profile: &Profile) -> std::io::Result<()> {
    file::write_atomically(path, profile.to_text().as_bytes())
}

/// A digest over what all schedules of one model share, whatever their strategy, ranks and placement.
pub fn shape(s: &Schedule) -> String {
    let lengths: Vec<(&String, u32)> =
        s.lengths.iter().map(|Lengths { name, max, .. }| (name, *max)).collect();
    let tables: Vec<_> = s.tables.iter().map(|t| (&t.name, t.rows, t.dim, &t.optimizer)).collect();
    let parameters: Vec<_> = s.parameters.iter().map(|p| (&p.name, p.rows, p.columns)).collect();
    let unique = s.exchanges.iter().filter(|x| x.leg.within().is_none()).all(|x| x.unique);
    let text = serde_json::to_string(&(
        &s.model,
        s.settings.batch,
        &s.settings.optimizer,
        lengths,
        &s.inputs,
        tables,
        parameters,
        unique,
    ));
    // Serialising plain data into memory has no way to fail.
    digest::sha256(text.unwrap_or_default().as_bytes())
}

impl KindCost {
    /// Seconds.
    pub fn time(&self, flops: f64, bytes: f64) -> f64 {
        self.fixed + self.per_flop * flops + self.per_byte * bytes
    }
}

impl Transfers {
    /// Seconds of processor time, and of the whole transfer.
    pub fn time(&self, rounds: f64, bytes: f64) -> (f64, f64) {
        let own = rounds * self.fixed + bytes * self.per_byte;
        let link = self.link.map_or(0.0, |l| rounds * l.latency + bytes / l.bandwidth);
        (own, own + link)
    }
}

impl Profile {
    /// As JSON with a final line break.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Where its times come from, in a few words.
    pub fn describe(&self) -> String {
        let link = self.link.as_ref().map_or_else(String::new, |l| format!(", link {l}"));
        format!("profiled machine ({}{link})", self.machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GroupCost;

    fn example() -> Profile {
        let counts = |m: u32| vec![vec![0.5; DISTANCES as usize + 1]; m as usize];
        Profile {
            format: FORMAT.into(),
            version: VERSION,
            model: "m".into(),
            shape: "sha256:0".into(),
            ranks: 2,
            machine: "2 ranks on 2 cores".into(),
            link: Some("200 Mbit/s, 50 us".into()),
            strategy: crate::Strategy::Serial,
            microbatches: 1,
            steps: 10,
            step: 0.01,
            scatter: 0.1,
            sizes: vec![("B".into(), 16.0), ("T0".into(), 100.0), ("Q0".into(), 900.0)],
            samples: Some(CostModel {
                constant: 1e-6,
                groups: vec![GroupCost { linear: 0.25, square: 0.0 }],
            }),
            rows: vec![Rows {
                table: "items".into(),
                part: 0,
                sent: 9.0,
                busiest: 1.1,
                hashed: Some(1.05),
                asking: Some(1.1),
                owners: vec![1.0, 1.0],
                hashed_owners: vec![0.95, 1.05],
                hot: vec![(3, 0.5), (7, 1.0)],
                reuse: vec![ReuseCounts { microbatches: 2, forward: counts(2), backward: counts(2) }],
                relayed: None,
            }],
            ops: vec![OpCost { name: "a".into(), kind: "add".into(), flops: 1.0, bytes: 8.0, time: 1e-5 }],
            kinds: vec![KindCost {
                kind: "add".into(),
                fixed: 1e-6,
                per_flop: 0.0,
                per_byte: 1e-9,
                points: 4,
                error: 0.01,
            }],
            transfers: Transfers {
                fixed: 1e-5,
                per_byte: 1e-10,
                link: Some(LinkCost { latency: 5e-5, bandwidth: 25e6 }),
            },
            overhead: Overhead { dispatch: 1e-6, wake: 1e-5 },
            batch: 1e-4,
            sharing: 1.0,
            cores: Some(2),
            balanced: true,
            lengths: vec![vec![5, 3, 2]],
        }
    }

    fn refused(text: &str) -> String {
        parse(Path::new("p.json"), text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn hollow_and_doubled_profiles_are_refused() {
        let none = Profile { kinds: Vec::new(), ..example() };
        assert!(refused(&none.to_text()).contains("it holds no kinds of operations"));
        let none = Profile { sizes: Vec::new(), ..example() };
        assert!(refused(&none.to_text()).contains("it holds no sizes"));
        let mut twice = example();
        twice.ops.push(twice.ops[0].clone());
        assert!(refused(&twice.to_text()).contains("operation `a` is there twice"));
    }

    #[test]
    fn text_round_trips() {
        let text = example().to_text();
        assert_eq!(parse(Path::new("p.json"), text.as_bytes()).unwrap(), example());
    }

    #[test]
    fn damaged_files_are_refused() {
        let text = example().to_text();
        for end in [0, 1, 10, text.len() / 2, text.len() - 3] {
            assert!(refused(&text[..end]).contains("is not a profile"), "{end}");
        }
        let edits = [
            ("\"version\": 2", "\"version\": 7", "profile version 7, this program reads version 2"),
            ("fs-profile", "fs-schedule", "its `format` is not `fs-profile`"),
            ("\"time\": 0.00001", "\"time\": NaN", "is not a profile"),
            ("\"time\": 0.00001", "\"time\": -1.0", "`time` of operation `a` is -1e0"),
            ("\"time\": 0.00001", "\"time\": 1e300", "`time` of operation `a` is 1e300"),
            ("\"time\": 0.00001", "\"time\": 1e999", "is not a profile"),
            ("\"bandwidth\": 25000000.0", "\"bandwidth\": 0.0", "`bandwidth` of `link` is 0e0"),
            ("\"sent\": 9.0", "\"sent\": -9.0", "rows of `items` is -9e0"),
            ("\"hashed\": 1.05", "\"hashed\": -1.0", "`hashed` of rows of `items` is -1e0"),
            ("\"asking\": 1.1", "\"asking\": 9.0", "`asking` of rows of `items` is 9e0"),
            (
                "\"hashed_owners\": [\n        0.95,",
                "\"hashed_owners\": [\n        -0.95,",
                "`hashed_owners` of rows of `items` is -9.5e-1",
            ),
            (
                "\"hashed_owners\": [\n        0.95,\n",
                "\"hashed_owners\": [\n",
                "`hashed_owners` of rows of `items` are not of 2 ranks",
            ),
            (
                "\"owners\": [\n        1.0,\n        1.0",
                "\"owners\": [\n        3.0,\n        3.0",
                "the sum of `owners` of rows of `items` is 6e0",
            ),
            ("          7,\n", "          3,\n", "hot rows of `items` are not in order"),
            (
                "          7,\n          1.0",
                "          7,\n          9.0",
                "hot rows of `items` add up to 9.5",
            ),
            ("\"T0\"", "\"U0\"", "`U0` in `sizes` is not a size of batches"),
            ("0.5,", "1e18,", "reuse of rows of `items` adds up to 1000"),
            (
                "\"kind\": \"add\",\n      \"fixed\"",
                "\"kind\": \"\\u001b\",\n      \"fixed\"",
                "steer a terminal",
            ),
            ("\"sharing\": 1.0", "\"sharing\": 2.0", "`sharing` is 2e0"),
            ("\"cores\": 2", "\"cores\": 0", "`cores` is 0e0"),
            ("      5,\n", "      5\n    ],\n    [\n", "lists of `lengths` differ in length"),
            ("\"ranks\": 2", "\"ranks\": 0", "`ranks` is 0e0"),
            ("\"linear\": 0.25", "\"linear\": -0.25", "costs of `samples` are no numbers"),
            ("\"microbatches\": 2", "\"microbatches\": 3", "reuse distances of rows of `items` are missing"),
            ("\"steps\": 10", "\"steps\": 10, \"more\": 1", "unknown field `more`"),
        ];
        for (from, to, says) in edits {
            assert!(text.contains(from), "{from} in {text}");
            let said = refused(&text.replacen(from, to, 1));
            assert!(said.contains(says), "{to}: {said}");
        }
    }
}
