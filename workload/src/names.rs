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
