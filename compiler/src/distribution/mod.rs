//! The pure level of distribution: how the rows and gradients of tables travel, as terms without order or effects.
//!
//! A [`TableChoices`] chooses for each table. From its [`Choice`] follow [`Distribution`]s: terms of one result each that say
//! what is asked of whom, how rows come back, and what gradients are added up. Types say which rank has what, sizes
//! follow from terms, and [`reference`](mod@reference) computes what any term means, on several ranks. What is updated
//! when stays outside: `lower-exchanges` walks a function and writes the terms that it needs as operations.

mod at;
pub mod build;
mod choice;
mod extent;
mod infer;
mod op;
pub mod reference;
mod term;
pub mod ty;

pub use at::{At, AtError};
pub use build::Distribution;
pub(crate) use choice::TableChoices;
pub use choice::{Choice, Lookahead, PerTable, PerTableError, TableOptions};
pub(crate) use infer::infer;
pub use op::Op;
pub use term::{Id, Terms};
pub use ty::{Type, TypeError};
