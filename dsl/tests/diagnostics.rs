//! What is wrong with each program of `bad/`, as the user sees it. `UPDATE_EXPECT=1` rewrites the expectations.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_dsl::{codes, load_from, render};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad")
}

/// Paths in messages are relative to `bad/`, and reading errors read alike everywhere.
fn check(name: &str) -> (String, Vec<codes::Code>) {
    let files = |p: &Path| {
        let path = folder().join(p);
        if path.exists() {
            std::fs::read(path)
        } else {
            Err(std::io::Error::from(std::io::ErrorKind::NotFound))
        }
    };
    let loaded = load_from(Path::new(name), &files);
    let codes = loaded.diagnostics.iter().map(|d| d.code).collect();
    assert_eq!(
        loaded.program.is_none(),
        loaded.diagnostics.iter().any(fs_dsl::Diagnostic::is_error),
        "{name}"
    );
    (render(&loaded.diagnostics, &loaded.sources, false), codes)
}

#[test]
fn bad_programs() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path()).collect();
    names.retain(|p| p.extension().is_some_and(|e| e == "fs"));
    names.sort();
    assert!(names.len() >= 40, "{}", names.len());
    let mut reported = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in names {
        let (text, found) = check(path.file_name().unwrap().to_str().unwrap());
        assert!(!found.is_empty(), "{} is accepted", path.to_string_lossy());
        reported.extend(found);
        let expected = path.with_extension("txt");
        if update {
            std::fs::write(&expected, &text).unwrap();
        } else if std::fs::read_to_string(&expected).unwrap_or_default() != text {
            wrong.push(format!("{}:\n{text}", path.to_string_lossy()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Too long to keep as a file, tested with the robustness of loading; and what the compiler reports of programs
    // that check, tested there.
    let elsewhere =
        [codes::FILE_TOO_LARGE, codes::NO_MODEL, codes::NOT_BUILT, codes::PLACEMENT, codes::TOO_MANY_CLASSES];
    for e in codes::TABLE {
        assert!(
            reported.contains(&e.code) || elsewhere.contains(&e.code),
            "no test for {} ({})",
            e.code,
            e.title
        );
    }
}
