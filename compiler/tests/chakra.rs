//! Chakra traces, read back.

mod traces;

use std::collections::{BTreeMap, BTreeSet};

use fs_compiler::chakra::{ChakraError, Export};
use fs_compiler::distribution::TableOptions;
use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_schedule::{Leg, Schedule};
use traces::{COLLECTIVE, COMPUTE, Node, RECEIVE, SEND, read};

fn model(sharding: &str, train: &str) -> String {
    format!(
        "model m {{
  table items {{ rows 1_001  dim 8  optimizer sgd(lr: 0.1)  sharding {sharding} }}
  table shops {{ rows 50  dim 4  optimizer sgd(lr: 0.1)  sharding data_parallel }}
  input history: ids(items) {{ max 20 }}
  input places: ids(shops) {{ max 20 }}
  input click: label
  let x = concat(pool(history, mode: sum), pool(places, mode: mean))
  loss bce_with_logits(linear(silu(linear(x, 16, name: \"a\")), 1, name: \"b\"), click, normalize: samples)
}}
train {{ batch 48  steps 2  optimizer sgd(lr: 0.1)  {train} }}
workload w {{ generate {{ lengths fixed(10)  ids zipf(1.05)  labels bernoulli(0.5) }} }}
"
    )
}

fn compile(sharding: &str, train: &str, strategy: Strategy, ranks: u32) -> Schedule {
    let loaded = fs_dsl::check_text("model.fs", &model(sharding, train));
    let rendered = fs_dsl::render(&loaded.diagnostics, &loaded.sources, false);
    let Some(program) = &loaded.program else { panic!("{rendered}") };
    let options = CompileOptions::new(strategy, ranks);
    match compile_with(program, &options) {
        Ok(compiled) => compiled.schedule,
        Err(e) => panic!("{e}"),
    }
}

/// What an operation's name and batch are, and whether the step has them in this batch.
fn instances(nodes: &[Node]) -> BTreeSet<(String, u64)> {
    nodes.iter().map(|n| (n.attr["op"].2.clone(), n.number("batch"))).collect()
}

/// All that must hold of the traces of any schedule.
fn check(s: &Schedule, steps: u64) -> Vec<Vec<Node>> {
    let export = Export::new(s, steps).expect("an export");
    let ranks: Vec<Vec<Node>> = (0..s.ranks).map(|r| read(&export.file(r))).collect();
    let everything: BTreeSet<(String, u64)> =
        s.train.ops.iter().flat_map(|op| (0..steps).map(|b| (op.name.clone(), b))).collect();
    let mut sent = BTreeMap::new();
    let mut received = BTreeMap::new();
    for (rank, nodes) in ranks.iter().enumerate() {
        assert_eq!(instances(nodes), everything, "each operation of each batch, and nothing else");
        let mut seen = BTreeSet::new();
        for n in nodes {
            // Acyclic: everything waits for earlier ones only.
            for dep in n.ctrl.iter().chain(&n.data) {
                assert!(seen.contains(dep), "{} waits for {dep}, which is not before it", n.name);
            }
            let mut deps: Vec<u64> = n.ctrl.iter().chain(&n.data).copied().collect();
            deps.sort_unstable();
            deps.dedup();
            assert_eq!(deps.len(), n.ctrl.len() + n.data.len(), "{} names a dependency twice", n.name);
            assert!(seen.insert(n.id), "id {} is there twice", n.id);
            assert!(n.duration >= 1);
            assert_eq!(n.attr["is_cpu_op"].0, 27, "a bool");
            let message =
                || (n.number("comm_src"), n.number("comm_dst"), n.number("comm_tag"), n.number("comm_size"));
            match n.kind {
                COMPUTE => assert!(n.number("num_ops") > 0 && n.number("tensor_size") > 0),
                COLLECTIVE => assert!(n.number("comm_size") > 0 && n.attr["comm_type"].0 == 9),
                SEND => {
                    let (src, dst, tag, size) = message();
                    assert_eq!((src, dst == rank as u64), (rank as u64, false));
                    assert!(sent.insert((src, dst, tag), size).is_none(), "tag {tag} twice");
                }
                RECEIVE => {
                    let (src, dst, tag, size) = message();
                    assert_eq!((dst, src == rank as u64), (rank as u64, false));
                    assert!(received.insert((src, dst, tag), size).is_none(), "tag {tag} twice");
                }
                other => panic!("{} is of kind {other}", n.name),
            }
        }
    }
    assert_eq!(sent, received, "each message has two sides of one size");
    ranks
}

/// Runs all ranks as a machine does that starts whatever waits for nothing: ends only if nothing waits for ever.
fn replay(ranks: &[Vec<Node>]) {
    let mut done: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); ranks.len()];
    let mut arrived = BTreeSet::new();
    loop {
        let mut moved = false;
        for (rank, nodes) in ranks.iter().enumerate() {
            for n in nodes {
                if done[rank].contains(&n.id) || n.ctrl.iter().chain(&n.data).any(|d| !done[rank].contains(d))
                {
                    continue;
                }
                let key = || (n.number("comm_src"), n.number("comm_dst"), n.number("comm_tag"));
                if n.kind == SEND {
                    arrived.insert(key());
                }
                if n.kind == RECEIVE && !arrived.contains(&key()) {
                    continue;
                }
                done[rank].insert(n.id);
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    for (rank, nodes) in ranks.iter().enumerate() {
        assert_eq!(done[rank].len(), nodes.len(), "rank {rank} waits for ever");
    }
}

#[test]
fn all_strategies_and_shardings() {
    for (sharding, train, ranks) in [
        ("row_wise", "", 1),
        ("row_wise", "", 4),
        ("row_wise", "microbatches 2", 2),
        ("table_wise", "", 3),
        ("column_wise", "", 2),
        ("data_parallel", "", 2),
    ] {
        for strategy in [Strategy::Serial, Strategy::Prefetch, Strategy::Pec] {
            let s = compile(sharding, train, strategy, ranks);
            for steps in [1, 4] {
                replay(&check(&s, steps));
            }
        }
    }
}

/// The order that the schedule demands, found by following its dependencies and queues step by step.
#[test]
fn what_a_schedule_orders_stays_ordered() {
    let s = compile("row_wise", "", Strategy::Pec, 2);
    assert!(s.train.ops.iter().any(|o| o.stage > 0), "stages make it worth testing");
    let steps = 3;
    let nodes = &check(&s, steps)[0];
    let of: BTreeMap<u64, &Node> = nodes.iter().map(|n| (n.id, n)).collect();
    let key = |n: &Node| (n.attr["op"].2.clone(), n.number("batch"));
    // Everything that surely comes before a node.
    let mut before: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for n in nodes {
        let mut all = BTreeSet::new();
        for d in n.ctrl.iter().chain(&n.data) {
            all.insert(*d);
            all.extend(&before[d]);
        }
        before.insert(n.id, all);
    }
    let mut instances: BTreeMap<(String, u64), Vec<u64>> = BTreeMap::new();
    for n in nodes {
        instances.entry(key(n)).or_default().push(n.id);
    }
    let mut asked = 0;
    for (i, op) in s.train.ops.iter().enumerate() {
        let queue = s.train.ops[..i].iter().rposition(|o| (o.engine, o.priority) == (op.engine, op.priority));
        let around = s.train.ops.iter().rposition(|o| (o.engine, o.priority) == (op.engine, op.priority));
        let chain = queue.map(|q| (q, 0)).or(around.map(|q| (q, 1)));
        let waits = op.deps.iter().map(|d| (d.op as usize, i64::from(d.distance))).chain(chain);
        for (from, distance) in waits {
            for batch in 0..steps as i64 {
                let earlier = batch - i64::from(op.stage) - distance + i64::from(s.train.ops[from].stage);
                if !(0..steps as i64).contains(&earlier) {
                    continue;
                }
                let firsts = &instances[&(s.train.ops[from].name.clone(), earlier as u64)];
                for later in &instances[&(op.name.clone(), batch as u64)] {
                    for first in firsts {
                        assert!(
                            before[later].contains(first),
                            "{} must wait for {}",
                            of[later].name,
                            of[first].name
                        );
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(asked > 100);
}

/// Bytes of the messages against the schedule's own account of what leaves a rank.
#[test]
fn messages_add_up_to_what_leaves_a_rank() {
    let s = compile("row_wise", "", Strategy::Pec, 4);
    let sizes = &s.prediction.as_ref().expect("a prediction").sizes;
    let size = |symbol: fs_schedule::Symbol| {
        sizes.iter().find(|(name, _)| *name == symbol.to_string()).map_or(0.0, |(_, value)| *value)
    };
    let nodes = check(&s, 1);
    let mut compared = 0;
    for op in s
        .train
        .ops
        .iter()
        .filter(|o| o.name.contains("all_to_all_rows") || o.name.contains("all_to_all_grads"))
    {
        let of_op = |n: &&Node| n.kind == SEND && n.attr["op"].2 == op.name;
        let bytes: u64 = nodes.iter().flatten().filter(of_op).map(|n| n.number("comm_size")).sum();
        // Four ranks send all but their own quarter.
        let expected = 4.0 * op.cost.wire.eval(size) * 0.75;
        if expected > 1000.0 {
            assert!((bytes as f64 / expected - 1.0).abs() < 0.01, "{}: {bytes} of {expected}", op.name);
            compared += 1;
        }
    }
    assert!(compared >= 2);
    // The last shard of 1001 rows over four ranks is a row shorter.
    let to = |rank: u64| {
        let ids = |n: &&Node| {
            n.kind == SEND && n.attr["op"].2.contains("all_to_all_ids") && n.number("comm_dst") == rank
        };
        nodes.iter().flatten().filter(ids).map(|n| n.number("comm_size")).max().expect("ids are sent")
    };
    assert!(to(3) <= to(1));
}

#[test]
fn tables_with_one_owner_are_uneven() {
    let s = compile("table_wise", "", Strategy::Serial, 3);
    let nodes = check(&s, 1);
    let senders: BTreeSet<u64> = nodes
        .iter()
        .flatten()
        .filter(|n| n.kind == SEND && n.attr["op"].2.contains("all_to_all_rows"))
        .map(|n| n.number("comm_src"))
        .collect();
    assert_eq!(senders.len(), 1, "only the owner has rows to send");
}

#[test]
fn sums_and_replicated_tables_are_collectives() {
    let s = compile("data_parallel", "", Strategy::Serial, 2);
    let nodes = &check(&s, 1)[0];
    let kinds: BTreeSet<u64> =
        nodes.iter().filter(|n| n.kind == COLLECTIVE).map(|n| n.number("comm_type")).collect();
    assert_eq!(kinds, BTreeSet::from([0, 2]), "all-reduce and all-gather");
    assert!(nodes.iter().all(|n| n.kind != SEND && n.kind != RECEIVE));
    let sum = nodes.iter().find(|n| n.kind == COLLECTIVE && n.number("comm_type") == 0).expect("a sum");
    let values: u32 = s.parameters.iter().map(|p| p.rows * p.columns).sum();
    assert_eq!(sum.number("comm_size"), u64::from(4 * values));
}

#[test]
fn same_schedule_same_bytes() {
    let s = compile("row_wise", "", Strategy::Pec, 2);
    let file = || Export::new(&s, 3).expect("an export").file(1);
    assert_eq!(file(), file());
}

#[test]
fn what_cannot_be_exported_says_why() {
    let mut s = compile("row_wise", "", Strategy::Serial, 2);
    assert!(matches!(Export::new(&s, 0), Err(ChakraError::NoSteps)));
    assert!(matches!(Export::new(&s, u64::MAX), Err(ChakraError::Large { .. })));
    s.prediction = None;
    assert!(matches!(Export::new(&s, 1), Err(ChakraError::NoPrediction)));
}

/// Through relays nothing that is within nodes leaves them, and what crosses goes between ranks of one place, as many bytes as the
/// schedule expects.
#[test]
fn relays_are_asked_within_nodes_and_ask_between_them() {
    for (sharding, train, strategy) in [
        ("row_wise", "", Strategy::Pec),
        ("row_wise", "microbatches 2", Strategy::Pec),
        ("table_wise", "", Strategy::Serial),
    ] {
        let program = fs_dsl::check_text("model.fs", &model(sharding, train)).program.expect("checks");
        let cluster = fs_dsl::cluster::preset("local").expect("a preset");
        let tables = TableOptions::default().relay([("items".to_owned(), true)]);
        let options = CompileOptions::new(strategy, 6).cluster(cluster).tables(tables);
        let s = compile_with(&program, &options).expect("it compiles").schedule;
        assert_eq!(s.settings.node, Some(2));
        let ranks = check(&s, 3);
        replay(&ranks);
        let sizes = &s.prediction.as_ref().expect("a prediction").sizes;
        let size = |symbol: fs_schedule::Symbol| {
            sizes.iter().find(|(name, _)| *name == symbol.to_string()).map_or(0.0, |(_, value)| *value)
        };
        let mut crossed = 0;
        for op in s.train.ops.iter().filter(|op| op.action.is_transfer()) {
            let Some(leg) = op.action.exchanges().first().map(|e| s.exchanges[*e as usize].leg) else {
                continue;
            };
            let mut all = 0;
            for n in ranks.iter().flatten().filter(|n| n.kind == SEND && n.attr["op"].2 == op.name) {
                let (from, to) = (n.number("comm_src"), n.number("comm_dst"));
                match leg {
                    Leg::Whole => continue,
                    Leg::Within { .. } => assert_eq!(from / 2, to / 2, "{}", op.name),
                    Leg::Between { .. } => assert_eq!(from % 2, to % 2, "{}", op.name),
                }
                all += n.number("comm_size");
            }
            // Of three nodes a third stays; numbers of ids travel beside these.
            let expected = 3.0 * 6.0 * op.cost.wire.eval(size) * 2.0 / 3.0;
            let ids = matches!(op.action, fs_schedule::Action::AllToAllIds { .. });
            let compared = matches!(leg, Leg::Between { .. }) && !ids && sharding == "row_wise";
            if compared && expected > 3000.0 {
                assert!((all as f64 / expected - 1.0).abs() < 0.02, "{}: {all} of {expected}", op.name);
                crossed += 1;
            }
        }
        assert!(crossed >= 2 || sharding != "row_wise", "{crossed}");
    }
}
