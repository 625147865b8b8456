//! The table of actions against reality: what schedules of all kinds hold, what the executor counts, and the schema.
//! `FS_THOROUGH=1` compiles every program in every way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use fs_compiler::ir::Resource;
use fs_compiler::{At as Moved, CompileOptions, compile_with};
use fs_executor::{Options, Session};
use fs_schedule::action::{Action, At, Context, Effect, Memory, Peers, Phase, Programs, Runs, Scope, Sizes};
use fs_schedule::signature::OperandType;
use fs_schedule::{Extent, Op, Place, Poly, Program, Schedule, Strategy, Symbol};
use fs_tests::emulated::thorough;
use fs_tests::mock::Mock;
use fs_tests::models::{Features, models};
use fs_tests::{dividing, on_all_cores, root, through_relays};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

fn compiled(
    program: &fs_dsl::checked::Program,
    strategy: Strategy,
    lookahead: u32,
    parts: u32,
) -> Option<Schedule> {
    let options = CompileOptions::new(strategy, 2).lookahead(lookahead).microbatches(parts);
    compile_with(&dividing(program.clone(), 2), &options).ok().map(|c| c.schedule)
}

/// Every strategy with lookahead 1 to 3 and 1, 2 and 4 microbatches, and what else there is; of these a third, another one for each
/// number, if one is given.
fn ways(program: &fs_dsl::checked::Program, third: Option<usize>) -> Vec<Schedule> {
    let mut count = 0;
    let mut asked = || {
        count += 1;
        third.is_none_or(|n| (count + count / 3 + n).is_multiple_of(3))
    };
    let strategies = [(Strategy::Serial, 1), (Strategy::Prefetch, 1)].into_iter();
    let strategies = strategies.chain([1, 2, 3].map(|k| (Strategy::Pec, k)));
    let plain = strategies.flat_map(|(s, k)| [1, 2, 4].map(|m| (s, k, m))).filter(|_| asked());
    let mut all: Vec<Schedule> = plain.filter_map(|(s, k, m)| compiled(program, s, k, m)).collect();
    // Rows through relays.
    let relayed = [(Strategy::Serial, 1), (Strategy::Pec, 1), (Strategy::Pec, 2)];
    for (strategy, parts) in relayed.into_iter().filter(|_| asked()) {
        let options = CompileOptions::new(strategy, 4).microbatches(parts);
        all.extend(through_relays(&dividing(program.clone(), 4), options));
    }
    // Samples that move behind the output dist, and into it.
    let options = CompileOptions::new(Strategy::Pec, 2).balance(true);
    let moved = [Moved::Rows, Moved::Folded].into_iter().flat_map(|at| [(at, 1), (at, 2)]);
    for (at, parts) in moved.filter(|_| asked()) {
        let options = options.clone().microbatches(parts).balance_at(at);
        all.extend(compile_with(&dividing(program.clone(), 2), &options).ok().map(|c| c.schedule));
    }
    all
}

/// Programs that are written here.
const HERE: [&str; 2] = ["the rest", "brain floats"];

/// The examples, the models of the tests, and random models with every sharding.
fn programs() -> Vec<(String, fs_dsl::checked::Program)> {
    let mut files: Vec<_> = ["examples", "tests/models"]
        .iter()
        .flat_map(|folder| std::fs::read_dir(root(folder)).expect("a folder of models"))
        .map(|entry| entry.expect("an entry").path())
        // Its schedules have hundreds of thousands of lines, of the same kinds as the others.
        .filter(|p| p.extension().is_some_and(|e| e == "fs") && !p.ends_with("large.fs"))
        .collect();
    files.sort();
    let load = |path: &std::path::PathBuf| {
        let program = fs_dsl::load(path).program.expect("models of the project check");
        (path.to_string_lossy().to_string(), program)
    };
    let mut all: Vec<_> = files.iter().map(load).collect();
    // What random models rarely have: softmax attention, and columns that nothing uses.
    let text = "model rest {
       table items { rows 60 dim 8 optimizer sgd(lr: 0.1) }
       input clicked: ids(items) { max 5 }
       input click: label like clicked
       let q, k, v, unused = split(linear(lookup(clicked), 32), 4)
       loss bce_with_logits(linear(softmax_attention(q, k, v), 1), click, normalize: samples)
     }
     train { batch 8 steps 4 optimizer sgd(lr: 0.1) }";
    let loaded = fs_dsl::check_text("rest.fs", text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    all.push((HERE[0].into(), loaded.program.unwrap_or_else(|| panic!("{rendered}"))));
    // And activations in bf16.
    let text = text.replace("train {", "train { precision { compute bf16 } ");
    let loaded = fs_dsl::check_text("brain.fs", &text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    all.push((HERE[1].into(), loaded.program.unwrap_or_else(|| panic!("{rendered}"))));
    let mut runner = TestRunner::deterministic();
    let kinds = models(Features { shardings: true, microbatches: false, placements: false });
    for n in 0..24 {
        let text = kinds.new_tree(&mut runner).expect("a model").current().text();
        let loaded = fs_dsl::check_text("random.fs", &text);
        all.push((format!("random model {n}"), loaded.program.unwrap_or_else(|| panic!("{text}"))));
    }
    all
}

/// Schedules of all those programs, compiled once, on all cores: of each a third of the ways unless all are asked for. Those that are
/// written here have what others rarely do, and are compiled in all.
fn schedules() -> &'static [(String, Vec<Schedule>)] {
    static ALL: OnceLock<Vec<(String, Vec<Schedule>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let programs: Vec<_> = programs().into_iter().enumerate().collect();
        on_all_cores(&programs, |(n, (name, program))| {
            let whole = thorough() || HERE.contains(&name.as_str());
            (name.clone(), ways(program, (!whole).then_some(*n)))
        })
    })
}

fn each_program(s: &Schedule) -> impl Iterator<Item = (&Program, bool)> {
    std::iter::once((&s.train, false)).chain(s.evaluation.iter().map(|p| (p, true)))
}

/// What the operands of an operation say, the table says too.
fn facts_hold(s: &Schedule, p: &Program, evaluation: bool, op: &Op) {
    let (name, facts) = (&op.name, op.action.facts());
    let reads = |f: fn(&Place) -> bool| op.reads.iter().any(|o| f(&o.place));
    let writes = |f: fn(&Place) -> bool| op.writes.iter().any(|o| f(&o.place));
    let has = |e: Effect| facts.effects.contains(&e);
    assert_eq!(has(Effect::ReadsTable), reads(|p| matches!(p, Place::Table(_))), "{name} reads a table");
    assert_eq!(has(Effect::WritesTable), writes(|p| matches!(p, Place::Table(_))), "{name} writes a table");
    let parameter = |p: &Place| matches!(p, Place::Parameter(_));
    assert_eq!(has(Effect::ReadsParameter), reads(parameter), "{name} reads a parameter");
    assert_eq!(has(Effect::WritesParameter), writes(parameter), "{name} writes a parameter");
    let gradient = |p: &Place| matches!(p, Place::Gradient(_));
    assert_eq!(has(Effect::ReadsGradient), reads(gradient), "{name} reads a gradient");
    assert_eq!(has(Effect::WritesGradient), writes(gradient), "{name} writes a gradient");
    let batch = reads(|p| matches!(p, Place::Input(_) | Place::Lengths(_)));
    let keys = has(Effect::Random) || facts.scope == Scope::Listed;
    assert!(has(Effect::ReadsBatch) == (batch || keys), "{name} reads the batch");
    let around = op.reads.iter().any(|o| o.batch != 0);
    assert!(!around || has(Effect::ReadsBatches), "{name} reads other batches");
    // Results: gradients that it makes, and what it adds into.
    for (i, w) in op.writes.iter().enumerate() {
        let made = facts.results.gradients.contains(&i);
        assert_eq!(made, gradient(&w.place) && !facts.results.in_place, "{name} makes {w}");
        assert!(!w.accumulate || facts.results.adds.contains(&i), "{name} adds into {w}");
    }
    assert_eq!(facts.results.in_place, op.writes.iter().any(|w| op.reads.iter().any(|r| r.place == w.place)));
    // Programs, engines, exchanges.
    assert!(facts.programs != if evaluation { Programs::Training } else { Programs::Evaluation }, "{name}");
    assert_eq!(
        facts.runs == Runs::Link,
        op.engine != fs_schedule::Engine::Compute && op.engine != fs_schedule::Engine::Host
    );
    let plans = facts.learns.sizes == Sizes::Assigned;
    assert_eq!(facts.runs == Runs::Host, has(Effect::LoadsBatch) || plans, "{name}");
    assert!(facts.of.exchanges.iter().all(|e| (*e as usize) < s.exchanges.len()), "{name}");
    assert!(facts.of.classes.is_empty() || facts.of.way.is_some(), "{name} is of a class, but of what");
    let rows_travel = matches!(facts.phase, Phase::OutputDist | Phase::GradientDist);
    assert!(!rows_travel || !facts.of.exchanges.is_empty(), "{name} moves rows of no exchange");
    // Losses, and rows per entry.
    assert_eq!(facts.loss.is_some(), has(Effect::AddsLoss), "{name}");
    if let Some(entries) = facts.entries {
        let at = match entries.rows {
            At::Read(n) => op.reads[n],
            At::Written(n) => op.writes[n],
        };
        let Place::Buffer(b) = at.place else { panic!("{name}: rows are no buffer") };
        assert!(matches!(p.buffers[b as usize].rows, Extent::Symbol(Symbol::Sent(_))), "{name}: {at}");
    }
    // Costs are the table's; what moves nothing between ranks has nothing on the wire.
    assert_eq!(op.cost, s.cost(p, op), "{name}");
    let rounds = s.rounds(p, op, false);
    assert!(rounds.len() >= op.action.rounds() as usize, "{name}");
    assert_eq!(rounds.into_iter().map(|round| round.sent).sum::<Poly>(), op.cost.wire, "{name}");
    // Where all samples are alike none is expected to move.
    let still = matches!(
        op.action,
        Action::Dispatch { moved } | Action::DispatchRows { moved } | Action::Combine { moved } if moved == 0.0
    );
    let wire = facts.transfer.is_some() && !still;
    assert_eq!(!op.cost.wire.is_zero(), wire, "{name} has {} on the wire", op.cost.wire);
    assert!(op.cost.flops.terms().chain(op.cost.bytes.terms()).all(|(c, _)| c > 0.0), "{name}");
    let untouched = op.reads.is_empty() && op.writes.is_empty();
    assert_eq!(op.cost.bytes.is_zero(), untouched, "{name} moves {}", op.cost.bytes);
    if facts.memory == Memory::Once && facts.results.in_place {
        assert_eq!(facts.transfer.map(|t| t.peers), Some(Peers::Reduce), "{name}");
    }
}

/// Sizes that results of an operation bring into being.
fn learned(s: &Schedule, p: &Program, op: &Op) -> BTreeSet<Symbol> {
    let (_, writes) = s.shapes(p, op);
    op.action.learned(&writes).into_iter().collect()
}

/// Every size of a buffer is known beforehand, or learned by exactly one operation, which comes first of all that have
/// buffers of that size.
fn sizes_are_learned_first(s: &Schedule, p: &Program) {
    let mut order: Vec<usize> = (0..p.ops.len()).collect();
    order.sort_by_key(|i| (-p.ops[*i].stage, *i));
    let mut known: BTreeMap<Symbol, usize> = BTreeMap::new();
    for i in order {
        let op = &p.ops[i];
        for symbol in learned(s, p, op) {
            // Parts of a column-wise table may tell one size each: they are equal.
            let again =
                known.insert(symbol, i).is_none_or(|first| op.action.name() == p.ops[first].action.name());
            assert!(again, "{} learns {symbol} again", op.name);
        }
        for o in op.reads.iter().chain(&op.writes) {
            let Place::Buffer(b) = o.place else { continue };
            let Extent::Symbol(symbol) = p.buffers[b as usize].rows else { continue };
            let given = matches!(symbol, Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_));
            assert!(given || known.contains_key(&symbol), "{} uses {symbol} before it is known", op.name);
        }
    }
}

#[test]
fn the_table_says_what_schedules_show() {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (name, ways) in schedules() {
        assert!(!ways.is_empty(), "{name} compiles in no way");
        for s in ways {
            for (p, evaluation) in each_program(s) {
                for op in &p.ops {
                    facts_hold(s, p, evaluation, op);
                    seen.insert(op.action.name());
                }
                sizes_are_learned_first(s, p);
            }
        }
    }
    let all: BTreeSet<String> = Action::names().into_iter().collect();
    let unseen: Vec<_> = all.difference(&seen).collect();
    assert!(unseen.is_empty(), "no schedule has {unseen:?}");
    assert!(seen.is_subset(&all), "names of actions and names in schedules differ");
}

/// Those marked for a host that waits for sizes are those that learn some, and none else.
#[test]
fn the_host_learns_what_is_learned() {
    for (_, ways) in schedules() {
        for s in ways {
            for op in &s.train.ops {
                let learns = op.action.facts().learns;
                assert_eq!(learns.host_sync, learns.sizes != Sizes::None, "{}", op.name);
                // Sizes of samples as assigned are those of all that works on them.
                let shown = !matches!(learns.sizes, Sizes::None | Sizes::Assigned);
                assert_eq!(!learned(s, &s.train, op).is_empty(), shown, "{}", op.name);
            }
        }
    }
}

fn schema() -> jsonschema::Validator {
    let text = std::fs::read_to_string(root("docs/schedule.schema.json")).expect("the schema");
    jsonschema::validator_for(&serde_json::from_str(&text).expect("JSON")).expect("a schema")
}

#[test]
fn emitted_schedules_obey_the_schema() {
    let schema = schema();
    for (name, ways) in schedules() {
        for s in ways {
            let text = fs_schedule::to_text(s);
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let errors: Vec<String> =
                schema.iter_errors(&value).take(3).map(|e| format!("{}: {e}", e.instance_path())).collect();
            assert!(errors.is_empty(), "{name}, {:?}: {errors:#?}", s.strategy);
        }
    }
}

#[test]
fn the_schema_refuses_what_is_no_schedule() {
    let schema = schema();
    let program = fs_dsl::load(&root("examples/ranking.fs")).program.expect("examples check");
    let s = compiled(&program, Strategy::Pec, 1, 2).expect("ranking compiles");
    let good: Value = serde_json::from_str(&fs_schedule::to_text(&s)).expect("JSON");
    assert!(schema.is_valid(&good));
    let wrong = [
        ("/train/ops/0/engine", json!("gpu")),
        ("/train/ops/0/action", json!("fly")),
        ("/train/ops/0/action", json!({"linear": {"bias": "yes"}})),
        ("/train/ops/0/action", json!({"linear": {"bias": true, "more": 1}})),
        ("/train/ops/0/stage", json!("early")),
        ("/train/ops/1/reads", json!(["x3"])),
        ("/train/ops/1/reads", json!(["b3[64-128]"])),
        ("/train/ops/1/writes", json!(["b3++"])),
        ("/train/ops/1/cost/flops", json!("512*U0x1")),
        ("/train/ops/1/cost/flops", json!("512*")),
        ("/train/ops/1/cost/bytes", json!("U0")),
        ("/train/ops/1/cost/wire", json!("4*U0 +")),
        ("/train/ops/1/deps", json!([{"op": -1}])),
        ("/train/ops/1/more", json!(1)),
        ("/train/buffers/0/rows", json!("U0f")),
        ("/train/buffers/0/rows", json!("-3")),
        ("/train/buffers/0/element", json!("f64")),
        ("/train", json!(null)),
        ("/settings", json!({})),
        ("/settings/wire", json!({"rows": "index", "gradients": "real"})),
        ("/settings/wire", json!({"rows": "real", "gradients": "mxint8"})),
        ("/settings/wire", json!({"rows": "real", "gradients": "real", "dense": "byte"})),
        ("/exchanges/0/lookahead", json!("far")),
    ];
    for (at, value) in wrong {
        let mut bad = good.clone();
        let (parent, key) = at.rsplit_once('/').expect("a path");
        let target = bad.pointer_mut(parent).unwrap_or_else(|| panic!("{parent} is not there"));
        target[key] = value.clone();
        assert!(!schema.is_valid(&bad), "{at} may be {value}");
    }
    let mut rounded = good.clone();
    for rows in ["bf16", "mxint8"] {
        rounded["settings"]["wire"] = json!({"rows": rows, "gradients": "real"});
        assert!(schema.is_valid(&rounded));
        rounded["settings"]["wire"]["dense"] = json!("bf16");
        assert!(schema.is_valid(&rounded));
    }
    let mut less = good.clone();
    less["train"]["ops"][0].as_object_mut().expect("an operation").remove("writes");
    assert!(!schema.is_valid(&less), "an operation without results");
}

/// A table looked up by itself: every transfer of its exchange carries the same entries, so bytes over the bytes of an
/// entry are one number. Two ranks send each other what goes to the other. Where samples cost the same none moves, and who
/// reads them asks for as much as who works on them.
fn counted(sharding: &str, strategy: Strategy, parts: u32, at: Option<Moved>) {
    let balance = if at.is_some() { "balance cost(1, 0, 0)" } else { "balance off" };
    let text = format!(
        "model one {{
           table items {{ rows 64 dim 12 optimizer adagrad(lr: 0.1) sharding {sharding} }}
           input clicked: ids(items) {{ max 6 }}
           input click: label like clicked
           let x = linear(lookup(clicked), 2, bias: off)
           loss bce_with_logits(linear(x, 1, bias: off), click, normalize: samples)
         }}
         train {{ batch 8 steps 12 {balance} optimizer sgd(lr: 0.1) }}
         workload short {{ generate {{ lengths uniform(1, 6) ids uniform }} }}"
    );
    let loaded = fs_dsl::check_text("one.fs", &text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let program = loaded.program.unwrap_or_else(|| panic!("{rendered}"));
    let options = CompileOptions::new(strategy, 2).lookahead(2).microbatches(parts).balance_at(at);
    let s = compile_with(&dividing(program, 2), &options).expect("the model compiles").schedule;
    assert_eq!(Moved::of(&s), at);
    let options = Options::default().evaluate(false);
    let mut session = Session::<f32>::new(s.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    // Entries that went to the other rank, summed over classes, by what carried them.
    let mut entries: BTreeMap<String, f64> = BTreeMap::new();
    for (op, total) in s.train.ops.iter().zip(&report.ops) {
        assert_eq!(op.name, total.name);
        let facts = op.action.facts();
        let Some(transfer) = facts.transfer else {
            assert_eq!(total.sent_bytes, 0.0, "{} is no transfer", op.name);
            continue;
        };
        let (reads, writes) = s.shapes(&s.train, op);
        let sections = op
            .action
            .sections(&fs_schedule::action::Operands { reads: &reads, writes: &writes }, s.settings.wire);
        if facts.phase == Phase::Balance {
            continue;
        }
        if transfer.peers == Peers::Reduce {
            // Both ranks have half of the elements; a half goes over in each round.
            let whole = s.wire(&s.train, op).sent.eval(|_| f64::NAN) * f64::from(transfer.rounds);
            assert_eq!(total.sent_bytes, whole / 2.0 * total.count as f64, "{}", op.name);
            continue;
        }
        // The parts of a column-wise table have the same entries.
        let each: f64 = sections.iter().map(|x| x.entry).sum::<f64>() / sections.len() as f64;
        // Classes of lookups and of gradients go separately.
        let key = format!("{:?} {:?} {:?}", facts.phase, transfer.payload, facts.of.way);
        *entries.entry(key).or_default() += total.sent_bytes / each;
    }
    let list: Vec<f64> = entries.values().copied().collect();
    let most = list.iter().fold(0.0f64, |a, b| a.max(*b));
    assert!(most > 0.0, "{sharding}: nothing travels");
    assert!(list.iter().all(|n| (n - most).abs() < 1e-6 * most), "{sharding}, {strategy:?}: {entries:?}");
}

#[test]
fn bytes_on_the_wire_are_those_that_the_executor_counts() {
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
        let places = if sharding == "data_parallel" { &[None][..] } else { &[None, Some(Moved::Folded)] };
        for at in places {
            counted(sharding, Strategy::Serial, 1, *at);
            counted(sharding, Strategy::Pec, 1, *at);
            counted(sharding, Strategy::Pec, 2, *at);
        }
    }
}

/// What ranking of items sends in each round, by the table of actions and by the executor, on three ranks.
fn ranking(sharding: &str, similarity: &str, rows: u32) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let data = folder.path().join("visits.csv");
    let mut text = String::from("user,item\n");
    for (user, at) in (0..24usize).flat_map(|user| (0..4 + user % 9).map(move |at| (user, at))) {
        let _ = writeln!(text, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 60);
    }
    std::fs::write(&data, text).expect("the data is written");
    let text = format!(
        "model last {{
           table items {{ rows {rows} dim 6 init normal(0, 0.5) optimizer sgd(lr: 0.1) sharding {sharding} }}
           input history: ids(items) {{ max 50 }}
           input following: next(history)
           loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: {similarity}, normalize: tokens)
         }}
         train {{ batch 12 steps 1 }}
         workload visits {{ csv \"visits.csv\" {{ user \"user\" item \"item\" }} evaluate leave_last_out }}"
    );
    let loaded = fs_dsl::check_text("last.fs", &text);
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let program = loaded.program.unwrap_or_else(|| panic!("{rendered}"));
    let s = compile_with(&program, &CompileOptions::new(Strategy::Serial, 3)).expect("it compiles").schedule;
    let device = fs_tests::mock::Options { seed: 3, ..Default::default() };
    let schedule = Arc::new(s.clone());
    let source = fs_executor::data::open(&schedule, Some(&data), None, 1).unwrap_or_else(|e| panic!("{e}"));
    let session = Session::<f32, Mock>::on(schedule, Options::default(), source, &device);
    let mut session = session.unwrap_or_else(|e| panic!("{e}"));
    let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(report.evaluation.expect("an evaluation").users, 24);
    let p = s.evaluation.as_ref().expect("an evaluation");
    let op = p.ops.iter().find(|op| op.action.has(Effect::Ranks)).expect("items are ranked");
    let sizes = |symbol| match symbol {
        Symbol::Ranks => 3.0,
        Symbol::Samples => 4.0,
        other => panic!("{other}"),
    };
    // Of what is sent, a third is the rank's own.
    let said = |first| s.rounds(p, op, first).into_iter().map(|w| w.sent.eval(sizes) * 2.0 / 3.0);
    for (rank, batch) in (0..3).flat_map(|rank| [0, 1].map(|batch| (rank, batch))) {
        let mut sent = device.sent.lock().clone();
        sent.retain(|x| (x.rank, x.batch) == (rank, batch) && x.op == op.name);
        sent.sort_by_key(|x| x.round);
        let found: Vec<f64> = sent.iter().map(|x| x.bytes as f64).collect();
        let said: Vec<f64> = said(batch == 0).collect();
        assert_eq!(found, said, "{sharding}, {similarity}, rank {rank}, batch {batch}");
    }
}

#[test]
fn ranking_sends_what_its_rounds_say() {
    for sharding in ["row_wise", "table_wise", "column_wise", "data_parallel"] {
        ranking(sharding, "dot", 60);
        ranking(sharding, "cosine", 60);
    }
    // Too many scores at once: products are summed in turns, and again.
    ranking("column_wise", "cosine", 450_000);
}

/// No rule lets everything pass: operands that fit no action are refused by every action, in any number.
#[test]
fn every_action_has_a_rule() {
    let s = compiled(
        &fs_dsl::load(&root("examples/ranking.fs")).program.expect("examples check"),
        Strategy::Pec,
        1,
        1,
    );
    let s = s.expect("ranking compiles");
    let columns: Vec<u32> = s.exchanges.iter().map(|e| e.columns(&s.tables)).collect();
    let cx = Context { tables: 0, ..s.context(&columns, 1) };
    let strange = [OperandType::Labels { rows: Extent::Fixed(3) }; 9];
    for action in Action::samples() {
        for (reads, writes) in (0..9).flat_map(|r| (0..9).map(move |w| (r, w))) {
            let refused = action.check(&strange[..reads], &strange[..writes], &cx).is_err();
            // Nothing to load from, nothing to sum: of nothing, these make nothing.
            let nothing = matches!(action, Action::LoadBatch | Action::AllReduce | Action::DenseUpdate);
            assert!(
                refused || (nothing && reads + writes == 0),
                "{action:?} takes {reads} and gives {writes}"
            );
        }
    }
}

/// Names, samples and the schema's variants are the same actions, and every name leads back to its action.
#[test]
fn the_table_lists_every_action_once() {
    let names = Action::names();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for (action, name) in Action::samples().iter().zip(&names) {
        let text = serde_json::to_value(action).expect("JSON");
        assert!(text == json!(name) || text.get(name).is_some(), "{text} is called {name}");
        assert_eq!(serde_json::from_value::<Action>(text).ok().as_ref(), Some(action));
        assert!(action.facts().in_range, "the sample of {name} is out of range");
    }
}

/// Operations of the IR that become actions have their actions' effects: what they write decides what passes may
/// remove, and draws what they may move. (What is read shows in operands.)
#[test]
fn operations_have_the_effects_of_their_actions() {
    let written = |effect: &Effect| match effect {
        Effect::LoadsBatch | Effect::AssignsBatch => Some(Resource::Batch),
        Effect::WritesTable => Some(Resource::Table),
        Effect::WritesParameter => Some(Resource::Parameter),
        Effect::AddsLoss => Some(Resource::Report),
        Effect::Ranks => Some(Resource::Evaluation),
        // Gradients are values until they are summed over ranks; last uses are of the entries that are values.
        Effect::WritesGradient
        | Effect::WritesUses
        | Effect::ReadsBatch
        | Effect::Random
        | Effect::ReadsTable
        | Effect::ReadsBatches
        | Effect::ReadsParameter
        | Effect::ReadsGradient
        | Effect::ReadsUses => None,
    };
    for action in Action::samples() {
        let (name, facts) = (action.name(), action.facts());
        let mut writes: BTreeSet<Resource> = facts.effects.iter().filter_map(written).collect();
        if facts.results.in_place {
            writes.insert(Resource::Gradient);
        }
        for def in fs_compiler::dialect::all().filter(|d| d.name.rsplit('.').next() == Some(name.as_str())) {
            let said = Resource::ALL.into_iter().filter(|r| def.effects.writes(*r));
            assert_eq!(said.collect::<BTreeSet<_>>(), writes, "{} writes", def.name);
            let draws = facts.effects.contains(&Effect::Random);
            assert_eq!(def.effects.reads(Resource::Random), draws, "{} draws", def.name);
        }
    }
}

/// Operations of the IR that become actions add into what their actions add into. (A copy is made by storage only.)
#[test]
fn operations_add_where_their_actions_do() {
    for action in Action::samples().iter().filter(|a| **a != Action::Copy) {
        let name = action.name();
        let defs: Vec<_> = fs_compiler::dialect::all()
            .filter(|d| d.name.rsplit('.').next() == Some(name.as_str()))
            .collect();
        assert!(!defs.is_empty(), "no operation of the IR becomes {name}");
        // Before it is said how rows travel there may be another operation of that name, on sparse gradients.
        let most = defs.iter().map(|d| d.accumulates).max_by_key(|a| a.len()).unwrap_or_default();
        assert_eq!(most, action.facts().results.adds, "{name}");
    }
}
