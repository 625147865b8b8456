//! The timeline as text, for terminals: a row of letters per engine.
//!
//! A letter is the kind of operation that an engine spends most of that part of the axis on: a capital where it works
//! at least half of the time, a small one where it mostly idles. Beneath a row stand the batches.

use std::fmt::Write as _;

use super::cells::{Cell, cells, printable};
use super::timeline::{Lane, Timeline, strategy_name};
use crate::sched::reasons::duration;

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
    /// Steps on the axis.
    pub steps: u32,
    /// ASCII only.
    pub ascii: bool,
    /// With colours, as terminals understand them.
    pub colour: bool,
}

impl Options {
    /// Two steps in so many columns, without colours.
    pub fn new(width: usize) -> Self {
        Self { width, steps: 2, ascii: false, colour: false }
    }

    /// With so many steps on the axis.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }

    /// In ASCII only, or not.
    #[must_use]
    pub fn ascii(mut self, ascii: bool) -> Self {
        self.ascii = ascii;
        self
    }

    /// With colours, or without.
    #[must_use]
    pub fn colour(mut self, colour: bool) -> Self {
        self.colour = colour;
        self
    }
}

/// Least columns that anything can be read in.
pub const LEAST_WIDTH: usize = 40;

/// Columns of the engines' names and shares.
const MARGIN: usize = 15;

/// Idle times that are listed.
const GAPS: usize = 3;

/// The picture, with lines of at most the width.
pub fn draw(t: &Timeline, o: &Options) -> String {
    let columns = o.width.max(LEAST_WIDTH) - MARGIN - 1;
    let until = t.step * f64::from(o.steps.max(1));
    let mut out = String::new();
    head(t, o.width.max(LEAST_WIDTH), &mut out);
    let (bar, idle) = if o.ascii { ('|', '.') } else { ('│', '·') };
    out.push('\n');
    line(&mut out, &format!("{:MARGIN$} {}", "", ruler(t, o.steps.max(1), columns - 1)));
    for lane in t.lanes.iter().filter(|l| !l.pieces.is_empty()) {
        let row = cells(t, lane, until, columns);
        let busy = lane.busy / t.step * 100.0;
        let _ = write!(out, "{:<9} {:>3.0}% {bar}", lane.name, busy.min(100.0));
        letters(&row, o.colour, idle, &mut out);
        out.push('\n');
        line(&mut out, &format!("{:MARGIN$}{bar}{}", "", batches(&row)));
    }
    out.push('\n');
    let kinds = t.kinds();
    let mut items: Vec<String> = kinds.iter().map(|k| format!("{} {}", k.letter(), k.name())).collect();
    items.push(format!("{idle} idle"));
    wrap(&items, o.width.max(LEAST_WIDTH), &mut out);
    let width = o.width.max(LEAST_WIDTH);
    let said =
        "small letters: idle more than half of that time; numbers: batches, from that of the first step";
    folded(said, 0, width, &mut out);
    waits(t, width, &mut out);
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// A line, folded at spaces; what follows the first is indented.
fn folded(text: &str, indent: usize, width: usize, out: &mut String) {
    let mut row = String::new();
    for word in text.split_inclusive(' ') {
        if row.chars().count() + word.trim_end().chars().count() > width && !row.trim().is_empty() {
            line(out, &row);
            row = " ".repeat(indent);
        }
        row.push_str(word);
        // A name longer than a line.
        while row.trim_end().chars().count() > width {
            let at = row.char_indices().nth(width).map_or(row.len(), |(at, _)| at);
            line(out, &row[..at]);
            row = format!("{}{}", " ".repeat(indent), &row[at..]);
        }
    }
    line(out, &row);
}

fn head(t: &Timeline, width: usize, out: &mut String) {
    let bound = t.bound();
    let above = if bound > 0.0 { ((t.step / bound - 1.0) * 100.0).max(0.0) } else { 0.0 };
    let ranks = if t.ranks == 1 { "1 rank".to_owned() } else { format!("{} ranks", t.ranks) };
    let (model, cluster) = (printable(&t.model), printable(&t.cluster));
    folded(&format!("{model}, {} on {cluster} ({ranks})", strategy_name(t.strategy)), 2, width, out);
    let share = t.bubble / t.step * 100.0;
    for (what, value) in [
        ("predicted step", format!("{}, {above:.1}% above the greater bound", duration(t.step))),
        ("resource bound", format!("{} ({})", duration(t.resource_bound), t.resource.name())),
        ("recurrence bound", format!("{} ({} operations)", duration(t.recurrence_bound), t.cycle.len())),
    ]
    .into_iter()
    .chain(t.joint_bound.map(|joint| ("joint bound", duration(joint))))
    .chain([("bubble", format!("{} of compute, {share:.1}% of the step", duration(t.bubble)))])
    {
        folded(&format!("{what:<16} {value}"), 17, width, out);
    }
}

/// Where each step begins.
fn ruler(t: &Timeline, steps: u32, columns: usize) -> String {
    let mut row: Vec<char> = vec![' '; columns + 1];
    let mut free = 0;
    for step in 0..=steps {
        let label: Vec<char> =
            if step == 0 { vec!['0'] } else { duration(t.step * f64::from(step)).chars().collect() };
        let at = (columns as f64 * f64::from(step) / f64::from(steps)).round() as usize;
        // The last one ends with the axis.
        let at = at.min((columns + 1).saturating_sub(label.len()));
        if at >= free && at + label.len() <= row.len() {
            row[at..at + label.len()].copy_from_slice(&label);
            free = at + label.len() + 1;
        }
    }
    row.into_iter().collect()
}

fn letters(row: &[Option<Cell>], colour: bool, idle: char, out: &mut String) {
    let mut on = None;
    for cell in row {
        let style =
            cell.filter(|_| colour).map(|c| (terminal(c.kind.colour()), terminal(c.kind.ink()), c.on_cycle));
        if style != on {
            if on.is_some() {
                out.push_str("\x1b[0m");
            }
            if let Some((fill, ink, on_cycle)) = style {
                let bold = if on_cycle { ";1;4" } else { "" };
                let _ = write!(out, "\x1b[48;5;{fill};38;5;{ink}{bold}m");
            }
            on = style;
        }
        out.push(match cell {
            None => idle,
            Some(c) if c.busy >= 0.5 => c.kind.letter(),
            Some(c) => c.kind.letter().to_ascii_lowercase(),
        });
    }
    if on.is_some() {
        out.push_str("\x1b[0m");
    }
}

/// The nearest colour of a terminal's cube of 6 x 6 x 6.
fn terminal(colour: &str) -> u32 {
    let part = |at: usize| colour.get(at..at + 2).and_then(|h| u32::from_str_radix(h, 16).ok()).unwrap_or(0);
    // The cube's levels: 0, 95, 135, 175, 215, 255.
    let level = |v: u32| match v {
        0..48 => 0,
        48..115 => 1,
        v => (v - 35) / 40,
    };
    16 + 36 * level(part(1)) + 6 * level(part(3)) + level(part(5))
}

/// The batch under the first letter of each run, where there is room.
fn batches(row: &[Option<Cell>]) -> String {
    let mut text: Vec<char> = vec![' '; row.len()];
    let mut free = 0;
    let mut last = None;
    let mut at = 0;
    while at < row.len() {
        let Some(cell) = row[at] else {
            at += 1;
            continue;
        };
        let run = row[at..].iter().take_while(|c| c.is_some_and(|c| c.batch == cell.batch)).count();
        if last != Some(cell.batch) {
            let label: Vec<char> = match cell.batch {
                b if b > 0 => format!("+{b}"),
                b => b.to_string(),
            }
            .chars()
            .collect();
            if at >= free && at + label.len() <= row.len() {
                text[at..at + label.len()].copy_from_slice(&label);
                free = at + label.len() + 1;
                last = Some(cell.batch);
            }
        }
        at += run;
    }
    text.into_iter().collect()
}

fn wrap(items: &[String], width: usize, out: &mut String) {
    let mut row = String::new();
    for item in items {
        if !row.is_empty() && row.chars().count() + 2 + item.chars().count() > width {
            line(out, &row);
            row.clear();
        }
        if !row.is_empty() {
            row.push_str("  ");
        }
        row.push_str(item);
    }
    line(out, &row);
}

/// The longest idle times of compute.
fn waits(t: &Timeline, width: usize, out: &mut String) {
    let Some(lane) = t.compute() else { return };
    let mut gaps: Vec<_> = lane.gaps.iter().filter(|g| g.op.is_some()).collect();
    gaps.sort_by(|a, b| (b.end - b.start).total_cmp(&(a.end - a.start)).then(a.start.total_cmp(&b.start)));
    if gaps.is_empty() {
        return;
    }
    let name = |l: &Lane| l.name;
    let _ = writeln!(out, "\n{} idles longest", name(lane));
    for g in gaps.iter().take(GAPS) {
        let before = g.op.and_then(|(op, _)| t.ops.get(op as usize)).map_or("", |o| o.name.as_str());
        folded(&format!("  before {}: {}", printable(before), printable(&g.text)), 4, width, out);
    }
}

#[cfg(test)]
mod tests {
    use super::folded;

    #[test]
    fn long_names_are_cut_into_lines() {
        let name = "n".repeat(101);
        for width in [40, 41, 80, 200] {
            let mut out = String::new();
            folded(&format!("  before {name}: waits 3 us for {name} of the batch"), 4, width, &mut out);
            assert!(out.lines().all(|l| l.chars().count() <= width), "{width}: {out}");
            assert_eq!(out.matches('n').count(), 202, "{width}: {out}");
        }
    }
}
