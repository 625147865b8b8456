//! What a run has taken from a file, and what it says of that.

use std::path::PathBuf;

use fs_schedule::terminal::shown;
use serde::Serialize;

use crate::data::error::cut;

/// What was taken from a file of values, and what not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// The file.
    #[serde(serialize_with = "crate::report::lossy")]
    pub file: PathBuf,
    /// The step that is trained first: where the file's run ended, if all was there, else 0.
    pub step: u64,
    /// Steps that the file says it was trained for; `None` if it does not say.
    pub trained: Option<u64>,
    /// Tensors that were used.
    pub used: Vec<String>,
    /// Tensors of the file that belong to nothing of the model.
    pub in_file: Vec<String>,
    /// Tables (`table.NAME`) and parameters that the file has no values for: they start as the model says.
    pub in_model: Vec<String>,
    /// States of the model's optimizers that the file lacks: they start from 0.
    pub no_state: Vec<String>,
    /// Tables that have another number of rows in the file.
    pub resized: Vec<String>,
    /// A checkpoint of another model, or of one that is trained otherwise.
    pub other_model: bool,
    /// Which rows ids have.
    pub ids: Ids,
}

/// How ids of the data came to their rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ids {
    /// Neither the file nor the data has a vocabulary.
    RowNumbers,
    /// By id.
    Matched {
        /// Ids of the data that the file has too.
        shared: usize,
        /// Ids of the data that the file lacks.
        new: usize,
        /// Ids of the file that the data lacks.
        absent: usize,
        /// Some of the new ones.
        some_new: Vec<String>,
        /// Some of those that are absent.
        some_absent: Vec<String>,
    },
    /// The file has a vocabulary, and the data numbers rows itself; it is kept for saving.
    Kept {
        /// Ids of the file.
        ids: usize,
    },
    /// The file has a vocabulary, but of tables only that the model lacks.
    NotTaken,
    /// The data has a vocabulary, and the file none: the n-th id of the data has the file's row n.
    ByNumber {
        /// Ids of the data.
        ids: usize,
    },
}

/// The first names of a list, and how many more there are.
fn listed(names: &[String], count: usize) -> String {
    const SHOWN: usize = 8;
    let shown = names.iter().take(SHOWN).map(|name| cut(name)).collect::<Vec<_>>().join(", ");
    let more = count.saturating_sub(names.len().min(SHOWN));
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}

impl Taken {
    /// What was used, in a line.
    pub fn summary(&self) -> String {
        let ids = match &self.ids {
            Ids::Matched { shared, .. } => format!("rows of {shared} ids, found by id"),
            Ids::RowNumbers | Ids::Kept { .. } => "ids of the data are row numbers".into(),
            Ids::ByNumber { .. } => "rows by number".into(),
            Ids::NotTaken => "its ids are of tables that the model lacks".into(),
        };
        let on = match self.trained {
            Some(_) if self.step > 0 => format!("training goes on after step {}", self.step),
            _ => "steps count from 0".into(),
        };
        let used = match self.used.len() {
            1 => "1 tensor is".into(),
            n => format!("{n} tensors are"),
        };
        format!("{}: {used} used; {ids}; {on}", shown(&self.file))
    }

    /// What is left or missing; nothing if all fits.
    pub fn notes(&self) -> Vec<String> {
        let file = shown(&self.file);
        let mut notes = Vec::new();
        let mut name = |what: &str, names: &[String], count: usize| {
            if count > 0 {
                notes.push(format!("{file} {what}: {}", listed(names, count)));
            }
        };
        let unused = "has values that the model has no place for";
        name(unused, &self.in_file, self.in_file.len());
        let unset = "has no values for these, which start as the model says";
        name(unset, &self.in_model, self.in_model.len());
        let resized = "has another number of rows for these, which keep the rows of its ids";
        name(resized, &self.resized, self.resized.len());
        match &self.ids {
            Ids::Matched { new, absent, some_new, some_absent, .. } => {
                name("lacks ids of the data, whose rows start as the model says", some_new, *new);
                name("has ids that the data lacks, whose rows are kept", some_absent, *absent);
            }
            Ids::Kept { ids } => notes.push(format!(
                "{file} has the rows of {ids} ids; they are kept for --save, and the data must mean the same by its row \
                 numbers"
            )),
            Ids::ByNumber { ids } => notes.push(format!(
                "{file} does not say which ids its rows belong to: the {ids} ids of the data take its rows in the order in \
                 which the data has them, which is right for the data that it was trained on only"
            )),
            Ids::RowNumbers | Ids::NotTaken => {}
        }
        if self.other_model {
            notes.push(format!(
                "{file} was left by another model, or with other settings of its training (batch, learning rates, what a step \
                 computes): from here on those of this schedule count"
            ));
        }
        if !self.no_state.is_empty() {
            notes.push(format!(
                "{file} has no state of the optimizer for these, which starts from 0, so that the first steps are large and \
                 may undo what was trained: {}",
                listed(&self.no_state, self.no_state.len())
            ));
        }
        notes
    }
}
