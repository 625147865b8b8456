//! Links between ranks that are slower than they are: `200 Mbit/s, 50 us`.
//!
//! Each rank has one link with two directions, shared by all its engines, like a NIC. A piece of a message first
//! takes its sender's outgoing side, then, a latency later, its receiver's incoming side; both sides serve pieces one
//! after the other, in the order in which they were given. Only times are computed here; whoever waits for them
//! sleeps.

use std::fmt;
use std::str::FromStr;

use parking_lot::Mutex;

/// Speed of every rank's link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes per second and direction.
    pub bandwidth: f64,
    /// Seconds from the start of sending to the start of receiving.
    pub latency: f64,
}

/// A text that describes no link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a link: {reason}; write for example `200 Mbit/s, 50 us`")]
pub struct BadLink {
    text: String,
    reason: String,
}

const BANDWIDTHS: [(&str, f64); 8] = [
    ("kbit/s", 125.0),
    ("Mbit/s", 125e3),
    ("Gbit/s", 125e6),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
];
/// In a second.
const TIMES: [(&str, f64); 4] = [("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("s", 1.0)];

/// A number and the factor of its unit.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<(f64, f64)> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let factor = units.iter().find(|(name, _)| *name == text[digits..].trim())?.1;
    text[..digits].parse::<f64>().ok().map(|n| (n, factor))
}

impl FromStr for Link {
    type Err = BadLink;
    fn from_str(text: &str) -> Result<Self, BadLink> {
        let fail = |reason: &str| BadLink { text: text.chars().take(60).collect(), reason: reason.into() };
        let (bandwidth, latency) = match text.split_once(',') {
            Some((bandwidth, latency)) => (bandwidth, Some(latency)),
            None => (text, None),
        };
        let bandwidth = quantity(bandwidth, &BANDWIDTHS)
            .map(|(n, factor)| n * factor)
            .ok_or_else(|| fail("the bandwidth needs a number and a unit such as Mbit/s or GB/s"))?;
        let latency = match latency {
            None => 0.0,
            Some(text) => quantity(text, &TIMES)
                .map(|(n, per_second)| n / per_second)
                .ok_or_else(|| fail("the latency needs a number and a unit such as us or ms"))?,
        };
        if bandwidth <= 0.0 || !bandwidth.is_finite() {
            return Err(fail("nothing gets through a bandwidth of zero"));
        }
        if latency > 60.0 {
            return Err(fail("a latency of more than a minute"));
        }
        Ok(Self { bandwidth, latency })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Mbit/s, {} us", self.bandwidth / 125e3, self.latency * 1e6)
    }
}

/// The links of all ranks. Times are nanoseconds since the start of a run.
#[derive(Debug)]
pub struct Links {
    link: Link,
    /// When each rank's outgoing and incoming side is free.
    free: Mutex<Vec<[u64; 2]>>,
}

impl Links {
    /// Idle links for `ranks` ranks.
    pub fn new(link: Link, ranks: usize) -> Self {
        Self { link, free: Mutex::new(vec![[0; 2]; ranks]) }
    }

    /// Sends `bytes` from one rank to another from `asked` on: when the sender's side is free again, and when the
    /// receiver has everything.
    pub fn send(&self, from: usize, to: usize, bytes: u64, asked: u64) -> (u64, u64) {
        let time = (bytes as f64 / self.link.bandwidth * 1e9) as u64;
        let latency = (self.link.latency * 1e9) as u64;
        let mut free = self.free.lock();
        let start = free[from][0].max(asked);
        free[from][0] = start + time;
        let arrives = free[to][1].max(start + latency);
        free[to][1] = arrives + time;
        (start + time, arrives + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let link: Link = "200 Mbit/s, 50 us".parse().unwrap();
        assert_eq!((link.bandwidth, link.latency), (25e6, 50e-6));
        assert_eq!("1.5GB/s".parse::<Link>().unwrap(), Link { bandwidth: 1.5e9, latency: 0.0 });
        assert_eq!(link.to_string().parse::<Link>().unwrap(), link);
        for bad in [
            "",
            "fast",
            "0 Mbit/s",
            "200",
            "200 Mbit",
            "1 GB/s, 5",
            "1 GB/s, 90 s",
            "-1 GB/s",
            "1 GB/s, 1 us, 2 us",
        ] {
            assert!(bad.parse::<Link>().is_err(), "{bad}");
        }
        assert!("0 Mbit/s, 1 us".parse::<Link>().unwrap_err().to_string().contains("bandwidth of zero"));
    }

    #[test]
    fn sides_are_shared() {
        // 1 byte a nanosecond, latency 100.
        let links = Links::new(Link { bandwidth: 1e9, latency: 100e-9 }, 3);
        assert_eq!(links.send(0, 1, 1000, 0), (1000, 1100));
        assert_eq!(links.send(0, 2, 500, 0), (1500, 1600), "the sender's side is busy");
        assert_eq!(links.send(2, 1, 300, 0), (300, 1400), "the receiver's side is busy");
        assert_eq!(links.send(1, 0, 10, 5000), (5010, 5110), "directions are apart");
    }
}
