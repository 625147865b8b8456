//! Sizes of exchanges that are known only while a batch runs: entries sent and received, all and per class.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fs_schedule::{Schedule, Symbol, Way};

/// Where each size of an exchange lies in a list.
#[derive(Debug, Default)]
pub struct Layout {
    /// Per exchange: where its sizes start, and its number of classes.
    exchanges: Vec<(usize, usize)>,
    len: usize,
}

impl Layout {
    /// Of a schedule's exchanges.
    pub fn new(schedule: &Schedule) -> Self {
        let mut layout = Self::default();
        for exchange in &schedule.exchanges {
            let reuse = exchange.reuse(schedule.settings.microbatches);
            let classes = reuse.map_or(0, |reuse| reuse.count(Way::Forward));
            layout.exchanges.push((layout.len, classes));
            layout.len += 3 + 4 * classes;
        }
        layout
    }

    /// Classes of each exchange; 0 where rows are not told apart.
    pub fn classes(&self) -> impl Iterator<Item = usize> {
        self.exchanges.iter().map(|(_, classes)| *classes)
    }

    fn place(&self, symbol: Symbol) -> Option<usize> {
        let class = |e: u32, way: Way, c: u32, received: usize| {
            let (start, classes) = *self.exchanges.get(e as usize)?;
            let part = received + 2 * usize::from(way == Way::Backward);
            ((c as usize) < classes).then_some(start + 3 + part * classes + c as usize)
        };
        match symbol {
            Symbol::Sent(e) => self.exchanges.get(e as usize).map(|(start, _)| *start),
            Symbol::Received(e) => self.exchanges.get(e as usize).map(|(start, _)| start + 1),
            Symbol::Asked(e) => self.exchanges.get(e as usize).map(|(start, _)| start + 2),
            Symbol::SentClass(e, way, c) => class(e, way, c, 0),
            Symbol::ReceivedClass(e, way, c) => class(e, way, c, 1),
            Symbol::Ranks | Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_) => None,
        }
    }
}

/// The sizes of one batch. Operations that learn a size state it; those that wait for them read it.
#[derive(Debug, Default)]
pub struct Sizes {
    layout: Arc<Layout>,
    values: Vec<AtomicUsize>,
}

impl Sizes {
    /// All zero.
    pub fn new(layout: &Arc<Layout>) -> Self {
        let values = (0..layout.len).map(|_| AtomicUsize::new(0)).collect();
        Self { layout: Arc::clone(layout), values }
    }

    /// The size behind a symbol; 0 if nobody has stated it.
    pub fn get(&self, symbol: Symbol) -> usize {
        self.layout.place(symbol).map_or(0, |at| self.values[at].load(Ordering::Relaxed))
    }

    /// States a size.
    pub fn set(&self, symbol: Symbol, n: usize) {
        if let Some(at) = self.layout.place(symbol) {
            self.values[at].store(n, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_place_of_its_own() {
        let layout = Layout { exchanges: vec![(0, 0), (3, 3), (18, 1)], len: 25 };
        let mut symbols: Vec<Symbol> =
            (0..3).flat_map(|e| [Symbol::Sent(e), Symbol::Received(e), Symbol::Asked(e)]).collect();
        for (e, c) in [(1, 0), (1, 1), (1, 2), (2, 0)] {
            for way in [Way::Forward, Way::Backward] {
                symbols.extend([Symbol::SentClass(e, way, c), Symbol::ReceivedClass(e, way, c)]);
            }
        }
        let mut places: Vec<usize> = symbols.iter().map(|s| layout.place(*s).unwrap()).collect();
        places.sort_unstable();
        assert_eq!(places, (0..25).collect::<Vec<_>>());
        assert_eq!(layout.place(Symbol::SentClass(0, Way::Forward, 0)), None);
    }
}
