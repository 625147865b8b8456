//! The modulo scheduler as a pass: `@train` in issue order, each operation with its placement.
//!
//! The order is that of the schedule which would be written ([`crate::sched`]); see docs/scheduling.md.

use super::{Options, PassError, Statistics, option};
use crate::emit::{self, Emitted};
use crate::ir::Module;
use crate::sched::{self, policy};

/// Schedules `@train`.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let ranks = option::<u32>(options, "ranks")?;
    let cluster = match options.get("cluster").map(String::as_str) {
        None => emit::local(ranks.unwrap_or(1)),
        Some(name) => fs_dsl::cluster::preset(name)
            .ok_or_else(|| PassError::new(format!("option cluster: there is no preset `{name}`")))?,
    };
    let ranks = ranks.unwrap_or(cluster.nodes * cluster.gpus_per_node);
    if ranks == 0 {
        return Err(PassError::new("option ranks must be at least 1"));
    }
    let name = options.get("strategy").map_or("serial", String::as_str);
    let wrong = || PassError::new(format!("option strategy must be {}, is `{name}`", policy::names()));
    let policy = policy::find(name).ok_or_else(wrong)?;
    if module.func("train").is_none() {
        return Err(PassError::missing("train"));
    }
    let in_flight = option::<u32>(options, "in_flight")?;
    if in_flight == Some(0) {
        return Err(PassError::new("option in_flight must be at least 1"));
    }
    let options = sched::Options::new(policy).in_flight(in_flight);
    let emitted =
        emit::schedule(module, &cluster, ranks, &options).map_err(|e| PassError::new(e.to_string()))?;
    let Emitted::Schedule(schedule) = emitted else { return Ok(()) };
    for op in &schedule.train.ops {
        statistics.count("scheduled");
        if op.stage != 0 {
            statistics.count("staged");
        }
    }
    Ok(())
}
