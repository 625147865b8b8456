//! Units: what a number measures, in SI.

/// What a unit measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Bandwidth,
    /// Seconds.
    Time,
    /// Floating-point operations per second.
    Rate,
}

impl Dimension {
    /// Words for messages.
    pub fn words(self) -> &'static str {
        match self {
            Dimension::Bytes => "an amount of memory, such as `80 GiB`",
            Dimension::Bandwidth => "a bandwidth, such as `450 GB/s` or `200 Gbit/s`",
            Dimension::Time => "a time, such as `8 us`",
            Dimension::Rate => "a rate of operations, such as `67 TFLOP/s`",
        }
    }

    /// The noun alone.
    pub fn noun(self) -> &'static str {
        match self {
            Dimension::Bytes => "an amount of memory",
            Dimension::Bandwidth => "a bandwidth",
            Dimension::Time => "a time",
            Dimension::Rate => "a rate of operations",
        }
    }
}

/// A unit of the language.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    /// As written.
    pub name: &'static str,
    /// What it measures.
    pub dimension: Dimension,
    /// How much of the SI unit it is.
    pub factor: f64,
}

macro_rules! units {
    ($($dimension:ident { $($name:literal = $factor:expr),* $(,)? })*) => {
        /// Every unit. Decimal prefixes are powers of 1000, `Ki` to `Ti` powers of 1024, a byte has 8 bits.
        pub const UNITS: &[Unit] = &[
            $($(Unit { name: $name, dimension: Dimension::$dimension, factor: $factor },)*)*
        ];
    };
}

const KI: f64 = 1024.0;

units! {
    Bytes {
        "B" = 1.0, "kB" = 1e3, "MB" = 1e6, "GB" = 1e9, "TB" = 1e12,
        "KiB" = KI, "MiB" = KI * KI, "GiB" = KI * KI * KI, "TiB" = KI * KI * KI * KI,
    }
    Bandwidth {
        "B/s" = 1.0, "kB/s" = 1e3, "MB/s" = 1e6, "GB/s" = 1e9, "TB/s" = 1e12,
        "KiB/s" = KI, "MiB/s" = KI * KI, "GiB/s" = KI * KI * KI, "TiB/s" = KI * KI * KI * KI,
        "kbit/s" = 1e3 / 8.0, "Mbit/s" = 1e6 / 8.0, "Gbit/s" = 1e9 / 8.0, "Tbit/s" = 1e12 / 8.0,
    }
    Time { "s" = 1.0, "ms" = 1e-3, "us" = 1e-6, "ns" = 1e-9 }
    Rate { "FLOP/s" = 1.0, "MFLOP/s" = 1e6, "GFLOP/s" = 1e9, "TFLOP/s" = 1e12, "PFLOP/s" = 1e15 }
}

/// The unit of this name.
pub fn find(name: &str) -> Option<&'static Unit> {
    UNITS.iter().find(|u| u.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let f = |n| find(n).map(|u| u.factor);
        assert_eq!(f("GiB"), Some(1_073_741_824.0));
        assert_eq!(f("200"), None);
        assert_eq!(f("Mbit/s"), Some(125_000.0));
        assert_eq!(f("TFLOP/s"), Some(1e12));
        assert_eq!(f("us"), Some(1e-6));
    }
}
