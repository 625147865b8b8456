//! What one run saves another starts from, to the bit: values and optimizer states, on any sharding and number of ranks,
//! with rows that belong to the ids of the data and not to their order.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::weights::Ids;
use fs_executor::{Options, Session};
use fs_schedule::{Schedule, Sharding};
use fs_tests::root;
use fs_tests::training::{Outcome, SHARDINGS, bits, model, state, train};

fn compile(text: &str, ranks: u32) -> Schedule {
    fs_tests::training::compile(text, Strategy::Pec, ranks, 1, 1)
}

fn small(sharding: &str, ranks: u32) -> Schedule {
    let text = format!(
        "model small {{
          table a {{ rows 37  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.1)  sharding {sharding} }}
          input x: ids(a) {{ max 9 }}
          input click: label like x
          loss bce_with_logits(linear(lookup(x), 1), click, normalize: tokens)
        }}
        train {{ batch 12  steps 3  optimizer adam(lr: 1e-2) }}
        workload w {{ generate {{ lengths uniform(0, 7)  ids zipf(1.05)  labels hash }} }}"
    );
    compile(&text, ranks)
}

fn options() -> Options {
    Options::default().evaluate(false)
}

fn session(schedule: &Schedule, options: Options) -> Session<f32> {
    Session::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn saved_values_start_any_other_sharding() {
    let folder = tempfile::tempdir().unwrap();
    for (n, from) in SHARDINGS.iter().enumerate() {
        let mut trained = session(&small(from, [1, 2, 3, 4, 3, 4][n]), options());
        let initial = bits(&trained.table(0).unwrap());
        trained.run(&mut ()).unwrap();
        let all = state(&trained).unwrap();
        assert_ne!(all[0], initial, "{from}: nothing was trained");
        let path = folder.path().join(format!("{from}.safetensors"));
        trained.save(&path).unwrap();
        for (to, ranks) in SHARDINGS.iter().flat_map(|to| [2, 3].map(|ranks| (to, ranks))) {
            let schedule = small(to, ranks);
            if let Sharding::ColumnWise { ranks } = &schedule.tables[0].sharding {
                assert!(ranks.len() > 1, "one part only");
            }
            let started = session(&schedule, options().init(path.clone()));
            assert_eq!(state(&started).unwrap(), all, "{from} to {to} on {ranks} ranks");
            let taken = started.taken().unwrap();
            assert!(taken.in_model.is_empty() && taken.in_file.is_empty() && taken.no_state.is_empty());
            assert_eq!((taken.step, started.next_step(), &taken.ids), (3, 3, &Ids::RowNumbers));
            // Nothing is lost on the way back either.
            let again = folder.path().join("again.safetensors");
            started.save(&again).unwrap();
            let back = session(&small(from, 2), options().init(again));
            assert_eq!(state(&back).unwrap(), all, "{from} to {to} and back");
        }
    }
}

/// After N steps, saving, starting from that and M more, everything has the bits that N + M steps give.
#[test]
fn training_goes_on_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v.safetensors");
    for (sharding, optimizer, dense, lookahead, microbatches) in [
        ("row_wise", "rowwise_adagrad(lr: 0.05)", "adam(lr: 1e-2)", 1, 1),
        ("row_wise", "adam(lr: 0.05)", "sgd(lr: 0.1, momentum: 0.9)", 2, 2),
        ("table_wise", "sgd(lr: 0.1)", "sgd(lr: 0.1)", 1, 1),
        ("column_wise", "adam(lr: 0.05)", "adam(lr: 1e-2)", 2, 1),
        ("data_parallel", "adagrad(lr: 0.05)", "adam(lr: 1e-2)", 1, 2),
        ("row_wise(placement: hashed)", "adam(lr: 0.05)", "adam(lr: 1e-2)", 2, 1),
        ("row_wise(placement: planned)", "rowwise_adagrad(lr: 0.05)", "adam(lr: 1e-2)", 1, 2),
    ] {
        let text = model(sharding, optimizer, 60, true).replace("adam(lr: 1e-2)", dense);
        for strategy in [Strategy::Serial, Strategy::Pec] {
            let s = fs_tests::training::compile(&text, strategy, 2, lookahead, microbatches);
            let run = |steps: u64, init: Option<PathBuf>| -> (Outcome, Session<f32>) {
                let mut session = session(&s, options().steps(steps).init(init));
                (train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}")).0, session)
            };
            let (whole, _) = run(9, None);
            let (first, session) = run(4, None);
            session.save(&path).unwrap();
            let (second, _) = run(5, Some(path.clone()));
            let what = format!("{sharding}, {optimizer}, {dense}, {strategy:?}");
            assert_eq!([first.losses, second.losses].concat(), whole.losses, "{what}");
            assert!(second.state == whole.state, "{what}");
        }
    }
}

/// A model of what follows in a CSV file, for tables of so many rows.
fn following(rows: u32, ranks: u32) -> Schedule {
    let text = format!(
        "model last {{
          table items {{ rows {rows}  dim 6  init normal(0, 0.5)  optimizer rowwise_adagrad(lr: 0.1) }}
          input history: ids(items) {{ max 50 }}
          input following: next(history)
          loss sampled_softmax(linear(lookup(history), 6), items, following, negatives: 3, normalize: tokens)
        }}
        train {{ batch 12  epochs 2  optimizer adam(lr: 1e-2) }}
        workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\"  time \"time\" }}  evaluate leave_last_out }}"
    );
    compile(&text, ranks)
}

/// Visits as lines: user, item, time; no two times of a user are equal.
fn visits() -> Vec<(usize, String, usize)> {
    let of =
        |user: usize| (0..5 + user % 9).map(move |at| (user, (user * 7 + at * at * 5 + at * user) % 60, at));
    (0..24).flat_map(of).map(|(user, item, at)| (user, format!("i{item}"), at)).collect()
}

fn csv(path: &Path, lines: &[(usize, String, usize)]) {
    let mut text = String::from("user,item,time\n");
    for (user, item, time) in lines {
        writeln!(text, "u{user},{item},{time}").unwrap();
    }
    fs::write(path, text).unwrap();
}

/// The same lines in another order number the items otherwise; the rows follow the items.
#[test]
fn rows_belong_to_ids_and_not_to_the_order_of_lines() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lines = visits();
    csv(&at("a.csv"), &lines);
    // Users in the same order, the visits of each in the opposite one.
    let mut other = lines.clone();
    other.sort_by_key(|(user, _, time)| (*user, std::cmp::Reverse(*time)));
    csv(&at("b.csv"), &other);
    let s = following(60, 2);
    let start = |data: &str, init: Option<PathBuf>| {
        session(&s, Options::default().data(at(data)).init(init).steps(20).evaluate(true))
    };
    let mut trained = start("a.csv", None);
    trained.run(&mut ()).unwrap();
    trained.save(&at("v")).unwrap();
    let known = trained.evaluate(&mut ()).unwrap().unwrap();
    let next = |data: &str| {
        let mut session = start(data, Some(at("v")));
        let scores = session.evaluate(&mut ()).unwrap().unwrap();
        let first = session.advance(1, &mut ()).unwrap()[0].loss();
        (session, scores.model, first)
    };
    let (same, scores, loss) = next("a.csv");
    assert_eq!(scores, known.model);
    let (reversed, other_scores, other_loss) = next("b.csv");
    let Ids::Matched { shared, new: 0, absent: 0, .. } = reversed.taken().unwrap().ids else {
        panic!("{:?}", reversed.taken())
    };
    assert!(shared > 40, "{shared} ids");
    assert_eq!((other_scores, other_loss.to_bits()), (scores, loss.to_bits()));
    assert_eq!(state(&same).unwrap(), state(&reversed).unwrap());
    // Without the vocabulary it is another model: what is tested can go wrong.
    let mut alone = start("b.csv", None);
    for (t, values) in [trained.table(0).unwrap()].iter().enumerate() {
        alone.set_table(t, values).unwrap();
    }
    (0..s.parameters.len()).for_each(|p| alone.set_parameter(p, &trained.parameter(p)).unwrap());
    assert_ne!(alone.evaluate(&mut ()).unwrap().unwrap().model, scores);
}

/// Ids that the file lacks take rows after its last, which start as the model says; those that the data lacks stay.
#[test]
fn ids_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let lines = visits();
    csv(&at("a.csv"), &lines);
    let items = |lines: &[(usize, String, usize)]| {
        let mut seen: Vec<String> = Vec::new();
        for (_, item, _) in lines {
            if !seen.contains(item) {
                seen.push(item.clone());
            }
        }
        seen
    };
    let known = items(&lines);
    // One item is gone, another is there for the first time, in the first line.
    let gone = known[3].clone();
    let mut other: Vec<_> = lines.iter().filter(|(_, item, _)| *item != gone).cloned().collect();
    other.insert(0, (0, "neu ü".into(), 99));
    csv(&at("b.csv"), &other);
    let options = |data: &str, init: Option<PathBuf>| options().data(at(data)).init(init).steps(5);
    let rows = known.len() as u32 + 1;
    let s = following(rows, 2);
    let mut trained = session(&s, options("a.csv", None));
    trained.run(&mut ()).unwrap();
    trained.save(&at("v")).unwrap();
    let (before, initial) =
        (trained.table(0).unwrap(), session(&s, options("a.csv", None)).table(0).unwrap());
    let started = session(&s, options("b.csv", Some(at("v"))));
    let taken = started.taken().unwrap();
    let expected = Ids::Matched {
        shared: known.len() - 1,
        new: 1,
        absent: 1,
        some_new: vec!["neu ü".into()],
        some_absent: vec![gone.clone()],
    };
    assert_eq!(taken.ids, expected);
    let said = taken.notes().join("\n");
    assert!(said.contains("lacks ids of the data, whose rows start as the model says: neu ü"), "{said}");
    assert!(said.contains(&format!("has ids that the data lacks, whose rows are kept: {gone}")), "{said}");
    let after = started.table(0).unwrap();
    let split = known.len() * 6;
    assert_eq!(
        bits(&after[..split]),
        bits(&before[..split]),
        "rows of known ids, and of the one that is gone"
    );
    assert_eq!(bits(&after[split..]), bits(&initial[split..]), "the new one's row is as new");
    assert_ne!(bits(&after[split..]), bits(&before[split..]), "it was a negative before");
    assert_eq!(started.table_state(0).unwrap()[0][known.len()], 0.0, "its state too");
    // All of them are saved again, and a model with more rows takes them.
    started.save(&at("w")).unwrap();
    let larger = session(&following(rows + 30, 3), options("a.csv", Some(at("w"))));
    let taken = larger.taken().unwrap();
    assert_eq!(taken.resized, ["table.items"]);
    let Ids::Matched { new: 0, absent: 1, some_absent, .. } = &taken.ids else { panic!("{taken:?}") };
    assert_eq!(some_absent, &["neu ü"]);
    assert_eq!(bits(&larger.table(0).unwrap()[..split]), bits(&after[..split]));
    // A table without room for the new id is refused.
    let s = following(rows - 1, 2);
    let mut full = session(&s, options("a.csv", None));
    full.run(&mut ()).unwrap();
    full.save(&at("full")).unwrap();
    let error = Session::<f32>::new(s, options("b.csv", Some(at("full")))).err().unwrap().to_string();
    let (have, all) = (known.len(), known.len() + 1);
    assert!(
        error.contains(&format!("have {have} ids")) && error.contains(&format!("at least {all} rows")),
        "{error}"
    );
}

/// Takes the optimizer states and what it says of itself from a file: what was written before states were.
fn strip(from: &Path, to: &Path) {
    let bytes = fs::read(from).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kept: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| !name.contains('/')).collect();
    fs::write(to, safetensors::serialize(kept, None).unwrap()).unwrap();
}

/// A model that starts again without its optimizer's state is lost in a step, and that is said; with it, it is not.
#[test]
fn evaluation_does_not_collapse() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let loaded = fs_dsl::load(&root("examples/movielens.fs"));
    let program = loaded.program.as_ref().unwrap();
    let s = compile_with(program, &CompileOptions::new(Strategy::Pec, 2)).unwrap().schedule;
    let options = |steps: u64, init: Option<PathBuf>| {
        Options::default().schedule_file(root("examples/movielens.json")).steps(steps).init(init)
    };
    let run = |steps: u64, init: Option<PathBuf>| {
        let mut session = session(&s, options(steps, init));
        let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
        (report.evaluation.unwrap().model.unseen.hr_10, session)
    };
    let (trained, session) = run(60, None);
    session.save(&at("v")).unwrap();
    strip(&at("v"), &at("values"));
    let (with, _) = run(1, Some(at("v")));
    let (without, session) = run(1, Some(at("values")));
    eprintln!("HR@10 {trained:.4}, a step later {with:.4}; without states {without:.4}");
    assert!(with > 0.9 * trained, "{trained} became {with}");
    assert!(without < 0.7 * trained, "{trained} became {without}: the test shows nothing");
    let taken = session.taken().unwrap();
    assert_eq!((taken.step, taken.trained, &taken.ids), (0, None, &Ids::ByNumber { ids: 9066 }));
    assert_eq!(taken.no_state[0], "table.movies/row_sum");
    let said = taken.notes().join("\n");
    assert!(said.contains("no state of the optimizer for these") && said.contains("may undo"), "{said}");
    assert!(said.contains("does not say which ids its rows belong to"), "{said}");
}

/// The reader that docs/weights.md shows, in Python.
#[test]
fn python_reads_a_row_by_its_id() {
    // tests/weights/python.sh names one that has the packages.
    let python = std::env::var("FS_PYTHON").unwrap_or_else(|_| "python3".into());
    let packages = Command::new(&python).args(["-c", "import safetensors.numpy"]).output();
    if !packages.is_ok_and(|out| out.status.success()) {
        eprintln!("skipped: {python} with the packages safetensors and numpy is not here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    csv(&at("a.csv"), &visits());
    let mut trained = session(&following(60, 2), options().data(at("a.csv")).steps(5));
    trained.run(&mut ()).unwrap();
    trained.save(&at("v")).unwrap();
    let page = fs::read_to_string(root("docs/weights.md")).unwrap();
    let (_, code) = page.split_once("```python\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    // The second line of the file has the second item.
    let id = &visits()[1].1;
    let out = Command::new(&python).args(["-c", code, at("v").to_str().unwrap(), id]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8(out.stdout).unwrap();
    let (step, row) = said.trim().split_once(' ').unwrap();
    let row: Vec<f32> = serde_json::from_str(row).unwrap();
    assert_eq!((step, bits(&row)), ("5", bits(&trained.table(0).unwrap()[6..12])));
}
