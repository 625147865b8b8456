//! Lanes at a resolution: what an engine does most of the time in each of equal parts of the time axis.

use std::collections::BTreeMap;

use fs_workload::names::steers;

use super::palette::Purpose;
use super::timeline::{Lane, Timeline};

/// A part of the time axis that an engine works in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cell {
    /// What it does most of that time.
    pub(super) kind: Purpose,
    /// On which batch.
    pub(super) batch: i64,
    /// On the longest cycle.
    pub(super) on_cycle: bool,
    /// Share of the part that it works.
    pub(super) busy: f64,
}

/// The steps that are in sight from 0 to `until`, the one before included.
pub(super) fn steps_until(t: &Timeline, until: f64) -> std::ops::Range<i64> {
    0..(until / t.step).ceil().max(1.0) as i64
}

/// `n` parts of the time from 0 to `until`; `None`: idle.
pub(super) fn cells(t: &Timeline, lane: &Lane, until: f64, n: usize) -> Vec<Option<Cell>> {
    let width = until / n as f64;
    let mut shares: Vec<BTreeMap<(Purpose, i64, bool), f64>> = vec![BTreeMap::new(); n];
    for i in t.instances(lane, steps_until(t, until)) {
        let (start, end) = (i.start.max(0.0), i.end.min(until));
        if end <= start {
            continue;
        }
        let op = &t.ops[i.op as usize];
        let (first, last) = ((start / width) as usize, (end / width).ceil() as usize);
        for (c, share) in shares.iter_mut().enumerate().take(last.min(n)).skip(first) {
            let (from, to) = (c as f64 * width, (c + 1) as f64 * width);
            let inside = (end.min(to) - start.max(from)).max(0.0);
            *share.entry((op.kind, i.batch, op.on_cycle)).or_insert(0.0) += inside;
        }
    }
    let most = |share: BTreeMap<(Purpose, i64, bool), f64>| {
        let busy: f64 = share.values().sum();
        let ((kind, batch, on_cycle), _) =
            share.into_iter().filter(|s| s.1 > 0.0).max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Cell { kind, batch, on_cycle, busy: busy / width })
    };
    shares.into_iter().map(most).collect()
}

/// Text on one line: what would end it, or steer a terminal, is replaced.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// Appends text as it stands in elements and quoted attributes of HTML and XML.
pub(super) fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
}
