model m {
  table t { rows 10  dim 4  optimizer adagard(lr: 0.1)  dtype fp16  sharding rowwise  init gaussian(0, 1) }
  input a: idz(t) { max 5 }
}
train { balance maybe }
