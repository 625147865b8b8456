model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input b: ids(t) like a { max 9 }
  input c: dense(3) like a
  input d: ids(t) like y
  input y: label like a
  loss bce_with_logits(linear(lookup(a), 1), y, normalize: tokens)
}
