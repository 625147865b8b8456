block f(x) {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  return x
  loss x
}
model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  return a
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
