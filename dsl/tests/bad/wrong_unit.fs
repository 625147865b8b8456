cluster c from h200 {
  memory 80 GB/s
  memory_bandwidth 3
  nodes 4 us
  inter { bandwidth 400 Gbit/s  latency 5 GB }
}
