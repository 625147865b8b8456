model m {
  table t { dim 4  optimizer sgd() }
  input a: ids(t)
  input y: label like a
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
