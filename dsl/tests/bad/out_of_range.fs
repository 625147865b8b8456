model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let x = dropout(lookup(a), 1.5)
  let z = linear(x, 2.5)
  let w = linear(x, 0)
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
