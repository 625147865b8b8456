// The MovieLens example on two hosts with a link between them that is slow against their compute.

import "../../examples/movielens.fs"

cluster two_hosts from local {
  nodes 2
  gpus_per_node 1
  inter { bandwidth 2.5 Gbit/s  latency 20 us }
}
