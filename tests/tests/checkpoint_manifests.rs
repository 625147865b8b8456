//! Manifests that say of themselves that they are whole, and of their files what is not so: each lie has its own refusal, with the
//! other checkpoint named.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use fs_compiler::Strategy;
use fs_executor::Session;
use fs_executor::weights::{checkpoints, convert};
use fs_tests::sealed::sealed;
use fs_tests::training::{compile, leaving, model, options, session, state};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// A folder with checkpoints of steps 3 and 6, and the newer one.
fn two(sharding: &str) -> (tempfile::TempDir, fs_schedule::Schedule, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("c");
    let schedule = compile(&model(sharding, "adagrad(lr: 0.1)", 60, true), Strategy::Pec, 2, 1, 1);
    session(&schedule, options().steps(3).checkpoint(leaving(&at, 99, 9))).run(&mut ()).unwrap();
    let goes_on = options().steps(6).resume(at.clone()).checkpoint(leaving(&at, 99, 9));
    session(&schedule, goes_on).run(&mut ()).unwrap();
    let newest = at.join("step-000000000006");
    (folder, schedule, newest)
}

fn manifest(at: &Path) -> Value {
    serde_json::from_slice(&fs::read(at.join("manifest.json")).unwrap()).unwrap()
}

fn write(at: &Path, mut manifest: Value) {
    manifest["digest"] = "0".repeat(64).into();
    fs::write(at.join("manifest.json"), sealed(serde_json::to_string_pretty(&manifest).unwrap().as_bytes()))
        .unwrap();
}

type Change = fn(&mut Value);

#[test]
fn each_lie_is_refused() {
    let (_folder, schedule, newest) = two("row_wise");
    let text = manifest(&newest);
    let file = "rank-00000.safetensors";
    let lies: &[(&str, Change)] = &[
        ("names a file `../step-000000000003/shared.safetensors` elsewhere", |m| {
            m["files"]["../step-000000000003/shared.safetensors"] = m["files"]["shared.safetensors"].clone();
        }),
        ("names a file `.hidden` elsewhere", |m| {
            m["files"][".hidden"] = m["files"]["shared.safetensors"].clone();
        }),
        ("bytes instead of 9", |m| m["files"]["rank-00000.safetensors"]["bytes"] = 9.into()),
        ("of 480 elements of `table.a`", |m| {
            m["tensors"]["table.a"]["pieces"].as_array_mut().unwrap().pop();
        }),
        ("parts of `table.a` twice", |m| {
            let pieces = m["tensors"]["table.a"]["pieces"].as_array_mut().unwrap();
            let first = pieces[0].clone();
            pieces[1] = first;
        }),
        ("for a part of `table.a`", |m| m["tensors"]["table.a"]["pieces"][0]["columns"] = json!([0, 4])),
        ("for a part of `table.a`", |m| m["tensors"]["table.a"]["pieces"][0]["rows"] = json!([0, 29])),
        ("for a part of `table.a`", |m| m["tensors"]["table.a"]["dtype"] = "F64".into()),
        ("lacks `other`, a part of `table.a`", |m| {
            m["tensors"]["table.a"]["pieces"][0]["name"] = "other".into();
        }),
        ("the order of its tensors", |m| {
            m["order"].as_array_mut().unwrap().pop();
        }),
        ("the order of its tensors", |m| {
            let order = m["order"].as_array_mut().unwrap();
            order[0] = order[1].clone();
        }),
        ("the order of its tensors", |m| {
            let order = m["order"].as_array_mut().unwrap();
            order.push(order[0].clone());
        }),
        ("its blocks have 12 bytes", |m| m["block"] = 12.into()),
        ("its blocks have 0 bytes", |m| m["block"] = 0.into()),
        ("`table.b` in its file `rank-00000.safetensors` is not what its digests are of", |m| {
            let says = m["files"]["rank-00000.safetensors"]["sha256"].as_object_mut().unwrap();
            says.remove("table.b").unwrap();
        }),
        ("`table.a` in its file `rank-00000.safetensors` is not what its digests are of", |m| {
            m["files"]["rank-00000.safetensors"]["sha256"]["table.a"] = json!([]);
        }),
        ("the shape of `table.a` is too large", |m| {
            m["tensors"]["table.a"]["shape"] = json!([u64::MAX, u64::MAX]);
        }),
    ];
    assert!(newest.join(file).exists());
    for (words, change) in lies {
        let mut changed = text.clone();
        change(&mut changed);
        assert_ne!(changed, text, "{words}");
        write(&newest, changed);
        let goes_on = options().steps(9).resume(newest.clone());
        let said = Session::<f32>::new(schedule.clone(), goes_on).err().unwrap().to_string();
        assert!(said.contains(words) && said.contains("others: "), "{words}: {said}");
        let listed = checkpoints(newest.parent().unwrap(), false).unwrap();
        assert!(listed[0].damaged.is_some() && listed[1].damaged.is_none(), "{listed:?}");
        let to = newest.with_file_name("one.safetensors");
        let said = convert(&newest, &to, false).unwrap_err().to_string();
        assert!(said.contains(words) && !to.exists(), "{words}: {said}");
    }
    // Without the digest of what it says.
    let mut changed = text.clone();
    changed["about"]["seed"] = 5.into();
    fs::write(newest.join("manifest.json"), serde_json::to_string_pretty(&changed).unwrap()).unwrap();
    let said = Session::<f32>::new(schedule.clone(), options().resume(newest.clone())).err().unwrap();
    assert!(said.to_string().contains("has not the SHA-256 that it says; others: "), "{said}");
    write(&newest, text);
    session(&schedule, options().steps(9).resume(newest));
}

/// Rows of a hashed table are said by their numbers, and each must be there once.
#[test]
fn rows_that_are_numbered_twice_are_refused() {
    let (_folder, schedule, newest) = two("row_wise(placement: hashed)");
    let wanted = state(&session(&schedule, options().steps(9).resume(newest.clone()))).unwrap();
    let path = newest.join("rank-00000.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let [from, to] =
        [0, 1].map(|n| 8 + length + header["table.a/rows"]["data_offsets"][n].as_u64().unwrap() as usize);
    // Of the first row, one of those that there are, one that another has and one that the table has not; in the first case nothing changes.
    let own: Vec<i64> =
        bytes[from..to].chunks_exact(8).map(|n| i64::from_le_bytes(n.try_into().unwrap())).collect();
    let other = (0..60).find(|row| !own.contains(row)).unwrap();
    for (number, fits) in [(own[0], true), (own[1], false), (other, false), (60, false), (-1, false)] {
        let mut changed = bytes.clone();
        changed[from..from + 8].copy_from_slice(&number.to_le_bytes());
        let digest = Sha256::digest(&changed[from..to]);
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        fs::write(&path, &changed).unwrap();
        let mut says = manifest(&newest);
        says["files"]["rank-00000.safetensors"]["sha256"]["table.a/rows"] = json!([digest]);
        write(&newest, says);
        match Session::<f32>::new(schedule.clone(), options().steps(9).resume(newest.clone())) {
            Ok(session) => assert!(fits && state(&session).unwrap() == wanted, "{number}"),
            Err(error) => {
                let said = error.to_string();
                assert!(!fits && said.contains("do not have each row of `table.a"), "{number}: {said}");
            }
        }
    }
}
