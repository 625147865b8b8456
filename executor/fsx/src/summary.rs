//! The report as text for people.

use std::fmt::Write;
use std::path::PathBuf;

use fs_executor::Report;
use fs_executor::compare::Comparison;
use fs_executor::data::Truncation;
use fs_executor::device::CopyUse;
use fs_executor::evaluate::Metrics;
use fs_executor::report::{
    Accounting, Balance, Checkpoints, Clock, FittedCosts, Longest, Meeting, Truncations, by_action,
};
use fs_executor::units::{grouped, human};
use fs_schedule::terminal::shown;

use crate::view::short;

/// Kinds of operation listed without `--profile`.
const KINDS: usize = 6;

/// The summary at the end of a run; with `every_op` also the time of every operation.
pub(crate) fn text(report: &Report, every_op: bool) -> String {
    let mut text = String::new();
    // Writing into memory does not fail.
    let _ = write(&mut text, report, every_op);
    text
}

/// What carried out copies.
fn engines(out: &mut String, copies: &CopyUse) -> std::fmt::Result {
    writeln!(
        out,
        "copies     on {}, which has {} copy engines beside {} multiprocessors",
        copies.device, copies.copy_engines, copies.multiprocessors
    )?;
    for t in &copies.transfers {
        writeln!(
            out,
            "           {}: {} {} by {}, {}, {:.3} ms",
            t.operation,
            t.copies,
            t.way,
            t.by,
            human(t.bytes),
            t.nanoseconds as f64 * 1e-6
        )?;
    }
    Ok(())
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
    if let Some(cut) = truncation(&r.truncation) {
        writeln!(out, "window     {cut}")?;
    }
    let s = r.step_ms;
    writeln!(
        out,
        "step       {:.2} ms median of all steps, p10 {:.2}, p90 {:.2}, p99 {:.2}",
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
    if let Some(b) = &r.balance {
        balance(out, b)?;
    }
    if let Some(c) = &r.checkpoints {
        checkpoints(out, c)?;
    }
    if let Some(copies) = &r.copies {
        engines(out, copies)?;
    }
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
    accounts(out, &r.accounting)?;
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

/// What was left on the way.
fn checkpoints(out: &mut String, c: &Checkpoints) -> std::fmt::Result {
    let Some(newest) = c.newest else { return writeln!(out, "checkpoint none") };
    write!(
        out,
        "checkpoint {} written, the newest after step {newest} ({}), in {:.1} s each; {} rows put aside",
        c.written,
        human(c.bytes),
        c.seconds,
        grouped(c.rows_aside)
    )?;
    if c.step_ms.median > 0.0 && c.others_ms.median > 0.0 {
        let (beside, others) = (c.step_ms.median, c.others_ms.median);
        write!(out, ", steps meanwhile {beside:.2} ms, others {others:.2} (medians)")?;
    }
    if c.waited_ms >= 1.0 {
        write!(out, ", updates waited {:.0} ms for room", c.waited_ms)?;
    }
    if c.left_out > 0 {
        write!(out, "; {} left out, because the one before was still being written", c.left_out)?;
    }
    writeln!(out)?;
    if let Some(best) = &c.best {
        let place = shown(&best.path);
        writeln!(out, "best       {} {:.4} after step {}: {place}", best.metric, best.score, best.step)?;
    }
    Ok(())
}

/// What giving samples to ranks bought.
fn balance(out: &mut String, b: &Balance) -> std::fmt::Result {
    write!(out, "balance    ")?;
    let batch = (b.waiting, b.waiting_at_home);
    let parts = (b.waiting_in_microbatches, b.waiting_in_microbatches_at_home);
    let (own, other) = match b.meeting {
        Meeting::Batch => (batch, parts),
        Meeting::Microbatch => (parts, batch),
    };
    let of = |meeting: Meeting| match meeting {
        Meeting::Microbatch => format!("in each of {} microbatches", b.microbatches),
        Meeting::Batch => "once a batch".into(),
    };
    let meet = if b.microbatches > 1 { format!(", {}", of(b.meeting)) } else { String::new() };
    let moved = b.moved_samples > 0.0;
    if moved || own.1 > own.0 + 5e-4 {
        write!(
            out,
            "ranks wait {:.1}% of a step for the slowest{meet}, {:.1}% if samples had stayed; ",
            100.0 * own.0,
            100.0 * own.1
        )?;
        if moved {
            let (share, bytes) = (100.0 * b.moved_share, human(b.moved_bytes.max(0.0) as u64));
            write!(out, "{share:.1}% of them moved, {bytes} a step")?;
        } else {
            write!(out, "none moved to another rank")?;
        }
    } else if own.0 < 5e-4 {
        write!(out, "samples cost the ranks the same, nothing moved")?;
    } else {
        write!(
            out,
            "nothing moved: ranks wait {:.1}% of a step for the slowest{meet}, with any plan at least {:.1}%",
            100.0 * own.0,
            100.0 * b.waiting_at_least
        )?;
    }
    writeln!(out, "; planned in {:.2} ms", b.planning_ms)?;
    if b.microbatches > 1 && other.1 > 5e-4 {
        let meeting = if b.meeting == Meeting::Batch { Meeting::Microbatch } else { Meeting::Batch };
        writeln!(
            out,
            "           if they met {}: {:.1}%, {:.1}% if samples had stayed",
            of(meeting),
            100.0 * other.0,
            100.0 * other.1
        )?;
    }
    if let Some(Longest { step, sample, tokens }) = b.longest {
        writeln!(
            out,
            "           sample {sample} of {} {} bounds step {step}; one sample bounds {} of {} steps",
            grouped(tokens),
            if tokens == 1 { "id" } else { "ids" },
            b.bounded_batches,
            b.batches
        )?;
    }
    if let Some(f) = &b.fitted {
        fitted(out, f)?;
    }
    Ok(())
}

/// Costs by measured times.
fn fitted(out: &mut String, f: &FittedCosts) -> std::fmt::Result {
    write!(out, "           fitted: a sample takes {:.2} us", 1e-3 * f.cost.constant)?;
    for group in &f.cost.groups {
        write!(out, " + {:.3} ns L + {:.5} ns L^2", group.linear, group.square)?;
    }
    write!(out, ", a rank {:.2} us more", 1e-3 * f.step_ns)?;
    if let (Some(given), Some(fitted)) = (f.waiting_given, f.waiting_fitted) {
        write!(out, "; by measured work ranks wait {:.1}%, {:.1}% before", 100.0 * fitted, 100.0 * given)?;
    }
    writeln!(out, "; times of ranks are off by {:.1}%", 100.0 * f.off)
}

/// What sequences lose by truncation, if they do.
pub(crate) fn truncation(cut: &Truncations) -> Option<String> {
    let of = |what: &str, window: Option<Truncation>| {
        let window = window.filter(|w| w.left_out > 0)?;
        let share = 100.0 * window.share();
        Some(format!("{share:.1}% of {} tokens of {what}", short(window.tokens as f64)))
    };
    let parts = [of("training", cut.training), of("evaluation", cut.evaluation)];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let cut = format!("{} lie outside of the inputs' `max` and are left out", parts.join(" and "));
    (!parts.is_empty()).then_some(cut)
}

/// Collectives listed with their exposed communication.
const COLLECTIVES: usize = 4;

/// Where a step's time went, beside the prediction.
fn accounts(out: &mut String, a: &Accounting) -> std::fmt::Result {
    if a.steps == 0 {
        return Ok(());
    }
    let of = a.predicted.as_ref();
    let head = of.map_or_else(String::new, |p| format!("predicted ({})", p.cluster));
    let clock = match a.clock {
        Clock::Host => "medians of steps in full flow, ms".to_owned(),
        Clock::Device => format!("medians of {} steps, GPU's clock, ms", a.steps),
    };
    writeln!(out, "\n{clock:<33} {:>11} {head:>24}", "measured")?;
    let mut row = |name: &str, measured: f64, predicted: Option<f64>| {
        let predicted = predicted.map_or_else(String::new, |p| format!("{p:.3}"));
        writeln!(out, "{name:<32} {measured:>12.3} {predicted:>24}")
    };
    let busy = |engine| of.and_then(|p| p.engines.iter().find(|e| e.engine == engine)).map(|e| e.ms);
    row("step", a.step_ms, of.map(|p| p.step_ms))?;
    for time in &a.engines {
        row(&format!("{} busy", time.engine.name()), time.ms, busy(time.engine))?;
    }
    row("exposed communication", a.exposed_ms, of.map(|p| p.bubble_ms))?;
    for exposed in a.exposed.iter().take(COLLECTIVES).filter(|e| e.ms > 0.0005) {
        row(&format!("  {}", exposed.op), exposed.ms, None)?;
    }
    row("waiting for slower ranks", a.straggler_ms, None)?;
    row("waiting for the host", a.host_ms, None)?;
    row("waiting for anything else", a.other_ms, None)?;
    for rows in &a.rows {
        let distance = rows.distance.map_or_else(|| "farther".into(), |d| format!("distance {d}"));
        let first = match (rows.microbatch, rows.microbatches) {
            (0, _) => String::new(),
            (first, 1) => format!(", microbatch {first}"),
            (first, several) => format!(", microbatches {first} to {}", first + several - 1),
        };
        let name = format!("rows of {}, {distance}{first}", rows.table);
        writeln!(out, "{name:<32} {:>11.1}%", 100.0 * rows.share)?;
    }
    for owners in &a.owners {
        let name = format!("busiest owner of {} ({})", owners.table, owners.placement);
        writeln!(out, "{name:<32} {:>12.3} x the mean", owners.busiest)?;
    }
    writeln!(out)
}

/// What `fsx compare` says.
pub(crate) fn comparison(c: &Comparison, files: &[PathBuf]) -> String {
    let mut text = String::new();
    // Writing into memory does not fail.
    let _ = write_comparison(&mut text, c, files);
    text
}

fn write_comparison(out: &mut String, c: &Comparison, files: &[PathBuf]) -> std::fmt::Result {
    writeln!(out, "{} steps on {} rank(s), in turns; times in ms\n", c.steps, c.ranks)?;
    writeln!(
        out,
        "{:<12} {:>9} {:>17} {:>9} {:>9} {:>9} {:>9} {:>7} {:>15}  {:<6} schedule",
        "strategy",
        "step",
        "p10 to p90",
        "exposed",
        "straggler",
        "compute",
        "predicted",
        "ratio",
        "its range",
        "equal"
    )?;
    for (i, (row, file)) in c.schedules.iter().zip(files).enumerate() {
        let strategy = format!("{:?}", row.strategy).to_lowercase();
        let strategy =
            if row.microbatches > 1 { format!("{strategy} x {}", row.microbatches) } else { strategy };
        let (step, ratio) = (row.step_ms, row.ratio);
        // Of blocks in which the pipeline was never full, only the step is known.
        let full = |ms: f64| if row.compute_ms > 0.0 { format!("{ms:.3}") } else { "-".into() };
        writeln!(
            out,
            "{strategy:<12} {:>9.3} {:>17} {:>9} {:>9} {:>9} {:>9} {:>7.3} {:>15}  {:<6} {}",
            step.median,
            if c.rounds > 1 { format!("{:.2} to {:.2}", step.p10, step.p90) } else { "one block".into() },
            full(row.exposed_ms),
            full(row.straggler_ms),
            full(row.compute_ms),
            row.predicted_ms.map_or_else(|| "-".into(), |p| format!("{p:.3}")),
            ratio.median,
            if c.rounds > 1 { format!("{:.3} to {:.3}", ratio.min, ratio.max) } else { "-".into() },
            match (i, row.equal) {
                (0, _) => "",
                (_, true) => "yes",
                (_, false) => "NO",
            },
            shown(file)
        )?;
    }
    writeln!(out)?;
    if c.equal {
        return writeln!(out, "equal    losses, tables, parameters and optimizer states, in every bit");
    }
    for (row, file) in c.schedules.iter().zip(files).skip(1).filter(|(row, _)| !row.equal) {
        let file = shown(file);
        match row.loss_differs_at {
            Some(step) => writeln!(
                out,
                "DIFFERENT  {file}: losses, from step {step} on, by at most {:.1e} relative",
                row.loss_difference
            )?,
            None => writeln!(out, "equal    {file}: losses")?,
        }
        for name in &row.different {
            writeln!(out, "DIFFERENT  {file}: {name}")?;
        }
    }
    Ok(())
}
