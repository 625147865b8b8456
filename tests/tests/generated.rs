//! Documents that are made from the source are up to date. `UPDATE_EXPECT=1` rewrites them.

use std::fs;
use std::path::PathBuf;

fn compare(file: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, text).expect("docs can be written");
    }
    let have = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        have == text,
        "docs/{file} is out of date; run UPDATE_EXPECT=1 cargo test -p fs-tests --test generated"
    );
}

#[test]
fn passes() {
    compare("passes.md", &fs_compiler::passes::document());
}

#[test]
fn operations() {
    compare("ir-operations.md", &fs_compiler::dialect::document());
}

/// The part of a page behind a marker.
fn compare_end(file: &str, marker: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    let have = fs::read_to_string(path).unwrap_or_default();
    let (head, _) = have.split_once(marker).unwrap_or_else(|| panic!("docs/{file} has no `{marker}`"));
    compare(file, &format!("{head}{marker}\n\n{text}"));
}

#[test]
fn actions() {
    let table = fs_schedule::action::document();
    compare_end("schedule.md", "<!-- generated from the table of actions -->", &table);
}

#[test]
fn rules() {
    compare_end(
        "algebra.md",
        "<!-- generated from the table of rules -->",
        &fs_compiler::algebra::rules::document(),
    );
}

#[test]
fn schedule_schema() {
    compare("schedule.schema.json", &fs_schedule::schema::text());
}
