train { steps 10  epochs 2 }
workload w {
  generate { lengths uniform(9, 3) }
  evaluate leave_last_out
}
