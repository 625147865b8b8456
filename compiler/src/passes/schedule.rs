//! The modulo scheduler as a pass: `@train` in issue order, each operation with its placement.
//!
//! The order is that of the schedule which would be written ([`crate::sched`]); see docs/scheduling.md.

use super::{OptionError, Options, PassError, Statistics, option};
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
        Some(name) => {
            fs_dsl::cluster::preset(name).ok_or_else(|| OptionError::NoPreset { name: name.into() })?
        }
    };
    let ranks = ranks.unwrap_or(cluster.nodes * cluster.gpus_per_node);
    if ranks == 0 {
        return Err(OptionError::Zero { option: "ranks" }.into());
    }
    let name = options.get("strategy").map_or("serial", String::as_str);
    let wrong = || OptionError::NoStrategy { known: policy::names(), name: name.into() };
    let policy = policy::find(name).ok_or_else(wrong)?;
    if module.func("train").is_none() {
        return Err(PassError::missing("train"));
    }
    let in_flight = option::<u32>(options, "in_flight")?;
    if in_flight == Some(0) {
        return Err(OptionError::Zero { option: "in_flight" }.into());
    }
    let options = sched::Options::new(policy).in_flight(in_flight);
    let emitted = emit::schedule(module, &cluster, ranks, &options).map_err(Box::new)?;
    let Emitted::Schedule(schedule, _) = emitted else { return Ok(()) };
    for op in &schedule.train.ops {
        statistics.count("scheduled");
        if op.stage != 0 {
            statistics.count("staged");
        }
    }
    Ok(())
}
