//! The reference part of docs/language.md is what the tables say, and the programs in it are accepted.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::path::Path;

const MARK: &str =
    "<!-- What follows is generated from the compiler's tables: UPDATE_EXPECT=1 cargo test -p fs-dsl -->\n";

#[test]
fn language_md() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/language.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let head = text.split(MARK).next().unwrap();
    let expected = format!("{head}{MARK}\n{}", fs_dsl::reference());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &expected).unwrap();
    } else {
        assert!(text == expected, "docs/language.md is out of date: UPDATE_EXPECT=1 cargo test -p fs-dsl");
    }
    programs_in_the_text_are_accepted(&expected);
}

fn programs_in_the_text_are_accepted(text: &str) {
    let hstu =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/blocks/hstu.fs")).unwrap();
    let mut found = 0;
    for code in text.split("```").skip(1).step_by(2) {
        let main = code.to_owned();
        let files =
            |p: &Path| Ok(if p == Path::new("doc.fs") { main.clone().into_bytes() } else { hstu.clone() });
        let loaded = fs_dsl::load_from(Path::new("doc.fs"), &files);
        assert!(loaded.program.is_some(), "{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false));
        found += 1;
    }
    assert_eq!(found, 3);
}
