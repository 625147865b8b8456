import "blocks.fs
train { batch 3 }
