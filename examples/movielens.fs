// Next-movie prediction on MovieLens (ml-latest-small) with two HSTU blocks.

model movielens {
  table movies {
    rows 9_066
    dim 64
    init normal(0, 0.02)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input history: ids(movies) { max 200  keep last }
  input following: next(history)

  let x = dropout(positional(lookup(history), name: "position"), 0.2)
  repeat 2 as layers {
    x = hstu(x, heads: 2, p: 0.2)
  }

  loss sampled_softmax(
    x,
    movies,
    following,
    negatives: 128,
    temperature: 0.05,
    similarity: cosine,
    normalize: tokens,
  )
}

// Gated pointwise attention; the norms have no parameters.
block hstu(x, heads, p) {
  let d = width(x)
  let uvqk = linear(
    layer_norm(x, affine: off, eps: 1e-6),
    4 * d,
    init: normal(0, 0.02),
    bias_init: zeros,
  )
  let u, v, q, k = split(silu(uvqk), 4)
  let a = layer_norm(silu_attention(q, k, v, heads: heads), affine: off, eps: 1e-6)
  return x + linear(dropout(a * u, p), d, name: "o", init: xavier_uniform, bias_init: zeros)
}

train {
  batch 32
  epochs 20
  optimizer adam(lr: 1e-3)
}

workload ratings {
  csv "data/ml-latest-small/ratings.csv" {
    user "userId"
    item "movieId"
    time "timestamp"
    rating "rating"
  }
  evaluate leave_last_out
}
