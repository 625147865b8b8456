//! How well an order is looked for, and what is thrown away.

use super::Cost;

/// How well an order is looked for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effort {
    /// What it must beat, if that is known.
    pub beat: Option<Cost>,
    /// Seconds of a step, if any: where the first good order takes as long or longer it will do.
    pub far: Option<f64>,
    /// One that does not beat it is thrown away, so its cost may be that of a search that was given up.
    pub only_better: bool,
}

impl Effort {
    /// The first good order will do, whatever it costs.
    pub(super) fn only_first(self) -> bool {
        self.far == Some(0.0)
    }

    /// What costs as much or more is thrown away.
    pub(super) fn least(self) -> Option<Cost> {
        let beat = self.beat.filter(|_| self.only_better);
        let far = self.far.map(|step| Cost { beyond_in_flight: 0, beyond_memory: 0, step });
        beat.into_iter().chain(far).reduce(|a, b| if b < a { b } else { a })
    }
}
