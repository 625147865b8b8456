//! Permutations drawn from a seed: of users in an epoch, and of rows without a table of them.

use crate::random::philox;

/// The random stream of epoch orders; far from those that models number from 0.
const ORDER_STREAM: u32 = 0xF500_0001;

/// The order of `n` things in an epoch: sorted by random keys of (seed, epoch, thing).
pub fn order(n: u32, seed: u64, epoch: u64, out: &mut Vec<u32>) {
    let key = [seed as u32, (seed >> 32) as u32];
    let random = |i: u32| {
        let [a, b, ..] = philox([i, epoch as u32, (epoch >> 32) as u32, ORDER_STREAM], key);
        u64::from(a) | u64::from(b) << 32
    };
    let mut keyed: Vec<(u64, u32)> = (0..n).map(|i| (random(i), i)).collect();
    keyed.sort_unstable();
    out.clear();
    out.extend(keyed.into_iter().map(|(_, i)| i));
}

/// A bijection of `0..n` in constant memory: a Feistel network over the next power of two, walked until it lands
/// inside. Its inverse walks the rounds backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    n: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; 6],
}

impl Permutation {
    /// The permutation of `0..n` that belongs to `seed` and `stream`.
    pub fn new(n: u64, seed: u64, stream: u32) -> Self {
        let bits = (64 - n.saturating_sub(1).leading_zeros()).clamp(2, 62);
        let low_bits = bits / 2;
        let keys = std::array::from_fn(|round| {
            let [a, b, ..] = philox([round as u32, 0, 0, stream], [seed as u32, (seed >> 32) as u32]);
            u64::from(a) | u64::from(b) << 32
        });
        Self { n, low_bits, low_mask: (1 << low_bits) - 1, high_mask: (1 << (bits - low_bits)) - 1, keys }
    }

    /// What it is made of: n, the bits of the low half, the masks of both halves, and the keys of six rounds.
    pub fn words(&self) -> [u64; 10] {
        let [a, b, c, d, e, f] = self.keys;
        [self.n, u64::from(self.low_bits), self.low_mask, self.high_mask, a, b, c, d, e, f]
    }

    /// Where `i` goes; `i` must be below `n`.
    pub fn apply(&self, i: u64) -> u64 {
        let mut x = i;
        loop {
            x = self.rounds(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// What goes to `j`, which must be below `n`.
    pub fn invert(&self, j: u64) -> u64 {
        let mut x = j;
        loop {
            x = self.rounds_back(x);
            if x < self.n {
                return x;
            }
        }
    }

    fn rounds(&self, x: u64) -> u64 {
        let (mut low, mut high) = (x & self.low_mask, x >> self.low_bits);
        for pair in self.keys.chunks_exact(2) {
            low ^= mix(high ^ pair[0]) & self.low_mask;
            high ^= mix(low ^ pair[1]) & self.high_mask;
        }
        high << self.low_bits | low
    }

    fn rounds_back(&self, x: u64) -> u64 {
        let (mut low, mut high) = (x & self.low_mask, x >> self.low_bits);
        for pair in self.keys.chunks_exact(2).rev() {
            high ^= mix(low ^ pair[1]) & self.high_mask;
            low ^= mix(high ^ pair[0]) & self.low_mask;
        }
        high << self.low_bits | low
    }
}

/// The finaliser of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn permutes(n in 1..3000u64, seed: u64, stream: u32) {
            let permutation = Permutation::new(n, seed, stream);
            let mut hit = vec![false; n as usize];
            for i in 0..n {
                let j = permutation.apply(i) as usize;
                prop_assert!(!hit[j]);
                prop_assert_eq!(permutation.invert(j as u64), i);
                hit[j] = true;
            }
        }

        #[test]
        fn orders_are_permutations_that_differ(n in 20..200u32, seed: u64, epoch in 0..1000u64) {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            order(n, seed, epoch, &mut a);
            order(n, seed, epoch + 1, &mut b);
            prop_assert_ne!(&a, &b);
            a.sort_unstable();
            prop_assert_eq!(a, (0..n).collect::<Vec<_>>());
        }
    }
}
