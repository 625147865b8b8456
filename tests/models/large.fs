// A table of 20 million rows: 5.1 GB of values. Run by hand, see docs/measurements.md.

import "../../examples/blocks/hstu.fs"

model large {
  table items {
    rows 20_000_000
    dim 64
    init normal(0, 0.02)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input history: ids(items) { max 1024 }
  input click: label like history

  loss bce_with_logits(ranker(lookup(history), heads: 2), click, normalize: tokens)
}

train { batch 32  steps 20  optimizer adam(lr: 1e-3) }

workload synthetic {
  generate { lengths lognormal(mean: 200, sigma: 1, max: 1024)  ids zipf(1.05)  labels hash }
}
