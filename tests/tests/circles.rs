//! No modules of a folder need each other in a circle, but those that are listed here until they do not.

use std::fmt::Write as _;

use fs_tests::modules::circles;
use fs_tests::root;

/// The crates.
const SOURCES: &[&str] = &[
    "dsl",
    "workload",
    "schedule",
    "compiler",
    "compiler/fsc",
    "kernels",
    "executor",
    "executor/fsx",
    "tests",
];

/// Circles that are still there: the sources, the folder, its modules. Nothing is added to this list.
const KNOWN: &[(&str, &str, &[&str])] = &[
    ("compiler", "sched", &["costs", "latency", "measured", "sizes"]),
    ("compiler", "sched", &["list", "order"]),
];

#[test]
fn modules_do_not_need_each_other_in_circles() {
    let mut found = Vec::new();
    let mut text = String::new();
    for src in SOURCES {
        for circle in circles(&root(src).join("src")).expect("sources") {
            let name = format!("{src} {}: {}", circle.folder, circle.modules.join(", "));
            let _ = write!(text, "{name}\n{}", circle.references);
            found.push(name);
        }
    }
    let known: Vec<String> = KNOWN
        .iter()
        .map(|(src, folder, modules)| format!("{src} {folder}: {}", modules.join(", ")))
        .collect();
    for name in &found {
        assert!(known.contains(name), "a circle of modules:\n{text}");
    }
    for name in &known {
        assert!(found.contains(name), "this circle is gone and leaves the list: {name}");
    }
}

/// Every crate of the workspace is looked at.
#[test]
fn all_crates_are_looked_at() {
    let manifest = std::fs::read_to_string(root("Cargo.toml")).expect("the manifest");
    let members = manifest.lines().find_map(|l| l.strip_prefix("members = ")).expect("members");
    for member in members.trim_matches(['[', ']']).split(", ") {
        assert!(SOURCES.contains(&member.trim_matches('"')), "{member} is not looked at");
    }
}
