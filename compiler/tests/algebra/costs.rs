//! What ways of distributing a table cost, by hand.

use fs_compiler::algebra::convert::to_nodes;
use fs_compiler::algebra::cost::{Classes, Sizes};
use fs_compiler::algebra::derive::{Ways, derive, table};
use fs_compiler::algebra::extract::Found;
use fs_compiler::algebra::rules::{Context, Use};
use fs_compiler::distribution::{Choice, Terms};
use fs_schedule::reuse::Reuse;
use fs_schedule::{Element, Sharding, Way, WirePrecision};

use super::terms::choice;

/// What a way sends is bytes of each of its lists: of all, of each class, of relays, to owners or to all replicas.
#[test]
fn ways_cost_what_their_sizes_say() {
    let reuse = Reuse::new(1, 1);
    let classes = |unique, forward: [f64; 2], backward: [f64; 2]| Classes {
        reuse,
        unique,
        forward: forward.to_vec(),
        backward: backward.to_vec(),
        relayed: [vec![3.0, 5.0], vec![7.0, 11.0]],
    };
    let numbers = Sizes {
        ranks: 8.0,
        node: 2.0,
        occurrences: 1000.0,
        unique: 600.0,
        asked: [640.0, 1000.0],
        relayed: 500.0,
        classes: vec![classes(true, [13.0, 17.0], [19.0, 23.0]), classes(false, [29.0, 31.0], [37.0, 41.0])],
        table: 1e6,
        wire: WirePrecision::default(),
    };
    let context = Context {
        columns: 64,
        exchange: 0,
        uses: vec![Use::Each],
        microbatches: 1,
        lookaheads: Vec::new(),
        windows: vec![1],
        cuts: Vec::new(),
        rows: Element::Real,
        repeats: false,
        moves: false,
        relays: false,
        moved: false,
        folds: None,
        replicates: false,
    };
    let (id, row) = (4.0, 256.0);
    let (whole, within, between) = (7.0 / 8.0, 1.0 / 2.0, 6.0 / 8.0);
    let (owners, replicas) = (Sharding::RowWise, Sharding::DataParallel);
    let through = Choice { relayed: true, ..choice(true, None, owners.clone()) };
    let through_apart = Choice { relayed: true, ..choice(true, Some(1), owners.clone()) };
    for (choice, wire, urgent) in [
        (choice(true, None, owners.clone()), (id + 2.0 * row) * 600.0 * whole, 2.0 * row * 600.0 * whole),
        (choice(false, None, owners.clone()), (id + 2.0 * row) * 1000.0 * whole, 2.0 * row * 1000.0 * whole),
        (choice(true, None, replicas), (id + row) * 600.0 * 7.0, row * 600.0 * 7.0),
        // A byte for each entry's class, of lookups and of gradients; what is used again at once hurries.
        (
            choice(true, Some(1), owners.clone()),
            ((id + 2.0) * 600.0 + row * (13.0 + 17.0 + 19.0 + 23.0)) * whole,
            row * (13.0 + 19.0) * whole,
        ),
        (
            choice(false, Some(1), owners.clone()),
            ((id + 2.0) * 1000.0 + row * (29.0 + 31.0 + 37.0 + 41.0)) * whole,
            row * (29.0 + 37.0) * whole,
        ),
        (
            through,
            (id + 2.0 * row) * (600.0 * within + 500.0 * between),
            2.0 * row * (600.0 * within + 500.0 * between),
        ),
        (
            through_apart,
            ((id + 2.0) * 600.0 + row * 72.0) * within + ((id + 2.0) * 500.0 + row * 26.0) * between,
            row * (32.0 * within + 10.0 * between),
        ),
    ] {
        costs((&context, &choice, &numbers), wire, urgent);
    }
    // Each part of a table cut by columns is asked for, and answered, by itself.
    let cut = Context { cuts: vec![(0, 32), (32, 64)], moves: true, ..context.clone() };
    let parts = choice(true, Some(1), Sharding::ColumnWise { ranks: vec![0, 1] });
    let wire = 2.0 * (id + 2.0) * 600.0 + row * (13.0 + 17.0 + 19.0 + 23.0);
    costs((&cut, &parts, &numbers), wire * whole, row * (13.0 + 19.0) * whole);
    // However it is come by, and beside all else that it may be.
    let open = Context { lookaheads: vec![1], repeats: true, relays: true, replicates: true, ..cut.clone() };
    for now in [parts.clone(), choice(true, None, owners.clone()), choice(false, Some(1), owners.clone())] {
        let ways = Ways::of(&open, &now).expect("ways");
        let found = ways.at(&numbers).found;
        let same = |way: &&Found| {
            let is = fs_compiler::algebra::derive::choice(way.commitment, &parts);
            is == parts && way.commitment.cut == Some(true)
        };
        let [way] = found.iter().filter(same).collect::<Vec<_>>()[..] else { panic!("one way from {now:?}") };
        assert!((way.cost.wire - wire * whole).abs() < 1e-6, "{} for {}", way.cost.wire, wire * whole);
        let mut terms = Terms::default();
        let built = table(&mut terms, &open, &parts).expect("terms");
        assert_eq!(
            ways.nodes(way).to_string(),
            to_nodes(&terms, &built).expect("nodes").to_string(),
            "{now:?}"
        );
    }
    // Several windows are told to owners, and to relays and from there, in two bytes an id.
    let both = Reuse::new(1, 2);
    let ones = |way| vec![1.0; both.count(way)];
    let [forward, backward] = [ones(Way::Forward), ones(Way::Backward)];
    let count = (forward.len() + backward.len()) as f64;
    let relayed = [forward.clone(), backward.clone()];
    let several = Classes { reuse: both, unique: true, forward, backward, relayed };
    let numbers = Sizes { classes: vec![several], ..numbers };
    let context = Context { uses: vec![Use::Each; 2], microbatches: 2, windows: vec![2], ..context };
    let urgent = |way| {
        let hurries = |c: &fs_schedule::reuse::Class| c.distance.is_some_and(|d| d <= both.windows);
        both.classes(way).iter().filter(|c| hurries(c)).count() as f64
    };
    let hurry = (urgent(Way::Forward) + urgent(Way::Backward)) * row;
    let entry = id + 2.0 + 2.0;
    let apart = Choice { windows: Some(2), ..choice(true, Some(1), owners.clone()) };
    costs((&context, &apart, &numbers), (entry * 600.0 + row * count) * whole, hurry * whole);
    let through = Choice { relayed: true, ..apart };
    let wire = (entry * 600.0 + row * count) * within + (entry * 500.0 + row * count) * between;
    costs((&context, &through, &numbers), wire, hurry * (within + between));
}

/// The only way to a choice costs so many bytes, of which so many hurry.
fn costs((context, choice, numbers): (&Context, &Choice, &Sizes), wire: f64, urgent: f64) {
    let found = derive(context, choice, numbers).expect("ways").found;
    let [way] = &found[..] else { panic!("{choice:?}: {} ways", found.len()) };
    for (is, wanted) in [(way.cost.wire, wire), (way.cost.urgent, urgent)] {
        assert!((is - wanted).abs() < 1e-6, "{choice:?}: {is} for {wanted}");
    }
}
