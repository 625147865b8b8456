//! The late device's outboxes: useless until the fill has ended, and not to be written again before everyone who reads
//! them is through. What breaks either rule is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_executor::transport::frame::{BadFrame, Reader};
use fs_executor::transport::{HostOutbox, Outbox};
use parking_lot::Mutex;

/// See the module.
#[derive(Debug)]
pub struct LateOutbox {
    /// Whose device has made it.
    rank: usize,
    entries: HostOutbox<f32>,
    /// Sections of the fill that has not ended.
    sections: usize,
    /// The fill has ended.
    filled: bool,
    /// Drains, and fills of the next round, that have begun to read it and have not ended.
    readers: AtomicUsize,
    reports: Arc<Mutex<Vec<String>>>,
}

impl LateOutbox {
    /// An outbox of a rank that nothing was written to.
    pub fn new(rank: usize, reports: &Arc<Mutex<Vec<String>>>) -> Self {
        Self {
            rank,
            entries: HostOutbox::default(),
            sections: 0,
            filled: false,
            readers: AtomicUsize::new(0),
            reports: Arc::clone(reports),
        }
    }

    fn report(&self, what: &str) {
        let mut reports = self.reports.lock();
        if reports.len() < 100 {
            reports.push(format!("an outbox of rank {} {what}", self.rank));
        }
    }

    /// What it holds, for those who read: poison until the fill has ended.
    pub fn entries(&self) -> &HostOutbox<f32> {
        if !self.filled {
            self.report("is read before it is filled");
        }
        &self.entries
    }

    /// A fill begins its work: an empty outbox.
    pub fn fill(&mut self) -> &mut HostOutbox<f32> {
        self.entries.clear(self.sections);
        &mut self.entries
    }

    /// A fill ends.
    pub fn end(&mut self) {
        self.filled = true;
    }

    /// Somebody begins to read it.
    pub fn enter(&self) {
        self.readers.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody is through.
    pub fn leave(&self) {
        self.readers.fetch_sub(1, Ordering::Relaxed);
    }

    fn written_again(&self) {
        if self.readers.load(Ordering::Relaxed) > 0 {
            self.report("is written again while it is read");
        }
    }
}

impl Outbox for LateOutbox {
    fn clear(&mut self, sections: usize) {
        self.written_again();
        (self.sections, self.filled) = (sections, false);
        for section in &mut self.entries.sections {
            section.reals.fill(f32::NAN);
            section.indices.fill(u32::MAX);
            section.bytes.fill(u8::MAX);
        }
    }

    fn wire(&self, to: usize) -> u64 {
        self.entries().wire(to)
    }

    fn sections(&self) -> usize {
        self.entries().sections()
    }

    fn write(&self, to: usize, bytes: &mut Vec<u8>) {
        self.entries().write(to, bytes);
    }

    fn read(&mut self, to: usize, sections: usize, reader: &mut Reader<'_>) -> Result<(), BadFrame> {
        self.written_again();
        self.filled = true;
        self.entries.read(to, sections, reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_executor::transport::{Envelope, Widths};

    #[test]
    fn what_is_not_filled_is_poison_and_reported() {
        let reports = Arc::default();
        let mut sent = Envelope::new(LateOutbox::new(2, &reports));
        let fill = |outbox: &mut LateOutbox| {
            let section = &mut outbox.fill().sections[0];
            section.counts = vec![1, 0];
            section.widths = Widths { reals: 1, ..Widths::default() };
            section.reals.push(7.0);
        };
        sent.clear(1);
        fill(&mut sent.outbox);
        sent.outbox.end();
        let found = |sent: &Envelope<LateOutbox>| {
            let part = sent.message(0).map(LateOutbox::entries).part(0).map(|part| part.reals.to_vec());
            (part, std::mem::take(&mut *reports.lock()))
        };
        assert_eq!(found(&sent), (Some(vec![7.0]), Vec::new()));
        sent.outbox.enter();
        sent.clear(1);
        assert_eq!(*reports.lock(), ["an outbox of rank 2 is written again while it is read"]);
        reports.lock().clear();
        sent.outbox.leave();
        let (part, said) = found(&sent);
        assert!(part.is_some_and(|reals| reals[0].is_nan()));
        assert_eq!(said, ["an outbox of rank 2 is read before it is filled"]);
        sent.clear(1);
        fill(&mut sent.outbox);
        sent.outbox.end();
        assert_eq!(found(&sent), (Some(vec![7.0]), Vec::new()));
    }
}
