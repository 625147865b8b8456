//! What is known of a channel before anything goes over it.

/// What a channel is to those who wait for it and carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channel {
    /// The engine whose threads wait for it.
    pub engine: usize,
    /// Of its operation: what is greater goes first.
    pub priority: i32,
}
