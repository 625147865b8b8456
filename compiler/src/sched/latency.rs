//! How long an operation takes on a described cluster.
//!
//! - Compute: the greater of arithmetic over the arithmetic rate and memory traffic over the memory bandwidth, plus
//!   the time from the host's request to the start of a kernel (the latency of the link between them). What reads bf16
//!   has the rate of bf16, or that of f32 where the cluster says none.
//! - Transfers: every rank sends evenly to all. What goes to ranks of the same node takes copy engines, what goes to
//!   other nodes the network; both run at once, the slower one counts, with its latency. The rank's own part is
//!   copied within its memory. An operation any part of which crosses nodes is the network's.
//! - Sums over ranks: within a node first, then across nodes with 1/G of the data per GPU: each level moves
//!   2 (n - 1) / n of it, as rings do, in 2 log2 n hops, as trees do.
//!
//! All constants are those of the cluster's description.

use fs_dsl::checked::{Cluster, DType};
use fs_schedule::action::{Peers, Runs};
use fs_schedule::counts::Counts;
use fs_schedule::{Element, Op, Place, Poly, Schedule, Site};

use super::costs::{CostModel, Time};
use super::sizes::{Sizes, input_bytes};

/// What a buffer of training is made of.
fn element(s: &Schedule, place: Place) -> Option<Element> {
    let Place::Buffer(b) = place else { return None };
    s.train.buffers.get(b as usize).map(|b| b.element)
}

/// A cluster as a number of ranks sees it.
#[derive(Debug)]
pub(crate) struct ClusterCosts<'a> {
    cluster: &'a Cluster,
    ranks: f64,
    /// Ranks of a node.
    node: f64,
    /// Nodes that are used.
    nodes: f64,
    /// Operations a second in f32 and in bf16.
    flops: [f64; 2],
    /// What was counted in the data, if anything was.
    counts: Option<&'a Counts>,
}

impl CostModel for ClusterCosts<'_> {
    fn describe(&self) -> String {
        self.cluster.name.clone()
    }

    fn sizes(&self, s: &Schedule) -> Sizes {
        Sizes::expect(s, self.counts)
    }

    fn time(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Time {
        let facts = op.action.facts();
        let of = |size: &Poly| size.eval(|symbol| sizes.of(op, symbol));
        let (whole, wire) = match facts.runs {
            Runs::Host => {
                let batch: f64 =
                    (0..s.inputs.len() as u32).map(|i| input_bytes(s, sizes, i, Site::Home, None)).sum();
                (batch / self.cluster.host.bandwidth + self.cluster.host.latency, 0.0)
            }
            Runs::Link => {
                // What arrives, or what leaves, whichever is more: owners of whole tables get more than they send.
                let wire = s.wire(&s.train, op);
                let data = of(&wire.sent).max(of(&wire.received));
                let reduces = facts.transfer.is_some_and(|t| t.peers == Peers::Reduce);
                if reduces { self.all_reduce(data) } else { self.exchange(data) }
            }
            Runs::Compute => {
                let brain = op.reads.iter().any(|o| element(s, o.place) == Some(Element::Bf16));
                let arithmetic = of(&op.cost.flops) / self.flops[usize::from(brain)];
                let memory = of(&op.cost.bytes) / self.cluster.memory_bandwidth;
                (arithmetic.max(memory) + self.cluster.host.latency, 0.0)
            }
        };
        // Until the host knows the sizes, it can start nothing that needs them.
        let whole = whole + if facts.learns.host_sync { self.cluster.host_sync } else { 0.0 };
        Time { whole, core: 0.0, wire }
    }

    fn link(&self) -> (f64, f64) {
        let l = if self.nodes > 1.0 { self.cluster.inter } else { self.cluster.intra };
        (l.bandwidth, l.latency)
    }

    fn assumptions(&self, s: &Schedule, _: &Sizes) -> Vec<String> {
        let gpus = u64::from(self.cluster.nodes) * u64::from(self.cluster.gpus_per_node);
        if u64::from(s.ranks) <= gpus {
            return Vec::new();
        }
        vec![format!("{} has {gpus} GPUs; more nodes are assumed for {} ranks", self.cluster.name, s.ranks)]
    }
}

impl<'a> ClusterCosts<'a> {
    /// For `ranks` ranks: nodes are filled one after the other.
    pub(crate) fn new(cluster: &'a Cluster, ranks: u32) -> Self {
        let node = cluster.gpus_per_node.clamp(1, ranks.max(1));
        let rate = |of| cluster.flops.iter().find(|f| f.0 == of).map(|f| f.1);
        let first = cluster.flops.first().map_or(f64::INFINITY, |f| f.1);
        let f32 = rate(DType::F32).unwrap_or(first);
        Self {
            cluster,
            ranks: ranks.max(1).into(),
            node: node.into(),
            nodes: ranks.max(1).div_ceil(node).into(),
            flops: [f32, rate(DType::BF16).unwrap_or(f32)],
            counts: None,
        }
    }

    /// With sizes as they were counted.
    pub(super) fn counted(self, counts: Option<&'a Counts>) -> Self {
        Self { counts, ..self }
    }

    /// The cluster's name.
    pub(super) fn name(&self) -> &'a str {
        &self.cluster.name
    }

    /// Every rank sends `data` bytes spread evenly over all ranks.
    fn exchange(&self, data: f64) -> (f64, f64) {
        let c = self.cluster;
        let own = data / self.ranks * 2.0 / c.memory_bandwidth;
        let near = data * (self.node - 1.0) / self.ranks;
        let far = data * (self.ranks - self.node).max(0.0) / self.ranks;
        let within = near / c.intra.bandwidth + c.intra.latency;
        if self.nodes > 1.0 {
            ((far / c.inter.bandwidth + c.inter.latency).max(within).max(own), far)
        } else {
            (within.max(own), near)
        }
    }

    fn all_reduce(&self, data: f64) -> (f64, f64) {
        let c = self.cluster;
        let level = |n: f64, data: f64, link: fs_dsl::checked::Link| {
            let moved = 2.0 * (n - 1.0) / n * data;
            let hops = 2.0 * n.log2().ceil().max(0.0);
            (moved / link.bandwidth + hops * link.latency, moved)
        };
        let (within, near) = level(self.node, data, c.intra);
        let (across, far) = level(self.nodes, data / self.node, c.inter);
        let least = c.intra.latency;
        ((within + across).max(least), if self.nodes > 1.0 { far } else { near })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_are_as_slow_as_their_slowest_link() {
        let dgx = fs_dsl::cluster::preset("dgx_h100").unwrap();
        let m = ClusterCosts::new(&dgx, 8);
        let (seconds, wire) = m.exchange(450e9);
        assert!((seconds - (7.0 / 8.0 + 2e-6)).abs() < 1e-9 && wire == 450e9 * 7.0 / 8.0);
        let many = fs_dsl::cluster::preset("h100x256").unwrap();
        let m = ClusterCosts::new(&many, 256);
        let (seconds, _) = m.exchange(50e9);
        assert!((seconds - (248.0 / 256.0 + 5e-6)).abs() < 1e-9);
        // One rank has nobody to send to.
        let (seconds, wire) = ClusterCosts::new(&dgx, 1).exchange(3350e9);
        assert!((seconds - 2.0).abs() < 1e-9 && wire == 0.0);
    }

    #[test]
    fn sums_over_ranks() {
        let dgx = fs_dsl::cluster::preset("dgx_h100").unwrap();
        let (seconds, _) = ClusterCosts::new(&dgx, 8).all_reduce(450e9);
        assert!((seconds - (1.75 + 6.0 * 2e-6)).abs() < 1e-9);
        let many = fs_dsl::cluster::preset("h100x256").unwrap();
        let (seconds, _) = ClusterCosts::new(&many, 256).all_reduce(8e9);
        let within = 1.75 * 8e9 / 450e9 + 6.0 * 2e-6;
        let across = 2.0 * 31.0 / 32.0 * 1e9 / 50e9 + 10.0 * 5e-6;
        assert!((seconds - within - across).abs() < 1e-9);
    }
}
