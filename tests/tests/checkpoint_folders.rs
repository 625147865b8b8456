//! Folders of checkpoints: what is damaged, missing, in the way or another's is named, nothing is removed that may be somebody's, and
//! nothing is left of what failed.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use fs_compiler::Strategy;
use fs_tests::binary;
use fs_tests::sealed::sealed;
use fs_tests::training::{checkpoints, compile, fsx, model, place, said, step, three};

const LEAVES: [&str; 6] = ["--checkpoint", "c", "--every", "4", "--keep", "2"];

/// What is wrong with a checkpoint is said, and which other there is.
#[test]
fn damaged_checkpoints_are_named() {
    let folder = place(60, 2);
    let at = folder.path();
    let out = fsx(at, &[&LEAVES[..], &["--steps", "20"]].concat()).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let found = checkpoints(&at.join("c"));
    let (_, newest) = found.last().unwrap();
    let older = found[0].1.file_name().unwrap().to_str().unwrap();
    assert_eq!(found.len(), 2);
    let shard = |rank: u32| newest.join(format!("rank-{rank:05}.safetensors"));
    let refused = |words: &[&str], arguments: &[&str]| {
        let out = fsx(at, arguments).output().unwrap();
        let said = said(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        // Advice about data files would lead elsewhere.
        assert!(!said.contains("--data"), "{said}");
    };
    let listed = |arguments: &[&str]| {
        let out =
            Command::new(binary("fsx")).current_dir(at).arg("checkpoint").args(arguments).output().unwrap();
        let errors = said(&out);
        (out.status.code(), String::from_utf8(out.stdout).unwrap() + &errors)
    };
    let (code, list) = listed(&["c", "--verify"]);
    assert_eq!((code, list.lines().count()), (Some(0), 2), "{list}");
    assert!(list.contains("small after 20 steps on 2 rank(s)") && list.contains("every byte"), "{list}");
    assert_eq!(listed(&["nowhere"]).0, Some(1));
    let resume = ["--resume", "c"];
    let kept = [fs::read(shard(0)).unwrap(), fs::read(shard(1)).unwrap()];
    // A bit, anywhere behind the header.
    let header = u64::from_le_bytes(kept[0][..8].try_into().unwrap()) as usize + 8;
    for place in [header, header.midpoint(kept[0].len()), kept[0].len() - 1] {
        let mut bytes = kept[0].clone();
        bytes[place] ^= 4;
        fs::write(shard(0), bytes).unwrap();
        refused(&["rank-00000.safetensors", "is damaged", older], &resume);
        // Which only reading all of it tells.
        assert_eq!(listed(&["c"]).0, Some(0));
        let (code, list) = listed(&["c", "--verify"]);
        assert!(code == Some(1) && list.contains("is damaged"), "{list}");
    }
    fs::write(shard(0), &kept[0][..kept[0].len() - 4]).unwrap();
    refused(&["rank-00000.safetensors", older], &resume);
    fs::remove_file(shard(0)).unwrap();
    refused(&["rank-00000.safetensors", older], &resume);
    // Each other's.
    fs::write(shard(0), &kept[1]).unwrap();
    fs::write(shard(1), &kept[0]).unwrap();
    refused(&["rank-0000", older], &resume);
    fs::write(shard(0), &kept[0]).unwrap();
    fs::write(shard(1), &kept[1]).unwrap();
    let manifest = newest.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    refused(&["manifest.json is damaged", older], &resume);
    let (code, list) = listed(&["c", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert!(code == Some(1) && list[0]["damaged"].is_string() && list[1]["damaged"].is_null(), "{list}");
    for other in [0, 2] {
        let format = format!("\"format\": {other}");
        fs::write(&manifest, text.replacen("\"format\": 1", &format, 1)).unwrap();
        refused(&[&format!("version {other}"), "the program that wrote it", older], &resume);
    }
    fs::write(&manifest, text.replacen("\"rank-00001.safetensors\"", "\"../s.json\"", 1)).unwrap();
    refused(&["cannot be used", older], &resume);
    fs::write(&manifest, &text).unwrap();
    // It is whole again, but not of this run.
    refused(&["has the seed", "not 5"], &["--resume", "c", "--seed", "5"]);
    let out = fsx(at, &["--steps", "3", "--save", "values.safetensors"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    refused(&["it is a file", "--init"], &["--resume", "values.safetensors"]);
    refused(&["there is no checkpoint in empty", "--checkpoint"], &{
        fs::create_dir(at.join("empty")).unwrap();
        ["--resume", "empty"]
    });
    refused(&["cannot read the checkpoints"], &["--resume", "nowhere"]);
    let other = compile(&model("row_wise", "adam(lr: 0.01)", 61, true), Strategy::Pec, 2, 1, 1);
    fs_schedule::file::write(&at.join("s.json"), &other).unwrap();
    refused(&["table.a", "[60, 8]", "[61, 8]"], &resume);
}

/// One run writes into a folder; what cannot be written is said, and what is there stays.
#[test]
fn folders_that_cannot_be_written() {
    let folder = place(100_000, 2);
    let at = folder.path();
    let out = fsx(at, &[&LEAVES[..], &["--steps", "5"]].concat()).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let before = checkpoints(&at.join("c"));
    let mut first =
        fsx(at, &[&LEAVES[..], &["--steps", "100000", "--resume", "c"]].concat()).spawn().unwrap();
    let began = Instant::now();
    while checkpoints_and_parts(&at.join("c")) == before.len() && began.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let second = fsx(at, &[&LEAVES[..], &["--steps", "5"]].concat()).output().unwrap();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(said(&second).contains("another run writes checkpoints into c"), "{}", said(&second));
    // As a full disk: no file may be so long.
    fs::remove_dir_all(at.join("c")).unwrap();
    let out = fsx(at, &[&LEAVES[..], &["--steps", "5"]].concat()).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let limited = |arguments: &str| {
        let line = format!("ulimit -f 2000; exec \"$0\" run s.json --no-evaluate {arguments}");
        let mut command = Command::new("bash");
        command.current_dir(at).args(["-c", &line]).arg(binary("fsx")).output().unwrap()
    };
    for arguments in
        ["--checkpoint c --every 2 --resume c --steps 20", "--checkpoint c --every 1h --resume c --steps 20"]
    {
        let out = limited(arguments);
        assert_eq!(out.status.code(), Some(1), "{}", said(&out));
        let said = said(&out);
        assert!(said.contains("cannot write the checkpoint") && said.contains("too large"), "{said}");
        assert_eq!(checkpoints(&at.join("c")), before, "{said}");
    }
    // What has the name of a checkpoint and is none.
    fs::create_dir(at.join("e")).unwrap();
    fs::write(at.join("e/step-000000000999"), "").unwrap();
    let out = fsx(at, &["--checkpoint", "e", "--steps", "9"]).output().unwrap();
    assert!(!out.status.success() && !at.join("e/lock").exists(), "{}", said(&out));
    let stray = at.join("c/step-000000000999");
    fs::write(&stray, "").unwrap();
    let out = fsx(at, &[&LEAVES[..], &["--resume", "c", "--steps", "9"]].concat()).output().unwrap();
    assert!(
        !out.status.success() && said(&out).contains("step-000000000999 cannot be used: it is not a folder"),
        "{}",
        said(&out)
    );
    fs::remove_file(&stray).unwrap();
    assert_eq!(checkpoints(&at.join("c")), before);
    // A folder with what no checkpoint has is somebody's, and one that lost its manifest to another name too.
    let newest = &before.last().unwrap().1;
    let manifest = newest.join("manifest.json");
    fs::rename(&manifest, newest.join("manifest.bak")).unwrap();
    let out = fsx(at, &[&LEAVES[..], &["--steps", "9"]].concat()).output().unwrap();
    assert!(!out.status.success() && said(&out).contains("has the name of a checkpoint"), "{}", said(&out));
    fs::rename(newest.join("manifest.bak"), &manifest).unwrap();
    assert_eq!(checkpoints(&at.join("c")), before);
    // What lies in a checkpoint would go with it.
    let name = newest.file_name().unwrap().to_str().unwrap();
    for within in [format!("c/{name}"), format!("c/{name}/more")] {
        let out = fsx(at, &["--checkpoint", &within, "--resume", "c", "--steps", "9"]).output().unwrap();
        assert!(!out.status.success() && said(&out).contains("lies in the checkpoint"), "{}", said(&out));
    }
    // One that has the name of another step.
    let other = at.join("c/step-000000000099");
    fs::rename(newest, &other).unwrap();
    let out = fsx(at, &["--resume", "c", "--steps", "9"]).output().unwrap();
    assert!(!out.status.success() && said(&out).contains("its name says step 99"), "{}", said(&out));
    fs::rename(&other, newest).unwrap();
    fs::write(at.join("file"), "").unwrap();
    for (arguments, words) in [
        (&["--checkpoint", "file"][..], "cannot write checkpoints"),
        (&["--every", "5"], "--checkpoint"),
        (&["--checkpoint", "d", "--every", "0"], "number of steps"),
        (&["--checkpoint", "d", "--every", "5x"], "number of steps"),
        (&["--checkpoint", "d", "--keep", "0"], "--keep"),
        (&["--resume", "c", "--init", "c"], "cannot be used with"),
    ] {
        let out = fsx(at, arguments).output().unwrap();
        assert!(!out.status.success() && said(&out).contains(words), "{arguments:?}: {}", said(&out));
    }
    assert!(!at.join("d").exists());
}

/// How many entries a folder that is being written into has beside the lock.
fn checkpoints_and_parts(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count() - 1
}

fn tool(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(binary("fsx")).current_dir(folder).arg("checkpoint").args(arguments).output().unwrap()
}

fn printed(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned() + &said(out)
}

/// Everything below a folder, with the bytes of files.
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

/// The newest one has lost its manifest: whoever wants to go on from it is told, and nobody removes what is left of it.
#[test]
fn what_lost_its_manifest_is_named_and_stays() {
    let folder = three();
    let at = folder.path();
    let c = |n: u64| at.join("c").join(step(n));
    let kept = fs::read(c(20).join("manifest.json")).unwrap();
    fs::remove_file(c(20).join("manifest.json")).unwrap();
    let before = tree(at);
    let refused = |out: Output, words: &[&str]| {
        let said = printed(&out);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
        assert_eq!(tree(at), before, "{said}");
    };
    let missing =
        ["c/step-000000000020 cannot be used: its manifest.json is missing", "others: c/step-000000000016"];
    for arguments in [
        &["--resume", "c"][..],
        &["--init", "c"],
        &["--resume", "c", "--checkpoint", "c", "--every", "4"],
        &["--resume", "c/step-000000000020"],
    ] {
        refused(fsx(at, arguments).output().unwrap(), &missing);
    }
    for arguments in [
        &["c"][..],
        &["c", "--verify"],
        &["c", "--to", "d"],
        &["c", "--to", "d.safetensors"],
        &["c", "--compare", "c/step-000000000016"],
        &["c/step-000000000020"],
    ] {
        refused(tool(at, arguments), &missing);
    }
    assert_eq!(printed(&tool(at, &["c"])).lines().filter(|line| line.starts_with("c/step")).count(), 3);
    // Nor does a run write where it lies, whichever it goes on from.
    let moved = ["c/step-000000000020 has the name of a checkpoint", "move it elsewhere"];
    for arguments in
        [&["--checkpoint", "c"][..], &["--checkpoint", "c", "--resume", "c/step-000000000016", "--keep", "1"]]
    {
        refused(fsx(at, arguments).output().unwrap(), &moved);
    }
    refused(tool(at, &["c/step-000000000016", "--to", "c"]), &moved);
    // An older one can be gone on from, and where it lies no more from the newest.
    let older = fsx(at, &["--resume", "c/step-000000000016", "--steps", "17"]).output().unwrap();
    assert!(older.status.success(), "{}", said(&older));
    fs::rename(c(20), at.join("elsewhere")).unwrap();
    let out = fsx(at, &[&LEAVES[..], &["--resume", "c", "--steps", "18"]].concat()).output().unwrap();
    assert!(out.status.success() && said(&out).contains("after step 16"), "{}", said(&out));
    assert_eq!(checkpoints(&at.join("c")).last().unwrap().0, 18);
    // One in the middle is nobody's newest.
    fs::remove_file(c(16).join("manifest.json")).unwrap();
    let out = fsx(at, &["--resume", "c", "--steps", "19"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    let out = tool(at, &["c"]);
    assert!(out.status.code() == Some(1) && printed(&out).contains("is missing"), "{}", printed(&out));
    let out = fsx(at, &["--resume", "c", "--checkpoint", "c"]).output().unwrap();
    assert!(!out.status.success() && said(&out).contains("move it elsewhere"), "{}", said(&out));
    // With none that is whole no run begins as if there were none.
    fs::create_dir(at.join("e")).unwrap();
    fs::rename(at.join("elsewhere"), at.join("e").join(step(20))).unwrap();
    let out = fsx(at, &["--resume", "e", "--checkpoint", "e"]).output().unwrap();
    assert!(!out.status.success() && said(&out).contains("its manifest.json is missing"), "{}", said(&out));
    assert!(!said(&out).contains("begins with step 0") && !at.join("e/lock").exists());
    // It is whole again with what it lacked.
    fs::write(at.join("e").join(step(20)).join("manifest.json"), kept).unwrap();
    let out = fsx(at, &["--resume", "e", "--checkpoint", "e", "--steps", "21"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
}

/// What a run that was killed has left half written or half removed goes; what has more in it is somebody's.
#[test]
fn only_what_runs_leave_goes() {
    let folder = three();
    let at = folder.path();
    let c = |name: String| at.join("c").join(name);
    let run = |more: &[&str]| {
        let arguments = ["--resume", "c", "--checkpoint", "c", "--every", "1h", "--keep", "9"];
        fsx(at, &[&arguments[..], more].concat()).output().unwrap()
    };
    fs::rename(c(step(12)), c(step(12) + ".removed")).unwrap();
    fs::remove_file(c(step(12) + ".removed").join("shared.safetensors")).unwrap();
    fs::create_dir(c(step(40) + ".part")).unwrap();
    for name in ["rank-00000.safetensors", "process-1.json", "manifest.json.77.tmp"] {
        fs::write(c(step(40) + ".part").join(name), "some").unwrap();
    }
    // What is not as a run names it.
    for name in ["other.part", "step-12.removed", "notes"] {
        fs::create_dir(c(name.into())).unwrap();
    }
    let out = run(&["--steps", "21"]);
    assert!(out.status.success(), "{}", said(&out));
    let mut left: Vec<_> = fs::read_dir(at.join("c")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    let (a, b, d) = (step(16), step(20), step(21));
    assert_eq!(left, ["lock", "notes", "other.part", &a, &b, &d, "step-12.removed"]);
    for name in [step(12) + ".removed", step(40) + ".part", step(40)] {
        fs::create_dir(c(name.clone())).unwrap();
        fs::write(c(name.clone()).join("notes.txt"), "mine").unwrap();
        let before = tree(&at.join("c"));
        let out = run(&["--steps", "23"]);
        let said = said(&out);
        assert!(!out.status.success() && said.contains(&name), "{name}: {said}");
        assert_eq!(tree(&at.join("c")), before, "{name}");
        fs::remove_dir_all(c(name)).unwrap();
    }
    // It only lacks its name, and whoever looks gives it that, be the lock there or not.
    for look in [true, false] {
        let unnamed = c(step(21) + ".part");
        fs::rename(c(step(21)), &unnamed).unwrap();
        fs::remove_file(c("lock".into())).unwrap();
        if look {
            assert!(printed(&tool(at, &["c"])).starts_with("c/step-000000000021: "));
        } else {
            let out = fsx(at, &["--resume", "c", "--steps", "22"]).output().unwrap();
            assert!(said(&out).contains("after step 21"), "{}", said(&out));
        }
        assert!(!unnamed.exists() && c(step(21)).exists());
    }
    // Where it cannot be given its name it is the newest all the same.
    let unnamed = step(21) + ".part";
    fs::rename(c(step(21)), c(unnamed.clone())).unwrap();
    fs::remove_file(c("lock".into())).unwrap();
    fs::create_dir(c("lock".into())).unwrap();
    let listed = printed(&tool(at, &["c"]));
    assert!(listed.starts_with(&format!("c/{unnamed}: ")) && listed.contains(&step(20)), "{listed}");
    let out = fsx(at, &["--resume", "c", "--steps", "22", "--checkpoint", "other"]).output().unwrap();
    assert!(out.status.success() && said(&out).contains("after step 21"), "{}", said(&out));
    // So are several.
    let other = step(20) + ".part";
    fs::rename(c(step(20)), c(other.clone())).unwrap();
    let listed = printed(&tool(at, &["c"]));
    let (first, second) = (listed.find(&unnamed), listed.find(&other));
    assert!(first == Some(2) && second > first, "{listed}");
    fs::rename(c(other), c(step(20))).unwrap();
    // One that has its name goes before what another run left of that step.
    fs::create_dir(c(step(21))).unwrap();
    for entry in fs::read_dir(c(unnamed.clone())).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, c(step(21)).join(path.file_name().unwrap())).unwrap();
    }
    let listed = printed(&tool(at, &["c"]));
    assert!(listed.starts_with(&format!("c/{}: ", step(21))) && !listed.contains(".part"), "{listed}");
    assert!(c(unnamed).exists());
}

/// A run that has nothing left to train leaves a checkpoint of its end like all others, unless it lies there already.
#[test]
fn one_at_the_end_of_a_run_that_trains_nothing() {
    let folder = three();
    let at = folder.path();
    let before = tree(&at.join("c"));
    let out = fsx(at, &["--resume", "c", "--steps", "9", "--checkpoint", "new"]).output().unwrap();
    assert!(out.status.success() && said(&out).contains("20 steps were trained before"), "{}", said(&out));
    assert_eq!(checkpoints(&at.join("new")).iter().map(|(step, _)| *step).collect::<Vec<_>>(), [20]);
    assert!(tool(at, &["c", "--compare", "new"]).status.success());
    for folder in ["c", "new"] {
        let save = format!("{folder}.safetensors");
        let out = fsx(at, &["--resume", folder, "--steps", "60", "--save", &save]).output().unwrap();
        assert!(out.status.success(), "{}", said(&out));
    }
    let read = |name: &str| fs::read(at.join(name)).unwrap();
    assert!(read("c.safetensors") == read("new.safetensors"));
    let out = fsx(at, &["--resume", "c", "--steps", "9", "--checkpoint", "c"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(tree(&at.join("c")), before);
}

/// What fails at its start or on its way leaves no folder and no lock.
#[test]
fn nothing_is_left_of_what_failed() {
    let folder = three();
    let at = folder.path();
    fs::create_dir(at.join("empty")).unwrap();
    let before = tree(at);
    let limited = |blocks: u32, arguments: &str| {
        let line = format!("ulimit -f {blocks}; exec \"$0\" {arguments}");
        Command::new("bash").current_dir(at).args(["-c", &line]).arg(binary("fsx")).output().unwrap()
    };
    let long = "n".repeat(300);
    for arguments in [
        "checkpoint c --to a/b/d",
        "checkpoint c --to empty",
        "run s.json --no-evaluate --resume c --steps 22 --checkpoint a/b/d",
    ] {
        let out = limited(1, arguments);
        assert!(said(&out).contains("too large"), "{}", printed(&out));
        assert!(tree(at) == before, "{arguments}: {:?}", fs::read_dir(at.join("a")));
    }
    for arguments in [
        format!("checkpoint c --to a/b/{long}"),
        format!("run s.json --no-evaluate --resume c --steps 22 --checkpoint a/b/{long}"),
    ] {
        let out = limited(1 << 20, &arguments);
        assert!(said(&out).contains("too long"), "{}", printed(&out));
        assert!(tree(at) == before, "{arguments}");
    }
    // Damage that is found once values are read.
    let shard = at.join("c").join(step(20)).join("rank-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let before = tree(at);
    let out = fsx(at, &["--resume", "c", "--checkpoint", "a/b/d"]).output().unwrap();
    assert!(said(&out).contains("is damaged") && tree(at) == before, "{}", said(&out));
}

/// What says of itself that it is whole, and cannot be used all the same, is named with the others that there are.
#[test]
fn what_no_run_can_use_is_named() {
    let folder = three();
    let at = folder.path();
    let newest = at.join("c").join(step(20));
    let text = fs::read_to_string(newest.join("manifest.json")).unwrap();
    let refused = |arguments: &[&str], words: &[&str]| {
        let out = fsx(at, arguments).output().unwrap();
        let said = said(&out);
        assert!(out.status.code() == Some(1) && !said.contains("panicked"), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    };
    let changed = |from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        fs::write(newest.join("manifest.json"), sealed(text.replace(from, to).as_bytes())).unwrap();
    };
    let others = "c/step-000000000016";
    changed("\"version\": 2", "\"version\": 99");
    refused(&["--resume", "c"], &["values have version 99", others]);
    changed("\"step\": 20", "\"step\": 18446744073709551615");
    refused(&["--resume", "c"], &["trained for 18446744073709551615 steps", others]);
    let far = at.join("c").join(step(u64::MAX));
    fs::rename(&newest, &far).unwrap();
    refused(&["--resume", "c"], &["trained for 18446744073709551615 steps", others]);
    refused(&["--resume", "c", "--checkpoint", "c"], &["trained for 18446744073709551615 steps", others]);
    fs::rename(&far, &newest).unwrap();
    fs::write(newest.join("manifest.json"), &text).unwrap();
    // Named from where it lies.
    fs::write(newest.join("shared.safetensors"), "").unwrap();
    let out = Command::new(binary("fsx"))
        .current_dir(at.join("c"))
        .args(["run", "../s.json", "--resume", &step(20)])
        .output()
        .unwrap();
    assert!(
        said(&out).contains("shared.safetensors` is empty") && said(&out).contains(&step(16)),
        "{}",
        said(&out)
    );
    // Values that no training goes on from, with the digests that they have.
    assert!(tool(at, &["c/step-000000000016", "--to", "one.safetensors"]).status.success());
    let mut bytes = fs::read(at.join("one.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let begin = 8 + length + header["table.a"]["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[begin + 40..begin + 44].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(at.join("nan.safetensors"), bytes).unwrap();
    assert!(tool(at, &["nan.safetensors", "--to", "n"]).status.success());
    fs::rename(at.join("c").join(step(12)), at.join("n").join(step(12))).unwrap();
    refused(
        &["--resume", "n"],
        &["n/step-000000000016 cannot be used", "not a finite number", "n/step-000000000012"],
    );
}

/// What was made from a file of values does not say on how many ranks it was trained; nor is it said.
#[test]
fn ranks_that_nobody_knows_are_not_said() {
    let folder = place(60, 2);
    let at = folder.path();
    let out = fsx(at, &["--steps", "3", "--save", "saved.safetensors"]).output().unwrap();
    assert!(out.status.success(), "{}", said(&out));
    assert!(tool(at, &["saved.safetensors", "--to", "d"]).status.success());
    let listed = printed(&tool(at, &["d"]));
    assert!(listed.contains("small after 3 steps, seed"), "{listed}");
    let listed: serde_json::Value = serde_json::from_slice(&tool(at, &["d", "--json"]).stdout).unwrap();
    assert!(listed[0]["ranks"].is_null() && listed[0]["step"] == 3, "{listed}");
    // A file's name may be in capitals.
    let made = printed(&tool(at, &["d", "--to", "d.SAFETENSORS"]));
    assert!(made.starts_with("d.SAFETENSORS: ") && at.join("d.SAFETENSORS").is_file(), "{made}");
    assert!(tool(at, &["d.SAFETENSORS", "--compare", "saved.safetensors"]).status.success());
    let out = tool(at, &["d", "--to", "d.SAFETENSORS"]);
    assert!(printed(&out).contains("is there already"), "{}", printed(&out));
}

const VISITS: &str = "model small {
  table TABLE { rows 30  dim 4  optimizer adagrad(lr: 0.1) }
  input history: ids(TABLE) { max 6 }
  input following: next(history)
  let x = lookup(history)
  loss sampled_softmax(linear(x, 4), TABLE, following, negatives: 3, normalize: tokens)
}
train { batch 4  steps 12  optimizer adam(lr: 1e-2) }
workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" } }";

/// Ids of the data and of a file are joined only where a table of both is taken, and not before the data are held against those
/// that a run goes on with.
#[test]
fn ids_are_joined_only_where_they_count() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let schedule = |table: &str| {
        let schedule = compile(&VISITS.replace("TABLE", table), Strategy::Pec, 2, 1, 1);
        fs_schedule::file::write(&at.join("s.json"), &schedule).unwrap();
    };
    let data = |name: &str| {
        let lines: Vec<_> = (0..60u32).map(|n| format!("u{},{name}{}\n", n % 10, n * n % 23)).collect();
        fs::write(at.join("visits.csv"), format!("user,item\n{}", lines.concat())).unwrap();
    };
    let ran = |arguments: &[&str]| {
        let out = fsx(at, arguments).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", said(&out));
        said(&out)
    };
    let refused = |arguments: &[&str], word: &str| {
        let out = fsx(at, arguments).output().unwrap();
        assert!(!out.status.success() && said(&out).contains(word), "{arguments:?}: {}", said(&out));
    };
    schedule("items");
    data("a");
    ran(&["--checkpoint", "c", "--steps", "5", "--save", "a.safetensors"]);
    // 12 ids of each, and 30 rows for both; then so many that they have no room together.
    let many: Vec<_> = (0..60u32).map(|n| format!("u{},b{}\n", n % 10, n % 29)).collect();
    fs::write(at.join("visits.csv"), format!("user,item\n{}", many.concat())).unwrap();
    refused(&["--init", "c"], "rows");
    refused(&["--resume", "c"], "was trained on other data");
    schedule("others");
    for from in ["c", "a.safetensors"] {
        let said = ran(&["--init", from, "--steps", "2", "--save", "b.safetensors"]);
        assert!(said.contains("its ids are of tables that the model lacks"), "{said}");
        assert!(said.contains("has no values for these") && said.contains("table.others"), "{said}");
    }
    // The ids of the data have their rows.
    let bytes = fs::read(at.join("b.safetensors")).unwrap();
    let ids = |id: &str| bytes.windows(id.len()).any(|part| part == id.as_bytes());
    assert!(ids("b28") && !ids("a16"), "ids of both");
    // With other tables that is what is said, whatever the data.
    refused(&["--resume", "c"], "it has no values for table.others");
}
