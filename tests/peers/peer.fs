// The model and shapes of torchrec_step.py's defaults: 2 ranks of 16 samples, one table.

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

  let logits = ranker(lookup(f0), heads: 2)

  // 2 ranks of 16 samples with 200 tokens on average.
  loss bce_with_logits(logits, y, normalize: 2 * 16 * 200)
}

train {
  batch 32
  steps 20
  optimizer adam(lr: 1e-3)
}

workload batches {
  safetensors "peer.safetensors"
}
