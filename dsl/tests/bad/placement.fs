model m {
  table a { rows 10  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise(placement: hased) }
  table b { rows 10  dim 4  optimizer sgd(lr: 0.1)  sharding row_wise(placment: hashed) }
  table c { rows 10  dim 4  optimizer sgd(lr: 0.1)  sharding table_wise(placement: hashed) }
  table d { rows 10  dim 4  optimizer sgd(lr: 0.1)  sharding 4 }
  input x: ids(a) { max 5 }
  input click: label
  loss bce_with_logits(linear(pool(x), 1), click, normalize: samples)
}
train { batch 4  steps 2 }
workload w { generate { lengths fixed(1)  ids zipf(1.05, numbered: by_rank)  labels bernoulli(0.5) } }
