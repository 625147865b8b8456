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
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let (model, out) = (dir.path().join("model.fs"), dir.path().join("out.json"));
    fs::write(&model, MODEL).expect("the model is written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fsc"));
    command.arg("compile").arg(&model).arg("-o").arg(&out).args(["--strategy", "pec", "--ranks", "2"]);
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

#[test]
fn rows_are_placed_as_is_said() {
    let (_, schedule) = compile(&["items:placement=hashed", "users:placement=planned"]);
    let s = schedule.expect("it compiles");
    let of = |name: &str| s.tables.iter().find(|t| t.name == name).map(|t| t.placement.name());
    assert_eq!((of("items"), of("users")), (Some("hashed"), Some("planned")));
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
