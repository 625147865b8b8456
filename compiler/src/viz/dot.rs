//! The graph of operations for Graphviz: what needs what, in clusters by engine.
//!
//! Edges are the schedule's dependencies and the flow of values; those of the longest cycle are bold. An edge across
//! steps is labelled with its distance. Only edges within a batch order the picture from top to bottom: they have no
//! cycles. Large programs are drawn by groups: neighbours of one queue, kind and microbatch.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cells::printable;
use super::palette::Purpose;
use super::timeline::{OpView, Predecessor, Reason, Timeline, strategy_name};
use crate::sched::reasons::duration;

/// Operations from which on groups are drawn.
pub const MANY: usize = 400;

/// Groups from which on nothing is drawn: Graphviz would need minutes.
pub const MOST: usize = 1500;

/// Why there is no graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DotError {
    /// Too many nodes.
    #[error(
        "the graph has {ops} operations in {groups} groups, more than Graphviz can lay out ({MOST}); write an .html file instead, which can be searched and zoomed"
    )]
    Large {
        /// Operations.
        ops: usize,
        /// Groups that they make.
        groups: usize,
    },
}

/// A node of the graph.
#[derive(Debug)]
struct Group<'a> {
    first: &'a OpView,
    ops: usize,
    time: u64,
    on_cycle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    from: usize,
    to: usize,
    distance: i64,
}

/// The graph of a schedule.
pub fn draw(t: &Timeline) -> Result<String, DotError> {
    let (groups, of) = groups(t);
    if groups.len() > MOST {
        return Err(DotError::Large { ops: t.ops.len(), groups: groups.len() });
    }
    let mut out = String::new();
    let title = format!(
        "{}, {}: step {}, {} operations",
        t.model,
        strategy_name(t.strategy),
        duration(t.step),
        t.ops.len()
    );
    let _ = writeln!(out, "digraph {} {{", quoted(&t.model));
    let _ = writeln!(out, "  label={}; labelloc=t; fontname=\"Helvetica\"; rankdir=TB;", quoted(&title));
    // Ranks over all clusters at once; bounds on the search for the best places, which takes minutes without.
    out.push_str("  newrank=true; nslimit=2; nslimit1=2; mclimit=0.5;\n");
    out.push_str(
        "  node [shape=box, style=filled, fontname=\"Helvetica\", fontsize=10, margin=\"0.08,0.04\"];\n",
    );
    out.push_str("  edge [fontname=\"Helvetica\", fontsize=9, color=\"#59636e\", arrowsize=0.6];\n");
    for (l, lane) in t.lanes.iter().enumerate() {
        let members = groups.iter().enumerate().filter(|(_, g)| g.first.lane as usize == l);
        let members: Vec<(usize, &Group<'_>)> = members.collect();
        if members.is_empty() {
            continue;
        }
        let _ =
            writeln!(out, "  subgraph cluster_{l} {{\n    label={}; color=\"#b6bfc9\";", quoted(lane.name));
        for (i, g) in members {
            node(i, g, &mut out);
        }
        out.push_str("  }\n");
    }
    let cycle = cycle(t, &of);
    for (edge, reason) in edges(t, &of, &cycle) {
        let mut attributes: Vec<String> = Vec::new();
        match edge.distance {
            0 => {}
            d => {
                attributes.push(format!("xlabel=\"{d} step{}\"", if d.abs() == 1 { "" } else { "s" }));
            }
        }
        let (from, to) = (groups[edge.from].first.stage, groups[edge.to].first.stage);
        if i64::from(to) - i64::from(from) + edge.distance != 0 {
            attributes.push("constraint=false".into());
        }
        if cycle.contains_key(&edge) {
            attributes.push("penwidth=3, color=\"#000000\"".into());
        } else {
            match reason {
                Reason::Data | Reason::Parameter | Reason::Batch => {}
                Reason::Rows => attributes.push("style=dashed".into()),
                Reason::Order | Reason::Queue => attributes.push("style=dotted".into()),
            }
        }
        let _ = write!(out, "  n{} -> n{}", edge.from, edge.to);
        if !attributes.is_empty() {
            let _ = write!(out, " [{}]", attributes.join(", "));
        }
        out.push_str(";\n");
    }
    out.push_str("}\n");
    Ok(out)
}

fn node(i: usize, g: &Group<'_>, out: &mut String) {
    let stage = if g.first.stage == 0 { String::new() } else { format!(", batch {:+}", g.first.stage) };
    let name = if g.ops == 1 {
        printable(&g.first.name)
    } else {
        format!("{}: {} operations from {}", g.first.kind.name(), g.ops, printable(&g.first.name))
    };
    let label = quoted(&format!("{name}\n{}{stage}", duration(g.time as f64)));
    let border = if g.on_cycle { ", penwidth=3" } else { "" };
    let _ = writeln!(
        out,
        "    n{i} [label={label}, fillcolor=\"{}\", fontcolor=\"{}\"{border}];",
        g.first.kind.colour(),
        g.first.kind.ink()
    );
}

/// Nodes, and the node of each operation.
fn groups(t: &Timeline) -> (Vec<Group<'_>>, Vec<usize>) {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut of = Vec::with_capacity(t.ops.len());
    let mut open: BTreeMap<(u32, i32), usize> = BTreeMap::new();
    let key = |o: &OpView| -> (Purpose, i32, Option<u32>) { (o.kind, o.stage, o.microbatch) };
    for op in &t.ops {
        let queue = (op.lane, op.priority);
        let last =
            open.get(&queue).copied().filter(|g| t.ops.len() > MANY && key(groups[*g].first) == key(op));
        let at = last.unwrap_or(groups.len());
        if at == groups.len() {
            groups.push(Group { first: op, ops: 0, time: 0, on_cycle: false });
            open.insert(queue, at);
        }
        let group = &mut groups[at];
        group.ops += 1;
        group.time = group.time.saturating_add(op.time);
        group.on_cycle |= op.on_cycle;
        of.push(at);
    }
    (groups, of)
}

/// The edges of the longest cycle.
fn cycle(t: &Timeline, of: &[usize]) -> BTreeMap<Edge, Reason> {
    let mut edges = BTreeMap::new();
    for (i, link) in t.cycle.iter().enumerate() {
        let before = t.cycle[(i + t.cycle.len() - 1) % t.cycle.len()].op;
        let edge =
            Edge { from: of[before as usize], to: of[link.op as usize], distance: link.distance.into() };
        if edge.from != edge.to || edge.distance != 0 {
            edges.insert(edge, Reason::Order);
        }
    }
    edges
}

/// All edges with the most telling reason for each.
fn edges(t: &Timeline, of: &[usize], cycle: &BTreeMap<Edge, Reason>) -> BTreeMap<Edge, Reason> {
    let mut edges = cycle.clone();
    for (to, op) in t.ops.iter().enumerate() {
        // Nearly everything waits for its batch; that is shown where nothing else leads to it.
        let fed = op.deps.iter().any(|l| l.reason == Reason::Data);
        let shown =
            |l: &&Predecessor| l.stated || l.reason == Reason::Data || (l.reason == Reason::Batch && !fed);
        for l in op.deps.iter().filter(shown) {
            let edge = Edge { from: of[l.op as usize], to: of[to], distance: l.distance.into() };
            if edge.from == edge.to && edge.distance == 0 {
                continue;
            }
            let known = edges.entry(edge).or_insert(l.reason);
            *known = (*known).min(l.reason);
        }
    }
    edges
}

/// A quoted string of the DOT language.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
