//! What can be wrong with the options of a pass.

use crate::distribution::AtError;

/// An option of a pass that cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// Text that is no value of it.
    #[error("option {option} cannot be `{text}`")]
    Value {
        /// Its name.
        option: &'static str,
        /// As given.
        text: String,
    },
    /// Something is said for a table that the model does not have.
    #[error("option {option}: there is no table `{table}`")]
    NoTable {
        /// Its name.
        option: &'static str,
        /// As given.
        table: String,
    },
    /// A number of nothing.
    #[error("option {option} must be at least 1")]
    Zero {
        /// Its name.
        option: &'static str,
    },
    /// No classes of rows, which is not said by a number.
    #[error("option lookahead must be at least 1; leave it out to move rows together")]
    NoLookahead,
    /// Relays where there is no other node.
    #[error("rows cannot come through relays: all ranks are of one node")]
    OneNode,
    /// Relays of rows that they cannot ask for.
    #[error("rows of table {table} cannot come through relays: {why}")]
    NoRelay {
        /// The table's name.
        table: String,
        /// Why not.
        why: &'static str,
    },
    /// Gradients of occurrences, of which each would be rounded.
    #[error(
        "rows of table {table} cannot travel once per occurrence: gradients travel as bf16, and each occurrence's would be rounded by itself; leave out `unique`, or write `gradient_dist f32` in the model"
    )]
    Rounded {
        /// The table's name.
        table: String,
    },
    /// More classes of rows than can be numbered.
    #[error("more than {most} classes of rows: lookahead {lookahead}, windows of a batch: {windows}")]
    Classes {
        /// Reuse distances that are told apart.
        lookahead: u32,
        /// Windows of a batch.
        windows: u32,
        /// The most.
        most: usize,
    },
    /// Windows that do not cut microbatches evenly.
    #[error("option windows: {microbatches} microbatches cannot be cut evenly into {windows}")]
    Windows {
        /// Windows of a batch.
        windows: u32,
        /// Its microbatches.
        microbatches: u32,
    },
    /// Samples move nowhere.
    #[error("option at: {0}")]
    At(#[source] AtError),
    /// Rows that nothing makes values of samples of.
    #[error("samples cannot move at `rows`: no values are made of rows alone; use `ids`")]
    NothingCarried,
    /// Rows that nobody is asked for.
    #[error(
        "samples cannot move at `folded`: no owner is asked for rows by the ranks that use them, which have all or hot ones or ask a relay; use `ids`"
    )]
    NothingAsked,
    /// Rows that nobody can ask for on behalf of others.
    #[error("rows of table {table} cannot be asked for by those who read samples: {why}")]
    NoFold {
        /// The table's name.
        table: String,
        /// Why not.
        why: &'static str,
    },
    /// One collective of ids that others ask for and of ids that each rank asks for itself.
    #[error(
        "option fold: ids of some of these tables travel with those of others; tell `group-collectives` the same"
    )]
    HalfFolded,
    /// Samples that do not divide.
    #[error(
        "a batch of {batch} samples cannot be cut into {microbatches} equal microbatches; use a divisor of {batch}, or another batch"
    )]
    Microbatches {
        /// Samples of the batch.
        batch: u32,
        /// Parts asked for.
        microbatches: u32,
    },
    /// A machine that nobody knows.
    #[error("option cluster: there is no preset `{name}`")]
    NoPreset {
        /// As given.
        name: String,
    },
    /// A way of ordering that nobody knows.
    #[error("option strategy must be {known}, is `{name}`")]
    NoStrategy {
        /// All of them.
        known: String,
        /// As given.
        name: String,
    },
    /// A placement of rows that nobody knows.
    #[error("option placement: there is no placement of rows `{placement}`")]
    NoRows {
        /// As given.
        placement: String,
    },
    /// A place for rows that nobody knows.
    #[error("option sharding: there is no placement `{sharding}`")]
    NoPlacement {
        /// As given.
        sharding: String,
    },
}
