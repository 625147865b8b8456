// café
train { batch 3 }
