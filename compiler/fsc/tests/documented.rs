//! What docs/algebra.md shows of a search is what its command says.

use std::path::Path;
use std::process::Command;

/// Lines of the shell's or any other text between fences, by block.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let mut blocks = Vec::new();
    let mut open: Option<Vec<&str>> = None;
    for line in text.lines() {
        match (line.starts_with("```"), &mut open) {
            (true, Some(_)) => blocks.extend(open.take()),
            (true, None) => open = Some(Vec::new()),
            (false, Some(block)) => block.push(line),
            (false, None) => {}
        }
    }
    blocks
}

#[test]
fn the_sample_of_a_search_is_what_is_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().expect("a folder");
    let schedule = folder.path().join("dlrm.json");
    let fsc = |args: &[&str]| {
        let mut fsc = Command::new(env!("CARGO_BIN_EXE_fsc"));
        let out =
            fsc.current_dir(&root).env("XDG_CACHE_HOME", folder.path()).args(args).arg(&schedule).output();
        let out = out.expect("fsc starts");
        let said = [out.stdout, out.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(out.status.success(), "{said}");
        said
    };
    let document = std::fs::read_to_string(root.join("docs/algebra.md")).expect("the document");
    let command = "compile examples/dlrm.fs --ranks 8 --cluster dgx_h100";
    assert!(document.contains(&format!("`fsc {command}`")), "the document names its command");
    let compiling: Vec<&str> = command.split(' ').chain(["-o"]).collect();
    let said = fsc(&compiling) + &fsc(&["explain"]);
    let shown = |begins: &str| {
        let found = blocks(&document).into_iter().find(|block| block[0].starts_with(begins));
        found.unwrap_or_else(|| panic!("no sample begins with {begins}"))
    };
    for begins in ["auto: words", "search:", "how words"] {
        let block = shown(begins);
        assert!(block.iter().any(|line| line.trim() != "..."), "{block:?}");
        for line in block.into_iter().filter(|line| !line.trim().is_empty() && line.trim() != "...") {
            assert!(said.lines().any(|own| own == line), "not said: {line}\n{said}");
        }
    }
}
