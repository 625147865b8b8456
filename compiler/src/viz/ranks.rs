//! Ranks side by side in a step: how long each computes, from the slowest to the fastest, and how long it then waits, with
//! samples where they are read and with samples given to ranks.
//!
//! Lengths are drawn, so these are means over batches: the slowest rank of each, the second slowest, and so on. The
//! schedule's own times are the slowest rank's; the others' follow from their work.

use std::fmt::Write as _;

use fs_schedule::RankWork;

use super::cells::escape;
use super::timeline::Timeline;
use crate::sched::reasons::duration;

/// A rank, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bar {
    /// Where it stands among ranks.
    pub name: String,
    /// Work of its compute engine.
    pub compute: f64,
    /// Until the slowest rank has done its own.
    pub wait: f64,
}

/// Ranks under one choice.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Group {
    /// For people.
    pub title: String,
    /// The slowest rank first.
    pub bars: Vec<Bar>,
}

/// With samples at home, then as planned, if there are plans that keep the limit; nothing where all ranks have as much to do.
pub(super) fn groups(t: &Timeline) -> Vec<Group> {
    let Some(s) = t.stragglers.as_ref().filter(|s| s.at_home > 1.0005) else { return Vec::new() };
    let now = if t.balanced { s.planned } else { s.at_home };
    let each = t.compute().map_or(0.0, |lane| lane.busy) / now.max(1.0);
    let group = |title: &str, most: f64, shown: bool, work: fn(&RankWork) -> f64| {
        let slowest = s.ranks.first().map_or(1.0, work);
        let bar = |(i, r): (usize, &RankWork)| Bar {
            name: name(i, s.ranks.len(), t.ranks),
            compute: each * work(r),
            wait: each * (slowest - work(r)).max(0.0),
        };
        let waits = 100.0 * (1.0 - 1.0 / most.max(1.0));
        let this = if shown { " (this schedule)" } else { "" };
        Group {
            title: format!("{title}{this}: ranks wait {waits:.1}%"),
            bars: s.ranks.iter().enumerate().map(bar).collect(),
        }
    };
    if let Some(u) = s.unkept {
        let title = format!(
            "samples where they are read (no plan keeps the limit in {} of {} batches drawn)",
            u.batches, u.drawn
        );
        return vec![group(&title, s.at_home, false, |r| r.at_home)];
    }
    vec![
        group("samples where they are read", s.at_home, !t.balanced, |r| r.at_home),
        group("samples given to ranks", s.planned, t.balanced, |r| r.planned),
    ]
}

/// `slowest`, `2nd`, `37th of 256`, `fastest`.
fn name(i: usize, shown: usize, ranks: u32) -> String {
    if i == 0 {
        return "slowest".into();
    }
    if i + 1 == shown {
        return "fastest".into();
    }
    let place = 1 + i as u32 * (ranks - 1) / (shown as u32 - 1);
    let ending = match (place % 10, place % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    if shown as u32 == ranks { format!("{place}{ending}") } else { format!("{place}{ending} of {ranks}") }
}

/// For the page's panel.
pub(super) fn html(t: &Timeline, label: &str) -> String {
    let mut out = String::new();
    for (n, g) in groups(t).iter().enumerate() {
        if n == 0 {
            out.push_str("<h2>Ranks: ");
            escape(&mut out, label);
            out.push_str("</h2>\n");
        }
        let _ = writeln!(out, "<h3>{}</h3>\n<div class=\"ranks\" role=\"list\">", g.title);
        let most = g.bars.iter().map(|b| b.compute + b.wait).fold(1.0, f64::max);
        for b in &g.bars {
            let _ = writeln!(
                out,
                "<div role=\"listitem\"><span>{}</span><span class=\"bar\" title=\"computes {}, waits {}\"><i style=\"width:{:.1}%\"></i></span><span>{}</span></div>",
                b.name,
                duration(b.compute),
                duration(b.wait),
                100.0 * b.compute / most,
                duration(b.compute)
            );
        }
        out.push_str("</div>\n");
    }
    if !out.is_empty() {
        out.push_str("<p class=\"soft small\">Compute of a step by rank, means over drawn batches. Hatched: waiting for the slowest rank.</p>\n");
    }
    out
}
