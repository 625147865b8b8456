//! Edits of a text that may lie within each other.

use std::fmt::Write as _;
use std::ops::Range;

/// What becomes of a stretch of the source.
pub(crate) enum Edit {
    /// An expression that is another one under a change: number and text.
    Choice { range: Range<usize>, arms: Vec<(usize, String)> },
    /// Text put in at a place.
    Insert { at: usize, text: String },
}

impl Edit {
    fn range(&self) -> Range<usize> {
        match self {
            Self::Choice { range, .. } => range.clone(),
            Self::Insert { at, .. } => *at..*at,
        }
    }
}

/// The source with all edits. Each change lies between `/*M<n>*/` and `/*E*/`, so that a compiler's complaint can be
/// traced to it.
pub(crate) fn apply(source: &str, edits: &[Edit]) -> String {
    let mut sorted: Vec<&Edit> = edits.iter().collect();
    // Outer before inner, and what is put in before a choice that starts there.
    sorted.sort_by_key(|e| {
        let range = e.range();
        (range.start, !range.is_empty(), std::cmp::Reverse(range.end))
    });
    stretch(source, 0..source.len(), &sorted)
}

fn stretch(source: &str, range: Range<usize>, edits: &[&Edit]) -> String {
    let mut text = String::new();
    let mut at = range.start;
    let mut next = 0;
    while next < edits.len() {
        let edit = edits[next];
        let here = edit.range();
        text.push_str(&source[at..here.start]);
        next += 1;
        match edit {
            Edit::Insert { text: new, .. } => {
                text.push_str(new);
                at = here.start;
            }
            Edit::Choice { arms, .. } => {
                let inner = edits[next..].iter().take_while(|e| e.range().start < here.end).count();
                text.push_str("(match crate::mutant_on() {");
                for (number, arm) in arms {
                    let _ = write!(text, "/*M{number}*/{number} => {{ {arm} }}/*E*/ ");
                }
                let kept = stretch(source, here.clone(), &edits[next..next + inner]);
                let _ = write!(text, "_ => {{ {kept} }} }})");
                next += inner;
                at = here.end;
            }
        }
    }
    text.push_str(&source[at..range.end]);
    text
}
