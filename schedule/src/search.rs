//! How a schedule was found among others. Nothing that proves or runs a schedule reads it; people do (`fsc explain`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sent::Sent;

/// What was compared, and what of single tables was changed because it is faster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// Strategies, in the order in which they were tried.
    pub strategies: Vec<TriedStrategy>,
    /// Changes of single tables that were made, in order.
    pub rewrites: Vec<Rewrite>,
    /// Changes that were not made, the shortest predicted step first.
    pub others: Vec<OtherWay>,
    /// How the plain serial way to distribute tables became theirs, of those that have another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub derivations: Vec<Derivation>,
    /// Kinds of alike tables.
    pub kinds: u32,
    /// Nodes of the largest e-graph.
    pub nodes: u32,
    /// Ways that were compiled.
    pub ways: u32,
    /// Those of which the best order was looked for.
    pub scheduled: u32,
    /// There was more to try.
    pub limited: bool,
}

/// A strategy that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TriedStrategy {
    /// Its name, and the lookahead.
    pub name: String,
    /// Seconds of its step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// It was not scheduled: seconds that no order of it is shorter than.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<f64>,
}

/// Another distribution of some alike tables, other company that tables travel in, or other parts in which dense gradients are
/// summed: each made the step shorter, but for company that all tables began in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rewrite {
    /// Their names; none of dense gradients.
    pub tables: Vec<String>,
    /// How they were distributed, or travelled.
    pub from: String,
    /// How they are, or do.
    pub to: String,
    /// Rules of the algebra by which one becomes the other, in order; none where the terms are the same and only owners are others.
    pub rules: Vec<String>,
    /// Seconds of a step, before and after.
    pub step: [f64; 2],
    /// Bytes that a rank is expected to send of these tables in a step, before and after.
    pub bytes: [f64; 2],
    /// Those to other nodes, of ranks on several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_nodes: Option<[f64; 2]>,
    /// Seconds of a step with all other changes and without this one; none if there is no schedule of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<f64>,
    /// What a rank sends in it, of all tables and parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_sent: Option<Sent>,
}

/// By what one way becomes the other, in words.
pub fn by(rules: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = rules.iter().map(AsRef::as_ref).collect();
    if names.is_empty() { "the same terms".into() } else { names.join(", ") }
}

/// A distribution or company of some tables, or parts of dense gradients, that is not faster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OtherWay {
    /// Their names; none of dense gradients.
    pub tables: Vec<String>,
    /// How they would be distributed, or travel.
    pub to: String,
    /// Seconds of a step in the best order that was found.
    pub step: f64,
}

/// How the terms of some tables became what they are, by rules of the algebra.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Derivation {
    /// Their names.
    pub tables: Vec<String>,
    /// How the serial schedule distributes them.
    pub from: String,
    /// How they are distributed.
    pub to: String,
    /// What was done, in order; none where the terms are the same and only owners are others.
    pub steps: Vec<DerivationStep>,
}

/// A rule that was applied to a part of terms. Parts are symbolic expressions: capitals stand for what stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DerivationStep {
    /// Its name.
    pub rule: String,
    /// It was read from right to left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backward: bool,
    /// In how many places.
    pub places: u32,
    /// The part as it was.
    pub from: String,
    /// What it became.
    pub to: String,
    /// What small letters stand for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub letters: Vec<(String, String)>,
}
