//! Damaging texts: what a fuzzer does to valid programs, IR and schedules.
//!
//! A text is cut into tokens (words, numbers, quoted strings, single other characters), so that most damaged texts get
//! past the lexer and reach the checks behind it.

use std::ops::Range;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// One way to damage a text.
#[derive(Debug, Clone)]
pub enum Mutation {
    /// Removes up to so many tokens.
    Delete(Index, usize),
    /// Repeats up to so many tokens, so many times.
    Repeat(Index, usize, usize),
    /// Exchanges two tokens.
    Swap(Index, Index),
    /// Replaces a number by a strange one.
    Number(Index, &'static str),
    /// Replaces a token by one from elsewhere in the text.
    Copy(Index, Index),
    /// Puts a strange token between two.
    Insert(Index, &'static str),
    /// Puts a token into many brackets.
    Nest(Index, &'static str, &'static str, usize),
    /// Ends the text.
    Truncate(Index),
    /// Replaces a byte, which may leave no UTF-8.
    Byte(Index, u8),
}

/// Numbers that are easy to get wrong.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "2",
    "3",
    "7",
    "-1",
    "255",
    "256",
    "65535",
    "65536",
    "1048576",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "1e308",
    "1e309",
    "-1e-309",
    "1e-400",
    "0.1",
    "1.5",
    "1e99999999999",
    "00",
    "0x10",
    "1_000",
    "NaN",
    "inf",
    "-0",
    "-0.0",
];

/// Tokens that open, close, join or start something in one of the languages.
const TOKENS: &[&str] = &[
    "\"",
    "\\",
    "\\u",
    "\"\\ud800\"",
    "'",
    "//",
    "/*",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ":",
    ";",
    "=",
    "@",
    "%",
    "%0",
    "@-1",
    "@+1",
    "@+99999999999",
    "+",
    "-",
    "null",
    "true",
    "none",
    "\n",
    "\r",
    "\0",
    "\u{feff}",
    "é",
    "\u{202e}",
    "𝄞",
    "model",
    "block",
    "table",
    "input",
    "let",
    "repeat 99999",
    "loss",
    "return",
    "func @f",
    "into(",
    "sched",
    "microbatch(1)",
    "as",
    "like",
    "import \"random.fs\"",
    "GB/s",
];

const BRACKETS: &[(&str, &str)] =
    &[("(", ")"), ("[", "]"), ("{", "}"), ("{a = ", "}"), ("{\"a\":", "}"), ("-(", ")"), ("f(", ")")];

/// One to four ways to damage a text.
pub fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let index = any::<Index>;
    let one = prop_oneof![
        3 => (index(), 1usize..6).prop_map(|(at, n)| Mutation::Delete(at, n)),
        2 => (index(), 1usize..40, 1usize..4).prop_map(|(at, n, times)| Mutation::Repeat(at, n, times)),
        1 => (index(), 1usize..3, 50usize..500).prop_map(|(at, n, times)| Mutation::Repeat(at, n, times)),
        3 => (index(), index()).prop_map(|(a, b)| Mutation::Swap(a, b)),
        8 => (index(), prop::sample::select(NUMBERS)).prop_map(|(at, n)| Mutation::Number(at, n)),
        4 => (index(), index()).prop_map(|(to, from)| Mutation::Copy(to, from)),
        4 => (index(), prop::sample::select(TOKENS)).prop_map(|(at, token)| Mutation::Insert(at, token)),
        1 => (index(), prop::sample::select(BRACKETS), prop_oneof![1usize..100, Just(100_000)])
            .prop_map(|(at, (open, close), n)| Mutation::Nest(at, open, close, n)),
        1 => index().prop_map(Mutation::Truncate),
        1 => (index(), any::<u8>()).prop_map(|(at, byte)| Mutation::Byte(at, byte)),
    ];
    vec(one, 1..=4)
}

/// Damages a text.
pub fn mutate(text: &[u8], mutations: &[Mutation]) -> Vec<u8> {
    mutations.iter().fold(text.to_vec(), |text, m| apply(&text, m))
}

fn apply(text: &[u8], mutation: &Mutation) -> Vec<u8> {
    let tokens = tokens(text);
    if tokens.is_empty() {
        return text.to_vec();
    }
    let at = |index: &Index| index.index(tokens.len());
    // Joins a list of parts.
    let join = |parts: &[&[u8]]| parts.concat();
    match mutation {
        Mutation::Delete(index, n) => {
            let (first, last) = (at(index), (at(index) + n - 1).min(tokens.len() - 1));
            join(&[&text[..tokens[first].start], &text[tokens[last].end..]])
        }
        Mutation::Repeat(index, n, times) => {
            let (first, last) = (at(index), (at(index) + n - 1).min(tokens.len() - 1));
            let part = [&text[tokens[first].start..tokens[last].end], b" "].concat().repeat(*times);
            join(&[&text[..tokens[first].start], &part, &text[tokens[first].start..]])
        }
        Mutation::Swap(a, b) => {
            let (a, b) = (at(a).min(at(b)), at(a).max(at(b)));
            if a == b {
                return text.to_vec();
            }
            let (a, b) = (tokens[a].clone(), tokens[b].clone());
            join(&[&text[..a.start], &text[b.clone()], &text[a.end..b.start], &text[a], &text[b.end..]])
        }
        Mutation::Number(index, number) => {
            let numbers: Vec<&Range<usize>> =
                tokens.iter().filter(|t| text[t.start].is_ascii_digit()).collect();
            if numbers.is_empty() {
                return text.to_vec();
            }
            let old = numbers[index.index(numbers.len())];
            join(&[&text[..old.start], number.as_bytes(), &text[old.end..]])
        }
        Mutation::Copy(to, from) => {
            let (to, from) = (tokens[at(to)].clone(), tokens[at(from)].clone());
            join(&[&text[..to.start], &text[from], &text[to.end..]])
        }
        Mutation::Insert(index, token) => {
            let place = tokens[at(index)].start;
            join(&[&text[..place], token.as_bytes(), b" ", &text[place..]])
        }
        Mutation::Nest(index, open, close, n) => {
            let token = tokens[at(index)].clone();
            join(&[
                &text[..token.start],
                open.repeat(*n).as_bytes(),
                &text[token.clone()],
                close.repeat(*n).as_bytes(),
                &text[token.end..],
            ])
        }
        Mutation::Truncate(index) => text[..tokens[at(index)].end].to_vec(),
        Mutation::Byte(index, byte) => {
            let mut text = text.to_vec();
            let place = index.index(text.len());
            text[place] = *byte;
            text
        }
    }
}

/// Words, numbers, quoted strings, and other characters on their own; white space separates.
fn tokens(text: &[u8]) -> Vec<Range<usize>> {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let start = at;
        at += 1;
        if word(text[start]) {
            while at < text.len() && word(text[at]) {
                at += 1;
            }
        } else if text[start] == b'"' {
            while at < text.len() && text[at] != b'"' && text[at] != b'\n' {
                at += if text[at] == b'\\' { 2 } else { 1 };
            }
            at = (at + 1).min(text.len());
        } else if text[start].is_ascii_whitespace() {
            continue;
        }
        tokens.push(start..at);
    }
    tokens
}
