//! Which characters no name and no other text of ours may hold, because they reach terminals and files as they are.

/// Whether a character controls a terminal, changes the direction of what follows, breaks lines elsewhere than at their
/// ends, or is not seen at all. Joiners within words and selectors of a letter's form are letters' own.
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}' | '\u{200e}'
        )
        || matches!(c, '\u{200f}' | '\u{2800}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}')
        || matches!(c, '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// What such a character is, in a few words.
pub fn kind(c: char) -> &'static str {
    match c {
        '\u{feff}' => "a byte order mark, which stands at the start of a file only",
        '\u{e0000}'..='\u{e0fff}' => "a tag, which some flags are made of and which is not seen",
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            "which changes the direction of a text"
        }
        '\u{2028}' | '\u{2029}' | '\u{85}' => "an end of a line that only some programs know",
        c if c.is_control() => "a control character",
        _ => "which is not seen",
    }
}
