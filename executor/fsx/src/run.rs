//! `fsx run`: what it is asked for, on what computes, to an exit status.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::{self, Cuda};
use fs_executor::evaluate::metric::Metric;
use fs_executor::session::{Checkpoint, Every, TIMEOUT};
use fs_executor::trace::{Steps, Target, window};
use fs_executor::transport::link::EmulatedLink;
use fs_executor::weights::{self, Taken};
use fs_executor::{Error, Options, Report, Session, data};
use fs_kernels::cuda::driver::real::Real;
use fs_schedule::Schedule;
use fs_schedule::file::check_writable;
use fs_schedule::terminal::{entry, shown};

use crate::files::place_of;
use crate::interrupt::{Counting, Interrupts};
use crate::links::{LINK_HELP, note_idle_link};
use crate::progress::Progress;
use crate::summary;
use crate::transport::{Processes, Transport, end_together, say_error, seconds};

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// This machine's processors
    Cpu,
    /// Its first NVIDIA GPU, which all ranks share
    Cuda,
    /// A GPU that is emulated: for tests
    #[cfg(feature = "emulated")]
    Emulated,
}

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each one is a switch of the command line")]
pub(crate) struct Run {
    /// The schedule, as `fsc compile` writes it
    schedule: PathBuf,
    /// Number of ranks, in all processes together [default: what the schedule was planned for]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Where ranks run [default: mpi if mpirun or srun has started several processes, else local]
    #[arg(long, value_name = "TRANSPORT")]
    transport: Option<Transport>,
    /// What computes
    #[arg(long, value_name = "BACKEND", default_value = "cpu")]
    backend: Backend,
    /// Train for this many steps instead of the schedule's duration
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Train for this many passes over the data instead
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    epochs: Option<u32>,
    /// Data file instead of the schedule's
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Seed of everything random instead of the schedule's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write what was measured to this file, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the timeline of some steps: FILE.json holds all ranks, for Perfetto; FOLDER/ one file per rank, for HTA
    #[arg(long, value_name = "FILE|FOLDER/")]
    trace: Option<PathBuf>,
    /// Trace the steps A to B-1 [default: 20 steps, once the pipeline is full]
    #[arg(long, value_name = "A..B", requires = "trace")]
    trace_steps: Option<Steps>,
    /// Keep this file up to date for `fsx top FILE`
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,
    #[arg(long, value_name = "LINK", help = LINK_HELP)]
    link: Option<EmulatedLink>,
    /// Seconds that anything of another rank is waited for
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT.as_secs_f64())]
    timeout: f64,
    /// Start from this safetensors file, and go on where its run ended: values, optimizer states, ids' rows
    #[arg(long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Write tables, parameters, optimizer states and ids' rows to this safetensors file after training
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Leave checkpoints in this folder while training goes on, and one at the end
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// How often: a number of steps, or a time such as 30s, 10m, 2h
    #[arg(long, value_name = "STEPS|TIME", default_value = "10m", requires = "checkpoint")]
    every: Every,
    /// How many checkpoints stay, the newest ones
    #[arg(long, value_name = "N", default_value_t = 3, requires = "checkpoint", value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Also keep the best one: the model is evaluated at each, by hr@10, hr@50 or ndcg@10 of unseen items
    #[arg(long, value_name = "METRIC", requires = "checkpoint")]
    keep_best: Option<Metric>,
    /// Go on with the run that left the newest checkpoint in this folder (or this checkpoint) as if it had never stopped
    #[arg(long, value_name = "DIR", conflicts_with = "init")]
    resume: Option<PathBuf>,
    /// Report what carried out the copies of each operation: copy engines of the GPU, or its multiprocessors. Takes some time of
    /// the host, and NVIDIA's profiling library (libcupti)
    #[arg(long)]
    copies: bool,
    /// Go on, with a warning, when a loss is no number (NaN or infinite). Otherwise that ends the run, and --save writes nothing
    #[arg(long)]
    allow_nan: bool,
    /// Do not evaluate after training
    #[arg(long)]
    no_evaluate: bool,
    /// Also list the time of every operation
    #[arg(long)]
    profile: bool,
    /// No progress and no summary; of --init only what does not fit
    #[arg(long, short)]
    quiet: bool,
    /// Print the report as JSON instead of the summary
    #[arg(long)]
    json: bool,
}

/// Runs this process's part of a run, and ends when the other processes do.
pub(crate) fn together(run: &Run, interrupts: &Arc<Interrupts>) -> Result<ExitCode, Error> {
    let timeout = seconds("--timeout", run.timeout)?;
    let processes = Processes::join(run.transport, timeout)?;
    let outcome = execute(run, timeout, &processes, interrupts);
    if outcome.is_err() {
        interrupts.places().explain();
    }
    end_together(processes, outcome, interrupts)
}

/// One process speaks for all.
fn is_quiet(run: &Run, processes: &Processes) -> bool {
    run.quiet || !processes.is_first()
}

/// One process writes for all.
fn first(processes: &Processes, path: Option<&PathBuf>) -> Option<PathBuf> {
    path.filter(|_| processes.is_first()).cloned()
}

/// Checks what is asked for, and opens what computes.
fn execute(
    run: &Run,
    timeout: Duration,
    processes: &Processes,
    interrupts: &Arc<Interrupts>,
) -> Result<ExitCode, Error> {
    let schedule = fs_schedule::read(&run.schedule)?;
    check_distinct(run, &schedule)?;
    for (what, path) in [("the report", &run.report), ("the values", &run.save), ("the status", &run.status)]
    {
        if let Some(path) = path.as_ref().filter(|_| processes.is_first()) {
            check_writable(path).map_err(|source| Error::Write { what, path: path.clone(), source })?;
        }
    }
    if run.save.is_some() {
        weights::check(&schedule)?;
    }
    let ranks = run.ranks.unwrap_or(schedule.ranks as usize);
    match run.backend {
        Backend::Cpu => {}
        Backend::Cuda => {
            one_process(processes)?;
            let device = cuda::open(&schedule, ranks, 0)?;
            for note in device.drivers.iter().flat_map(|driver| driver.notes()) {
                let _ = writeln!(io::stderr(), "note: {}", entry(&note));
            }
            return train::<Cuda<Real>>(run, timeout, (schedule, &device), processes, interrupts);
        }
        #[cfg(feature = "emulated")]
        Backend::Emulated => {
            one_process(processes)?;
            let device = crate::emulated::open(&schedule, ranks)?;
            return train::<Cuda<fs_kernels::cuda::driver::emulated::Emulated>>(
                run,
                timeout,
                (schedule, &device),
                processes,
                interrupts,
            );
        }
    }
    train::<Cpu<f32>>(run, timeout, (schedule, &()), processes, interrupts)
}

/// Sums of gradients are made on one GPU, by the ranks of one process.
fn one_process(processes: &Processes) -> Result<(), Error> {
    match processes.place() {
        (_, 1) => Ok(()),
        (_, n) => Err(Error::Settings(format!(
            "a GPU is shared by the ranks of one process, and these are {n}; start one process with all ranks, or use `--backend cpu`"
        ))),
    }
}

/// Trains on devices that are there.
fn train<D: Device<Real = f32>>(
    run: &Run,
    timeout: Duration,
    (schedule, device): (Schedule, &D::Options),
    processes: &Processes,
    interrupts: &Arc<Interrupts>,
) -> Result<ExitCode, Error> {
    if run.copies {
        D::watch_copies(device)?;
    }
    let quiet = is_quiet(run, processes);
    let (report_file, status_file) =
        (first(processes, run.report.as_ref()), first(processes, run.status.as_ref()));
    let planned = schedule.ranks as usize;
    let trace = run.trace.as_deref().map(Target::new);
    let ranks = run.ranks.unwrap_or(planned);
    let seed = run.seed.unwrap_or(schedule.settings.seed);
    // A run that leaves checkpoints where it looks for one may be its first, or follow one that is about to end.
    if let Some(folder) = run.resume.as_deref().filter(|_| same_place(run)) {
        weights::wait_for_writer(folder);
    }
    let first_start = run.resume.is_some() && same_place(run) && !has_checkpoint(run.resume.as_deref());
    if first_start && !quiet {
        let folder = run.resume.as_deref().map(shown).unwrap_or_default();
        let _ = writeln!(
            io::stderr(),
            "note: there is no checkpoint in {folder} yet; the run begins with step 0"
        );
    }
    // What there is to say if it ends before it begins.
    let mut report = Report::begun(&schedule, ranks, seed);
    interrupts.reserve_report(report_file.as_ref(), &report)?;
    let options = Options::default()
        .ranks(run.ranks)
        .seed(run.seed)
        .steps(run.steps)
        .epochs(run.epochs)
        .data(run.data.clone())
        .schedule_file(run.schedule.clone())
        .init(run.init.clone())
        .resume(run.resume.clone().filter(|_| !first_start))
        .checkpoint(run.checkpoint.clone().map(|folder| Checkpoint {
            folder,
            every: run.every,
            keep: run.keep as usize,
            best: run.keep_best,
        }))
        .evaluate(!run.no_evaluate)
        .stop(interrupts.stop())
        .link(run.link)
        .timeout(timeout)
        .watch(interrupts.places())
        .world(processes.world(ranks)?);
    let mut session = Session::<f32, D>::with_device(schedule, options, device)?;
    let mut _made = None;
    if let Some(target) = &trace {
        let ranks = session.ranks();
        let steps = window::choose(run.trace_steps.as_ref(), session.schedule(), ranks, session.steps())?;
        if processes.is_first() {
            _made = target.prepare(ranks)?;
            for path in target.files(ranks) {
                check_writable(&path).map_err(|source| Error::Write { what: "the trace", path, source })?;
            }
        }
        // They count from where the run begins, which may go on with a saved one.
        let first = session.next_step();
        session.record(Some(first.saturating_add(steps.start)..first.saturating_add(steps.end)));
    }
    if !quiet {
        let ranks = session.ranks();
        let _ = writeln!(
            io::stderr(),
            "{}: {} on {ranks} rank(s)",
            session.schedule().model,
            entry(&session.describe_data())
        );
        if ranks != planned {
            let _ = writeln!(
                io::stderr(),
                "note: the schedule was planned for {planned} rank(s), running with {ranks}"
            );
        }
    }
    if !quiet {
        let fits = session.schedule().settings.balance.as_ref().is_some_and(|balance| balance.fit);
        if D::HAS_CLOCK && fits {
            let _ = writeln!(
                io::stderr(),
                "note: costs of samples are not fitted to times of a GPU; samples are given to ranks by the model's costs"
            );
        }
        if session.is_of_other_data() {
            let _ = writeln!(
                io::stderr(),
                "note: the schedule was planned by lengths and ids of other data; compile it again for these to have it fit them"
            );
        }
        note_idle_link(run.link, session.ranks());
    }
    if processes.is_first() {
        let cut = summary::truncation(&session.truncation()).filter(|_| !quiet);
        if let Some(taken) = session.taken().filter(|_| !quiet) {
            let _ = writeln!(io::stderr(), "{}", entry(&taken.summary()));
        }
        // What of the initial values does not fit may undo what was trained: that is said in any case.
        let notes = session.taken().map(Taken::notes).into_iter().flatten().chain(cut);
        for note in notes {
            // Names of the file's tensors and of the data's ids are in it as they were found.
            let _ = writeln!(io::stderr(), "note: {}", entry(&note));
        }
    }
    let all_trained = processes.is_first() && run.resume.is_some() && session.steps() == 0;
    if let Some(trained) = session.taken().filter(|_| all_trained) {
        let trained = trained.step;
        let _ = writeln!(
            io::stderr(),
            "note: {trained} steps were trained before, and no more are asked for; to go on, give --steps above {trained}"
        );
    }
    (report.data, report.planned_steps) = (session.describe_data(), session.steps());
    interrupts.set_report(&report);
    interrupts.set_running();
    let schedule = session.schedule();
    let strategy = format!("{:?}", schedule.strategy).to_lowercase();
    let title = format!("{}, {strategy} on {} rank(s)", schedule.model, session.ranks());
    let engines = session.engines();
    let progress = if quiet { Progress::silent } else { Progress::new };
    let mut progress = progress(title, engines, status_file);
    if !run.allow_nan {
        progress = progress.ending(interrupts.stop());
    }
    let mut report = session.run(&mut Counting::new(&mut progress, interrupts))?;
    if run.copies {
        report.copies = D::copies(device)?;
    }
    interrupts.set_report(&report);
    if no_number(run, &report).is_none() {
        progress.finish(report.interrupted);
    }
    drop(progress);
    let unusable = report.checkpoints.as_ref().and_then(|left| left.unusable.as_ref());
    if let Some(own) = unusable.filter(|_| processes.is_first()) {
        let _ = writeln!(
            io::stderr(),
            "warning: the checkpoint of step {} was not kept, nor any later one like it: {}, and no run could go on from it",
            own.step,
            entry(&own.why)
        );
    }
    finish(run, processes, &session, trace.as_ref(), &report, interrupts)
}

/// Whether the run leaves checkpoints where it looks for one.
fn same_place(run: &Run) -> bool {
    let place = |folder: &Option<PathBuf>| folder.as_deref().map(place_of);
    place(&run.resume) == place(&run.checkpoint)
}

fn has_checkpoint(folder: Option<&Path>) -> bool {
    folder.is_some_and(weights::has_checkpoint)
}

/// A result must not replace what the run reads, nor another result.
fn check_distinct(run: &Run, schedule: &Schedule) -> Result<(), Error> {
    // With data given for this run the schedule's own are worth keeping too.
    let own = data::file(schedule, Some(&run.schedule));
    let lock = run.checkpoint.as_deref().map(weights::lock_file);
    let inputs = [
        ("lock of its checkpoints", lock.as_ref()),
        ("schedule", Some(&run.schedule)),
        ("data", run.data.as_ref()),
        ("schedule's data", own.as_ref()),
        ("initial values", run.init.as_ref()),
    ];
    let mut taken: Vec<(&str, PathBuf)> =
        inputs.iter().filter_map(|(what, path)| path.map(|p| (*what, place_of(p)))).collect();
    let ranks = run.ranks.unwrap_or(schedule.ranks as usize);
    let traces = run.trace.as_deref().map_or_else(Vec::new, |path| Target::new(path).files(ranks));
    let others = [("report", &run.report), ("values", &run.save), ("status", &run.status)];
    let others = others.into_iter().filter_map(|(what, path)| Some((what, path.clone()?)));
    for (what, path) in others.chain(traces.into_iter().map(|path| ("trace", path))) {
        // Devices such as /dev/null take any number of results.
        if fs::metadata(&path).is_ok_and(|m| !m.is_file()) {
            continue;
        }
        let place = place_of(&path);
        if let Some(checkpoint) = weights::checkpoint_around(&place, run.checkpoint.as_deref()) {
            return Err(Error::Settings(format!(
                "{} lies in the checkpoint {}, which would no longer be what it says; put the {what} elsewhere",
                shown(&path),
                shown(&checkpoint)
            )));
        }
        if let Some((other, _)) = taken.iter().find(|(_, p)| *p == place) {
            return Err(Error::Settings(format!(
                "{} would hold both the {other} and the {what}; give the {what} another name",
                shown(&path)
            )));
        }
        taken.push((what, place));
    }
    Ok(())
}

/// Prints and writes what was asked for.
fn finish<D: Device<Real = f32>>(
    run: &Run,
    processes: &Processes,
    session: &Session<f32, D>,
    trace: Option<&Target>,
    report: &Report,
    interrupts: &Interrupts,
) -> Result<ExitCode, Error> {
    let shown = if !processes.is_first() {
        String::new()
    } else if run.json {
        report.to_json()
    } else if run.quiet {
        String::new()
    } else {
        summary::text(report, run.profile)
    };
    let mut out = io::stdout().lock();
    let printed = out.write_all(shown.as_bytes()).and_then(|()| out.flush());
    // Each is tried whatever became of the other.
    let report_file = run.report.as_ref().filter(|_| processes.is_first());
    let reported = report_file.map_or(Ok(()), |path| interrupts.write_report(path, report));
    // Numbers that are none must not replace those of an earlier run. All processes have seen the same losses.
    let fault = no_number(run, report);
    let saved = run.save.as_ref().filter(|_| fault.is_none()).map_or(Ok(()), |path| session.save(path));
    let traced = trace.map_or(Ok(()), |target| write_trace(target, session, run.quiet));
    reported.and(saved).and(traced)?;
    printed.map_err(|source| Error::Write { what: "to", path: "standard output".into(), source })?;
    if let Some(fault) = fault {
        if processes.is_first() {
            say_error(&entry(&fault));
        }
        return Ok(ExitCode::FAILURE);
    }
    if !report.interrupted && interrupts.asked_to_stop() && processes.is_first() {
        let _ = writeln!(io::stderr(), "note: nothing was left to stop: the run is whole");
    }
    Ok(if report.interrupted { ExitCode::from(interrupts.status()) } else { ExitCode::SUCCESS })
}

/// Why what was trained is of no use, if a loss is no number and that is not allowed.
fn no_number(run: &Run, report: &Report) -> Option<String> {
    let mut losses = report.loss.iter().zip(report.first_step..);
    let (loss, step) = losses.find(|(loss, _)| !loss.is_finite() && !run.allow_nan)?;
    let unsaved = run.save.as_deref().map(|path| format!("; nothing was saved to {}", shown(path)));
    // What was left since may hold what made it so.
    let left = report.checkpoints.as_ref().and_then(|left| Some((left.newest?, &left.folder)));
    let left = left.filter(|(newest, _)| *newest <= step);
    let left = left.map(|(newest, folder)| {
        format!("; --resume {} goes on from the checkpoint of step {newest}", shown(folder))
    });
    Some(format!(
        "the loss of step {step} is {loss}, which ends the run{}{}; try a smaller learning rate, or go on all the same with --allow-nan",
        unsaved.unwrap_or_default(),
        left.unwrap_or_default()
    ))
}

/// Writes what was recorded, and says what of it is missing.
fn write_trace<D: Device<Real = f32>>(
    target: &Target,
    session: &Session<f32, D>,
    quiet: bool,
) -> Result<(), Error> {
    let Some((timeline, asked)) = session.timeline() else { return Ok(()) };
    target.write(&timeline)?;
    if timeline.steps != asked && !quiet {
        let held = match timeline.steps.clone() {
            steps if steps.is_empty() => "no step".to_owned(),
            steps => format!("the steps {}..{}", steps.start, steps.end),
        };
        let _ = writeln!(
            io::stderr(),
            "note: the run ended early: the trace holds {held} of {}..{}",
            asked.start,
            asked.end
        );
    }
    Ok(())
}
