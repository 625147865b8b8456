//! Shapes that the kernels of the dense graph share.

use super::Shape;

/// Blocks that fill any device several times over; kernels with loops over the grid need no more.
pub(super) const MOST_BLOCKS: u64 = 4096;

/// The fewest activations that a thread handles at once: 16 bytes of floats.
const PACK: u64 = 4;

/// A thread for each pack of a matrix, up to what fills a device.
pub(super) fn packs(rows: u64, columns: u64) -> Shape {
    Shape::blocks(rows.saturating_mul(columns.div_ceil(PACK)).div_ceil(256).min(MOST_BLOCKS), 256)
}

/// A warp for each row, up to what fills a device.
pub(super) fn rows_by_warps(rows: u64) -> Shape {
    Shape::blocks(rows.div_ceil(8).min(MOST_BLOCKS), 256)
}
