// The shape that is timed beside TorchRec on two hosts: four tables, 2 ranks of 16 samples with 100 tokens on average.

import "../../examples/blocks/hstu.fs"

model peer {
  table t0 {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }
  table t1 {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }
  table t2 {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }
  table t3 {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input f0: ids(t0) { max 512 }
  input f1: ids(t1) like f0
  input f2: ids(t2) like f0
  input f3: ids(t3) like f0
  input y: label like f0

  let x = lookup(f0) + lookup(f1) + lookup(f2) + lookup(f3)
  let h = hstu(x, heads: 2)
  loss bce_with_logits(linear(h, 1, name: "head"), y, normalize: 2 * 16 * 100)
}

train {
  batch 32
  steps 20
  optimizer adam(lr: 1e-3)
}

workload synthetic {
  generate { lengths lognormal(mean: 100, sigma: 0.8, max: 512)  ids zipf(1.05)  labels hash }
}
