model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let u, v = split(lookup(a), 4)
  let w = split(lookup(a), 2)
  let p, q = lookup(a)
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
