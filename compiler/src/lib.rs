//! From a checked model through the IR dialects to a schedule; the library behind `fsc`.
//!
//! [`import`] turns a checked program into the `model` dialect, [`passes`] differentiate it and decide how rows
//! travel, [`emit`] orders it by a policy and writes the schedule; [`compile_with`] does all that, [`search`] for several
//! candidates; [`viz`] draws it.

pub mod algebra;
pub mod chakra;
pub mod compile;
pub mod dialect;
pub mod distribution;
pub mod emit;
pub mod import;
pub mod ir;
pub mod passes;
pub mod paths;
pub mod sched;
pub mod search;
mod threads;
pub mod viz;

pub use compile::{CompileError, CompileOptions, Compiled, Strategy, compile, compile_with, lowered};
pub use distribution::At;
