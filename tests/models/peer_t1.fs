// The shape that is timed beside TorchRec: one table, 2 ranks of 16 samples with 200 tokens on average.

import "../../examples/blocks/hstu.fs"

model peer {
  table t0 {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input f0: ids(t0) { max 1024 }
  input y: label like f0

  loss bce_with_logits(ranker(lookup(f0), heads: 2), y, normalize: 2 * 16 * 200)
}

train { batch 32  steps 20  optimizer adam(lr: 1e-3) }

workload synthetic {
  generate { lengths lognormal(mean: 200, sigma: 1, max: 1024)  ids zipf(1.05)  labels hash }
}
