model m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  table other { rows 10  dim 4  optimizer sgd(lr: 0.1) }
  input a: ids(t) { max 5 }
  input n: next(a)
  loss sampled_softmax(lookup(a), other, n, negatives: 8, normalize: tokens)
}
