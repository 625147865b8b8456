model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
train {
  batch 3
  precision bf16 { compute f32 }
}
