//! The report as text for people.

use std::fmt::Write;

use fs_executor::Report;
use fs_executor::evaluate::Metrics;
use fs_executor::memory::human;
use fs_executor::report::by_action;

use crate::progress::short;

/// Kinds of operation listed without `--profile`.
const KINDS: usize = 6;

/// The summary at the end of a run; with `every_op` also the time of every operation.
pub(crate) fn text(report: &Report, every_op: bool) -> String {
    let mut text = String::new();
    // Writing into memory does not fail.
    let _ = write(&mut text, report, every_op);
    text
}

fn write(out: &mut String, r: &Report, every_op: bool) -> std::fmt::Result {
    let stopped =
        if r.interrupted { format!(" of {} (interrupted)", r.planned_steps) } else { String::new() };
    writeln!(
        out,
        "steps      {}{stopped} in {:.1} s, {} samples, {} tokens",
        r.steps, r.seconds, r.samples, r.tokens
    )?;
    if let (Some(first), Some(last)) = (r.loss.first(), r.loss.last()) {
        let tail = &r.loss[r.loss.len() - r.loss.len().div_ceil(10)..];
        let mean = tail.iter().sum::<f64>() / tail.len() as f64;
        writeln!(out, "loss       {first:.4} first, {last:.4} last, {mean:.4} mean of the last tenth")?;
    }
    let s = r.step_ms;
    writeln!(
        out,
        "step       {:.2} ms median, p10 {:.2}, p90 {:.2}, p99 {:.2}",
        s.median, s.p10, s.p90, s.p99
    )?;
    writeln!(
        out,
        "rate       {} tokens/s, {} samples/s",
        short(r.tokens_per_second),
        short(r.samples_per_second)
    )?;
    writeln!(
        out,
        "waits      {:.2} ms for other ranks, {:.2} ms for data (medians per step)",
        r.straggler_ms.median, r.data_wait_ms.median
    )?;
    let m = &r.memory;
    writeln!(
        out,
        "memory     {} peak = {:.2} x (tables {} + optimizer state {} + parameters {} + buffers {} + batches {})",
        human(r.peak_memory_bytes),
        m.peak_ratio,
        human(m.tables),
        human(m.optimizer_state),
        human(m.parameters),
        human(m.buffers),
        human(m.batches)
    )?;
    let kinds = by_action(&r.ops);
    let total: f64 = kinds.iter().map(|k| k.1).sum();
    if total > 0.0 {
        let list: Vec<String> = kinds
            .iter()
            .take(KINDS)
            .map(|(name, ms, _)| format!("{name} {:.0}%", 100.0 * ms / total))
            .collect();
        writeln!(out, "time       {}", list.join(", "))?;
    }
    if every_op {
        writeln!(out, "\n{:<40} {:>24} {:>12} {:>12}", "operation", "action", "ms/step", "waiting")?;
        for op in &r.ops {
            let n = op.count.max(1) as f64;
            writeln!(
                out,
                "{:<40} {:>24} {:>12.4} {:>12.4}",
                op.name,
                op.action,
                op.ms / n,
                op.waited_ms / n
            )?;
        }
    }
    if let Some(e) = &r.evaluation {
        writeln!(out, "\nheld-out items of {} users, ranked in {:.1} s", e.users, e.seconds)?;
        writeln!(out, "{:<24} {:>8} {:>8} {:>8}", "", "HR@10", "HR@50", "NDCG@10")?;
        let mut row = |name: &str, m: &Metrics| {
            writeln!(out, "{name:<24} {:>8.4} {:>8.4} {:>8.4}", m.hr_10, m.hr_50, m.ndcg_10)
        };
        row("model, unseen items", &e.model.unseen)?;
        row("popularity, unseen items", &e.popularity.unseen)?;
        row("model, all items", &e.model.all)?;
        row("popularity, all items", &e.popularity.all)?;
    }
    Ok(())
}
