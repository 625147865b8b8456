//! Interactions from a CSV file: one user, item and time a line.
//!
//! Lines are grouped by user and ordered by time, ties by line. Users and items may be any text; both are numbered
//! by first appearance, items as a saved model numbers them where there is one ([`Source::adopt`]). Each epoch visits the users in another order, drawn from the seed and the epoch.

mod lines;
mod parse;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fs_schedule::terminal::shown;
use fs_schedule::{InputKind, Schedule, Table};
use fs_workload::permute::order;

use super::error::cut;
use super::vocabulary::Vocabulary;
use super::{DataError, Epochs, GlobalBatch, Histories, Source, Truncation};
use crate::digest::Digest;
use parse::{parse, too_many};

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
        check_items(schedule, path, parsed.items.ids())?;
        let least = min_interactions.map_or(0, |n| n as usize);
        let taken = || parsed.users().filter(|(_, items)| items.len() >= least);
        if let Some((user, items)) = taken().find(|(_, items)| items.len() < need) {
            let user = cut(&String::from_utf8_lossy(parsed.names.id(user)));
            return Err(DataError::ShortHistory { path: path.into(), user, found: items.len(), need });
        }
        let histories = Histories::new(taken().map(|(_, items)| items), parsed.items.ids(), hold_out);
        if histories.users() == 0 {
            return Err(DataError::NoUsers { path: path.into(), need: need.max(least) });
        }
        let histories = Arc::new(histories);
        let epochs =
            Epochs { samples: histories.users() as u64, batch: u64::from(schedule.settings.batch).max(1) };
        let schedule = Arc::clone(schedule);
        let (path, vocabulary) = (path.into(), Arc::new(parsed.items));
        Ok(Self { schedule, path, histories, vocabulary, epochs, seed, order: Vec::new(), order_of: None })
    }
}

impl Source for Csv {
    fn describe(&self) -> String {
        format!("{} ({} users)", shown(&self.path), self.histories.users())
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
        // Other ids with the same numbers are other data.
        let mut digest = Digest::new();
        digest.bytes(self.histories.digest().as_bytes());
        self.vocabulary.offsets().iter().for_each(|at| digest.number(*at as u64));
        digest.bytes(self.vocabulary.text());
        Ok(digest.text())
    }

    fn histories(&self) -> Option<Arc<Histories>> {
        Some(Arc::clone(&self.histories))
    }

    fn vocabulary(&self) -> Option<Arc<Vocabulary>> {
        Some(Arc::clone(&self.vocabulary))
    }

    fn adopt(&mut self, mut known: Vocabulary) -> Result<(), DataError> {
        let before = known.ids();
        let mut rows = Vec::with_capacity(self.vocabulary.ids());
        for n in 0..self.vocabulary.ids() as u32 {
            rows.push(known.add(self.vocabulary.id(n)).ok_or_else(|| too_many(&self.path))?);
        }
        if let Some(table) = too_small(&self.schedule, known.ids()) {
            return Err(DataError::TooManyTogether {
                path: self.path.clone(),
                known: before,
                items: known.ids(),
                table: table.name.clone(),
                rows: table.rows,
            });
        }
        self.histories = Arc::new(self.histories.renumbered(&rows, known.ids()));
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
                    from: format!("the interactions in {}", shown(path)),
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
