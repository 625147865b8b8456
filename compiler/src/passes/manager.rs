//! Runs a pipeline of passes: verification after each, printing, timing, and a reproducer when one crashes.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{Options, Pass, Statistics, find};
use crate::ir::{Module, verify};

/// A pass with its options.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The pass.
    pub pass: &'static Pass,
    /// Options by name.
    pub options: Options,
}

/// A pipeline that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PipelineError {
    /// No such pass.
    #[error("there is no pass `{name}`; passes are: {known}")]
    UnknownPass {
        /// As written.
        name: String,
        /// All passes.
        known: String,
    },
    /// No such option.
    #[error("pass `{pass}` has no option `{option}`")]
    UnknownOption {
        /// The pass.
        pass: &'static str,
        /// As written.
        option: String,
    },
    /// Not of the form `a,b{k=v}`.
    #[error("pipeline `{text}` is not of the form a,b{{key=value}}")]
    Syntax {
        /// As written.
        text: String,
    },
}

/// Parses `a,b{k=v,l=w}`.
pub fn parse_pipeline(text: &str) -> Result<Vec<Stage>, PipelineError> {
    let syntax = || PipelineError::Syntax { text: text.into() };
    let mut stages = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '{']).unwrap_or(rest.len());
        let name = rest[..end].trim();
        let pass = find(name).ok_or_else(|| PipelineError::UnknownPass {
            name: name.into(),
            known: super::PASSES.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
        })?;
        rest = &rest[end..];
        let mut options = Options::new();
        if let Some(body) = rest.strip_prefix('{') {
            let close = body.find('}').ok_or_else(syntax)?;
            for pair in body[..close].split(',').filter(|p| !p.trim().is_empty()) {
                let (key, value) = pair.split_once('=').ok_or_else(syntax)?;
                let key = key.trim();
                if !pass.options.iter().any(|(o, ..)| *o == key) {
                    return Err(PipelineError::UnknownOption { pass: pass.name, option: key.into() });
                }
                options.insert(key.into(), value.trim().into());
            }
            rest = body[close + 1..].trim_start();
        }
        stages.push(Stage { pass, options });
        rest = match rest.strip_prefix(',') {
            Some(more) if !more.trim().is_empty() => more.trim_start(),
            None if rest.is_empty() => rest,
            _ => return Err(syntax()),
        };
    }
    Ok(stages)
}

/// A pipeline as text, which parses back.
pub fn pipeline_text(stages: &[Stage]) -> String {
    let one = |s: &Stage| {
        let options: Vec<String> = s.options.iter().map(|(k, v)| format!("{k}={v}")).collect();
        if options.is_empty() {
            s.pass.name.to_owned()
        } else {
            format!("{}{{{}}}", s.pass.name, options.join(","))
        }
    };
    stages.iter().map(one).collect::<Vec<_>>().join(",")
}

/// After which passes a module is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Print {
    /// None.
    Never,
    /// Those that changed it.
    Changes,
    /// All.
    All,
}

/// What to do beside running.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Verify the module after every pass.
    pub verify_each: bool,
    /// After which passes to print the module.
    pub print: Print,
    /// Print the module after a pass that failed.
    pub print_after_failure: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { verify_each: true, print: Print::Never, print_after_failure: false }
    }
}

/// What a run says.
#[derive(Debug, Default)]
pub struct Log {
    /// Printed modules, for standard error.
    pub text: String,
    /// Time and counters of each pass.
    pub passes: Vec<(&'static str, Duration, Statistics)>,
}

/// A pipeline that stopped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pass `{pass}` {what}")]
pub struct RunError {
    /// The pass.
    pub pass: &'static str,
    /// What happened.
    pub what: String,
    /// Textual IR that makes it happen again, headed by the rest of the pipeline.
    pub reproducer: String,
}

/// Runs passes in order.
pub fn run(module: &mut Module, stages: &[Stage], settings: Settings, log: &mut Log) -> Result<(), RunError> {
    for (i, stage) in stages.iter().enumerate() {
        // Text takes longer than most passes: it is made where it is asked for.
        let before = module.clone();
        let started = Instant::now();
        let mut statistics = Statistics::default();
        let outcome =
            catch_unwind(AssertUnwindSafe(|| (stage.pass.run)(module, &stage.options, &mut statistics)));
        let mut failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(e)) => Some(format!("failed: {e}")),
            Err(_) => Some("crashed: this is a defect of the compiler".to_owned()),
        };
        if failure.is_none() && settings.verify_each {
            let errors = verify::verify(module);
            if !errors.is_empty() {
                failure = Some(format!("left an invalid module:\n{}", verify::render(module, &errors)));
            }
        }
        log.passes.push((stage.pass.name, started.elapsed(), statistics));
        if let Some(what) = failure {
            if settings.print_after_failure {
                let _ = writeln!(log.text, "// after {} (failed)\n{module}", stage.pass.name);
            }
            let reproducer = format!("// fsc opt --pipeline \"{}\"\n{before}", pipeline_text(&stages[i..]));
            return Err(RunError { pass: stage.pass.name, what, reproducer });
        }
        if settings.print != Print::Never {
            let (before, after) = (before.to_string(), module.to_string());
            if settings.print == Print::All || after != before {
                let same = if after == before { " (no change)\n".to_owned() } else { format!("\n{after}") };
                let _ = write!(log.text, "// after {}{same}", stage.pass.name);
            }
        }
    }
    Ok(())
}
