//! What keeping hot rows at all ranks could save at most, of the examples' data: why it is not done (docs/algebra.md).

use std::sync::Arc;

use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::data::count::Counter;
use fs_executor::data::open;
use fs_schedule::{Element, Schedule, Sharding, WirePrecision};
use fs_tests::{dividing, root};
use fs_workload::placement::MOST_HOT;

/// Batches that are counted.
const BATCHES: u64 = 12;

/// Bytes that a mean rank sends of rows, gradients and ids of all tables that have owners, in a step, and those that it would not send if
/// each row for which that is less lived everywhere: one rank sums its gradients, since sums have one order, and sends the row to all.
fn could_be_spared(s: &Arc<Schedule>, wire: WirePrecision) -> (f64, f64) {
    let ranks = f64::from(s.ranks);
    let mut source = open(s, None, None, s.settings.seed).expect("data");
    let mut counter = Counter::new(s, source.as_mut(), s.settings.seed, s.ranks as usize);
    let (mut all, mut spared) = (0.0, 0.0);
    for rows in counter.count(1..1 + BATCHES).expect("rows") {
        let table = s.tables.iter().find(|t| t.name == rows.table).expect("its table");
        let exchange = s.exchanges.iter().find(|x| s.tables[x.table as usize].name == rows.table);
        let columns = exchange.expect("its exchange").columns(&s.tables);
        assert!(table.sharding == Sharding::RowWise && rows.part == 0, "{}", table.name);
        let [row, gradient] = [wire.rows, wire.gradients].map(|of| of.row_bytes(columns) as f64);
        // With the microbatches that use it, where rows are told apart.
        let id = (Element::Index.row_bytes(1) + Element::Byte.row_bytes(2)) as f64;
        let away = (ranks - 1.0) / ranks;
        all += rows.sent * (row + gradient + id) * away;
        // Of a row that a rank asks for in such a share of batches: it sends its gradient then, as before, and gets the sum always.
        let less = |share: f64| (share * (row + id) - row).max(0.0) * away;
        spared += rows.hot.iter().map(|(_, share)| less(*share)).sum::<f64>();
        // Rows that are not among so many counted ones are asked for no more often than the least of these.
        if rows.hot.len() >= MOST_HOT {
            let least = rows.hot.iter().map(|(_, share)| *share).fold(1.0, f64::min);
            let others = rows.sent - rows.hot.iter().map(|(_, share)| *share).sum::<f64>();
            spared += others / least * less(least);
        }
    }
    (all, spared)
}

#[test]
fn hot_rows_would_save_next_to_nothing() {
    let narrow =
        WirePrecision { rows: Element::Mxint8, gradients: Element::Bf16, ..WirePrecision::default() };
    let mut counted = 0;
    for name in ["movielens", "ranking", "dlrm"] {
        for ranks in [2, 8] {
            let program = fs_dsl::load(&root(&format!("examples/{name}.fs"))).program.expect("it checks");
            let program = dividing(program, ranks);
            let names: Vec<String> =
                program.model.iter().flat_map(|m| &m.tables).map(|t| t.name.clone()).collect();
            let owned =
                TableOptions::default().sharding(names.into_iter().map(|t| (t, "row_wise".to_owned())));
            let options = CompileOptions::new(Strategy::Pec, ranks).balance(false).tables(owned);
            let schedule =
                compile_with(&program, &options).unwrap_or_else(|e| panic!("{name}: {e}")).schedule;
            let schedule = Arc::new(schedule);
            for (precision, wire) in [("f32", WirePrecision::default()), ("mxint8 and bf16", narrow)] {
                let (all, spared) = could_be_spared(&schedule, wire);
                let share = spared / all;
                eprintln!(
                    "{name}, {ranks} ranks, {precision}: {spared:.0} of {all:.0} B, {:.2}%",
                    share * 100.0
                );
                assert!(
                    share < if precision == "f32" { 0.012 } else { 0.031 },
                    "{name}, {ranks} ranks, {precision}: {share}"
                );
                counted += 1;
            }
        }
    }
    assert_eq!(counted, 12);
}
