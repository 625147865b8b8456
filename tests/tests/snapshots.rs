//! The compiler makes of models what it made before: `tests/snapshots.txt`, anew with `UPDATE_EXPECT=1`.

use fs_tests::snapshots::{Wanted, wanted};

#[test]
fn schedules_stay() {
    let text: String = wanted().iter().map(|w| Wanted::line(w) + "\n").collect();
    let path = fs_tests::root("tests/tests/snapshots.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, text).expect("it can be written");
    } else {
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(old, text, "run again with UPDATE_EXPECT=1 if this was meant");
    }
}
