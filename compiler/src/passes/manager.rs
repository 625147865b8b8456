//! Runs a pipeline of passes: verification after each, printing, timing, and a reproducer when one goes wrong.
//!
//! A pass that panics stops the pipeline, not the process. The module is copied once, before the first pass; when a
//! pass goes wrong, the passes before it run again on the copy, and what they make is the *reproducer*: the IR before
//! the failing pass, headed by the rest of the pipeline, so `fsc opt REPRODUCER` fails the same way. Passes are
//! deterministic, and a pipeline that succeeds pays for one copy instead of one per pass.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{Options, Pass, PassError, Statistics, find};
use crate::ir::{Module, verify};

/// A pass with its options.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The pass.
    pub pass: &'static Pass,
    /// Options by name.
    pub options: Options,
}

impl PartialEq for Stage {
    fn eq(&self, other: &Self) -> bool {
        (self.pass.name, &self.options) == (other.pass.name, &other.options)
    }
}

/// A pipeline that is not one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
    #[error("pass `{pass}` has no option `{option}`; its options are: {known}")]
    UnknownOption {
        /// The pass.
        pass: &'static str,
        /// As written.
        option: String,
        /// All options.
        known: String,
    },
    /// An option with two values.
    #[error("option `{option}` of pass `{pass}` is given twice")]
    OptionTwice {
        /// The pass.
        pass: &'static str,
        /// The option.
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
    let names = |list: &mut dyn Iterator<Item = &'static str>| match list.collect::<Vec<_>>() {
        list if list.is_empty() => "none".to_owned(),
        list => list.join(", "),
    };
    let mut stages = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.find([',', '{']).unwrap_or(rest.len());
        let name = rest[..end].trim();
        if name.is_empty() {
            return Err(syntax());
        }
        let pass = find(name).ok_or_else(|| PipelineError::UnknownPass {
            name: name.into(),
            known: names(&mut super::PASSES.iter().map(|p| p.name)),
        })?;
        rest = &rest[end..];
        let mut options = Options::new();
        if let Some(body) = rest.strip_prefix('{') {
            let close = body.find('}').ok_or_else(syntax)?;
            for pair in body[..close].split(',').filter(|p| !p.trim().is_empty()) {
                let (key, value) = pair.split_once('=').ok_or_else(syntax)?;
                let key = key.trim();
                if !pass.options.iter().any(|(o, ..)| *o == key) {
                    return Err(PipelineError::UnknownOption {
                        pass: pass.name,
                        option: key.into(),
                        known: names(&mut pass.options.iter().map(|(o, ..)| *o)),
                    });
                }
                if options.insert(key.into(), value.trim().into()).is_some() {
                    return Err(PipelineError::OptionTwice { pass: pass.name, option: key.into() });
                }
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
pub(crate) fn pipeline_text(stages: &[Stage]) -> String {
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

/// Starts the first line of a reproducer; a pipeline in quotes follows, then options.
const HEAD: &str = "// fsc opt --pipeline \"";
/// Ends it where the module was not verified after each pass.
const UNVERIFIED: &str = " --verify-each=false";

/// What the first line of a reproducer asks for: its pipeline, and whether to verify after each pass.
pub fn reproduces(text: &str) -> Option<(&str, bool)> {
    let (pipeline, options) = text.lines().next()?.strip_prefix(HEAD)?.split_once('"')?;
    Some((pipeline, options != UNVERIFIED))
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
#[non_exhaustive]
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

impl Settings {
    /// With or without a verification after every pass.
    #[must_use]
    pub fn verify_each(mut self, verify_each: bool) -> Self {
        self.verify_each = verify_each;
        self
    }

    /// With modules printed after these passes.
    #[must_use]
    pub fn print(mut self, print: Print) -> Self {
        self.print = print;
        self
    }

    /// With the module printed that a pass failed on.
    #[must_use]
    pub fn print_after_failure(mut self, print_after_failure: bool) -> Self {
        self.print_after_failure = print_after_failure;
        self
    }
}

/// What a run says.
#[derive(Debug, Default)]
pub struct Log {
    /// Printed modules, for standard error.
    pub text: String,
    /// What each pass took and counted, in order.
    pub(crate) passes: Vec<Record>,
}

/// One pass of a run.
#[derive(Debug)]
pub(crate) struct Record {
    /// Its name.
    pub name: &'static str,
    /// Its own time.
    pub time: Duration,
    /// Time of the verification after it.
    pub verification: Duration,
    /// Its counters; those that it never touched are 0.
    pub statistics: Statistics,
}

impl Log {
    /// A table of times, with each pass's share.
    pub fn timing(&self) -> String {
        let total: Duration = self.passes.iter().map(|p| p.time + p.verification).sum();
        let share = |time: Duration| 100.0 * time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
        let line = |name: &str, time: Duration| {
            format!("{:>10.3} ms {:>5.1}%  {name}\n", time.as_secs_f64() * 1e3, share(time))
        };
        let mut text: String = self.passes.iter().map(|p| line(p.name, p.time)).collect();
        text += &line("(verification)", self.passes.iter().map(|p| p.verification).sum());
        text += &line("total", total);
        text
    }

    /// A table of counters.
    pub fn statistics(&self) -> String {
        let mut text = String::new();
        for pass in &self.passes {
            let _ = writeln!(text, "{}", pass.name);
            for (name, count) in &pass.statistics.0 {
                let meaning = find(pass.name)
                    .and_then(|p| p.statistics.iter().find(|(n, _)| n == name))
                    .map_or("", |(_, meaning)| *meaning);
                let _ = writeln!(text, "  {count:>8} {name}: {meaning}");
            }
        }
        text
    }
}

/// A pipeline that stopped.
#[derive(Debug, thiserror::Error)]
#[error("pass `{pass}` {stop}")]
pub struct RunError {
    /// The pass.
    pub pass: &'static str,
    /// What happened.
    #[source]
    pub stop: Box<Stop>,
    /// Textual IR that makes it happen again, headed by the rest of the pipeline.
    pub reproducer: String,
}

/// What a pass did, or would have done, that stopped its pipeline.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stop {
    /// It has no answer.
    #[error("failed: {0}")]
    Failed(#[source] PassError),
    /// It panicked.
    #[error("crashed, a defect of the compiler: panic {0}")]
    Crashed(Panic),
    /// It left a module that breaks rules: operations with what is wrong below them, for people.
    #[error("left an invalid module:\n{0}")]
    Invalid(String),
    /// The verifier panicked.
    #[error("left a module that the verifier cannot read: panic {0}")]
    Unreadable(Panic),
    /// Passes read a function from top to bottom, which is not the order in which a scheduled one runs.
    #[error("cannot run: the module is scheduled already, and `schedule` comes last")]
    Scheduled,
}

/// What a panic said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panic {
    /// Its message.
    pub said: String,
    /// File, line and column, if panics of passes are [taken](take_panics).
    pub place: Option<String>,
}

impl fmt::Display for Panic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.said)?;
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " at {place}"))
    }
}

thread_local! {
    /// True while a pass runs on this thread: its panics are the manager's to tell.
    static RUNNING: Cell<bool> = const { Cell::new(false) };
    /// Where the last panic of a pass came from.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Leaves panics of passes to the manager, which says in its error what a panic said and where: without this they are
/// also printed as any other panic. For binaries, once at their start.
pub fn take_panics() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if RUNNING.get() {
            PLACE.set(info.location().map(ToString::to_string));
        } else {
            others(info);
        }
    }));
}

/// Runs `work` and turns a panic into what it said.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    let outer = RUNNING.replace(true);
    PLACE.set(None);
    let outcome = catch_unwind(AssertUnwindSafe(work));
    RUNNING.set(outer);
    outcome.map_err(|payload| Panic { said: said(payload.as_ref()).to_owned(), place: PLACE.take() })
}

fn said(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// Runs passes in order. After an error the module is what the failed pass left.
pub fn run(module: &mut Module, stages: &[Stage], settings: Settings, log: &mut Log) -> Result<(), RunError> {
    let original = if stages.is_empty() { Module::default() } else { module.clone() };
    run_from(&original, module, stages, settings, log)
}

/// The same on a module of which there is a copy, for a reproducer.
pub(super) fn run_from(
    original: &Module,
    module: &mut Module,
    stages: &[Stage],
    settings: Settings,
    log: &mut Log,
) -> Result<(), RunError> {
    let mut before = if settings.print == Print::Changes { module.to_string() } else { String::new() };
    for (i, stage) in stages.iter().enumerate() {
        let name = stage.pass.name;
        if let Err(stop) = step(module, stage, settings.verify_each, log) {
            if settings.print_after_failure {
                // What a crash leaves may not even print.
                let text =
                    guarded(|| module.to_string()).unwrap_or_else(|e| format!("// cannot be printed: {e}\n"));
                let _ = write!(log.text, "// after {name} (failed)\n{text}");
            }
            let reproducer = reproducer(original.clone(), &stages[..i], &stages[i..], settings.verify_each);
            return Err(RunError { pass: name, stop: Box::new(stop), reproducer });
        }
        if settings.print != Print::Never {
            let after = module.to_string();
            if settings.print == Print::All {
                let _ = write!(log.text, "// after {name}\n{after}");
            } else if after != before {
                let _ = write!(log.text, "// after {name}\n{after}");
                before = after;
            }
        }
    }
    Ok(())
}

/// Runs passes as a compiler does: verified after each where debug assertions are on, once otherwise.
pub(crate) fn run_to_compile(module: &mut Module, stages: &[Stage]) -> Result<(), RunError> {
    if cfg!(debug_assertions) {
        return run(module, stages, Settings::default(), &mut Log::default());
    }
    let original = module.clone();
    run_verified_once(&original, module, stages)
}

/// Runs passes and verifies once after the last. Should anything be wrong the passes run again, verified after each,
/// which tells the one at fault.
fn run_verified_once(original: &Module, module: &mut Module, stages: &[Stage]) -> Result<(), RunError> {
    if run_quickly(module, stages, true) {
        return Ok(());
    }
    *module = original.clone();
    run_from(original, module, stages, Settings::default(), &mut Log::default())
}

/// Runs passes, and verifies what the last one leaves if that is asked for; whether nothing is wrong. The module is of no use if
/// something is.
pub(super) fn run_quickly(module: &mut Module, stages: &[Stage], verified: bool) -> bool {
    let valid = |m: &Module| guarded(|| verify::verify(m).is_empty()) == Ok(true);
    let mut log = Log::default();
    stages.iter().all(|stage| step(module, stage, false, &mut log).is_ok()) && (!verified || valid(module))
}

/// True if some operation has a placement.
fn scheduled(module: &Module) -> bool {
    module.funcs.iter().flat_map(|f| &f.body).any(|id| module.op(*id).placement.is_some())
}

/// Runs one pass and verifies what it leaves; the error says what went wrong.
fn step(module: &mut Module, stage: &Stage, verify_each: bool, log: &mut Log) -> Result<(), Stop> {
    let mut statistics = Statistics(stage.pass.statistics.iter().map(|(name, _)| (*name, 0)).collect());
    if scheduled(module) {
        return Err(Stop::Scheduled);
    }
    let started = Instant::now();
    let outcome = guarded(|| (stage.pass.run)(module, &stage.options, &mut statistics));
    let time = started.elapsed();
    let started = Instant::now();
    let outcome = match outcome {
        Ok(Ok(())) if verify_each => match guarded(|| {
            let errors = verify::verify(module);
            if errors.is_empty() { String::new() } else { verify::render(module, &errors) }
        }) {
            Ok(errors) if errors.is_empty() => Ok(()),
            Ok(errors) => Err(Stop::Invalid(errors)),
            Err(panic) => Err(Stop::Unreadable(panic)),
        },
        Ok(Ok(())) => Ok(()),
        Ok(Err(e)) => Err(Stop::Failed(e)),
        Err(panic) => Err(Stop::Crashed(panic)),
    };
    log.passes.push(Record { name: stage.pass.name, time, verification: started.elapsed(), statistics });
    outcome
}

/// The IR before a failed pass, headed by the pipeline from there. Should the passes before it not run a second time,
/// the IR before all of them.
fn reproducer(original: Module, done: &[Stage], rest: &[Stage], verify_each: bool) -> String {
    let mut module = original.clone();
    let again = done.iter().all(|s| step(&mut module, s, false, &mut Log::default()).is_ok());
    let (module, pipeline) =
        if again { (module, pipeline_text(rest)) } else { (original, pipeline_text(&[done, rest].concat())) };
    let options = if verify_each { "" } else { UNVERIFIED };
    let text = guarded(|| module.to_string()).unwrap_or_else(|e| format!("// cannot be printed: {e}\n"));
    format!("{HEAD}{pipeline}\"{options}\n{text}")
}
