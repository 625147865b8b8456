model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let x = linear(a, 4)
  let z = lookup(t)
  let s = lookup(a) + 1
  let d = 1 / lookup(a)
  let n = linear(lookup(a), "four")
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
