//! What the threads of this process share while they run a program, whichever ranks they run.

use std::sync::Arc;

use crate::transport::Transport;
use crate::transport::clock::Clock;
use crate::transport::control::Failures;
use crate::transport::link::Link;
use crate::transport::local::Local;
use crate::transport::paced::Paced;
use crate::transport::threads::Threads;

/// What the threads of this process share.
pub struct Process<T> {
    /// Time since the start of the run.
    pub clock: Clock,
    /// Who sleeps, and on what.
    pub threads: Arc<Threads>,
    /// Whether a rank has failed.
    pub failures: Failures,
    /// Hands data from rank to rank.
    pub transport: Box<dyn Transport<T>>,
}

impl<T: Default + Send + Sync + 'static> Process<T> {
    /// Runs all of `ranks` ranks with `engines` engines each; `channels` names the engine of each channel.
    pub fn new(ranks: usize, engines: usize, channels: &[usize], link: Option<Link>) -> Self {
        let own: Vec<usize> = (0..ranks).collect();
        let threads = Arc::new(Threads::new(ranks, &own, engines));
        let mut transport: Box<dyn Transport<T>> = Box::new(Local::new(ranks, channels, &threads));
        if let Some(link) = link.filter(|_| ranks > 1) {
            transport = Box::new(Paced::new(transport, link, ranks, channels.len()));
        }
        Self { clock: Clock::start(), failures: Failures::new(&threads), threads, transport }
    }
}
