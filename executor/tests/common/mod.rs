//! Schedules built by hand, so that the executor's tests need no compiler.
#![allow(dead_code, reason = "each test file uses a part")]

use std::path::Path;

use fs_schedule::{
    Action, Buffer, Data, DenseOptimizer, Dep, Duration, Element, Engine, Evaluate, Exchange, FORMAT,
    IdDistribution, Init, Input, InputKind, Keep, LabelDistribution, Leg, LengthDistribution, Lengths,
    Normalize, Op, Operand, Parameter, Place, Program, Reference, Schedule, Settings, Sharding,
    SparseOptimizer, Strategy, Table, VERSION,
};

/// Puts a program together: every buffer has a slot of its own.
#[derive(Default)]
pub(crate) struct Build {
    pub program: Program,
}

impl Build {
    pub(crate) fn buffer(&mut self, name: &str, element: Element, rows: &str, columns: u32) -> Operand {
        let slot = self.program.buffers.len() as u32;
        let (first, last) = (0, 0);
        let rows = rows.parse().unwrap();
        self.program.buffers.push(Buffer {
            name: name.into(),
            element,
            rows,
            columns,
            microbatch: None,
            site: fs_schedule::Site::Home,
            copies: 1,
            slot,
            first,
            last,
        });
        Operand::buffer(slot)
    }

    pub(crate) fn real(&mut self, name: &str, rows: &str, columns: u32) -> Operand {
        self.buffer(name, Element::Real, rows, columns)
    }

    pub(crate) fn op(&mut self, name: &str, action: Action, reads: &[Operand], writes: &[Operand]) {
        let engine = match &action {
            Action::LoadBatch => Engine::Host,
            action if action.is_transfer() => Engine::CopyOut,
            _ => Engine::Compute,
        };
        let (reads, writes) = (reads.to_vec(), writes.to_vec());
        self.program.ops.push(Op { reads, writes, ..Op::new(name, action, engine) });
    }

    /// The program, each operation after the one before, each step after the last one.
    pub(crate) fn finish(mut self) -> Program {
        let ops = &mut self.program.ops;
        let last = ops.len() as u32 - 1;
        for (i, op) in ops.iter_mut().enumerate() {
            op.deps = vec![match i {
                0 => Dep { op: last, distance: 1 },
                _ => Dep { op: i as u32 - 1, distance: 0 },
            }];
        }
        for (n, buffer) in self.program.buffers.iter_mut().enumerate() {
            let place = Place::Buffer(n as u32);
            let uses = |op: &Op| op.reads.iter().chain(&op.writes).any(|o| o.place == place);
            buffer.first = ops.iter().position(uses).unwrap() as u32;
            buffer.last = ops.iter().rposition(uses).unwrap() as u32;
        }
        self.program
    }

    /// Rows of `ids` (inputs or id buffers) from a table: the rows buffer and an inverse for each of `ids`, whose
    /// numbers of rows and columns are given beside.
    pub(crate) fn lookup(&mut self, table: u32, dim: u32, ids: &[(Operand, &str, u32)]) -> Lookup {
        let entries = self.buffer("entries", Element::Id, "U0", 1);
        let counts = self.buffer("counts", Element::Count, "W", 1);
        let asked = self.buffer("asked", Element::Index, "R0", 1);
        let received = self.buffer("received", Element::Count, "W", 1);
        let owned = self.real("owned", "R0", dim);
        let rows = self.real("rows", "U0", dim);
        let inverse: Vec<Operand> = ids
            .iter()
            .map(|(_, rows, columns)| self.buffer("inverse", Element::Index, rows, *columns))
            .collect();
        let table = Operand::new(Place::Table(table));
        let reads: Vec<Operand> = ids.iter().map(|i| i.0).collect();
        let writes: Vec<Operand> = [entries, counts].into_iter().chain(inverse.iter().copied()).collect();
        self.op("unique", Action::Unique { exchange: 0 }, &reads, &writes);
        self.op(
            "input_dist",
            Action::AllToAllIds { exchanges: vec![0] },
            &[entries, counts],
            &[asked, received],
        );
        self.op("gather", Action::Gather { exchange: 0, class: None }, &[table, asked], &[owned]);
        self.op(
            "output_dist",
            Action::AllToAllRows { exchanges: vec![0], class: None },
            &[owned, received, counts],
            &[rows],
        );
        Lookup { table, counts, asked, received, rows, inverse, dim }
    }

    /// Sends `grows` back and applies it.
    pub(crate) fn apply(&mut self, lookup: &Lookup, grows: Operand) {
        let owned = self.real("gowned", "R0", lookup.dim);
        let reads = [grows, lookup.counts, lookup.received];
        self.op("gradient_dist", Action::AllToAllGrads { exchanges: vec![0], class: None }, &reads, &[owned]);
        self.op(
            "apply",
            Action::Apply { exchange: 0, class: None },
            &[lookup.asked, lookup.received, owned],
            &[lookup.table],
        );
    }
}

pub(crate) struct Lookup {
    pub table: Operand,
    pub counts: Operand,
    pub asked: Operand,
    pub received: Operand,
    pub rows: Operand,
    pub inverse: Vec<Operand>,
    pub dim: u32,
}

pub(crate) fn input(n: u32) -> Operand {
    Operand::new(Place::Input(n))
}

pub(crate) fn weight(n: u32) -> Operand {
    Operand::new(Place::Parameter(n))
}

pub(crate) fn gradient(n: u32) -> Operand {
    Operand::new(Place::Gradient(n))
}

pub(crate) fn columns(operand: Operand, start: u32, end: u32) -> Operand {
    Operand { columns: Some((start, end)), ..operand }
}

pub(crate) fn add_into(operand: Operand) -> Operand {
    Operand { accumulate: true, ..operand }
}

pub(crate) fn parameter(name: &str, rows: u32, cols: u32, stream: u32) -> Parameter {
    let init = Init::Normal { mean: 0.0, std: 0.3 };
    Parameter { name: name.into(), rows, columns: cols, vector: rows == 1, init, stream }
}

/// A schedule with one table and nothing else.
pub(crate) fn empty(batch: u32, rows: u64, dim: u32) -> Schedule {
    Schedule {
        format: FORMAT.into(),
        version: VERSION,
        digest: format!("sha256:{}", "0".repeat(64)),
        model: "by_hand".into(),
        strategy: Strategy::Serial,
        ranks: 1,
        sources: Vec::new(),
        settings: Settings {
            node: None,
            sums_by_node: false,
            wire: fs_schedule::WirePrecision::default(),
            batch,
            microbatches: 1,
            duration: Duration::Steps(6),
            seed: 5,
            optimizer: DenseOptimizer::Adam {
                lr: 1e-2,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.0,
            },
            balance: None,
        },
        data: None,
        evaluate: None,
        lengths: vec![Lengths { name: "items".into(), max: 20, keep: Keep::Last }],
        inputs: Vec::new(),
        tables: vec![Table {
            name: "items".into(),
            rows,
            dim,
            sharding: Sharding::RowWise,
            placement: fs_schedule::RowPlacement::Range,
            hot: Vec::new(),
            optimizer: SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: 1e-8 },
            init: Init::Normal { mean: 0.0, std: 0.5 },
            stream: 1,
        }],
        parameters: Vec::new(),
        exchanges: vec![Exchange {
            windows: None,
            table: 0,
            part: 0,
            entries: 0,
            unique: true,
            lookahead: None,
            folded: false,
            leg: Leg::Whole,
            shares: None,
            of: None,
        }],
        engines: vec![Engine::Host, Engine::Compute, Engine::CopyOut],
        train: Program::default(),
        evaluation: None,
        prediction: None,
        reference: Reference::default(),
        counted: None,
        search: None,
    }
}

/// Generated ids with a label per token: one attention block between lookup and a linear head.
pub(crate) fn ranking(batch: u32, unique: bool) -> Schedule {
    const D: u32 = 8;
    let mut s = empty(batch, 300, D);
    s.exchanges[0].unique = unique;
    s.data = Some(Data::Generate {
        lengths: LengthDistribution::Lognormal { mean: 6.0, sigma: 1.0, min: 0, max: None },
        ids: IdDistribution::Zipf(1.05),
        labels: LabelDistribution::Hash,
        samples: None,
    });
    s.inputs = vec![
        Input { name: "items".into(), kind: InputKind::Ids { table: 0, lengths: 0 } },
        Input { name: "labels".into(), kind: InputKind::TokenLabel { lengths: 0 } },
    ];
    s.parameters = vec![
        parameter("qkv.weight", 3 * D, D, 10),
        parameter("qkv.bias", 1, 3 * D, 11),
        parameter("head.weight", 1, D, 12),
        parameter("head.bias", 1, 1, 13),
    ];
    let mut b = Build::default();
    b.op("load", Action::LoadBatch, &[], &[]);
    let lookup = b.lookup(0, D, &[(input(0), "T0", 1)]);
    let lengths = Operand::new(Place::Lengths(0));
    let x = b.real("x", "T0", D);
    b.op("expand", Action::Expand, &[lookup.rows, lookup.inverse[0]], &[x]);
    let dropped = b.real("dropped", "T0", D);
    b.op("dropout", Action::Dropout { p: 0.2, stream: 20 }, &[x], &[dropped]);
    let qkv = b.real("qkv", "T0", 3 * D);
    b.op("qkv", Action::Linear { bias: true }, &[dropped, weight(0), weight(1)], &[qkv]);
    let parts = [columns(qkv, 0, D), columns(qkv, D, 2 * D), columns(qkv, 2 * D, 3 * D)];
    let y = b.real("y", "T0", D);
    b.op("attention", Action::SiluAttention { heads: 2 }, &[parts[0], parts[1], parts[2], lengths], &[y]);
    let z = b.real("z", "T0", D);
    b.op("residual", Action::Add, &[dropped, y], &[z]);
    let logits = b.real("logits", "T0", 1);
    b.op("head", Action::Linear { bias: true }, &[z, weight(2), weight(3)], &[logits]);
    let (loss, glogits) = (b.real("loss", "1", 1), b.real("glogits", "T0", 1));
    let bce = Action::BceWithLogits { normalize: Normalize::Tokens(0) };
    b.op("loss", bce, &[logits, input(1)], &[loss, glogits]);
    b.op("head.gw", Action::LinearGradWeight { bias: true }, &[glogits, z], &[gradient(2), gradient(3)]);
    let gz = b.real("gz", "T0", D);
    b.op("head.gx", Action::LinearGradInput, &[glogits, weight(2)], &[gz]);
    let gqkv = b.real("gqkv", "T0", 3 * D);
    b.op(
        "attention.grad",
        Action::SiluAttentionGrad { heads: 2 },
        &[parts[0], parts[1], parts[2], lengths, gz],
        &[columns(gqkv, 0, D), columns(gqkv, D, 2 * D), columns(gqkv, 2 * D, 3 * D)],
    );
    b.op("qkv.gw", Action::LinearGradWeight { bias: true }, &[gqkv, dropped], &[gradient(0), gradient(1)]);
    b.op("qkv.gx", Action::LinearGradInput, &[gqkv, weight(0)], &[add_into(gz)]);
    let gx = b.real("gx", "T0", D);
    b.op("dropout.grad", Action::DropoutGrad { p: 0.2, stream: 20 }, &[gz], &[gx]);
    let grows = b.real("grows", "U0", D);
    b.op("expand.grad", Action::ExpandGrad, &[gx, lookup.inverse[0]], &[grows]);
    b.apply(&lookup, grows);
    let gradients: Vec<Operand> = (0..4).map(gradient).collect();
    let weights: Vec<Operand> = (0..4).map(weight).collect();
    b.op("all_reduce", Action::AllReduce, &gradients, &gradients);
    b.op("update", Action::DenseUpdate, &gradients, &weights);
    s.train = b.finish();
    s.reference = model(
        vec![
            Action::Expand,
            Action::Dropout { p: 0.2, stream: 20 },
            Action::Linear { bias: true },
            Action::SiluAttention { heads: 2 },
            Action::Add,
            Action::BceWithLogits { normalize: Normalize::Tokens(0) },
            Action::LinearGradWeight { bias: true },
            Action::LinearGradInput,
            Action::SiluAttentionGrad { heads: 2 },
            Action::DropoutGrad { p: 0.2, stream: 20 },
            Action::ExpandGrad,
        ],
        &[
            "a0 t0 i0",
            "a1 v0",
            "a2 v1 p0 p1",
            "a3 v2[0:8] v2[8:16] v2[16:24] l0",
            "a4 v1 v3",
            "a2 v4 p2 p3",
            "a5 v5 i1",
            "a6 v6.1 v4",
            "a7 v6.1 p2",
            "a8 v2[0:8] v2[8:16] v2[16:24] l0 v8",
            "concat v9 v9.1 v9.2",
            "a6 v10 v1",
            "a7 v10 p0",
            "a4 v8 v12",
            "a9 v13",
            "a10 v14 i0",
        ],
        &["t0 v15", "p0 v11", "p1 v11.1", "p2 v7", "p3 v7.1"],
        None,
    );
    s
}

/// Next items from a CSV file: normalised rows, sampled softmax over the table that also embeds the history.
pub(crate) fn next_item(batch: u32, rows: u64, path: &str) -> Schedule {
    const D: u32 = 8;
    const NEGATIVES: u32 = 16;
    let mut s = empty(batch, rows, D);
    s.settings.duration = Duration::Epochs(1);
    s.data = Some(Data::Csv {
        path: path.into(),
        user: "userId".into(),
        item: "movieId".into(),
        time: Some("timestamp".into()),
        rating: Some("rating".into()),
        min_interactions: None,
    });
    s.evaluate = Some(Evaluate::LeaveLastOut);
    s.lengths[0].max = 50;
    s.inputs = vec![
        Input { name: "items".into(), kind: InputKind::Ids { table: 0, lengths: 0 } },
        Input { name: "next".into(), kind: InputKind::Next { of: 0 } },
    ];
    s.parameters = vec![parameter("mix.weight", D, D, 10)];
    let mut b = Build::default();
    b.op("load", Action::LoadBatch, &[], &[]);
    let drawn = b.buffer("drawn", Element::Id, "T0", NEGATIVES);
    b.op("draw", Action::DrawNegatives { table: 0, lengths: 0, count: NEGATIVES, stream: 30 }, &[], &[drawn]);
    // Ids whose gradients are summed first come first.
    let ids = [(input(1), "T0", 1), (drawn, "T0", NEGATIVES), (input(0), "T0", 1)];
    let lookup = b.lookup(0, D, &ids);
    let [targets, negatives, history] = [lookup.inverse[0], lookup.inverse[1], lookup.inverse[2]];
    let x = b.real("x", "T0", D);
    b.op("expand", Action::Expand, &[lookup.rows, history], &[x]);
    let h = b.real("h", "T0", D);
    b.op("mix", Action::Linear { bias: false }, &[x, weight(0)], &[h]);
    let (hn, hnorms) = (b.real("hn", "T0", D), b.real("hnorms", "T0", 1));
    b.op("h.norm", Action::L2Normalize { eps: 1e-12 }, &[h], &[hn, hnorms]);
    let (rn, rnorms) = (b.real("rn", "U0", D), b.real("rnorms", "U0", 1));
    b.op("rows.norm", Action::L2Normalize { eps: 1e-12 }, &[lookup.rows], &[rn, rnorms]);
    let (loss, gscores) = (b.real("loss", "1", 1), b.real("gscores", "T0", 1 + NEGATIVES));
    let action =
        Action::SampledSoftmax { negatives: NEGATIVES, temperature: 0.05, normalize: Normalize::Tokens(0) };
    b.op("loss", action, &[hn, rn, targets, negatives], &[loss, gscores]);
    let (ghn, grn) = (b.real("ghn", "T0", D), b.real("grn", "U0", D));
    let reads = [hn, rn, targets, negatives, gscores];
    b.op("loss.grad", Action::SampledSoftmaxGrad { negatives: NEGATIVES }, &reads, &[ghn, grn]);
    let (gh, grows) = (b.real("gh", "T0", D), b.real("grows", "U0", D));
    b.op("h.norm.grad", Action::L2NormalizeGrad { eps: 1e-12 }, &[hn, hnorms, ghn], &[gh]);
    b.op("rows.norm.grad", Action::L2NormalizeGrad { eps: 1e-12 }, &[rn, rnorms, grn], &[grows]);
    b.op("mix.gw", Action::LinearGradWeight { bias: false }, &[gh, x], &[gradient(0)]);
    let gx = b.real("gx", "T0", D);
    b.op("mix.gx", Action::LinearGradInput, &[gh, weight(0)], &[gx]);
    b.op("expand.grad", Action::ExpandGrad, &[gx, history], &[add_into(grows)]);
    b.apply(&lookup, grows);
    b.op("all_reduce", Action::AllReduce, &[gradient(0)], &[gradient(0)]);
    b.op("update", Action::DenseUpdate, &[gradient(0)], &[weight(0)]);
    s.train = b.finish();

    let mut e = Build::default();
    e.op("load", Action::LoadBatch, &[], &[]);
    let lookup = e.lookup(0, D, &[(input(0), "T0", 1)]);
    let (x, h) = (e.real("x", "T0", D), e.real("h", "T0", D));
    e.op("expand", Action::Expand, &[lookup.rows, lookup.inverse[0]], &[x]);
    e.op("mix", Action::Linear { bias: false }, &[x, weight(0)], &[h]);
    let lengths = Operand::new(Place::Lengths(0));
    e.op("rank", Action::RankItems { cosine: true }, &[h, lengths, lookup.table], &[]);
    s.evaluation = Some(e.finish());
    let softmax =
        Action::SampledSoftmax { negatives: NEGATIVES, temperature: 0.05, normalize: Normalize::Tokens(0) };
    s.reference = model(
        vec![
            Action::Expand,
            Action::Linear { bias: false },
            Action::DrawNegatives { table: 0, lengths: 0, count: NEGATIVES, stream: 30 },
            Action::L2Normalize { eps: 1e-12 },
            softmax,
            Action::SampledSoftmaxGrad { negatives: NEGATIVES },
            Action::L2NormalizeGrad { eps: 1e-12 },
            Action::LinearGradWeight { bias: false },
            Action::LinearGradInput,
            Action::ExpandGrad,
            Action::RankItems { cosine: true },
        ],
        &[
            "a0 t0 i0",
            "a1 v0 p0",
            "a2",
            "a3 v1",
            "a3 t0",
            "a4 v3 v4 i1 v2",
            "a5 v3 v4 i1 v2 v5.1",
            "a6 v3 v3.1 v6",
            "a6 v4 v4.1 v6.1",
            "a7 v7 v0",
            "a8 v7 p0",
            "a9 v10 i0",
        ],
        &["t0 v8 v11", "p0 v9"],
        Some(&["a0 t0 i0", "a1 v0 p0", "a10 v1 l0 t0"]),
    );
    s
}

/// What a schedule is a schedule of; [`write`] gives it its digest.
fn model(actions: Vec<Action>, train: &[&str], updates: &[&str], evaluation: Option<&[&str]>) -> Reference {
    let terms = |list: &[&str]| list.iter().map(|t| t.parse().unwrap()).collect();
    Reference {
        digest: String::new(),
        actions,
        train: terms(train),
        updates: updates.iter().map(|u| u.parse().unwrap()).collect(),
        evaluation: evaluation.map(terms),
        sums: Default::default(),
    }
}

/// Writes a schedule for the binary, with the digest of its model.
pub(crate) fn write(path: &Path, schedule: &Schedule) {
    let mut schedule = schedule.clone();
    schedule.seal();
    fs_schedule::write(path, &schedule).unwrap();
}
