//! One launch for several tables: what is planned so, that its order does not matter, and where it must not be.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use fs_compiler::{CompileOptions, Strategy, compile_with};
use fs_executor::{Options, Session};
use fs_schedule::verify::verify;
use fs_schedule::{Action, Dep, Engine, Program, Schedule, Site};
use fs_tests::interpreter::{Order, Workload, reference, run};
use fs_tests::models::{Features, models};
use fs_tests::training::state;
use fs_tests::{checked, dividing, root};
use proptest::prelude::*;

const FEATURES: Features = Features { shardings: true, microbatches: true, placements: true };
const STRATEGIES: [Strategy; 4] = [Strategy::Serial, Strategy::Prefetch, Strategy::Overlap, Strategy::Pec];

/// A machine whose launches take a microsecond, as much as the work of tables of random models.
fn small() -> fs_dsl::checked::Cluster {
    fs_dsl::checked::Cluster { sms: 1, ..fs_dsl::cluster::preset("local").unwrap() }
}

fn planned_on(
    cluster: fs_dsl::checked::Cluster,
    program: &fs_dsl::checked::Program,
    strategy: Strategy,
    ranks: u32,
    lookahead: u32,
) -> Schedule {
    let options = CompileOptions::new(strategy, ranks).cluster(cluster).lookahead(lookahead).balance(false);
    compile_with(program, &options).unwrap_or_else(|e| panic!("{e}")).schedule
}

fn planned(program: &fs_dsl::checked::Program, strategy: Strategy, ranks: u32, lookahead: u32) -> Schedule {
    let cluster = fs_dsl::cluster::preset("dgx_h100").unwrap();
    planned_on(cluster, program, strategy, ranks, lookahead)
}

fn example(name: &str, strategy: Strategy) -> Schedule {
    let loaded = fs_dsl::load(&root(&format!("examples/{name}.fs")));
    planned(&loaded.program.unwrap(), strategy, 2, 1)
}

fn trained(schedule: &Schedule, stress: Option<u64>) -> Vec<Vec<u32>> {
    let options = Options::default().evaluate(false).steps(3).stress(stress);
    let mut session = Session::<f32>::new(schedule.clone(), options).unwrap_or_else(|e| panic!("{e}"));
    session.run(&mut ()).unwrap_or_else(|e| panic!("{e}"));
    state(&session).unwrap()
}

/// Three tables, of one of which two lookups add into one gradient.
const TABLES: &str = "model m {
      table a { rows 50  dim 8  optimizer sgd(lr: 0.1) }
      table b { rows 40  dim 8  optimizer sgd(lr: 0.1) }
      table c { rows 30  dim 8  optimizer sgd(lr: 0.1) }
      input x: ids(a) { max 4 }
      input y: ids(a) like x
      input z: ids(b) like x
      input v: ids(c) like x
      input click: label like x
      loss bce_with_logits(linear(lookup(x) + lookup(y) + lookup(z) + lookup(v), 1), click, normalize: tokens)
    }
    train { batch 8  steps 4  optimizer sgd(lr: 0.1) }
    workload w { generate { lengths fixed(4)  ids zipf(1.05)  labels bernoulli(0.5) } }";

/// Names of what launches of several operations start, by the first of each.
fn launches(p: &Program) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = Vec::new();
    for op in &p.ops {
        match all.last_mut() {
            Some(launch) if op.joined => launch.push(&op.name),
            _ => all.push(vec![&op.name]),
        }
    }
    all.retain(|launch| launch.len() > 1);
    all
}

/// Without a word of launches: the same order, one after the other.
fn apart(s: &Schedule) -> Schedule {
    let mut s = s.clone();
    s.train.ops.iter_mut().for_each(|op| op.joined = false);
    s.seal();
    s
}

/// dlrm has four tables, of which one is replicated and one has another optimizer than the others.
#[test]
fn tables_that_have_little_to_do_share_launches() {
    let s = example("dlrm", Strategy::Overlap);
    let found = launches(&s.train);
    for of in [
        vec!["users.unique", "items.unique", "words.unique"],
        vec!["users.gather", "items.gather", "words.gather"],
        vec!["users.apply", "items.apply", "words.apply"],
    ] {
        let together = |launch: &Vec<&str>| of.iter().all(|name| launch.contains(name));
        assert_eq!(found.iter().filter(|launch| together(launch)).count(), 1, "{of:?} of {found:?}");
    }
    // A launch is paid once: what is joined takes less than one.
    let launch = (fs_dsl::cluster::preset("dgx_h100").unwrap().host.latency * 1e9) as u64;
    for pair in s.train.ops.windows(2).filter(|pair| pair[1].joined) {
        assert!(pair[1].time < launch && (pair[0].joined || pair[0].time >= launch), "{pair:?}");
        assert_eq!(pair[1].start, pair[0].start + pair[0].time, "{pair:?}");
    }
    // Rows of other classes go by themselves; the splits of a gradient into its classes do not.
    let s = example("dlrm", Strategy::Pec);
    let classes = |kind: &str| {
        let ops = s.train.ops.iter().filter(|op| op.action.name() == kind);
        let mut of: Vec<BTreeSet<Vec<u32>>> = Vec::new();
        for op in ops {
            if !op.joined {
                of.push(BTreeSet::new());
            }
            of.last_mut().unwrap().insert(op.action.facts().of.classes.to_vec());
        }
        of
    };
    assert!(classes("gather").iter().all(|of| of.len() == 1));
    assert!(classes("apply").iter().all(|of| of.len() == 1));
    assert_eq!(classes("split").iter().map(BTreeSet::len).max(), Some(2));
}

/// What takes longer than its launch has one of its own, and so has what is sent.
#[test]
fn tables_that_have_much_to_do_do_not() {
    let loaded = fs_dsl::load(&root("examples/dlrm.fs"));
    let mut program = loaded.program.unwrap();
    program.train.batch = 1 << 20;
    for strategy in STRATEGIES {
        let s = planned(&program, strategy, 2, 1);
        let names: Vec<&str> = launches(&s.train).concat();
        assert!(names.contains(&"users.unique") || strategy == Strategy::Serial, "{names:?}");
        let much = |name: &&&str| {
            ["gather", "split", "apply"].iter().any(|kind| name.starts_with(&format!("items.{kind}")))
        };
        assert_eq!(names.iter().find(much), None, "{names:?}");
        assert!(s.train.ops.iter().all(|op| !op.joined || op.engine == Engine::Compute));
    }
}

/// Two lookups of a table add into one gradient, in an order: each is launched by itself, also if other tables' could be with them.
#[test]
fn sums_into_one_place_are_not_one_launch() {
    let text = "model m {
      table a { rows 1000  dim 16  optimizer sgd(lr: 0.1) }
      table b { rows 1000  dim 16  optimizer sgd(lr: 0.1) }
      input x: ids(a) { max 8 }
      input y: ids(a) like x
      input z: ids(b) like x
      input click: label like x
      loss bce_with_logits(linear(lookup(x) + lookup(y) + lookup(z), 1), click, normalize: tokens)
    }
    train { batch 8  steps 4  optimizer sgd(lr: 0.1) }
    workload w { generate { lengths fixed(4)  ids zipf(1.05)  labels bernoulli(0.5) } }";
    let s = planned(&checked(text), Strategy::Overlap, 2, 1);
    let grads: Vec<&str> =
        launches(&s.train).concat().into_iter().filter(|n| n.contains("expand_grad")).collect();
    assert_eq!(grads.len(), 2, "one of `a` with that of `b`: {grads:?}");
    assert_eq!(verify(&s), vec![]);
}

/// With the two operations at `i` and `i + 1` of the list exchanged. Who waits for one of them waits for both.
fn exchanged(s: &Schedule, i: usize) -> Schedule {
    let mut s = s.clone();
    let other = |op: u32| match op as usize {
        op if op == i => i as u32 + 1,
        op if op == i + 1 => i as u32,
        _ => op,
    };
    let (a, b) = (i as u32, i as u32 + 1);
    for (at, op) in s.train.ops.iter_mut().enumerate() {
        let both: BTreeSet<Dep> = op
            .deps
            .iter()
            .flat_map(|d| {
                let pair = d.op == a || d.op == b;
                let ops = if pair { vec![a, b] } else { vec![d.op] };
                ops.into_iter().map(|op| Dep { op, ..*d })
            })
            .filter(|d| at != i || d.op != b || d.distance > 0)
            .collect();
        op.deps = both.into_iter().collect();
    }
    s.train.ops.swap(i, i + 1);
    // Both wait for what the first waited for.
    let (first, second) = s.train.ops.split_at_mut(i + 1);
    let (first, second) = (&mut first[i], &mut second[0]);
    let deps: BTreeSet<Dep> = first
        .deps
        .iter()
        .chain(&second.deps)
        .copied()
        .filter(|d| d.distance > 0 || (d.op as usize) < i)
        .collect();
    first.deps = deps.iter().copied().collect();
    second.deps.clone_from(&first.deps);
    std::mem::swap(&mut first.start, &mut second.start);
    (first.joined, second.joined) = (false, false);
    // The order of a batch is by stage, then by place, so lifetimes follow the places.
    for b in &mut s.train.buffers {
        (b.first, b.last) = (other(b.first), other(b.last));
    }
    widen(&mut s);
    s
}

/// Lifetimes from the first to the last use.
fn widen(s: &mut Schedule) {
    let mut order: Vec<usize> = (0..s.train.ops.len()).collect();
    order.sort_by_key(|i| (-s.train.ops[*i].stage, *i));
    let mut seen = BTreeSet::new();
    for i in order {
        let op = &s.train.ops[i];
        for o in op.reads.iter().chain(&op.writes) {
            if let fs_schedule::Place::Buffer(b) = o.place {
                let buffer = &mut s.train.buffers[b as usize];
                if seen.insert(b) {
                    buffer.first = i as u32;
                }
                buffer.last = i as u32;
            }
        }
    }
}

/// Every two neighbours that a launch could start are taken for one if and only if they are in either order: how many are, and how many are not.
fn in_either_order(s: &Schedule) -> Result<(u32, u32), String> {
    let (mut yes, mut no) = (0, 0);
    for i in 1..s.train.ops.len() {
        let (a, b) = (&s.train.ops[i - 1], &s.train.ops[i]);
        let alike = b.action.joins(&a.action)
            && (a.priority, a.stage, a.microbatch, a.site) == (b.priority, b.stage, b.microbatch, b.site);
        if !alike {
            continue;
        }
        let mut together = s.clone();
        let deps = std::mem::take(&mut together.train.ops[i].deps);
        together.train.ops[i].joined = true;
        // The first waits for all.
        let first = &mut together.train.ops[i - 1];
        let earlier = |d: &Dep| d.distance > 0 || (d.op as usize) < i - 1;
        first.deps = first.deps.iter().copied().chain(deps).filter(earlier).collect();
        first.deps.sort_unstable();
        first.deps.dedup();
        let mut one = s.clone();
        one.train.ops[i - 1].deps.clone_from(&together.train.ops[i - 1].deps);
        let other = exchanged(&one, i - 1);
        // Two updates of one table are not taken, because a device has one set of rows for both.
        let tables = |op: &fs_schedule::Op| {
            let places = op.writes.iter().map(|o| o.place);
            places.filter(|p| matches!(p, fs_schedule::Place::Table(_))).collect::<BTreeSet<_>>()
        };
        let updates = !tables(a).is_disjoint(&tables(b));
        let (taken, orders) = (verify(&together), verify(&other));
        if taken.is_empty() != (orders.is_empty() && !updates) {
            return Err(format!("{} and {}: {taken:?} {orders:?}", a.name, b.name));
        }
        *(if taken.is_empty() { &mut yes } else { &mut no }) += 1;
    }
    Ok((yes, no))
}

/// Lookups of two tables have no order; sums of the gradient of one have.
#[test]
fn a_launch_is_what_has_no_order_in_a_model() {
    let (mut taken, mut refused) = (0, 0);
    for strategy in STRATEGIES {
        let s = apart(&planned(&checked(TABLES), strategy, 2, 1));
        let (yes, no) = in_either_order(&s).unwrap();
        (taken, refused) = (taken + yes, refused + no);
    }
    assert!(taken >= 20 && refused >= 1, "{taken} taken, {refused} not");
}

/// What is planned as launches of several operations runs so, in random orders and with the bits of one after the other.
#[test]
fn launches_of_a_model_change_no_bit() {
    for strategy in STRATEGIES {
        let s = planned(&checked(TABLES), strategy, 2, 1);
        assert!(launches(&s.train).len() >= 2, "{strategy:?}: {:?}", launches(&s.train));
        let work = Workload { seed: 1, batches: 4, ranks: 2 };
        let want = reference(&s, &work).unwrap();
        for seed in 0..3 {
            let order = Order { slow: BTreeSet::new(), seed, skipped_are_free: false };
            run(&s, &work, &want, &order).unwrap_or_else(|e| panic!("{strategy:?}, {seed}: {e}"));
        }
        assert_eq!(trained(&s, Some(1)), trained(&apart(&s), None), "{strategy:?}");
    }
}

/// A launch takes what all of it takes: so the times of the longest cycle are its bound.
#[test]
fn times_of_a_cycle_are_those_of_launches() {
    let mut joined = 0;
    for strategy in STRATEGIES {
        for s in [example("dlrm", strategy), planned(&checked(TABLES), strategy, 2, 1)] {
            let said = serde_json::to_value(fs_compiler::sched::explain::explain(&s).unwrap()).unwrap();
            let of =
                |key: &str| said["cycle"].as_array().unwrap().iter().map(|c| c[key].as_f64().unwrap()).sum();
            let (time, batches): (f64, f64) = (of("time"), of("distance"));
            let bound = said["recurrence_bound"].as_f64().unwrap() * 1e9;
            assert!((time / batches - bound).abs() <= 1e-6 * bound, "{strategy:?}, {}: {said:#}", s.model);
            let launch = |d: &&Dep| s.train.ops.get(d.op as usize + 1).is_some_and(|op| op.joined);
            joined += s.prediction.as_ref().unwrap().cycle.iter().filter(launch).count();
        }
    }
    assert!(joined > 0, "no cycle has a launch of several");
}

/// The interpreter reads rows of which ranks own columns as rows.
#[test]
fn rows_whose_columns_lie_apart_are_rows() {
    let text = "model m {
      table t { rows 9  dim 2  init normal(0, 0.1)  optimizer sgd(lr: 0.1)  sharding column_wise }
      input i: ids(t) { max 3  keep last }
      input following: next(i)
      let x = lookup(i)
      loss sampled_softmax(x, t, following, negatives: 2, temperature: 0.5, similarity: cosine, normalize: samples)
    }
    train { batch 4  steps 4  optimizer sgd(lr: 0.1) }
    workload w { generate { lengths fixed(3)  ids uniform  labels hash } }";
    halves(text);
}

/// What adds to all columns of what two operations wrote, each its own.
#[test]
fn columns_that_lie_apart_are_added_to_as_one() {
    let text = "model m {
      table t { rows 9  dim 4  init normal(0, 0.1)  optimizer sgd(lr: 0.1) }
      input i: ids(t) { max 3 }
      input click: label
      let x = pool(i)
      x = x + silu(linear(layer_norm(x), 4))
      let a, b = split(x, [2, 2])
      loss bce_with_logits(linear(concat(b, 2 * a), 1), click, normalize: samples)
    }
    train { batch 4  steps 4  optimizer sgd(lr: 0.1) }
    workload w { generate { lengths fixed(3)  ids uniform  labels hash } }";
    halves(text);
}

/// A schedule where some buffer is written by halves and is exact in each order.
fn halves(text: &str) {
    let s = planned(&checked(text), Strategy::Pec, 2, 1);
    assert!(s.train.ops.iter().any(|op| op.writes.iter().any(|o| o.columns.is_some())));
    let work = Workload { seed: 1, batches: 4, ranks: 2 };
    let want = reference(&s, &work).unwrap();
    for seed in 0..5 {
        let order = Order { slow: BTreeSet::new(), seed, skipped_are_free: false };
        run(&s, &work, &want, &order).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if std::env::var_os("FS_THOROUGH").is_some() { 400 } else { 20 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What is planned as one launch ends in the bits of one after the other, by the interpreter in random orders and by the executor.
    #[test]
    fn launches_of_several_tables_change_no_bit(
        model in models(FEATURES),
        strategy in prop::sample::select(STRATEGIES.to_vec()),
        lookahead in 1..=3u32,
        ranks in 1..=3u32,
        seed in any::<u64>(),
        cluster in prop::sample::select(vec![small(), fs_dsl::cluster::preset("dgx_h100").unwrap()]),
    ) {
        let program = dividing(checked(&model.text()), ranks);
        let s = planned_on(cluster, &program, strategy, ranks, lookahead);
        prop_assert_eq!(verify(&s), vec![], "{}", model.text());
        let alone = apart(&s);
        prop_assert_eq!(verify(&alone), vec![], "{}", model.text());
        let work = Workload { seed, batches: 4, ranks };
        let want = reference(&s, &work).unwrap();
        for order in 0..3 {
            let order = Order { slow: BTreeSet::new(), seed: seed ^ order, skipped_are_free: false };
            if let Err(e) = run(&s, &work, &want, &order) {
                prop_assert!(false, "{e} in {order:?}: {}", model.text());
            }
        }
        prop_assert_eq!(trained(&s, Some(seed)), trained(&alone, None), "{}", model.text());
    }

    /// The verifier takes two operations for one launch if and only if it takes them in either order.
    #[test]
    fn a_launch_is_what_has_no_order(
        model in models(FEATURES),
        strategy in prop::sample::select(STRATEGIES.to_vec()),
        lookahead in 1..=3u32,
    ) {
        let program = dividing(checked(&model.text()), 2);
        in_either_order(&apart(&planned_on(small(), &program, strategy, 2, lookahead)))
            .map_err(|e| TestCaseError::fail(format!("{e}: {}", model.text())))?;
    }
}

/// A launch stands together, in one queue and stage, and waits where its first does.
#[test]
fn what_is_no_launch_is_refused() {
    let gather = |exchange| Action::Gather { exchange, class: None };
    let s = example("dlrm", Strategy::Overlap);
    let at = s.train.ops.windows(2).position(|w| w.iter().all(|op| op.joined)).unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut Schedule)| {
        let mut s = s.clone();
        change(&mut s);
        let found = verify(&s);
        assert!(found.iter().any(|v| v.rule == "joined"), "{what}: {found:?}");
    };
    refused("the first of a list", &|s| s.train.ops[0].joined = true);
    refused("another priority", &|s| s.train.ops[at].priority += 1);
    refused("another stage", &|s| s.train.ops[at].stage += 1);
    refused("another microbatch", &|s| s.train.ops[at].microbatch = Some(0));
    refused("a dependency", &|s| s.train.ops[at].deps.push(Dep { op: 0, distance: 1 }));
    refused("another action", &|s| {
        let other = (1..s.train.ops.len()).find(|i| {
            let (a, b) = (&s.train.ops[i - 1], &s.train.ops[*i]);
            a.engine == b.engine && a.action.name() != b.action.name()
        });
        s.train.ops[other.unwrap()].joined = true;
    });
    refused("other samples", &|s| {
        let op = &mut s.train.ops[at];
        op.site = if op.site.is_home() { Site::Assigned } else { Site::Home };
    });
    // Behind the launch's second one that is its first once more.
    refused("the same rows", &|s| {
        let [first, _, third] = [at - 1, at, at + 1].map(|i| s.train.ops[i].clone());
        let again = fs_schedule::Op { name: third.name, joined: true, deps: Vec::new(), ..first };
        s.train.ops[at + 1] = again;
    });
    for (name, one, other) in [
        ("another action", gather(0), Action::Merge { exchange: 1, classes: Vec::new() }),
        ("what is launched by itself", Action::Linear { bias: true }, Action::Linear { bias: false }),
    ] {
        assert!(!other.joins(&one) && !one.joins(&other), "{name}");
    }
    assert!(gather(1).joins(&gather(0)) && !gather(0).joins(&gather(0)));
    refused("a transfer", &|s| {
        let transfer = s.train.ops.iter().position(|op| op.action.is_transfer()).unwrap();
        s.train.ops[transfer].joined = true;
    });
}
