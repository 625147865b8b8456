//! schedule.json: the one thing that compiler and executor share.
//!
//! A [`Schedule`] is one program for all ranks: the model's tables and parameters, the buffers, and the
//! operations of one training step (and of one evaluation batch) with engine, stage and dependencies.
//! [`mod@file`] reads and writes it, [`verify`] proves its invariants, [`schema`] describes its JSON.
//! Every number that depends on the batch is a symbol ([`size`]), because batches are jagged.

pub mod action;
mod attribute;
pub mod columns;
pub mod counts;
pub mod digest;
pub mod file;
pub mod limits;
mod model;
mod node;
mod op;
mod operand;
pub mod profile;
mod program;
pub mod ranking;
pub mod reference;
pub mod reuse;
pub mod schema;
pub mod search;
mod sent;
pub mod signals;
pub mod signature;
mod size;
pub mod terminal;
pub mod trace;
pub mod verify;
mod work;

pub use action::Action;
pub use attribute::*;
pub use file::{LoadError, read, to_text, write};
pub use model::*;
pub use node::Nodes;
pub use op::*;
pub use operand::*;
pub use profile::{Profile, ProfileError};
pub use program::*;
pub use reference::Reference;
pub use reuse::Reuse;
pub use search::Search;
pub use sent::Sent;
pub use signature::OperandType;
pub use size::{ParseError, Poly, Symbol};
pub use trace::{Trace, TraceError};
pub use work::{Section, Travel, Wire};
