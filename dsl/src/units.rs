//! Units: what a number measures, in SI.

use crate::ast::Ident;
use crate::codes;
use crate::diagnostic::Diagnostic;

/// What a unit measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Bandwidth,
    /// Seconds.
    Time,
    /// Floating-point operations per second.
    Rate,
    /// Ids of sequences.
    Tokens,
}

impl Dimension {
    /// Words for messages.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Dimension::Bytes => "an amount of memory, such as `80 GiB`",
            Dimension::Bandwidth => "a bandwidth, such as `450 GB/s` or `200 Gbit/s`",
            Dimension::Time => "a time, such as `8 us`",
            Dimension::Rate => "a rate of operations, such as `67 TFLOP/s`",
            Dimension::Tokens => "a number of ids, such as `4096 tokens`",
        }
    }

    /// The noun alone.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Dimension::Bytes => "an amount of memory",
            Dimension::Bandwidth => "a bandwidth",
            Dimension::Time => "a time",
            Dimension::Rate => "a rate of operations",
            Dimension::Tokens => "a number of ids",
        }
    }
}

/// A unit of the language.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Unit {
    /// As written.
    pub name: &'static str,
    /// What it measures.
    pub dimension: Dimension,
    /// How much of the SI unit it is, times `divisor`.
    pub factor: f64,
    /// Small units are divided, so that 100 ns are the double nearest to 1e-7.
    pub divisor: f64,
}

impl Unit {
    /// A number of this unit in SI.
    pub(crate) fn si(&self, value: f64) -> f64 {
        value * self.factor / self.divisor
    }
}

macro_rules! units {
    ($($dimension:ident { $($name:literal = $factor:expr, $divisor:expr);* $(;)? })*) => {
        /// Every unit. Decimal prefixes are powers of 1000, `Ki` to `Ti` powers of 1024, a byte has 8 bits.
        pub(crate) const UNITS: &[Unit] = &[
            $($(Unit { name: $name, dimension: Dimension::$dimension, factor: $factor, divisor: $divisor },)*)*
        ];
    };
}

const KI: f64 = 1024.0;

units! {
    Bytes {
        "B" = 1.0, 1.0; "kB" = 1e3, 1.0; "MB" = 1e6, 1.0; "GB" = 1e9, 1.0; "TB" = 1e12, 1.0;
        "KiB" = KI, 1.0; "MiB" = KI * KI, 1.0; "GiB" = KI * KI * KI, 1.0; "TiB" = KI * KI * KI * KI, 1.0;
    }
    Bandwidth {
        "B/s" = 1.0, 1.0; "kB/s" = 1e3, 1.0; "MB/s" = 1e6, 1.0; "GB/s" = 1e9, 1.0; "TB/s" = 1e12, 1.0;
        "KiB/s" = KI, 1.0; "MiB/s" = KI * KI, 1.0; "GiB/s" = KI * KI * KI, 1.0; "TiB/s" = KI * KI * KI * KI, 1.0;
        "kbit/s" = 1e3, 8.0; "Mbit/s" = 1e6, 8.0; "Gbit/s" = 1e9, 8.0; "Tbit/s" = 1e12, 8.0;
    }
    Time { "s" = 1.0, 1.0; "ms" = 1.0, 1e3; "us" = 1.0, 1e6; "ns" = 1.0, 1e9 }
    Rate {
        "FLOP/s" = 1.0, 1.0; "MFLOP/s" = 1e6, 1.0; "GFLOP/s" = 1e9, 1.0; "TFLOP/s" = 1e12, 1.0;
        "PFLOP/s" = 1e15, 1.0;
    }
    Tokens { "tokens" = 1.0, 1.0 }
}

/// The unit of this name.
pub(crate) fn find(name: &str) -> Option<&'static Unit> {
    UNITS.iter().find(|u| u.name == name)
}

/// The error for a word that is no unit.
pub(crate) fn unknown(word: &Ident) -> Diagnostic {
    let names = || UNITS.iter().map(|u| u.name);
    let d = Diagnostic::error(codes::UNKNOWN_UNIT, word.span, format!("there is no unit `{}`", word.text))
        .label("unknown unit");
    // `GBps` is a unit elsewhere: try the spelling with a slash before the nearest name.
    let slashed = word.text.replace("ps", "/s");
    match names().find(|n| n.eq_ignore_ascii_case(&slashed) || n.eq_ignore_ascii_case(&word.text)) {
        Some(n) => d.help(format!("did you mean `{n}`?")),
        None if word.text.starts_with(|c: char| c.is_ascii_lowercase()) => {
            d.suggest(&word.text, names()).help("if it is a setting, its value follows on the same line")
        }
        None => d.suggest(&word.text, names()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let f = |n| find(n).map(|u| u.si(1.0));
        assert_eq!(f("GiB"), Some(1_073_741_824.0));
        assert_eq!(f("200"), None);
        assert_eq!(f("Mbit/s"), Some(125_000.0));
        assert_eq!(f("TFLOP/s"), Some(1e12));
        assert_eq!(f("us"), Some(1e-6));
    }
}
