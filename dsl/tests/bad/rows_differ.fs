model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input b: ids(t) { max 9 }
  input y: label like a
  let x = lookup(a) + lookup(b)
  loss bce_with_logits(linear(x, 1), y, normalize: tokens)
}
