import "import_cycle.fs"
train { batch 3 }
