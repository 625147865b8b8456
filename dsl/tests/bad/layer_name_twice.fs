block f(x) { return linear(x, 4, name: "o") }
model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input y: label like a
  let x = f(f(lookup(a)))
  loss bce_with_logits(linear(x, 1), y, normalize: tokens)
}
