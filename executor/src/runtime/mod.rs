//! Runs a schedule's operations on the ranks of this process.
//!
//! A [`Plan`] is a program prepared to run; [`engine`] runs the queues of one engine of one rank on a thread of its own:
//! it starts operations on the rank's [device](crate::device) and learns when they have ended. Operations that only move
//! data between ranks are not one call but several, so that nobody waits for another rank inside one: [`transfer`].

pub mod account;
pub mod engine;
pub mod finished;
pub mod gate;
pub mod plan;
pub mod process;
pub mod profile;
pub mod progress;
pub mod rank;
pub mod record;
pub mod tables;
mod thread;
mod transfer;

pub use plan::Plan;
pub use process::Process;
