//! Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011).
//!
//! A number is a function of a key (seed, stream, step) and of what it is for (a sample, a row, a column, a
//! draw), never of how many were drawn before or on which rank. Everything here is plain integer and unfused
//! float arithmetic, so the same numbers come out on every machine.

/// Which sequence of random numbers: the run's seed, the use (one stream for each dropout, table or sampler),
/// and the training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomKey {
    /// The run's seed.
    pub seed: u64,
    /// The use.
    pub stream: u32,
    /// The training step.
    pub step: u64,
}

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The Philox 4x32-10 bijection of one counter.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(counter.map(|c| [c]), key).map(|c| c[0])
}

/// [`philox`] for `N` counters, word by word; inlined, so that a kernel compiles it for its vectors.
#[inline(always)]
pub fn philox_lanes<const N: usize>(counter: [[u32; N]; 4], key: [u32; 2]) -> [[u32; N]; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..10 {
        for i in 0..N {
            let p0 = u64::from(MULTIPLIER[0]) * u64::from(c0[i]);
            let p1 = u64::from(MULTIPLIER[1]) * u64::from(c2[i]);
            c0[i] = (p1 >> 32) as u32 ^ c1[i] ^ k0;
            c2[i] = (p0 >> 32) as u32 ^ c3[i] ^ k1;
            c1[i] = p1 as u32;
            c3[i] = p0 as u32;
        }
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

impl RandomKey {
    /// The Philox key of this stream and step: 160 bits of names mixed down to the 64 that Philox takes.
    pub fn mixed(self) -> [u32; 2] {
        let counter = [self.step as u32, (self.step >> 32) as u32, self.stream, 0];
        let [a, b, ..] = philox(counter, [self.seed as u32, (self.seed >> 32) as u32]);
        [a, b]
    }

    /// The four random words numbered (`row`, `block`).
    fn words(self, row: u64, block: u64) -> [u32; 4] {
        let counter = [row as u32, (row >> 32) as u32, block as u32, (block >> 32) as u32];
        philox(counter, self.mixed())
    }

    fn word64(self, counter: u64) -> u64 {
        let [a, b, ..] = self.words(counter, 0);
        u64::from(a) | u64::from(b) << 32
    }
}

/// A number in [0, 1) with 53 random bits.
pub fn uniform_f64(key: RandomKey, counter: u64) -> f64 {
    (key.word64(counter) >> 11) as f64 / (1u64 << 53) as f64
}

/// A standard normal number (Box-Muller).
pub fn normal(key: RandomKey, counter: u64) -> f64 {
    let [a, b, c, d] = key.words(counter, 0);
    let unit = |lo: u32, hi: u32| (u64::from(lo) | u64::from(hi) << 32) >> 11;
    let radius = (-2.0 * ((unit(a, b) as f64 + 0.5) / (1u64 << 53) as f64).ln()).sqrt();
    radius * (std::f64::consts::TAU * (unit(c, d) as f64 / (1u64 << 53) as f64)).cos()
}

/// A number in 0..n, by multiplying 64 random bits by n (Lemire); the bias is below n / 2^64.
pub fn uniform_index(key: RandomKey, counter: u64, n: u64) -> u64 {
    below(key.word64(counter), n)
}

/// 64 random bits as a number in 0..n; see [`uniform_index`].
#[inline(always)]
pub fn below(word: u64, n: u64) -> u64 {
    ((u128::from(word) * u128::from(n)) >> 64) as u64
}
