//! The textual form.
//!
//! ```text
//! module @ranking {batch = 32} {
//!   %0: table<0 x 64> = model.table {dim = 64, ...}
//!   func @forward {
//!     %3: real<T0 x 64> = model.linear %2, %1 {bias = false} @"layers.0.uvqk"
//!     %4: real<T0 x 64> = train.linear_grad_input %9, %1 into(%8) @"layers.0.uvqk"
//!   }
//! }
//! ```
//! Values are numbered in the order of their definition in the text. Lines longer than [`WIDTH`] go on, after a comma,
//! in lines that are indented by [`CONTINUED`].

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::{Attr, Attrs, Module, OpId, ValueId};

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "none"),
            Self::Bool(b) => write!(f, "{b}"),
            Self::Int(i) => write!(f, "{i}"),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Str(s) => write!(f, "{}", quoted(s)),
            Self::List(l) => {
                write!(f, "[")?;
                for (i, a) in l.iter().enumerate() {
                    write!(f, "{}{a}", if i > 0 { ", " } else { "" })?;
                }
                write!(f, "]")
            }
            Self::Dict(d) => write!(f, "{}", DisplayAttrs(d)),
        }
    }
}

/// Attributes in braces.
pub(crate) struct DisplayAttrs<'a>(pub &'a Attrs);

impl fmt::Display for DisplayAttrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{")?;
        for (i, (k, v)) in self.0.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            if is_word(k) { write!(f, "{comma}{k} = {v}")? } else { write!(f, "{comma}{} = {v}", quoted(k))? }
        }
        write!(f, "}}")
    }
}

fn is_word(s: &str) -> bool {
    !s.is_empty()
        && s.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !s.starts_with(|c: char| c.is_ascii_digit())
}

/// A JSON string, which the parser reads back with any character.
pub(super) fn quoted(s: &str) -> String {
    serde_json::Value::from(s).to_string()
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut done = Ok(());
        self.lines(|indent, line| {
            done = done.and_then(|()| writeln!(f, "{}", folded(&format!("{:indent$}{line}", ""))));
        });
        done
    }
}

/// Characters of a line beyond which it is folded.
pub(crate) const WIDTH: usize = 120;

/// What the second and all further lines of a folded one start with. No other line does.
pub const CONTINUED: &str = "        ";

/// A line of the textual form, folded where it is long: as many items as fit on each line, broken only behind commas,
/// where the parser takes any white space, and never within quotes.
pub(super) fn folded(line: &str) -> String {
    if line.len() <= WIDTH {
        return line.to_owned();
    }
    let mut text = String::with_capacity(line.len() + line.len() / 8);
    let mut width = 0;
    for item in items(line) {
        let length = item.trim_end().chars().count();
        if width > 0 && width + length > WIDTH {
            text.truncate(text.trim_end().len());
            text.push('\n');
            text.push_str(CONTINUED);
            width = CONTINUED.len();
        }
        text.push_str(item);
        width += item.chars().count();
    }
    text
}

/// The parts of a line between which it may be broken, each with the comma and the blank that end it.
fn items(line: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped, mut comma) = (false, false, false);
    line.split_inclusive(move |c| {
        let ends = comma && c == ' ';
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        comma = c == ',' && !quoted;
        ends
    })
}

/// Numbers of values in the text.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<ValueId, usize>);

impl Names {
    /// The name of a value, new ones numbered on.
    pub(crate) fn get(&mut self, id: ValueId) -> String {
        let next = self.0.len();
        format!("%{}", self.0.entry(id).or_insert(next))
    }
}

impl Module {
    /// All lines of the text with their indents, not folded yet.
    pub(crate) fn lines(&self, mut each: impl FnMut(usize, &str)) {
        let mut names = Names::default();
        each(0, &format!("module {} {} {{", quoted(&self.name), DisplayAttrs(&self.attrs)));
        for id in &self.decls {
            each(2, &self.line(*id, &mut names));
        }
        for func in &self.funcs {
            each(2, &format!("func @{} {{", func.name));
            for id in &func.body {
                each(4, &self.line(*id, &mut names));
            }
            each(2, "}");
        }
        each(0, "}");
    }

    /// One operation as a line of text.
    pub(crate) fn line(&self, id: OpId, names: &mut Names) -> String {
        let op = self.op(id);
        let mut text = String::new();
        // Operands first: a use before its definition (invalid, but printable) then keeps its number.
        let operand = |(i, v): (usize, &ValueId)| match op.offset(i) {
            0 => names.get(*v),
            offset => format!("{}@{offset:+}", names.get(*v)),
        };
        let operands: Vec<String> = op.operands.iter().enumerate().map(operand).collect();
        let into: Vec<String> =
            op.into.iter().map(|v| v.map_or_else(|| "_".into(), |v| names.get(v))).collect();
        for (i, r) in op.results.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let _ = write!(text, "{comma}{}: {}", names.get(*r), self.ty(*r));
        }
        if !op.results.is_empty() {
            text.push_str(" = ");
        }
        text.push_str(op.def.name);
        for (i, o) in operands.iter().enumerate() {
            let _ = write!(text, "{} {o}", if i > 0 { "," } else { "" });
        }
        if !into.is_empty() {
            let _ = write!(text, " into({})", into.join(", "));
        }
        if !op.attrs.is_empty() {
            let _ = write!(text, " {}", DisplayAttrs(&op.attrs));
        }
        if !op.scope.is_empty() {
            let _ = write!(text, " @{}", quoted(&op.scope));
        }
        if let Some(m) = op.microbatch {
            let _ = write!(text, " microbatch({m})");
        }
        if !op.site.is_home() {
            text.push_str(" assigned");
        }
        if let Some(group) = op.group {
            let _ = write!(text, " group({group})");
        }
        if let Some(p) = &op.placement {
            let _ = write!(text, " sched {}", DisplayAttrs(&super::attr::attrs_of(p)));
        }
        text
    }
}

/// A list of types.
pub(super) fn types(types: &[super::Type]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_folded_behind_commas() {
        let short = "x".repeat(WIDTH);
        assert_eq!(folded(&short), short);
        let list: Vec<String> = (0..100).map(|i| format!("%{i}")).collect();
        let line = format!("    %100: real<B x 100> = model.concat {}", list.join(", "));
        let text = folded(&line);
        assert!(text.lines().all(|l| l.len() <= WIDTH && !l.ends_with(' ')), "{text}");
        assert!(text.lines().skip(1).all(|l| l.starts_with(CONTINUED)), "{text}");
        assert_eq!(text.replace(&format!("\n{CONTINUED}"), " "), line);
    }

    /// A text stays whole, however long it is and whatever stands in it.
    #[test]
    fn quotes_are_not_broken() {
        let reason = r#"after \"a, b\", "#.repeat(20);
        let line = format!("{{first = 1, reason = \"{reason}\", last = 2}}");
        let text = folded(&line);
        assert!(text.lines().any(|l| l.trim() == format!("reason = \"{reason}\",")), "{text}");
        assert_eq!(text.lines().count(), 3);
    }
}
