//! Interactions from a CSV file: one user, item and time a line.
//!
//! Lines are grouped by user and ordered by time, ties by line. Users and items may be any text; both are numbered
//! by first appearance, items as a saved model numbers them where there is one ([`Source::adopt`]). Each epoch visits the users in another order, drawn from the seed and the epoch.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::csv::{ByteRecord, ErrorKind, ReaderBuilder};
use fs_schedule::{InputKind, Schedule, Table};
use fs_workload::permute::order;

use super::error::cut;
use super::vocabulary::Vocabulary;
use super::{DataError, Epochs, GlobalBatch, Histories, Source, Truncation};
use crate::limits;
use crate::units::human;

/// Names of the columns.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    /// The user.
    pub user: String,
    /// The item.
    pub item: String,
    /// What orders a user's interactions.
    pub time: Option<String>,
    /// A column that must hold finite numbers.
    pub rating: Option<String>,
}

/// Users' histories from a file.
#[derive(Debug)]
pub(crate) struct Csv {
    schedule: Arc<Schedule>,
    path: PathBuf,
    histories: Arc<Histories>,
    /// The items' ids.
    vocabulary: Arc<Vocabulary>,
    epochs: Epochs,
    seed: u64,
    order: Vec<u32>,
    order_of: Option<u64>,
}

impl Csv {
    /// Reads the whole file and checks it against the schedule. With `hold_out` each user's last item is kept for
    /// evaluation. Users with fewer than `min_interactions` are left out.
    pub(crate) fn open(
        schedule: &Arc<Schedule>,
        path: &Path,
        columns: &Columns,
        min_interactions: Option<u32>,
        hold_out: bool,
        seed: u64,
    ) -> Result<Self, DataError> {
        let need = check_inputs(schedule, path)? + usize::from(hold_out);
        let parsed = parse(path, columns)?;
        check_items(schedule, path, parsed.items.len())?;
        let least = min_interactions.map_or(0, |n| n as usize);
        let mut users = Vec::with_capacity(parsed.users.len());
        for (user, items) in (0..).zip(parsed.users) {
            if items.len() < least {
                continue;
            }
            if items.len() < need {
                let user = cut(&String::from_utf8_lossy(parsed.names.id(user)));
                return Err(DataError::ShortHistory { path: path.into(), user, found: items.len(), need });
            }
            users.push(items);
        }
        if users.is_empty() {
            return Err(DataError::NoUsers { path: path.into(), need: need.max(least) });
        }
        let histories = Arc::new(Histories::new(&users, parsed.items.len(), hold_out));
        let epochs = Epochs { samples: users.len() as u64, batch: u64::from(schedule.settings.batch).max(1) };
        let schedule = Arc::clone(schedule);
        let (path, vocabulary) = (path.into(), Arc::new(parsed.items));
        Ok(Self { schedule, path, histories, vocabulary, epochs, seed, order: Vec::new(), order_of: None })
    }
}

impl Source for Csv {
    fn describe(&self) -> String {
        format!("{} ({} users)", self.path.display(), self.histories.users())
    }

    fn epoch_steps(&self) -> Option<u64> {
        Some(self.epochs.steps())
    }

    fn fill(&mut self, step: u64, batch: &mut GlobalBatch) -> Result<(), DataError> {
        batch.reset(&self.schedule, step);
        let (epoch, positions) = self.epochs.locate(step);
        if self.order_of != Some(epoch) {
            order(self.histories.users() as u32, self.seed, epoch, &mut self.order);
            self.order_of = Some(epoch);
        }
        batch.begin((positions.end - positions.start) as usize);
        for (sample, position) in positions.enumerate() {
            let user = self.order[position as usize] as usize;
            self.histories.push_training(&self.schedule, user, sample, batch);
        }
        Ok(())
    }

    fn digest(&self) -> Result<String, DataError> {
        Ok(self.histories.digest())
    }

    fn histories(&self) -> Option<Arc<Histories>> {
        Some(Arc::clone(&self.histories))
    }

    fn vocabulary(&self) -> Option<Arc<Vocabulary>> {
        Some(Arc::clone(&self.vocabulary))
    }

    fn adopt(&mut self, mut known: Vocabulary) -> Result<(), DataError> {
        let before = known.len();
        let mut rows = Vec::with_capacity(self.vocabulary.len());
        for n in 0..self.vocabulary.len() as u32 {
            rows.push(known.add(self.vocabulary.id(n)).ok_or_else(|| too_many(&self.path))?);
        }
        if let Some(table) = too_small(&self.schedule, known.len()) {
            return Err(DataError::TooManyTogether {
                path: self.path.clone(),
                known: before,
                items: known.len(),
                table: table.name.clone(),
                rows: table.rows,
            });
        }
        self.histories = Arc::new(self.histories.renumbered(&rows, known.len()));
        self.vocabulary = Arc::new(known);
        Ok(())
    }

    fn truncation(&self) -> (Option<Truncation>, Option<Truncation>) {
        let (training, evaluation) = self.histories.truncation(&self.schedule);
        (Some(training), evaluation)
    }
}

/// Checks that interactions can fill every input; interactions needed for a training sample.
fn check_inputs(schedule: &Schedule, path: &Path) -> Result<usize, DataError> {
    let mut need = 1;
    for input in &schedule.inputs {
        match input.kind {
            InputKind::Ids { .. } => {}
            InputKind::Next { .. } => need = 2,
            InputKind::Dense { .. } | InputKind::SampleLabel | InputKind::TokenLabel { .. } => {
                return Err(DataError::Unsupported {
                    input: input.name.clone(),
                    from: format!("the interactions in {}", path.display()),
                    reason: "they give item sequences and what follows each item only; use safetensors batches for \
                             dense features and labels"
                        .into(),
                });
            }
        }
    }
    Ok(need)
}

fn check_items(schedule: &Schedule, path: &Path, items: usize) -> Result<(), DataError> {
    too_small(schedule, items).map_or(Ok(()), |table| {
        Err(DataError::TooManyItems {
            path: path.into(),
            items: items as u64,
            table: table.name.clone(),
            rows: table.rows,
        })
    })
}

/// A table that has fewer rows than there are items.
fn too_small(schedule: &Schedule, items: usize) -> Option<&Table> {
    let mut looked_up = schedule.inputs.iter().filter_map(|input| match input.kind {
        InputKind::Ids { table, .. } => Some(&schedule.tables[table as usize]),
        _ => None,
    });
    looked_up.find(|table| items as u64 > table.rows)
}

/// Bytes of the longest record that is read.
const LONGEST_RECORD: usize = 1 << 20;

/// A text whose lines end in `\n` alone, so that they are counted where they end, and none of whose records is too long to
/// be one of interactions: a file without ends of lines would be read whole, and so would one that a quote opens.
struct Lines<R> {
    inner: R,
    /// Bytes of the record so far, and the line that it began in, from 0.
    record: usize,
    began: u64,
    line: u64,
    at: At,
    /// Bytes of a mark of the order of bytes at the start, which readers pass over.
    mark: usize,
    /// A `\r` that may belong to the next byte.
    held: bool,
    raw: Vec<u8>,
}

/// Where in a record a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The start of a field.
    Start,
    Plain,
    Quoted,
    /// Behind a quote within quotes: their end, or one of two.
    Quote,
}

impl At {
    fn next(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Start | Self::Quote, b'"') | (Self::Quoted, _) => Self::Quoted,
            (_, b',' | b'\n') => Self::Start,
            _ => Self::Plain,
        }
    }
}

impl<R: Read> Lines<R> {
    fn of(inner: R) -> Self {
        let (record, began, line, at, mark) = (0, 0, 0, At::Start, 0);
        Self { inner, record, began, line, at, mark, held: false, raw: Vec::new() }
    }

    /// Counts a byte, if there may be another one.
    fn count(&mut self, byte: u8) -> io::Result<()> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if self.line == 0 && self.record == self.mark && MARK.get(self.mark) == Some(&byte) {
            self.mark += 1;
        } else {
            self.at = self.at.next(byte);
        }
        self.record += 1;
        if byte == b'\n' {
            self.line += 1;
            if self.at != At::Quoted {
                (self.record, self.began) = (0, self.line);
            }
        }
        if self.record > LONGEST_RECORD {
            let line = self.began + 1;
            let quoted = if self.line > self.began { "; does a quote in it end?" } else { "" };
            let why = format!("line {line}: a record has more than {LONGEST_RECORD} bytes{quoted}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(())
    }
}

impl<R: Read> Read for Lines<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // One place is kept for what was held.
        let Some(room) = out.len().checked_sub(1).filter(|n| *n > 0) else {
            return Err(io::Error::other("lines are read in larger pieces"));
        };
        loop {
            self.raw.resize(room, 0);
            let n = self.inner.read(&mut self.raw)?;
            let mut filled = 0;
            for k in 0..n {
                let byte = self.raw[k];
                if std::mem::take(&mut self.held) && byte != b'\n' {
                    // By itself it ends a line too, but for one within quotes.
                    out[filled] = if self.at == At::Quoted { b'\r' } else { b'\n' };
                    self.count(out[filled])?;
                    filled += 1;
                }
                if byte == b'\r' {
                    self.held = true;
                    continue;
                }
                self.count(byte)?;
                out[filled] = byte;
                filled += 1;
            }
            if n == 0 && std::mem::take(&mut self.held) {
                out[0] = b'\r';
                filled = 1;
            }
            if filled > 0 || n == 0 {
                return Ok(filled);
            }
        }
    }
}

struct Parsed {
    /// Items of each user in order of time.
    users: Vec<Vec<u32>>,
    /// The users' names.
    names: Vocabulary,
    /// The items' ids.
    items: Vocabulary,
}

/// When something happened: the number, and the exact integer where the number cannot tell two apart.
type Moment = (f64, i64);

fn parse(path: &Path, columns: &Columns) -> Result<Parsed, DataError> {
    let io = |source| DataError::Io { path: path.into(), source };
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if metadata.is_dir() {
        return Err(DataError::Directory { path: path.into() });
    }
    if metadata.is_file() && metadata.len() == 0 {
        return Err(DataError::Empty { path: path.into() });
    }
    let mut reader = ReaderBuilder::new().from_reader(Lines::of(BufReader::with_capacity(1 << 18, file)));
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

    let mut users: Vec<Vec<(Moment, u32)>> = Vec::new();
    let (mut names_of_users, mut items) = (Vocabulary::new(), Vocabulary::new());
    let mut record = ByteRecord::new();
    let (mut records, mut longest) = (0u64, 0);
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
                let exact = std::str::from_utf8(field(at)).ok().and_then(|t| t.parse().ok());
                (time, exact.unwrap_or(0))
            }
        };
        for at in [user_at, item_at] {
            if field(at).is_empty() {
                return Err(wrong(at, "is empty where a name or number is needed"));
            }
        }
        let item = items.add(field(item_at)).ok_or_else(|| too_many(path))?;
        let user = names_of_users.add(field(user_at)).ok_or_else(|| too_many(path))? as usize;
        if user == users.len() {
            users.push(Vec::new());
        }
        users[user].push((moment, item));
        longest = longest.max(users[user].len());
        records += 1;
        if records.is_multiple_of(LOOK) {
            let more = growth(longest, names_of_users.len() + items.len());
            let free = limits::available(Path::new("/"));
            if let Some(free) = free.filter(|free| *free < more) {
                return Err(too_large(path, line, free));
            }
        }
    }
    if users.is_empty() {
        return Err(DataError::HeaderOnly { path: path.into() });
    }
    let in_order = |mut events: Vec<(Moment, u32)>| {
        events.sort_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        events.into_iter().map(|(_, item)| item).collect()
    };
    Ok(Parsed { users: users.into_iter().map(in_order).collect(), names: names_of_users, items })
}

/// Records after which memory is looked at.
const LOOK: u64 = 1 << 16;

/// Bytes that there must be for more records: lists are copied as they grow, the longest of a user and those of names.
fn growth(longest: usize, names: usize) -> u64 {
    /// For whatever else.
    const LEAST: u64 = 64 << 20;
    /// Of a name, with its place in the map.
    const NAME: u64 = 64;
    let list = 2 * longest * size_of::<(Moment, u32)>();
    LEAST + list as u64 + 2 * NAME * names as u64
}

fn too_large(path: &Path, line: u64, free: u64) -> DataError {
    let reason = format!(
        "it does not fit into memory: at line {line} this process may take only {} more; use a part of it, or more memory",
        human(free)
    );
    DataError::Content { path: path.into(), reason }
}

fn too_many(path: &Path) -> DataError {
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
