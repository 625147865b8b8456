//! What is trained on, as far as the one who plans a step and the one who runs it must mean the same by it.
//!
//! A workload is described by laws: how long sequences are, which ids they hold, what labels say. The compiler asks a
//! law what to *expect* (mean lengths, unique rows), the executor *draws* from it. Both stand beside each other, one
//! file a law, so that neither can change alone; tests hold what is drawn against what is expected.
//!
//! The same holds of how what is trained starts and changes: initial values and update rules are named here once, and
//! mean the same in the language, in the schedule and in the kernels.
//!
//! Everything drawn is a function of what it is for ([`random`]), never of what was drawn before. This crate knows
//! no other of the project: the language, the schedule, the kernels and the executor use it.

pub mod balance;
pub mod encoding;
mod error;
pub mod ids;
mod initial;
pub mod labels;
pub mod lengths;
pub mod names;
mod optimizer;
pub mod permute;
pub mod placement;
pub mod random;

pub use error::LawError;
pub use ids::IdDistribution;
pub use initial::Init;
pub use labels::LabelDistribution;
pub use lengths::LengthDistribution;
pub use optimizer::{DenseOptimizer, SparseOptimizer, States};
pub use placement::{PlacementError, RowMap, RowPlacement};
