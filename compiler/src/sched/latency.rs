//! How long an operation takes on a described cluster.
//!
//! - Compute: the greater of arithmetic over the arithmetic rate and memory traffic over the memory bandwidth, plus
//!   the time from the host's request to the start of a kernel (the latency of the link between them). What reads bf16
//!   has the rate of bf16, or that of f32 where the cluster says none.
//! - Transfers: every rank sends evenly to all. What goes to ranks of the same node takes copy engines, what goes to
//!   other nodes the network; both run at once, the slower one counts. The rank's own part is
//!   copied within its memory. An operation any part of which crosses nodes is the network's. Of rows that come through relays
//!   one exchange is within nodes, the other between the ranks that stand at one place of all nodes.
//! - A transfer occupies its engine while its bytes leave, a microsecond at least. Then, for the link's *latency*, they are under way:
//!   what needs them waits, and so does its queue, but the engine is free for other queues.
//! - What the host must learn of an operation before others can start takes it a while (`host_sync`), in which the engine is free.
//!   Presets say 0: it is not known, and hidden where there is work in between, for which the planner leaves room.
//! - Sums over ranks: within a node first, then across nodes with 1/G of the data per GPU: each level moves
//!   2 (n - 1) / n of it, as rings do, in 2 log2 n hops, as trees do.
//!
//! All constants are those of the cluster's description.

use fs_dsl::checked::{Cluster, DType, Link};
use fs_schedule::action::{Phase, Runs};
use fs_schedule::{Element, Leg, Op, Place, Poly, Schedule, Site};

use super::costs::{CostModel, Time};
use super::evidence::Evidence;
use super::relays;
use super::sizes::{Sizes, input_bytes};

/// Launches for which the host should have time between what it learns and what needs it: one of the copy that brings it down, one of
/// the look at it, two of what comes first then.
const ROOM: f64 = 4.0;

/// Seconds for which a transfer occupies its engine at least.
const LEAST: f64 = 1e-6;

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
    /// What sizes follow from beside the workload.
    evidence: Evidence<'a>,
}

impl CostModel for ClusterCosts<'_> {
    fn describe(&self) -> String {
        self.cluster.name.clone()
    }

    fn sizes(&self, s: &Schedule) -> Sizes {
        Sizes::expect(s, self.evidence)
    }

    fn time(&self, s: &Schedule, sizes: &Sizes, op: &Op) -> Time {
        let facts = op.action.facts();
        let of = |size: &Poly| size.eval(|symbol| sizes.of(op, symbol));
        let time = match facts.runs {
            Runs::Host => {
                let batch: f64 =
                    (0..s.inputs.len() as u32).map(|i| input_bytes(s, sizes, i, Site::Home, None)).sum();
                Time::of(batch / self.cluster.host.bandwidth + self.cluster.host.latency)
            }
            Runs::Link => {
                // What arrives, or what leaves, whichever is more: owners of whole tables get more than they send.
                let wire = s.wire(&s.train, op);
                let data = of(&wire.sent).max(of(&wire.received));
                let transfer = match relays::leg(s, op) {
                    _ if facts.sums_over_ranks() => self.all_reduce(data),
                    Leg::Whole => self.exchange(data),
                    Leg::Within { .. } => self.over(data, self.node, self.cluster.intra),
                    Leg::Between { .. } => self.over(data, self.nodes, self.cluster.inter),
                };
                transfer.time()
            }
            Runs::Compute => {
                // Sums of what travels as bf16 are made in f32.
                let brain = facts.phase == Phase::Model
                    && op.reads.iter().any(|o| element(s, o.place) == Some(Element::Bf16));
                let arithmetic = of(&op.cost.flops) / self.flops[usize::from(brain)];
                let memory = of(&op.cost.bytes) / self.cluster.memory_bandwidth;
                let launch = self.cluster.host.latency;
                // What has no multiprocessors is no GPU: each operation is a thread's turn, also beside others.
                let spared = if self.cluster.sms > 0 { launch } else { 0.0 };
                Time { launch: spared, ..Time::of(arithmetic.max(memory) + launch) }
            }
        };
        // Until the host knows the sizes, it can start nothing that needs them.
        let tells = facts.learns.host_sync && facts.runs != Runs::Host;
        Time { learned: if tells { self.cluster.host_sync } else { 0.0 }, ..time }
    }

    fn link(&self) -> (f64, f64) {
        let l = if self.nodes > 1.0 { self.cluster.inter } else { self.cluster.intra };
        (l.bandwidth, l.latency)
    }

    fn room(&self) -> f64 {
        self.cluster.host_sync.max(ROOM * self.cluster.host.latency)
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
            evidence: Evidence::default(),
        }
    }

    /// With sizes as they were counted, if they were.
    pub(super) fn by(self, evidence: Evidence<'a>) -> Self {
        Self { evidence, ..self }
    }

    /// The cluster's name.
    pub(super) fn name(&self) -> &'a str {
        &self.cluster.name
    }

    /// Every rank sends `data` bytes spread evenly over all ranks.
    fn exchange(&self, data: f64) -> Transfer {
        let c = self.cluster;
        let own = Transfer::over(data / self.ranks * 2.0, c.memory_bandwidth, 0.0);
        let near = Transfer::over(data * (self.node - 1.0) / self.ranks, c.intra.bandwidth, c.intra.latency);
        if self.nodes > 1.0 {
            let far = data * (self.ranks - self.node).max(0.0) / self.ranks;
            Transfer::over(far, c.inter.bandwidth, c.inter.latency).beside(near).beside(own)
        } else {
            near.beside(own)
        }
    }

    /// Every rank sends `data` bytes spread evenly over `n` ranks, itself among them, all on one kind of link.
    fn over(&self, data: f64, n: f64, link: Link) -> Transfer {
        let own = Transfer::over(data / n * 2.0, self.cluster.memory_bandwidth, 0.0);
        Transfer::over(data * (n - 1.0) / n, link.bandwidth, link.latency).beside(own)
    }

    /// Every rank has `data` bytes, of which the sum over all ranks comes to all.
    fn all_reduce(&self, data: f64) -> Transfer {
        let c = self.cluster;
        let level = |n: f64, data: f64, link: Link| {
            let hops = 2.0 * n.log2().ceil().max(0.0);
            Transfer::over(2.0 * (n - 1.0) / n * data, link.bandwidth, hops * link.latency)
        };
        let (within, across) =
            (level(self.node, data, c.intra), level(self.nodes, data / self.node, c.inter));
        let latency = (within.latency + across.latency).max(c.intra.latency);
        let wire = if self.nodes > 1.0 { across.wire } else { within.wire };
        Transfer { occupies: within.occupies + across.occupies, latency, wire }
    }
}

/// What a transfer takes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Transfer {
    /// Seconds in which its bytes leave.
    occupies: f64,
    /// Seconds after that until the last of them is there.
    latency: f64,
    /// Bytes on the link that decides.
    wire: f64,
}

impl Transfer {
    fn over(bytes: f64, bandwidth: f64, latency: f64) -> Self {
        Self { occupies: bytes / bandwidth, latency, wire: bytes }
    }

    /// With another that runs at once: it ends with the later of the two.
    fn beside(self, other: Self) -> Self {
        let occupies = self.occupies.max(other.occupies);
        let all = (self.occupies + self.latency).max(other.occupies + other.latency);
        Self { occupies, latency: all - occupies, wire: self.wire }
    }

    fn time(self) -> Time {
        let occupies = self.occupies.max(LEAST);
        let latency = (self.occupies + self.latency - occupies).max(0.0);
        Time { latency, wire: self.wire, ..Time::of(occupies) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until all is there, and those of them in which the engine is occupied.
    fn seconds(of: Transfer) -> (f64, f64) {
        let time = of.time();
        (time.whole + time.latency, time.whole)
    }

    fn assert_near(found: (f64, f64), expected: (f64, f64)) {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(found.0, expected.0) && near(found.1, expected.1), "{found:?}, not {expected:?}");
    }

    #[test]
    fn exchanges_are_as_slow_as_their_slowest_link() {
        let dgx = fs_dsl::cluster::preset("dgx_h100").unwrap();
        let m = ClusterCosts::new(&dgx, 8);
        assert_near(seconds(m.exchange(450e6)), (7.0 / 8.0 * 1e-3 + 2e-6, 7.0 / 8.0 * 1e-3));
        assert_eq!(m.exchange(450e9).wire, 450e9 * 7.0 / 8.0);
        let many = fs_dsl::cluster::preset("h100x256").unwrap();
        let m = ClusterCosts::new(&many, 256);
        assert_near(seconds(m.exchange(50e6)), (248.0 / 256.0 * 1e-3 + 5e-6, 248.0 / 256.0 * 1e-3));
        // One rank has nobody to send to.
        let one = ClusterCosts::new(&dgx, 1).exchange(3350e6);
        assert_near(seconds(one), (2e-3, 2e-3));
        assert_eq!(one.wire, 0.0);
    }

    /// What is little takes the latency, and the engine for a microsecond of it.
    #[test]
    fn the_engine_is_free_while_data_are_under_way() {
        let many = fs_dsl::cluster::preset("h100x256").unwrap();
        let m = ClusterCosts::new(&many, 256);
        let far = 1e3 * 248.0 / 256.0 / 50e9;
        assert_near(seconds(m.exchange(1e3)), (5e-6 + far, 1e-6));
        assert_near(seconds(m.over(1e3, 8.0, many.intra)), (2e-6 + 7.0 / 8.0 * 1e3 / 450e9, 1e-6));
        let hops = 6.0 * 2e-6 + 10.0 * 5e-6;
        assert_near(seconds(m.all_reduce(0.0)), (hops, 1e-6));
    }

    #[test]
    fn sums_over_ranks() {
        let dgx = fs_dsl::cluster::preset("dgx_h100").unwrap();
        let eight = ClusterCosts::new(&dgx, 8).all_reduce(450e6);
        assert_near(seconds(eight), (1.75e-3 + 6.0 * 2e-6, 1.75e-3));
        let many = fs_dsl::cluster::preset("h100x256").unwrap();
        let all = ClusterCosts::new(&many, 256).all_reduce(8e6);
        let within = 1.75 * 8e6 / 450e9;
        let across = 2.0 * 31.0 / 32.0 * 1e6 / 50e9;
        assert_near(seconds(all), (within + across + 6.0 * 2e-6 + 10.0 * 5e-6, within + across));
    }
}
