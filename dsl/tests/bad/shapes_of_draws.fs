model m {
  table items { rows 100  dim 8  init zeros  optimizer sgd(lr: 0.1) }
  input history: ids(items) { max 10 }
  input click: label
  loss bce_with_logits(linear(pool(history), 1), click, normalize: samples)
}

train { batch 8  steps 1  optimizer sgd(lr: 0.1) }

workload w {
  generate {
    lengths lognormal(mean: 5, sigma: 1e308)
    ids zipf(0)
    labels hash
  }
}
