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
