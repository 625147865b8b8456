//! Who waits for whom where several use one folder of checkpoints.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test fails by panicking")]

use std::fs;
use std::time::Duration;

use fs_tests::training::{fsx, place, said, step, three};

/// A run is not refused because somebody gives a checkpoint its name at that moment.
#[test]
fn a_lock_that_is_held_for_a_moment_keeps_no_run_out() {
    let folder = place(60, 2);
    let at = folder.path();
    fs::create_dir(at.join("c")).unwrap();
    let lock = fs::File::create(at.join("c/lock")).unwrap();
    lock.lock().unwrap();
    let held = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(lock);
    });
    // Nothing is gone on from, so nobody waits before that for what others write.
    let out = fsx(at, &["--checkpoint", "c", "--steps", "4"]).output().unwrap();
    held.join().unwrap();
    assert!(out.status.success(), "{}", said(&out));
}

/// What the run that is about to end still leaves is gone on from, and not what was the newest before.
#[test]
fn a_run_goes_on_from_what_the_one_before_leaves_at_its_end() {
    // Also if that is the first.
    for others in [true, false] {
        let folder = three();
        let at = folder.path();
        let (newest, away) = (at.join("c").join(step(20)), at.join("away"));
        fs::rename(&newest, &away).unwrap();
        if !others {
            for old in [12, 16] {
                fs::remove_dir_all(at.join("c").join(step(old))).unwrap();
            }
        }
        let lock = fs::File::options().write(true).open(at.join("c/lock")).unwrap();
        lock.lock().unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            fs::rename(&away, &newest).unwrap();
            drop(lock);
        });
        let out = fsx(at, &["--resume", "c", "--checkpoint", "c", "--steps", "22"]).output().unwrap();
        ends.join().unwrap();
        assert!(out.status.success() && said(&out).contains("after step 20"), "{}", said(&out));
    }
}
