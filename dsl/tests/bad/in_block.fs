block gate(x, by) { return x * by }
model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let x = gate(lookup(a), linear(lookup(a), 3))
  loss bce_with_logits(gate(x, heads: 2), y, normalize: tokens)
}
