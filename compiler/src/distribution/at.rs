//! Where samples go to other ranks, if they do.

use std::fmt;
use std::str::FromStr;

/// Where samples go to other ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum At {
    /// Before their ids are looked at.
    #[default]
    Ids,
    /// Behind the output dist: what is made of their rows travels.
    Rows,
}

impl At {
    /// All places that are built.
    pub const ALL: [Self; 2] = [Self::Ids, Self::Rows];
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ids => "ids",
            Self::Rows => "rows",
        })
    }
}

/// No place where samples can go to other ranks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AtError {
    /// Designed (docs/balance.md), not built.
    #[error("samples cannot move inside the output dist: `folded` is not built; use `ids` or `rows`")]
    Folded,
    /// Nothing of the kind.
    #[error("samples move at `ids` or `rows`, not at `{0}`")]
    Unknown(String),
}

impl FromStr for At {
    type Err = AtError;
    fn from_str(text: &str) -> Result<Self, AtError> {
        match text {
            "folded" => Err(AtError::Folded),
            _ => Self::ALL
                .into_iter()
                .find(|at| at.to_string() == text)
                .ok_or_else(|| AtError::Unknown(text.into())),
        }
    }
}
