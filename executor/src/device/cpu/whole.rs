//! What a dense parameter was before updates that a checkpoint does not see: all of it is put aside.

use fs_kernels::Real;
use parking_lot::{Mutex, MutexGuard};

/// A dense parameter as it was before the updates of a step.
#[derive(Debug, Default)]
pub(crate) struct Whole<T>(Mutex<Option<Was<T>>>);

/// From which step on an update puts aside what there was, and that: values, first and second state.
#[derive(Debug)]
pub(crate) struct Was<T> {
    from: u64,
    numbers: Option<[Vec<T>; 3]>,
}

impl<T: Real> Was<T> {
    /// Puts aside what an update of a step is about to change, if it is the first that is not to be seen.
    pub(crate) fn before(&mut self, step: u64, values: &[T], [first, second]: &[Vec<T>; 2]) {
        if step >= self.from && self.numbers.is_none() {
            self.numbers = Some([values.to_vec(), first.clone(), second.clone()]);
        }
    }
}

impl<T: Real> Whole<T> {
    /// From the updates of this step on it is put aside.
    pub(crate) fn keep(&self, from: u64) {
        *self.0.lock() = Some(Was { from, numbers: None });
    }

    /// It is put aside no more.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }

    /// For an update, before it locks anything of the parameter: while what is returned lives nobody takes it.
    pub(crate) fn hold(&self) -> MutexGuard<'_, Option<Was<T>>> {
        self.0.lock()
    }

    /// Hands it over as it was, once: `own` has what it is now.
    pub(crate) fn take(&self, own: impl FnOnce() -> [Vec<T>; 3]) -> [Vec<T>; 3] {
        let mut held = self.0.lock();
        held.take().and_then(|was| was.numbers).unwrap_or_else(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_as_it_was() {
        let whole = Whole::<f64>::default();
        whole.keep(5);
        let update = |step: u64, value: f64| {
            if let Some(was) = &mut *whole.hold() {
                was.before(step, &[value], &[vec![value + 1.0], vec![]]);
            }
        };
        update(4, 1.0);
        update(5, 2.0);
        update(6, 3.0);
        let was = whole.0.lock().take().and_then(|was| was.numbers);
        assert_eq!(was, Some([vec![2.0], vec![3.0], vec![]]));
        update(7, 4.0);
        whole.keep(9);
        whole.forget();
        assert!(whole.0.lock().is_none());
    }
}
