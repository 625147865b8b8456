cluster c { nodes 2  gpus_per_node 8  memory 80 GB  memory_bandwidth 3 TB/s  intra { bandwidth 4 GB/s  latency 1 us } }
cluster d { gpus_per_node 2 }
