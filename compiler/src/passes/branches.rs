//! Pipelines that begin alike, on copies of one module: what they share runs once.
//!
//! Choices of a search differ from some pass on: from where rows are told apart, or only from where transfers get their company.
//! What the passes before one of these leave is kept from the second time on that they are asked for, for copies cost as much as
//! some passes. Modules are verified where pipelines end. Several may run at once: what is kept changes what runs twice, and nothing else.

use std::sync::Arc;

use parking_lot::Mutex;

use super::manager::{self, Log, RunError, Settings, Stage};
use crate::ir::Module;

/// Before which passes a module is kept: what one asks for differs from here on only, often.
const PART: [&str; 2] = ["lower-exchanges", "group-collectives"];
/// How many are: of some strategies and of some choices for tables.
const KEPT: usize = 12;
/// Of how many it is known that they were asked for.
const ASKED: usize = 64;

/// Lowered modules of several pipelines.
#[derive(Debug)]
pub(crate) struct Branches {
    module: Module,
    begun: Mutex<Asked>,
}

/// The last passes that were asked for, the latest last.
#[derive(Debug, Default)]
struct Asked(Vec<Begun>);

/// Some passes, and what they leave if it is kept.
#[derive(Debug)]
struct Begun {
    stages: Vec<Stage>,
    module: Option<Arc<Module>>,
}

impl Branches {
    /// Pipelines to be run on a module.
    pub(crate) fn new(module: Module) -> Self {
        Self { module, begun: Mutex::default() }
    }

    /// The module that these passes leave.
    pub(crate) fn lowered(&self, stages: &[Stage]) -> Result<Module, RunError> {
        let farthest = self.begun.lock().farthest(stages);
        let (mut done, mut module) = match farthest {
            Some((done, module)) => (done, Module::clone(&module)),
            None => (0, self.module.clone()),
        };
        while done < stages.len() {
            let parts = |stage: &Stage| PART.contains(&stage.pass.name);
            let next = stages.iter().skip(done + 1).position(parts).map_or(stages.len(), |n| done + 1 + n);
            let last = next == stages.len();
            if !manager::run_quickly(&mut module, &stages[done..next], last) {
                // With every pass verified, which tells the one at fault.
                module = self.module.clone();
                return manager::run(&mut module, stages, Settings::default(), &mut Log::default())
                    .map(|()| module);
            }
            done = next;
            if !last {
                let asked_before = self.begun.lock().asked(&stages[..done]);
                if asked_before {
                    let kept = Arc::new(module.clone());
                    self.begun.lock().keep(&stages[..done], kept);
                }
            }
        }
        Ok(module)
    }
}

impl Asked {
    /// What the most of these passes leave that is kept, and how many they are.
    fn farthest(&mut self, stages: &[Stage]) -> Option<(usize, Arc<Module>)> {
        let shared = |begun: &&Begun| begun.module.is_some() && stages.starts_with(&begun.stages);
        let farthest = self.0.iter().filter(shared).map(|begun| begun.stages.len()).max()?;
        let begun = self.latest(&stages[..farthest])?;
        Some((farthest, begun.module.clone()?))
    }

    /// What these passes have left, if they were asked for; now they are the latest.
    fn latest(&mut self, stages: &[Stage]) -> Option<&mut Begun> {
        let at = self.0.iter().position(|begun| begun.stages == stages)?;
        self.0[at..].rotate_left(1);
        self.0.last_mut()
    }

    /// Takes down that passes were asked for; whether they were before.
    fn asked(&mut self, stages: &[Stage]) -> bool {
        if self.latest(stages).is_some() {
            return true;
        }
        self.0.push(Begun { stages: stages.to_vec(), module: None });
        self.0.drain(..self.0.len().saturating_sub(ASKED));
        false
    }

    /// Keeps what passes leave that were asked for, unless they no longer are among the last.
    fn keep(&mut self, stages: &[Stage], module: Arc<Module>) {
        let Some(begun) = self.latest(stages) else { return };
        begun.module = Some(module);
        let mut kept = self.0.iter_mut().rev().filter(|begun| begun.module.is_some());
        if let Some(oldest) = kept.nth(KEPT) {
            oldest.module = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::manager::{Log, Settings, parse_pipeline};
    use super::*;

    const MODEL: &str = "model m { table t { rows 50 dim 4 optimizer sgd(lr: 0.1) sharding row_wise } \
        input i: ids(t) { max 5 } input click: label  let h = linear(pool(i), 1, name: \"head\") \
        loss bce_with_logits(h, click, normalize: samples) } train { batch 4 steps 1 } \
        workload w { generate { lengths uniform(1, 5) } }";

    /// Whatever is shared, every pipeline gives what it gives alone.
    #[test]
    fn as_if_each_ran_alone() {
        let program = fs_dsl::check_text("m.fs", MODEL).program.expect("the model checks");
        let module = crate::import::import(&program).expect("the model is imported");
        let front = "canonicalize,plan-sharding{ranks=2},differentiate";
        let texts = [
            format!("{front},lower-exchanges,dce"),
            format!("{front},lower-exchanges,dce,bucket-gradients"),
            format!("{front},lower-exchanges{{lookahead=1}},dce"),
            format!("{front},lower-exchanges{{lookahead=2}},dce"),
            "canonicalize".to_owned(),
            format!("{front},lower-exchanges,dce"),
            format!("{front},lower-exchanges,dce,group-collectives"),
            format!("{front},lower-exchanges,dce,group-collectives{{groups=t:1}}"),
            format!("{front},lower-exchanges,dce,group-collectives,fuse-collectives"),
            format!("{front},lower-exchanges{{lookahead=2}},dce,group-collectives"),
        ];
        let pipelines: Vec<Vec<Stage>> = texts.iter().map(|t| parse_pipeline(t).expect("parses")).collect();
        let branches = Branches::new(module.clone());
        let lowered = |stages: &Vec<Stage>| branches.lowered(stages).expect("passes run").to_string();
        let found: Vec<String> = pipelines.iter().map(lowered).collect();
        for (stages, found) in pipelines.iter().zip(&found) {
            let mut alone = module.clone();
            manager::run(&mut alone, stages, Settings::default(), &mut Log::default()).expect("passes run");
            assert_eq!(&alone.to_string(), found);
        }
        assert_eq!(found.len(), texts.len());
        assert_ne!(found[2], found[3]);
    }

    /// Nor does it matter what others ask for at the same time.
    #[test]
    fn as_if_each_ran_alone_on_several_threads() {
        let program = fs_dsl::check_text("m.fs", MODEL).program.expect("the model checks");
        let module = crate::import::import(&program).expect("the model is imported");
        let front = "canonicalize,plan-sharding{ranks=2},differentiate";
        let ends =
            ["lookahead=1", "lookahead=2", "lookahead=3"].map(|k| format!("lower-exchanges{{{k}}},dce"));
        let more = ["", ",group-collectives", ",group-collectives{groups=t:1}"];
        let texts = ends.iter().flat_map(|end| more.map(|more| format!("{front},{end}{more}")));
        let pipelines: Vec<Vec<Stage>> = texts.map(|t| parse_pipeline(&t).expect("parses")).collect();
        let alone = |stages: &Vec<Stage>| {
            let mut alone = module.clone();
            manager::run(&mut alone, stages, Settings::default(), &mut Log::default()).expect("passes run");
            alone.to_string()
        };
        let alone: Vec<String> = pipelines.iter().map(alone).collect();
        let branches = Branches::new(module.clone());
        // Each asks for all, from another one on.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (branches, pipelines, alone) = (&branches, &pipelines, &alone);
                scope.spawn(move || {
                    for i in 0..5 * pipelines.len() {
                        let at = (i + 2 * thread) % pipelines.len();
                        let found = branches.lowered(&pipelines[at]).expect("passes run").to_string();
                        assert_eq!(found, alone[at]);
                    }
                });
            }
        });
        assert!(branches.begun.lock().0.iter().filter(|begun| begun.module.is_some()).count() > 3);
    }

    /// What is asked for once is not kept, twice it is, and only the latest stay.
    #[test]
    fn what_is_asked_for_again_is_kept() {
        let program = fs_dsl::check_text("m.fs", MODEL).program.expect("the model checks");
        let module = crate::import::import(&program).expect("the model is imported");
        let pipeline = |n: usize, end: &str| {
            let plan = format!("plan-sharding{{ranks=2,memory={}}}", 1_000_000 + n);
            let text = format!("canonicalize,{plan},differentiate,lower-exchanges{end}");
            parse_pipeline(&text).expect("parses")
        };
        let branches = Branches::new(module);
        let kept = |n, end| {
            branches.lowered(&pipeline(n, end)).expect("passes run");
            let begun = &branches.begun.lock().0;
            let of = |begun: &Begun| begun.module.is_some() && begun.stages == pipeline(n, "")[..3];
            let kept = begun.iter().filter(|begun| begun.module.is_some()).count();
            (begun.iter().any(of), kept, begun.len())
        };
        assert_eq!(
            [kept(1, ""), kept(1, ",dce"), kept(1, ",dce")],
            [(false, 0, 1), (true, 1, 1), (true, 1, 1)]
        );
        for n in 2..=2 * ASKED {
            assert_eq!(kept(n, ""), (false, KEPT.min(n - 1), n.min(ASKED)), "{n}");
            assert_eq!(kept(n, ",dce"), (true, KEPT.min(n), n.min(ASKED)), "{n}");
        }
        // Used again it is the latest.
        let first = 2 * ASKED + 1 - KEPT;
        assert_eq!(kept(first, ""), (true, KEPT, ASKED));
        for n in 1000..1000 + KEPT - 1 {
            kept(n, "");
            kept(n, ",dce");
        }
        assert_eq!(kept(first, ""), (true, KEPT, ASKED));
    }

    /// What goes wrong is told as where every pass is verified: the pass, what it did, what makes it happen again.
    #[test]
    fn the_pass_at_fault_is_found() {
        let program = fs_dsl::check_text("m.fs", MODEL).program.expect("the model checks");
        let module = crate::import::import(&program).expect("the model is imported");
        for fault in ["debug-fail", "debug-panic", "debug-invalidate", "debug-invalidate,dce,canonicalize"] {
            let stages = parse_pipeline(&format!("canonicalize,{fault},dce")).expect("parses");
            let mut alone = module.clone();
            let wanted = manager::run(&mut alone, &stages, Settings::default(), &mut Log::default());
            let fine = parse_pipeline("canonicalize").expect("parses");
            let branches = Branches::new(module.clone());
            branches.lowered(&fine).expect("passes run");
            let found = branches.lowered(&stages).expect_err("a pass goes wrong");
            let wanted = wanted.expect_err("a pass goes wrong");
            assert_eq!((found.pass, found.stop.to_string()), (wanted.pass, wanted.stop.to_string()));
            assert!(found.reproducer.contains(fault), "{}", found.reproducer);
            assert!(branches.lowered(&fine).is_ok(), "others go on");
        }
    }
}
