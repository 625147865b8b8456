//! `ranking.cu`: ranking of items.

use super::{In, Out, Real, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

catalogue! { "ranking.cu":
    /// `inverse[i]` = 1 / max(|`x[i]`|, eps), by a warp for each row; squares are summed in double precision.
    inverse_norms(
        n: u32, cols: u32, x: In<f32>, stride: u64, eps: f32, inverse: Out<f32>,
    ) => Shape::warps(u64::from(n));
    /// `sums[i]` += the squares of a part's columns of row i.
    add_squares(
        n: u32, cols: u32, x: In<f32>, stride: u64, sums: Out<f32>,
    ) => Shape::warps(u64::from(n));
    /// `x[i]` = 1 / max(sqrt(`x[i]`), eps)
    inverse_roots(
        n: u32, eps: f32, x: Out<f32>,
    ) => items(n);
    /// `queries[s]` = the last token of sample s, zeros if it has none.
    last_tokens(
        samples: u32, cols: u32, h: In<Real>, stride: u64, offsets: In<u32>, queries: Out<f32>,
    ) => Shape::items(u64::from(samples) * u64::from(cols));
    /// `x[i] *= factors[i]`, rows of `cols`.
    scale_rows(
        n: u32, cols: u32, factors: In<f32>, x: Out<f32>, stride: u64,
    ) => Shape::items(u64::from(n) * u64::from(cols));
    /// `x[i][j] *= factors[j]`: scores by the norms of their rows.
    scale_columns(
        n: u32, cols: u32, factors: In<f32>, x: Out<f32>, stride: u64,
    ) => Shape::items(u64::from(n) * u64::from(cols));
    /// `targets[q]` = the score of the query's target, if it is a row of this block.
    target_scores(
        queries: u32, rows: u32, scores: In<f32>, local: In<u32>, targets: Out<f32>, fault: Out<u32>,
    ) => items(queries);
    /// `better[q]` = rows of the block that are better than the target: of equal ones, those with lower ids. `ids` are
    /// the ids of the block's rows; without them they are first_id and what follows. A block for each query.
    count_better(
        queries: u32, rows: u32, scores: In<f32>, targets: In<f32>, target_ids: In<i64>, ids: In<i64>, first_id: i64,
        better: Out<u64>,
    ) => Shape::blocks(u64::from(queries), 256);
    /// `known[q]` = of the items that the user has seen, those of this block that are better than the target, without
    /// the target itself. Items of query q stand from `offsets[q]` on, with their rows of the block (or none) in
    /// `local`.
    count_known(
        queries: u32, rows: u32, scores: In<f32>, targets: In<f32>, target_ids: In<i64>, offsets: In<u32>,
        seen: In<i64>, local: In<u32>, known: Out<u64>, fault: Out<u32>,
    ) => Shape::blocks(u64::from(queries), 256);
}
