//! Texts for terminals.
//!
//! Names, words and reasons from files that anybody may have written stand in messages. None of them may steer the terminal
//! that shows it, hide a part of itself, or pass for a message of ours by beginning a line, and none makes a message as long
//! as the file. So what comes from outside goes through [`inline`] or [`shown`] where it enters a text, and each text through
//! [`entry`] where it is printed, which indents all of its lines but the first: whatever was forgotten begins no line.

use std::fmt::Write as _;
use std::path::Path;

use fs_workload::names::steers as steers_by;

/// Whether strings of a JSON text have characters that steer a terminal: names and reasons are printed as they are.
pub fn steers(text: &str) -> bool {
    let bad = steers_by;
    // Between strings only white space is left of them.
    if steers_plainly(text) {
        return true;
    }
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at + 1..];
        let steers = match escape.as_bytes().first() {
            Some(b'u') => escaped(escape).is_some_and(bad),
            Some(b'b' | b'f' | b'n' | b'r' | b't') => true,
            _ => false,
        };
        if steers {
            return true;
        }
        rest = escape.get(1..).unwrap_or_default();
    }
    false
}

/// Whether a text has such characters as they are, but for ends of lines and tabs.
pub fn steers_plainly(text: &str) -> bool {
    let plain = |c: char| matches!(c, '\n' | '\r' | '\t');
    if text.is_ascii() {
        // No others of these steer.
        return text.bytes().any(|b| b.is_ascii_control() && !plain(b.into()));
    }
    text.chars().any(|c| steers_by(c) && !plain(c))
}

/// The character of `u202e`, or of the pair `ud800\udc00`.
fn escaped(escape: &str) -> Option<char> {
    let code = |from: usize| u16::from_str_radix(escape.get(from..from + 4)?, 16).ok();
    let first = code(1)?;
    let second = escape.get(5..7).filter(|between| *between == "\\u").and_then(|_| code(7));
    char::decode_utf16([first].into_iter().chain(second)).next()?.ok()
}

/// A text for a terminal: what would steer it stands there as its escape, but for the ends of lines.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers_by(c) && c != '\n' {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// A word from outside, within a line: [`printable`], and the ends of lines as their escapes too.
pub fn inline(text: &str) -> String {
    printable(text).replace('\n', "\\u{a}")
}

/// A path within a line.
pub fn shown(path: &Path) -> String {
    inline(&path.to_string_lossy())
}

/// A word of a command line that is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has a character that no name has: one that steers a terminal or is not seen, or a backslash")]
pub struct NoName;

/// A word of a command line that is no path: messages repeat it. What [`inline`] had to change is none either.
pub fn word(text: &str) -> Result<String, NoName> {
    if text.chars().any(|c| steers_by(c) || c == '\\') { Err(NoName) } else { Ok(text.to_owned()) }
}

/// What is printed behind `error: `, or as a note: [`message`], whose further lines are indented.
pub fn entry(text: &str) -> String {
    let text = message(text);
    let mut out = String::with_capacity(text.len());
    for (n, line) in text.split('\n').enumerate() {
        let bare = n > 0 && !line.is_empty() && !line.starts_with(' ');
        out.push_str(if n > 0 { "\n" } else { "" });
        out.push_str(if bare { "  " } else { "" });
        out.push_str(line);
    }
    out
}

/// Characters of the longest line of a message, and how many of them are its end where it is cut.
const LINE: usize = 1200;
const LINE_END: usize = 400;
/// Lines of the longest message, and how many of them are its end where it is cut.
const LINES: usize = 200;
const LAST_LINES: usize = 20;

/// An error or a note for a terminal: [`printable`], and of what is very long the beginning and the end.
pub fn message(text: &str) -> String {
    let text = printable(text);
    let lines = text.split('\n').count();
    let mut out = String::new();
    for (n, line) in text.split('\n').enumerate() {
        let (first, last) = (n < LINES - LAST_LINES, n + LAST_LINES >= lines);
        if lines <= LINES || first || last {
            out.push_str(if n > 0 { "\n" } else { "" });
            push_line(&mut out, line);
        } else if n == LINES - LAST_LINES {
            let _ = write!(out, "\n... {} lines more ...", lines - LINES);
        }
    }
    out
}

fn push_line(out: &mut String, line: &str) {
    let count = if line.len() <= LINE { 0 } else { line.chars().count() };
    if count <= LINE {
        return out.push_str(line);
    }
    let at = |n: usize| line.char_indices().nth(n).map_or(line.len(), |(at, _)| at);
    out.push_str(&line[..at(LINE - LINE_END)]);
    let _ = write!(out, " ... {} characters more ... ", count - LINE);
    out.push_str(&line[at(count - LINE_END)..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_steers_nothing() {
        assert_eq!(printable("a\u{1b}[31m\u{202e}\nb\t"), "a\\u{1b}[31m\\u{202e}\nb\\u{9}");
        assert_eq!(
            printable("a\u{2028}\u{feff}\u{e0041}é\u{200d}漢"),
            "a\\u{2028}\\u{feff}\\u{e0041}é\u{200d}漢"
        );
    }

    #[test]
    fn what_comes_from_outside_begins_no_line() {
        assert_eq!(inline("a\nerror: b\r\n"), "a\\u{a}error: b\\u{d}\\u{a}");
        assert_eq!(shown(Path::new("a\n\u{1b}b")), "a\\u{a}\\u{1b}b");
        assert_eq!(entry("a\nerror: b\n\n  c\nd"), "a\n  error: b\n\n  c\n  d");
        assert_eq!(entry("one line"), "one line");
        assert_eq!(word("items:lookahead=2"), Ok("items:lookahead=2".into()));
        for none in ["a\nb", "a\u{202e}", &inline("a\nb")] {
            assert_eq!(word(none), Err(NoName));
        }
    }

    #[test]
    fn what_steers_a_terminal() {
        for harmless in ["{\n\t\"a\": \"b\"\r\n}", r#"{"a": "\u00e9 \\ \" é ü 漢"}"#, r#""\\u001b""#] {
            assert!(!steers(harmless), "{harmless}");
        }
        for harmful in [
            r#""\u001b[31m""#,
            r#""a\nb""#,
            r#""\u202e""#,
            "\"\u{202e}\"",
            "\"\u{1b}\"",
            r#""\u009b""#,
            "\"\u{85}\"",
            r#""\u2028""#,
            r#""\udb40\udc41""#,
            "\"\u{feff}\"",
        ] {
            assert!(steers(harmful), "{harmful}");
        }
    }

    #[test]
    fn messages_are_as_long_as_one_reads() {
        for short in ["", "a", "a\nb\n", &"é".repeat(LINE), &"\n".repeat(LINES - 1)] {
            assert_eq!(message(short), short);
        }
        let wide = message(&format!("<{}>\nand", "é".repeat(1 << 20)));
        assert!(wide.starts_with("<éé") && wide.ends_with("éé>\nand"), "{wide}");
        assert!(wide.contains(&format!("... {} characters more ...", (1 << 20) + 2 - LINE)), "{wide}");
        assert_eq!(wide.lines().next().map(|l| l.matches('é').count()), Some(LINE - 2));
        let lines: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
        let long = message(&lines.join("\n"));
        assert_eq!(long.lines().count(), LINES + 1);
        let cut = format!(
            "\n{}\n... {} lines more ...\n{}\n",
            LINES - LAST_LINES - 1,
            1000 - LINES,
            1000 - LAST_LINES
        );
        assert!(long.contains(&cut) && long.ends_with("999"), "{long}");
    }
}
