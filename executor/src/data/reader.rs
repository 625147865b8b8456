//! Reads batches ahead on a thread of its own and hands each one to every rank.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{DataError, GlobalBatch, Source};

/// Batches that may wait.
const DEPTH: usize = 4;

/// A batch, or why there is none.
pub type Delivery = Result<Arc<GlobalBatch>, Arc<DataError>>;

/// The sending half: runs on the reader's thread.
#[derive(Debug)]
pub struct Reader {
    senders: Vec<SyncSender<Delivery>>,
    depth: usize,
}

/// A reader for `ranks` ranks that hold `in_flight` batches each, and each rank's receiving end. No rank gets so far
/// ahead of another that the reader must wait for the slow one while the fast one waits for the reader.
pub fn reader(ranks: usize, in_flight: usize) -> (Reader, Vec<Receiver<Delivery>>) {
    let depth = DEPTH + in_flight;
    let (senders, receivers) = (0..ranks).map(|_| sync_channel(depth)).unzip();
    (Reader { senders, depth: depth + in_flight }, receivers)
}

impl Reader {
    /// Sends the batches of `steps`; ends early when the ranks hang up or after an error. Returns the bytes that
    /// batches took.
    pub fn run(self, source: &mut dyn Source, steps: std::ops::Range<u64>) -> usize {
        // Batches come back by their count: once all ranks are through with one, only this list holds it.
        let mut spare: Vec<Arc<GlobalBatch>> = Vec::new();
        for step in steps {
            let recycled = spare.iter().position(|b| Arc::strong_count(b) == 1).map(|i| spare.swap_remove(i));
            let mut batch = recycled.and_then(Arc::into_inner).unwrap_or_default();
            let delivery = match source.fill(step, &mut batch) {
                Ok(()) => Ok(Arc::new(batch)),
                Err(error) => Err(Arc::new(error)),
            };
            for sender in &self.senders {
                if sender.send(delivery.clone()).is_err() {
                    return held(&spare);
                }
            }
            match delivery {
                Ok(batch) if spare.len() <= self.depth + 2 => spare.push(batch),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        held(&spare)
    }
}

fn held(batches: &[Arc<GlobalBatch>]) -> usize {
    batches.iter().map(|b| b.bytes()).sum()
}
