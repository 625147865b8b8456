//! Runs schedules: data input, ranks and their transport, the operations of a training step, evaluation, reports.
//!
//! [`Session`] is the way in: it takes a schedule, opens its data, makes the ranks and trains. The binary `fsx`
//! is a command line around it. See docs/executor.md.

pub mod compare;
pub use fs_data as data;
pub mod device;
mod error;
pub mod evaluate;
pub mod fit;
mod memory;
pub mod net;
pub mod profile;
pub mod report;
mod runtime;
pub mod session;
pub mod stall;
mod step;
mod sync;
pub mod trace;
pub mod transport;
pub use fs_data::units;
pub mod weights;

pub use error::Error;
pub use memory::Memory;
pub use report::Report;
pub use runtime::record::Record;
pub use session::{Gradients, Observer, Options, Session};
pub use step::{Account, StepEvent};
