//! The intermediate representation: operations with typed SSA values in arenas.
//!
//! A [`Module`] holds declarations (tables, inputs, parameters) and functions; a function is a flat list of
//! operations over values of the module. Everything is an index into an arena, so passes copy ids, not trees.
//! What can be said of an operation is its [`OpDef`]; which operations exist is the dialects' business
//! (`crate::dialect`), which this module does not know: who reads text or differentiates brings them along.
//! The textual form ([`print`], [`parse`]) round-trips.

pub mod attr;
mod context;
mod def;
mod effects;
mod module;
pub mod parse;
pub mod print;
pub mod types;
pub mod verify;
mod vjp;

pub use attr::{Attr, Attrs};
pub use context::{Context, exchanges, table_of};
pub use def::{Declares, OpDef, Updates, View, VjpRule};
pub use effects::{Effects, Resource};
pub use module::{Func, Module, OpData, OpId, Placement, ValueData, ValueId};
pub use types::Type;
pub use vjp::Vjp;
