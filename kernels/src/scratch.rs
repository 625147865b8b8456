//! Scratch memory that grows once and is reused, so kernels allocate nothing in steady state.

/// A cache line: parts of a scratch start on one, because vector loads that straddle two cost double.
const ALIGN: usize = 64;

/// A workspace for kernels. One per rank is enough; contents never carry over from one call to the next.
#[derive(Debug, Default)]
pub struct Scratch<T> {
    buffer: Vec<T>,
}

impl<T: Copy + Default> Scratch<T> {
    /// An empty workspace.
    pub fn new() -> Self {
        Scratch { buffer: Vec::new() }
    }

    pub(crate) const fn empty() -> Self {
        Scratch { buffer: Vec::new() }
    }

    /// `N` slices of the given lengths, each aligned to a cache line, with unspecified contents.
    pub(crate) fn parts<const N: usize>(&mut self, lengths: [usize; N]) -> [&mut [T]; N] {
        let lane = (ALIGN / size_of::<T>().max(1)).max(1);
        let need: usize = lengths.iter().map(|n| n.next_multiple_of(lane)).sum::<usize>() + lane;
        if self.buffer.len() < need {
            self.buffer.resize(need.next_power_of_two(), T::default());
        }
        let start = self.buffer.as_ptr().align_offset(ALIGN).min(lane);
        let mut rest = &mut self.buffer[start..];
        lengths.map(|n| {
            let (part, tail) = std::mem::take(&mut rest).split_at_mut(n.next_multiple_of(lane));
            rest = tail;
            &mut part[..n]
        })
    }
}
