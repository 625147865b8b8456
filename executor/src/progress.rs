//! Progress on standard error: a bar on a terminal, a line every few seconds elsewhere.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use fs_executor::{Observer, StepEvent};
use indicatif::{ProgressBar, ProgressStyle};

/// Time between lines, where there is no bar.
const LINES: Duration = Duration::from_secs(5);
/// Weight of a new loss in the mean that is shown.
const SMOOTH: f64 = 0.1;

/// Shows how far a run is.
pub(crate) struct Progress {
    terminal: bool,
    bar: Option<ProgressBar>,
    what: &'static str,
    total: u64,
    done: u64,
    tokens: u64,
    loss: Option<f64>,
    warned: bool,
    started: Instant,
    last_line: Instant,
}

impl Progress {
    pub(crate) fn new(terminal: bool) -> Self {
        let now = Instant::now();
        Self {
            terminal,
            bar: None,
            what: "",
            total: 0,
            done: 0,
            tokens: 0,
            loss: None,
            warned: false,
            started: now,
            last_line: now,
        }
    }

    fn begin(&mut self, what: &'static str, total: u64) {
        self.finish();
        (self.what, self.total, self.done, self.tokens, self.loss) = (what, total, 0, 0, None);
        self.started = Instant::now();
        self.last_line = self.started;
        if self.terminal {
            let bar = ProgressBar::new(total);
            let template = "{prefix} {wide_bar} {pos}/{len} {msg} eta {eta}";
            bar.set_style(
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.set_prefix(what);
            self.bar = Some(bar);
        }
    }

    fn advance(&mut self, tokens: u64) {
        self.done += 1;
        self.tokens += tokens;
        let elapsed = self.started.elapsed();
        let rate = self.tokens as f64 / elapsed.as_secs_f64().max(1e-9);
        let loss = self.loss.map_or_else(String::new, |loss| format!("loss {loss:.4}  "));
        let message = format!("{loss}{} tokens/s", short(rate));
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(self.done);
        } else if self.last_line.elapsed() >= LINES {
            self.last_line = Instant::now();
            let left = elapsed.as_secs_f64() / self.done as f64 * self.total.saturating_sub(self.done) as f64;
            let _ = writeln!(
                io::stderr(),
                "{} {}/{}  {message}  eta {left:.0} s",
                self.what,
                self.done,
                self.total
            );
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress {
    fn training(&mut self, steps: u64) {
        self.begin("training", steps);
    }

    fn step(&mut self, event: &StepEvent) {
        let loss = event.loss();
        if !loss.is_finite() && !self.warned {
            self.warned = true;
            let text =
                format!("warning: the loss of step {} is {loss}; try a smaller learning rate", event.step);
            match &self.bar {
                Some(bar) => bar.println(text),
                None => drop(writeln!(io::stderr(), "{text}")),
            }
        }
        self.loss = Some(self.loss.map_or(loss, |mean| mean + SMOOTH * (loss - mean)));
        self.advance(event.tokens);
    }

    fn evaluating(&mut self, batches: u64) {
        self.begin("evaluating", batches);
    }

    fn evaluated(&mut self, event: &StepEvent) {
        self.advance(event.tokens);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
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
