model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let x = lookup(a)
  let z = silu(x)
  let p, q = split(x, 2)
  let w = silu(q)
  let _on_purpose = 3
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
