//! Who can say where this process's ranks are, and what is heard of those of others.

use std::sync::Arc;
use std::time::Duration;

use super::TransportError;

/// Says where the ranks of this process are, as bytes that another [`Witness`] reads.
pub(crate) trait Witness: Send + Sync {
    /// Where they are now, or where they were when [`freeze`](Self::freeze) was called.
    fn testify(&self) -> Vec<u8>;

    /// Notes where they are, because they will not stay there: a rank has waited too long.
    fn freeze(&self);

    /// What one of them has waited for longest, if it has for at least so long: for ranks of other processes alone, if one
    /// does.
    fn overdue(&self, least: Duration) -> Option<TransportError>;

    /// Another process wants to know where all ranks are. Does not wait.
    fn asked(self: Arc<Self>);
}

/// What has come of asking all processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Of each process what it says, or why nothing was heard of it.
    All(Vec<Result<Vec<u8>, String>>),
    /// The first process, which gathers what all say, is silent: what this one says.
    Own(Vec<u8>),
    /// The first process gathers what all say.
    Elsewhere,
}
