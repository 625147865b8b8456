//! Unaimed mutants of random models' schedules: what the verifier takes trains the same bits, in every order.
//!
//! Each mutant that the verifier takes, and whose reference has the digest of the unchanged schedule, is run by the
//! interpreter in random orders and by the executor with delays; losses, tables, parameters, optimizer states and, for
//! one model, the evaluation must be those of the unchanged schedule. Those of another model are run too, and must end: in an
//! error only before an operation begins. `FS_CAMPAIGN_SECONDS` says how long (3 without it), `FS_CAMPAIGN_SEED` where to
//! start, `FS_CAMPAIGN_MUTANTS` how many at most.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fs_compiler::distribution::TableOptions;
use fs_compiler::{At, CompileOptions, Strategy, compile_with};
use fs_executor::{Options, Session};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Element, Schedule, WirePrecision};
use fs_tests::campaign::{Random, core, mutant};
use fs_tests::interpreter::{Order, Reference, State, Workload, reference, run};
use fs_tests::models::{Features, models};
use fs_tests::schedules::{Recipe, build};
use fs_tests::{dividing, rounding, through_relays, with_hot_rows};
use proptest::strategy::{Strategy as _, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// An unchanged schedule with what it gives.
struct Base {
    text: String,
    schedule: Schedule,
    json: serde_json::Value,
    core: Schedule,
    ranks: usize,
    data: Option<PathBuf>,
    trained: String,
    work: Workload,
    want: Reference,
}

/// Losses, tables, parameters, states and evaluation as one text.
fn train(s: &Schedule, ranks: usize, data: Option<&PathBuf>, stress: Option<u64>) -> Result<String, String> {
    let options = Options::default().ranks(ranks).evaluate(data.is_some()).data(data.cloned()).stress(stress);
    let mut session = Session::<f32>::new(s.clone(), options).map_err(|e| e.to_string())?;
    let report = session.run(&mut ()).map_err(|e| e.to_string())?;
    let mut text = format!("{:?}\n", report.loss.iter().map(|l| l.to_bits()).collect::<Vec<_>>());
    let mut put = |values: Vec<f32>| {
        let _ = writeln!(text, "{:?}", values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>());
    };
    for t in 0..s.tables.len() {
        put(session.table(t).map_err(|e| e.to_string())?);
        session.table_state(t).map_err(|e| e.to_string())?.into_iter().for_each(&mut put);
    }
    for p in 0..s.parameters.len() {
        put(session.parameter(p));
        session.parameter_state(p).into_iter().for_each(&mut put);
    }
    if let Some(e) = report.evaluation {
        let _ = writeln!(text, "{:?} {:?}", e.model, e.users);
    }
    Ok(text)
}

impl Base {
    fn new(text: String, schedule: Schedule, ranks: usize, data: Option<PathBuf>) -> Option<Self> {
        let work = Workload { seed: 5, batches: 5, ranks: ranks as u32 };
        let want = reference(&schedule, &work).ok()?;
        let trained = train(&schedule, ranks, data.as_ref(), None).ok()?;
        Some(Self {
            json: serde_json::to_value(&schedule).ok()?,
            core: core(&schedule),
            text,
            schedule,
            ranks,
            data,
            trained,
            work,
            want,
        })
    }

    /// What is wrong with a mutant that the verifier takes.
    fn fault(&self, s: &Schedule, seed: u64) -> Option<String> {
        let found = match reference(s, &self.work) {
            Err(e) => return Some(format!("the interpreter: {e}")),
            Ok(found) => found,
        };
        // Where tables lie is not the model's.
        if State::together(&found.states) != State::together(&self.want.states) {
            let pairs = found.states.iter().zip(&self.want.states);
            let differ: Vec<String> = pairs.map(|(have, want)| have.differs(want)).collect();
            return Some(format!("the interpreter ends with another state: {differ:?}"));
        }
        let n = s.train.ops.len();
        for round in 0..3 {
            let slow: BTreeSet<_> = (0..round).map(|i| (None, (seed as usize * 7919 + i * 31) % n)).collect();
            let order = Order { slow, seed: seed + round as u64, skipped_are_free: false };
            if let Err(e) = run(s, &self.work, &found, &order) {
                return Some(format!("the interpreter: {e}"));
            }
        }
        // A hang is a fault too.
        let (send, receive) = mpsc::channel();
        let (s, ranks, data) = (s.clone(), self.ranks, self.data.clone());
        std::thread::spawn(move || {
            let _ = send.send(train(&s, ranks, data.as_ref(), Some(seed)));
        });
        match receive.recv_timeout(Duration::from_mins(2)) {
            Err(_) => Some("the executor: does not end".into()),
            Ok(Err(e)) => Some(format!("the executor: {e}")),
            Ok(Ok(trained)) if trained != self.trained => Some("the executor: trains other bits".into()),
            Ok(Ok(_)) => None,
        }
    }
}

/// What is wrong with how a schedule of another model runs. What it trains is not known; that it ends is, and that no operation
/// fails, but for the limit of what a rank can hold, which depends on the data.
fn fault_of_another(s: &Schedule, data: Option<&PathBuf>, seed: u64) -> Option<String> {
    const MOST: u64 = 1 << 20;
    let tables = s.tables.iter().map(|t| t.rows.saturating_mul(t.dim.into()));
    let parameters = s.parameters.iter().map(|p| u64::from(p.rows) * u64::from(p.columns));
    let (ranks, batch) = (s.ranks as usize, s.settings.batch);
    if ranks > 8 || batch > 256 || tables.chain(parameters).any(|n| n > MOST) {
        return None;
    }
    let mut s = s.clone();
    s.settings.duration = fs_schedule::Duration::Steps(2);
    s.seal();
    let (send, receive) = mpsc::channel();
    let data = data.cloned();
    std::thread::spawn(move || {
        let _ = send.send(train(&s, ranks, data.as_ref(), Some(seed)));
    });
    match receive.recv_timeout(Duration::from_mins(2)) {
        Err(_) => Some("the executor: does not end, or panics".into()),
        Ok(Err(e)) if e.contains(" failed in `") && !e.contains("a rank can hold") => {
            Some(format!("the executor: {e}"))
        }
        Ok(_) => None,
    }
}

/// A model that ranks items, with its data, and maybe with samples that move.
fn ranking(
    folder: &std::path::Path,
    strategy: Strategy,
    microbatches: u32,
    balance: Option<At>,
) -> Option<Base> {
    let path = folder.join("visits.csv");
    let mut lines = String::from("user,item\n");
    for user in 0..12 {
        for at in 0..3 + user % 5 {
            let _ = writeln!(lines, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 24);
        }
    }
    std::fs::write(&path, lines).ok()?;
    let text = "model last {
      table items { rows 30  dim 4  optimizer adagrad(lr: 0.1) }
      input history: ids(items) { max 6 }
      input following: next(history)
      let x = dropout(lookup(history), 0.2)
      let h = x + linear(layer_norm(x), 4)
      loss sampled_softmax(h, items, following, negatives: 3, temperature: 0.5, similarity: cosine, normalize: tokens)
    }
    train { batch 4  steps 4  balance WHETHER  optimizer adam(lr: 1e-2) }
    workload visits { csv \"visits.csv\" { user \"user\"  item \"item\" }  evaluate leave_last_out }";
    let text = text.replace("WHETHER", if balance.is_some() { "on" } else { "off" });
    let schedule = compiled(
        &text,
        (balance.unwrap_or(At::Ids), TableOptions::default()),
        strategy,
        (2, 1, microbatches, None),
    )?;
    Base::new(text, schedule, 2, Some(path))
}

fn compiled(
    text: &str,
    (at, folds): (At, TableOptions),
    strategy: Strategy,
    (ranks, lookahead, microbatches, windows): (u32, u32, u32, Option<u32>),
) -> Option<Schedule> {
    let loaded = fs_dsl::check_text("model.fs", text);
    let options =
        CompileOptions::new(strategy, ranks).lookahead(lookahead).microbatches(microbatches).balance_at(at);
    let options = options.tables(folds).windows(windows);
    compile_with(&dividing(loaded.program?, ranks), &options).ok().map(|c| c.schedule)
}

/// Random small models with every strategy.
fn bases(seed: u64, count: usize, folder: &std::path::Path) -> Vec<Base> {
    let mut seeds = [0; 32];
    seeds[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::from_seed(RngAlgorithm::ChaCha, &seeds));
    let family = models(Features { shardings: true, microbatches: false, placements: true });
    let mut out = Vec::new();
    // Strategies, lookaheads and microbatches meet in other ways in each round.
    let first = seed as usize % 60;
    for n in first.. {
        if out.len() >= count || n > first + 20 * count {
            break;
        }
        let strategy = [Strategy::Serial, Strategy::Prefetch, Strategy::Pec, Strategy::Pec][n % 4];
        let microbatches = [1, 2, 1, 2, 3][n % 5] as u32;
        if n % 6 == 5 {
            let balance = [None, Some(At::Ids), Some(At::Rows), Some(At::Folded)][n / 6 % 4];
            out.extend(ranking(folder, strategy, microbatches.min(2), balance));
            continue;
        }
        let ranks = [2, 3, 2, 4][n / 6 % 4];
        let Ok(tree) = family.new_tree(&mut runner) else { continue };
        let model = tree.current();
        let rows = [Element::Real, Element::Bf16, Element::Mxint8][n % 7 % 3];
        let gradients = if n % 7 % 4 == 1 { Element::Bf16 } else { Element::Real };
        let wire = WirePrecision { rows, gradients, ..WirePrecision::default() };
        let model = if rows == Element::Mxint8 { model.in_blocks() } else { model };
        let text = rounding(&model.text(), wire);
        // Of several microbatches those of a batch, or each.
        let windows = (n % 2 == 1).then_some(1);
        let plan = (ranks, 1 + n as u32 % 3, microbatches, windows);
        let schedule = if n % 3 == 1 {
            // Several nodes, and one that is not full.
            let options = CompileOptions::new(strategy, plan.0.max(3))
                .lookahead(plan.1)
                .microbatches(plan.2)
                .windows(windows);
            let program = fs_dsl::check_text("model.fs", &text).program;
            program.and_then(|p| through_relays(&dividing(p, plan.0.max(3)), options))
        } else if n % 3 == 2 {
            // Some rows of all ranks, at most all that the table has.
            let options =
                CompileOptions::new(strategy, plan.0).lookahead(plan.1).microbatches(plan.2).windows(windows);
            let program = fs_dsl::check_text("model.fs", &text).program;
            program
                .and_then(|p| with_hot_rows(&dividing(p, plan.0), options.balance(false), 1 + n as u32 % 7))
        } else {
            compiled(&text, (model.at(), model.folds()), strategy, plan)
        };
        let Some(mut schedule) = schedule else { continue };
        if schedule.train.ops.len() > 220 {
            continue;
        }
        schedule.settings.duration = fs_schedule::Duration::Steps(4);
        schedule.seal();
        let ranks = schedule.ranks as usize;
        out.extend(Base::new(text, schedule, ranks, None));
    }
    out
}

/// Counts of what became of mutants.
#[derive(Debug, Default)]
struct Counts {
    mutants: u64,
    unreadable: u64,
    refused: u64,
    /// Taken: with another digest or number of ranks, with nothing changed that is run, and run.
    other_model: u64,
    unchanged: u64,
    run: u64,
}

/// Mutants that are tried however long that takes.
const LEAST: u64 = 60;

#[test]
fn what_the_verifier_takes_trains_the_same_bits() {
    let seconds = setting("FS_CAMPAIGN_SECONDS", 3);
    let (seed, most) = (setting("FS_CAMPAIGN_SEED", 1), setting("FS_CAMPAIGN_MUTANTS", u64::MAX));
    let folder = tempfile::tempdir().expect("a folder");
    let (mut counts, mut holes) = (Counts::default(), String::new());
    let start = Instant::now();
    let mut random = Random::new(seed);
    let mut round = 0;
    // On a busy machine the time is over before anything was tried.
    let goes_on = |mutants: u64| start.elapsed() < Duration::from_secs(seconds) || mutants < LEAST;
    while goes_on(counts.mutants) && counts.mutants < most && holes.len() < 20_000 {
        // A few at a time, so that a short campaign has some of all.
        let bases = bases(seed.wrapping_mul(1000) + round, 6, folder.path());
        round += 1;
        let share = Instant::now();
        let time = Duration::from_secs((seconds / 3).clamp(2, 60));
        while (share.elapsed() < time || counts.mutants < LEAST)
            && goes_on(counts.mutants)
            && counts.mutants < most
        {
            for base in &bases {
                one(base, &mut random, &mut counts, &mut holes);
            }
        }
    }
    eprintln!("seed {seed}: {counts:?}");
    assert!(holes.is_empty(), "{counts:?}\n{holes}");
    assert!(counts.refused > 0 && counts.run > 0, "{counts:?}");
}

fn one(base: &Base, random: &mut Random, counts: &mut Counts, holes: &mut String) {
    counts.mutants += 1;
    let Some(s) = mutant(&base.schedule, &base.json, random) else {
        counts.unreadable += 1;
        return;
    };
    if !verify(&s).is_empty() {
        counts.refused += 1;
        return;
    }
    // The number of ranks is written beside the digest, and so are nodes; sums over others, or by them, round differently.
    let machine = |s: &Schedule| (s.ranks, s.settings.node, s.settings.sums_by_node);
    if s.reference.digest != base.schedule.reference.digest || machine(&s) != machine(&base.schedule) {
        counts.other_model += 1;
        if let Some(fault) = fault_of_another(&s, base.data.as_ref(), counts.mutants) {
            let difference = difference(&base.schedule, &s);
            let _ = writeln!(holes, "mutant {}, of another model: {fault}\n{difference}", counts.mutants);
        }
        return;
    }
    if core(&s) == base.core {
        counts.unchanged += 1;
        return;
    }
    counts.run += 1;
    if let Some(fault) = base.fault(&s, counts.mutants) {
        let _ = writeln!(
            holes,
            "mutant {}: {fault}\n{:?}\n{}\n{}",
            counts.mutants,
            base.schedule.strategy,
            difference(&base.schedule, &s),
            base.text
        );
    }
}

/// Lines of the mutant that the schedule does not have, and the other way.
fn difference(a: &Schedule, b: &Schedule) -> String {
    let (a, b) = (fs_schedule::to_text(a), fs_schedule::to_text(b));
    let (x, y): (BTreeSet<&str>, BTreeSet<&str>) = (a.lines().collect(), b.lines().collect());
    let short = |l: &str| l.chars().take(600).collect::<String>();
    let gone = x.difference(&y).take(6).map(|l| format!("- {}\n", short(l)));
    let new = y.difference(&x).take(6).map(|l| format!("+ {}\n", short(l)));
    gone.chain(new).collect()
}

/// The hand-made schedules have the model that they say, too.
#[test]
fn schedules_by_hand_are_in_the_campaign() {
    let schedule = build(&Recipe::new(fs_schedule::Strategy::Pec, Some(1), 2));
    let json = serde_json::to_value(&schedule).expect("plain data");
    let work = Workload { seed: 3, batches: 5, ranks: 2 };
    let want = reference(&schedule, &work).expect("a valid schedule");
    let mut random = Random::new(7);
    let (mut taken, mut tried) = (0, 0);
    while tried < 3000 {
        tried += 1;
        let Some(s) = mutant(&schedule, &json, &mut random) else { continue };
        if !verify(&s).is_empty() || s.reference.digest != schedule.reference.digest {
            continue;
        }
        taken += 1;
        let found = reference(&s, &work).unwrap_or_else(|e| panic!("{e}\n{}", difference(&schedule, &s)));
        assert_eq!(found.states, want.states, "{}", difference(&schedule, &s));
    }
    assert!(taken > 20, "{taken} of {tried}");
}

/// How much is expected to move is planned with, and changes nothing that is trained.
#[test]
fn expectations_change_no_values() {
    let text = "model m {
      table a { rows 40  dim 4  optimizer adagrad(lr: 0.1)  sharding row_wise }
      input x: ids(a) { max 9 }
      input y: label
      loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
    }
    train { batch 8  steps 4  balance on  optimizer sgd(lr: 0.1) }
    workload w { generate { lengths lognormal(mean: 3, sigma: 1, max: 9)  ids uniform  labels bernoulli(0.5) } }";
    for at in At::ALL {
        let schedule = compiled(text, (at, TableOptions::default()), Strategy::Pec, (2, 1, 1, None))
            .expect("it compiles");
        let mut other = schedule.clone();
        let mut changed = 0;
        for op in &mut other.train.ops {
            if let Action::Dispatch { moved } | Action::DispatchRows { moved } | Action::Combine { moved } =
                &mut op.action
            {
                *moved = 1.0 - *moved / 2.0;
                changed += 1;
            }
        }
        other.seal();
        let faults = verify(&other);
        assert!(changed > 0 && faults.is_empty(), "{changed} changed: {faults:?}");
        let base = Base::new(text.into(), schedule, 2, None).expect("a base");
        assert_eq!(base.fault(&other, 1), None);
    }
}
