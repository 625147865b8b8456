//! The interactive picture: one HTML file that loads nothing from elsewhere.
//!
//! The page's structure, style and scripts are files of their own, put together here with the schedules as a block of
//! JSON. Its content policy forbids every load, and all text of schedules reaches the page as JSON or escaped.

mod data;

use super::cells::escape;
use super::measured::Measured;
use super::ranks;
use super::timeline::{Timeline, strategy_name};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// In the order in which they run.
const SCRIPTS: [&str; 6] = [
    include_str!("data.js"),
    include_str!("draw.js"),
    include_str!("overlay.js"),
    include_str!("panel.js"),
    include_str!("interact.js"),
    include_str!("main.js"),
];

/// Steps that are drawn of a plan.
pub const STEPS: u32 = 3;

/// A schedule on the page.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The plan.
    pub timeline: Timeline,
    /// Its run.
    pub measured: Option<Measured>,
    /// What tells it from others of the same model and strategy: its file's name.
    pub name: String,
}

/// The page with one schedule, or several one above the other.
pub fn page(shown: &[Shown], steps: u32) -> String {
    let labels = labels(shown);
    let title = labels.join(" and ");
    let operations: usize = shown.iter().map(|s| s.timeline.ops.len()).sum();
    let label = format!("Timeline of {title}: {operations} operations a step");
    let data = data::text(shown, &labels, steps.max(1));
    let mut out = String::with_capacity(data.len() + (1 << 17));
    // One pass, so that nothing that a schedule holds is taken for a placeholder.
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once('@') {
        out.push_str(before);
        let (name, after) = after.split_once('@').unwrap_or((after, ""));
        match name {
            "title" => escape(&mut out, &title),
            "label" => escape(&mut out, &label),
            "style" => out.push_str(STYLE),
            "data" => out.push_str(&data),
            "ranks" => {
                let all = shown.iter().zip(&labels).map(|(s, label)| ranks::html(&s.timeline, label));
                all.for_each(|text| out.push_str(&text));
            }
            "script" => {
                out.push_str("\"use strict\";\n(() => {\n");
                out.push_str(&SCRIPTS.concat());
                out.push_str("})();\n");
            }
            _ => {}
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `movielens, pec`; with the file's name if another is called the same.
fn labels(shown: &[Shown]) -> Vec<String> {
    let plain = |s: &Shown| format!("{}, {}", s.timeline.model, strategy_name(s.timeline.strategy));
    let all: Vec<String> = shown.iter().map(plain).collect();
    let twice = |label: &String| all.iter().filter(|l| *l == label).count() > 1;
    let named = |(label, s): (&String, &Shown)| {
        if twice(label) { format!("{label} ({})", s.name) } else { label.clone() }
    };
    let named: Vec<String> = all.iter().zip(shown).map(named).collect();
    // The same file, or files of the same name.
    let nth = |(i, label): (usize, &String)| {
        let before = named[..i].iter().filter(|l| *l == label).count();
        if before > 0 { format!("{label}, {}", before + 1) } else { label.clone() }
    };
    named.iter().enumerate().map(nth).collect()
}
