//! Links between ranks that are slower than they are: `200 Mbit/s, 50 us`.
//!
//! What a link is, and how it is written; [`super::paced`] emulates them.

use std::fmt;
use std::str::FromStr;

/// Speed of every rank's link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmulatedLink {
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
    reason: Reason,
}

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Reason {
    #[error("the {0} is negative")]
    Negative(&'static str),
    #[error("the {what} needs a number and a unit such as {unit}")]
    NoNumber { what: &'static str, unit: &'static str },
    #[error("the {what} has no unit; known are {known}")]
    NoUnit { what: &'static str, known: String },
    #[error("the {what} has unit `{unit}`; known are {known}")]
    UnknownUnit { what: &'static str, unit: String, known: String },
    #[error("nothing gets through less than a byte a second")]
    Slow,
    #[error("the bandwidth has no limit; leave the link away")]
    NoLimit,
    #[error("a latency of more than a minute")]
    Late,
}

const BANDWIDTHS: [(&str, f64); 10] = [
    ("bit/s", 0.125),
    ("kbit/s", 125.0),
    ("Mbit/s", 125e3),
    ("Gbit/s", 125e6),
    ("B/s", 1.0),
    ("kB/s", 1e3),
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("MiB/s", 1_048_576.0),
    ("GiB/s", 1_073_741_824.0),
];
/// In a second.
const TIMES: [(&str, f64); 4] = [("ns", 1e9), ("us", 1e6), ("ms", 1e3), ("s", 1.0)];

/// A number and the factor of its unit; otherwise what is wrong with it.
fn quantity(what: &'static str, text: &str, units: &[(&'static str, f64)]) -> Result<(f64, f64), Reason> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(Reason::Negative(what));
    }
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim());
    let Ok(number) = number.parse::<f64>() else {
        return Err(Reason::NoNumber { what, unit: units[1].0 });
    };
    if let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) {
        return Ok((number, *factor));
    }
    let known = units.iter().map(|u| u.0).collect::<Vec<&str>>().join(", ");
    Err(match unit {
        "" => Reason::NoUnit { what, known },
        unit => Reason::UnknownUnit { what, unit: unit.to_owned(), known },
    })
}

impl FromStr for EmulatedLink {
    type Err = BadLink;
    fn from_str(text: &str) -> Result<Self, BadLink> {
        let fail = |reason: Reason| BadLink { text: text.chars().take(60).collect(), reason };
        let (bandwidth, latency) = match text.split_once(',') {
            Some((bandwidth, latency)) => (bandwidth, Some(latency)),
            None => (text, None),
        };
        let (n, factor) = quantity("bandwidth", bandwidth, &BANDWIDTHS).map_err(fail)?;
        let bandwidth = n * factor;
        let latency = match latency {
            None => 0.0,
            Some(text) => {
                let (n, per_second) = quantity("latency", text, &TIMES).map_err(fail)?;
                n / per_second
            }
        };
        if bandwidth < 1.0 {
            return Err(fail(Reason::Slow));
        }
        if !bandwidth.is_finite() {
            return Err(fail(Reason::NoLimit));
        }
        if latency > 60.0 {
            return Err(fail(Reason::Late));
        }
        Ok(Self { bandwidth, latency })
    }
}

impl fmt::Display for EmulatedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Mbit/s, {} us", self.bandwidth / 125e3, self.latency * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let link: EmulatedLink = "200 Mbit/s, 50 us".parse().unwrap();
        assert_eq!((link.bandwidth, link.latency), (25e6, 50e-6));
        assert_eq!(
            "1.5GB/s".parse::<EmulatedLink>().unwrap(),
            EmulatedLink { bandwidth: 1.5e9, latency: 0.0 }
        );
        assert_eq!(link.to_string().parse::<EmulatedLink>().unwrap(), link);
        for (bad, reason) in [
            ("", "needs a number"),
            ("fast", "needs a number"),
            ("200", "the bandwidth has no unit"),
            ("200 Mbit", "the bandwidth has unit `Mbit`"),
            ("200 mbit/s", "the bandwidth has unit `mbit/s`; known are bit/s, kbit/s, Mbit/s"),
            ("1 GB/s, 5", "the latency has no unit; known are ns, us, ms, s"),
            ("1 GB/s, 90 s", "more than a minute"),
            ("-1 GB/s", "the bandwidth is negative"),
            ("1 GB/s, -5 us", "the latency is negative"),
            ("1 GB/s, 1 us, 2 us", "the latency has unit `us, 2 us`"),
            ("0 Mbit/s, 1 us", "less than a byte a second"),
            ("7 bit/s", "less than a byte a second"),
        ] {
            let said = bad.parse::<EmulatedLink>().unwrap_err().to_string();
            assert!(said.contains(reason), "{bad}: {said}");
        }
        assert_eq!("100 bit/s".parse::<EmulatedLink>().unwrap().bandwidth, 12.5);
    }
}
