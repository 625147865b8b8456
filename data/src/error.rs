//! What can be wrong with data, said so that the user can put it right.

use std::io;
use std::path::PathBuf;

use fs_schedule::terminal::{inline, shown};

/// Why samples cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Neither the schedule nor the command line names any.
    #[error(
        "the schedule names no data; add a `workload` block to the model and compile it again, or pass `--data FILE`"
    )]
    NoData,
    /// A batch that did not come.
    #[error("the data has given no batch for {seconds} s")]
    Late {
        /// How long it was waited for.
        seconds: f64,
    },
    /// A file that no source reads.
    #[error(
        "cannot tell how to read {path}: give a .safetensors file, or compile the model with a `workload` whose `csv` names the columns",
        path = shown(.path)
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read data file {path}: {source}{}", hint(.source), path = shown(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A directory where a file should be.
    #[error("data file {path} is a directory; name a file in it", path = shown(.path))]
    Directory {
        /// The path.
        path: PathBuf,
    },
    /// Nothing in it.
    #[error("data file {path} is empty", path = shown(.path))]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Only a header.
    #[error("data file {path} has a header line but no interactions", path = shown(.path))]
    HeaderOnly {
        /// The file.
        path: PathBuf,
    },
    /// A column that is not there.
    #[error("data file {path} has no column `{column}`{}; its columns are: {}", suggestion(.column, .columns), some(.columns), path = shown(.path))]
    UnknownColumn {
        /// The file.
        path: PathBuf,
        /// The column asked for.
        column: String,
        /// Those that are there.
        columns: Vec<String>,
    },
    /// A field that cannot be used.
    #[error("{path}, line {line}, column `{column}`: `{value}` {problem}", path = shown(.path))]
    Field {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// The column's name.
        column: String,
        /// The text found.
        value: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A line that is not a record.
    #[error("{path}, line {line}: {reason}", path = shown(.path))]
    Record {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// More items than rows.
    #[error(
        "{path} has {items} distinct items, but table `{table}` has {rows} rows; give it at least {items} rows and compile again",
        path = shown(.path)
    )]
    TooManyItems {
        /// The file.
        path: PathBuf,
        /// Items in the file.
        items: u64,
        /// Name of the table.
        table: String,
        /// Its rows.
        rows: u64,
    },
    /// More items than rows, with those of the initial values.
    #[error(
        "the initial values have {known} ids, with those of {path} there are {items}, but table `{table}` has {rows} rows; give it at least {items} rows and compile again",
        path = shown(.path)
    )]
    TooManyTogether {
        /// The file.
        path: PathBuf,
        /// Ids of the initial values.
        known: usize,
        /// Ids of both.
        items: usize,
        /// Name of the table.
        table: String,
        /// Its rows.
        rows: u64,
    },
    /// A user with too few interactions.
    #[error(
        "{path}: user `{user}` has {found} interaction(s), {need} are needed; leave such users out with `min_interactions {need}` in the workload's csv",
        path = shown(.path)
    )]
    ShortHistory {
        /// The file.
        path: PathBuf,
        /// The user.
        user: String,
        /// Interactions of that user.
        found: usize,
        /// Interactions needed.
        need: usize,
    },
    /// Nobody left.
    #[error("{path}: no user has {need} interactions; lower `min_interactions` or give more data", path = shown(.path))]
    NoUsers {
        /// The file.
        path: PathBuf,
        /// Interactions needed.
        need: usize,
    },
    /// An input that the source cannot fill.
    #[error("input `{input}` cannot be filled from {from}: {reason}")]
    Unsupported {
        /// Name of the input.
        input: String,
        /// What the data is.
        from: String,
        /// Why not.
        reason: String,
    },
    /// Not a safetensors file.
    #[error("{path} is not a safetensors file: {reason}", path = shown(.path))]
    NotTensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that is not there.
    #[error("{path} has no tensor `{name}`{}; its tensors are: {}", suggestion(.name, .names), some(.names), path = shown(.path))]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor asked for.
        name: String,
        /// Those that are there.
        names: Vec<String>,
    },
    /// A tensor of another type or shape.
    #[error("{path}: tensor `{name}` is {found}, expected {expected}", path = shown(.path))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Type and shape found.
        found: String,
        /// Type and shape expected.
        expected: String,
    },
    /// Tensors that contradict each other, or a value out of range.
    #[error("{path}: {reason}", path = shown(.path))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// An id without a row.
    #[error(
        "{path}: id {id} (tensor `ids`, row {row}, column {column}) is out of range for table `{table}` with {rows} rows; {advice}",
        path = shown(.path)
    )]
    IdOutOfRange {
        /// The file.
        path: PathBuf,
        /// The id.
        id: i64,
        /// Row of the tensor.
        row: usize,
        /// Column of the tensor.
        column: usize,
        /// Name of the table.
        table: String,
        /// Its rows.
        rows: u64,
        /// What to do.
        advice: String,
    },
    /// A law that nothing can be drawn from.
    #[error("the data generator cannot draw {what}: {law}")]
    Law {
        /// What was to be drawn.
        what: &'static str,
        /// Why not.
        law: fs_workload::LawError,
    },
    /// A distribution with impossible parameters.
    #[error("the data generator cannot draw {what}: {reason}")]
    Distribution {
        /// What was to be drawn.
        what: &'static str,
        /// Why not.
        reason: String,
    },
}

/// The first of several names, each cut where it is long.
pub fn some(names: &[String]) -> String {
    const SHOWN: usize = 32;
    let mut list: Vec<String> = names.iter().take(SHOWN).map(|n| cut(n)).collect();
    if names.len() > SHOWN {
        list.push(format!("and {} more", names.len() - SHOWN));
    }
    list.join(", ")
}

/// The start of a text that may be a whole file, within a line.
pub fn cut(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        None => inline(text),
        Some((at, _)) => format!("{}...", inline(&text[..at])),
    }
}

fn hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::NotFound {
        "; a schedule's data is looked for in the schedule's folder, then in the working directory; pass `--data FILE` to use another file"
    } else {
        ""
    }
}

/// `, did you mean X?` for a name that is nearly right.
fn suggestion(name: &str, names: &[String]) -> String {
    // Longer ones are no names, and take long to compare.
    const LONGEST: usize = 256;
    let lower = name.to_lowercase();
    let names = names.iter().filter(|n| n.len().max(lower.len()) <= LONGEST);
    let best = names.map(|n| (strsim::normalized_damerau_levenshtein(&lower, &n.to_lowercase()), n));
    match best.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((score, best)) if score >= 0.5 => format!(", did you mean `{}`?", cut(best)),
        _ => String::new(),
    }
}
