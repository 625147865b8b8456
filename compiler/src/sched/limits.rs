//! What a schedule may hold at once: device memory of a rank at the expected sizes, and batches in flight.

use std::collections::BTreeMap;

use fs_schedule::{Schedule, Sharding, Site, States};

use super::sizes::{Sizes, input_bytes};

/// What a schedule must stay within.
pub(crate) trait Limits: std::fmt::Debug + Sync {
    /// Bytes of device memory of a rank.
    fn memory(&self) -> u64;
    /// Most batches in flight.
    fn in_flight(&self) -> Option<u32>;
    /// Whether a step that needs so much is within them.
    fn admit(&self, memory: u64, in_flight: u32) -> bool {
        memory <= self.memory() && self.in_flight().is_none_or(|most| in_flight <= most)
    }
}

/// The memory of a cluster's GPUs, and as many batches as are asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterLimits {
    /// Bytes of device memory of a rank.
    pub memory: u64,
    /// Most batches in flight.
    pub in_flight: Option<u32>,
}

impl Limits for ClusterLimits {
    fn memory(&self) -> u64 {
        self.memory
    }
    fn in_flight(&self) -> Option<u32> {
        self.in_flight
    }
}

/// Device memory of a rank without intermediate values, in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fixed {
    /// Tables with their optimizer state, of the rank that holds most.
    pub tables: f64,
    /// Dense parameters with gradients and optimizer state.
    pub parameters: f64,
    /// Inputs of one batch.
    pub batch: f64,
}

impl Fixed {
    /// Of a schedule.
    pub(crate) fn of(s: &Schedule, sizes: &Sizes) -> Self {
        let mut everywhere = 0.0;
        let mut owned: BTreeMap<u32, f64> = BTreeMap::new();
        for t in &s.tables {
            let rows = t.rows as f64;
            let dim = f64::from(t.dim);
            let States { per_value, per_row } = t.optimizer.states();
            let row = |columns: f64| 4.0 * (columns * f64::from(1 + per_value) + f64::from(per_row));
            everywhere += t.hot.len() as f64 * row(dim);
            match &t.sharding {
                Sharding::RowWise => everywhere += (rows / f64::from(s.ranks)).ceil() * row(dim),
                Sharding::DataParallel => everywhere += rows * row(dim),
                Sharding::TableWise { rank } => *owned.entry(*rank).or_insert(0.0) += rows * row(dim),
                Sharding::ColumnWise { ranks } => {
                    for (part, rank) in ranks.iter().enumerate() {
                        let (a, z) = t.part_columns(part as u32);
                        *owned.entry(*rank).or_insert(0.0) += rows * row(f64::from(z - a));
                    }
                }
            }
        }
        let state = f64::from(s.settings.optimizer.states());
        let values: f64 = s.parameters.iter().map(|p| f64::from(p.rows) * f64::from(p.columns)).sum();
        Self {
            tables: everywhere + owned.values().fold(0.0, |a, b| f64::max(a, *b)),
            parameters: 4.0 * values * (2.0 + state),
            batch: (0..s.inputs.len() as u32).map(|i| input_bytes(s, sizes, i, Site::Home, None)).sum(),
        }
    }

    /// With intermediate values and a number of batches in flight.
    pub(crate) fn total(&self, buffers: f64, in_flight: u32) -> u64 {
        (self.tables + self.parameters + buffers + self.batch * f64::from(in_flight)).ceil() as u64
    }
}

/// Bytes of each buffer of the training program at the expected sizes, one copy.
pub(crate) fn buffer_bytes(s: &Schedule, sizes: &Sizes) -> Vec<f64> {
    let bytes = |b: &fs_schedule::Buffer| sizes.rows(b) * b.element.row_bytes(b.columns) as f64;
    s.train.buffers.iter().map(bytes).collect()
}

/// Bytes for people: `1.5 GB`, as clusters are described.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}
