// The size of the paper's training: 256 H100s, histories of a thousand ids on average and up to 21,000, drawn from
// fifty million items. Compile it to see what a schedule gains; running it needs such a cluster.

import "blocks/hstu.fs"

model histories {
  table items {
    rows 50_000_000
    dim 512
    init normal(0, 0.02)
    optimizer rowwise_adagrad(lr: 0.05)
  }
  table creators {
    rows 5_000_000
    dim 512
    init normal(0, 0.02)
    optimizer rowwise_adagrad(lr: 0.05)
  }

  input item: ids(items) { max 21_000  keep last }
  input creator: ids(creators) like item
  input click: label like item

  let x = lookup(item) + lookup(creator)
  repeat 6 as layers {
    x = hstu(x, heads: 8)
  }

  loss bce_with_logits(linear(x, 1, name: "head"), click, normalize: tokens)
}

train {
  batch 2_048
  steps 1_000
  optimizer adam(lr: 1e-3)
  lookahead 1
}

workload long {
  generate {
    lengths lognormal(mean: 1000, sigma: 1.2, max: 21_000)
    ids zipf(1.05)
    labels hash
  }
}

cluster h100x256
