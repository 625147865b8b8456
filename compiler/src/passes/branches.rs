//! Pipelines that begin alike, on copies of one module: what they share runs once.
//!
//! Where pipelines part, the module is copied and kept until the last of them has branched off. Pipelines are run in the
//! order given, so those that share most should stand side by side. Modules are verified where pipelines part and end.

use super::manager::{self, RunError, Stage, Stop};
use crate::ir::Module;

/// Lowered modules of several pipelines, one after the other.
#[derive(Debug)]
pub(crate) struct Branches {
    pipelines: Vec<Vec<Stage>>,
    next: usize,
    /// Modules at the places where pipelines part: each is what the first passes of one of them left.
    kept: Vec<Kept>,
}

/// What the first `passes` passes of a pipeline left.
#[derive(Debug)]
struct Kept {
    pipeline: usize,
    passes: usize,
    module: Module,
}

fn shared(a: &[Stage], b: &[Stage]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Branches {
    /// Pipelines to be run on a module.
    pub(crate) fn new(module: Module, pipelines: Vec<Vec<Stage>>) -> Self {
        Self { pipelines, next: 0, kept: vec![Kept { pipeline: 0, passes: 0, module }] }
    }

    /// Keeps the modules that this pipeline passes through; the last is the farthest.
    fn start(&mut self, pipeline: usize) -> Option<&Kept> {
        let stages = &self.pipelines[pipeline];
        let through = |k: &Kept| shared(&self.pipelines[k.pipeline], stages) >= k.passes;
        while !through(self.kept.last()?) {
            self.kept.pop();
        }
        self.kept.last()
    }

    fn run(&mut self, pipeline: usize) -> Result<Module, RunError> {
        let gone = || RunError { pass: "branches", stop: Box::new(Stop::Gone), reproducer: String::new() };
        let from = self.start(pipeline).ok_or_else(gone)?;
        let (mut done, mut module) = (from.passes, from.module.clone());
        let stages = self.pipelines[pipeline].clone();
        let later = self.pipelines[pipeline + 1..].iter();
        let mut parts: Vec<usize> = later.map(|l| shared(l, &stages)).filter(|n| *n > done).collect();
        parts.sort_unstable();
        parts.dedup();
        for passes in parts.into_iter().chain([stages.len()]) {
            // What is kept last is the module as it is here.
            let from = &self.kept.last().ok_or_else(gone)?.module;
            if done < passes {
                manager::run_verified_once(from, &mut module, &stages[done..passes])?;
            }
            done = passes;
            let parts_here =
                self.pipelines[pipeline + 1..].iter().any(|l| shared(l, &self.pipelines[pipeline]) == passes);
            if parts_here && self.kept.last().is_none_or(|k| k.passes < passes) {
                self.kept.push(Kept { pipeline, passes, module: module.clone() });
            }
        }
        Ok(module)
    }
}

impl Iterator for Branches {
    type Item = Result<Module, RunError>;

    fn next(&mut self) -> Option<Self::Item> {
        let pipeline = self.next;
        if pipeline == self.pipelines.len() {
            return None;
        }
        self.next += 1;
        Some(self.run(pipeline))
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
        ];
        let pipelines: Vec<Vec<Stage>> = texts.iter().map(|t| parse_pipeline(t).expect("parses")).collect();
        let branches = Branches::new(module.clone(), pipelines.clone());
        let found: Vec<String> = branches.map(|m| m.expect("passes run").to_string()).collect();
        for (stages, found) in pipelines.iter().zip(&found) {
            let mut alone = module.clone();
            manager::run(&mut alone, stages, Settings::default(), &mut Log::default()).expect("passes run");
            assert_eq!(&alone.to_string(), found);
        }
        assert_eq!(found.len(), texts.len());
        assert_ne!(found[2], found[3]);
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
            let mut branches = Branches::new(module.clone(), vec![fine.clone(), stages, fine]);
            branches.next().expect("a pipeline").expect("passes run");
            let found = branches.next().expect("a pipeline").expect_err("a pass goes wrong");
            let wanted = wanted.expect_err("a pass goes wrong");
            assert_eq!((found.pass, found.stop.to_string()), (wanted.pass, wanted.stop.to_string()));
            assert!(found.reproducer.contains(fault), "{}", found.reproducer);
            assert!(branches.next().expect("a pipeline").is_ok(), "others go on");
        }
    }
}
