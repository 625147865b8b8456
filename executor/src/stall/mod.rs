//! Where all ranks are, for whoever wonders why a run stands still.
//!
//! Engines' threads note where they are as they go ([`Places`](crate::runtime::place::Places)) and nobody asks them for
//! anything: a [`Look`](look::Look) at these notes and at the counters of operations says of each queue which operation
//! it is in or waits to start, and what that waits for. The first process gathers what all have seen, and makes a
//! [`table`] of it. A [`Watch`] is what a user asks.

pub(crate) mod look;
mod sighting;
mod table;
mod watch;

pub use watch::Watch;
