//! Structure of a text without its grammar: brackets, comments and strings. Serves error recovery.

use std::ops::Range;

/// Where the comments are, in order.
pub(crate) fn comments(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    walk(text, |_, _| true, |part| found.extend(Some(part).filter(|p| text[p.start..].starts_with('/'))));
    found
}

/// The first word that has more characters than allowed, or text between quotes.
pub(crate) fn too_long(text: &str, word: usize, quoted: usize) -> Option<Range<usize>> {
    let (mut own, mut strings) = (0..0, Vec::new());
    let each = |at: usize, c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            own = if own.end == at { own.start..at + 1 } else { at..at + 1 };
        }
        own.len() <= word
    };
    walk(text, each, |part| strings.push(part));
    let long = strings.into_iter().find(|p| text[p.start..].starts_with('"') && p.len() > quoted + 2);
    long.or((own.len() > word).then_some(own))
}

fn scan(text: &str, each: impl FnMut(usize, char) -> bool) {
    walk(text, each, |_| {});
}

/// Calls back with every byte offset and character that is neither in a comment nor in a string, and with where those are.
fn walk(text: &str, mut each: impl FnMut(usize, char) -> bool, mut skipped: impl FnMut(Range<usize>)) {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        match bytes[i] {
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                let start = i;
                while i < bytes.len() && bytes[i] != b'\n' {
                    i += 1;
                }
                skipped(start..i);
                continue;
            }
            b'"' => {
                let mut j = i + 1;
                while j < bytes.len() && bytes[j] != b'"' && bytes[j] != b'\n' {
                    j += 1 + usize::from(bytes[j] == b'\\' && bytes.get(j + 1) != Some(&b'\n'));
                }
                // An open string ends with its line.
                if j < bytes.len() && bytes[j] == b'"' {
                    skipped(i..j + 1);
                    i = j + 1;
                    continue;
                }
            }
            b if b.is_ascii() && !each(i, b as char) => return,
            _ => {}
        }
        i += 1;
    }
}

/// Where brackets first nest deeper than allowed.
pub(crate) fn too_deep(text: &str, limit: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut found = None;
    scan(text, |at, c| {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > limit {
            found = Some(at);
        }
        found.is_none()
    });
    found
}

/// The innermost bracket that is still open at the end.
pub(crate) fn unclosed(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    scan(text, |at, c| {
        match c {
            '(' | '[' | '{' => open.push(at),
            ')' | ']' | '}' => {
                open.pop();
            }
            _ => {}
        }
        true
    });
    open.pop()
}

/// What to leave out after a syntax error at `at`: the statement or setting around it.
///
/// A statement reaches from the start of its first line to the end of the line on which its brackets are
/// closed, but never leaves the braces around it.
pub(crate) fn hole(text: &str, at: usize) -> Range<usize> {
    // Opening brackets before the error, and the start of the line at each depth.
    let mut open: Vec<(char, usize)> = Vec::new();
    let mut start = 0;
    let mut starts = Vec::new();
    scan(text, |i, c| {
        if i >= at {
            return false;
        }
        match c {
            '{' => {
                open.push((c, i));
                starts.push(start);
                start = i + 1;
            }
            '(' | '[' => {
                open.push((c, i));
                starts.push(start);
            }
            '}' | ')' | ']' if open.pop().is_some() => start = starts.pop().unwrap_or(0),
            '\n' if open.last().is_none_or(|(c, _)| *c == '{') => start = i + 1,
            _ => {}
        }
        true
    });
    let mut depth = open.iter().rev().take_while(|(c, _)| *c != '{').count() as i64;
    let mut end = text.len();
    let mut braces = 0i64;
    scan(&text[at..], |i, c| {
        let i = at + i;
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' => braces += 1,
            '}' => {
                braces -= 1;
                if braces < 0 {
                    end = i;
                    return false;
                }
            }
            // A bracket that is never closed must not swallow the file: a statement starts here.
            '\n' if braces == 0 && (depth <= 0 || starts_statement(&text[i + 1..])) => {
                end = i;
                return false;
            }
            _ => {}
        }
        true
    });
    start.min(end)..end
}

/// The end of the text before an error if the error is that a line stops too early: what follows stands on
/// another line and starts something new. Else the place of the error.
pub(crate) fn cut_short(text: &str, at: usize) -> usize {
    let mut end = text[..at].trim_end().len();
    let all = comments(text);
    while let Some(c) = all.iter().find(|c| c.start < end && end <= c.end) {
        end = text[..c.start].trim_end().len();
    }
    let next = token(text, at).start;
    let new_line = text[end..next].contains('\n');
    if new_line && (starts_statement(&text[next..]) || next == text.len()) { end } else { at }
}

fn starts_statement(rest: &str) -> bool {
    let line = rest.trim_start_matches([' ', '\t']);
    let word: &str = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
    matches!(
        word,
        "let"
            | "table"
            | "input"
            | "repeat"
            | "loss"
            | "return"
            | "model"
            | "block"
            | "train"
            | "workload"
            | "cluster"
            | "import"
    ) || line.starts_with('}')
}

/// Replaces a range by spaces, keeping line breaks; false if that changes nothing.
pub(crate) fn blank(text: &mut String, range: Range<usize>) -> bool {
    let mut range = range;
    if text[range.clone()].trim().is_empty() {
        // A stray closing brace, or an end that came too early.
        match text[range.end..].chars().next() {
            Some(c) => range.end += c.len_utf8(),
            None => return false,
        }
    }
    let blanked: String = text[range.clone()]
        .chars()
        .flat_map(|c| {
            let fill = if c == '\n' { '\n' } else { ' ' };
            std::iter::repeat_n(fill, c.len_utf8())
        })
        .collect();
    text.replace_range(range, &blanked);
    true
}

/// Characters of a token that are shown.
const LONGEST_TOKEN: usize = 80;

/// The word or character at a place, after white space and comments.
pub(crate) fn token(text: &str, at: usize) -> Range<usize> {
    let mut at = at;
    loop {
        let rest = &text[at..];
        let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        at += rest.len() - trimmed.len();
        if trimmed.starts_with("//") {
            at += trimmed.find('\n').unwrap_or(trimmed.len());
        } else {
            break;
        }
    }
    let rest = &text[at..];
    if rest.starts_with("/*") {
        return at..at + 2;
    }
    // Whoever reads it wants to find it, not to read a whole file of it.
    let rest = rest.char_indices().nth(LONGEST_TOKEN).map_or(rest, |(end, _)| &rest[..end]);
    if rest.starts_with('"') {
        return at..at + rest.find('\n').unwrap_or(rest.len());
    }
    let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if word > 0 {
        return at..at + word;
    }
    at..at + rest.chars().next().map_or(0, char::len_utf8)
}

/// The word that ends before a place.
pub(crate) fn word_before(text: &str, at: usize) -> &str {
    let head = text[..at].trim_end();
    let start = head
        .rfind(|c: char| !c.is_alphanumeric() && c != '_')
        .map_or(0, |i| i + head[i..].chars().next().map_or(1, char::len_utf8));
    &head[start..]
}
