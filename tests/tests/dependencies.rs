//! What a crate declares that it needs is named somewhere in its sources.

use std::fs;
use std::path::Path;

use fs_tests::root;

#[test]
fn declared_dependencies_are_used() {
    let manifest = fs::read_to_string(root("Cargo.toml")).expect("the manifest");
    let members = manifest.lines().find_map(|l| l.strip_prefix("members = ")).expect("members");
    let mut used = Vec::new();
    for member in members.trim_matches(['[', ']']).split(", ").map(|m| m.trim_matches('"')) {
        let mut sources = String::new();
        for folder in ["src", "tests", "benches"] {
            read(&root(member).join(folder), &mut sources);
        }
        let words: Vec<&str> = sources.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let own = fs::read_to_string(root(member).join("Cargo.toml")).expect("a manifest");
        for name in dependencies(&own) {
            let named = words.contains(&name.replace('-', "_").as_str());
            assert!(named, "{member} declares {name}, which its sources do not name");
            used.push(name.to_owned());
        }
    }
    let all = manifest.split("[workspace.dependencies]").nth(1).and_then(|t| t.split("\n[").next());
    for line in all.expect("dependencies").lines().filter(|l| !l.starts_with('#')) {
        let Some((name, _)) = line.split_once(" = ") else { continue };
        assert!(used.iter().any(|u| u == name), "no crate declares {name}");
    }
}

/// Names in the sections of dependencies.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut within = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            within = line.ends_with("dependencies]");
        } else if within
            && !line.starts_with('#')
            && let Some((name, _)) = line.split_once([' ', '.'])
        {
            names.push(name);
        }
    }
    names
}

fn read(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(&path, sources);
        } else if path.extension().is_some_and(|e| e == "rs") {
            sources.push_str(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}
