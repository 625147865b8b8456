// TorchRec's training run on 2 ranks, 1 table: see fixtures/w2_t1_adagrad.safetensors.

import "../../examples/blocks/hstu.fs"

model parity {
  table t0 {
    rows 500
    dim 16
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input f0: ids(t0) { max 40 }
  input y: label like f0

  let x = lookup(f0)
  let logits = ranker(x, heads: 2)

  // 2 ranks of 4 samples with 12 tokens on average.
  loss bce_with_logits(logits, y, normalize: 2 * 4 * 12)
}

train {
  batch 8
  steps 6
  optimizer adam(lr: 1e-3)
}

workload fixture {
  safetensors "../fixtures/w2_t1_adagrad.safetensors"
}
