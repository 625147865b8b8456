//! Whether two processes read the same data, told by one number.

/// A digest of numbers: not one that withstands intent, but two files that differ by accident have different ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Digest(u64);

impl Digest {
    /// Of nothing yet.
    pub(super) fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// Takes a number in.
    pub(super) fn number(&mut self, n: u64) {
        // The finalizer of splitmix64, a bijection of what was so far with the number.
        let mut z = (self.0 ^ n).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }

    /// Takes bytes in, and how many they are.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.number(u64::from_le_bytes(word));
        }
    }

    /// As 16 hexadecimal digits.
    pub(super) fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_has_another_digest() {
        let of = |pieces: &[&[u8]]| {
            let mut digest = Digest::new();
            for bytes in pieces {
                digest.bytes(bytes);
            }
            digest.text()
        };
        assert_eq!(of(&[b"users and items"]), of(&[b"users and items"]));
        let others =
            [of(&[]), of(&[b""]), of(&[b"ab", b"c"]), of(&[b"a", b"bc"]), of(&[b"abc"]), of(&[b"abc\0"])];
        for (i, one) in others.iter().enumerate() {
            assert!(!others[i + 1..].contains(one), "{others:?}");
        }
    }
}
