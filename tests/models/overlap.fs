// What `cargo bench -p fs-tests --bench overlap` trains: two HSTU blocks over a table of 2 million rows. Histories are
// equally long, so no rank waits for a longer one: what is measured is transfers.

import "../../examples/blocks/hstu.fs"

model overlap {
  table items {
    rows 2_000_000
    dim 64
    init hash(scale: 0.05)
    optimizer rowwise_adagrad(lr: 0.05)
    sharding row_wise
  }

  input history: ids(items) { max 256 }
  input click: label like history

  loss bce_with_logits(ranker(lookup(history), heads: 2), click, normalize: tokens)
}

train { batch 64  steps 40  optimizer adam(lr: 1e-3) }

workload synthetic {
  generate { lengths fixed(256)  ids zipf(1.05)  labels hash }
}
