// Click prediction from pooled tables and dense features (DLRM).

model dlrm {
  table users {
    rows 1_000_000
    dim 32
    init uniform(-0.001, 0.001)
    optimizer rowwise_adagrad(lr: 0.02)
  }
  table items {
    rows 2_000_000
    dim 32
    init uniform(-0.001, 0.001)
    optimizer rowwise_adagrad(lr: 0.02)
  }
  table words { rows 50_000  dim 32  init uniform(-0.01, 0.01)  optimizer adagrad(lr: 0.02) }
  table regions {
    rows 500
    dim 32
    init uniform(-0.05, 0.05)
    optimizer sgd(lr: 0.1)
    sharding auto
  }

  input user: ids(users) { max 1 }
  input clicked: ids(items) { max 100 }
  input query: ids(words) { max 20  keep first }
  input region: ids(regions) { max 1 }
  input features: dense(13)
  input click: label

  let bottom = mlp(features, [512, 256, 32], last: relu)
  let pairs = dot_interaction(
    bottom,
    pool(user),
    pool(clicked, mean),
    pool(query, mean),
    pool(region),
  )
  let top = mlp(concat(bottom, pairs), [256, 128, 1])

  loss bce_with_logits(top, click, normalize: samples)
}

train {
  batch 256
  steps 100
  optimizer adam(lr: 1e-3)
}

workload synthetic {
  generate {
    lengths lognormal(mean: 20, sigma: 1, max: 100)
    ids zipf(1.05)
    labels hash
  }
}
