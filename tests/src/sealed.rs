//! Manifests of checkpoints that were changed and say of themselves that they are whole.

use sha2::{Digest as _, Sha256};

/// A text with the digest that a manifest has, if it has a place for one.
pub fn sealed(text: &[u8]) -> Vec<u8> {
    let key = b"\"digest\": \"";
    let Some(at) = text.windows(key.len()).position(|part| part == key) else { return text.to_vec() };
    let at = at + key.len();
    let mut text = text.to_vec();
    let Some(place) = text.get_mut(at..at + 64) else { return text };
    place.fill(b'0');
    let digit = |n: u8| b"0123456789abcdef"[usize::from(n)];
    let digest = Sha256::digest(&text);
    for (place, byte) in text[at..at + 64].chunks_exact_mut(2).zip(digest) {
        place.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    text
}
