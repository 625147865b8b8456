//! A schedule with every kind of operation that moves rows is read and is valid: `tests/valid.json`, which
//! `UPDATE_EXPECT=1 cargo test -p fs-tests --test snapshots` writes.

use std::path::Path;

use fs_schedule::verify::verify;

#[test]
fn a_schedule_is_valid() {
    let text = include_bytes!("valid.json");
    let schedule = fs_schedule::file::parse(Path::new("valid.json"), text, true).expect("it is a schedule");
    assert_eq!(verify(&schedule), vec![]);
}
