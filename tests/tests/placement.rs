//! Which rows a rank owns changes who serves them, and nothing else: the same losses, values, states, rankings and files,
//! to the bit, whether rows are placed by range, hashed or planned.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::path::Path;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_dsl::checked::Program;
use fs_executor::{Options, Session, profile};
use fs_schedule::{RowPlacement, Schedule};
use fs_tests::training::{Outcome, compile, model, state, train};
use fs_workload::placement::deal;

const PLACEMENTS: [&str; 3] = ["range", "hashed", "planned"];

fn run(schedule: Schedule, ranks: usize) -> Outcome {
    let options = Options::default().ranks(ranks).evaluate(false);
    let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
    train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}")).0
}

fn sharding(placement: &str) -> String {
    format!("row_wise(placement: {placement})")
}

/// Every strategy, with tables that do not divide by the ranks and tables of fewer rows than ranks.
#[test]
fn placements_give_the_same_bits() {
    let ids = ["zipf(1.05)", "zipf(1.3, numbered: by_popularity)"];
    for (n, (ranks, rows, optimizer, unique)) in [
        (1, 60, "adagrad(lr: 0.05)", true),
        (2, 61, "adam(lr: 0.05)", true),
        (3, 2, "sgd(lr: 0.1)", true),
        (3, 50, "rowwise_adagrad(lr: 0.05)", false),
        (4, 3, "adagrad(lr: 0.05)", true),
        (4, 61, "rowwise_adagrad(lr: 0.05)", true),
    ]
    .into_iter()
    .enumerate()
    {
        for microbatches in [1, 3] {
            let text = |placement: &str| {
                model(&sharding(placement), optimizer, rows, unique).replace(ids[0], ids[n % 2])
            };
            let expected =
                run(compile(&text("range"), Strategy::Serial, ranks, 1, microbatches), ranks as usize);
            for placement in &PLACEMENTS[1..] {
                for (strategy, lookahead) in
                    [(Strategy::Serial, 1), (Strategy::Prefetch, 1), (Strategy::Pec, 1), (Strategy::Pec, 3)]
                {
                    let schedule = compile(&text(placement), strategy, ranks, lookahead, microbatches);
                    assert!(schedule.tables.iter().all(|t| t.placement.name() == *placement));
                    assert!(
                        run(schedule, ranks as usize) == expected,
                        "{placement}: {ranks} ranks, {rows} rows, {optimizer}, {strategy:?}, lookahead {lookahead}, \
                         {microbatches} microbatches"
                    );
                }
            }
        }
    }
}

/// A schedule with hashed rows runs on other ranks than it was planned for; planned rows belong to theirs.
#[test]
fn hashed_rows_do_not_fix_the_ranks() {
    let text = |placement: &str| model(&sharding(placement), "adagrad(lr: 0.05)", 60, true);
    let hashed = compile(&text("hashed"), Strategy::Pec, 2, 1, 1);
    for ranks in [1, 3] {
        assert!(run(hashed.clone(), ranks) == run(compile(&text("range"), Strategy::Pec, 2, 1, 1), ranks));
    }
    let planned = compile(&text("planned"), Strategy::Pec, 2, 1, 1);
    let refused = Session::<f32>::new(planned, Options::default().ranks(3)).err().unwrap().to_string();
    assert!(refused.contains("is placed on ranks of 2"), "{refused}");
}

fn visits(path: &Path) {
    let mut text = String::from("user,item\n");
    for user in 0..24usize {
        for at in 0..4 + user % 9 {
            writeln!(text, "u{user},{}", (user * 7 + at * at * 5 + at * user) % 60).unwrap();
        }
    }
    std::fs::write(path, text).unwrap();
}

fn ranking(similarity: &str) -> Program {
    let text = format!(
        "model last {{
          table items {{ rows 63  dim 6  init constant(0.5)  optimizer adagrad(lr: 0.1)  sharding row_wise }}
          input history: ids(items) {{ max 50 }}
          input following: next(history)
          loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: {similarity}, normalize: tokens)
        }}
        train {{ batch 12  epochs 2 }}
        workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}"
    );
    fs_dsl::check_text("model.fs", &text).program.unwrap()
}

/// Items start from one value, so that many have equal scores, and the lower id goes first whatever its owner.
#[test]
fn rankings_and_files_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("visits.csv");
    visits(&data);
    for similarity in ["dot", "cosine"] {
        let schedule = |ranks| {
            compile_with(&ranking(similarity), &CompileOptions::new(Strategy::Pec, ranks)).unwrap().schedule
        };
        let of = |schedule: Schedule, init: Option<&Path>, steps| {
            let options = Options::default().data(data.clone()).init(init.map(Path::to_owned)).steps(steps);
            let mut session =
                Session::<f32>::new(schedule, options.evaluate(true)).unwrap_or_else(|e| panic!("{e}"));
            let report = session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
            let evaluation = report.evaluation.unwrap();
            let file = folder.path().join("saved");
            session.save(&file).unwrap();
            let scores = (evaluation.users, evaluation.model, evaluation.popularity);
            (report.loss, scores, state(&session).unwrap(), std::fs::read(file).unwrap())
        };
        for ranks in [2, 3, 4] {
            let range = schedule(ranks);
            let hot: Vec<(u64, f64)> = (0..63).step_by(2).map(|row| (row, 1.0 / (row + 1) as f64)).collect();
            let expected = of(range.clone(), None, 4);
            let file = folder.path().join("start");
            std::fs::write(&file, &expected.3).unwrap();
            let again = of(range.clone(), Some(&file), 3);
            for placement in [RowPlacement::Hashed, deal(&hot, 1.0, 63, ranks.into())] {
                let mut placed = range.clone();
                placed.tables[0].placement = placement.clone();
                assert_eq!(placed.reference_digest(), range.reference_digest());
                assert!(
                    of(placed.clone(), None, 4) == expected,
                    "{similarity}, {ranks} ranks, {placement:?}"
                );
                assert!(
                    of(placed, Some(&file), 3) == again,
                    "{similarity}, {ranks} ranks, started, {placement:?}"
                );
            }
        }
    }
}

/// What a file says of itself is of the model too: saved after any schedule of equal values, it is the same bytes.
#[test]
fn saved_files_are_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut digests = Vec::new();
    let mut saved = |schedule: Schedule, ranks: usize| {
        // As read from a file, with its digest.
        let text = fs_schedule::to_text(&schedule);
        let schedule = fs_schedule::file::parse(Path::new("s.json"), text.as_bytes(), true).unwrap();
        digests.push(schedule.digest.clone());
        let options = Options::default().ranks(ranks).evaluate(false);
        let mut session = Session::<f32>::new(schedule, options).unwrap_or_else(|e| panic!("{e}"));
        train(&mut session, &mut ()).unwrap_or_else(|e| panic!("{e}"));
        let file = folder.path().join("saved");
        session.save(&file).unwrap();
        std::fs::read(file).unwrap()
    };
    let text = |placement: &str| model(&sharding(placement), "adagrad(lr: 0.05)", 61, true);
    let expected = saved(compile(&text("range"), Strategy::Serial, 2, 1, 1), 2);
    for placement in PLACEMENTS {
        for (strategy, lookahead) in [(Strategy::Serial, 1), (Strategy::Prefetch, 1), (Strategy::Pec, 2)] {
            let schedule = compile(&text(placement), strategy, 2, lookahead, 1);
            assert!(saved(schedule, 2) == expected, "{placement}, {strategy:?}");
        }
    }
    // Samples of equal lengths are given to ranks, and stay.
    let even = |balance: &str| {
        let text = text("range").replace("uniform(0, 7)", "fixed(5)");
        compile(&text.replace("train {", &format!("train {{ balance {balance} ")), Strategy::Pec, 2, 1, 1)
    };
    let (on, off) = (even("on"), even("off"));
    assert!(on.settings.balance.is_some() && off.settings.balance.is_none());
    assert!(saved(on, 2) == saved(off, 2), "balance");
    digests.sort();
    digests.dedup();
    assert_eq!(digests.len(), 11, "they are schedules of their own");
}

fn skewed(ids: &str, sharding: &str) -> Program {
    let text = format!(
        "model skewed {{
          table items {{ rows 20_000  dim 32  optimizer sgd(lr: 0.1)  sharding {sharding} }}
          input x: ids(items) {{ max 100 }}
          input click: label like x
          loss bce_with_logits(linear(lookup(x), 1), click, normalize: tokens)
        }}
        train {{ batch 64  steps 6 }}
        workload w {{ generate {{ lengths uniform(50, 100)  ids {ids}  labels hash }} }}"
    );
    fs_dsl::check_text("model.fs", &text).program.unwrap()
}

fn of(program: &Program, ranks: u32) -> Schedule {
    compile_with(program, &CompileOptions::new(Strategy::Pec, ranks))
        .unwrap_or_else(|e| panic!("{e}"))
        .schedule
}

/// Rows are hashed unasked where that is predicted to be faster, and nowhere else.
#[test]
fn rows_are_hashed_where_it_pays() {
    let popular = "zipf(1.05, numbered: by_popularity)";
    for (ids, sharding, ranks, placement) in [
        (popular, "row_wise", 4, "hashed"),
        (popular, "row_wise", 1, "range"),
        ("zipf(1.05)", "row_wise", 4, "range"),
        ("uniform", "row_wise", 4, "range"),
        (popular, "row_wise(placement: range)", 4, "range"),
        ("uniform", "row_wise(placement: hashed)", 4, "hashed"),
        (popular, "data_parallel", 4, "range"),
    ] {
        let schedule = of(&skewed(ids, sharding), ranks);
        assert_eq!(schedule.tables[0].placement.name(), placement, "{ids}, {sharding}, {ranks} ranks");
    }
    let step = |placement: &str| of(&skewed(popular, &sharding(placement)), 4).prediction.unwrap().step;
    let [range, hashed, planned] = PLACEMENTS.map(step);
    assert!(hashed < range && planned <= hashed, "{range}, {hashed}, {planned}");
}

/// The busiest owner of a run is the expected one.
#[test]
fn the_busiest_owner_is_reported() {
    let popular = "zipf(1.05, numbered: by_popularity)";
    let busiest = PLACEMENTS.map(|placement| {
        let schedule = of(&skewed(popular, &sharding(placement)), 4);
        let mut session = Session::<f32>::new(schedule, Options::default().evaluate(false)).unwrap();
        let owners = session.run(&mut ()).unwrap().accounting.owners;
        assert_eq!((owners.len(), owners[0].table.as_str(), owners[0].placement), (1, "items", placement));
        owners[0].busiest
    });
    let [range, hashed, planned] = busiest;
    assert!(range > 1.8 && hashed < 1.1 && planned < 1.05, "{busiest:?}");
}

/// Rows of data that the compiler does not read are planned, and hashed unasked, by what a profile has counted.
#[test]
fn a_profile_counts_rows() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("visits.csv");
    visits(&data);
    let program = ranking("dot");
    let options = |placement: Option<&str>| {
        let placement = placement.map(|p| ("items".to_owned(), p.to_owned()));
        CompileOptions::new(Strategy::Pec, 3).tables(TableOptions::default().placement(placement))
    };
    let refused = compile_with(&program, &options(Some("planned"))).unwrap_err().to_string();
    assert!(refused.contains("nothing says which rows are asked for most"), "{refused}");
    let plain = compile_with(&program, &options(None)).unwrap().schedule;
    let mut session =
        Session::<f32>::new(plain, Options::default().data(data.clone()).steps(80).evaluate(false)).unwrap();
    let mut profile = profile::measure(&mut session, 6).unwrap_or_else(|e| panic!("{e}"));
    let rows = &profile.rows[0];
    assert!(rows.hot.len() > 10 && rows.hashed.is_some(), "{rows:?}");
    let planned =
        compile_with(&program, &options(Some("planned")).profile(profile.clone())).unwrap().schedule;
    let RowPlacement::Planned { hot } = &planned.tables[0].placement else { panic!("not planned") };
    assert_eq!(hot.iter().map(Vec::len).sum::<usize>(), rows.hot.len());
    for (range, hashed, expected) in [(2.0, 1.2, "hashed"), (1.2, 1.19, "range")] {
        (profile.rows[0].busiest, profile.rows[0].hashed) = (range, Some(hashed));
        let schedule = compile_with(&program, &options(None).profile(profile.clone())).unwrap().schedule;
        assert_eq!(schedule.tables[0].placement.name(), expected);
    }
}
