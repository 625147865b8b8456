//! Commands in any order over one folder of checkpoints, runs killed among them, and damage: after each all that must be there is.
//!
//! `FS_SEQUENCES` says how many commands (40 without it), `FS_SEED` where they begin.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use fs_tests::binary;
use fs_tests::training::{fsx, place, said};
use serde_json::Value;

/// Steps of the longest run.
const LONGEST: u64 = 60;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A folder `c`, and what the files of a checkpoint of each step must be.
struct Folder {
    at: PathBuf,
    wanted: BTreeMap<u64, Value>,
}

impl Folder {
    fn c(&self, name: &str) -> PathBuf {
        self.at.join("c").join(name)
    }

    fn entries(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at.join("c")).into_iter().flatten();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Steps of those that are whole, each with the bytes of its step.
    fn whole(&self) -> Vec<u64> {
        let mut found = Vec::new();
        for name in self.entries() {
            let Some(step) = name.strip_prefix("step-").and_then(|step| step.parse().ok()) else { continue };
            let Some(files) = files(&self.c(&name)) else { continue };
            assert_eq!(files, self.wanted[&step], "{name}");
            found.push(step);
        }
        found.sort_unstable();
        found
    }

    fn run(&self, more: &[String]) -> Command {
        let mut arguments = vec!["--checkpoint", "c", "--resume", "c"];
        arguments.extend(more.iter().map(String::as_str));
        fsx(&self.at, &arguments)
    }

    fn tool(&self, arguments: &[&str]) -> Output {
        Command::new(binary("fsx")).current_dir(&self.at).arg("checkpoint").args(arguments).output().unwrap()
    }

    /// Nobody touches what is damaged or somebody's, and who has to do with it is told of it.
    fn stays(&self, path: &Path, random: &mut Random) {
        let left = |path: &PathBuf| path.extension().is_some_and(|e| e == "part" || e == "removed");
        for left in self.entries().iter().map(|name| self.c(name)).filter(|own| left(own) && own != path) {
            fs::remove_dir_all(left).unwrap();
        }
        let before = tree(&self.at.join("c"));
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let more =
            ["--steps".into(), LONGEST.to_string(), "--keep".into(), (1 + random.below(3)).to_string()];
        let out = self.run(&more).output().unwrap();
        assert!(out.status.code() == Some(1) && said(&out).contains(&name), "{name}: {}", said(&out));
        assert!(!said(&out).contains("panicked"), "{}", said(&out));
        assert_eq!(tree(&self.at.join("c")), before, "{}", said(&out));
    }
}

/// The digests that a manifest says, if there is one.
fn files(checkpoint: &Path) -> Option<Value> {
    let manifest: Value = serde_json::from_slice(&fs::read(checkpoint.join("manifest.json")).ok()?).unwrap();
    Some(manifest["files"].clone())
}

/// Everything below a folder.
fn tree(folder: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push((path.clone(), fs::read(&path).ok()));
        if path.is_dir() {
            found.extend(tree(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn whatever_is_done_nothing_is_lost() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
    };
    let (commands, seed) = (number("FS_SEQUENCES", 40), number("FS_SEED", 3));
    let home = place(4000, 2);
    let mut random = Random(seed);
    let mut own = Folder { at: home.path().into(), wanted: BTreeMap::new() };
    // One of every step: runs of one step each would take long, so every run goes on until all were written once.
    while (own.wanted.len() as u64) < LONGEST {
        let _ = fs::remove_dir_all(own.at.join("all"));
        let first = (1..=LONGEST).find(|step| !own.wanted.contains_key(step)).unwrap();
        for (resume, to) in [(None, first), (Some("all"), LONGEST)] {
            let to = to.to_string();
            let mut arguments = vec!["--checkpoint", "all", "--every", "1", "--keep", "99", "--steps", &to];
            arguments.extend(resume.iter().flat_map(|folder| ["--resume", folder]));
            let out = fsx(&own.at, &arguments).output().unwrap();
            assert!(out.status.success(), "{}", said(&out));
        }
        for entry in fs::read_dir(own.at.join("all")).unwrap() {
            let path = entry.unwrap().path();
            let step = path.file_name().unwrap().to_str().unwrap().strip_prefix("step-");
            if let Some(step) = step.and_then(|step| step.parse().ok()) {
                let found = files(&path).unwrap();
                assert_eq!(*own.wanted.entry(step).or_insert_with(|| found.clone()), found, "{step}");
            }
        }
    }
    let mut did = BTreeMap::<&str, u32>::new();
    for n in 0..commands {
        // What only lacks its name gets it, and what else a killed run has left is not what is looked at.
        let _ = own.tool(&["c"]);
        if random.below(3) > 0 {
            for name in own.entries().into_iter().filter(|name| name.contains('.')) {
                fs::remove_dir_all(own.c(&name)).unwrap();
            }
        }
        let before = own.whole();
        let newest = before.last().copied().unwrap_or(0);
        if newest >= LONGEST {
            fs::remove_dir_all(own.at.join("c")).unwrap();
            continue;
        }
        let to = (newest + random.below(9)).clamp(1, LONGEST);
        let (every, keep) = (1 + random.below(5), 1 + random.below(4));
        let more = ["--steps", &to.to_string(), "--every", &every.to_string(), "--keep", &keep.to_string()];
        let more: Vec<String> = more.iter().map(ToString::to_string).collect();
        let command = random.below(9);
        let what = match command {
            0..=2 => {
                let out = own.run(&more).output().unwrap();
                assert!(out.status.success(), "{n}: {}", said(&out));
                let now = own.whole();
                assert_eq!(now.last(), Some(&to.max(newest)), "{n}: {before:?} {more:?}");
                // The newest of both together, and of what was passed over nothing.
                if to > newest {
                    let kept = before.iter().rev().filter(|step| now.contains(step)).count();
                    let oldest: Vec<u64> = before.iter().rev().take(kept).copied().collect();
                    assert!(oldest.iter().all(|step| now.contains(step)), "{n}: {before:?} {now:?}");
                    assert!(now.len() as u64 <= keep && now.len() >= (before.len() + 1).min(keep as usize));
                } else {
                    assert_eq!(now, before, "{n}");
                }
                assert!(own.entries().iter().all(|name| !name.contains('.')), "{n}: {:?}", own.entries());
                "run"
            }
            3..=4 => {
                let mut arguments = more;
                arguments[1] = LONGEST.to_string();
                let mut child = own.run(&arguments).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(10 + random.below(400)));
                // Beside it, or after it.
                let second = (command == 4).then(|| own.run(&arguments).output().unwrap());
                child.kill().unwrap();
                child.wait().unwrap();
                if let Some(out) = second {
                    let refused = said(&out).contains("another run writes");
                    let later = said(&out).contains("is there already");
                    assert!(out.status.success() || refused || later, "{n}: {}", said(&out));
                }
                if newest > 0 {
                    assert!(own.whole().last() >= Some(&newest), "{n}: {before:?} {:?}", own.whole());
                }
                "killed"
            }
            5 if newest > 0 => {
                let name = format!("step-{newest:012}");
                for (to, less) in [("one.safetensors", ""), ("copy", ""), ("less", "--weights-only")] {
                    let arguments = ["c", "--to", to, less];
                    let out = own.tool(if less.is_empty() { &arguments[..3] } else { &arguments });
                    assert!(out.status.success(), "{n}: {}", said(&out));
                    let out = own.tool(&["c", "--compare", to]);
                    assert_eq!(out.status.success(), less.is_empty(), "{n}: {}", said(&out));
                }
                let manifest = fs::read(own.at.join("copy").join(&name).join("manifest.json")).unwrap();
                let manifest: Value = serde_json::from_slice(&manifest).unwrap();
                assert_eq!(manifest["about"]["step"], newest);
                // What is gone on from is not the folder's own, so the folder must be another.
                let out = fsx(&own.at, &["--resume", "copy", "--checkpoint", "c"]).output().unwrap();
                assert!(said(&out).contains("another run's"), "{n}: {}", said(&out));
                fs::remove_file(own.at.join("one.safetensors")).unwrap();
                fs::remove_dir_all(own.at.join("copy")).unwrap();
                fs::remove_dir_all(own.at.join("less")).unwrap();
                assert_eq!(own.whole(), before);
                "converted"
            }
            6 if newest > 0 => {
                // A bit, anywhere in any of its files.
                let name = own.c(&format!("step-{newest:012}"));
                let mut paths: Vec<_> = fs::read_dir(&name).unwrap().map(|e| e.unwrap().path()).collect();
                paths.sort();
                let path = &paths[random.below(paths.len() as u64) as usize];
                let was = fs::read(path).unwrap();
                let mut bytes = was.clone();
                match random.below(4) {
                    0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
                    1 => bytes.push(0),
                    _ => {
                        let place = random.below(bytes.len() as u64) as usize;
                        bytes[place] ^= 1 << random.below(8);
                    }
                }
                fs::write(path, &bytes).unwrap();
                own.stays(&name, &mut random);
                let out = own.tool(&["c", "--verify"]);
                let told = String::from_utf8_lossy(&out.stdout).contains("cannot be used");
                assert!(out.status.code() == Some(1) && told, "{n}: {path:?} {}", said(&out));
                fs::write(path, was).unwrap();
                "damaged"
            }
            7 if newest > 0 => {
                // Without its manifest, whichever it is.
                let step = before[random.below(before.len() as u64) as usize];
                let name = own.c(&format!("step-{step:012}"));
                let was = fs::read(name.join("manifest.json")).unwrap();
                fs::remove_file(name.join("manifest.json")).unwrap();
                own.stays(&name, &mut random);
                fs::write(name.join("manifest.json"), was).unwrap();
                "lost"
            }
            _ if newest > 0 => {
                let ending = ["", ".part", ".removed"][random.below(3) as usize];
                let name = own.c(&format!("step-{:012}{ending}", newest + random.below(5) + 1));
                // What a run was at when it was killed goes before.
                let _ = fs::remove_dir_all(&name);
                if random.below(2) == 0 {
                    fs::write(&name, "mine").unwrap();
                    own.stays(&name, &mut random);
                    fs::remove_file(&name).unwrap();
                } else {
                    fs::create_dir(&name).unwrap();
                    fs::write(name.join("notes.txt"), "mine").unwrap();
                    own.stays(&name, &mut random);
                    fs::remove_dir_all(&name).unwrap();
                }
                "somebody's"
            }
            _ => "nothing",
        };
        *did.entry(what).or_default() += 1;
    }
    eprintln!("{did:?}");
}
