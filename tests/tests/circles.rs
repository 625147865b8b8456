//! No modules of a folder need each other in a circle.

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
    "data",
    "executor",
    "executor/fsx",
    "tests",
    "tests/mutants",
];

#[test]
fn modules_do_not_need_each_other_in_circles() {
    let mut text = String::new();
    for src in SOURCES {
        for circle in circles(&root(src).join("src")).expect("sources") {
            let _ =
                write!(text, "{src} {}: {}\n{}", circle.folder, circle.modules.join(", "), circle.references);
        }
    }
    assert!(text.is_empty(), "circles of modules:\n{text}");
}

/// What a run links knows no compiler, the compiler reads no data and runs nothing, and what reads data knows neither.
#[test]
fn arrows_between_crates_go_one_way() {
    for (from, not) in [
        ("workload", &["dsl", "schedule", "kernels", "data", "compiler", "executor"][..]),
        ("schedule", &["dsl", "kernels", "data", "compiler", "executor"]),
        ("kernels", &["dsl", "schedule", "data", "compiler", "executor"]),
        ("data", &["dsl", "compiler", "executor"]),
        ("compiler", &["data", "kernels", "executor"]),
        ("compiler/fsc", &["executor"]),
        ("executor", &["dsl", "compiler"]),
        ("executor/fsx", &["dsl", "compiler"]),
    ] {
        let manifest = std::fs::read_to_string(root(from).join("Cargo.toml")).expect("a manifest");
        let linked = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for other in not {
            assert!(!linked.contains(&format!("\nfs-{other}.")), "{from} links {other}");
        }
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
