import "a‮.fs"
