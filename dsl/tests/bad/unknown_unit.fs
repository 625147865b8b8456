cluster c from h200 { memory 80 GiBs  memory_bandwidth 3 TBps  intra { bandwidth 450 furlongs
 latency 2 us } }
