//! Whether samples are given to ranks, where the model leaves it to the compiler (`balance auto`): where lengths are known
//! to differ and a step is expected to be shorter by so much that it pays.
//!
//! The two steps that are compared are those of `serial`, whatever strategy is asked for: nothing hides there what moving
//! samples costs, and all strategies of a model have one plan, so they train to the same bits.

use fs_dsl::checked::{Balancing, DataSource, Program};
use fs_schedule::{Compared, Schedule, Strategy};

use super::{Aim, CompileOptions};
use crate::emit::{self, Emitted};
use crate::ir::Module;
use crate::passes::manager::{self, Log, Settings};
use crate::sched::{self, policy};

/// How much longer a step must be without: what is gained must be more than what is not known.
const PAYS: f64 = 1.01;

/// What was decided.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Decided {
    /// None: as options and model say.
    balance: Option<bool>,
    compared: Option<Compared>,
}

impl Decided {
    /// The options with what was decided.
    pub(crate) fn options(self, options: &CompileOptions) -> CompileOptions {
        options.clone().balance(self.balance.or(options.balance))
    }

    /// Leaves in a schedule what decided.
    pub(crate) fn note(self, s: &mut Schedule) {
        if let Some(stragglers) = s.prediction.as_mut().and_then(|p| p.stragglers.as_mut()) {
            stragglers.compared = self.compared;
        }
    }
}

/// Decides for an imported module. What cannot be scheduled is as it was without: the error comes of compiling it.
pub(crate) fn decide(program: &Program, module: &Module, aim: &Aim, options: &CompileOptions) -> Decided {
    let left = options.balance.is_none() && program.train.balance == Balancing::Auto;
    // Lengths in files are not read at compile time; a profile has counted some.
    let known = match program.workload.as_ref().map(|w| &w.source) {
        Some(DataSource::Generate { .. }) => true,
        _ => aim.profile.as_ref().is_some_and(|p| !p.lengths.is_empty()),
    };
    if !left || !known || aim.ranks < 2 {
        return Decided::default();
    }
    compare(module, aim, options).unwrap_or_default()
}

fn compare(module: &Module, aim: &Aim, options: &CompileOptions) -> Option<Decided> {
    let serial = |on: bool| -> Option<(f64, Option<fs_schedule::Stragglers>)> {
        let options = options.clone().policy(policy::of(Strategy::Serial)).in_flight(None).balance(on);
        let mut module = module.clone();
        let stages = aim.stages(&module, &options).ok()?;
        manager::run(&mut module, &stages, Settings::default(), &mut Log::default()).ok()?;
        let asked = sched::Options::new(options.policy);
        match emit::schedule(&mut module, aim.target(), aim.ranks, &asked).ok()? {
            Emitted::Schedule(s) => s.prediction.map(|p| (p.step, p.stragglers)),
            Emitted::Beyond(_) => None,
        }
    };
    let (at_home, stragglers) = serial(false)?;
    // Where ranks have as much to do, or no plan helps, there is nothing to compare.
    if stragglers.as_ref().is_none_or(|s| s.at_home < PAYS * s.planned) {
        return None;
    }
    let (planned, _) = serial(true)?;
    Some(Decided { balance: Some(planned * PAYS <= at_home), compared: Some(Compared { at_home, planned }) })
}
