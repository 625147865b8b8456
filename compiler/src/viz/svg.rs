//! Timelines as a vector picture, for papers and READMEs.
//!
//! Schedules stand one above the other on one time axis, each drawn as often as its step fits. Neighbouring operations
//! of one kind and batch are one box, so that what remains can be read at the size of a page. The picture brings its
//! own background, light or dark as the reader prefers, so it can stand on any page. Equal schedules give equal bytes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::cells::{cells, escape, printable, steps_until};
use super::palette::{Pattern, Purpose};
use super::ranks;
use super::timeline::{Instance, Lane, Timeline, strategy_name};
use crate::sched::reasons::duration;

/// How to draw.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Steps of the slowest schedule on the axis.
    pub steps: u32,
    /// Width of the picture, in pixels.
    pub width: u32,
    /// Names of the schedules, if their models and strategies do not tell them apart.
    pub names: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps: 2, width: 960, names: Vec::new() }
    }
}

impl Options {
    /// With so many steps on the axis.
    #[must_use]
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = steps;
        self
    }

    /// So many pixels wide.
    #[must_use]
    pub fn width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    /// With these names of the schedules.
    #[must_use]
    pub fn names(mut self, names: Vec<String>) -> Self {
        self.names = names;
        self
    }
}

/// Left edge of the time axis.
const LEFT: f64 = 84.0;
/// Space at the other edges.
const EDGE: f64 = 14.0;
/// Height of a lane's boxes.
const BOX: f64 = 24.0;
/// From lane to lane.
const LANE: f64 = 34.0;
/// Height of a rank's bar.
const RANK: f64 = 9.0;
/// Height of a schedule's heading.
const HEAD: f64 = 26.0;
/// Least pixels between what is drawn apart.
const APART: f64 = 0.35;
/// Most pixels of other work that does not cut a box in two.
const SLIVER: f64 = 0.6;
/// Boxes of a lane from which on it is drawn at a resolution of half a pixel.
const MANY: usize = 800;
/// Steps of a schedule that are drawn where the axis has more of them.
const STEPS: u32 = 200;
/// Pixels of a letter, about.
const LETTER: f64 = 6.2;

const FONT: &str = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\"";
const STYLE: &str = "<style>@media (prefers-color-scheme: dark) { .page { fill: #0d1117 } .ink { fill: #e6edf3 } .dim { fill: #9198a1 } .line { stroke: #4d5560 } .idle { fill: #2a313c } .cycle { stroke: #f0f6fc } }</style>";

/// A box: neighbouring work of one kind on one batch.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    start: f64,
    end: f64,
    kind: Purpose,
    batch: i64,
    /// Operations in it; 0: not counted.
    ops: usize,
    /// The only one.
    name: Option<u32>,
}

/// The picture of one or several schedules.
pub fn draw(timelines: &[Timeline], o: &Options) -> String {
    let steps = f64::from(o.steps.max(1));
    let until = timelines.iter().map(|t| t.step).fold(0.0, f64::max).max(1.0) * steps;
    let width = f64::from(o.width.max(320));
    let scale = (width - LEFT - EDGE) / until;
    let mut body = String::new();
    let mut y = EDGE;
    let mut kinds: BTreeSet<Purpose> = BTreeSet::new();
    for (i, t) in timelines.iter().enumerate() {
        // More steps than can be told apart are not drawn.
        let most = f64::from(o.steps.max(STEPS));
        let drawn = if until > t.step * most { (t.step * most, Some(most)) } else { (until, None) };
        y = schedule(t, o.names.get(i).map(String::as_str), scale, (until, drawn), y, &mut kinds, &mut body);
    }
    y = axis(until, scale, y, &mut body);
    y = legend(&kinds, width, y, &mut body);
    let height = y + EDGE;
    let mut out = String::new();
    let label = timelines.iter().enumerate().map(|(i, t)| title(t, o.names.get(i).map(String::as_str)));
    let label = xml(&label.collect::<Vec<_>>().join("; "));
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{label}\" {FONT} font-size=\"11\">",
        w = px(width),
        h = px(height)
    );
    let _ = writeln!(out, "<title>{label}</title>\n{STYLE}\n<defs>");
    // What cannot be seen has a fill too.
    for kind in Purpose::ALL.into_iter().filter(|k| timelines.iter().any(|t| t.kinds().contains(k))) {
        pattern(kind, &mut out);
    }
    let _ = writeln!(
        out,
        "</defs>\n<rect class=\"page\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#ffffff\"/>",
        px(width),
        px(height)
    );
    out.push_str(&body);
    out.push_str("</svg>\n");
    out
}

/// `movielens, pec: step 1.2 ms, ...`.
fn title(t: &Timeline, name: Option<&str>) -> String {
    let name = match name {
        Some(name) => name.to_owned(),
        None => format!("{}, {}", t.model, strategy_name(t.strategy)),
    };
    format!(
        "{name}: step {}, bound {}, compute idle {}",
        duration(t.step),
        duration(t.bound()),
        duration(t.bubble)
    )
}

/// Draws one schedule from `y` on, as far as `until` (how many steps that are, if the axis is longer), and collects the kinds that
/// can be seen; returns where it ends.
fn schedule(
    t: &Timeline,
    name: Option<&str>,
    scale: f64,
    (axis, (until, steps)): (f64, (f64, Option<f64>)),
    y: f64,
    kinds: &mut BTreeSet<Purpose>,
    out: &mut String,
) -> f64 {
    let mut shown = title(t, name);
    if let Some(steps) = steps {
        let _ = write!(shown, ", the first {steps} steps");
    }
    let (bold, rest) =
        shown.split_once(": step").map_or((shown.as_str(), String::new()), |(a, b)| (a, format!("step{b}")));
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" font-size=\"13\" class=\"ink\" fill=\"#1f2328\"><tspan font-weight=\"600\">{}</tspan><tspan dx=\"10\" class=\"dim\" fill=\"#59636e\">{}</tspan></text>",
        px(EDGE),
        px(y + 14.0),
        xml(bold),
        xml(&rest)
    );
    let mut at = y + HEAD;
    let lanes: Vec<&Lane> = t.lanes.iter().filter(|l| !l.pieces.is_empty()).collect();
    let bottom = at + LANE * lanes.len() as f64;
    for step in 0..=(until / t.step * (1.0 + 1e-9)) as u64 {
        let x = LEFT + step as f64 * t.step * scale;
        let _ = writeln!(
            out,
            "<path class=\"line\" d=\"M{x} {}V{}\" stroke=\"#b6bfc9\" stroke-dasharray=\"2 3\"/>",
            px(at - 4.0),
            px(bottom),
            x = px(x)
        );
    }
    for lane in lanes {
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"ink\" fill=\"#1f2328\">{}</text>",
            px(LEFT - 8.0),
            px(at + BOX / 2.0 + 4.0),
            lane.name
        );
        if lane.engine == fs_schedule::Engine::Compute {
            gaps(t, lane, scale, until, at, out);
        }
        let drawn = runs(t, lane, scale, until);
        kinds.extend(drawn.iter().filter(|r| (r.end - r.start) * scale >= APART).map(|r| r.kind));
        boxes(t, &drawn, scale, at, out);
        marks(t, lane, scale, until, at, out);
        at += LANE;
    }
    side_by_side(t, scale, axis, at + 8.0, out)
}

/// How long ranks compute and wait, with samples where they are read and given to ranks; returns where it ends.
fn side_by_side(t: &Timeline, scale: f64, until: f64, y: f64, out: &mut String) -> f64 {
    let mut at = y;
    for group in ranks::groups(t) {
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" class=\"dim\" fill=\"#59636e\">{}</text>",
            px(LEFT),
            px(at + 9.0),
            xml(&group.title)
        );
        at += 14.0;
        for bar in group.bars {
            let (work, end) = (bar.compute.min(until), (bar.compute + bar.wait).min(until));
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" class=\"dim\" fill=\"#59636e\" font-size=\"9\">{}</text><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{RANK}\" fill=\"#6e7781\"><title>{}: computes {}</title></rect><rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{RANK}\" fill=\"#e4e7eb\"><title>waits {}</title></rect>",
                px(LEFT - 8.0),
                px(at + 8.0),
                bar.name,
                px(LEFT),
                px(at),
                px(work * scale),
                bar.name,
                duration(bar.compute),
                px(LEFT + work * scale),
                px(at),
                px((end - work) * scale),
                duration(bar.wait)
            );
            at += RANK + 3.0;
        }
        at += 8.0;
    }
    at
}

/// Idle times, shaded, with what they wait for.
fn gaps(t: &Timeline, lane: &Lane, scale: f64, until: f64, y: f64, out: &mut String) {
    for step in steps_until(t, until).chain(std::iter::once(steps_until(t, until).end)) {
        for g in lane.gaps.iter().filter(|g| g.op.is_some()) {
            let at = step as f64 * t.step;
            let (start, end) = ((g.start + at).max(0.0), (g.end + at).min(until));
            let width = (end - start) * scale;
            if width < APART {
                continue;
            }
            let (x, text) = (LEFT + start * scale, xml(&g.text));
            let _ = writeln!(
                out,
                "<rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{BOX}\" fill=\"#e4e7eb\"><title>{text}</title></rect>",
                px(x),
                px(y),
                px(width)
            );
            let on = g.waits_for.and_then(|l| t.ops.get(l.op as usize));
            // Where there is little room, the letter that the legend explains.
            let short = on.map(|o| format!("for {}", o.kind.letter()));
            let on = on.map(|o| format!("waits for {}", o.kind.name()));
            let fits = |l: &String| (l.chars().count() as f64).mul_add(LETTER, 6.0) <= width;
            let labels = [Some(text), on, short, Some("idle".to_owned())];
            let Some(label) = labels.into_iter().flatten().find(fits) else { continue };
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" class=\"dim\" fill=\"#59636e\" font-size=\"10\">{label}</text>",
                px(x + width / 2.0),
                px(y + BOX / 2.0 + 4.0)
            );
        }
    }
}

/// Neighbouring work of one kind and batch.
fn runs(t: &Timeline, lane: &Lane, scale: f64, until: f64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, start, end) in in_sight(t, lane, until) {
        let kind = t.ops[i.op as usize].kind;
        // What lies between may be a sliver of other work.
        let near = |r: &Run| (start - r.end) * scale < SLIVER;
        let back =
            runs.iter().rev().take_while(|r| near(r)).position(|r| (r.kind, r.batch) == (kind, i.batch));
        let at = back.map(|b| runs.len() - 1 - b).filter(|at| runs.len() - at <= 4);
        if let Some(at) = at {
            let hidden: usize = runs.drain(at + 1..).map(|r| r.ops).sum();
            let r = &mut runs[at];
            r.end = r.end.max(end);
            r.ops += hidden + usize::from(i.first);
            r.name = None;
        } else {
            runs.push(Run { start, end, kind, batch: i.batch, ops: 1, name: Some(i.op) });
        }
    }
    if runs.len() <= MANY {
        return runs;
    }
    let n = ((until * scale) * 2.0).ceil().max(1.0) as usize;
    let width = until / n as f64;
    let mut coarse: Vec<Run> = Vec::new();
    for (c, cell) in cells(t, lane, until, n).into_iter().enumerate() {
        let Some(cell) = cell else { continue };
        let (start, end) = (c as f64 * width, (c + 1) as f64 * width);
        match coarse.last_mut() {
            Some(r) if (r.kind, r.batch) == (cell.kind, cell.batch) && start - r.end < width / 2.0 => {
                r.end = end;
            }
            _ => {
                coarse.push(Run { start, end, kind: cell.kind, batch: cell.batch, ops: 0, name: None });
            }
        }
    }
    coarse
}

/// Pieces from 0 to `until`, cut at the ends.
fn in_sight<'a>(
    t: &'a Timeline,
    lane: &'a Lane,
    until: f64,
) -> impl Iterator<Item = (Instance, f64, f64)> + 'a {
    t.instances(lane, steps_until(t, until))
        .map(move |i| (i, i.start.max(0.0), i.end.min(until)))
        .filter(|(_, start, end)| end > start)
}

/// Bars under what is on the longest cycle.
fn marks(t: &Timeline, lane: &Lane, scale: f64, until: f64, y: f64, out: &mut String) {
    let mut bars: Vec<(f64, f64)> = Vec::new();
    for (_, start, end) in in_sight(t, lane, until).filter(|(i, ..)| t.ops[i.op as usize].on_cycle) {
        match bars.last_mut() {
            Some(bar) if (start - bar.1) * scale < APART => bar.1 = bar.1.max(end),
            _ => bars.push((start, end)),
        }
    }
    let mut path = String::new();
    for (start, end) in bars {
        let (x, width) = (LEFT + start * scale, ((end - start) * scale).max(0.5));
        let _ = write!(path, "M{} {}h{}", px(x), px(y + BOX + 2.0), px(width));
    }
    if !path.is_empty() {
        let _ = writeln!(out, "<path class=\"cycle\" d=\"{path}\" stroke=\"#1f2328\" stroke-width=\"2.5\"/>");
    }
}

fn boxes(t: &Timeline, runs: &[Run], scale: f64, y: f64, out: &mut String) {
    for r in runs {
        let (x, width) = (LEFT + r.start * scale, ((r.end - r.start) * scale).max(0.5));
        let batch = match r.batch {
            0 => "batch n".to_owned(),
            b => format!("batch n{b:+}"),
        };
        let name = r.name.and_then(|i| t.ops.get(i as usize)).map(|o| o.name.as_str());
        let what = match (name, r.ops) {
            (Some(name), _) => name.to_owned(),
            (None, 0) => r.kind.name().to_owned(),
            (None, n) => format!("{} ({n} operations)", r.kind.name()),
        };
        let _ = write!(
            out,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{BOX}\" fill=\"url(#{})\"><title>{}, {batch}, {}</title></rect>",
            px(x),
            px(y),
            px(width),
            id(r.kind),
            xml(&what),
            duration(r.end - r.start)
        );
        let offset = if r.batch == 0 { String::new() } else { format!(" {:+}", r.batch) };
        let labels = [
            format!("{}{offset}", r.kind.name()),
            format!("{}{offset}", r.kind.letter()),
            r.kind.letter().to_string(),
        ];
        let fits = |l: &&String| (l.chars().count() as f64).mul_add(LETTER, 6.0) <= width;
        if let Some(label) = labels.iter().find(fits) {
            let _ = write!(
                out,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{}\" stroke=\"{}\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
                px(x + width / 2.0),
                px(y + BOX / 2.0 + 4.0),
                r.kind.ink(),
                r.kind.colour(),
                xml(label)
            );
        }
        out.push('\n');
    }
}

/// Round numbers of a time axis: 1, 2 or 5 times a power of ten, so that about eight fit.
fn tick(until: f64) -> f64 {
    let rough = until / 8.0;
    let power = 10f64.powi(rough.log10().floor() as i32);
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= rough).unwrap_or(10.0);
    factor * power
}

fn axis(until: f64, scale: f64, y: f64, out: &mut String) -> f64 {
    let tick = tick(until);
    let (unit, name) = match until {
        x if x < 1e3 => (1.0, "ns"),
        x if x < 1e6 => (1e3, "us"),
        x if x < 1e9 => (1e6, "ms"),
        _ => (1e9, "s"),
    };
    let _ = writeln!(
        out,
        "<path class=\"line\" d=\"M{} {y}H{}\" stroke=\"#b6bfc9\"/>",
        px(LEFT),
        px(LEFT + until * scale),
        y = px(y)
    );
    for i in 0..=(until / tick * (1.0 + 1e-9)) as u32 {
        let x = LEFT + f64::from(i) * tick * scale;
        let digits = if tick / unit < 1.0 { (-(tick / unit).log10().floor()) as usize } else { 0 };
        let value = format!("{:.digits$}", f64::from(i) * tick / unit);
        let _ = writeln!(
            out,
            "<path class=\"line\" d=\"M{x} {}v4\" stroke=\"#b6bfc9\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" class=\"dim\" fill=\"#59636e\">{value}{}</text>",
            px(y),
            px(y + 16.0),
            if i == 0 { format!(" {name}") } else { String::new() },
            x = px(x)
        );
    }
    y + 28.0
}

fn legend(kinds: &BTreeSet<Purpose>, width: f64, y: f64, out: &mut String) -> f64 {
    let (mut x, mut y) = (EDGE, y);
    let mut item = |text: &str, symbol: &dyn Fn(f64, f64) -> String, out: &mut String| {
        let wide = 24.0 + text.chars().count() as f64 * LETTER + 14.0;
        if x + wide > width - EDGE + 14.0 {
            x = EDGE;
            y += 20.0;
        }
        let _ = writeln!(
            out,
            "{}<text x=\"{}\" y=\"{}\" class=\"ink\" fill=\"#1f2328\">{text}</text>",
            symbol(x, y),
            px(x + 22.0),
            px(y + 10.0)
        );
        x += wide;
        y
    };
    for k in kinds {
        let symbol = |x: f64, y: f64| {
            format!(
                "<rect x=\"{}\" y=\"{}\" width=\"16\" height=\"12\" fill=\"url(#{})\"/>",
                px(x),
                px(y),
                id(*k)
            )
        };
        item(&format!("{} {}", k.letter(), k.name()), &symbol, out);
    }
    let idle = |x: f64, y: f64| {
        format!(
            "<rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"16\" height=\"12\" fill=\"#e4e7eb\"/>",
            px(x),
            px(y)
        )
    };
    item("compute idle", &idle, out);
    let mark = |x: f64, y: f64| {
        format!(
            "<path class=\"cycle\" d=\"M{} {}h16\" stroke=\"#1f2328\" stroke-width=\"2.5\"/>",
            px(x),
            px(y + 6.0)
        )
    };
    item("longest cycle", &mark, out);
    let step = |x: f64, y: f64| {
        format!(
            "<path class=\"line\" d=\"M{} {}v12\" stroke=\"#b6bfc9\" stroke-dasharray=\"2 3\"/>",
            px(x + 8.0),
            px(y)
        )
    };
    item("a step begins; +1: next batch", &step, out) + 14.0
}

/// The kind's name in the picture.
fn id(kind: Purpose) -> String {
    format!("k{}", kind.letter())
}

/// A kind's fill.
fn pattern(kind: Purpose, out: &mut String) {
    let lines = match kind.pattern() {
        Pattern::Solid => "",
        Pattern::Rising => "M0 8L8 0",
        Pattern::Falling => "M0 0L8 8",
        Pattern::Crossed => "M0 8L8 0M0 0L8 8",
        Pattern::Horizontal => "M0 4H8",
        Pattern::Vertical => "M4 0V8",
        Pattern::Grid => "M0 4H8M4 0V8",
        Pattern::Dotted => "M3.2 4h1.6",
    };
    let _ = write!(
        out,
        "<pattern id=\"{}\" width=\"8\" height=\"8\" patternUnits=\"userSpaceOnUse\"><rect width=\"8\" height=\"8\" fill=\"{}\"/>",
        id(kind),
        kind.colour()
    );
    if !lines.is_empty() {
        let wide = if kind.pattern() == Pattern::Dotted { "1.6" } else { "1" };
        let _ = write!(
            out,
            "<path d=\"{lines}\" stroke=\"{}\" stroke-opacity=\"0.4\" stroke-width=\"{wide}\"/>",
            kind.ink()
        );
    }
    out.push_str("</pattern>\n");
}

/// A length with at most two digits after the point.
fn px(v: f64) -> String {
    let text = format!("{v:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Text as XML has it.
fn xml(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // No characters of XML.
    escape(&mut out, &printable(text).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}"));
    out
}
