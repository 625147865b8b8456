//! Answers to questions, each worked out once, by whichever thread asks first; others that ask meanwhile wait for it. What is kept must
//! follow from the question alone, so that it does not matter who asked; and must not be worked out on several threads, or those would
//! take up questions for which others wait.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

#[derive(Debug)]
pub(super) struct Answers<Q, A>(Mutex<BTreeMap<Q, Arc<OnceLock<A>>>>);

impl<Q, A> Default for Answers<Q, A> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<Q: Ord, A: Clone> Answers<Q, A> {
    /// What is known, or is worked out now.
    pub(super) fn of(&self, question: Q, answer: impl FnOnce() -> A) -> A {
        let known = Arc::clone(self.0.lock().entry(question).or_default());
        known.get_or_init(answer).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn each_question_is_answered_once_whoever_asks() {
        let (answers, worked) = (Answers::default(), AtomicUsize::new(0));
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for question in (0..200).chain((0..200).rev()) {
                        let work = || {
                            worked.fetch_add(1, Ordering::Relaxed);
                            question * question
                        };
                        assert_eq!(answers.of(question, work), question * question);
                    }
                });
            }
        });
        assert_eq!(worked.into_inner(), 200);
    }
}
