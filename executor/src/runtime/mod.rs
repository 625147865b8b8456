//! Runs a schedule's operations on the ranks of this process.
//!
//! A [`Plan`] is a program prepared to run; [`engine`] runs the queues of one engine of one rank on a thread of its own:
//! it starts operations on the rank's [device](crate::device) and learns when they have ended. Operations that only move
//! data between ranks are not one call but several, so that nobody waits for another rank inside one: [`transfer`].

pub(crate) mod account;
pub(crate) mod engine;
pub(crate) mod finished;
pub(crate) mod gate;
pub(crate) mod pace;
pub(crate) mod place;
pub(crate) mod plan;
mod process;
pub(crate) mod profile;
pub(crate) mod progress;
pub(crate) mod rank;
pub(crate) mod record;
pub(crate) mod tables;
mod thread;
mod transfer;

pub(crate) use plan::Plan;
pub(crate) use process::Process;
