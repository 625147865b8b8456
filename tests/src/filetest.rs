//! Expectations that stand in a file beside what they are about.
//!
//! Three directives match an output line by line, top down; each stands on a comment line of its own:
//!
//! - `// check: PATTERN`: a line below the last one that matched has the pattern in it (the first such line is taken);
//! - `// next: PATTERN`: the line right below the last one that matched has it;
//! - `// not: PATTERN`: no line between the last one that matched and the one that matches next (or the end) has it.
//!
//! A pattern is text with two special parts: `...` stands for any text, and `$name` for the name of a value (`%12`),
//! the same at each use; a `check` or `next` gives it its meaning, the name alone within a `not` stands for any value.
//! White space counts as one blank, and text that starts or ends within a word does not match: `%1` is not in `%12`.
//! Lines that the IR's printer has folded count as one.
//!
//! `// error: PATTERN` expects an error: at the end of a line, or on lines of its own right under it, where each stands
//! for one more error of that line; a folded line is at fault where it starts. Above all lines of the input it is an error of the first line, which says what is
//! run. All errors must be expected, and all expected ones come.

use std::collections::BTreeMap;
use std::fmt;

use fs_compiler::ir::print::CONTINUED;

/// What to do with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Match {
    Check,
    Next,
    Not,
}

/// One `check`, `next` or `not`.
#[derive(Debug, Clone)]
struct Directive {
    kind: Match,
    pattern: Pattern,
    /// Where it stands, from 1.
    line: usize,
}

/// An error that a file expects.
#[derive(Debug, Clone)]
struct Expected {
    /// The line at fault.
    line: usize,
    pattern: Pattern,
}

/// An error that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The line at fault, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// What a file expects.
#[derive(Debug, Clone, Default)]
pub struct Script {
    directives: Vec<Directive>,
    errors: Vec<Expected>,
}

/// An expectation that does not hold, or is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Mismatch {
    /// Of the file, from 1.
    pub line: usize,
    /// What was expected, and what came.
    pub what: String,
}

/// A part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Any,
    Value(String),
}

/// What a line must have in it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    pieces: Vec<Piece>,
    text: String,
}

type Values = BTreeMap<String, String>;

impl Script {
    /// Reads the directives of a file.
    pub fn parse(text: &str) -> Result<Self, Mismatch> {
        let mut script = Self::default();
        let mut at = 1;
        for (i, whole) in text.lines().enumerate() {
            let line = i + 1;
            let (code, comment) = match whole.split_once("//") {
                Some((code, comment)) => (code.trim(), comment.trim()),
                None => (whole.trim(), ""),
            };
            if !code.is_empty() && !whole.starts_with(CONTINUED) {
                at = line;
            }
            let Some((word, rest)) = comment.split_once(':') else { continue };
            let kind = match word {
                "check" => Some(Match::Check),
                "next" => Some(Match::Next),
                "not" => Some(Match::Not),
                "error" => None,
                _ => continue,
            };
            let pattern = Pattern::parse(rest);
            let fail = |what: &str| Err(Mismatch { line, what: what.to_owned() });
            if !pattern.pieces.iter().any(|p| matches!(p, Piece::Text(_))) {
                return fail("a pattern has some text");
            }
            match kind {
                None => script.errors.push(Expected { line: at, pattern }),
                Some(_) if !code.is_empty() => return fail("a directive stands on a line of its own"),
                Some(Match::Next) if script.directives.iter().all(|d| d.kind == Match::Not) => {
                    return fail("`next` needs a `check` before it");
                }
                Some(kind) => script.directives.push(Directive { kind, pattern, line }),
            }
        }
        Ok(script)
    }

    /// True if something is said about the output.
    pub fn has_checks(&self) -> bool {
        !self.directives.is_empty()
    }

    /// True if errors are expected.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Holds the errors that came against those expected.
    pub fn match_errors(&self, found: &[Found]) -> Result<(), Mismatch> {
        let mut left: Vec<&Found> = found.iter().collect();
        for expected in &self.errors {
            let fits = |f: &&Found| {
                f.line == expected.line && expected.pattern.finds(&squeezed(&f.message), &mut Values::new())
            };
            let Some(i) = left.iter().position(fits) else {
                let here: Vec<String> =
                    found.iter().filter(|f| f.line == expected.line).map(|f| f.message.clone()).collect();
                let what = format!("expected the error `{}`, found {here:?}", expected.pattern);
                return Err(Mismatch { line: expected.line, what });
            };
            left.remove(i);
        }
        match left.first() {
            None => Ok(()),
            Some(f) => Err(Mismatch { line: f.line, what: format!("an error not expected: {}", f.message) }),
        }
    }

    /// Holds an output against the directives.
    pub fn match_output(&self, output: &str) -> Result<(), Mismatch> {
        let lines: Vec<String> = unfolded(output).iter().map(|l| squeezed(l)).collect();
        let mut values = Values::new();
        let mut nots: Vec<&Directive> = Vec::new();
        // The first line that is not matched yet.
        let mut at = 0;
        for d in &self.directives {
            let found = match d.kind {
                Match::Not => {
                    nots.push(d);
                    continue;
                }
                Match::Next => lines.get(at).is_some_and(|l| d.pattern.finds(l, &mut values)).then_some(at),
                Match::Check => (at..lines.len()).find(|i| d.pattern.finds(&lines[*i], &mut values)),
            };
            let Some(found) = found else {
                let what = match d.kind {
                    Match::Next => format!("the next line has no `{}`: {}", d.pattern, around(&lines, at, 1)),
                    _ => format!("no line has `{}`, from: {}", d.pattern, around(&lines, at, 8)),
                };
                return Err(Mismatch { line: d.line, what });
            };
            absent(&nots, &lines[at..found], &values)?;
            nots.clear();
            at = found + 1;
        }
        absent(&nots, &lines[at..], &values)
    }
}

/// No line has what must not be there.
fn absent(nots: &[&Directive], lines: &[String], values: &Values) -> Result<(), Mismatch> {
    for d in nots {
        if let Some(l) = lines.iter().find(|l| d.pattern.finds(l, &mut values.clone())) {
            return Err(Mismatch { line: d.line, what: format!("`{}` must not be in: {l}", d.pattern) });
        }
    }
    Ok(())
}

fn around(lines: &[String], at: usize, count: usize) -> String {
    lines.iter().skip(at).take(count).fold(String::new(), |text, l| text + "\n  " + l)
}

/// Lines as they were before the printer folded them.
fn unfolded(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if line.starts_with(CONTINUED) => {
                last.push(' ');
                last.push_str(line.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Every run of white space as one blank.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

impl Pattern {
    fn parse(text: &str) -> Self {
        let text = squeezed(text);
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        let mut rest = text.as_str();
        while let Some(c) = rest.chars().next() {
            let name: String = rest.chars().skip(1).take_while(|c| is_word(*c)).collect();
            let (piece, length) = if rest.starts_with("...") {
                (Piece::Any, 3)
            } else if c == '$' && !name.is_empty() {
                let length = 1 + name.len();
                (Piece::Value(name), length)
            } else {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            };
            // Blanks around `...` are part of the text that it stands for.
            let text = if piece == Piece::Any { plain.trim_end() } else { &plain };
            if !text.is_empty() {
                pieces.push(Piece::Text(text.to_owned()));
            }
            plain.clear();
            rest = &rest[length..];
            if piece == Piece::Any {
                rest = rest.trim_start();
            }
            pieces.push(piece);
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Self { pieces, text }
    }

    /// True if a line has it; names get their meaning then, and only then.
    fn finds(&self, line: &str, values: &mut Values) -> bool {
        line.char_indices().map(|(i, _)| i).any(|at| {
            let mut tried = values.clone();
            let found = fits(&self.pieces, line, at, &mut tried);
            if found {
                *values = tried;
            }
            found
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// True if the pieces stand in the line from `at`, the first one right there.
fn fits(pieces: &[Piece], line: &str, at: usize, values: &mut Values) -> bool {
    let Some((piece, more)) = pieces.split_first() else { return true };
    let rest = &line[at..];
    match piece {
        Piece::Text(text) => {
            rest.starts_with(text.as_str())
                && whole_word(line, at, text.len())
                && fits(more, line, at + text.len(), values)
        }
        Piece::Any => (0..=rest.len()).filter(|n| rest.is_char_boundary(*n)).any(|n| {
            let mut tried = values.clone();
            let found = fits(more, line, at + n, &mut tried);
            if found {
                *values = tried;
            }
            found
        }),
        Piece::Value(name) => {
            let Some(after) = rest.strip_prefix('%') else { return false };
            let length = after.chars().take_while(|c| is_word(*c)).count();
            let value = &rest[..=length];
            if length == 0 || values.get(name).is_some_and(|known| known != value) {
                return false;
            }
            values.insert(name.clone(), value.to_owned());
            fits(more, line, at + 1 + length, values)
        }
    }
}

/// True if a piece of a line does not start or end within a word.
fn whole_word(line: &str, at: usize, length: usize) -> bool {
    let joined = |at: usize| {
        let (before, after) = line.split_at(at);
        before.chars().next_back().is_some_and(is_word) && after.chars().next().is_some_and(is_word)
    };
    !joined(at) && !joined(at + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "module \"m\" {} {
  %0: table<0 x 4> = model.table {dim = 4,
        name = \"items\"}
  func @train {
    %1: real<U0 x 4> = comm.gather %0, %12 {exchange = 0}
    %2: real<T0 x 4> = comm.expand %1, %3
    comm.apply %2, %0
  }
}";

    fn matches(script: &str) -> Result<(), Mismatch> {
        Script::parse(script)?.match_output(OUTPUT)
    }
    /// The line of the directive that does not hold.
    fn fails(script: &str) -> usize {
        matches(script).expect_err("must not match").line
    }

    #[test]
    fn check_takes_the_next_line_that_has_it() {
        assert_eq!(matches("// check: comm.gather\n// check: comm.apply"), Ok(()));
        assert_eq!(fails("// check: comm.scatter"), 1);
        assert_eq!(fails("// check: comm.apply\n// check: comm.gather"), 2, "the order counts");
        assert_eq!(fails("// check: comm.apply\n// check: comm.apply"), 2, "a line is matched once");
    }

    #[test]
    fn next_takes_the_line_below() {
        assert_eq!(matches("// check: comm.gather\n// next: comm.expand\n// next: comm.apply"), Ok(()));
        assert_eq!(fails("// check: comm.gather\n// next: comm.apply"), 2);
        assert_eq!(fails("// check: comm.apply\n// next: }\n// next: }\n// next: }"), 4, "the end");
        assert_eq!(fails("// next: module"), 1, "next to nothing");
        assert_eq!(fails("// not: x\n// next: module"), 2, "next to nothing");
    }

    #[test]
    fn not_looks_between_its_neighbours() {
        assert_eq!(matches("// not: comm\n// check: func\n// not: apply\n// check: expand"), Ok(()));
        assert_eq!(fails("// not: gather\n// check: comm.expand"), 1);
        assert_eq!(fails("// check: comm.expand\n// not: comm.apply"), 2, "until the end");
        assert_eq!(
            matches("// check: comm.apply\n// not: comm"),
            Ok(()),
            "the lines matched are not between"
        );
        assert_eq!(fails("// not: scatter\n// not: table\n// check: func"), 2, "each of several");
    }

    #[test]
    fn patterns() {
        assert_eq!(matches("// check: comm.gather ... {exchange = 0}"), Ok(()));
        assert_eq!(
            matches("// check: comm.gather...12"),
            Ok(()),
            "`...` stands for nothing too, or any blanks"
        );
        assert_eq!(matches("// check:   comm.expand    %1,  %3"), Ok(()), "white space is one blank");
        assert_eq!(fails("// check: gather ... expand"), 1, "within a line");
        assert_eq!(fails("// check: comm.gather %0, %1"), 1, "not within a word");
        assert_eq!(fails("// check: pply"), 1, "not within a word");
        assert_eq!(matches("// check: {dim = 4, name = \"items\"}\n// next: func"), Ok(()), "unfolded");
    }

    #[test]
    fn names_of_values() {
        let gather = "// check: $rows: real<U0 x 4> = comm.gather $table,\n";
        assert_eq!(matches(&format!("{gather}// next: comm.expand $rows,")), Ok(()));
        assert_eq!(fails(&format!("{gather}// next: comm.expand $table,")), 2);
        assert_eq!(fails(&format!("{gather}// not: apply $other, $table\n// check: func")), 3);
        assert_eq!(fails(&format!("{gather}// not: apply $other, $table")), 2, "a new name is any value");
        assert_eq!(matches(&format!("{gather}// not: apply $other, $rows")), Ok(()), "a known one is itself");
        assert_eq!(fails("// check: $a, $a"), 1);
        // What did not match gives no name a meaning.
        assert_eq!(matches("// check: comm.apply $a, ...\n// next: }"), Ok(()));
        assert_eq!(matches("// check: $a: ... comm.expand\n// next: comm.apply $a"), Ok(()));
    }

    #[test]
    fn directives_without_meaning_are_refused() {
        let line = |script: &str| Script::parse(script).expect_err("no script").line;
        assert_eq!(line("// check:"), 1);
        assert_eq!(line("\n// not: ..."), 2);
        assert_eq!(line("// check: $a"), 1);
        assert_eq!(line("%0 = x // check: y"), 1);
        assert!(!Script::parse("// this is said: x\n// none").expect("a script").has_checks());
    }

    const INPUT: &str = "// run: none
module \"m\" {} {
  %0: x = a // error: first ... wrong
  %1: y = b c,
        d
  // error: second
  // error: third
}";

    fn errors(input: &str, found: &[(usize, &str)]) -> Result<(), usize> {
        let found: Vec<Found> =
            found.iter().map(|(line, m)| Found { line: *line, message: (*m).to_owned() }).collect();
        Script::parse(input).expect("a script").match_errors(&found).map_err(|e| e.line)
    }

    #[test]
    fn errors_are_expected_on_the_line_at_fault() {
        let all = [(3, "the first is wrong"), (4, "the third"), (4, "the second")];
        assert_eq!(errors(INPUT, &all), Ok(()));
        assert_eq!(errors(INPUT, &all[..2]), Err(4), "one did not come");
        assert_eq!(errors(INPUT, &all[1..]), Err(3), "one did not come");
        assert_eq!(errors(INPUT, &[&all[..], &[(7, "more")]].concat()), Err(7), "one more came");
        assert_eq!(errors(INPUT, &[&all[..], &[(4, "the third")]].concat()), Err(4), "one came twice");
        assert_eq!(errors(INPUT, &[(2, "the first is wrong"), all[1], all[2]]), Err(3), "another line");
        assert_eq!(errors(INPUT, &[(3, "the first is right"), all[1], all[2]]), Err(3), "another message");
    }

    #[test]
    fn errors_of_the_run_line() {
        let input = "// run: nothing\n// error: no pass\n// A comment.\nmodule \"m\" {} {}";
        assert_eq!(errors(input, &[(1, "there is no pass `nothing`")]), Ok(()));
        assert_eq!(errors(input, &[(2, "there is no pass `nothing`")]), Err(1));
    }
}
