//! From the text to histories, in memory that is looked at first.
//!
//! Interactions are kept in pieces of one size until all are read, so nothing is copied as they grow; then they are put in
//! order user by user. Before each piece there must be memory for that, too.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use ::csv::{ByteRecord, ErrorKind, ReaderBuilder};
use fs_schedule::limits;
use fs_workload::encoding::unmarked;

use super::super::error::cut;
use super::super::vocabulary::Vocabulary;
use super::lines::Lines;
use super::{Columns, DataError};
use crate::units::human;

/// What a file holds.
pub(super) struct Parsed {
    /// Where each user's part of `sequence` begins, and the end of the last.
    offsets: Vec<usize>,
    /// Items of each user in order of time.
    sequence: Vec<u32>,
    /// The users' names.
    pub(super) names: Vocabulary,
    /// The items' ids.
    pub(super) items: Vocabulary,
}

impl Parsed {
    /// Each user's number and items in order of time.
    pub(super) fn users(&self) -> impl Iterator<Item = (u32, &[u32])> + Clone {
        (0..).zip(self.offsets.windows(2).map(|part| &self.sequence[part[0]..part[1]]))
    }
}

/// When something happened: the number, and what the text says beyond it, where numbers cannot tell two apart.
type Moment = (f64, i64);

/// The moment that a text says, of which `time` is the nearest number. Of two with one number the order is exact to 18 digits
/// behind the point below 2^53, where numbers are whole to the next whole one; those of other texts are 0, as those are
/// that numbers say exactly.
fn moment(text: &[u8], time: f64) -> Moment {
    /// Beyond it there are no fractions.
    const WHOLE: f64 = 9007199254740992.0;
    // `-0` is no time before 0.
    let time = time + 0.0;
    let exact = std::str::from_utf8(text).ok().and_then(|t| t.parse::<i64>().ok());
    let beyond = match exact {
        // What most files have.
        Some(_) if time.abs() < WHOLE => 0,
        Some(exact) => i128::from(exact) - time as i128,
        None if time.abs() < WHOLE => {
            const DIGITS: i32 = 18;
            const ONE: i128 = 10_i128.pow(DIGITS as u32);
            let number = time.trunc() as i128 * ONE + (time.fract() * ONE as f64) as i128;
            scaled(text, DIGITS).map_or(0, |exact| exact - number)
        }
        None => scaled(text, 0).map_or(0, |exact| exact.saturating_sub(time as i128)),
    };
    (time, beyond.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
}

/// A decimal number times a power of ten, without its fraction; none if it is not one or has more digits than there is room for.
fn scaled(text: &[u8], power: i32) -> Option<i128> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        all => (false, all),
    };
    let end = digits.iter().position(|b| matches!(b, b'e' | b'E')).unwrap_or(digits.len());
    let exponent = match digits.get(end + 1..) {
        Some(exponent) => std::str::from_utf8(exponent).ok()?.parse().ok()?,
        None => 0,
    };
    let (mut value, mut behind, mut point) = (0_i128, 0_i32, false);
    for digit in &digits[..end] {
        if *digit == b'.' {
            point = true;
            continue;
        }
        let digit = char::from(*digit).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(digit.into())?;
        behind += i32::from(point);
    }
    let shift = power.checked_add(exponent)?.checked_sub(behind)?;
    let of_ten = 10_i128.checked_pow(shift.unsigned_abs());
    let value = if shift >= 0 { value.checked_mul(of_ten?)? } else { of_ten.map_or(0, |t| value / t) };
    Some(if negative { -value } else { value })
}

/// An interaction.
#[derive(Clone, Copy)]
struct Event {
    moment: Moment,
    user: u32,
    item: u32,
}

/// Reads a whole file.
pub(super) fn parse(path: &Path, columns: &Columns) -> Result<Parsed, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(DataError::Directory { path: path.into() });
    }
    if metadata.is_file() && metadata.len() == 0 {
        return Err(DataError::Empty { path: path.into() });
    }
    let mut file = BufReader::with_capacity(1 << 18, file);
    if let Err(utf16) = unmarked(file.fill_buf().map_err(io)?) {
        return Err(DataError::Content { path: path.into(), reason: utf16.to_string() });
    }
    let mut reader = ReaderBuilder::new().from_reader(Lines::of(file));
    let header = reader.byte_headers().map_err(|e| record_error(path, &e))?.clone();
    let names: Vec<String> = header
        .iter()
        .map(|h| String::from_utf8_lossy(h).trim_start_matches('\u{feff}').trim().to_owned())
        .collect();
    if names.iter().all(String::is_empty) {
        return Err(DataError::Empty { path: path.into() });
    }
    let find = |column: &str| {
        if names.iter().filter(|n| *n == column).count() > 1 {
            let reason = format!("it has several columns `{column}`; leave one of them");
            return Err(DataError::Content { path: path.into(), reason });
        }
        names.iter().position(|n| n == column).ok_or_else(|| DataError::UnknownColumn {
            path: path.into(),
            column: column.into(),
            columns: names.clone(),
        })
    };
    let user_at = find(&columns.user)?;
    let item_at = find(&columns.item)?;
    let time_at = columns.time.as_deref().map(find).transpose()?;
    let rating_at = columns.rating.as_deref().map(find).transpose()?;

    let mut events: Vec<Vec<Event>> = Vec::new();
    let (mut names_of_users, mut items) = (Vocabulary::new(), Vocabulary::new());
    let mut record = ByteRecord::new();
    let mut looked = 0;
    // Of a pipe it is not known.
    let length = metadata.is_file().then_some(metadata.len());
    while reader.read_byte_record(&mut record).map_err(|e| record_error(path, &e))? {
        let line = record.position().map_or(0, ::csv::Position::line);
        let field = |at: usize| record.get(at).unwrap_or_default().trim_ascii();
        let wrong = |at: usize, problem| DataError::Field {
            path: path.into(),
            line,
            column: cut(&names[at]),
            value: cut(&String::from_utf8_lossy(field(at))),
            problem,
        };
        let number = |at: usize| std::str::from_utf8(field(at)).ok().and_then(|t| t.parse::<f64>().ok());
        if let Some(at) = rating_at {
            match number(at) {
                Some(rating) if rating.is_finite() => {}
                Some(_) => return Err(wrong(at, "is not a finite number")),
                None => return Err(wrong(at, "is not a number")),
            }
        }
        let moment = match time_at {
            None => (0.0, 0),
            Some(at) => {
                let time = number(at)
                    .filter(|t| t.is_finite())
                    .ok_or_else(|| wrong(at, "is not a finite number"))?;
                moment(field(at), time)
            }
        };
        for at in [user_at, item_at] {
            if field(at).is_empty() {
                return Err(wrong(at, "is empty where a name or number is needed"));
            }
        }
        let item = items.add(field(item_at)).ok_or_else(|| too_many(path))?;
        let user = names_of_users.add(field(user_at)).ok_or_else(|| too_many(path))?;
        let byte = record.position().map_or(0, ::csv::Position::byte);
        let full = events.last().is_none_or(|piece| piece.len() == PIECE);
        if full || byte - looked > LOOK {
            looked = byte;
            let ahead = length.map_or(u64::MAX, |all| all.saturating_sub(byte)).min(2 * LOOK);
            let more = to_go_on(events.len() * PIECE, ahead, &names_of_users, &items);
            let free = limits::available(Path::new("/"));
            if let Some(free) = free.filter(|free| *free < more) {
                return Err(too_large(path, line, free));
            }
        }
        if full {
            events.push(Vec::with_capacity(PIECE));
        }
        if let Some(piece) = events.last_mut() {
            piece.push(Event { moment, user, item });
        }
    }
    if events.is_empty() {
        return Err(DataError::HeaderOnly { path: path.into() });
    }
    let (offsets, sequence) = by_user(events, names_of_users.ids());
    Ok(Parsed { offsets, sequence, names: names_of_users, items })
}

/// Where each user's items begin, and the items in order of time, ties in order of lines.
fn by_user(events: Vec<Vec<Event>>, users: usize) -> (Vec<usize>, Vec<u32>) {
    let mut offsets = vec![0; users + 1];
    for event in events.iter().flatten() {
        offsets[event.user as usize + 1] += 1;
    }
    for user in 0..users {
        offsets[user + 1] += offsets[user];
    }
    let mut next = offsets.clone();
    let mut all = vec![Event { moment: (0.0, 0), user: 0, item: 0 }; offsets[users]];
    for event in events.into_iter().flatten() {
        let place = &mut next[event.user as usize];
        all[*place] = event;
        *place += 1;
    }
    for part in offsets.windows(2) {
        let in_time =
            |a: &Event, b: &Event| a.moment.0.total_cmp(&b.moment.0).then(a.moment.1.cmp(&b.moment.1));
        all[part[0]..part[1]].sort_by(in_time);
    }
    (offsets, all.into_iter().map(|event| event.item).collect())
}

/// Interactions in a piece.
const PIECE: usize = 1 << 16;
/// Bytes of the file after which memory is looked at.
const LOOK: u64 = 16 << 20;

/// Bytes that there must be to read on until the next look, no more than `ahead` bytes of the file, and then to put everything
/// in order.
fn to_go_on(events: usize, ahead: u64, users: &Vocabulary, items: &Vocabulary) -> u64 {
    /// For whatever else; less where the rest of the file is small.
    const LEAST: u64 = 64 << 20;
    const SMALL: u64 = 8 << 20;
    /// Of an interaction, once more and as an item of its user, twice.
    const EVENT: usize = size_of::<Event>() + 2 * size_of::<u32>();
    /// Of a user: offsets, and those of the histories.
    const USER: usize = 4 * size_of::<usize>();
    let events = (events + PIECE) * EVENT + users.ids() * USER;
    let rest = if ahead < SMALL { SMALL } else { LEAST };
    rest + events as u64 + users.growth(ahead, PIECE) + items.growth(ahead, PIECE)
}

fn too_large(path: &Path, line: u64, free: u64) -> DataError {
    let reason = format!(
        "it does not fit into memory: at line {line} this process may take only {} more; use a part of it, or more memory",
        human(free)
    );
    DataError::Content { path: path.into(), reason }
}

/// More names than numbers.
pub(super) fn too_many(path: &Path) -> DataError {
    DataError::Content {
        path: path.into(),
        reason: "it has more users or items than 32 bits can number".into(),
    }
}

fn record_error(path: &Path, error: &::csv::Error) -> DataError {
    let line = error.position().map_or(0, ::csv::Position::line);
    let reason = match error.kind() {
        ErrorKind::Io(e) => {
            return DataError::Io { path: path.into(), source: std::io::Error::new(e.kind(), e.to_string()) };
        }
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{len} fields where the header has {expected_len}")
        }
        _ => error.to_string(),
    };
    DataError::Record { path: path.into(), line, reason }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use fs_workload::random::{RandomKey, uniform_index};

    use super::*;

    #[test]
    fn times_are_in_the_order_of_their_texts() {
        let order = [
            ["-9223372036854775809", "-9223372036854775808"],
            ["-1", "-0.999999999999999999"],
            ["0.100000000000000001", "0.100000000000000002"],
            ["1700000000.123456788", "1700000000.123456789"],
            ["1700000000", "1700000000.00000001"],
            ["9007199254740991.4", "9007199254740991.41"],
            ["9007199254740992", "9007199254740993"],
            ["9223372036854775807", "9223372036854775808"],
            ["18446744073709551615", "18446744073709551616"],
            ["18446744073709551616.5", "18446744073709551617.0"],
            ["1e300", "1e301"],
        ];
        let of = |text: &str| moment(text.as_bytes(), text.parse().expect("a number"));
        let before = |a: &str, b: &str| {
            let (a, b) = (of(a), of(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        };
        for [early, late] in order {
            assert_eq!(before(early, late), Ordering::Less, "{early} {late}");
            assert_eq!(before(late, early), Ordering::Greater, "{early} {late}");
        }
        for [one, other] in [
            ["0", "-0"],
            ["1", "1.0"],
            ["1e3", "1000"],
            ["1234567.1", "1.2345671e6"],
            ["+5", "5"],
            [".5", "0.50"],
            ["9007199254740993", "9007199254740993.0"],
            // Beyond the 18th digit nothing is told apart.
            ["-1.0000000000000000002", "-1.0000000000000000001"],
            ["1e-400000", "0"],
        ] {
            assert_eq!(before(one, other), Ordering::Equal, "{one} {other}");
        }
    }

    /// Whatever pieces they were read in.
    #[test]
    fn interactions_are_in_order_of_time_and_then_of_lines() {
        for seed in 0..200 {
            let mut drawn = 0;
            let mut below = |n: u64| {
                drawn += 1;
                uniform_index(RandomKey { seed, stream: 0, step: 0 }, drawn, n)
            };
            let users = 1 + below(5);
            let mut events: Vec<Event> = Vec::new();
            for item in 0..below(60) as u32 {
                let late = below(3) as i64;
                // Times that only their exact integers tell apart.
                let moment = ((below(3) as f64).mul_add(1e300, late as f64), late);
                events.push(Event { moment, user: below(users) as u32, item });
            }
            let mut expected = Vec::new();
            let mut starts = vec![0];
            for user in 0..users as u32 {
                let mut own: Vec<(usize, &Event)> =
                    events.iter().enumerate().filter(|(_, e)| e.user == user).collect();
                own.sort_by(|(m, a), (n, b)| {
                    a.moment.partial_cmp(&b.moment).expect("numbers").then(m.cmp(n))
                });
                expected.extend(own.iter().map(|(_, event)| event.item));
                starts.push(expected.len());
            }
            let size = 1 + below(20) as usize;
            let pieces = events.chunks(size).map(<[Event]>::to_vec).collect();
            assert_eq!(by_user(pieces, users as usize), (starts, expected), "seed {seed}");
        }
    }
}
