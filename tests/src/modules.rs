//! Which modules of a crate need each other.
//!
//! The modules of one folder are held against each other: files without a folder of their own, and folders with all
//! that is in them. One needs another if anything in it names anything of the other by a path from `crate`, `super` or
//! `self`, in a `use` or in place; what a folder's head re-exports belongs to the module that it comes from. Heads
//! (`mod.rs`, `lib.rs`) and what lies in their folders may need each other: a head says what its folder shares, and
//! hands out work. Tests within a file do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

/// A module's path from the crate's root.
type Module = Vec<String>;

/// Modules of a folder that need each other in a circle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Circle {
    /// The folder's path from the crate's root, joined by `::`; empty: the root.
    pub folder: String,
    /// Its modules in the circle, sorted.
    pub modules: Vec<String>,
    /// What makes it one: file, line and path of each reference.
    pub references: String,
}

/// A path that stands in a source.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reference {
    line: usize,
    /// From the crate's root.
    path: Vec<String>,
}

/// A word or a sign, and its line.
type Token<'a> = (&'a str, usize);

/// What one file says.
struct Source {
    file: PathBuf,
    references: Vec<Reference>,
    /// Names that its `use` lines bring in, and where they come from.
    names: BTreeMap<String, Vec<String>>,
}

/// All circles between the modules below a crate's `src`.
pub fn circles(src: &Path) -> io::Result<Vec<Circle>> {
    let mut files = Vec::new();
    walk(src, &mut files)?;
    files.sort();
    let mut sources: BTreeMap<Module, Source> = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let relative = file.strip_prefix(src).unwrap_or(&file).with_extension("");
        let mut module: Module = relative.iter().map(|p| p.to_string_lossy().into_owned()).collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        let (references, names) = read(&text, &module);
        sources.insert(module, Source { file: relative.with_extension("rs"), references, names });
    }
    Ok(find(&sources))
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// A folder's modules that need each other: what makes one need the other, by their names.
type Needs<'a> = BTreeMap<(&'a str, &'a str), Vec<String>>;

fn find(sources: &BTreeMap<Module, Source>) -> Vec<Circle> {
    let mut folders: BTreeMap<&[String], Needs<'_>> = BTreeMap::new();
    let targets: Vec<_> = sources
        .iter()
        .flat_map(|(module, s)| s.references.iter().map(move |r| (module, s, r)))
        .map(|(module, s, r)| (module, s, r, resolve(sources, &r.path, 0)))
        .collect();
    for (module, source, reference, target) in &targets {
        let shared = module.iter().zip(target).take_while(|(a, b)| a == b).count();
        let (Some(from), Some(to)) = (module.get(shared), target.get(shared)) else { continue };
        let said =
            format!("{}:{}: {}", source.file.to_string_lossy(), reference.line, reference.path.join("::"));
        folders.entry(&module[..shared]).or_default().entry((from, to)).or_default().push(said);
    }
    let mut circles = Vec::new();
    for (folder, needs) in &folders {
        let graph: DiGraphMap<&str, ()> = needs.keys().map(|(a, b)| (*a, *b, ())).collect();
        for circle in tarjan_scc(&graph).into_iter().filter(|c| c.len() > 1) {
            let members: BTreeSet<&str> = circle.into_iter().collect();
            let mut references = String::new();
            for ((from, to), said) in needs {
                if members.contains(from) && members.contains(to) {
                    let _ = writeln!(references, "  {from} needs {to}");
                    for line in said {
                        let _ = writeln!(references, "    {line}");
                    }
                }
            }
            let modules = members.into_iter().map(str::to_owned).collect();
            circles.push(Circle { folder: folder.join("::"), modules, references });
        }
    }
    circles.sort();
    circles
}

/// The module that a path leads to: as far as there are modules, and on through what heads re-export.
fn resolve(sources: &BTreeMap<Module, Source>, path: &[String], depth: usize) -> Module {
    let mut module = Module::new();
    for (i, part) in path.iter().enumerate() {
        let within = [module.as_slice(), std::slice::from_ref(part)].concat();
        if sources.contains_key(&within) {
            module = within;
            continue;
        }
        let name = sources.get(&module).and_then(|s| s.names.get(part));
        // A name that comes from itself is another crate's, or an item's.
        if let Some(origin) = name.filter(|o| depth < 8 && **o != path[..=i]) {
            return resolve(sources, &[origin.as_slice(), &path[i + 1..]].concat(), depth + 1);
        }
        break;
    }
    module
}

/// References of a source, and the names that its `use` lines bring in.
fn read(text: &str, module: &[String]) -> (Vec<Reference>, BTreeMap<String, Vec<String>>) {
    let plain = without_texts(text);
    let tokens = tokens(&plain);
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
        here: module.to_vec(),
        references: Vec::new(),
        names: BTreeMap::new(),
    };
    let mut depth = 0_usize;
    // Modules within the file, each with the depth of braces that it ends at.
    let mut within: Vec<usize> = Vec::new();
    while let Some((token, _)) = reader.tokens.get(reader.at).copied() {
        let next = reader.peek(1);
        match token {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if within.last() == Some(&depth) {
                    within.pop();
                    reader.here.pop();
                }
            }
            "mod" if reader.peek(2) == "{" => {
                within.push(depth);
                reader.here.push(next.to_owned());
            }
            "use" if depth == within.len() => {
                reader.at += 1;
                if reader.peek(0) == "::" {
                    continue;
                }
                reader.tree(None, true);
                continue;
            }
            "crate" | "super" | "self" if next == "::" => {
                reader.tree(None, false);
                continue;
            }
            _ => {}
        }
        reader.at += 1;
    }
    (reader.references, reader.names)
}

struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    here: Module,
    references: Vec<Reference>,
    names: BTreeMap<String, Vec<String>>,
}

impl<'a> Reader<'a> {
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |t| t.0)
    }
    /// A path, or several in braces; `base` is what stands before it.
    fn tree(&mut self, base: Option<&[String]>, uses: bool) {
        let (token, line) = self.tokens.get(self.at).copied().unwrap_or(("", 0));
        self.at += 1;
        if token == "{" {
            while !matches!(self.peek(0), "}" | "") {
                self.tree(base, uses);
                if self.peek(0) == "," {
                    self.at += 1;
                }
            }
            self.at += 1;
            return;
        }
        let before = |up: usize| {
            let path = base.unwrap_or(&self.here);
            path[..path.len().saturating_sub(up)].to_vec()
        };
        let path = match token {
            "crate" => Module::new(),
            "super" => before(1),
            "self" => before(0),
            _ => [before(0).as_slice(), &[token.to_owned()]].concat(),
        };
        let more = self.peek(1);
        if self.peek(0) == "::" && (is_name(more) || more == "*" || (uses && more == "{")) {
            self.at += 1;
            return self.tree(Some(&path), uses);
        }
        if self.here.iter().any(|m| m == "tests") {
            return;
        }
        let mut name =
            if token == "self" { path.last().cloned().unwrap_or_default() } else { token.to_owned() };
        if uses && self.peek(0) == "as" {
            self.peek(1).clone_into(&mut name);
            self.at += 2;
        }
        if uses {
            self.names.insert(name, path.clone());
        }
        self.references.push(Reference { line, path });
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Words, `::` and single signs.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(c) = rest.chars().next() {
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let length = match word {
                0 if rest.starts_with("::") => 2,
                0 => c.len_utf8(),
                n => n,
            };
            tokens.push((&rest[..length], i + 1));
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// A source without comments, and with all texts and characters empty; lines stay.
fn without_texts(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |n| n + 2)
        } else if let Some(n) = text_length(rest, out.chars().next_back()) {
            n
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..length].chars().filter(|c| *c == '\n'));
        rest = &rest[length..];
    }
    out
}

/// The length of the quoted text or character that a source goes on with.
fn text_length(rest: &str, before: Option<char>) -> Option<usize> {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let raw = rest.strip_prefix('b').unwrap_or(rest);
    if let Some(raw) = raw.strip_prefix('r').filter(|_| !in_word) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(body) = raw[hashes..].strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let length = body.find(&end).map_or(body.len(), |n| n + end.len());
            return Some(rest.len() - body.len() + length);
        }
    }
    let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(i + c.len_utf8()),
            // A lifetime.
            _ if quote == '\'' && i > 1 && !rest.starts_with("'\\") => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Circles of a crate of given files.
    fn of(files: &[(&str, &str)]) -> Vec<(String, Vec<String>)> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("written");
        }
        let circles = circles(folder.path()).expect("read");
        circles.into_iter().map(|c| (c.folder, c.modules)).collect()
    }
    fn one(folder: &str, modules: &[&str]) -> Vec<(String, Vec<String>)> {
        vec![(folder.into(), modules.iter().map(|m| (*m).to_owned()).collect())]
    }

    #[test]
    fn circles_are_found() {
        let lib = ("lib.rs", "pub mod a; pub mod b; pub mod c;");
        let (a, b, c) =
            (("a.rs", "use crate::b::X;"), ("b.rs", "use super::c;"), ("c.rs", "fn f() { crate::a::g() }"));
        assert_eq!(of(&[lib, a, b, c]), one("", &["a", "b", "c"]));
        assert_eq!(of(&[lib, a, b, ("c.rs", "")]), []);
        let nested = ("b.rs", "use crate::{a::{self, Y}, c as d};");
        assert_eq!(of(&[lib, a, nested]), one("", &["a", "b"]));
    }

    #[test]
    fn folders_count_as_a_whole() {
        let files = [
            ("lib.rs", ""),
            ("a/mod.rs", "mod x; mod y;"),
            ("a/x.rs", "use super::y;"),
            ("a/y.rs", "use crate::b::Z;"),
            ("b.rs", "use crate::a::x::W;"),
        ];
        assert_eq!(of(&files), one("", &["a", "b"]));
        let within = [files[0], files[1], files[2], ("a/y.rs", "use super::x;")];
        assert_eq!(of(&within), one("a", &["x", "y"]));
    }

    #[test]
    fn heads_share_and_hand_out() {
        let head = ("a/mod.rs", "mod x; mod y; pub use x::X; pub struct Own; fn f() { y::g() }");
        let y = ("a/y.rs", "use super::Own;");
        assert_eq!(of(&[head, ("a/x.rs", ""), y]), []);
        // What a head re-exports is the other module's.
        let (x, y) = (("a/x.rs", "use super::y;"), ("a/y.rs", "use super::X;"));
        assert_eq!(of(&[head, x, y]), one("a", &["x", "y"]));
        let y = ("a/y.rs", "use crate::a::X;");
        assert_eq!(of(&[head, x, y]), one("a", &["x", "y"]));
    }

    #[test]
    fn comments_texts_and_tests_do_not_count() {
        let a = ("a.rs", "use crate::b;");
        for quiet in [
            "// use crate::a;",
            "/* crate::a::f() */",
            "const A: &str = \"crate::a::X\";",
            "const A: &str = r#\"say \"crate::a::X\"#;",
            "fn f(c: char) -> bool { c == '\"' } // crate::a::X \"",
            "#[cfg(test)] mod tests { use crate::a::X; use super::*; }",
        ] {
            assert_eq!(of(&[a, ("b.rs", quiet)]), [], "{quiet}");
        }
        for loud in [
            "fn f<'a>(x: &'a str) -> char { crate::a::g(); 'x' }",
            "fn f() -> (char, char) { ('\\'', '{') } mod inner { use crate::a::X; }",
            "mod inner { use super::super::a::X; }",
            "mod inner { fn f() {} } fn g() { let x: super::a::X; }",
        ] {
            assert_eq!(of(&[a, ("b.rs", loud)]), one("", &["a", "b"]), "{loud}");
        }
    }
}
