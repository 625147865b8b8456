//! What the compiler counts in data: held against a count written once more and plainly, against what runs find, and
//! through the binaries with caches warm, damaged and out of reach.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, compile_with, lowered};
use fs_executor::data::count::Counter;
use fs_executor::data::planning::{Found, look};
use fs_executor::data::samples::block;
use fs_executor::data::{GlobalBatch, Values, open};
use fs_executor::{Options, Session};
use fs_kernels::random::negatives;
use fs_schedule::counts::Counts;
use fs_schedule::{Action, InputKind, Reuse, Schedule, Strategy, Symbol, Way};
use fs_tests::batches::{ids, one_batch};
use fs_tests::binary;
use fs_workload::random::RandomKey;
use proptest::prelude::*;
use tempfile::TempDir;

/// Next items of users in a file, against drawn ones.
fn next_item(batch: u32) -> String {
    format!(
        "model m {{
           table items {{ rows 40  dim 4  init normal(0, 0.02)  optimizer sgd(lr: 0.1) }}
           input seen: ids(items) {{ max 6  keep last }}
           input after: next(seen)
           let x = linear(lookup(seen), 4)
           loss sampled_softmax(x, items, after, negatives: 3, temperature: 0.5, similarity: dot, normalize: tokens)
         }}
         train {{ batch {batch}  steps 4  optimizer sgd(lr: 0.1) }}
         workload w {{ csv \"log.csv\" {{ user \"u\"  item \"i\" }} }}"
    )
}

/// A folder with the model and its data; both names of files.
fn project(model: &str, users: &[Vec<u8>]) -> (TempDir, PathBuf, PathBuf) {
    let dir = TempDir::new().expect("a temporary folder");
    let (file, log) = (dir.path().join("m.fs"), dir.path().join("log.csv"));
    let lines =
        users.iter().enumerate().flat_map(|(u, items)| items.iter().map(move |i| format!("u{u},i{i}\n")));
    fs::write(&file, model).expect("written");
    fs::write(&log, format!("u,i\n{}", lines.collect::<String>())).expect("written");
    (dir, file, log)
}

fn counted(file: &Path, options: &CompileOptions) -> (Arc<Schedule>, Counts) {
    let loaded = fs_dsl::load(file);
    let program = loaded.program.as_ref();
    let program =
        program.unwrap_or_else(|| panic!("{}", fs_dsl::render(&loaded.diagnostics, &loaded.sources, false)));
    let plain = Arc::new(lowered(program, options).unwrap_or_else(|e| panic!("{e}")));
    match look(&plain, false).unwrap_or_else(|e| panic!("{e}")) {
        Found::Counts { counts, .. } => (plain, *counts),
        other => panic!("{other}"),
    }
}

fn compiled(file: &Path, options: &CompileOptions) -> Schedule {
    let program = fs_dsl::load(file).program.expect("it checks");
    compile_with(&program, options).unwrap_or_else(|e| panic!("{e}")).schedule
}

fn expected(s: &Schedule) -> BTreeMap<Symbol, f64> {
    let sizes = &s.prediction.as_ref().expect("a prediction").sizes;
    sizes.iter().map(|(symbol, n)| (symbol.parse().expect("a symbol"), *n)).collect()
}

/// Rows of a table that ranks use in the microbatches of a batch, one a use.
fn uses(s: &Schedule, of: u32, batch: &GlobalBatch, ranks: usize, microbatches: usize) -> Vec<Vec<Vec<i64>>> {
    let draws: Vec<(u64, u32, u32)> = s
        .train
        .ops
        .iter()
        .filter_map(|op| match op.action {
            Action::DrawNegatives { table, count, stream, .. } if table == of => {
                Some((s.tables[table as usize].rows, count, stream))
            }
            _ => None,
        })
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let offsets = &batch.offsets[0];
    let of_rank = |rank| {
        let own = block(batch.samples, rank, ranks);
        let of_part = |m| {
            let cut = block(own.len(), m, microbatches);
            let (mut keys, mut rows) = (Vec::new(), Vec::new());
            for sample in own.start + cut.start..own.start + cut.end {
                let n = offsets[sample + 1] - offsets[sample];
                keys.extend((0..n as u64).map(|place| (sample as u64) << 32 | place));
                for (input, values) in s.inputs.iter().zip(&batch.inputs) {
                    // What comes next is of the table of what it follows, the first one.
                    let table = match input.kind {
                        InputKind::Ids { table, .. } => table,
                        InputKind::Next { .. } => 0,
                        _ => continue,
                    };
                    let Values::Ids(ids) = values else { continue };
                    if table != of {
                        continue;
                    }
                    rows.extend(&ids[offsets[sample]..offsets[sample + 1]]);
                }
            }
            for (table_rows, count, stream) in &draws {
                let mut drawn = vec![0; keys.len() * *count as usize];
                let key = RandomKey { seed: s.settings.seed, stream: *stream, step: batch.step };
                negatives(key, *table_rows, &keys, *count as usize, &mut drawn);
                rows.extend(drawn);
            }
            rows
        };
        (0..microbatches).map(of_part).collect()
    };
    (0..ranks).map(of_rank).collect()
}

/// Mean entries of a rank and batch, in all and by class: every entry looks through all batches.
fn plainly(s: &Schedule, table: u32, at: &Counts, reuse: Reuse, unique: bool) -> (f64, Vec<f64>, Vec<f64>) {
    let (ranks, m) = (s.ranks as usize, reuse.windows as usize);
    let mut source = open(&Arc::new(s.clone()), None, None, s.settings.seed).expect("data");
    let batches: Vec<Vec<Vec<Vec<i64>>>> = (0..=at.of.first + at.of.batches + u64::from(reuse.lookahead))
        .map(|step| {
            let mut batch = GlobalBatch::default();
            source.fill(step, &mut batch).expect("a batch");
            uses(s, table, &batch, ranks, m)
        })
        .collect();
    let used_in = |unit: usize, row: i64| {
        batches.get(unit / m).is_some_and(|b| b.iter().any(|rank| rank[unit % m].contains(&row)))
    };
    let place = |way, microbatch: u32, distance: Option<u32>| {
        let classes = reuse.classes(way);
        let near = classes
            .iter()
            .position(|c| c.window == microbatch && distance.is_some() && c.distance == distance);
        near.or_else(|| classes.iter().position(|c| c.window == microbatch && c.distance.is_none()))
            .expect("a class")
    };
    let zeros = |way| vec![0.0; reuse.count(way)];
    let (mut sent, mut forward, mut backward) = (0.0, zeros(Way::Forward), zeros(Way::Backward));
    for n in at.of.first as usize..(at.of.first + at.of.batches) as usize {
        for rank in &batches[n] {
            let mut entries: Vec<(i64, usize)> = Vec::new();
            for (part, rows) in rank.iter().enumerate() {
                for row in rows {
                    if !unique || entries.iter().all(|(known, _)| known != row) {
                        entries.push((*row, part));
                    }
                }
            }
            for (row, first) in entries {
                sent += 1.0;
                let before = (0..n * m)
                    .rev()
                    .find(|unit| used_in(*unit, row))
                    .map(|unit| (n * m + first - unit) as u32);
                let before = before.filter(|d| *d <= reuse.lookahead);
                forward[place(Way::Forward, first as u32, before)] += 1.0;
                let last = (n * m..(n + 1) * m).rev().find(|unit| used_in(*unit, row)).expect("it is used");
                let after = ((n + 1) * m..batches.len() * m)
                    .find(|unit| used_in(*unit, row))
                    .map(|unit| (unit - last) as u32);
                let after = after.filter(|d| *d <= reuse.lookahead);
                backward[place(Way::Backward, (last % m) as u32, after)] += 1.0;
            }
        }
    }
    let each = 1.0 / (at.of.batches as usize * ranks) as f64;
    forward.iter_mut().chain(&mut backward).for_each(|n| *n *= each);
    (sent * each, forward, backward)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// Sizes of a schedule that was planned with data are what a plain count of the same batches gives, and what a profile's
    /// counter gives for that schedule, whatever it does with its rows.
    #[test]
    fn sizes_are_those_of_the_data(
        users in prop::collection::vec(prop::collection::vec(0..30u8, 3..9), 8..24),
        ranks in 1..4u32, microbatches in 1..3u32, lookahead in 1..4u32,
    ) {
        let (_dir, file, _) = project(&next_item(12), &users);
        let options = CompileOptions::new(Strategy::Pec, ranks).microbatches(microbatches).lookahead(lookahead).balance(false);
        let (lowered_model, counts) = counted(&file, &options);
        let schedule = compiled(&file, &options.clone().counts(counts.clone()));
        prop_assert_eq!(schedule.counted.as_ref(), Some(&counts.of));
        let sizes = expected(&schedule);
        let reuse = Reuse::new(lookahead, microbatches);
        let schedule = Arc::new(schedule);
        let mut source = open(&lowered_model, None, None, lowered_model.settings.seed).expect("data");
        let mut counter = Counter::new(&schedule, source.as_mut(), lowered_model.settings.seed, ranks as usize);
        let profiled = counter.count(counts.of.first..counts.of.first + counts.of.batches).expect("rows");
        prop_assert!(schedule.exchanges.len() == 1);
        for (e, x) in (0..).zip(&schedule.exchanges) {
            let (sent, forward, backward) = plainly(&lowered_model, x.table, &counts, reuse, x.unique);
            prop_assert!(near(sizes[&Symbol::Sent(e)], sent), "{sizes:?}: {sent}");
            // As a profile of that schedule counts the same batches.
            prop_assert_eq!(profiled[e as usize].sent, sizes[&Symbol::Sent(e)]);
            for (way, plain) in [(Way::Forward, &forward), (Way::Backward, &backward)] {
                let classes = profiled[e as usize].reuse.iter().find_map(|r| r.classes(reuse, way)).expect("counted");
                for (c, n) in (0..).zip(plain) {
                    let size = sizes[&Symbol::SentClass(e, way, c)];
                    prop_assert!(near(size, *n), "{way:?} {c}: {sizes:?}, {plain:?}");
                    prop_assert_eq!(size, classes[c as usize]);
                }
            }
        }
        // One rank has nobody to wait for: its sizes are the mean.
        if ranks == 1 {
            let (mut tokens, mut samples) = (0, 0);
            let mut batch = GlobalBatch::default();
            for step in counts.of.first..counts.of.first + counts.of.batches {
                source.fill(step, &mut batch).expect("a batch");
                tokens += batch.tokens();
                samples += batch.samples;
            }
            let each = 1.0 / counts.of.batches as f64;
            prop_assert!(near(sizes[&Symbol::Tokens(0)], tokens as f64 * each));
            prop_assert!(near(sizes[&Symbol::Samples], samples as f64 * each));
        }
    }

    /// One batch again and again: the classes that a run finds are those that were counted, but for its first step.
    #[test]
    fn runs_find_what_was_counted(
        seed in 0..1000u64, ranks in 1..3u32, microbatches in 1..3u32, lookahead in 1..4u32, unique: bool,
    ) {
        const STEPS: u64 = 9;
        let dir = TempDir::new().expect("a temporary folder");
        let lengths: Vec<i32> = (0..12).map(|i| 1 + ((seed >> (i % 7)) % 4) as i32).collect();
        let tokens: i32 = lengths.iter().sum();
        one_batch(&dir.path().join("b.safetensors"), &lengths, &ids(tokens as usize, 25, seed));
        let model = dir.path().join("m.fs");
        fs::write(&model, "model m {
           table a { rows 30  dim 4  init normal(0, 0.5)  optimizer sgd(lr: 0.1)  sharding row_wise }
           input x: ids(a) { max 5 }
           input y: label
           loss bce_with_logits(linear(pool(x, sum), 1), y, normalize: samples)
         }
         train { batch 12  steps 9  optimizer sgd(lr: 0.1) }
         workload w { safetensors \"b.safetensors\" }").expect("written");
        let tables = TableOptions::default().unique([("a".to_owned(), unique)]);
        let options = CompileOptions::new(Strategy::Pec, ranks).microbatches(microbatches).lookahead(lookahead);
        let options = options.tables(tables).balance(false);
        let (lowered_model, counts) = counted(&model, &options);
        let schedule = compiled(&model, &options.clone().counts(counts.clone()));
        prop_assert_eq!(schedule.exchanges[0].unique, unique);
        let sizes = expected(&schedule);
        let reuse = Reuse::new(lookahead, microbatches);
        let (sent, forward, backward) = plainly(&lowered_model, 0, &counts, reuse, unique);
        prop_assert!(near(sizes[&Symbol::Sent(0)], sent), "{sizes:?}: {sent}");
        for (way, plain) in [(Way::Forward, &forward), (Way::Backward, &backward)] {
            for (c, n) in (0..).zip(plain) {
                prop_assert!(near(sizes[&Symbol::SentClass(0, way, c)], *n), "{way:?} {c}: {sizes:?}, {plain:?}");
            }
        }
        let mut session = Session::<f32>::new(schedule, Options::default().steps(STEPS).evaluate(false)).expect("it runs");
        prop_assert!(!session.is_of_other_data());
        let report = session.run(&mut ()).expect("it trains");
        let of = |c: usize| sizes[&Symbol::SentClass(0, Way::Forward, c as u32)];
        let classes = reuse.classes(Way::Forward);
        for row in &report.accounting.rows {
            let c = classes.iter().position(|c| c.window == row.microbatch && c.distance == row.distance).expect("a class");
            // To the first batch no row was used before.
            let of_part = || (0..classes.len()).filter(|i| classes[*i].window == row.microbatch).map(of).sum::<f64>();
            let first = if row.distance.is_none() { of_part() } else { 0.0 };
            let share = ((STEPS - 1) as f64 * of(c) + first) / (STEPS as f64 * sizes[&Symbol::Sent(0)]);
            prop_assert!(near(share, row.share), "{row:?}: {share}, {sizes:?}");
        }
    }
}

fn fsc(dir: &Path, args: &[&str]) -> Output {
    let mut fsc = Command::new(binary("fsc"));
    fsc.current_dir(dir).env("XDG_CACHE_HOME", dir.join("cache")).args(args);
    fsc.output().expect("fsc starts")
}

/// The schedule and what was said.
fn compile(dir: &Path, more: &[&str]) -> (String, String) {
    let out = fsc(
        dir,
        &[&["compile", "m.fs", "-o", "s.json", "--ranks", "2", "--strategy", "pec"][..], more].concat(),
    );
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    (fs::read_to_string(dir.join("s.json")).expect("a schedule"), said)
}

fn users() -> Vec<Vec<u8>> {
    (0..16u8).map(|u| (0..3 + u % 5).map(|n| (u * 7 + n * n) % 30).collect()).collect()
}

#[test]
fn what_was_counted_is_kept_and_changes_nothing() {
    let (dir, _, log) = project(&next_item(12), &users());
    let dir = dir.path();
    let kept = dir.join(".log.csv.counts.json");
    let (cold, said) = compile(dir, &["--no-cache"]);
    assert!(
        said.contains("lengths and ids: counted in 64 batches of log.csv") && !said.contains("(cached)"),
        "{said}"
    );
    assert!(!kept.exists());
    assert_eq!(compile(dir, &[]).0, cold);
    let good = fs::read(&kept).expect("it is kept");
    let (warm, said) = compile(dir, &[]);
    assert!(said.contains("(cached)") && warm == cold, "{said}");
    // Cut off, changed, somebody else's: counted anew, and kept again.
    let text = String::from_utf8(good.clone()).expect("text");
    let changed = text.replacen("\"sent\":", "\"sent\":1", 1);
    assert_ne!(changed, text);
    for bad in [&good[..good.len() / 2], changed.as_bytes(), b"{}", b"", b"\xff\xfe", b"[1, 2]"] {
        fs::write(&kept, bad).expect("written");
        let (again, said) = compile(dir, &[]);
        assert!(!said.contains("(cached)") && again == cold, "{said}");
        assert_eq!(fs::read(&kept).expect("kept"), good);
    }
    // Other settings and other data are other counts; those before are kept as well.
    let (other, said) = compile(dir, &["--microbatches", "2"]);
    assert!(!said.contains("(cached)") && other != cold, "{said}");
    assert!(compile(dir, &["--microbatches", "2"]).1.contains("(cached)"));
    assert!(compile(dir, &[]).1.contains("(cached)"));
    fs::write(&log, fs::read_to_string(&log).expect("text").replace("i7\n", "i8\n")).expect("written");
    let (other, said) = compile(dir, &[]);
    assert!(!said.contains("(cached)") && other != cold, "{said}");
}

#[test]
fn folders_that_cannot_be_written_do_not_fail() {
    let (dir, _, _) = project(&next_item(12), &users());
    let dir = dir.path();
    // Nothing can be put there, whoever asks.
    fs::create_dir_all(dir.join(".log.csv.counts.json")).expect("a folder");
    let (cold, _) = compile(dir, &[]);
    assert_eq!(fs::read_dir(dir.join("cache/fsc")).expect("the user's cache").count(), 1);
    let (warm, said) = compile(dir, &[]);
    assert!(said.contains("(cached)") && warm == cold, "{said}");
    fs::remove_dir_all(dir.join("cache")).expect("removed");
    fs::write(dir.join("cache"), "no folder").expect("written");
    let (again, said) = compile(dir, &[]);
    assert!(!said.contains("(cached)") && again == cold, "{said}");
}

#[test]
fn data_that_are_not_there_are_assumed_and_wrong_ones_are_errors() {
    let (dir, _, log) = project(&next_item(12), &users());
    let dir = dir.path();
    let (_, said) = compile(dir, &[]);
    assert!(!said.contains("assumed"), "{said}");
    let (laws, said) = compile(dir, &["--assume", "workload"]);
    assert!(said.contains("was not read") || laws.contains("was not read"), "{said}");
    let text = fs::read_to_string(&log).expect("text");
    fs::remove_file(&log).expect("removed");
    let (missing, said) = compile(dir, &[]);
    assert!(
        said.contains("note: log.csv is not there: nothing was counted in it") && missing == laws,
        "{said}"
    );
    fs::remove_file(dir.join("s.json")).expect("removed");
    fs::write(&log, text.replacen("u1,", "", 1)).expect("written");
    let out = fsc(dir, &["compile", "m.fs", "-o", "s.json", "--ranks", "2"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("log.csv") && said.contains("line 5"), "{said}");
    assert!(said.contains("--assume workload") && !dir.join("s.json").exists(), "{said}");
}

#[test]
fn runs_say_when_their_data_are_others() {
    let (dir, _, log) = project(&next_item(12), &users());
    let dir = dir.path();
    compile(dir, &[]);
    let run = || {
        let out =
            Command::new(binary("fsx")).current_dir(dir).args(["run", "s.json", "--steps", "2"]).output();
        let out = out.expect("fsx starts");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(!run().contains("of other data"));
    let told = fsc(dir, &["explain", "s.json"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("planned for      lengths and ids counted in 64 batches from step 8 of data "),
        "{told}"
    );
    fs::write(&log, fs::read_to_string(&log).expect("text") + "u0,i1\n").expect("written");
    assert!(run().contains("note: the schedule was planned by lengths and ids of other data"));
}
