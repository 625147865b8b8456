//! What the verifier says of unaimed mutants stays what it was: `tests/verdicts.txt`, anew with `UPDATE_EXPECT=1`.

use fs_schedule::verify::verify;
use fs_tests::verdicts::{bases, mutants, report};

#[test]
fn verdicts_stay() {
    let bases = bases();
    for (name, s) in &bases {
        assert_eq!(verify(s), vec![], "{name}");
    }
    let text = report(&bases, &mutants(&bases, 150));
    let path = fs_tests::root("tests/tests/verdicts.txt");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, text).expect("it can be written");
    } else {
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(old, text, "run again with UPDATE_EXPECT=1 if this was meant");
    }
}
