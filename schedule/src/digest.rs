//! Digests of texts: what a schedule was made from, and whether it was changed.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// `sha256:` and the 64 hexadecimal digits of a text's digest.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::from("sha256:"), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}
