//! What a schedule may declare and what its reference may say, on both sides of each bound.
//!
//! The kinds of corruption (`mutations`) break one thing far beyond its bound. These stand right at it: the last value that
//! is taken, the first that is not, each half of a condition alone.

mod flow;
mod search;

use fs_compiler::{CompileOptions, compile_with};
use fs_schedule::{
    Action, Buffer, Busy, DenseOptimizer, Dep, Engine, Extent, Init, InputKind, Normalize, Parameter, Place,
    Prediction, Reuse, RowPlacement, Schedule, Sharding, SparseOptimizer, Strategy, Symbol, Way,
};

use crate::schedules::{Recipe, build};

/// A schedule at a bound.
pub struct Case {
    /// What is tried.
    pub name: String,
    /// The schedule, its reference's digest as it should be.
    pub schedule: Schedule,
    /// The rule that must say so, with a part of its message; `None`: nothing is wrong.
    pub wrong: Option<(&'static str, &'static str)>,
}

type Wrong = Option<(&'static str, &'static str)>;

/// Cases, made from some schedules.
#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        name: impl Into<String>,
        base: &Schedule,
        wrong: Wrong,
        change: impl FnOnce(&mut Schedule),
    ) {
        let mut schedule = base.clone();
        change(&mut schedule);
        schedule.reference.digest = schedule.reference_digest();
        self.0.push(Case { name: name.into(), schedule, wrong });
    }
}

const SETTINGS: Wrong = Some(("settings", ""));
const TABLES: Wrong = Some(("tables", ""));
const SHARDING: Wrong = Some(("sharding", ""));
const EXCHANGES: Wrong = Some(("exchanges", ""));
const INPUTS: Wrong = Some(("inputs", ""));
const TIMES: Wrong = Some(("times", ""));
const REFERENCE: Wrong = Some(("reference", ""));

const NOT_RATES: [f64; 3] = [f64::NAN, f64::INFINITY, -1e-9];
const NOT_DECAYS: [f64; 4] = [f64::NAN, 1.0, -1e-9, f64::INFINITY];

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut all = Cases::default();
    let column = Sharding::ColumnWise { ranks: vec![1, 0] };
    let mixed = build(&Recipe::new(Strategy::Pec, Some(2), 2).tables(vec![
        Sharding::RowWise,
        Sharding::DataParallel,
        column,
    ]));
    let simple = build(&Recipe::new(Strategy::Serial, None, 1));
    numbers(&mut all, &simple);
    starts(&mut all, &simple);
    predictions(&mut all, &simple);
    search::told(&mut all, &simple);
    declared(&mut all, &mixed);
    refers(&mut all, &mixed);
    indices(&mut all, &mixed);
    terms(&mut all, &mixed);
    evaluations(&mut all);
    times(&mut all, &simple);
    flow::flows(&mut all);
    all.0
}

/// Rates and decays of optimizers.
fn numbers(all: &mut Cases, base: &Schedule) {
    let sgd = |lr, momentum, weight_decay| DenseOptimizer::Sgd { lr, momentum, weight_decay };
    let adam =
        |lr, beta1, beta2, eps, weight_decay| DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay };
    let mut dense = vec![(sgd(0.0, 0.0, 0.0), None), (adam(0.0, 0.0, 0.0, 0.0, 0.0), None)];
    dense.push((adam(1e-3, 0.999, 0.999, 1e-8, 1.0), None));
    for x in NOT_RATES {
        dense.extend([sgd(x, 0.0, 0.0), sgd(0.1, x, 0.0), sgd(0.1, 0.0, x)].map(|o| (o, SETTINGS)));
        let rates = [adam(x, 0.9, 0.9, 0.1, 0.1), adam(0.1, 0.9, 0.9, x, 0.1), adam(0.1, 0.9, 0.9, 0.1, x)];
        dense.extend(rates.map(|o| (o, SETTINGS)));
    }
    for x in NOT_DECAYS {
        dense.extend([adam(0.1, x, 0.9, 0.1, 0.1), adam(0.1, 0.9, x, 0.1, 0.1)].map(|o| (o, SETTINGS)));
    }
    for (o, wrong) in dense {
        all.add(format!("{o:?}"), base, wrong, |s| s.settings.optimizer = o);
    }
    let adam = |lr, beta1, beta2, eps| SparseOptimizer::Adam { lr, beta1, beta2, eps };
    let mut sparse = vec![(SparseOptimizer::Sgd { lr: 0.0 }, None), (adam(0.0, 0.0, 0.0, 0.0), None)];
    sparse.push((SparseOptimizer::Adagrad { lr: 0.0, eps: 0.0 }, None));
    for x in NOT_RATES {
        let rates = [
            SparseOptimizer::Sgd { lr: x },
            SparseOptimizer::Adagrad { lr: x, eps: 0.1 },
            SparseOptimizer::Adagrad { lr: 0.1, eps: x },
            SparseOptimizer::RowwiseAdagrad { lr: x, eps: 0.1 },
            SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: x },
            adam(x, 0.9, 0.9, 0.1),
            adam(0.1, 0.9, 0.9, x),
        ];
        sparse.extend(rates.map(|o| (o, TABLES)));
    }
    for x in NOT_DECAYS {
        sparse.extend([adam(0.1, x, 0.9, 0.1), adam(0.1, 0.9, x, 0.1)].map(|o| (o, TABLES)));
    }
    for (o, wrong) in sparse {
        all.add(format!("{o:?}"), base, wrong, |s| s.tables[0].optimizer = o);
    }
}

/// Initial values, of tables and of parameters.
fn starts(all: &mut Cases, base: &Schedule) {
    let mut inits = vec![
        (Init::Normal { mean: -1.0, std: 0.0 }, None),
        (Init::Uniform { low: 0.5, high: 0.5 }, None),
        (Init::Normal { mean: 0.0, std: -1e-9 }, TABLES),
        (Init::Uniform { low: 0.5, high: 0.4 }, TABLES),
    ];
    for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let bad = [
            Init::Constant(x),
            Init::Normal { mean: x, std: 1.0 },
            Init::Normal { mean: 0.0, std: x },
            Init::Uniform { low: x, high: 1.0 },
            Init::Uniform { low: 0.0, high: x },
        ];
        inits.extend(bad.map(|i| (i, TABLES)));
    }
    for (init, wrong) in inits {
        all.add(format!("a table of {init:?}"), base, wrong, |s| s.tables[0].init = init);
        all.add(format!("a parameter of {init:?}"), base, wrong, |s| s.parameters[0].init = init);
    }
}

fn predictions(all: &mut Cases, base: &Schedule) {
    let last = base.train.ops.len() as u32 - 1;
    let good = Prediction {
        cluster: "none".into(),
        step: 0.0,
        resource_bound: 1.0,
        resource: Engine::Compute,
        recurrence_bound: 1.0,
        cycle: vec![Dep { op: last, distance: 0 }],
        joint: Some(fs_schedule::JointBound { time: 1.0, from: 0, to: last }),
        bubble: 1.0,
        busy: vec![Busy { engine: Engine::Compute, time: 1.0 }],
        memory: 1,
        sent: Some(fs_schedule::Sent { bytes: 1.0, between_nodes: 1.0 }),
        limits: Vec::new(),
        sizes: vec![("B".into(), 1.0)],
        stragglers: Some(fs_schedule::Stragglers {
            at_home: 1.5,
            planned: 1.0,
            bound: 1.0,
            moved: 0.0,
            ranks: vec![fs_schedule::RankWork { at_home: 1.5, planned: 1.0 }],
            compared: Some(fs_schedule::Compared { at_home: 1.0, planned: 1.0 }),
            unkept: Some(fs_schedule::Unkept { drawn: 8, batches: 1, least: 100 }),
        }),
    };
    let mut add = |name: &str, wrong, change: &dyn Fn(&mut Prediction)| {
        let mut p = good.clone();
        change(&mut p);
        all.add(name, base, wrong, |s| s.prediction = Some(p));
    };
    add("a prediction", None, &|_| {});
    for x in [f64::NAN, f64::INFINITY, -1e-9] {
        add("a step", TIMES, &|p| p.step = x);
        add("a bound of resources", TIMES, &|p| p.resource_bound = x);
        add("a bound of recurrence", TIMES, &|p| p.recurrence_bound = x);
        add("a joint bound", TIMES, &|p| p.joint.as_mut().expect("one").time = x);
        add("a bubble", TIMES, &|p| p.bubble = x);
        add("a busy time", TIMES, &|p| p.busy[0].time = x);
        add("bytes that are sent", TIMES, &|p| p.sent.as_mut().expect("some").bytes = x);
        add("bytes between nodes", TIMES, &|p| p.sent.as_mut().expect("some").between_nodes = x);
        add("a size", TIMES, &|p| p.sizes[0].1 = x);
        add("a straggler", TIMES, &|p| p.stragglers.as_mut().expect("one").at_home = x);
        add("a rank's work", TIMES, &|p| p.stragglers.as_mut().expect("one").ranks[0].planned = x);
        add("a compared step", TIMES, &|p| {
            p.stragglers.as_mut().and_then(|s| s.compared.as_mut()).expect("one").planned = x;
        });
    }
    add("nothing known of bytes", None, &|p| p.sent = None);
    add("more bytes between nodes than in all", TIMES, &|p| {
        p.sent = Some(fs_schedule::Sent { bytes: 1.0, between_nodes: 1.1 });
    });
    add("a cycle over what is not there", TIMES, &|p| p.cycle[0].op += 1);
    add("a joint bound of what is not there", TIMES, &|p| p.joint.as_mut().expect("one").to += 1);
}

/// Sizes, owners, exchanges.
fn declared(all: &mut Cases, base: &Schedule) {
    let most = 1 << 24;
    for rows in [0, (1 << 48) + 1] {
        all.add(format!("a table of {rows} rows"), base, TABLES, |s| s.tables[0].rows = rows);
    }
    for dim in [0, most + 1] {
        all.add(format!("a table of {dim} columns"), base, TABLES, |s| s.tables[0].dim = dim);
    }
    all.add("a table of many rows", base, None, |s| s.tables[0].rows = 1 << 48);
    let wrong = [(0, 1, false), (1, 0, false), (most + 1, 1, false), (1, most + 1, false), (2, 4, true)];
    let right = [(1, 1, true), (1, most, true), (most, 1, false)];
    let shapes = wrong.map(|shape| (shape, TABLES)).into_iter().chain(right.map(|shape| (shape, None)));
    for ((rows, columns, vector), wrong) in shapes {
        all.add(format!("a parameter of {rows} x {columns}, vector {vector}"), base, wrong, |s| {
            let one = s.parameters[0].clone();
            s.parameters.push(Parameter { name: "more".into(), rows, columns, vector, ..one });
        });
    }
    let columns = |s: &mut Schedule, ranks: Vec<u32>| s.tables[2].sharding = Sharding::ColumnWise { ranks };
    all.add("a part on the first rank that is not there", base, SHARDING, |s| columns(s, vec![1, 2]));
    all.add("a table on the first rank that is not there", base, SHARDING, |s| {
        s.tables[0].sharding = Sharding::TableWise { rank: s.ranks };
    });
    let plan = |s: &mut Schedule, hot: Vec<Vec<u64>>| s.tables[0].placement = RowPlacement::Planned { hot };
    let rows = base.tables[0].rows;
    let own = rows.div_ceil(2);
    all.add("hashed rows", base, None, |s| s.tables[0].placement = RowPlacement::Hashed);
    all.add("no hot rows", base, None, |s| plan(s, vec![Vec::new(); 2]));
    all.add("every row a hot one", base, None, |s| plan(s, vec![(0..own).collect(), (own..rows).collect()]));
    for (name, says, hot) in [
        ("hot rows of one rank less", "hot rows of 1 ranks", vec![vec![0]]),
        ("hot rows of one rank more", "hot rows of 3 ranks", vec![vec![0], vec![], vec![]]),
        ("the first row that is not there", "there are", vec![vec![], vec![rows]]),
        ("one hot row more than a rank owns", "which owns", vec![(0..=own).collect(), vec![]]),
        ("a hot row twice on a rank", "twice", vec![vec![1, 1], vec![]]),
        ("a hot row on both ranks", "twice", vec![vec![1], vec![1]]),
    ] {
        all.add(name, base, Some(("sharding", says)), |s| plan(s, hot));
    }
    for (most, wrong) in [(4096, None), (4097, Some(("sharding", "the most is 4096")))] {
        all.add(format!("{most} hot rows"), base, wrong, |s| {
            s.tables[0].rows = 1 << 14;
            plan(s, vec![(0..most).collect(), vec![]]);
        });
    }
    for t in [1, 2] {
        all.add(format!("hashed rows of table {t}"), base, Some(("sharding", "has hashed rows")), |s| {
            s.tables[t].placement = RowPlacement::Hashed;
        });
    }
    all.add("more parts than columns", base, SHARDING, |s| columns(s, vec![0; 5]));
    all.add("no parts", base, SHARDING, |s| columns(s, Vec::new()));
    all.add("a part that nothing moves", base, Some(("exchanges", "none moves part 2")), |s| {
        columns(s, vec![0, 1, 0]);
    });
    all.add("an exchange of the first part that is not there", base, EXCHANGES, |s| s.exchanges[3].part = 2);
    all.add("an exchange of a part twice", base, Some(("exchanges", "moves the rows of another")), |s| {
        s.exchanges[3].part = 0;
    });
    all.add("a first part with another's entries", base, Some(("exchanges", "sends the entries")), |s| {
        s.exchanges[2].entries = 3;
    });
    all.add("entries of another table", base, Some(("exchanges", "sends the entries")), |s| {
        s.exchanges[3].entries = 0;
    });
    all.add("no reuse distance", base, Some(("exchanges", "tells apart")), |s| {
        s.exchanges[0].lookahead = Some(0);
    });
    all.add("too many reuse distances", base, Some(("exchanges", "tells apart")), |s| {
        s.exchanges[0].lookahead = Some(65);
    });
    all.add("too many classes", base, Some(("exchanges", "classes")), |s| {
        s.settings.microbatches = 64;
        s.exchanges.iter_mut().for_each(|e| e.lookahead = Some(64));
    });
    all.add("a column-wise table with halves of rows", base, SHARDING, |s| {
        s.tables[2].optimizer = SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: 0.1 };
    });
    for (name, wrong, ranks, batch, microbatches) in [
        ("too many ranks", "ranks is", most + 1, 8, 2),
        ("too many samples", "batch is", 2, most + 2, 2),
        ("too many microbatches", "microbatches is", 2, 8, 65),
        ("a sample more than the ranks share", "does not divide over", 2, 9, 1),
    ] {
        all.add(name, base, Some(("settings", wrong)), |s| {
            (s.ranks, s.settings.batch, s.settings.microbatches) = (ranks, batch, microbatches);
        });
    }
    // Of many complaints a few are enough, and of long ones the beginning.
    all.add("forty parameters of one name", base, Some(("tables", "called")), |s| {
        let one = s.parameters[0].clone();
        s.parameters.extend(std::iter::repeat_n(one, 40));
    });
}

/// What inputs refer to.
fn refers(all: &mut Cases, base: &Schedule) {
    let (tables, groups) = (base.tables.len() as u32, base.lengths.len() as u32);
    let labels = base.inputs.len() - 1;
    for (name, kind) in [
        ("ids of the first table that is not there", InputKind::Ids { table: tables, lengths: 0 }),
        ("ids of the first group that is not there", InputKind::Ids { table: 0, lengths: groups }),
        ("what follows labels", InputKind::Next { of: labels as u32 }),
        ("what follows nothing", InputKind::Next { of: labels as u32 + 9 }),
        ("labels of the first group that is not there", InputKind::TokenLabel { lengths: groups }),
        ("no features", InputKind::Dense { width: 0 }),
        ("too many features", InputKind::Dense { width: (1 << 24) + 1 }),
    ] {
        all.add(name, base, INPUTS, |s| {
            s.inputs.push(fs_schedule::Input { name: "more".into(), kind });
        });
    }
    for (name, kind) in [
        ("what follows ids", InputKind::Next { of: 0 }),
        ("many features", InputKind::Dense { width: 1 << 24 }),
    ] {
        all.add(name, base, None, |s| s.inputs.push(fs_schedule::Input { name: "more".into(), kind }));
    }
    all.add("two inputs of a name", base, INPUTS, |s| {
        let again = s.inputs[0].clone();
        s.inputs.push(again);
    });
    for max in [0, (1 << 24) + 1] {
        all.add(format!("histories of {max}"), base, INPUTS, |s| s.lengths[0].max = max);
    }
    all.add("long histories", base, None, |s| s.lengths[0].max = 1 << 24);
}

/// What buffers, operands and dependencies refer to.
fn indices(all: &mut Cases, base: &Schedule) {
    let (groups, exchanges) = (base.lengths.len() as u32, base.exchanges.len() as u32);
    let (ops, buffers) = (base.train.ops.len() as u32, base.train.buffers.len() as u32);
    let first = base.train.buffers[0].clone();
    // Nothing uses it, so it lives nowhere in particular.
    let more = move |change: fn(&mut Buffer, u32), to: u32| {
        let mut b = Buffer { name: "more".into(), copies: 1, slot: buffers, ..first.clone() };
        change(&mut b, to);
        move |s: &mut Schedule| s.train.buffers.push(b)
    };
    let wrong = |why| Some(("indices", why));
    let rows = |b: &mut Buffer, n| b.rows = Extent::Symbol(Symbol::Tokens(n));
    all.add("rows of the first group that is not there", base, wrong(" rows"), more(rows, groups));
    for rows in [
        (|b: &mut Buffer, n| b.rows = Extent::Symbol(Symbol::Sent(n))) as fn(&mut Buffer, u32),
        |b, n| b.rows = Extent::Symbol(Symbol::Received(n)),
        |b, n| b.rows = Extent::Symbol(Symbol::Asked(n)),
    ] {
        all.add("rows of the first exchange that is not there", base, wrong(" rows"), more(rows, exchanges));
    }
    let count = Reuse::new(2, 2).count(Way::Forward) as u32;
    let class = |b: &mut Buffer, c| b.rows = Extent::Symbol(Symbol::SentClass(0, Way::Forward, c));
    all.add("rows of the first class that is not there", base, wrong(" rows"), more(class, count));
    let squares = |b: &mut Buffer, n| b.rows = Extent::Symbol(Symbol::Squares(n));
    all.add("a row for every pair of tokens", base, wrong(" rows"), more(squares, 0));
    for last in [(|b: &mut Buffer, n| b.last = n) as fn(&mut Buffer, u32), |b, n| b.first = n] {
        all.add(
            "a life to the first operation that is not there",
            base,
            wrong("lives from"),
            more(last, ops),
        );
    }
    let slot = |b: &mut Buffer, n| b.slot = n;
    all.add("the first slot that is not there", base, wrong("has slot"), more(slot, buffers + 1));
    let columns = |b: &mut Buffer, n| b.columns = n;
    all.add("no columns", base, wrong("columns"), more(columns, 0));
    all.add("too many columns", base, wrong("columns"), more(columns, (1 << 24) + 1));
    let copies = |b: &mut Buffer, n| b.copies = n;
    for n in [0, (1 << 10) + 1] {
        all.add(format!("{n} copies"), base, wrong("copies"), more(copies, n));
    }
    // 2^31 elements are the most that do not depend on the batch: rows, columns and copies count.
    for (n, c, k, fits) in [
        ((1 << 20) - 1, 1 << 11, 1, true),
        ((1 << 20) - 1, 1 << 10, 2, true),
        (1 << 20, 1 << 11, 2, false),
        ((1 << 20) + 1, 1 << 11, 1, false),
        (1 << 31, 2, 1, false),
        (1 << 19, 1 << 11, 3, false),
    ] {
        let why = if fits { None } else { wrong("elements whatever the batch") };
        all.add(format!("{n} x {c} elements, {k} times"), base, why, |s| {
            let b = s.train.buffers[0].clone();
            let (name, rows) = ("more".into(), Extent::Fixed(n));
            let slot = s.train.buffers.len() as u32;
            s.train.buffers.push(Buffer { name, rows, columns: c, copies: k, slot, ..b });
        });
    }
    let operand = |place, columns| {
        move |s: &mut Schedule| {
            let op = s.train.ops.iter_mut().find(|op| !op.reads.is_empty()).expect("an operation that reads");
            (op.reads[0].place, op.reads[0].columns) = (place, columns);
        }
    };
    let wide = base.train.buffers[0].columns;
    for (place, columns) in [
        (Place::Buffer(buffers), None),
        (Place::Buffer(buffers), Some((0, 1))),
        (Place::Parameter(base.parameters.len() as u32), None),
        (Place::Gradient(base.parameters.len() as u32), None),
        (Place::Table(base.tables.len() as u32), None),
        (Place::Input(base.inputs.len() as u32), None),
        (Place::Lengths(groups), None),
        (Place::Buffer(0), Some((0, 0))),
        (Place::Buffer(0), Some((0, wide + 1))),
        (Place::Buffer(0), Some((1, 0))),
        (Place::Input(0), Some((0, 1))),
    ] {
        all.add(format!("the operand {place} {columns:?}"), base, wrong("uses"), operand(place, columns));
    }
    for (dep, why) in [
        (Dep { op: ops, distance: 1 }, "depends on operation"),
        (Dep { op: 0, distance: (1 << 10) + 1 }, "a dependency of"),
    ] {
        all.add(format!("{dep:?}"), base, wrong(why), |s| s.train.ops[1].deps.push(dep));
    }
    for normalize in [
        Normalize::Tokens(groups),
        Normalize::Constant(0.0),
        Normalize::Constant(-1.0),
        Normalize::Constant(f64::NAN),
        Normalize::Constant(f64::INFINITY),
    ] {
        all.add(format!("a loss over {normalize:?}"), base, wrong("is normalised by"), |s| {
            for op in &mut s.train.ops {
                if let Action::BceWithLogits { normalize: n } = &mut op.action {
                    *n = normalize;
                }
            }
        });
    }
}

/// Appends a term that nothing uses.
fn with_term(s: &mut Schedule, text: &str) {
    s.reference.train.push(text.parse().expect("a term"));
}

/// Terms of the reference. In the base, v0 to v2 are the tables' rows, v3 their sum, v4 and v5 the layers, v6 the loss
/// with its gradient, v11 to v13 the gradients of rows.
fn terms(all: &mut Cases, base: &Schedule) {
    for text in ["concat v0 v1", "concat z4 v0", "concat v0 z4", "concat v0[0:4]", "concat v0[3:4] v1[0:1]"] {
        all.add(text, base, None, |s| with_term(s, text));
    }
    for (text, why) in [
        ("concat z0 v0", "zeros stand beside"),
        ("concat z4[0:2] v0", "zeros stand beside"),
        ("concat z4 z4", "nothing stands"),
        ("concat", "nothing stands"),
        ("concat v0[4:4] v1", "no such columns"),
        ("concat v0[3:2] v1", "no such columns"),
        ("concat v0[3:5] v1", "no such columns"),
        ("concat v0 i0", "not real columns"),
        ("concat i0 v0", "not real columns"),
        ("concat v0 v7[0:1]", "no such columns"),
        ("concat v0 v11", "other rows"),
        ("concat v0 z16777213", "too many columns"),
        ("a0 t0 i1", "different tables"),
        ("a0 t1 i0", "different tables"),
        ("a0 v3 i0", "different tables"),
        ("a0 t0 i3", ""),
        ("a0 t9 i0", "not there"),
        ("a0 t0 i9", "not there"),
        ("a2 v3 p9", "not there"),
        ("a2 v3.1 p0", "not there"),
        ("a2 v99 p0", "not there"),
        ("a9 v3 p0", "no action"),
        ("a2 v3", ""),
        ("a2 v3[0:2] p0", ""),
        ("a6 v3 i3", "different tables"),
        ("a1 l9 v0", "not there"),
    ] {
        all.add(text, base, Some(("reference", why)), |s| with_term(s, text));
    }
    // Casts (`cast`), and what is made of them (`@0` is the first): brain floats have no place beside floats, nor where no
    // operation has a form in them.
    for (texts, why) in [
        (&["cast v0", "concat @0 z4 @0[0:2]"][..], None),
        (&["cast v0", "cast @0", "concat @1 v0"], None),
        (&["cast v0", "concat @0 v1"], Some("of another precision")),
        (&["cast v0", "concat v1 @0"], Some("of another precision")),
        (&["cast v0", "concat z1 @0[0:1] v1"], Some("of another precision")),
        (&["cast i0"], Some("must be a real or bf16 matrix")),
        (&["cast v0 v0"], Some("takes 1 operands")),
        (&["cast v0", "a6 @0 i0"], Some("must be a real matrix")),
        (&["cast v0", "cast @0[4:9]"], Some("no such columns")),
    ] {
        all.add(texts.join(", "), base, why.map(|why| ("reference", why)), |s| {
            let (action, first) = (s.reference.actions.len(), s.reference.train.len());
            s.reference.actions.push(fs_schedule::Action::Cast);
            for text in texts {
                let text = text.replace("cast", &format!("a{action}"));
                let text = text.replace("@0", &format!("v{first}")).replace("@1", &format!("v{}", first + 1));
                with_term(s, &text);
            }
        });
    }
    let update = |n: usize, text: &'static str| {
        move |s: &mut Schedule| s.reference.updates[n] = text.parse().expect("an update")
    };
    // Tables are updated first, parameters after them.
    all.add("rows' gradients of another table", base, REFERENCE, update(0, "t0 v12"));
    all.add("the second's of another table", base, REFERENCE, update(1, "t1 v11"));
    all.add("columns of a gradient", base, REFERENCE, update(0, "t0 v11[0:4]"));
    all.add("columns of a parameter's gradient", base, REFERENCE, update(3, "p0 v9[0:4]"));
    all.add("no gradient", base, REFERENCE, update(0, "t0"));
    all.add("a table that is not there", base, REFERENCE, update(0, "t3 v11"));
    all.add("a parameter that is not there", base, REFERENCE, update(3, "p2 v9"));
    all.add("another parameter's gradient", base, REFERENCE, update(3, "p0 v7"));
    all.add("a gradient that is not there", base, REFERENCE, update(3, "p0 v99"));
    all.add("a result that is not there", base, REFERENCE, update(3, "p0 v9.1"));
    all.add("rows for a parameter", base, REFERENCE, update(3, "p0 v11"));
    all.add("one table twice", base, REFERENCE, update(1, "t0 v11"));
    for (name, action) in [
        ("a copy in a model", fs_schedule::Action::Copy),
        ("zeros in a model", fs_schedule::Action::Zero),
        ("a transfer in a model", fs_schedule::Action::AllReduce),
        ("an update in a model", fs_schedule::Action::DenseUpdate),
        ("a load in a model", fs_schedule::Action::LoadBatch),
    ] {
        all.add(name, base, Some(("reference", "is not of a model")), |s| {
            let number = s.reference.actions.len();
            s.reference.actions.push(action);
            with_term(s, &format!("a{number} v0"));
        });
    }
}

/// What evaluations report.
fn evaluations(all: &mut Cases) {
    let program = fs_dsl::load(&crate::root("examples/movielens.fs")).program.expect("examples check");
    let base =
        compile_with(&program, &CompileOptions::new(Strategy::Pec, 2)).expect("examples compile").schedule;
    let is_loss = |s: &Schedule, t: &fs_schedule::reference::Term| {
        t.action.is_some_and(|a| s.reference.actions[a as usize].facts().loss.is_some())
    };
    let rank = base.reference.evaluation.as_ref().map_or(0, |e| e.len() - 1);
    all.add("the example", &base, None, |_| {});
    // Training's terms up to the loss have the operands of evaluation's; the loss of an evaluation reports what no run
    // expects.
    all.add("a loss in an evaluation", &base, Some(("reference", "has no loss")), |s| {
        let at = s.reference.train.iter().position(|t| is_loss(s, t)).expect("a loss");
        let upto: Vec<_> = s.reference.train[..=at].to_vec();
        let list = s.reference.evaluation.as_mut().expect("an evaluation");
        // Behind training's terms the numbers of evaluation's move.
        let moved: Vec<_> = list
            .iter()
            .map(|t| {
                let mut t = t.clone();
                for v in &mut t.operands {
                    if let fs_schedule::reference::Source::Term(n, _) = &mut v.source {
                        *n += upto.len() as u32;
                    }
                }
                t
            })
            .collect();
        *list = upto.into_iter().chain(moved).collect();
    });
    all.add("no ranking", &base, Some(("reference", "ranks items once")), |s| {
        s.reference.evaluation.as_mut().expect("an evaluation").truncate(rank);
    });
    all.add("a ranking in training", &base, Some(("reference", "")), |s| {
        let evaluation = s.reference.evaluation.clone().expect("an evaluation");
        s.reference.train = evaluation;
        s.reference.updates.clear();
    });
    let digest = "another ".repeat(20);
    let mut wrong = base.clone();
    wrong.reference.digest.clone_from(&digest);
    all.0.push(Case {
        name: "a long digest".into(),
        schedule: wrong,
        wrong: Some(("reference", "has digest another another another")),
    });
}

/// Planned times: each alone may be too late.
fn times(all: &mut Cases, base: &Schedule) {
    let last = base.train.ops.len() - 1;
    let most = 1 << 53;
    for (start, time, wrong) in [
        (most, most, None),
        (most + 1, 0, Some(("times", "is planned for"))),
        (most, most + 1, Some(("times", "is planned for"))),
    ] {
        all.add(format!("planned for {start} + {time} ns"), base, wrong, |s| {
            (s.train.ops[last].start, s.train.ops[last].time) = (start, time);
        });
    }
}
