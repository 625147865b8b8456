//! What a file's first bytes say of how its text is written.
//!
//! All text that is read is UTF-8. Some editors put a mark of the order of bytes before it, which is not part of the text,
//! and some write UTF-16, which is not read but should be called by its name.

/// A text that is not UTF-8 but UTF-16.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is UTF-16 text, not UTF-8; save it as UTF-8")]
pub struct Utf16;

/// The mark of the order of bytes, in UTF-8.
pub const MARK: &[u8] = b"\xef\xbb\xbf";

/// A text without a mark at its start. UTF-16 says that it is by such a mark, or shows it: every other byte of plain letters
/// is zero, and no text has such a byte.
pub fn unmarked(bytes: &[u8]) -> Result<&[u8], Utf16> {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Err(Utf16),
        [0, letter, ..] | [letter, 0, ..] if *letter != 0 => Err(Utf16),
        _ => Ok(bytes.strip_prefix(MARK).unwrap_or(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_passed_over_and_utf_16_is_told() {
        for (bytes, text) in [
            (&b""[..], &b""[..]),
            (b"m", b"m"),
            (b"\xef\xbb\xbfmodel", b"model"),
            (b"\xef\xbb\xbf", b""),
            (b"\xef\xbb", b"\xef\xbb"),
            (b"\xef\xbb\xbf\xef\xbb\xbfm", b"\xef\xbb\xbfm"),
            ("\u{e9}\0".as_bytes(), "\u{e9}\0".as_bytes()),
            (b"\0\0", b"\0\0"),
        ] {
            assert_eq!(unmarked(bytes), Ok(text));
        }
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let bytes = |text: &str| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
            for text in ["\u{feff}model", "model", "\u{feff}\u{e9}"] {
                assert_eq!(unmarked(&bytes(text)), Err(Utf16), "{text}");
            }
        }
    }
}
