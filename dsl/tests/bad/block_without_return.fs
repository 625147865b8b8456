block f(x) { let z = silu(x) }
model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  loss bce_with_logits(f(lookup(a)), y, normalize: tokens)
}
