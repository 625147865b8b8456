//! Schedules made by hand, for tests of the verifier and the interpreter: small, of every sharding, split by reuse
//! distance or not, staged or not.
//!
//! The model: one sequence of ids per table, all of the same lengths, looked up and added; two linear layers; binary
//! cross-entropy per token. [`build`] writes the operations of one batch in reference order and gives each a stage;
//! [`crate::arrange`] finds the order of the step, copies, slots and a set of dependencies of which none is implied
//! by the others.

mod builder;

use fs_schedule::reference::Reference;
use fs_schedule::{
    Action, DenseOptimizer, Duration, Engine, Exchange, FORMAT, Init, Input, InputKind, Keep, Leg, Lengths,
    Normalize, Parameter, Program, Reuse, Schedule, Settings, Sharding, SparseOptimizer, Strategy, Table,
    VERSION, Way,
};

use crate::arrange::arrange;
use builder::Builder;

/// What to build.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// One table each.
    pub shardings: Vec<Sharding>,
    /// Ranks.
    pub ranks: u32,
    /// Reuse distances told apart; `None`: rows travel together.
    pub lookahead: Option<u32>,
    /// By so many windows of a batch; `None`: each microbatch is one.
    pub windows: Option<u32>,
    /// Microbatches.
    pub microbatches: u32,
    /// Each row once, or once per occurrence.
    pub unique: bool,
    /// Collectives of several tables are one.
    pub fused: bool,
    /// How far operations are moved between steps.
    pub strategy: Strategy,
}

impl Recipe {
    /// Row-wise, two ranks.
    pub fn new(strategy: Strategy, lookahead: Option<u32>, microbatches: u32) -> Self {
        let shardings = vec![Sharding::RowWise];
        let windows = None;
        Self { shardings, ranks: 2, lookahead, windows, microbatches, unique: true, fused: false, strategy }
    }
    /// How rows are told apart.
    fn reuse(&self) -> Option<Reuse> {
        Reuse::in_windows(self.lookahead?, self.microbatches, self.windows.unwrap_or(self.microbatches))
    }
    /// With tables of these shardings.
    #[must_use]
    pub fn tables(self, shardings: Vec<Sharding>) -> Self {
        Self { shardings, ..self }
    }
}

/// Columns of every table.
pub const DIM: u32 = 4;
/// Rows of every table.
pub const ROWS: u64 = 12;

fn header(plan: &Recipe) -> Schedule {
    let mut tables = Vec::new();
    let mut exchanges: Vec<Exchange> = Vec::new();
    let mut inputs = Vec::new();
    for (t, sharding) in (0..).zip(&plan.shardings) {
        tables.push(Table {
            hot: Vec::new(),
            placement: fs_schedule::RowPlacement::Range,
            name: format!("table{t}"),
            rows: ROWS,
            dim: DIM,
            sharding: sharding.clone(),
            optimizer: SparseOptimizer::Sgd { lr: 0.5 },
            init: Init::Constant(0.25),
            stream: t,
        });
        inputs.push(Input { name: format!("ids{t}"), kind: InputKind::Ids { table: t, lengths: 0 } });
        let entries = exchanges.len() as u32;
        for part in 0..sharding.parts() {
            let (unique, lookahead) = (plan.unique, plan.lookahead);
            exchanges.push(Exchange {
                shares: None,
                of: None,
                table: t,
                part,
                entries,
                unique,
                lookahead,
                windows: plan.windows,
                folded: false,
                leg: Leg::Whole,
            });
        }
    }
    inputs.push(Input { name: "labels".into(), kind: InputKind::TokenLabel { lengths: 0 } });
    let parameter = |name: &str, rows, stream| Parameter {
        name: name.into(),
        rows,
        columns: DIM,
        vector: false,
        init: Init::Constant(0.5),
        stream,
    };
    Schedule {
        format: FORMAT.into(),
        version: VERSION,
        digest: String::new(),
        model: "by_hand".into(),
        strategy: plan.strategy,
        ranks: plan.ranks,
        sources: Vec::new(),
        settings: Settings {
            node: None,
            sums_by_node: false,
            wire: fs_schedule::WirePrecision::default(),
            batch: 8,
            microbatches: plan.microbatches,
            duration: Duration::Steps(4),
            seed: 1,
            optimizer: DenseOptimizer::Sgd { lr: 0.5, momentum: 0.0, weight_decay: 0.0 },
            balance: None,
        },
        data: None,
        evaluate: None,
        lengths: vec![Lengths { name: "ids0".into(), max: 4, keep: Keep::Last }],
        inputs,
        tables,
        parameters: vec![parameter("hidden", DIM, 100), parameter("out", 1, 101)],
        exchanges,
        engines: vec![Engine::Host, Engine::Compute, Engine::CopyOut, Engine::NicSend],
        train: Program::default(),
        evaluation: None,
        prediction: None,
        reference: reference(plan),
        counted: None,
        search: None,
    }
}

/// The model's terms.
fn reference(plan: &Recipe) -> Reference {
    let linear = Action::Linear { bias: false };
    let weight = Action::LinearGradWeight { bias: false };
    let bce = Action::BceWithLogits { normalize: Normalize::Tokens(0) };
    let actions =
        vec![Action::Expand, Action::Add, linear, bce, weight, Action::LinearGradInput, Action::ExpandGrad];
    let tables = plan.shardings.len() as u32;
    let mut train: Vec<String> = (0..tables).map(|t| format!("a0 t{t} i{t}")).collect();
    let rows: Vec<String> = (0..tables).map(|t| format!(" v{t}")).collect();
    let sum = tables;
    train.push(format!("a1{}", rows.concat()));
    train.push(format!("a2 v{sum} p0"));
    train.push(format!("a2 v{} p1", sum + 1));
    train.push(format!("a3 v{} i{tables}", sum + 2));
    train.push(format!("a4 v{}.1 v{}", sum + 3, sum + 1));
    train.push(format!("a5 v{}.1 p1", sum + 3));
    train.push(format!("a4 v{} v{sum}", sum + 5));
    train.push(format!("a5 v{} p0", sum + 5));
    train.extend((0..tables).map(|t| format!("a6 v{} i{t}", sum + 7)));
    let mut updates: Vec<String> = (0..tables).map(|t| format!("t{t} v{}", sum + 8 + t)).collect();
    updates.extend([format!("p0 v{}", sum + 6), format!("p1 v{}", sum + 4)]);
    let term = |t: &String| t.parse().expect("a term");
    Reference {
        digest: String::new(),
        actions,
        train: train.iter().map(term).collect(),
        updates: updates.iter().map(|u| u.parse().expect("an update")).collect(),
        evaluation: None,
        sums: Default::default(),
    }
}

/// Builds, orders and connects.
pub fn build(plan: &Recipe) -> Schedule {
    let mut s = header(plan);
    s.train = Builder::new(plan, s.exchanges.len()).batch(&s);
    arrange(&mut s);
    s.seal();
    s
}

/// Stages of the operations that move.
struct Stages {
    ids: i32,
    partition: i32,
    gathers: Vec<i32>,
    applies: Vec<i32>,
}

impl Stages {
    fn of(plan: &Recipe) -> Self {
        let Some(reuse) = plan.reuse() else {
            let ids = i32::from(plan.strategy != Strategy::Serial);
            return Self { ids, partition: 0, gathers: Vec::new(), applies: Vec::new() };
        };
        let (lookups, gradients) = (reuse.count(Way::Forward) as u32, reuse.count(Way::Backward) as u32);
        let history = reuse.history() as i32;
        if plan.strategy != Strategy::Pec {
            // Everything in its own step, but gradients' classes need the ids of batches to come.
            return Self {
                ids: history,
                partition: 0,
                gathers: vec![0; lookups as usize],
                applies: vec![0; gradients as usize],
            };
        }
        let meets = |a, g| reuse.apply_before_gather(Some(a), Some(g));
        let applies: Vec<i32> = (0..gradients)
            .map(|a| -i32::from((0..lookups).all(|g| meets(a, g).is_none_or(|d| d >= 2))))
            .collect();
        let early =
            |g| (0..gradients).all(|a| meets(a, g).is_none_or(|d| 1 - applies[a as usize] <= d as i32));
        let gathers = (0..lookups).map(|g| i32::from(early(g))).collect();
        Self { ids: history + 1, partition: 1, gathers, applies }
    }
}
