//! What an exchange of a step takes, by its size: all send so many bytes to all, and wait for what the others send.

use std::time::Instant;

use serde::Serialize;

use super::NetError;
use super::post::{Post, Tag};
use crate::fit::median;

/// Exchanges of a size that are not counted, and the fewest that are.
const ROUNDS: (u64, u64) = (3, 11);
/// The most that are counted.
const MOST: u64 = 1001;

/// An exchange in which everybody sends so much to everybody.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Exchange {
    /// Bytes from each process to each other one.
    pub bytes: u64,
    /// Seconds until a process has all that others send: the median of many, of the slowest process.
    pub seconds: f64,
    /// Bytes per second that leave each process meanwhile.
    pub bandwidth: f64,
}

/// Measures exchanges of these sizes, each for about `each` seconds. What was found is known at the first process.
pub(super) fn exchanges(post: &Post, sizes: &[u64], each: f64) -> Result<Vec<Exchange>, NetError> {
    let others = (post.processes() - 1) as f64;
    sizes
        .iter()
        .map(|bytes| {
            post.meet(0)?;
            let mut times = rounds(post, *bytes, ROUNDS.0)?;
            // The first process says how many, so that all do as many.
            let rounds_of = (each / median(std::mem::take(&mut times)).max(1e-9)) as u64;
            let count = post.meet(rounds_of.clamp(ROUNDS.1, MOST))?;
            let own = median(rounds(post, *bytes, count)?);
            let all = post.gather(&own.to_le_bytes())?;
            let all = all.iter().filter_map(|b| Some(f64::from_le_bytes(b.as_slice().try_into().ok()?)));
            let seconds = all.fold(own, f64::max);
            Ok(Exchange { bytes: *bytes, seconds, bandwidth: others * *bytes as f64 / seconds.max(1e-9) })
        })
        .collect()
}

/// Seconds of each of so many exchanges.
fn rounds(post: &Post, bytes: u64, count: u64) -> Result<Vec<f64>, NetError> {
    let (own, n) = (post.process(), post.processes());
    (0..count)
        .map(|round| {
            let start = Instant::now();
            for step in 1..n {
                post.send((own + step) % n, Tag::Frame, round, bytes as usize);
            }
            for other in (0..n).filter(|p| *p != own) {
                post.take(other, Tag::Frame)?;
            }
            Ok(start.elapsed().as_secs_f64())
        })
        .collect()
}
