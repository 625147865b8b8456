//! Random models: a proptest strategy for valid `.fs` programs, small enough to compile by the hundred.
//!
//! There are two families, because nothing in the language turns tokens into samples but `pool`: *token* models look
//! rows up, mix them along the sequence and are scored per token; *sample* models pool rows, mix them with dense
//! features and are scored per sample. Every choice is a small number, so a failing model shrinks to few tables,
//! narrow rows and no layers; its `Debug` form is the program's text.

use std::fmt::{self, Write as _};

use fs_compiler::At;
use fs_compiler::distribution::TableOptions;
use fs_dsl::checked::Program;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;

/// What models may ask for.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    /// Any sharding; otherwise row-wise and `auto`.
    pub shardings: bool,
    /// Up to four microbatches; otherwise one.
    pub microbatches: bool,
    /// Rows by range, hashed and planned, and rows numbered by popularity; otherwise as the compiler chooses.
    pub placements: bool,
}

/// Programs that compile.
pub fn models(features: Features) -> impl Strategy<Value = Model> {
    (
        vec(table(features), 1..=6),
        vec(group(), 1..=3),
        vec((any::<u8>(), any::<u8>(), any::<bool>()), 0..=5),
        vec(layer(), 0..=5),
        loss(),
        train(features),
        workload(features),
    )
        .prop_map(|(tables, groups, inputs, layers, loss, train, workload)| Model {
            tables,
            groups,
            inputs,
            layers,
            loss,
            train,
            workload,
        })
}

/// A random program; [`Model::text`] writes it.
#[derive(Clone)]
pub struct Model {
    tables: Vec<Table>,
    groups: Vec<Group>,
    /// Inputs beyond one per table: table, group, mean instead of sum.
    inputs: Vec<(u8, u8, bool)>,
    layers: Vec<Layer>,
    loss: Loss,
    train: Train,
    workload: Workload,
}

#[derive(Debug, Clone)]
struct Table {
    rows: u32,
    dim: u32,
    init: &'static str,
    optimizer: &'static str,
    sharding: &'static str,
}

/// Sequences of one length.
#[derive(Debug, Clone)]
struct Group {
    max: u32,
    keep: &'static str,
}

/// What is done to x, of `width` columns.
#[derive(Debug, Clone)]
enum Layer {
    /// Linear to another width.
    Project { width: u32, bias: bool, activation: &'static str },
    /// `x + linear(f(x))`.
    Residual { activation: &'static str },
    /// Half of the columns of a layer gate the other half.
    Gate,
    /// Split into parts, one of them scaled, and concatenated.
    Shuffle { factor: f64 },
    /// Over the columns.
    Norm { affine: bool },
    /// Along the sequence; in sample models a linear layer.
    Attention { heads: u32, kind: u8 },
    /// A row per position; in sample models a linear layer.
    Positional,
    /// In training only.
    Dropout { p: f64 },
    /// Two iterations with parameters of their own, in a block called by name.
    Repeat { activation: &'static str },
    /// Dense features, added; in token models a linear layer.
    Features { width: u32 },
    /// Dot products of the parts beside the parts; in token models a linear layer.
    Interaction { parts: u32 },
}

#[derive(Debug, Clone)]
struct Loss {
    tokens: bool,
    sampled: bool,
    negatives: u32,
    cosine: bool,
    normalize: &'static str,
}

#[derive(Debug, Clone)]
struct Train {
    samples: u32,
    microbatches: u32,
    lookahead: u32,
    unique_rows: bool,
    balance: &'static str,
    optimizer: &'static str,
    duration: &'static str,
    seed: u64,
}

#[derive(Debug, Clone)]
struct Workload {
    lengths: &'static str,
    ids: &'static str,
    labels: &'static str,
    samples: Option<u32>,
}

const ACTIVATIONS: [&str; 5] = ["silu", "relu", "gelu", "sigmoid", "softmax"];

fn one_of(list: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    prop::sample::select(list)
}

fn table(features: Features) -> BoxedStrategy<Table> {
    let shardings: &[&str] = if features.shardings && features.placements {
        &[
            "auto",
            "row_wise",
            "row_wise(placement: range)",
            "row_wise(placement: hashed)",
            "row_wise(placement: planned)",
            "table_wise",
            "data_parallel",
            "column_wise",
        ]
    } else if features.shardings {
        &["auto", "row_wise", "table_wise", "data_parallel", "column_wise"]
    } else {
        &["auto", "row_wise"]
    };
    (
        1u32..=300,
        prop::sample::select(&[2u32, 4, 8, 12, 16][..]),
        one_of(&["normal(0, 0.1)", "zeros", "uniform(-0.1, 0.1)", "hash(scale: 0.1)", "xavier_normal"]),
        one_of(&["sgd(lr: 0.1)", "rowwise_adagrad(lr: 0.05)", "adagrad(lr: 0.05)", "adam(lr: 0.01)"]),
        one_of(shardings),
    )
        .prop_map(|(rows, dim, init, optimizer, sharding)| {
            // The state of this optimizer is one value per row, which no owner of some columns can compute.
            let clash = sharding == "column_wise" && optimizer.starts_with("rowwise");
            let optimizer = if clash { "adagrad(lr: 0.05)" } else { optimizer };
            Table { rows, dim, init, optimizer, sharding }
        })
        .boxed()
}

fn group() -> impl Strategy<Value = Group> {
    (1u32..=9, one_of(&["last", "first"])).prop_map(|(max, keep)| Group { max, keep })
}

fn layer() -> impl Strategy<Value = Layer> {
    prop_oneof![
        (prop::sample::select(&[2u32, 4, 6, 12][..]), any::<bool>(), one_of(&ACTIVATIONS))
            .prop_map(|(width, bias, activation)| Layer::Project { width, bias, activation }),
        one_of(&ACTIVATIONS).prop_map(|activation| Layer::Residual { activation }),
        Just(Layer::Gate),
        prop::sample::select(&[1.0, 0.5, -2.0][..]).prop_map(|factor| Layer::Shuffle { factor }),
        any::<bool>().prop_map(|affine| Layer::Norm { affine }),
        (1u32..=2, 0u8..3).prop_map(|(heads, kind)| Layer::Attention { heads, kind }),
        Just(Layer::Positional),
        prop::sample::select(&[0.0, 0.25][..]).prop_map(|p| Layer::Dropout { p }),
        one_of(&ACTIVATIONS).prop_map(|activation| Layer::Repeat { activation }),
        (1u32..=5).prop_map(|width| Layer::Features { width }),
        (2u32..=4).prop_map(|parts| Layer::Interaction { parts }),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    (any::<bool>(), any::<bool>(), 1u32..=5, any::<bool>(), one_of(&["samples", "tokens", "37.5"])).prop_map(
        |(tokens, sampled, negatives, cosine, normalize)| Loss {
            tokens,
            sampled,
            negatives,
            cosine,
            normalize,
        },
    )
}

fn train(features: Features) -> impl Strategy<Value = Train> {
    (
        1u32..=6,
        if features.microbatches { 1u32..=4 } else { 1..=1 },
        1u32..=3,
        any::<bool>(),
        one_of(&["adam(lr: 1e-3)", "sgd(lr: 0.1)", "sgd(lr: 0.1, momentum: 0.9, weight_decay: 1e-3)"]),
        one_of(&["steps 5", "epochs 2"]),
        0u64..1000,
        one_of(&["off", "off", "on", "cost(1, 2, 3)"]),
    )
        .prop_map(
            |(samples, microbatches, lookahead, unique_rows, optimizer, duration, seed, balance)| Train {
                samples,
                microbatches,
                lookahead,
                unique_rows,
                balance,
                optimizer,
                duration,
                seed,
            },
        )
}

fn workload(features: Features) -> impl Strategy<Value = Workload> {
    let ids: &[&str] = &["uniform", "zipf(1.05)", "zipf(1.2, numbered: by_popularity)"];
    (
        one_of(&["fixed(3)", "uniform(0, 7)", "lognormal(mean: 3, sigma: 1, max: 9)"]),
        one_of(if features.placements { ids } else { &ids[..2] }),
        one_of(&["hash", "bernoulli(0.3)"]),
        prop::option::of(1u32..=40),
    )
        .prop_map(|(lengths, ids, labels, samples)| Workload { lengths, ids, labels, samples })
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n{}", self.text())
    }
}

/// Writes the statements of a model; `x` always has `width` columns.
struct Writer {
    text: String,
    width: u32,
    tokens: bool,
    features: u32,
}

impl Model {
    /// Batches that a strategy looks ahead, as the program says.
    pub fn lookahead(&self) -> u32 {
        self.train.lookahead
    }

    /// The same model with another lookahead.
    #[must_use]
    pub fn with_lookahead(&self, lookahead: u32) -> Self {
        let mut other = self.clone();
        other.train.lookahead = lookahead;
        other
    }

    /// Where samples go to other ranks, if they do: no part of the program.
    pub fn at(&self) -> At {
        // Where a table has owners they can be asked on behalf of others.
        let owned = |t: &Table| !matches!(t.sharding, "auto" | "data_parallel");
        let places = if self.tables.iter().any(owned) { &At::ALL[..] } else { &[At::Ids, At::Rows] };
        places[self.train.seed as usize % places.len()]
    }

    /// Who asks for rows of samples that move, of some tables otherwise than that says: no part of the program.
    pub fn folds(&self) -> TableOptions {
        let owned = |t: &Table| !matches!(t.sharding, "auto" | "data_parallel");
        let owned = self.tables.iter().enumerate().filter(|(_, table)| self.at() != At::Rows && owned(table));
        let bits = self.train.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let folds = owned.filter_map(|(t, _)| match (bits >> (2 * t)) & 3 {
            0 => Some((format!("t{t}"), false)),
            1 => Some((format!("t{t}"), true)),
            _ => None,
        });
        TableOptions::default().fold(folds)
    }

    /// The same with wider rows: of several blocks of 32 columns, whole and not, and some that can be cut between.
    #[must_use]
    pub fn in_blocks(mut self) -> Self {
        for table in &mut self.tables {
            table.dim = match table.dim {
                2 => 64,
                4 => 96,
                8 => 33,
                12 => 128,
                _ => 100,
            };
        }
        self
    }

    /// The program.
    pub fn text(&self) -> String {
        let tokens = self.loss.tokens;
        let mut w = Writer { text: String::new(), width: 0, tokens, features: 0 };
        w.line("model random {");
        for (t, table) in self.tables.iter().enumerate() {
            let Table { rows, dim, init, optimizer, sharding } = table;
            w.line(&format!(
                "table t{t} {{ rows {rows}  dim {dim}  init {init}  optimizer {optimizer}  sharding {sharding} }}"
            ));
        }
        let inputs = self.inputs();
        // Declared by the first input of each group.
        let mut leaders: Vec<Option<usize>> = vec![None; self.groups.len()];
        for (i, (table, group, _)) in inputs.iter().enumerate() {
            if let Some(leader) = leaders[*group] {
                w.line(&format!("input i{i}: ids(t{table}) like i{leader}"));
            } else {
                let Group { max, keep } = &self.groups[*group];
                w.line(&format!("input i{i}: ids(t{table}) {{ max {max}  keep {keep} }}"));
                leaders[*group] = Some(i);
            }
        }
        let sampled = tokens && self.loss.sampled;
        if sampled {
            w.line("input following: next(i0)");
        } else {
            w.line(if tokens { "input click: label like i0" } else { "input click: label" });
        }
        w.gather(&self.tables, &inputs);
        for layer in &self.layers {
            w.layer(layer);
        }
        let Loss { negatives, cosine, normalize, .. } = &self.loss;
        // Samples have no tokens to count.
        let normalize = if !tokens && *normalize == "tokens" { "samples" } else { normalize };
        if sampled {
            let table = inputs[0].0;
            w.project(self.tables[table].dim);
            let similarity = if *cosine { "cosine" } else { "dot" };
            w.line(&format!(
                "loss sampled_softmax(x, t{table}, following, negatives: {negatives}, temperature: 0.5, similarity: {similarity}, normalize: {normalize})"
            ));
        } else {
            w.line(&format!("loss bce_with_logits(linear(x, 1), click, normalize: {normalize})"));
        }
        w.line("}");
        if self.layers.iter().any(|l| matches!(l, Layer::Repeat { .. })) {
            w.line("block layer(x, out) { return linear(layer_norm(x), out) }");
        }
        w.settings(&self.train, &self.workload);
        w.text
    }

    /// Inputs as table, group and mean: one for each table, then more. Token models are about one group.
    fn inputs(&self) -> Vec<(usize, usize, bool)> {
        let group = |g: usize| if self.loss.tokens { 0 } else { g % self.groups.len() };
        let first = (0..self.tables.len()).map(|t| (t, group(t), t % 2 == 1));
        let more = self
            .inputs
            .iter()
            .map(|(table, g, mean)| (usize::from(*table) % self.tables.len(), group(usize::from(*g)), *mean));
        first.chain(more).collect()
    }
}

impl Writer {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    /// Makes x of all inputs' rows, brought to one width: added if there are many, else side by side.
    fn gather(&mut self, tables: &[Table], inputs: &[(usize, usize, bool)]) {
        let parts: Vec<(String, u32)> = inputs
            .iter()
            .enumerate()
            .map(|(i, (table, _, mean))| {
                let rows = match (self.tokens, mean) {
                    (true, _) => format!("lookup(i{i})"),
                    (false, true) => format!("pool(i{i}, mean)"),
                    (false, false) => format!("pool(i{i})"),
                };
                (rows, tables[*table].dim)
            })
            .collect();
        self.width = parts[0].1;
        if let [(only, _)] = &parts[..] {
            self.line(&format!("let x = {only}"));
        } else if parts.iter().all(|(_, dim)| *dim == self.width) {
            let sum: Vec<&str> = parts.iter().map(|(rows, _)| rows.as_str()).collect();
            self.line(&format!("let x = {}", sum.join(" + ")));
        } else {
            let list: Vec<&str> = parts.iter().map(|(rows, _)| rows.as_str()).collect();
            self.width = parts.iter().map(|(_, dim)| dim).sum();
            self.line(&format!("let x = concat({})", list.join(", ")));
        }
    }

    /// Two names that nothing else has.
    fn fresh(&self) -> (String, String) {
        let at = self.text.len();
        (format!("a{at}"), format!("b{at}"))
    }

    /// x of that many columns.
    fn project(&mut self, width: u32) {
        if self.width != width {
            self.line(&format!("x = linear(x, {width})"));
            self.width = width;
        }
    }

    /// x of a number of columns that `parts` divides.
    fn divisible(&mut self, parts: u32) {
        self.project(self.width.next_multiple_of(parts));
    }

    fn layer(&mut self, layer: &Layer) {
        match layer {
            Layer::Project { width, bias, activation } => {
                let bias = if *bias { "on" } else { "off" };
                self.line(&format!("x = {activation}(linear(x, {width}, bias: {bias}))"));
                self.width = *width;
            }
            Layer::Residual { activation } => {
                self.line(&format!("x = x + linear({activation}(x), width(x))"));
            }
            Layer::Gate => {
                let (a, b) = self.fresh();
                self.line(&format!("let {a}, {b} = split(linear(x, 2 * width(x)), 2)"));
                self.line(&format!("x = {a} * sigmoid({b})"));
            }
            Layer::Shuffle { factor } => {
                self.divisible(2);
                let (a, b) = self.fresh();
                self.line(&format!("let {a}, {b} = split(x, [{}, {}])", self.width / 2, self.width / 2));
                self.line(&format!("x = concat({b}, {factor} * {a})"));
            }
            Layer::Norm { affine } => {
                let affine = if *affine { "on" } else { "off" };
                self.line(&format!("x = layer_norm(x, affine: {affine})"));
            }
            Layer::Attention { heads, kind } if self.tokens => {
                self.divisible(*heads);
                let (q, k) = self.fresh();
                let v = format!("{q}v");
                self.line(&format!("let {q}, {k}, {v} = split(linear(x, 3 * width(x)), 3)"));
                let (call, causal) = match kind {
                    0 => ("silu_attention", ""),
                    1 => ("softmax_attention", ""),
                    _ => ("softmax_attention", ", causal: off"),
                };
                self.line(&format!("x = x + {call}({q}, {k}, {v}, heads: {heads}{causal})"));
            }
            Layer::Positional if self.tokens => self.line("x = positional(x)"),
            Layer::Dropout { p } => self.line(&format!("x = dropout(x, {p})")),
            Layer::Repeat { activation } => {
                let label = format!("r{}", self.text.len());
                self.line(&format!(
                    "repeat 2 as {label} {{ x = x + {activation}(layer(x, width(x), name: \"inner\")) }}"
                ));
            }
            Layer::Features { width } if !self.tokens => {
                // Declared in the middle of the model, where inputs may stand too.
                let name = format!("f{}", self.features);
                self.features += 1;
                self.line(&format!("input {name}: dense({width})"));
                self.line(&format!("x = x + linear({name}, width(x))"));
            }
            Layer::Interaction { parts } if !self.tokens => {
                self.divisible(*parts);
                let names: Vec<String> = (0..*parts).map(|i| format!("p{}_{i}", self.text.len())).collect();
                let list = names.join(", ");
                self.line(&format!("let {list} = split(x, {parts})"));
                self.line(&format!("x = concat(x, dot_interaction({list}))"));
                self.width += parts * (parts - 1) / 2;
            }
            Layer::Attention { .. }
            | Layer::Positional
            | Layer::Features { .. }
            | Layer::Interaction { .. } => {
                self.line("x = l2_normalize(linear(x, width(x)))");
            }
        }
    }

    fn settings(&mut self, train: &Train, workload: &Workload) {
        let Train { samples, microbatches, lookahead, unique_rows, balance, optimizer, duration, seed } =
            train;
        // Without an end to the data only steps say how long.
        let duration = if workload.samples.is_none() { "steps 5" } else { duration };
        let unique = if *unique_rows { "on" } else { "off" };
        self.line(&format!(
            "train {{ batch {}  microbatches {microbatches}  lookahead {lookahead}  unique_rows {unique}  balance {balance}  optimizer {optimizer}  {duration}  seed {seed} }}",
            samples * microbatches
        ));
        let Workload { lengths, ids, labels, samples } = workload;
        let samples = samples.map_or_else(String::new, |n| format!("  samples {n}"));
        self.line(&format!(
            "workload random {{ generate {{ lengths {lengths}  ids {ids}  labels {labels}{samples} }} }}"
        ));
    }
}

/// By how many windows of a batch each table's rows are told apart: one of the numbers that cut its microbatches evenly, as picked.
pub fn windows(program: &Program, picks: &[u8]) -> Vec<(String, u32)> {
    let microbatches = program.train.microbatches.fixed().unwrap_or(1);
    let all: Vec<u32> = (1..=microbatches).filter(|n| microbatches.is_multiple_of(*n)).collect();
    let tables = program.model.iter().flat_map(|m| &m.tables);
    let picked = tables.zip(picks.iter().cycle());
    picked.map(|(table, pick)| (table.name.clone(), all[usize::from(*pick) % all.len()])).collect()
}
