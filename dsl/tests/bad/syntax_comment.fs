# how to train
train { batch 3 }
