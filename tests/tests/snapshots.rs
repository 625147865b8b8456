//! The compiler makes of models what it made before: `tests/snapshots.txt`, anew with `UPDATE_EXPECT=1`.

use fs_schedule::verify::verify;
use fs_schedule::{Sharding, Strategy};
use fs_tests::schedules::{Recipe, build};
use fs_tests::snapshots::{Wanted, wanted};

#[test]
fn schedules_stay() {
    let text: String = wanted().iter().map(|w| Wanted::line(w) + "\n").collect();
    stays("tests/tests/snapshots.txt", &text);
}

/// What the schedules' own crate reads and verifies, which has no compiler.
#[test]
fn a_valid_schedule_stays() {
    let tables = vec![Sharding::RowWise, Sharding::DataParallel, Sharding::ColumnWise { ranks: vec![1, 0] }];
    let mut s = build(&Recipe::new(Strategy::Pec, Some(1), 2).tables(tables));
    if let Some(op) = s.train.ops.last_mut() {
        op.start = 1 << 53;
    }
    assert_eq!(verify(&s), vec![]);
    stays("schedule/tests/valid.json", &fs_schedule::to_text(&s));
}

fn stays(path: &str, text: &str) {
    let path = fs_tests::root(path);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, text).expect("it can be written");
    } else {
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(old, text, "run again with UPDATE_EXPECT=1 if this was meant");
    }
}
