//! What a search works out for one schedule and asks for again for the next: schedules of one program for one target differ in
//! how tables travel, and hardly in how samples load ranks.

use std::cell::RefCell;
use std::rc::Rc;

use super::stragglers::{Drawn, Question};

/// Answers, of one target: another profile or other counts have others.
#[derive(Debug, Default)]
pub(crate) struct Memo {
    drawn: RefCell<Vec<(Question, Option<Rc<Drawn>>)>>,
}

impl Memo {
    /// What was drawn for a question, or is now.
    pub(super) fn drawn(
        &self,
        question: Question,
        draw: impl FnOnce(&Question) -> Option<Drawn>,
    ) -> Option<Rc<Drawn>> {
        if let Some((_, known)) = self.drawn.borrow().iter().find(|(known, _)| *known == question) {
            return known.clone();
        }
        let drawn = draw(&question).map(Rc::new);
        self.drawn.borrow_mut().push((question, drawn.clone()));
        drawn
    }
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Schedule, Strategy};

    use super::*;
    use crate::sched::evidence::Evidence;
    use crate::sched::stragglers::draw;
    use crate::{CompileOptions, compile_with};

    /// What may differ between two models.
    #[derive(Clone, Copy)]
    struct Model {
        max: u32,
        lengths: &'static str,
        wide: u32,
        inputs: &'static str,
        settings: &'static str,
        ranks: u32,
        strategy: Strategy,
    }

    fn compiled(m: Model) -> Schedule {
        let Model { max, lengths, wide, inputs, settings, ranks, strategy } = m;
        let text = format!(
            "model tokens {{
               table a {{ rows 300  dim 16  optimizer sgd(lr: 0.05)  sharding row_wise }}
               input x: ids(a) {{ max {max} }}
               {inputs}
               input click: label like x
               let h = lookup(x)
               loss bce_with_logits(linear(silu(linear(h, {wide})), 1), click, normalize: tokens)
             }}
             train {{ steps 6  optimizer sgd(lr: 0.1)  {settings} }}
             workload w {{ generate {{ lengths {lengths}  ids uniform }} }}"
        );
        let program = fs_dsl::check_text("model.fs", &text).program.expect("the model checks");
        compile_with(&program, &CompileOptions::new(strategy, ranks)).expect("it compiles").schedule
    }

    /// Answers to models that differ in one thing are theirs, whichever was asked for before.
    #[test]
    fn what_is_remembered_is_what_is_drawn() {
        let all_settings = [
            "batch 96  microbatches 2  balance on",
            "batch 48  microbatches 2  balance on",
            "batch 96  microbatches 4  balance on",
            "batch 96  microbatches 2  balance off",
            "batch 96  microbatches 2  balance on(equal_counts: on)",
            "batch 96  microbatches 2  balance on(limit: 700 tokens)",
            "batch 96  microbatches 2  balance on(limit: 600 tokens)",
            "batch 96  microbatches 2  balance on(limit: 6000 B)",
            "batch 96  microbatches 2  balance cost(c0: 1, c1: 0, c2: 0)",
            "batch 96  microbatches 2  balance cost(c0: 0, c1: 1, c2: 5)",
        ];
        let first = Model {
            max: 40,
            lengths: "lognormal(mean: 15, sigma: 1)",
            wide: 32,
            inputs: "",
            settings: all_settings[0],
            ranks: 4,
            strategy: Strategy::Pec,
        };
        let mut models: Vec<Model> =
            all_settings.iter().map(|settings| Model { settings, ..first }).collect();
        models.extend([
            Model { max: 60, ..first },
            Model { lengths: "lognormal(mean: 12, sigma: 1)", ..first },
            Model { lengths: "uniform(1, 30)", ..first },
            Model { lengths: "fixed(20)", ..first },
            Model { ranks: 3, ..first },
            // Of as many samples of a rank.
            Model { ranks: 8, settings: "batch 192  microbatches 2  balance on", ..first },
            Model { strategy: Strategy::Serial, ..first },
            // Of the same costs of a token, and others.
            Model { wide: 64, ..first },
            Model { inputs: "input more: dense(9)", ..first },
            Model { inputs: "input more: dense(9)", settings: all_settings[7], ..first },
        ]);
        let schedules: Vec<Schedule> = models.into_iter().map(compiled).collect();
        let alone = |s: &Schedule| draw(s, Evidence::default());
        let expected: Vec<_> = schedules.iter().map(alone).collect();
        for backwards in [false, true] {
            let memo = Memo::default();
            let evidence = Evidence { memo: Some(&memo), ..Evidence::default() };
            let of = |n: usize| {
                let n = if backwards { schedules.len() - 1 - n } else { n };
                assert_eq!(draw(&schedules[n], evidence), expected[n], "model {n}");
            };
            (0..schedules.len()).for_each(of);
            let asked = memo.drawn.borrow().len();
            (0..schedules.len()).for_each(of);
            assert_eq!(memo.drawn.borrow().len(), asked, "what was answered is asked for once");
        }
        let mut different: Vec<_> = expected.iter().flatten().collect();
        different.dedup();
        assert!(different.len() >= 12, "models that differ have other answers: {}", different.len());
    }
}
