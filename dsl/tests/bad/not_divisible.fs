model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let u, v, w = split(lookup(a), 3)
  let x = silu_attention(lookup(a), lookup(a), lookup(a), heads: 3)
  let p, q = split(lookup(a), [1, 2])
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
