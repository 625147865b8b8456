//! Rounds in which ranks rank items: what each gives to the others, which the device works by and costs are counted by.
//!
//! Queries go to everyone, then the scores of targets, then the numbers of better rows. No rank has whole rows of a
//! column-wise table: there the products of each rank's columns are summed in between, for so many queries at once as
//! there is room for, and if that is not for all, once more for the counts.

use std::ops::Range;

use crate::model::{Sharding, Table};
use crate::operand::Element;
use crate::size::{Poly, Symbol};

/// Scores that a rank holds at once.
pub const SCORES: usize = 1 << 22;
/// Numbers that a count of better rows is sent as: two digits of all, two of those that the user knows.
pub const DIGITS: usize = 4;

/// What a round gives to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// The own samples' queries.
    Queries,
    /// Squares of the own columns.
    Norms,
    /// Products of the own columns, for the queries from this one on.
    Scores(usize),
    /// Scores of targets in the own block.
    Targets,
    /// Products again, where scores were not kept.
    Again(usize),
    /// Numbers of better rows in the own block.
    Digits,
}

/// The rounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rounds {
    /// Whether ranks have columns of all rows rather than all columns of some.
    by_columns: bool,
    /// Whether the norms of rows are summed over ranks.
    norms: bool,
    /// Of all ranks.
    questions: usize,
    /// Queries whose scores a rank holds at once.
    chunk: usize,
}

impl Rounds {
    /// Of so many questions of all ranks to a table of which a rank scores `block` rows, or all if it has columns only.
    /// The table does not change while it is evaluated: norms of rows are found with the first batch.
    pub fn new(table: &Table, cosine: bool, first: bool, questions: usize, block: usize) -> Self {
        Self::within(SCORES, table, cosine, first, questions, block)
    }

    /// The same where a rank holds another number of scores at once, at least those of one question. It must be that number
    /// on all ranks.
    pub fn within(
        scores: usize,
        table: &Table,
        cosine: bool,
        first: bool,
        questions: usize,
        block: usize,
    ) -> Self {
        let by_columns = matches!(table.sharding, Sharding::ColumnWise { .. });
        // All ranks take the same turns.
        let held = if by_columns { table.rows as usize } else { block };
        let chunk = (scores / held.max(1)).clamp(1, questions.max(1));
        Self { by_columns, norms: by_columns && cosine && first, questions, chunk }
    }

    /// Whether scores are kept between the two passes, because they all fit.
    pub fn all_fit(&self) -> bool {
        self.chunk >= self.questions
    }

    /// Queries whose scores a rank holds at once.
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The queries of a round that begins with this one.
    pub fn queries_from(&self, start: usize) -> Range<usize> {
        start..(start + self.chunk).min(self.questions)
    }

    /// Rounds of one pass over the products of columns.
    fn chunks(&self) -> usize {
        if self.by_columns { self.questions.div_ceil(self.chunk) } else { 0 }
    }

    /// What the n-th round is for; `None` after the last.
    pub fn round(&self, n: u64) -> Option<Round> {
        let again = if self.all_fit() { 0 } else { self.chunks() };
        let n = n as usize;
        let scores = 1 + usize::from(self.norms);
        let targets = scores + self.chunks();
        let digits = targets + 1 + again;
        Some(match n {
            0 => Round::Queries,
            n if n < scores => Round::Norms,
            n if n < targets => Round::Scores((n - scores) * self.chunk),
            n if n == targets => Round::Targets,
            n if n < digits => Round::Again((n - targets - 1) * self.chunk),
            n if n == digits => Round::Digits,
            _ => return None,
        })
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        (0..u64::MAX).take_while(|n| self.round(*n).is_some()).count() as u64
    }

    /// Bytes of all rounds that a rank sends, its own parts included.
    pub(crate) fn total(&self, table: &Table) -> Poly {
        let passes = match (self.by_columns, self.all_fit()) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        };
        let norms = usize::from(self.norms);
        let scores = per_row(passes * self.questions + norms, table);
        let others = [Round::Queries, Round::Targets, Round::Digits];
        others.map(|round| self.bytes(round, table)).into_iter().chain([scores]).sum()
    }

    /// Bytes of a round that a rank sends, its own parts included; as many arrive, where samples are spread evenly.
    pub(crate) fn bytes(&self, round: Round, table: &Table) -> Poly {
        use Symbol::{Ranks, Samples};
        let real = Element::Real.row_bytes(1) as f64;
        // A number of every question, of which each rank has its samples', goes to everyone.
        let of_all = |each: usize| Poly::term(real * each as f64, &[Ranks, Ranks, Samples]);
        match round {
            Round::Queries => Poly::term(real * f64::from(table.dim), &[Ranks, Samples]),
            Round::Norms => per_row(1, table),
            Round::Scores(start) | Round::Again(start) => per_row(self.queries_from(start).len(), table),
            Round::Targets => of_all(1),
            Round::Digits => of_all(DIGITS),
        }
    }
}

/// Lists of a number of each row, which goes to the rank whose block the row is in.
fn per_row(lists: usize, table: &Table) -> Poly {
    Poly::constant(Element::Real.row_bytes(1) as f64 * lists as f64 * table.rows as f64)
}
