//! Symbolic sizes: polynomials in quantities that are known only when a batch arrives.
//!
//! Written as text, for example `256*T0 + 4*U1`, in schedules as in printed IR.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::attribute::Way;

/// A quantity of one rank's share of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symbol {
    /// `W`: ranks.
    Ranks,
    /// `B`: samples.
    Samples,
    /// `T<g>`: tokens of length group g.
    Tokens(u32),
    /// `Q<g>`: sum of squared lengths of group g.
    Squares(u32),
    /// `U<e>`: entries that exchange e sends (unique rows, or occurrences).
    Sent(u32),
    /// `R<e>`: entries that exchange e receives as an owner.
    Received(u32),
    /// `A<e>`: entries that exchange e asks for on behalf of the ranks that work on samples.
    Asked(u32),
    /// `U<e>f<c>`, `U<e>b<c>`: those sent entries of exchange e that are in class c of lookups or gradients.
    SentClass(u32, Way, u32),
    /// `R<e>f<c>`, `R<e>b<c>`: those received entries.
    ReceivedClass(u32, Way, u32),
}

fn letter(way: Way) -> char {
    match way {
        Way::Forward => 'f',
        Way::Backward => 'b',
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ranks => write!(f, "W"),
            Self::Samples => write!(f, "B"),
            Self::Tokens(g) => write!(f, "T{g}"),
            Self::Squares(g) => write!(f, "Q{g}"),
            Self::Sent(e) => write!(f, "U{e}"),
            Self::Received(e) => write!(f, "R{e}"),
            Self::Asked(e) => write!(f, "A{e}"),
            Self::SentClass(e, way, c) => write!(f, "U{e}{}{c}", letter(*way)),
            Self::ReceivedClass(e, way, c) => write!(f, "R{e}{}{c}", letter(*way)),
        }
    }
}

/// A text that is not what it should be: a symbol, polynomial or operand.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}")]
pub struct ParseError {
    /// The text.
    pub text: String,
    /// What was expected.
    pub what: &'static str,
}

impl ParseError {
    pub(crate) fn new(text: &str, what: &'static str) -> Self {
        Self { text: text.chars().take(60).collect(), what }
    }
}

impl FromStr for Symbol {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "size symbol");
        let head = s.chars().next().ok_or_else(fail)?;
        let rest = &s[head.len_utf8()..];
        let index = || decimal(rest).ok_or_else(fail);
        match head {
            'W' if rest.is_empty() => Ok(Self::Ranks),
            'B' if rest.is_empty() => Ok(Self::Samples),
            'T' => Ok(Self::Tokens(index()?)),
            'Q' => Ok(Self::Squares(index()?)),
            'A' => Ok(Self::Asked(index()?)),
            'U' | 'R' => {
                let class = ['f', 'b'].into_iter().find_map(|l| rest.split_once(l).map(|(e, c)| (e, l, c)));
                match class {
                    Some((e, l, c)) => {
                        let way = if l == 'f' { Way::Forward } else { Way::Backward };
                        let (e, c) = (decimal(e).ok_or_else(fail)?, decimal(c).ok_or_else(fail)?);
                        Ok(if head == 'U' {
                            Self::SentClass(e, way, c)
                        } else {
                            Self::ReceivedClass(e, way, c)
                        })
                    }
                    None if head == 'U' => Ok(Self::Sent(index()?)),
                    None => Ok(Self::Received(index()?)),
                }
            }
            _ => Err(fail()),
        }
    }
}

/// A number in its one canonical spelling: digits only, no leading zero.
pub(crate) fn decimal(s: &str) -> Option<u32> {
    if s.is_empty() || (s.len() > 1 && s.starts_with('0')) || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    s.parse().ok()
}

/// A polynomial with numeric coefficients; terms are kept sorted and non-zero, so equal values print alike. Those of schedules are in
/// [`Symbol`]s.
#[derive(Debug, Clone, PartialEq)]
pub struct Poly<S: Ord = Symbol> {
    terms: BTreeMap<Vec<S>, f64>,
}

impl<S: Ord + Copy> Poly<S> {
    /// Zero.
    pub fn zero() -> Self {
        Self { terms: BTreeMap::new() }
    }
    /// A number.
    pub fn constant(c: f64) -> Self {
        Self::term(c, &[])
    }
    /// `c` times the product of `symbols`.
    pub fn term(c: f64, symbols: &[S]) -> Self {
        let mut monomial = symbols.to_vec();
        monomial.sort_unstable();
        let mut terms = BTreeMap::new();
        if c != 0.0 {
            terms.insert(monomial, c);
        }
        Self { terms }
    }
    /// True for zero.
    pub fn is_zero(&self) -> bool {
        self.terms.is_empty()
    }
    /// Its terms: coefficient and sorted symbols.
    pub fn terms(&self) -> impl Iterator<Item = (f64, &[S])> {
        self.terms.iter().map(|(m, c)| (*c, m.as_slice()))
    }
    /// Sum.
    #[must_use]
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut out = self.clone();
        out.add(other);
        out
    }
    fn add(&mut self, other: &Self) {
        for (m, c) in &other.terms {
            let sum = self.terms.get(m).copied().unwrap_or(0.0) + c;
            if sum == 0.0 {
                self.terms.remove(m);
            } else {
                self.terms.insert(m.clone(), sum);
            }
        }
    }
    /// Product with a number.
    #[must_use]
    pub(crate) fn times(&self, factor: f64) -> Self {
        let terms = self.terms.iter().map(|(m, c)| (m.clone(), c * factor)).filter(|(_, c)| *c != 0.0);
        Self { terms: terms.collect() }
    }
    /// Value for given sizes.
    pub fn eval(&self, size: impl Fn(S) -> f64) -> f64 {
        self.terms.iter().map(|(m, c)| c * m.iter().map(|s| size(*s)).product::<f64>()).sum()
    }
}

impl<S: Ord + Copy> Default for Poly<S> {
    fn default() -> Self {
        Self::zero()
    }
}

impl<S: Ord + Copy> std::iter::Sum for Poly<S> {
    fn sum<I: Iterator<Item = Self>>(terms: I) -> Self {
        let mut out = Self::zero();
        for poly in terms {
            for (m, c) in poly.terms {
                match out.terms.entry(m) {
                    Entry::Vacant(new) => {
                        new.insert(c);
                    }
                    Entry::Occupied(mut old) => {
                        *old.get_mut() += c;
                        if *old.get() == 0.0 {
                            old.remove();
                        }
                    }
                }
            }
        }
        out
    }
}

impl<S: Ord + fmt::Display> fmt::Display for Poly<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return write!(f, "0");
        }
        for (i, (m, c)) in self.terms.iter().enumerate() {
            if i > 0 {
                write!(f, " + ")?;
            }
            write!(f, "{c}")?;
            for s in m {
                write!(f, "*{s}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Poly {
    type Err = ParseError;
    fn from_str(s: &str) -> Result<Self, ParseError> {
        let fail = || ParseError::new(s, "size polynomial");
        if s == "0" {
            return Ok(Self::zero());
        }
        let mut out = Self::zero();
        for term in s.split(" + ") {
            let mut factors = term.split('*');
            let c: f64 = factors.next().and_then(|c| c.parse().ok()).ok_or_else(fail)?;
            if !c.is_finite() {
                return Err(fail());
            }
            let symbols = factors.map(str::parse).collect::<Result<Vec<Symbol>, _>>()?;
            out.add(&Self::term(c, &symbols));
        }
        Ok(out)
    }
}

/// Serde and schema as text, through `Display` and `FromStr`.
macro_rules! as_text {
    ($type:ty, $name:literal, $pattern:literal) => {
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
        impl JsonSchema for $type {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": $pattern })
            }
        }
    };
}
pub(crate) use as_text;

as_text!(
    Poly,
    "Size",
    r"^-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?(\*([WB]|[TQA][0-9]+|[UR][0-9]+([fb][0-9]+)?))*( \+ -?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?(\*([WB]|[TQA][0-9]+|[UR][0-9]+([fb][0-9]+)?))*)*$"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn symbol() -> impl Strategy<Value = Symbol> {
        prop_oneof![
            Just(Symbol::Ranks),
            Just(Symbol::Samples),
            (0..9u32).prop_map(Symbol::Tokens),
            (0..9u32).prop_map(Symbol::Squares),
            (0..9u32).prop_map(Symbol::Sent),
            (0..9u32).prop_map(Symbol::Received),
            (0..9u32).prop_map(Symbol::Asked),
        ]
    }

    proptest! {
        #[test]
        fn text_round_trips(terms in prop::collection::vec((-1e9..1e9f64, prop::collection::vec(symbol(), 0..4)), 0..6)) {
            let poly = terms.iter().fold(Poly::zero(), |p, (c, m)| p.plus(&Poly::term(*c, m)));
            prop_assert_eq!(poly.to_string().parse::<Poly>().unwrap(), poly);
        }
        #[test]
        fn parsing_never_panics(text in "[-+*.0-9eWBTQURA é]{0,20}") {
            let _ = text.parse::<Poly>();
            let _ = text.parse::<Symbol>();
        }
    }

    #[test]
    fn evaluates() {
        let p: Poly = "2 + 3*T0*T0 + 4*W".parse().unwrap();
        assert_eq!(p.eval(|s| if s == Symbol::Ranks { 5.0 } else { 10.0 }), 322.0);
        assert!("T01".parse::<Symbol>().is_err());
        assert!(p.plus(&p.times(-1.0)).is_zero());
        assert_eq!([p.clone(), p.clone()].into_iter().sum::<Poly>(), p.times(2.0));
        assert!([p.clone(), p.times(-1.0)].into_iter().sum::<Poly>().is_zero());
    }
}
