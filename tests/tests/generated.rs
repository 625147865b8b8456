//! Documents that are made from the source are up to date. `UPDATE_EXPECT=1` rewrites them.

use std::fs;
use std::path::PathBuf;

fn compare(file: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, text).expect("docs can be written");
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(have == text, "docs/{file} is out of date; run UPDATE_EXPECT=1 cargo test --test generated");
}

#[test]
fn passes() {
    compare("passes.md", &fs_compiler::passes::document());
}

#[test]
fn operations() {
    compare("ir-operations.md", &fs_compiler::dialect::document());
}

/// The part of docs/schedule.md behind its marker.
#[test]
fn actions() {
    const MARKER: &str = "<!-- generated from the table of actions -->\n\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/schedule.md");
    let have = fs::read_to_string(path).unwrap_or_default();
    let (head, _) = have.split_once(MARKER).expect("docs/schedule.md has the marker of its table");
    compare("schedule.md", &format!("{head}{MARKER}{}", fs_schedule::action::document()));
}

#[test]
fn schedule_schema() {
    compare("schedule.schema.json", &fs_schedule::schema::text());
}
