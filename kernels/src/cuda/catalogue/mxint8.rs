//! `mxint8.cu`: rows of 8 bits a number, packed.

use super::{In, Out, Shape, catalogue};

/// Eight threads for each block of 32 columns, at most four blocks side by side.
fn by_blocks(n: u32, cols: u32) -> Shape {
    let across = 8 * cols.div_ceil(32).next_power_of_two().min(4);
    Shape { block: [across, 256 / across, 1], ..Shape::blocks(rows(n, cols, across), 256) }
}

/// Blocks of threads, of which each has a row for every `across`.
fn rows(n: u32, cols: u32, across: u32) -> u64 {
    if cols == 0 { 0 } else { u64::from(n.div_ceil(256 / across)) }
}

catalogue! { "mxint8.cu":
    /// `y[i] = table[rows[at[i]]]`, or `table[rows[i]]` without `at`.
    gather_mxint8(
        n: u32, cols: u32, table: In<f32>, table_rows: u32, table_stride: u64, rows: In<u32>, entries: u32,
        at: In<u32>, y: Out<u8>, fault: Out<u32>,
    ) => by_blocks(n, cols);
    /// `y[at[i]] = x[i]`, or `y[i] = x[i]` without `at`: rows that arrived, as they are used. `at` holds no position twice.
    merge_mxint8(
        n: u32, cols: u32, x: In<u8>, at: In<u32>, y: Out<f32>, y_rows: u32, y_stride: u64, fault: Out<u32>,
    ) => Shape::tiles(u64::from(n), u64::from(cols), 1);
    /// `y[i] = x[at[i]]`: rows that travel on as they came.
    pass_mxint8(
        n: u32, cols: u32, x: In<u8>, x_rows: u32, at: In<u32>, y: Out<u8>, fault: Out<u32>,
    ) => Shape { block: [32, 8, 1], ..Shape::blocks(rows(n, cols, 32), 256) };
}
