//! Progress on standard error: refreshed in place on a terminal, a line every few seconds elsewhere; and the status
//! file that `fsx top` shows.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use console::Term;
use fs_executor::{Observer, StepEvent};
use fs_schedule::Engine;
use fs_schedule::terminal::{entry, shown};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::top::{Status, dumb};
use crate::view::View;

/// Time between lines, where there is no terminal.
const LINES: Duration = Duration::from_secs(5);
/// Time between refreshes of the terminal, and of the status file.
const REFRESH: Duration = Duration::from_millis(100);
const STATUS: Duration = Duration::from_millis(500);

/// Shows how far a run is.
pub(crate) struct Progress {
    view: View,
    engines: Vec<Engine>,
    shown: Shown,
    status: Option<PathBuf>,
    /// Set at the first loss that is no number; without it there is a warning.
    stop: Option<Arc<AtomicBool>>,
    warned: bool,
    status_failed: bool,
    started: Instant,
    last_shown: Instant,
    last_status: Option<Instant>,
}

/// How it is shown.
enum Shown {
    /// In place. The bar draws nothing of its own: its message is the view.
    Terminal {
        width: Box<dyn Fn() -> usize>,
        bar: ProgressBar,
    },
    Lines,
    Nothing,
}

impl Progress {
    /// Of a model trained on these engines.
    pub(crate) fn new(title: String, engines: Vec<Engine>, status: Option<PathBuf>) -> Self {
        let term = Term::stderr();
        let shown = if term.is_term() && !dumb() {
            let width = move || usize::from(term.size().1);
            Self::terminal(ProgressDrawTarget::stderr(), Box::new(width))
        } else {
            Shown::Lines
        };
        Self::with(title, engines, status, shown)
    }

    /// Shows nothing, for `--quiet`.
    pub(crate) fn silent(title: String, engines: Vec<Engine>, status: Option<PathBuf>) -> Self {
        Self::with(title, engines, status, Shown::Nothing)
    }

    fn terminal(target: ProgressDrawTarget, width: Box<dyn Fn() -> usize>) -> Shown {
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        Shown::Terminal { width, bar }
    }

    fn with(title: String, engines: Vec<Engine>, status: Option<PathBuf>, shown: Shown) -> Self {
        let now = Instant::now();
        let view = View { title, ..View::default() };
        Self {
            view,
            engines,
            shown,
            status,
            stop: None,
            warned: false,
            status_failed: false,
            started: now,
            last_shown: now,
            last_status: None,
        }
    }

    /// Ends the run at the first loss that is no number, instead of a warning.
    pub(crate) fn ending(mut self, stop: Arc<AtomicBool>) -> Self {
        self.stop = Some(stop);
        self
    }

    fn begin(&mut self, what: &'static str, done: u64, total: u64) {
        self.view.begin(what, done, total);
        self.started = Instant::now();
        self.last_shown = self.started;
        self.last_status = None;
        self.tell();
    }

    fn advance(&mut self, tokens: u64) {
        self.view.advance(tokens, self.started.elapsed().as_secs_f64());
        let wait = match &self.shown {
            Shown::Terminal { .. } => REFRESH,
            Shown::Lines | Shown::Nothing => LINES,
        };
        if self.last_shown.elapsed() >= wait {
            self.last_shown = Instant::now();
            match &self.shown {
                Shown::Terminal { width, bar } => bar.set_message(self.view.lines(width()).join("\n")),
                Shown::Lines => drop(writeln!(io::stderr(), "{}", self.view.line())),
                Shown::Nothing => (),
            }
        }
        if self.last_status.is_none_or(|at| at.elapsed() >= STATUS) {
            self.tell();
        }
    }

    /// Writes the status file. A run does not end for want of one, but says so once.
    fn tell(&mut self) {
        let Some(path) = &self.status else { return };
        let written = Status::of(&self.view).write(path);
        self.last_status = Some(Instant::now());
        if let Err(e) = written
            && !std::mem::replace(&mut self.status_failed, true)
        {
            let text = format!("warning: cannot write the status {}: {e}", shown(path));
            self.say(&entry(&text));
        }
    }

    /// A line above the view.
    fn say(&self, text: &str) {
        match &self.shown {
            Shown::Terminal { bar, .. } => bar.println(text),
            // A warning is said however quiet the run is.
            Shown::Lines | Shown::Nothing => drop(writeln!(io::stderr(), "{text}")),
        }
    }

    /// The run is done, or was stopped: takes the view away.
    pub(crate) fn finish(&mut self, interrupted: bool) {
        self.end(if interrupted { "interrupted" } else { "done" });
    }

    fn end(&mut self, how: &str) {
        if let Shown::Terminal { bar, .. } = &self.shown {
            bar.finish_and_clear();
        }
        if !self.view.ended() {
            self.view.what = how.into();
            self.tell();
        }
    }
}

impl Observer for Progress {
    fn training(&mut self, done: u64, steps: u64) {
        self.begin("training", done, steps);
    }

    fn step(&mut self, event: &StepEvent) {
        let loss = event.loss();
        if !loss.is_finite() && !self.warned {
            self.warned = true;
            if let Some(stop) = &self.stop {
                stop.store(true, Ordering::Relaxed);
            } else {
                let text = format!(
                    "warning: the loss of step {} is {loss}; try a smaller learning rate",
                    event.step
                );
                self.say(&entry(&text));
            }
        }
        self.view.step(event, &self.engines);
        self.advance(event.tokens);
    }

    fn unusable(&mut self, step: u64, why: &str) {
        let text = format!(
            "warning: the checkpoint of step {step} is not kept: {why}, and no run could go on from it; try a smaller learning rate"
        );
        self.say(&entry(&text));
    }

    fn evaluating(&mut self, batches: u64) {
        self.begin("evaluating", 0, batches);
    }

    fn evaluated(&mut self, event: &StepEvent) {
        self.advance(event.tokens);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end("failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::InMemoryTerm;

    fn event(step: u64, loss: f64) -> StepEvent {
        let mut busy = [0.0; 6];
        busy[0] = 0.05;
        StepEvent {
            step,
            contributions: vec![loss],
            seconds: 0.1,
            compute: 0.05,
            exposed: 0.05,
            busy,
            ..StepEvent::default()
        }
    }

    #[test]
    fn a_terminal_is_refreshed_in_place_and_left_clean() {
        let term = InMemoryTerm::new(12, 80);
        let target = ProgressDrawTarget::term_like(Box::new(term.clone()));
        let shown = Progress::terminal(target, Box::new(|| 80));
        let mut progress = Progress::with("m".into(), vec![Engine::Compute], None, shown);
        progress.training(0, 50);
        for step in 0..20 {
            progress.step(&event(step, 0.5));
            std::thread::sleep(REFRESH / 4);
        }
        let seen = term.contents();
        let lines: Vec<&str> = seen.lines().collect();
        assert_eq!(lines.len(), 5, "one view, not several: {seen}");
        for (line, start) in
            lines.iter().zip(["training ", "loss 0.5", "step     |█", "bubble ", "engines  compute 50%"])
        {
            assert!(line.starts_with(start), "{start}: {seen}");
        }
        assert!(lines[3].contains("compute 50%") && lines[3].contains("exposed 50%"), "{seen}");
        progress.step(&event(20, f64::NAN));
        assert!(term.contents().contains("warning: the loss of step 20"), "{}", term.contents());
        progress.finish(false);
        let left = term.contents();
        assert!(!left.contains("bubble") && left.contains("warning"), "only the warning stays: {left}");
    }
}
