train {
  batch
  epochs 20
}
