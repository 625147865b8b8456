//! How ranks hand data to each other.
//!
//! Every collective of a program has a *channel* of its own, so that collectives on different engines never mix and
//! may overlap in any order. The n-th use of a channel is its turn n; a collective of several rounds takes as many
//! turns. A rank fills its *outbox* of a turn and posts it, without waiting for anyone; once all ranks have posted,
//! each reads what the others have for it. There are two outboxes per channel and rank, used in turn: whoever writes
//! one again has seen everyone's post of the turn in between, and everyone posts that one only after reading.
//!
//! An [`Outbox`] is made, filled and read by devices, in memory of their own ([`sections`]: the host's); an [`envelope`]
//! is one on its way. What hands data over is a [`Transport`]: between the ranks of one process ([`local`]), or also to those of others
//! ([`bytes`]). Emulated links ([`paced`]) go around any. The rest has its own place: time ([`clock`]), sleeping and
//! waking ([`threads`]), failures and whatever else ranks must agree on ([`control`], [`peers`]). Whatever carries
//! bytes between processes is a [`wire`], and the bytes are made and read in one place, [`frame`].

pub(crate) mod bytes;
mod channel;
pub(crate) mod clock;
pub(crate) mod control;
mod envelope;
pub(crate) mod event;
mod failure;
pub mod frame;
pub mod launch;
pub mod link;
pub(crate) mod local;
#[cfg(feature = "mpi")]
pub mod mpi;
mod outbox;
pub(crate) mod paced;
pub(crate) mod peers;
mod posts;
mod sections;
pub(crate) mod threads;
pub(crate) mod tick;
pub mod wire;
pub(crate) mod witness;

pub(crate) use channel::Channel;
pub use envelope::{Envelope, Message};
pub use outbox::{Outbox, Reach};
pub use sections::{Coding, HostOutbox, Part, Section, Widths};

/// A rank's use of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::struct_field_names, reason = "the turn is what a turn of a channel is counted by")]
pub(crate) struct Turn {
    /// The channel.
    pub channel: usize,
    /// How often the channel has been used before.
    pub turn: u64,
    /// The rank.
    pub rank: usize,
}

/// How far sending is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Not to be asked again before this time, in nanoseconds of the run.
    pub at: u64,
    /// Everything is on its way: the outbox can be posted.
    pub all: bool,
}

/// What is known of a turn that is complete; times in nanoseconds of the run, on this process's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When the last rank began.
    pub met: u64,
    /// When everything is there.
    pub at: u64,
}

/// Hands over what ranks have for each other. No call waits for another rank, and no lock outlives a call.
pub(crate) trait Transport<O>: Send + Sync {
    /// Lets `write` begin to fill a rank's outbox of a turn: `sections` sections at least, empty.
    fn outbox(&self, at: Turn, sections: usize, write: &mut dyn FnMut(&mut O));

    /// Lets `write` go on with an outbox that is not posted.
    fn amend(&self, at: Turn, write: &mut dyn FnMut(&mut Envelope<O>));

    /// Goes on with the way of an outbox that is filled, by a piece of at most `piece` bytes. The first piece of a
    /// turn may go from `asked` on.
    fn send(&self, at: Turn, asked: u64, piece: u64) -> Sent {
        let _ = (at, asked, piece);
        Sent { at: 0, all: true }
    }

    /// Hands the outbox over, once all of it is sent. `began` is when the rank began the collective.
    fn post(&self, at: Turn, began: u64);

    /// Whether all ranks have posted and what they have for this one is there. Costs next to nothing.
    fn poll(&self, at: Turn) -> bool;

    /// Of a turn that is complete; to be asked once.
    fn arrival(&self, at: Turn) -> Arrival;

    /// Lets `read` see what a rank posted for this one, once the turn is complete; also what it posted itself.
    fn inbox(&self, at: Turn, from: usize, read: &mut dyn FnMut(Message<'_, O>));

    /// The ranks that have not posted a turn, as far as it is known here.
    fn missing(&self, at: Turn) -> Vec<usize>;
}

/// Why a collective did not complete.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Another rank (or this one) failed first.
    #[error("rank {rank} failed in `{op}`: {message}")]
    Failed {
        /// The rank that failed.
        rank: usize,
        /// The operation it was in.
        op: String,
        /// What happened.
        message: String,
    },
    /// Sizes that do not fit together; a defect of the schedule.
    #[error("{0}")]
    Sizes(String),
    /// Something was waited for too long.
    #[error("{}", late(.op, *.batch, .ranks, *.seconds))]
    Timeout {
        /// The operation, or what else was waited for.
        op: String,
        /// Its batch: the step that it trains.
        batch: Option<u64>,
        /// The ranks that have not come.
        ranks: Vec<usize>,
        /// How long it was waited for.
        seconds: f64,
    },
    /// Processes that must say the same do not.
    #[error("the ranks do not run the same: {name} is {own} on rank {rank} and {other} on rank {other_rank}")]
    Differ {
        /// What differs.
        name: String,
        /// A rank.
        rank: usize,
        /// What it says.
        own: String,
        /// A rank of another process.
        other_rank: usize,
        /// What that one says.
        other: String,
    },
}

impl TransportError {
    /// Whether somebody has said nothing for too long, so that it matters where all are.
    pub(crate) fn is_stall(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Failed { op, .. } => op == CONNECTION,
            Self::Sizes(_) | Self::Differ { .. } => false,
        }
    }
}

/// What fails when a process is gone.
pub(crate) const CONNECTION: &str = "connection";

fn late(op: &str, batch: Option<u64>, ranks: &[usize], seconds: f64) -> String {
    let ranks: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    let of = batch.map_or_else(String::new, |batch| format!(" of step {batch}"));
    let who = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("`{op}`{of} has waited {seconds} s for {who} {}", ranks.join(", "))
}

/// A transport that others hold too.
impl<O, X: Transport<O> + ?Sized> Transport<O> for std::sync::Arc<X> {
    fn outbox(&self, at: Turn, sections: usize, write: &mut dyn FnMut(&mut O)) {
        (**self).outbox(at, sections, write);
    }
    fn amend(&self, at: Turn, write: &mut dyn FnMut(&mut Envelope<O>)) {
        (**self).amend(at, write);
    }
    fn send(&self, at: Turn, asked: u64, piece: u64) -> Sent {
        (**self).send(at, asked, piece)
    }
    fn post(&self, at: Turn, began: u64) {
        (**self).post(at, began);
    }
    fn poll(&self, at: Turn) -> bool {
        (**self).poll(at)
    }
    fn arrival(&self, at: Turn) -> Arrival {
        (**self).arrival(at)
    }
    fn inbox(&self, at: Turn, from: usize, read: &mut dyn FnMut(Message<'_, O>)) {
        (**self).inbox(at, from, read);
    }
    fn missing(&self, at: Turn) -> Vec<usize> {
        (**self).missing(at)
    }
}
