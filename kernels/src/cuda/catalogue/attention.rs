//! `attention.cu`: attention over jagged sequences.

use super::dense::rows_by_warps;
use super::{Call, In, Out, Real, Shape, catalogue};
use crate::cuda::sources::Precision;

/// Widths of heads that there are kernels for; narrower ones are filled up.
pub const WIDTHS: [u32; 4] = [16, 32, 64, 128];

/// The kernels' width for heads of `dim` columns; none if that is too wide.
pub fn width(dim: u32) -> Option<u32> {
    WIDTHS.into_iter().find(|width| dim <= *width)
}

/// Rows of a block's tile, for kernels of a width.
fn rows(precision: Precision, width: u32) -> u64 {
    match precision {
        Precision::Bf16 => 64,
        Precision::F32 if width <= 64 => 32,
        Precision::F32 => 16,
    }
}

/// Tiles of so many tokens in so many sequences: enough for every sequence, however they are cut.
pub fn tiles(precision: Precision, width: u32, tokens: u64, sequences: u64) -> u64 {
    if tokens == 0 { 0 } else { tokens / rows(precision, width) + sequences }
}

fn shape(tiles: u64, heads: u32) -> Shape {
    Shape { grid: [tiles.min(i32::MAX as u64) as u32, heads, 1], block: [128, 1, 1], shared: 0 }
}

catalogue! { "attention.cu":
    /// dots (tokens x heads) = the sum over a head's columns of y gy: what a softmax's gradient subtracts.
    attention_dots(y: In<Real>, y_stride: u64, gy: In<Real>, gy_stride: u64, heads: u32, dim: u32, dots: Out<f32>, tokens: u64) => rows_by_warps(tokens * u64::from(heads));
    /// SiLU attention, forward, heads of up to 16 columns.
    silu_attention_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// SiLU attention, forward, heads of up to 32 columns.
    silu_attention_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// SiLU attention, forward, heads of up to 64 columns.
    silu_attention_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// SiLU attention, forward, heads of up to 128 columns.
    silu_attention_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// SiLU attention, gradient of the queries, heads of up to 16 columns.
    silu_attention_grad_q_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// SiLU attention, gradient of the queries, heads of up to 32 columns.
    silu_attention_grad_q_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// SiLU attention, gradient of the queries, heads of up to 64 columns.
    silu_attention_grad_q_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// SiLU attention, gradient of the queries, heads of up to 128 columns.
    silu_attention_grad_q_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// SiLU attention, gradients of keys and values, heads of up to 16 columns.
    silu_attention_grad_kv_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// SiLU attention, gradients of keys and values, heads of up to 32 columns.
    silu_attention_grad_kv_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// SiLU attention, gradients of keys and values, heads of up to 64 columns.
    silu_attention_grad_kv_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// SiLU attention, gradients of keys and values, heads of up to 128 columns.
    silu_attention_grad_kv_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// Softmax attention, forward, heads of up to 16 columns.
    softmax_attention_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// Softmax attention, forward, heads of up to 32 columns.
    softmax_attention_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// Softmax attention, forward, heads of up to 64 columns.
    softmax_attention_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// Softmax attention, forward, heads of up to 128 columns.
    softmax_attention_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, y: Out<Real>, y_stride: u64, add: u32, stats: Out<f32>) => shape(tiles, heads);
    /// Softmax attention, gradient of the queries, heads of up to 16 columns.
    softmax_attention_grad_q_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// Softmax attention, gradient of the queries, heads of up to 32 columns.
    softmax_attention_grad_q_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// Softmax attention, gradient of the queries, heads of up to 64 columns.
    softmax_attention_grad_q_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// Softmax attention, gradient of the queries, heads of up to 128 columns.
    softmax_attention_grad_q_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gq: Out<Real>, gq_stride: u64, add: u32) => shape(tiles, heads);
    /// Softmax attention, gradients of keys and values, heads of up to 16 columns.
    softmax_attention_grad_kv_16(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// Softmax attention, gradients of keys and values, heads of up to 32 columns.
    softmax_attention_grad_kv_32(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// Softmax attention, gradients of keys and values, heads of up to 64 columns.
    softmax_attention_grad_kv_64(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
    /// Softmax attention, gradients of keys and values, heads of up to 128 columns.
    softmax_attention_grad_kv_128(q: In<Real>, q_stride: u64, k: In<Real>, k_stride: u64, v: In<Real>, v_stride: u64, gy: In<Real>, gy_stride: u64, offsets: In<u64>, sequences: u64, tiles: u64, heads: u32, dim: u32, causal: u32, stats: In<f32>, dots: In<f32>, gk: Out<Real>, gk_stride: u64, gk_add: u32, gv: Out<Real>, gv_stride: u64, gv_add: u32) => shape(tiles, heads);
}

/// Which scores become weights how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// silu(s) / L, causal.
    Silu,
    /// softmax of s over the keys.
    Softmax {
        /// Mask later positions.
        causal: bool,
    },
}

/// What all kernels of an attention take.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Scores to weights.
    pub score: Score,
    /// Queries, and elements between their rows.
    pub q: (In<Real>, u64),
    /// Keys.
    pub k: (In<Real>, u64),
    /// Values.
    pub v: (In<Real>, u64),
    /// Where sequences begin, and the number of tokens: sequences + 1.
    pub offsets: In<u64>,
    /// Number of sequences.
    pub sequences: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Heads.
    pub heads: u32,
    /// Columns of a head.
    pub dim: u32,
    /// What activations are.
    pub precision: Precision,
}

/// The kernel of a width.
macro_rules! by_width {
    ($width:expr, [$($kernel:ident)*], $arguments:tt) => {{
        let kernels = [$($kernel),*];
        WIDTHS.iter().position(|width| *width == $width).map(|i| by_width!(@call kernels[i] $arguments))
    }};
    (@call $kernel:ident[$i:ident] ($($argument:expr),* $(,)?)) => { $kernel[$i]($($argument),*) };
}

impl Attention {
    fn causal(&self) -> u32 {
        u32::from(!matches!(self.score, Score::Softmax { causal: false }))
    }

    /// Width of the kernels and number of tiles; none if heads are too wide.
    fn shape(&self) -> Option<(u32, u64)> {
        let width = width(self.dim)?;
        Some((width, tiles(self.precision, width, self.tokens, self.sequences)))
    }

    /// y, and for softmax `stats` (tokens x heads). None if heads are too wide.
    pub fn forward(&self, y: (Out<Real>, u64), add: u32, stats: Out<f32>) -> Option<Call> {
        let (width, tiles) = self.shape()?;
        let Attention { q, k, v, offsets, sequences, heads, dim, .. } = *self;
        let causal = self.causal();
        match self.score {
            Score::Silu => by_width!(
                width,
                [silu_attention_16 silu_attention_32 silu_attention_64 silu_attention_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, offsets, sequences, tiles, heads, dim, causal, y.0, y.1, add, stats)
            ),
            Score::Softmax { .. } => by_width!(
                width,
                [softmax_attention_16 softmax_attention_32 softmax_attention_64 softmax_attention_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, offsets, sequences, tiles, heads, dim, causal, y.0, y.1, add, stats)
            ),
        }
    }

    /// For softmax: `dots` (tokens x heads), which both gradients need, from the result and its gradient.
    pub fn dots(&self, y: (In<Real>, u64), gy: (In<Real>, u64), dots: Out<f32>) -> Call {
        attention_dots(y.0, y.1, gy.0, gy.1, self.heads, self.dim, dots, self.tokens)
    }

    /// gq. `stats` and `dots` are those of softmax. None if heads are too wide.
    pub fn grad_q(
        &self,
        gy: (In<Real>, u64),
        stats: In<f32>,
        dots: In<f32>,
        gq: (Out<Real>, u64),
        add: u32,
    ) -> Option<Call> {
        let (width, tiles) = self.shape()?;
        let Attention { q, k, v, offsets, sequences, heads, dim, .. } = *self;
        let causal = self.causal();
        match self.score {
            Score::Silu => by_width!(
                width,
                [silu_attention_grad_q_16 silu_attention_grad_q_32 silu_attention_grad_q_64 silu_attention_grad_q_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, gy.0, gy.1, offsets, sequences, tiles, heads, dim, causal, stats, dots, gq.0, gq.1, add)
            ),
            Score::Softmax { .. } => by_width!(
                width,
                [softmax_attention_grad_q_16 softmax_attention_grad_q_32 softmax_attention_grad_q_64 softmax_attention_grad_q_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, gy.0, gy.1, offsets, sequences, tiles, heads, dim, causal, stats, dots, gq.0, gq.1, add)
            ),
        }
    }

    /// gk and gv, as [`grad_q`](Self::grad_q).
    pub fn grad_kv(
        &self,
        gy: (In<Real>, u64),
        stats: In<f32>,
        dots: In<f32>,
        gk: (Out<Real>, u64, u32),
        gv: (Out<Real>, u64, u32),
    ) -> Option<Call> {
        let (width, tiles) = self.shape()?;
        let Attention { q, k, v, offsets, sequences, heads, dim, .. } = *self;
        let causal = self.causal();
        match self.score {
            Score::Silu => by_width!(
                width,
                [silu_attention_grad_kv_16 silu_attention_grad_kv_32 silu_attention_grad_kv_64 silu_attention_grad_kv_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, gy.0, gy.1, offsets, sequences, tiles, heads, dim, causal, stats, dots, gk.0, gk.1, gk.2, gv.0, gv.1, gv.2)
            ),
            Score::Softmax { .. } => by_width!(
                width,
                [softmax_attention_grad_kv_16 softmax_attention_grad_kv_32 softmax_attention_grad_kv_64 softmax_attention_grad_kv_128],
                (q.0, q.1, k.0, k.1, v.0, v.1, gy.0, gy.1, offsets, sequences, tiles, heads, dim, causal, stats, dots, gk.0, gk.1, gk.2, gv.0, gv.1, gv.2)
            ),
        }
    }
}
