//! schedule.json: the one thing that compiler and executor share.
//!
//! A [`Schedule`] is one program for all ranks: the model's tables and parameters, the buffers, and the
//! operations of one training step (and of one evaluation batch) with engine, stage and dependencies.
//! [`file`] reads and writes it, [`verify`] proves its invariants, [`schema`] describes its JSON.
//! Every number that depends on the batch is a symbol ([`size`]), because batches are jagged.

pub mod action;
pub mod digest;
pub mod file;
pub mod model;
pub mod op;
pub mod profile;
pub mod reference;
pub mod reuse;
pub mod schema;
pub mod signature;
pub mod size;
pub mod trace;
pub mod verify;

pub use file::{LoadError, read, to_text, write};
pub use model::*;
pub use op::*;
pub use profile::{Profile, ProfileError};
pub use reference::Reference;
pub use reuse::Reuse;
pub use size::{Poly, Symbol};
pub use trace::{Trace, TraceError};
