//! Ranking against a brute-force count, with ties, on every number of ranks.

use std::fmt::Write as _;
use std::fs;

use fs_executor::{Options, Session};
use fs_tests::compile_text;

const ITEMS: usize = 60;
const USERS: usize = 23;

/// Histories with repeated visits: deterministic, no two users alike.
fn histories() -> Vec<Vec<usize>> {
    let item = |user: usize, at: usize| (user * 7 + at * at * 5 + at * user) % ITEMS;
    (0..USERS).map(|u| (0..4 + u % 9).map(|at| item(u, at)).collect()).collect()
}

/// The model scores an item by the product of its row with the row of the last item of the history.
fn check(similarity: &str) {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let path = folder.path().join("visits.csv");
    let mut text = String::from("user,item\n");
    // A first user names all items in order, so that their numbers are known.
    let mut all: Vec<Vec<usize>> = vec![(0..ITEMS).collect()];
    all.extend(histories());
    for (user, visits) in all.iter().enumerate() {
        for item in visits {
            writeln!(text, "u{user},{item}").expect("text grows");
        }
    }
    fs::write(&path, text).expect("the data is written");
    let schedule = compile_text(&format!(
        "model last {{
  table items {{ rows {ITEMS}  dim 2  optimizer sgd(lr: 0.1) }}
  input history: ids(items) {{ max 50 }}
  input following: next(history)
  loss sampled_softmax(lookup(history), items, following, negatives: 3, temperature: 1, similarity: {similarity}, normalize: tokens)
}}
train {{ batch 12  epochs 1 }}
workload visits {{ csv \"visits.csv\" {{ user \"user\"  item \"item\" }}  evaluate leave_last_out }}"
    ));
    // Small whole numbers: products are exact and many scores are equal.
    let rows: Vec<f32> =
        (0..ITEMS).flat_map(|i| [((i * 5) % 4) as f32 - 1.0, ((i * 3) % 5) as f32 - 2.0]).collect();
    let row = |i: usize| [f64::from(rows[2 * i]), f64::from(rows[2 * i + 1])];

    let mut expected = [[0.0f64; 3]; 2];
    for visits in &all {
        let (target, history) = visits.split_last().expect("visits");
        let last = row(*history.last().expect("a history"));
        let score = |i: usize| {
            let r = row(i);
            let dot = last[0] * r[0] + last[1] * r[1];
            if similarity == "dot" { dot } else { dot / (r[0].hypot(r[1]).max(1e-12)) }
        };
        for (kind, sums) in expected.iter_mut().enumerate() {
            let counts = |i: usize| kind == 0 || i == *target || !history.contains(&i);
            let better = |i: usize| score(i) > score(*target) || (score(i) == score(*target) && i < *target);
            let rank = (0..ITEMS).filter(|i| counts(*i) && better(*i)).count();
            sums[0] += f64::from(u8::from(rank < 10));
            sums[1] += f64::from(u8::from(rank < 50));
            sums[2] += if rank < 10 { 1.0 / (rank as f64 + 2.0).log2() } else { 0.0 };
        }
    }
    for ranks in [1, 2, 3, 4] {
        let options = Options::default().ranks(ranks).data(path.clone());
        let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
        session.set_table(0, &rows).unwrap_or_else(|e| panic!("{e}"));
        let scores =
            session.evaluate(&mut ()).unwrap_or_else(|e| panic!("{e}")).expect("the data can be evaluated");
        for (kind, m) in [scores.model.all, scores.model.unseen].iter().enumerate() {
            let n = all.len() as f64;
            for (have, want) in [m.hr_10, m.hr_50, m.ndcg_10].iter().zip(expected[kind]) {
                assert!(
                    (have - want / n).abs() < 1e-9,
                    "{ranks} ranks, kind {kind}: {have}, counted {}",
                    want / n
                );
            }
        }
    }
}

#[test]
fn ranks_with_ties_are_those_of_a_count() {
    check("dot");
}
