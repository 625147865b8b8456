import "no_such_file.fs"
train { batch 3 }
