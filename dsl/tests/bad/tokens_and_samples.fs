model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input d: dense(4)
  input y: label like a
  let x = lookup(a) * d
  let z = concat(lookup(a), pool(a))
  loss bce_with_logits(linear(x, 1), y, normalize: tokens)
}
