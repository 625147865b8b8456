//! Terms that mean the same have the same values on random data, on several ranks, and terms that do not, differ.

use fs_compiler::distribution::reference::{Values, World};
use fs_compiler::distribution::ty::Precision;
use fs_compiler::distribution::{Choice, Id, Lookahead, Op, PerTable};
use fs_schedule::{Element, Sharding, Way, WirePrecision};
use proptest::prelude::*;

use super::terms::{Data, Sizes, choice, choices, sizes};

/// Of the two nearest numbers with zeros behind the eighth bit the nearer, of equally near ones the even one.
fn brain(x: f32) -> f32 {
    let below = f32::from_bits(x.to_bits() & 0xffff_0000);
    let above = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
    let (a, b) = ((x - below).abs(), (above - x).abs());
    let even = |y: f32| y.to_bits() >> 16 & 1 == 0;
    if a < b || (a == b && even(below)) { below } else { above }
}

/// Of a block's numbers the nearest multiples of the power of two of which the greatest takes 64 to 127.
fn block(row: &[f32]) -> Vec<f32> {
    let greatest = row.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let unit = (0..60).map(|n| 1024.0 / 2f32.powi(n)).find(|unit| 64.0 * unit <= greatest).unwrap_or(1.0);
    row.iter().map(|x| (x / unit).round_ties_even().clamp(-127.0, 127.0) * unit).collect()
}

/// Ids of a source where its samples are worked on, by who reads them and then by sample.
fn moved(world: &World, source: u32) -> Vec<Vec<Vec<u64>>> {
    let mut all = vec![Vec::new(); world.ranks];
    for (home, ids) in world.ids[&(source, 0)].iter().enumerate() {
        let offsets = &world.offsets[&(source, 0)][home];
        for (sample, to) in world.assigned[&0][home].iter().enumerate() {
            all[*to].extend_from_slice(&ids[offsets[sample]..offsets[sample + 1]]);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is chosen, every id gets its row and every row its gradients: unique or per occurrence, together or
    /// merged from classes, of owners or replicas, whole or by columns.
    #[test]
    fn choices_mean_the_same(s in sizes()) {
        // Occurrences of two operations are added in another order than each row's sums: only whole numbers do not tell.
        let mut data = if s.repeats() { Data::new(s) } else { Data::of_thirds(s) };
        data.world.table.iter_mut().flatten().for_each(|x| *x += 1.0 / 3.0);
        // What lookups mean, without any exchange.
        let expected: Vec<Vec<Vec<Vec<f32>>>> = (0..data.ids.len() as u32).map(|source| {
            let by_rank = if s.moved { moved(&data.world, source) } else { data.world.ids[&(source, 0)].clone() };
            let row = |id: &Vec<u64>| {
                let row = &data.world.table[id[0] as usize];
                match s.wire.rows {
                    Element::Bf16 => row.iter().map(|x| brain(*x)).collect::<Vec<_>>(),
                    Element::Mxint8 => block(row),
                    _ => row.clone(),
                }
            };
            by_rank.iter().map(|ids| ids.iter().map(row).collect()).collect()
        }).collect();
        let (mut first_used, mut first_totals) = (None, None);
        // Whatever rows all ranks have beside their owners, of tables whose entries a rank lists itself.
        let hot = |choice: &Choice| choice.sharding != Sharding::DataParallel && !choice.folded;
        let with_hot = choices(s).into_iter().filter(hot).map(|choice| (choice, true));
        let all = choices(s).into_iter().map(|choice| (choice, false)).chain(with_hot);
        for (i, (choice, hot)) in (0..).zip(all) {
            let of = if hot { Data::build_with_hot } else { Data::build };
            let d = of(&mut data, &choice, 10 * i, s.microbatches);
            let used = data.used(&d, s.microbatches, s.sequences);
            for (rows, expanded) in expected.iter().zip(used.iter().step_by(3)) {
                for (rows, part) in rows.iter().zip(expanded) {
                    prop_assert_eq!(&part.values, &Values::Reals(rows.clone()), "{:?}", choice);
                }
            }
            prop_assert_eq!(first_used.get_or_insert_with(|| used.clone()), &used, "{:?}", choice);
            let totals = data.totals(&d);
            prop_assert_eq!(first_totals.get_or_insert_with(|| totals.clone()), &totals, "{:?}", choice);
        }
    }

    /// Moving ids to the ranks that work on them, or their rows, is the same; there and back is nothing.
    #[test]
    fn dispatched(s in sizes()) {
        let mut data = Data::new(Sizes { moved: false, ..s });
        let d = data.build(&choice(true, None, Sharding::RowWise), 0, s.microbatches);
        let rows = d.rows(&mut data.terms, 0).expect("well-typed");
        let (ids, offsets) = (data.ids[0], data.offsets[0]);
        let inverse = data.add(Op::Inverse, &[d.entries, ids]);
        let after = data.add(Op::Expand, &[rows, inverse]);
        let after = data.add(Op::Dispatch, &[after, offsets]);
        let moved = data.add(Op::Dispatch, &[ids, offsets]);
        let entries = data.add(Op::Entries { exchange: 1, unique: true, uses: false }, &[moved]);
        let asked = data.add(Op::Ask { exchange: 1 }, &[entries]);
        let y = data.add(Op::Gather, &[d.parts[0].shard, asked]);
        let back = data.add(Op::Return, &[y, asked, entries]);
        let inverse = data.add(Op::Inverse, &[entries, moved]);
        let before = data.add(Op::Expand, &[back, inverse]);
        prop_assert_eq!(data.eval(after), data.eval(before));
        let home = data.add(Op::Combine, &[moved, offsets]);
        prop_assert_eq!(data.eval(home), data.eval(ids));
        for of_samples in [offsets, data.pooled[0]] {
            let there = data.add(Op::Dispatch, &[of_samples]);
            let back = data.add(Op::Combine, &[there]);
            prop_assert_eq!(data.eval(back), data.eval(of_samples));
        }
    }

    /// What must not be mistaken for the same: a class left out, other ids' positions, another precision.
    #[test]
    fn what_differs(s in sizes()) {
        let s = Sizes { wire: WirePrecision::default(), ..s };
        let mut data = Data::new(s);
        let d = data.build(&choice(true, Some(s.lookahead), Sharding::RowWise), 0, s.microbatches);
        let whole = d.rows(&mut data.terms, s.microbatches - 1).expect("well-typed");
        let lookups = d.parts[0].lookups.clone().expect("told apart");
        for left_out in 0..lookups.lists.len() as u32 {
            let mut operands = Vec::new();
            for class in (0..lookups.lists.len() as u32).filter(|c| *c != left_out) {
                operands.push(d.fetched(&mut data.terms, 0, Some(class)).expect("well-typed"));
                operands.push(lookups.lists[class as usize].asker);
            }
            if operands.is_empty() {
                continue;
            }
            let merged = data.add(Op::Merge, &operands);
            let of_class = data.eval(lookups.lists[left_out as usize].asker);
            let empty = of_class.iter().all(|p| p.values == Values::Positions(Vec::new()));
            let same = data.eval(merged) == data.eval(whole);
            prop_assert_eq!(same, empty, "class {}", left_out);
        }
        // Thirds have no end in 8 bits.
        data.world.table.iter_mut().flatten().for_each(|x| *x += 1.0 / 3.0);
        let cast = data.add(Op::Cast { to: Precision::Bf16 }, &[whole]);
        let exact = data.eval(whole);
        let any = exact.iter().any(|p| matches!(&p.values, Values::Reals(rows) if !rows.is_empty()));
        prop_assert_eq!(data.eval(cast) == exact, !any);
        let twice = data.add(Op::Cast { to: Precision::Bf16 }, &[cast]);
        prop_assert_eq!(data.eval(twice), data.eval(cast));
    }
}

/// A row of one rank and sizes of several: both follow from the term.
#[test]
fn sizes_follow_from_terms() {
    let s = Sizes {
        ranks: 2,
        nodes: 1,
        rows: 5,
        microbatches: 2,
        sequences: 1,
        lookahead: 1,
        seed: 1,
        wire: WirePrecision::default(),
        moved: false,
    };
    let mut data = Data::new(s);
    let d = data.build(&choice(true, Some(1), Sharding::ColumnWise { ranks: vec![0, 1] }), 7, 2);
    let symbol = |data: &Data, id| data.terms.extent(id).map(|e| e.to_string());
    let p = &d.parts[1];
    assert_eq!(symbol(&data, d.entries).as_deref(), Some("U7"));
    assert_eq!(symbol(&data, p.all.owner).as_deref(), Some("R8"));
    let lookups = p.lookups.clone().expect("told apart");
    assert_eq!(symbol(&data, lookups.lists[1].owner).as_deref(), Some("R8f1"));
    assert_eq!(symbol(&data, lookups.lists[1].asker).as_deref(), Some("U7f1"));
    let y = d.looked_up(&mut data.terms, 1, Some(1)).expect("well-typed");
    let z = d.fetched(&mut data.terms, 1, Some(1)).expect("well-typed");
    assert_eq!((symbol(&data, y).as_deref(), symbol(&data, z).as_deref()), (Some("R8f1"), Some("U7f1")));
    assert_eq!(data.terms.elements(z).to_string(), "3*U7f1");
    assert_eq!((data.terms.exchange(z), data.terms.class(z)), (Some(8), Some(1)));
    let rows = d.rows(&mut data.terms, 1).expect("well-typed");
    assert_eq!(data.terms.elements(rows).to_string(), "4*U7");
    let inverse = data.add(Op::Inverse, &[d.entries, data.ids[0]]);
    let expanded = data.add(Op::Expand, &[rows, inverse]);
    assert_eq!(data.terms.elements(expanded).to_string(), "4*T0");
    let sum = data.add(Op::ExpandGrad, &[data.gradients[0], inverse]);
    let sent = d.sent(&mut data.terms, 1, Some(0), sum).expect("well-typed");
    assert_eq!(symbol(&data, sent).as_deref(), Some("R8b0"));
}

/// Equal terms are one, and ill-typed ones are refused with the operand at fault.
#[test]
fn terms_are_typed() {
    let s = Sizes {
        ranks: 2,
        nodes: 1,
        rows: 5,
        microbatches: 1,
        sequences: 2,
        lookahead: 1,
        seed: 1,
        wire: WirePrecision::default(),
        moved: false,
    };
    let mut data = Data::new(s);
    let row_wise = choice(true, None, Sharding::RowWise);
    let d = data.build(&row_wise, 0, 1);
    let count = data.terms.len();
    assert_eq!(data.build(&row_wise, 0, 1), d);
    assert_eq!(data.terms.len(), count, "the same terms");
    let inverse = data.add(Op::Inverse, &[d.entries, data.ids[0]]);
    let asked = d.parts[0].all.owner;
    let y = d.looked_up(&mut data.terms, 0, None).expect("well-typed");
    let said =
        |r: Result<Id, _>| r.map(|_| ()).map_err(|e: fs_compiler::distribution::TypeError| e.to_string());
    let t = &mut data.terms;
    let (ids, shard) = (data.ids[0], d.parts[0].shard);
    for (op, children, error) in [
        // Rows at owners are not where the samples are.
        (Op::Expand, vec![y, inverse], "operand 0 of expand must be rows of a rank"),
        (Op::Expand, vec![shard, inverse], "operand 0 of expand must be rows of a rank"),
        // Ids are not entries.
        (Op::Ask { exchange: 0 }, vec![ids], "operand 0 of ask must be the entries of a rank"),
        (
            Op::Return,
            vec![y, d.entries, d.entries],
            "operand 1 of return must be a list of entries at the right side",
        ),
        (Op::Gather, vec![shard, d.entries], "operand 1 of gather must be rows asked for where the shard is"),
        (Op::Combine, vec![ids], "operand 0 of combine must be of samples, and where they are taken from"),
        (
            Op::Partition { way: Way::Forward, lookahead: 1, windows: 1, each: 1 },
            vec![asked],
            "operand 1 of partition must be two",
        ),
    ] {
        assert_eq!(said(t.add(op, &children)), Err(error.into()), "{op:?}");
    }
    let other =
        t.add(Op::Entries { exchange: 3, unique: true, uses: false }, &[data.ids[1]]).expect("entries");
    let error = "operand 1 of inverse must be ids that the entries were made of";
    assert_eq!(said(t.add(Op::Inverse, &[other, ids])), Err(error.into()));
    // Samples that were moved are not those at home.
    let moved = t.add(Op::Dispatch, &[ids, data.offsets[0]]).expect("ids of samples");
    let alone = "operand 1 of dispatch must be as many as it takes";
    assert_eq!(said(t.add(Op::Dispatch, &[ids])), Err(alone.into()));
    let asked = Op::AskFor { exchange: 0, unique: true, uses: false };
    let error = "operand 0 of ask_for must be ids of samples at home";
    assert_eq!(said(t.add(asked, &[moved, data.offsets[0]])), Err(error.into()));
    let both = t.add(Op::Entries { exchange: 3, unique: true, uses: false }, &[ids, moved]);
    assert_eq!(said(both), Err("operand 1 of unique must be like the first".into()));
}

#[test]
fn per_table_options_read_back() {
    for text in ["true", "items:false", "true;items:false;users:true"] {
        let read: PerTable<bool> = text.parse().expect("well-formed");
        assert_eq!(read.to_string(), text);
    }
    let read: PerTable<Lookahead> = "1; items: none ;users:2".parse().expect("well-formed");
    assert_eq!(read.to_string(), "1;items:none;users:2");
    assert_eq!(read.get("items"), Some(&Lookahead(None)));
    assert_eq!(read.get("others"), Some(&Lookahead(Some(1))));
    assert_eq!(read.unknown(&["items"]), Some("users"));
    for text in ["", "maybe", "items:maybe", "true;false", "items:true;items:true"] {
        assert!(text.parse::<PerTable<bool>>().is_err(), "{text}");
    }
}

/// Tables that are told apart differently, send occurrences, live elsewhere or travel alone make one schedule, which
/// the verifier proves.
#[test]
fn tables_are_chosen_for_one_by_one() {
    let text = "model small {
          table a { rows 60  dim 8  init normal(0, 0.5)  optimizer adagrad(lr: 0.05)  sharding row_wise }
          table b { rows 40  dim 8  init hash(scale: 0.3)  optimizer adagrad(lr: 0.05)  sharding row_wise }
          input x: ids(a) { max 9 }
          input y: ids(b) like x
          input click: label like x
          loss bce_with_logits(linear(lookup(x) + lookup(y), 1), click, normalize: tokens)
        }
        train { batch 12  steps 7  optimizer adam(lr: 1e-2) }
        workload w { generate { lengths uniform(0, 7)  ids zipf(1.05)  labels hash  samples 31 } }";
    let loaded = fs_dsl::check_text("model.fs", text);
    let program = loaded.program.as_ref().expect("a program");
    let both = |a: &str, b: &str| [("a".to_owned(), a.to_owned()), ("b".to_owned(), b.to_owned())];
    for microbatches in [1, 2, 3] {
        for (lookahead, unique, sharding, group) in [
            (("2", "none"), (true, true), ("row_wise", "row_wise"), 1),
            (("1", "3"), (true, false), ("row_wise", "data_parallel"), 0),
            (("none", "2"), (false, true), ("column_wise", "row_wise"), 1),
            (("2", "1"), (true, true), ("data_parallel", "table_wise"), 0),
        ] {
            let lookahead = both(lookahead.0, lookahead.1).map(|(t, k)| (t, k.parse().expect("a lookahead")));
            let tables = fs_compiler::distribution::TableOptions::default()
                .lookahead(lookahead)
                .unique([("a".to_owned(), unique.0), ("b".to_owned(), unique.1)])
                .sharding(both(sharding.0, sharding.1))
                .groups([("a".to_owned(), 0), ("b".to_owned(), group)]);
            let options = fs_compiler::CompileOptions::new(fs_compiler::Strategy::Pec, 3)
                .microbatches(microbatches)
                .tables(tables.clone());
            let compiled = fs_compiler::compile_with(program, &options);
            let schedule = compiled.unwrap_or_else(|e| panic!("{tables:?}: {e}")).schedule;
            for e in &schedule.exchanges {
                let name = &schedule.tables[e.table as usize].name;
                assert_eq!(
                    (e.unique, e.lookahead),
                    (tables.unique[name], tables.lookahead[name].0),
                    "{name}"
                );
            }
        }
    }
}
