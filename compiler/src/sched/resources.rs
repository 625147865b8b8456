//! What operations occupy: the rows of the reservation table.
//!
//! A rank has engines, each of which does one thing at a time; an operation occupies one of them for as long as it
//! takes. [Modulo scheduling](super::modulo) keeps a table of each engine's time modulo the initiation interval,
//! [simulation](super::simulate) what each does at a moment; both number engines as [`Engine`] does.

use std::fmt::Debug;

use fs_dsl::checked::Cluster;
use fs_schedule::action::Runs;
use fs_schedule::{Engine, Op, Schedule};

use super::relays;

/// What operations occupy.
pub(crate) trait Resources: Debug {
    /// The engine that an operation of a schedule occupies.
    fn engine(&self, s: &Schedule, op: &Op) -> Engine;
}

/// A GPU with its host and its links: collectives take the network if ranks are on several nodes and they are not within
/// these, else copy engines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClusterEngines {
    link: Engine,
}

impl ClusterEngines {
    /// Of `ranks` ranks of a cluster; nodes are filled one after the other.
    pub(crate) fn new(cluster: &Cluster, ranks: u32) -> Self {
        let several = ranks > cluster.gpus_per_node.max(1);
        Self { link: if several { Engine::NicSend } else { Engine::CopyOut } }
    }
}

impl Resources for ClusterEngines {
    fn engine(&self, s: &Schedule, op: &Op) -> Engine {
        match op.action.facts().runs {
            Runs::Host => Engine::Host,
            Runs::Compute => Engine::Compute,
            Runs::Link if relays::within(s, op) => Engine::CopyOut,
            Runs::Link => self.link,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_joins_nodes() {
        let link = |preset: &str, ranks| {
            ClusterEngines::new(&fs_dsl::cluster::preset(preset).expect("a preset"), ranks).link
        };
        assert_eq!((link("dgx_h100", 8), link("dgx_h100", 1)), (Engine::CopyOut, Engine::CopyOut));
        assert_eq!((link("h100x256", 256), link("h100x256", 8)), (Engine::NicSend, Engine::CopyOut));
    }
}
