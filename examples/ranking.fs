// Ranking over long histories: two tables summed, two HSTU blocks, one label per token.

import "blocks/hstu.fs"

model ranking {
  table items { rows 200_000  dim 64  init hash(scale: 0.05)  optimizer rowwise_adagrad(lr: 0.05) }
  table authors {
    rows 200_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
  }

  input item: ids(items) { max 1024  keep last }
  input author: ids(authors) like item
  input click: label like item

  let logits = ranker(lookup(item) + lookup(author), heads: 2)

  // 32 samples of 200 tokens on average: a constant, so that long batches weigh more.
  loss bce_with_logits(logits, click, normalize: 32 * 200)
}

train {
  batch 32
  steps 100
  optimizer adam(lr: 1e-3)
  // What is written down of this model was measured with samples where they are read. Without the line the compiler gives
  // them to the ranks that have least to do, where that pays.
  balance off
}

workload synthetic {
  generate {
    lengths lognormal(mean: 200, sigma: 1, max: 1024)
    ids zipf(1.05)
    labels hash
  }
}
