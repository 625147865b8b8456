//! Whatever the input, loading answers with a program or with errors: it never panics, hangs or overflows.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use fs_dsl::{Diagnostic, Loaded, check_text, codes, format_text, load, load_from, render};
use proptest::prelude::*;
use std::fmt::Write as _;
use std::path::Path;

/// Every answer is either a program or an error, and can be shown.
fn sound(loaded: &Loaded) {
    assert_eq!(loaded.program.is_none(), loaded.diagnostics.iter().any(Diagnostic::is_error));
    render(&loaded.diagnostics, &loaded.sources, true);
}

fn has(loaded: &Loaded, code: codes::Code) -> bool {
    sound(loaded);
    loaded.diagnostics.iter().any(|d| d.code == code)
}

fn examples() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    ["movielens.fs", "dlrm.fs", "blocks/hstu.fs", "ranking.fs"]
        .iter()
        .map(|f| std::fs::read_to_string(root.join(f)).unwrap())
        .collect()
}

#[test]
fn files_that_cannot_be_read() {
    let missing = load(Path::new("no/such/file.fs"));
    assert!(has(&missing, codes::UNREADABLE));
    assert!(render(&missing.diagnostics, &missing.sources, false).contains("no/such/file.fs"));
    assert!(has(&load(Path::new(env!("CARGO_MANIFEST_DIR"))), codes::UNREADABLE));
    assert!(has(&check_text("t.fs", ""), codes::EMPTY));
    assert!(has(&load_from(Path::new("t.fs"), &|_: &Path| Ok(vec![0xff, 0xfe])), codes::NOT_UTF8));
    assert!(has(&check_text("t.fs", &" ".repeat((4 << 20) + 1)), codes::FILE_TOO_LARGE));
}

#[test]
fn imports() {
    let files = |p: &Path| match p.to_str().unwrap() {
        "a/main.fs" => Ok(b"import \"../b/x.fs\" import \"y.fs\" train { batch 3 }".to_vec()),
        "b/x.fs" => Ok(b"import \"../a/y.fs\"".to_vec()),
        "a/y.fs" => Ok(b"cluster h200".to_vec()),
        other => panic!("{other}"),
    };
    let loaded = load_from(Path::new("a/main.fs"), &files);
    sound(&loaded);
    let program = loaded.program.unwrap();
    assert_eq!(program.clusters.len(), 1, "a file imported twice counts once");
    let paths: Vec<&str> = loaded.sources.files.iter().map(|f| f.path.as_str()).collect();
    assert_eq!(paths, ["a/main.fs", "b/x.fs", "a/y.fs"]);
    let cycle =
        |p: &Path| Ok(if p == Path::new("a.fs") { b"import \"b.fs\"" } else { b"import \"a.fs\"" }.to_vec());
    assert!(has(&load_from(Path::new("a.fs"), &cycle), codes::IMPORT_CYCLE));
    let endless =
        |p: &Path| Ok(format!("import \"{}x.fs\"", p.file_stem().unwrap().to_string_lossy()).into_bytes());
    assert!(has(&load_from(Path::new("a.fs"), &endless), codes::UNREADABLE));
}

#[test]
fn deep_nesting() {
    for (open, close) in [("(", ")"), ("[", "]"), ("f(", ")"), ("-(", ")")] {
        for n in [40, 60, 100_000] {
            let text = format!("model m {{ let x = {}1{} }}", open.repeat(n), close.repeat(n));
            sound(&check_text("t.fs", &text));
            let _ = format_text("t.fs", &text);
        }
    }
    sound(&check_text("t.fs", &format!("model m {{ let x = {}1 }}", "-".repeat(100_000))));
    sound(&check_text("t.fs", &format!("model m {{ let x = 1{} }}", " + 1 * 2".repeat(100_000))));
    sound(&check_text("t.fs", &format!("cluster c {}", "{ a ".repeat(100_000))));
}

/// A chain of blocks, each wrapped around the call of the next.
fn chain(blocks: usize, before: &str, after: &str) -> Vec<codes::Code> {
    let mut text = String::new();
    for i in 1..blocks {
        writeln!(text, "block b{i}(x) {{ {before}b{}(x){after} }}", i + 1).unwrap();
    }
    writeln!(text, "block b{blocks}(x) {{ return x }}").unwrap();
    text += "model m { table t { rows 9  dim 4  optimizer sgd(lr: 1) } input a: ids(t) { max 5 } input y: label like a
        loss bce_with_logits(linear(b1(lookup(a)), 1), y, normalize: tokens) }";
    let loaded = check_text("t.fs", &text);
    sound(&loaded);
    loaded.diagnostics.iter().map(|d| d.code).collect()
}

#[test]
fn long_chains_of_blocks() {
    assert_eq!(chain(40, "return ", ""), []);
    assert_eq!(chain(64, "return x + ", ""), []);
    // Too long, which is not recursion.
    assert_eq!(chain(65, "return ", ""), [codes::NESTING]);
    assert_eq!(chain(2000, "return ", ""), [codes::NESTING]);
    // Deep in expressions and in `repeat` before it is long.
    assert_eq!(chain(60, &format!("return {}", "(".repeat(30)), &")".repeat(30)), [codes::NESTING]);
    let (repeat, end) = ("repeat 1 { ".repeat(50), "}".repeat(50));
    assert_eq!(chain(60, &format!("let z = x {repeat} z = "), &format!("{end} return z")), [codes::NESTING]);
}

#[test]
fn recursion_is_found_at_any_depth() {
    for blocks in [1, 2, 40] {
        let mut text = String::new();
        for i in 0..blocks {
            writeln!(text, "block b{i}(x) {{ return b{}(x) }}", (i + 1) % blocks).unwrap();
        }
        text += "model m { let x = b0(1) }";
        assert!(has(&check_text("t.fs", &text), codes::RECURSION));
        assert!(!has(&check_text("t.fs", &text), codes::NESTING));
    }
}

#[test]
fn carriage_returns() {
    let text = "train {\r\n  batch 8  // small\r\n\r\n\r\n  steps 3\r\n}\r\n";
    assert_eq!(format_text("t.fs", text).unwrap(), "train {\n  batch 8  // small\n\n  steps 3\n}\n");
    assert!(check_text("t.fs", text).program.is_some());
}

#[test]
fn a_setting_that_reads_as_a_unit_is_not_formatted() {
    let found = format_text("t.fs", "train { batch 32  steps\n* 3 }").unwrap_err();
    assert_eq!(found.iter().map(|d| d.code).collect::<Vec<_>>(), [codes::UNKNOWN_UNIT]);
}

#[test]
fn explosive_growth() {
    // Every block calls the next one twice.
    let mut text = String::new();
    for i in 0..30 {
        writeln!(text, "block b{i}(x) {{ let y = b{}(x) return b{}(x) }}", i + 1, i + 1).unwrap();
    }
    text += "block b30(x) { return x }\nmodel m { let x = b0(1) }";
    assert!(has(&check_text("t.fs", &text), codes::TOO_LARGE));
    // Compile-time values that could double in every step.
    sound(&check_text("t.fs", "model m { let a = [1, 1] repeat 60 { a = [a, a] } }"));
    sound(&check_text("t.fs", "model m { let a = zeros() repeat 100000 { a = cost(a, a, a) } }"));
    let nested = format!(
        "block g(p) {{ return p, p }} model m {{ let a, b = {}1{} }}",
        "g(".repeat(30),
        ")".repeat(30)
    );
    sound(&check_text("t.fs", &nested));
    sound(&check_text("t.fs", "model m { let a = 2 repeat 10000 { a = a * a } }"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        sound(&load_from(Path::new("t.fs"), &move |_: &Path| Ok(bytes.clone())));
    }

    #[test]
    fn any_text(text in "\\PC{0,200}") {
        sound(&check_text("t.fs", &text));
        let _ = format_text("t.fs", &text);
    }

    #[test]
    fn any_tokens(tokens in prop::collection::vec(prop::sample::select(vec![
        "model", "m", "{", "}", "(", ")", "[", "]", ",", ":", "=", "table", "input", "let", "repeat", "loss", "return",
        "train", "block", "cluster", "workload", "import", "\"s\"", "1", "2.5", "GB/s", "ids", "x", "+", "-", "*", "/",
        "\n", "// c\n", "as", "like", "from", "linear", "rows", "\"", "é",
    ]), 0..60)) {
        let text = tokens.join(" ");
        sound(&check_text("t.fs", &text));
        if let Ok(once) = format_text("t.fs", &text) {
            prop_assert_eq!(format_text("t.fs", &once).unwrap(), once);
        }
    }

    #[test]
    fn damaged_examples(which in 0usize..4, at in 0.0f64..1.0, cut in 0usize..40, insert in "[a-z0-9{}()\\[\\]:,=+*/\" \n.-]{0,6}") {
        let text = examples().swap_remove(which);
        let floor = |mut i: usize| { while !text.is_char_boundary(i) { i -= 1 } i };
        let start = floor((text.len() as f64 * at) as usize);
        let end = floor((start + cut).min(text.len()));
        let damaged = format!("{}{insert}{}", &text[..start], &text[end..]);
        sound(&check_text("t.fs", &damaged));
        if let Ok(once) = format_text("t.fs", &damaged) {
            prop_assert_eq!(format_text("t.fs", &once).unwrap(), once);
        }
    }
}
