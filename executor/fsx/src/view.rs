//! What a run looks like from outside: loss, speed, where the time of a step goes. Shown while it trains, and by
//! `fsx top` from the run's status file.

use std::fmt::Write as _;

use fs_executor::StepEvent;
use fs_schedule::Engine;
use serde::{Deserialize, Serialize};

/// Weight of a new step in the means that are shown.
const SMOOTH: f64 = 0.1;
/// What a step's time goes to, with the pattern of each.
const PARTS: [(&str, char); 5] =
    [("compute", '█'), ("exposed", '▓'), ("straggler", '▒'), ("host", '░'), ("other", '·')];
/// Columns of a bar that there should be room for.
const BAR: usize = 24;

/// The state of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct View {
    /// The model and how it runs.
    pub(crate) title: String,
    /// `training`, `evaluating`, `done`, `interrupted`, `failed`.
    pub(crate) what: String,
    /// Steps or batches.
    pub(crate) done: u64,
    /// Of how many.
    pub(crate) total: u64,
    /// Of those done, how many were before this began.
    #[serde(default)]
    pub(crate) before: u64,
    /// Seconds since it began.
    pub(crate) elapsed: f64,
    /// Tokens so far.
    pub(crate) tokens: u64,
    /// Mean over the last steps.
    pub(crate) loss: Option<f64>,
    /// Times of a step.
    pub(crate) step: Option<Times>,
}

/// Times of a step in milliseconds: means over ranks and the last steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    /// From when all ranks had ended a step until all have ended the next.
    pub(crate) whole: f64,
    /// What it goes to: compute, and what compute waited for: exposed communication, ranks that came later, the
    /// host, anything else.
    pub(crate) parts: [f64; 5],
    /// Work of each engine.
    pub(crate) engines: Vec<(Engine, f64)>,
}

impl View {
    /// Nothing more will happen.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.what.as_str(), "done" | "interrupted" | "failed")
    }

    /// Begins training or evaluation, or goes on with it.
    pub(crate) fn begin(&mut self, what: &str, done: u64, total: u64) {
        let title = std::mem::take(&mut self.title);
        *self = Self { title, what: what.into(), done, before: done, total, ..Self::default() };
    }

    /// A step is done; `engines` are those of the program.
    pub(crate) fn step(&mut self, event: &StepEvent, engines: &[Engine]) {
        let mean = |old: f64, new: f64| old + SMOOTH * (new - old);
        let loss = event.loss();
        self.loss = Some(self.loss.map_or(loss, |old| mean(old, loss)));
        let now = Times {
            whole: 1e3 * event.seconds,
            parts: [event.compute, event.exposed, event.waited, event.host, event.other].map(|s| 1e3 * s),
            engines: engines.iter().zip(event.busy).map(|(engine, s)| (*engine, 1e3 * s)).collect(),
        };
        match &mut self.step {
            None => self.step = Some(now),
            Some(times) => {
                times.whole = mean(times.whole, now.whole);
                for (old, new) in times.parts.iter_mut().zip(now.parts) {
                    *old = mean(*old, new);
                }
                // What was done in the first step is not known.
                if times.engines.iter().all(|(_, ms)| *ms == 0.0) {
                    times.engines = now.engines;
                    return;
                }
                for (old, new) in times.engines.iter_mut().zip(now.engines) {
                    old.1 = mean(old.1, new.1);
                }
            }
        }
    }

    /// A batch is done.
    pub(crate) fn advance(&mut self, tokens: u64, elapsed: f64) {
        self.done += 1;
        self.tokens += tokens;
        self.elapsed = elapsed;
    }

    /// Seconds until it ends at the mean speed so far.
    fn left(&self) -> f64 {
        self.elapsed / self.done.saturating_sub(self.before).max(1) as f64
            * self.total.saturating_sub(self.done) as f64
    }

    fn speed(&self) -> String {
        let rate = self.tokens as f64 / self.elapsed.max(1e-9);
        let loss = self.loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let step = self.step.as_ref().map_or_else(String::new, |t| format!("step {}  ", duration(t.whole)));
        format!("{loss}{step}{} tokens/s", short(rate))
    }

    /// One line, where nothing can be refreshed.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("{} {}/{}  {}", self.what, self.done, self.total, self.speed());
        let _ = write!(line, "  eta {:.0} s", self.left());
        if let Some(times) = self.step.as_ref().filter(|times| times.known()) {
            let _ = write!(line, "  |");
            for ((name, _), ms) in PARTS.iter().zip(times.parts) {
                let _ = write!(line, " {name} {:.0}%", times.share(ms));
            }
        }
        line
    }

    /// Lines that fit into `width` columns.
    pub(crate) fn lines(&self, width: usize) -> Vec<String> {
        let mut lines = Vec::new();
        let head = format!("{} {}/{}", self.what, self.done, self.total);
        let tail = if self.ended() { String::new() } else { format!("eta {:.0} s", self.left()) };
        let room = width.saturating_sub(head.len() + tail.len() + 6);
        if room >= 4 {
            let full = (room as f64 * self.done as f64 / self.total.max(1) as f64) as usize;
            let full = full.min(room);
            lines.push(format!("{head}  [{}{}]  {tail}", "#".repeat(full), "-".repeat(room - full)));
        } else {
            lines.push(format!("{head}  {tail}"));
        }
        lines.push(self.speed());
        if let Some(times) = self.step.as_ref().filter(|times| times.known()) {
            let shares = PARTS.iter().zip(times.parts);
            let shares: Vec<String> =
                shares.map(|((name, fill), ms)| format!("{fill} {name} {:.0}%", times.share(ms))).collect();
            let room = width.saturating_sub(9 + 2);
            if room >= BAR {
                lines.push(format!("step     |{}|", times.bar(room)));
            }
            lines.extend(list("bubble", &shares, width));
            let busy: Vec<String> = times
                .engines
                .iter()
                .map(|(engine, ms)| format!("{} {:.0}%", engine.name(), times.share(*ms)))
                .collect();
            lines.extend(list("engines", &busy, width));
        }
        for line in &mut lines {
            *line = line.chars().take(width).collect();
        }
        lines
    }
}

impl Times {
    /// Whether it is known where time goes: while a GPU trains, the host only knows what it has enqueued.
    fn known(&self) -> bool {
        self.parts.iter().any(|ms| *ms > 0.0)
    }

    /// Percent of a rank's time, to which the parts add up.
    fn share(&self, ms: f64) -> f64 {
        let sum: f64 = self.parts.iter().sum();
        if sum > 0.0 { 100.0 * ms / sum } else { 0.0 }
    }

    /// The parts of a step as a bar.
    fn bar(&self, width: usize) -> String {
        let mut bar = String::new();
        let (mut sum, mut drawn) = (0.0, 0);
        for ((_, fill), ms) in PARTS.iter().zip(self.parts) {
            sum += self.share(ms) / 100.0;
            let until = ((sum * width as f64).round() as usize).clamp(drawn, width);
            bar.extend(std::iter::repeat_n(*fill, until - drawn));
            drawn = until;
        }
        bar.extend(std::iter::repeat_n(' ', width - drawn));
        bar
    }
}

/// A heading and what belongs to it, in as many lines as that takes.
fn list(heading: &str, items: &[String], width: usize) -> Vec<String> {
    let mut lines = vec![format!("{heading:<7}")];
    for item in items {
        let used = lines.last().map_or(0, |line| line.chars().count());
        if used > 9 && used + 2 + item.chars().count() > width {
            lines.push(" ".repeat(7));
        }
        if let Some(line) = lines.last_mut() {
            line.push_str("  ");
            line.push_str(item);
        }
    }
    lines
}

fn duration(ms: f64) -> String {
    match ms {
        ms if ms >= 1e4 => format!("{:.1} s", ms / 1e3),
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.2} ms"),
        ms => format!("{:.0} us", ms * 1e3),
    }
}

/// A rate for people: `12.3k`.
pub(crate) fn short(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.2}G", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(seconds: f64) -> StepEvent {
        let mut busy = [0.0; 6];
        (busy[0], busy[1], busy[2]) = (0.01 * seconds, 0.6 * seconds, 0.5 * seconds);
        StepEvent {
            contributions: vec![0.5, 0.25],
            seconds,
            compute: 0.6 * seconds,
            exposed: 0.2 * seconds,
            waited: 0.1 * seconds,
            other: 0.1 * seconds,
            busy,
            ..StepEvent::default()
        }
    }

    fn view() -> View {
        let mut view = View::default();
        view.begin("training", 0, 8);
        for _ in 0..2 {
            view.step(&event(0.01), &[Engine::Host, Engine::Compute, Engine::CopyOut]);
            view.advance(3000, 0.02);
        }
        view
    }

    #[test]
    fn a_view_of_a_step() {
        let lines = view().lines(60);
        assert_eq!(
            lines,
            [
                "training 2/8  [########---------------------------]  eta 0 s",
                "loss 0.7500  step 10.00 ms  300.0k tokens/s",
                "step     |█████████████████████████████▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒·····|",
                "bubble   █ compute 60%  ▓ exposed 20%  ▒ straggler 10%",
                "         ░ host 0%  · other 10%",
                "engines  host 1%  compute 60%  copy out 50%",
            ]
        );
        assert_eq!(
            view().line(),
            "training 2/8  loss 0.7500  step 10.00 ms  300.0k tokens/s  eta 0 s  | compute 60% exposed 20% straggler 10% host 0% other 10%"
        );
    }

    #[test]
    fn it_fits_any_width() {
        for width in 0..200 {
            let lines = view().lines(width);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {lines:?}");
        }
    }

    #[test]
    fn means_follow_slowly_and_begin_anew() {
        let mut view = view();
        view.step(&event(0.02), &[Engine::Host, Engine::Compute, Engine::CopyOut]);
        let times = view.step.clone().unwrap();
        assert!((times.whole - 11.0).abs() < 1e-9 && (times.parts[1] - 2.2).abs() < 1e-9, "{times:?}");
        view.begin("evaluating", 0, 3);
        assert_eq!((view.step.clone(), view.loss, view.done), (None, None, 0));
        assert_eq!(view.lines(80).len(), 2);
    }
}
