// TorchRec's training run on 3 ranks, 2 tables: see fixtures/w3_t2_adagrad.safetensors.

import "../../examples/blocks/hstu.fs"

model parity {
  table t0 {
    rows 500
    dim 16
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }
  table t1 {
    rows 500
    dim 16
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input f0: ids(t0) { max 40 }
  input f1: ids(t1) like f0
  input y: label like f0

  let x = lookup(f0) + lookup(f1)
  let logits = ranker(x, heads: 2)

  // 3 ranks of 4 samples with 12 tokens on average.
  loss bce_with_logits(logits, y, normalize: 3 * 4 * 12)
}

train {
  batch 12
  steps 6
  optimizer adam(lr: 1e-3)
}

workload fixture {
  safetensors "../fixtures/w3_t2_adagrad.safetensors"
}
