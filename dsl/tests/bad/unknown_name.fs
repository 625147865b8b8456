model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let hidden = lookup(a)
  loss bce_with_logits(linear(hiden, 1), y, normalize: tokens)
}
