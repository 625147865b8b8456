model m {
  table a { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input x: ids(a) { max 5 }
  input click: label
  loss bce_with_logits(linear(pool(x), 1), click, normalize: samples)
}
train { batch 64  microbatches 65 }
