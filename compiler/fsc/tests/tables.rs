//! `fsc compile --table`, from outside.

use std::fs;
use std::process::{Command, Output};

const MODEL: &str = "model two {
  table items { rows 100  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
  table users { rows 50  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise }
  input history: ids(items) { max 5 }
  input user: ids(users) { max 1 }
  input click: label
  loss bce_with_logits(linear(concat(pool(history), pool(user)), 1, name: \"head\"), click, normalize: samples)
}
train { batch 4  steps 2 }
workload w { generate { lengths fixed(1)  ids uniform  labels bernoulli(0.5) } }
";

fn compile(choices: &[&str]) -> (Output, Option<fs_schedule::Schedule>) {
    compile_with(choices, &[])
}

fn compile_with(choices: &[&str], more: &[&str]) -> (Output, Option<fs_schedule::Schedule>) {
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let (model, out) = (dir.path().join("model.fs"), dir.path().join("out.json"));
    fs::write(&model, MODEL).expect("the model is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
    command.arg("compile").arg(&model).arg("-o").arg(&out).args(["--strategy", "pec", "--ranks", "2"]);
    command.args(more);
    for c in choices {
        command.args(["--table", c]);
    }
    let ran = command.output().expect("fsc starts");
    let schedule = ran.status.success().then(|| fs_schedule::file::read(&out).expect("a schedule"));
    (ran, schedule)
}

#[test]
fn each_table_gets_what_is_said_of_it() {
    let (_, schedule) = compile(&["items:lookahead=3,unique=off", "users:sharding=data_parallel"]);
    let s = schedule.expect("it compiles");
    let of = |name: &str| {
        let table = s.tables.iter().position(|t| t.name == name).expect("a table");
        let exchange = s.exchanges.iter().find(|e| e.table as usize == table).expect("an exchange");
        (s.tables[table].sharding.clone(), exchange.unique, exchange.lookahead)
    };
    assert_eq!(of("items"), (fs_schedule::Sharding::RowWise, false, Some(3)));
    assert_eq!(of("users"), (fs_schedule::Sharding::DataParallel, true, Some(1)));
    let (_, plain) = compile(&[]);
    assert!(plain.expect("it compiles").exchanges.iter().all(|e| e.unique && e.lookahead == Some(1)));
}

/// Windows of all tables and of some; nobody having said, the faster of one and of one for each microbatch, which is told.
#[test]
fn rows_are_told_apart_by_the_windows_that_are_said() {
    let windows = |choices: &[&str], more: &[&str]| {
        let (ran, schedule) = compile_with(choices, &[&["--microbatches", "4"], more].concat());
        let told = String::from_utf8_lossy(&ran.stderr).into_owned();
        let s = schedule.unwrap_or_else(|| panic!("{told}"));
        let each = s.exchanges.iter().map(|e| (s.tables[e.table as usize].name.clone(), e.windows));
        let step = s.prediction.as_ref().expect("a prediction").step;
        (each.collect::<std::collections::BTreeMap<_, _>>(), step, told)
    };
    let of = |items, users| [("items".to_owned(), items), ("users".to_owned(), users)].into();
    let (one, each) = (windows(&[], &["--windows", "1"]), windows(&[], &["--windows", "4"]));
    assert_eq!((&one.0, &each.0), (&of(Some(1), Some(1)), &of(None, None)));
    assert_eq!(windows(&["items:windows=2", "users:windows=64"], &[]).0, of(Some(2), None));
    assert_eq!(windows(&["users:windows=1"], &["--windows", "2"]).0, of(Some(2), Some(1)));
    let (_, step, told) = windows(&[], &[]);
    assert!(told.contains("windows: pec, 1 window: ") && told.contains("windows: pec: "), "{told}");
    assert!(!one.2.contains("windows: "), "{}", one.2);
    assert!(step <= one.1.min(each.1), "{step} of {} and {}", one.1, each.1);
    for (windows, part) in
        [("3", "4 microbatches cannot be cut evenly into 3"), ("0", "1..=64"), ("65", "1..=64")]
    {
        let (ran, schedule) = compile_with(&[], &["--microbatches", "4", "--windows", windows]);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(schedule.is_none() && said.contains(part), "{windows}: {said}");
    }
}

#[test]
fn rows_are_placed_as_is_said() {
    let (_, schedule) = compile(&["items:placement=hashed", "users:placement=planned"]);
    let s = schedule.expect("it compiles");
    let of = |name: &str| s.tables.iter().find(|t| t.name == name).map(|t| t.placement.name());
    assert_eq!((of("items"), of("users")), (Some("hashed"), Some("planned")));
    // Where the place is open, too: it would be on every rank.
    let (_, schedule) = compile(&["items:sharding=auto"]);
    assert_eq!(schedule.expect("it compiles").tables[0].sharding, fs_schedule::Sharding::DataParallel);
    for placement in ["hashed", "planned", "range"] {
        let (_, schedule) = compile(&[&format!("items:sharding=auto,placement={placement}")]);
        let items = &schedule.expect("it compiles").tables[0];
        assert_eq!((&items.sharding, items.placement.name()), (&fs_schedule::Sharding::RowWise, placement));
    }
}

#[test]
fn more_windows_than_microbatches_are_told_of() {
    let pec: &[&str] = &[];
    for (tables, more, told) in [
        (pec, &["--windows", "1"][..], false),
        (pec, &["--windows", "2"], true),
        (&["items:windows=2"], &[], true),
        (pec, &["--windows", "2", "--microbatches", "2"], false),
    ] {
        let (ran, schedule) = compile_with(tables, more);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(said.contains("more than a batch has microbatches (1)"), told, "{said}");
        assert!(schedule.is_some(), "{said}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    for (choices, parts) in [
        (&["itms:unique=off"][..], &["no table `itms`", "items, users"][..]),
        (&["items"], &["NAME:KEY=VALUE"]),
        (&["items:unique"], &["NAME:KEY=VALUE"]),
        (&["items:unique=maybe"], &["unique must be on or off", "`maybe`"]),
        (&["items:lookahead=x"], &["lookahead must be a number or none"]),
        (&["items:lookahead=65"], &["1..=64"]),
        (&["items:windows=x"], &["windows must be a number from 1 to 64"]),
        (&["items:windows=0"], &["windows of a table", "1..=64"]),
        (&["items:windows=65"], &["1..=64"]),
        (&["items:windows=1", "items:windows=2"], &["windows of `items` twice"]),
        (&["items:depth=1"], &["no choice `depth`", "sharding"]),
        (&["items:sharding=anywhere"], &["no placement `anywhere`"]),
        (&["items:placement=sorted"], &["no placement of rows `sorted`"]),
        (
            &["items:sharding=data_parallel,placement=hashed"],
            &["table items has a placement of rows, but is data-parallel"],
        ),
        (&["items:placement=hashed", "items:placement=range"], &["placement of `items` twice"]),
        (&["items:unique=on", "items:unique=off"], &["unique of `items` twice"]),
    ] {
        let (ran, schedule) = compile(choices);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(schedule.is_none() && !said.contains("panicked"), "{choices:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{choices:?} must say `{part}`: {said}");
        }
    }
}
