//! Why each operation stands where it stands, in a sentence: what it waited for, and how long it could have waited.

use fs_schedule::Engine;
use fs_schedule::action::Effect;

use super::graph::{Edge, Why};
use super::order::Chosen;
use super::problem::Problem;

/// Nanoseconds for people.
pub(crate) fn duration(ns: f64) -> String {
    match ns.abs() {
        x if x < 1e3 => format!("{ns:.0} ns"),
        x if x < 1e6 => format!("{:.1} us", ns / 1e3),
        x if x < 1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.3} s", ns / 1e9),
    }
}

/// `of 2 batches before`.
pub(crate) fn of_batch(distance: i32) -> String {
    match distance {
        0 => String::new(),
        1 => " of the batch before".into(),
        -1 => " of the next batch".into(),
        d if d > 0 => format!(" of {d} batches before"),
        d => format!(" of {} batches after", -d),
    }
}

/// A sentence for each operation of the problem.
pub(crate) fn explain(p: &Problem<'_>, chosen: &Chosen) -> Vec<String> {
    let all: Option<Vec<String>> = p.engine.iter().map(|e| p.policy.reason(*e).map(str::to_owned)).collect();
    if let Some(all) = all {
        return all;
    }
    let (c, graph) = (&chosen.candidate, &p.blocking);
    let mut on_cycle = vec![false; p.time.len()];
    for e in &p.rec_mii.cycle {
        on_cycle[e.to as usize] = true;
    }
    // Who ran before on the same engine, in the order of the list.
    let mut before: Vec<Option<u32>> = vec![None; p.time.len()];
    let mut last: std::collections::BTreeMap<(Engine, i32), u32> = std::collections::BTreeMap::new();
    for i in c.frozen.order.iter().chain(&c.frozen.order) {
        // Compute does all in the order of the list.
        let engine = p.engine[*i as usize];
        let queue = (engine, if engine == Engine::Compute { 0 } else { c.tiers.priority[*i as usize] });
        before[*i as usize] = last.insert(queue, *i).filter(|b| b != i);
    }
    let sentence = |i: usize| {
        let mut parts: Vec<String> = Vec::new();
        match c.frozen.stage[i] {
            0 => {}
            1 => parts.push("a batch ahead".into()),
            -1 => parts.push("a batch behind".into()),
            s if s > 0 => parts.push(format!("{s} batches ahead")),
            s => parts.push(format!("{} batches behind", -s)),
        }
        let end = |e: &Edge| {
            let from = e.from as usize;
            c.frozen.position[from] + graph.until(&p.time, from) as i64 - i64::from(e.distance) * c.frozen.ii
        };
        let binding = graph.before(i).iter().max_by_key(|e| (end(e), e.from));
        if let Some(e) = binding {
            parts.push(waits(p, e));
        }
        let ready = binding.map_or(c.frozen.position[i], end);
        if c.frozen.position[i] > ready
            && let Some(b) = before[i]
        {
            parts.push(format!("then behind `{}` on {}", p.op(b as usize).name, p.engine[i].name()));
        }
        if p.engine[i] == Engine::Compute {
            if c.tiers.priority[i] > 0 {
                parts.push("a queue of its own: nothing else waits until the host knows".into());
            }
        } else if c.tiers.priority[i] > 0 {
            parts.push("urgent, passes other transfers".into());
        } else if c.tiers.chunk[i].is_some() {
            parts.push("in chunks, so that urgent transfers pass".into());
        }
        parts.push(if on_cycle[i] {
            "on the longest cycle".into()
        } else if chosen.slack[i].is_finite() {
            format!("{} of slack", duration(chosen.slack[i]))
        } else {
            "not on any cycle".into()
        });
        parts.join("; ")
    };
    (0..p.time.len()).map(sentence).collect()
}

fn waits(p: &Problem<'_>, e: &Edge) -> String {
    let name = format!("`{}`{}", p.op(e.from as usize).name, of_batch(e.distance));
    match e.why {
        Why::Data | Why::Batch => format!("waits for {name}"),
        Why::FreshRows => format!("its rows may be updated by {name}"),
        Why::EarlyUpdate => format!("may update rows that {name} looks up"),
        Why::UpdateOrder => format!("rows are updated in batch order, after {name}"),
        Why::Parameter if p.op(e.to as usize).action.has(Effect::WritesParameter) => {
            format!("may not update what {name} reads")
        }
        Why::Parameter => format!("reads what {name} updates"),
        Why::Blocking => format!("the strategy waits for {name}"),
        Why::InFlight => format!("replaces the batch that {name} uses"),
        // It is only planned with.
        Why::Ahead => format!("the host learns it before {name}"),
        Why::Memory => format!("uses the memory of {name}"),
    }
}
