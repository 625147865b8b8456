//! Pictures that stand still: text, SVG and DOT, as readers of these formats see them.

use std::collections::BTreeSet;

use fs_compiler::viz::{Timeline, dot, svg, text};
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_schedule::Schedule;

fn model(layers: u32) -> String {
    format!(
        "model m {{
  table items {{ rows 100_000  dim 16  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 50 }}
  input click: label like history
  let x = lookup(history)
  repeat {layers} as layers {{ x = x + linear(silu(linear(x, 64)), 16) }}
  loss bce_with_logits(linear(x, 1, name: \"head\"), click, normalize: tokens)
}}
train {{ batch 64  steps 2  optimizer sgd(lr: 0.1) }}
workload w {{ generate {{ lengths fixed(20)  ids zipf(1.05)  labels bernoulli(0.5) }} }}
cluster pair from local {{ nodes 2  gpus_per_node 1  inter {{ bandwidth 1 Gbit/s  latency 20 us }} }}
"
    )
}

fn compile(layers: u32, strategy: Strategy) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", &model(layers));
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let Some(program) = &loaded.program else { panic!("{rendered}") };
    match compile_with(program, &CompileOptions::new(strategy, 2)) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!("{e}"),
    }
}

fn timeline(s: &Schedule) -> Timeline {
    Timeline::of(s).unwrap_or_else(|e| panic!("{e}"))
}

/// Letters that would end a string, a line or an element in some format.
const HOSTILE: &str = "a\"b'<c>&d\\\n\u{1b}[31m]]>-->";

fn hostile() -> Schedule {
    let mut s = compile(1, Strategy::Pec);
    s.model = HOSTILE.into();
    for (i, op) in s.train.ops.iter_mut().enumerate() {
        op.name = format!("{HOSTILE}{i}");
        op.reason = HOSTILE.into();
    }
    s
}

fn plain(width: usize) -> text::Options {
    text::Options::new(width).ascii(true)
}

#[test]
fn text_of_a_serial_schedule() {
    insta::assert_snapshot!("inspect", text::draw(&timeline(&compile(1, Strategy::Serial)), &plain(80)));
}

#[test]
fn text_fits_its_width() {
    for s in [compile(1, Strategy::Pec), compile(3, Strategy::Serial)] {
        let t = timeline(&s);
        for width in [40, 57, 80, 200] {
            for steps in [1, 2, 7] {
                let shown = text::draw(&t, &plain(width).steps(steps));
                assert!(shown.is_ascii());
                let lanes: Vec<&str> = shown.lines().filter(|l| l.contains("% |")).collect();
                assert_eq!(lanes.len(), t.lanes.iter().filter(|l| !l.pieces.is_empty()).count());
                for lane in lanes {
                    assert_eq!(lane.len(), width, "{lane}");
                }
            }
        }
    }
}

/// Shares of letters against the schedule's own account of how long compute works on each kind.
#[test]
fn letters_are_in_proportion() {
    let t = timeline(&compile(2, Strategy::Serial));
    let shown = text::draw(&t, &plain(2000).steps(1));
    let lane = shown.lines().find(|l| l.starts_with("compute")).expect("a lane");
    let (_, row) = lane.split_once('|').expect("a row");
    let compute = t.lanes.iter().position(|l| l.name == "compute").expect("compute") as u32;
    for kind in t.kinds() {
        let of = |o: &&fs_compiler::viz::timeline::OpView| o.kind == kind && o.lane == compute;
        let work: u64 = t.ops.iter().filter(of).map(|o| o.time).sum();
        let letters = row.chars().filter(|c| c.to_ascii_uppercase() == kind.letter()).count();
        let (seen, told) = (letters as f64 / row.len() as f64, work as f64 / t.step);
        assert!((seen - told).abs() < 0.01, "{}: {seen} of the row, {told} of the step", kind.name());
    }
}

#[test]
fn colour_and_unicode_only_where_asked() {
    let t = timeline(&compile(1, Strategy::Pec));
    let plain_text = text::draw(&t, &plain(80));
    assert!(!plain_text.contains('\u{1b}'));
    let unicode = text::draw(&t, &text::Options::new(80));
    assert!(unicode.contains('│') && unicode.contains('·') && !unicode.contains('\u{1b}'));
    let coloured = text::draw(&t, &plain(80).colour(true));
    assert!(coloured.contains("\u{1b}[48;5;"));
    // The same letters, and no colour left on at the end of a line.
    let mut bare = String::new();
    for part in coloured.split('\u{1b}') {
        bare.push_str(if part.starts_with('[') {
            part.split_once('m').expect("a sequence ends").1
        } else {
            part
        });
    }
    assert_eq!(bare, plain_text);
    for line in coloured.lines().filter(|l| l.contains('\u{1b}')) {
        let last = line.rsplit('\u{1b}').next().expect("a sequence");
        assert!(last.starts_with("[0m"), "{line}");
    }
}

#[test]
fn text_of_hostile_names_stays_text() {
    let shown = text::draw(&timeline(&hostile()), &plain(80));
    assert!(!shown.contains('\u{1b}'));
    assert!(shown.lines().next().expect("a first line").contains("a\"b'<c>&d"));
}

fn draw(timelines: &[Timeline]) -> String {
    svg::draw(timelines, &svg::Options::default())
}

/// A number of an element's attribute.
fn number(node: roxmltree::Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name)
        .and_then(|v| v.parse().ok())
        .unwrap_or_else(|| panic!("{} has no {name}", node.tag_name().name()))
}

/// Boxes: fill, left edge, width, top.
fn boxes(doc: &roxmltree::Document<'_>) -> Vec<(String, f64, f64, f64)> {
    let filled = |n: &roxmltree::Node<'_, '_>| {
        n.has_tag_name(("http://www.w3.org/2000/svg", "rect"))
            && n.attribute("fill").is_some_and(|f| f.starts_with("url(#"))
            && n.children().any(|c| c.tag_name().name() == "title")
    };
    let of = |n: roxmltree::Node<'_, '_>| {
        (
            n.attribute("fill").unwrap_or_default().to_owned(),
            number(n, "x"),
            number(n, "width"),
            number(n, "y"),
        )
    };
    doc.descendants().filter(filled).map(of).collect()
}

#[test]
fn svg_is_well_formed_and_stays_on_its_page() {
    for pair in [vec![1], vec![1, 3], vec![20]] {
        let timelines: Vec<Timeline> = pair.iter().map(|n| timeline(&compile(*n, Strategy::Pec))).collect();
        let shown = draw(&timelines);
        let doc = roxmltree::Document::parse(&shown).unwrap_or_else(|e| panic!("{e}"));
        let root = doc.root_element();
        let (width, height) = (number(root, "width"), number(root, "height"));
        let boxes = boxes(&doc);
        assert!(boxes.len() > 5);
        let patterns: BTreeSet<String> = doc
            .descendants()
            .filter(|n| n.tag_name().name() == "pattern")
            .map(|n| format!("url(#{})", n.attribute("id").unwrap_or_default()))
            .collect();
        for (fill, x, w, y) in &boxes {
            assert!(patterns.contains(fill), "{fill} is defined");
            assert!(*x >= 0.0 && x + w <= width && *y >= 0.0 && y + 24.0 <= height);
        }
        for text in doc.descendants().filter(|n| n.tag_name().name() == "text") {
            assert!(number(text, "y") <= height);
        }
        // Nothing is fetched, nothing runs.
        assert!(!shown.replace("http://www.w3.org/2000/svg", "").contains("http"));
        assert!(!shown.contains("<script") && !shown.contains("<image"));
        assert!(shown.len() < 60 << 10, "{} bytes", shown.len());
    }
}

/// However many steps of the shorter one the longer one takes, as many are drawn as can be told apart.
#[test]
fn svg_of_unlike_steps_ends() {
    let said = "the first 200 steps";
    for (longer, cut) in [(10.0, false), (1e3, true), (1e9, true)] {
        let mut timelines = [Strategy::Serial, Strategy::Pec].map(|s| timeline(&compile(2, s)));
        timelines[0].step = longer * timelines[1].step;
        let shown = draw(&timelines);
        assert!(roxmltree::Document::parse(&shown).is_ok());
        assert_eq!(shown.contains(said), cut, "{longer}");
        assert!(shown.len() < 1 << 20, "{longer}: {} bytes", shown.len());
        timelines.reverse();
        assert_eq!(draw(&timelines).contains(said), cut, "{longer}");
    }
}

/// Both schedules on one axis: a step of each is as wide as it is long.
#[test]
fn svg_of_two_schedules_has_one_scale() {
    let timelines = [Strategy::Serial, Strategy::Pec].map(|s| timeline(&compile(2, s)));
    let shown = draw(&timelines);
    let doc = roxmltree::Document::parse(&shown).unwrap_or_else(|e| panic!("{e}"));
    // The dotted lines at the steps' starts: `M84 36V138`.
    let lines: Vec<(f64, f64)> = doc
        .descendants()
        .filter(|n| n.attribute("stroke-dasharray").is_some())
        .filter_map(|n| {
            let (x, rest) = n.attribute("d")?.strip_prefix('M')?.split_once(' ')?;
            Some((x.parse().ok()?, rest.split_once('V')?.0.parse().ok()?))
        })
        .collect();
    let tops: BTreeSet<u64> = lines.iter().map(|(_, y)| *y as u64).collect();
    let steps: Vec<f64> = tops
        .iter()
        .map(|top| {
            let mut x: Vec<f64> = lines.iter().filter(|l| l.1 as u64 == *top).map(|l| l.0).collect();
            x.sort_by(f64::total_cmp);
            x[1] - x[0]
        })
        .collect();
    assert_eq!(steps.len(), 2);
    let (seen, told) = (steps[0] / steps[1], timelines[0].step / timelines[1].step);
    assert!((seen / told - 1.0).abs() < 1e-3, "{seen} {told}");
    assert!(told > 1.0, "the serial schedule takes longer");
}

/// Boxes of a kind are as long as the work of that kind.
#[test]
fn svg_boxes_are_in_proportion() {
    let t = timeline(&compile(2, Strategy::Serial));
    let shown = svg::draw(std::slice::from_ref(&t), &svg::Options::default().steps(1));
    let doc = roxmltree::Document::parse(&shown).unwrap_or_else(|e| panic!("{e}"));
    let boxes = boxes(&doc);
    let axis = 960.0 - 84.0 - 14.0;
    for kind in t.kinds() {
        let work: u64 = t.ops.iter().filter(|o| o.kind == kind).map(|o| o.time).sum();
        let fill = format!("url(#k{})", kind.letter());
        let seen: f64 = boxes.iter().filter(|b| b.0 == fill).map(|b| b.2).sum::<f64>() / axis;
        let told = work as f64 / t.step;
        assert!((seen - told).abs() < 0.01, "{}: {seen} of the axis, {told} of the step", kind.name());
    }
}

#[test]
fn svg_and_dot_of_hostile_names_are_well_formed() {
    let t = timeline(&hostile());
    let shown = draw(std::slice::from_ref(&t));
    let doc = roxmltree::Document::parse(&shown).unwrap_or_else(|e| panic!("{e}"));
    let titles: Vec<String> = doc
        .descendants()
        .filter(|n| n.tag_name().name() == "title")
        .filter_map(|n| n.text().map(str::to_owned))
        .collect();
    assert!(titles.iter().any(|t| t.contains("a\"b'<c>&d\\\u{fffd}\u{fffd}[31m]]>-->")), "{titles:?}");
    let graph = dot::draw(&t).unwrap_or_else(|e| panic!("{e}"));
    let labels: Vec<String> = strings(&graph);
    assert!(labels.iter().any(|l| l.contains("a\\\"b'<c>&d\\\\")), "{labels:?}");
    assert!(!graph.contains('\u{1b}'));
}

/// The quoted strings of DOT; what is outside of them must be plain words and punctuation.
fn strings(graph: &str) -> Vec<String> {
    let mut strings = Vec::new();
    let mut letters = graph.chars();
    while let Some(c) = letters.next() {
        if c != '"' {
            assert!(c.is_ascii_alphanumeric() || " \n{}[];=,->_.".contains(c), "`{c}` outside of a string");
            continue;
        }
        let mut text = String::new();
        loop {
            match letters.next().expect("a string ends") {
                '"' => break,
                '\\' => text.extend(['\\', letters.next().expect("a letter after a backslash")]),
                c => {
                    assert_ne!(c, '\n', "a string stays on its line");
                    text.push(c);
                }
            }
        }
        strings.push(text);
    }
    strings
}

#[test]
fn dot_has_every_operation_and_the_cycle() {
    let t = timeline(&compile(2, Strategy::Pec));
    let graph = dot::draw(&t).unwrap_or_else(|e| panic!("{e}"));
    let labels = strings(&graph);
    for op in &t.ops {
        assert!(labels.iter().any(|l| l.starts_with(&format!("{}\\n", op.name))), "{}", op.name);
    }
    for lane in t.lanes.iter().filter(|l| !l.pieces.is_empty()) {
        assert!(labels.iter().any(|l| l == lane.name), "{}", lane.name);
    }
    let bold = graph.lines().filter(|l| l.contains("->") && l.contains("penwidth=3")).count();
    assert!(!t.cycle.is_empty() && bold == t.cycle.len(), "{bold} of {}", t.cycle.len());
    let across = graph.lines().filter(|l| l.contains("->") && l.contains("xlabel=\"1 step\"")).count();
    assert!(across > 0);
    assert_eq!(graph.matches('{').count(), graph.matches('}').count());
}

#[test]
fn large_graphs_are_grouped_and_larger_ones_refused() {
    let t = timeline(&compile(60, Strategy::Serial));
    assert!(t.ops.len() > dot::MANY);
    let graph = dot::draw(&t).unwrap_or_else(|e| panic!("{e}"));
    let nodes = graph.lines().filter(|l| l.trim_start().starts_with('n') && l.contains("[label=")).count();
    assert!(nodes < 40, "{nodes}");
    assert!(graph.contains("backward: "));
    // The graph of one operation after the other, each of its own kind.
    let mut many = timeline(&compile(1, Strategy::Serial));
    let op = many.ops[0].clone();
    for i in 0..2 * dot::MOST as i32 {
        let stage = i % 2;
        many.ops.push(fs_compiler::viz::timeline::OpView { stage, ..op.clone() });
    }
    let e = dot::draw(&many).expect_err("too large");
    assert!(e.to_string().contains(".html"), "{e}");
}

#[test]
fn same_schedule_same_bytes() {
    let both = || [Strategy::Serial, Strategy::Pec].map(|s| timeline(&compile(1, s)));
    assert_eq!(draw(&both()), draw(&both()));
    let [_, t] = both();
    assert_eq!(dot::draw(&t), dot::draw(&both()[1]));
}
