//! Names and shapes of what a file holds.

use std::collections::{BTreeMap, BTreeSet};

use fs_schedule::{CostModel, DenseOptimizer, InputKind, Parameter, Schedule, SparseOptimizer};
use serde::{Deserialize, Serialize};

use crate::device::Values;
use crate::error::Error;
use crate::evaluate::Scores;
use crate::evaluate::metric::Metric;
use crate::runtime::tables::Field;

/// Where the header's `__metadata__` says what a file is: an [`About`] in JSON.
pub(crate) const KEY: &str = "fsx";
/// The format of files written now. Those of version 1 named the schedule's digest, which nothing reads.
pub(crate) const VERSION: u32 = 2;
/// More steps than any run has.
pub(crate) const MOST_STEPS: u64 = 1 << 48;
/// Values moved at once.
pub(crate) const PIECE: usize = 1 << 18;
/// The vocabulary of a source that has one.
pub(crate) const ITEMS: &str = "items";

/// What a file says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    /// The format's version.
    pub version: u32,
    /// What wrote it.
    pub program: String,
    /// Name of the model.
    pub model: String,
    /// Digest of what all schedules of the model share: a file of equal values is the same bytes, whichever trained it.
    #[serde(default)]
    pub shape: String,
    /// Seed of everything random.
    pub seed: u64,
    /// Steps that it was trained for: the number of the next one.
    pub step: u64,
    /// Per table whose rows ids of the data were given, the name of the vocabulary.
    pub vocabulary: BTreeMap<String, String>,
    /// What a checkpoint knows beside this, in a file made from one: with it a checkpoint can be made from the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Run>,
}

/// The run that left a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Digest of the schedule.
    pub schedule: String,
    /// Digest of what it trains, whatever its strategy and ranks.
    #[serde(default)]
    pub model: String,
    /// Number of ranks.
    pub ranks: usize,
    /// What the data was, for people, and its digest.
    pub data: (String, String),
    /// Of a rank's step and of samples, where costs are fitted to measured times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<(f64, CostModel)>,
    /// Scores of an evaluation at this step, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scores: Option<Scores>,
    /// By which of them the run keeps the best one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_by: Option<Metric>,
}

/// Numbers of the model that a file holds in one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// Of a table.
    Table(Field),
    /// Of a dense parameter, by its number.
    Parameter(usize, Values),
}

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedTensor {
    /// Its name in a file.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// What it holds.
    pub what: What,
    /// A state of an optimizer.
    pub state: bool,
    /// A sum of squares or a mean of them, never below 0.
    pub squares: bool,
}

/// All tensors of a model in the order of a file: tables, then parameters, each followed by its optimizer's states.
pub(crate) fn entries(schedule: &Schedule) -> Vec<SavedTensor> {
    let mut entries = Vec::new();
    for (t, table) in schedule.tables.iter().enumerate() {
        let name = table_name(&table.name);
        let states: &[_] = match table.optimizer {
            SparseOptimizer::Sgd { .. } => &[],
            SparseOptimizer::RowwiseAdagrad { .. } => &[("/row_sum", Values::First)],
            SparseOptimizer::Adagrad { .. } => &[("/sum", Values::First)],
            SparseOptimizer::Adam { .. } => ADAM,
        };
        for (suffix, values) in [&[("", Values::Weights)], states].concat() {
            let field = Field::of(schedule, t, values);
            let (rows, width) = (table.rows as usize, field.width);
            let shape = if field.by_row() && width == 1 { vec![rows] } else { vec![rows, width] };
            entries.push(SavedTensor::new(&name, suffix, shape, What::Table(field)));
        }
    }
    for (p, parameter) in schedule.parameters.iter().enumerate() {
        let states: &[_] = match schedule.settings.optimizer {
            DenseOptimizer::Sgd { momentum: 0.0, .. } => &[],
            DenseOptimizer::Sgd { .. } => &[("/momentum_buffer", Values::First)],
            DenseOptimizer::Adam { .. } => ADAM,
        };
        for (suffix, values) in [&[("", Values::Weights)], states].concat() {
            entries.push(SavedTensor::new(
                &parameter.name,
                suffix,
                shape(parameter),
                What::Parameter(p, values),
            ));
        }
    }
    entries
}

const ADAM: &[(&str, Values)] = &[("/exp_avg", Values::First), ("/exp_avg_sq", Values::Second)];

impl SavedTensor {
    fn new(of: &str, suffix: &str, shape: Vec<usize>, what: What) -> Self {
        let squares = matches!(suffix, "/row_sum" | "/sum" | "/exp_avg_sq");
        Self { name: format!("{of}{suffix}"), shape, what, state: !suffix.is_empty(), squares }
    }
}

/// The tensor of a table's values.
pub(crate) fn table_name(table: &str) -> String {
    format!("table.{table}")
}

/// The tensors of a vocabulary: where its texts begin, and these.
pub(crate) fn vocabulary_names(name: &str) -> [String; 2] {
    ["offsets", "text"].map(|what| format!("vocabulary/{name}/{what}"))
}

/// Whether a tensor is a state of an optimizer, by its name and those of all others.
pub(crate) fn is_state(name: &str, all: &BTreeSet<String>) -> bool {
    const STATES: [&str; 5] = ["row_sum", "sum", "momentum_buffer", "exp_avg", "exp_avg_sq"];
    name.rsplit_once('/').is_some_and(|(of, state)| STATES.contains(&state) && all.contains(of))
}

/// Tables whose rows ids of the data name.
pub(crate) fn looked_up(schedule: &Schedule) -> BTreeSet<&str> {
    let tables = schedule.inputs.iter().filter_map(|input| match input.kind {
        InputKind::Ids { table, .. } => Some(schedule.tables[table as usize].name.as_str()),
        _ => None,
    });
    tables.collect()
}

fn shape(parameter: &Parameter) -> Vec<usize> {
    if parameter.vector {
        vec![parameter.columns as usize]
    } else {
        vec![parameter.rows as usize, parameter.columns as usize]
    }
}

/// Checks that a model can be saved: no two of its tensors have the same name.
pub fn check(schedule: &Schedule) -> Result<(), Error> {
    let mut seen = BTreeSet::from(vocabulary_names(ITEMS));
    for entry in entries(schedule) {
        if seen.contains(&entry.name) {
            return Err(Error::Weights(format!(
                "the model cannot be saved: two of its tensors would be named `{}`",
                entry.name
            )));
        }
        seen.insert(entry.name);
    }
    Ok(())
}
