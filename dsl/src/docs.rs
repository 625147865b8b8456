//! Documentation generated from the tables that checking uses.

use crate::check::makers;
use crate::check::primitives::PRIMITIVES;
use crate::check::settings::{INPUT_KINDS, KEYWORDS};
use crate::cluster::PRESETS;
use crate::codes;
use crate::signature::{Need, Param};
use crate::units::{Dimension, UNITS};
use std::fmt::Write as _;

/// The reference part of `docs/language.md`: settings, primitives, constructors, units, presets, diagnostics.
pub fn reference() -> String {
    let mut out = String::from("## Settings\n");
    for k in KEYWORDS {
        let _ = write!(out, "\n### {}\n\n{}\n\n", k.name, k.doc);
        table(&mut out, "setting", k.params);
    }
    out.push_str("\n### Kinds of input\n\n");
    for k in INPUT_KINDS {
        let _ = writeln!(out, "- `{}{}`: {}", k.name, parameters(k.params), k.doc);
    }
    out.push_str("\n## Primitives\n");
    for family in PRIMITIVES {
        let _ = write!(out, "\n### {}\n", family.title);
        for p in family.primitives {
            let _ = write!(out, "\n#### {}\n\n`{}{}`\n\n{}\n", p.name, p.name, parameters(p.params), p.doc);
            let _ = write!(out, "Result: {}.\n\n", p.result);
            table(&mut out, "parameter", p.params);
        }
    }
    out.push_str("\n## Constructors\n");
    for (title, makers) in makers::families() {
        let _ = write!(out, "\n### {title}\n\n");
        for (name, params, doc) in makers {
            let _ = writeln!(out, "- `{name}{}`: {doc}", parameters(params));
        }
    }
    out.push_str("\n## Units\n\n| measures | units |\n|---|---|\n");
    for d in [Dimension::Bytes, Dimension::Bandwidth, Dimension::Time, Dimension::Rate] {
        let names: Vec<String> =
            UNITS.iter().filter(|u| u.dimension == d).map(|u| format!("`{}`", u.name)).collect();
        let _ = writeln!(out, "| {} | {} |", d.noun(), names.join(" "));
    }
    let presets: Vec<String> = PRESETS.iter().map(|p| format!("`{p}`")).collect();
    let _ = write!(out, "\n## Cluster presets\n\n{}\n", presets.join(", "));
    out.push_str("\n## Diagnostics\n");
    for e in codes::TABLE {
        let _ = write!(out, "\n### {}: {}\n\n{}\n", e.code, e.title, e.explanation);
    }
    out
}

/// `(x, p, eps = 1e-6)`; nothing without parameters.
fn parameters(params: &[Param]) -> String {
    if params.is_empty() {
        return String::new();
    }
    let words: Vec<String> = params
        .iter()
        .map(|p| match p.need {
            Need::Required => p.name.to_owned(),
            Need::Optional => format!("{}?", p.name),
            Need::Default(d) => format!("{}: {d}", p.name),
        })
        .collect();
    format!("({})", words.join(", "))
}

fn table(out: &mut String, what: &str, params: &[Param]) {
    let _ = write!(out, "| {what} | takes | without it | |\n|---|---|---|---|\n");
    for p in params {
        let need = match p.need {
            Need::Required => "required".to_owned(),
            Need::Optional => "none".to_owned(),
            Need::Default(d) => format!("`{d}`"),
        };
        let _ = writeln!(out, "| `{}` | {} | {need} | {} |", p.name, p.kind.words(), p.doc);
    }
}
