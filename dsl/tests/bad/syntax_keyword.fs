modle m {
  table t { rows 10  dim 4  optimizer sgd(lr: 0.1) }
}
