//! `norm.cu`: row-wise normalisations, and sums over rows.

use super::dense::rows_by_warps;
use super::{In, Out, Real, Shape, catalogue};

/// Columns that a block sums.
const SUM_COLUMNS: u32 = 32;
/// Groups of rows that it sums at the same time.
const SUM_GROUPS: u32 = 8;
/// Most chunks that rows are cut into.
const MOST_CHUNKS: u64 = 512;

/// Rows of a chunk of `column_sums` and `layer_norm_grad_columns`: it depends on their number alone, so sums have the
/// same bits however a device is used.
pub fn rows_of_chunk(rows: u64) -> u64 {
    rows.div_ceil(MOST_CHUNKS).max(64)
}

/// Chunks that rows are cut into: none of no rows, of which `fold_partials` makes zeros.
pub fn chunks(rows: u64) -> u64 {
    rows.div_ceil(rows_of_chunk(rows))
}

fn chunks_of(rows: u64, columns: u64, chunk: u64) -> Shape {
    let across = columns.div_ceil(u64::from(SUM_COLUMNS)).min(i32::MAX as u64) as u32;
    let down = rows.div_ceil(chunk.max(1)).min(u64::from(u16::MAX)) as u32;
    Shape { grid: [across, down, 1], block: [SUM_COLUMNS, SUM_GROUPS, 1], shared: 0 }
}

catalogue! { "norm.cu":
    /// y = (x - mean) / sqrt(variance + eps) weight + bias over each row; stats (rows x 2) receive mean and 1 / deviation.
    /// Without weight and bias they are null.
    layer_norm(x: In<Real>, x_stride: u64, weight: In<f32>, bias: In<f32>, eps: f32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>, rows: u64, columns: u64) => rows_by_warps(rows);
    /// sum = a + b, and y and stats of it as of layer_norm.
    add_layer_norm(a: In<Real>, a_stride: u64, b: In<Real>, b_stride: u64, weight: In<f32>, bias: In<f32>, eps: f32, sum: Out<Real>, sum_stride: u64, y: Out<Real>, y_stride: u64, stats: Out<f32>, rows: u64, columns: u64) => rows_by_warps(rows);
    /// z and stats as of layer_norm, and y = z gate.
    layer_norm_mul(x: In<Real>, x_stride: u64, weight: In<f32>, bias: In<f32>, eps: f32, gate: In<Real>, gate_stride: u64, z: Out<Real>, z_stride: u64, y: Out<Real>, y_stride: u64, stats: Out<f32>, rows: u64, columns: u64) => rows_by_warps(rows);
    /// gx = rstd (g - mean(g) - xhat mean(g xhat)) with xhat = (x - mean) rstd and g = gy weight.
    layer_norm_grad(x: In<Real>, x_stride: u64, weight: In<f32>, stats: In<f32>, gy: In<Real>, gy_stride: u64, gx: Out<Real>, gx_stride: u64, add: u32, rows: u64, columns: u64) => rows_by_warps(rows);
    /// Sums of chunks of rows, `chunk` rows each: part c is at partials + c columns. A grid of (columns / 32, chunks).
    column_sums(x: In<Real>, x_stride: u64, chunk: u64, partials: Out<f32>, rows: u64, columns: u64) => chunks_of(rows, columns, chunk);
    /// The same for the gradients of layer_norm's weight (sum of gy xhat) and bias (sum of gy): part c of both is at
    /// partials + 2 c columns, first the weight's.
    layer_norm_grad_columns(x: In<Real>, x_stride: u64, stats: In<f32>, gy: In<Real>, gy_stride: u64, chunk: u64, partials: Out<f32>, rows: u64, columns: u64) => chunks_of(rows, columns, chunk);
    /// out = the sum of the chunks' parts, which are `distance` apart. A grid of columns / 32.
    fold_partials(partials: In<f32>, distance: u64, chunks: u64, out: Out<f32>, add: u32, columns: u64) => Shape { block: [SUM_COLUMNS, SUM_GROUPS, 1], ..Shape::blocks(columns.div_ceil(u64::from(SUM_COLUMNS)), 256) };
    /// y = x / max(|x|, eps) over each row; norms receive max(|x|, eps).
    l2_normalize(x: In<Real>, x_stride: u64, eps: f32, y: Out<Real>, y_stride: u64, add: u32, norms: Out<f32>, rows: u64, columns: u64) => rows_by_warps(rows);
    /// gx = (gy - y (y . gy)) / norm; where the norm was raised to eps, gy / eps.
    l2_normalize_grad(y: In<Real>, y_stride: u64, norms: In<f32>, eps: f32, gy: In<Real>, gy_stride: u64, gx: Out<Real>, gx_stride: u64, add: u32, rows: u64, columns: u64) => rows_by_warps(rows);
    /// y = e^x / sum of e^x over each row.
    softmax(x: In<Real>, x_stride: u64, y: Out<Real>, y_stride: u64, add: u32, rows: u64, columns: u64) => rows_by_warps(rows);
    /// gx = y (gy - sum of y gy)
    softmax_grad(y: In<Real>, y_stride: u64, gy: In<Real>, gy_stride: u64, gx: Out<Real>, gx_stride: u64, add: u32, rows: u64, columns: u64) => rows_by_warps(rows);
}
