train { batch 3  seed 99999999999999999999 }
workload w { generate { lengths fixed(3)  labels bernoulli(1e999) } }
