//! `segments.cu`: sums of rows by group.

use super::{In, Out, Real, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

/// Positions of a group that one row of threads sums; longer lists are summed by blocks.
pub const LONGEST: u32 = 256;

/// Columns of a block that sums long lists: `LONG_COLUMNS` of the source.
pub const COLUMNS: u32 = 32;

/// Blocks that sum long lists, whose number the host does not know.
fn long(cols: u32) -> Shape {
    Shape::blocks(if cols == 0 { 0 } else { 528 }, 256)
}

/// Blocks for all long lists that so many positions can have.
pub fn most_long(positions: u32, cols: u32) -> u64 {
    u64::from(positions / (LONGEST + 1)) * u64::from(cols.div_ceil(COLUMNS))
}

catalogue! { "segments.cu":
    /// Lists the groups of more than `longest` positions, in any order: each is summed by itself. `count` begins at 0.
    long_groups(
        groups: u32, ends: In<u32>, longest: u32, listed: Out<u32>, count: Out<u32>,
    ) => items(groups);
    /// `y[g]` (+)= the sum of the rows of x at the positions of group g: gradients of activations, by the rows that
    /// they had.
    segment_sum(
        groups: u32, cols: u32, x: In<Real>, x_stride: u64, bags: In<u32>, offsets: In<u32>, mean: u32,
        positions: In<u32>, ends: In<u32>, y: Out<f32>, y_stride: u64, add: u32, longest: u32,
    ) => Shape::tiles(u64::from(groups), u64::from(cols), 1);
    /// `segment_sum` of the listed groups.
    segment_sum_long(
        cols: u32, x: In<Real>, x_stride: u64, bags: In<u32>, offsets: In<u32>, mean: u32, positions: In<u32>,
        ends: In<u32>, y: Out<f32>, y_stride: u64, add: u32, listed: In<u32>, count: In<u32>,
    ) => long(cols);
    /// `segment_sum` of received gradients, whose positions are grouped by source: those of source s end at
    /// `sources[s]`, and `node` sources one after the other are a node's. With `round` each node's sum is rounded to bf16
    /// before it is added.
    received_sum(
        groups: u32, cols: u32, x: In<Real>, x_stride: u64, positions: In<u32>, ends: In<u32>, sources: In<u32>,
        source_count: u32, node: u32, round: u32, y: Out<f32>, y_stride: u64, longest: u32,
    ) => Shape::tiles(u64::from(groups), u64::from(cols), 1);
    /// `received_sum` of the listed groups.
    received_sum_long(
        cols: u32, x: In<Real>, x_stride: u64, positions: In<u32>, ends: In<u32>, sources: In<u32>, source_count: u32,
        node: u32, round: u32, y: Out<f32>, y_stride: u64, listed: In<u32>, count: In<u32>,
    ) => long(cols);
    /// `received_sum` of one node's, whose sums travel on as the gradients came.
    node_sum(
        groups: u32, cols: u32, x: In<Real>, x_stride: u64, positions: In<u32>, ends: In<u32>, sources: In<u32>,
        source_count: u32, y: Out<Real>, y_stride: u64, longest: u32,
    ) => Shape::tiles(u64::from(groups), u64::from(cols), 1);
    /// `node_sum` of the listed groups.
    node_sum_long(
        cols: u32, x: In<Real>, x_stride: u64, positions: In<u32>, ends: In<u32>, sources: In<u32>, source_count: u32,
        y: Out<Real>, y_stride: u64, listed: In<u32>, count: In<u32>,
    ) => long(cols);
}
