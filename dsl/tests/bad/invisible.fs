model m {
  // a path ​that hides
}
