//! Users' interactions in order of time, with the last one held out where it is to be predicted.

use fs_schedule::{InputKind, Schedule};

use super::digest::Digest;
use super::{GlobalBatch, Question, Truncation, truncate};

/// Items of each user in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histories {
    /// Offsets of each user's interactions, `users + 1` numbers.
    offsets: Vec<usize>,
    /// Items, by user.
    items: Vec<u32>,
    /// Distinct items in the file.
    distinct: usize,
    /// Whether each user's last item is kept for evaluation.
    hold_out: bool,
}

impl Histories {
    /// From the items of each user.
    pub fn new<'a>(users: impl Iterator<Item = &'a [u32]> + Clone, distinct: usize, hold_out: bool) -> Self {
        let mut offsets = vec![0];
        let mut items = Vec::with_capacity(users.clone().map(<[u32]>::len).sum());
        for user in users {
            items.extend_from_slice(user);
            offsets.push(items.len());
        }
        Self { offsets, items, distinct, hold_out }
    }

    /// The same with other numbers of items: item n becomes `rows[n]`, of `distinct`.
    #[must_use]
    pub fn renumbered(&self, rows: &[u32], distinct: usize) -> Self {
        let items = self.items.iter().map(|item| rows[*item as usize]).collect();
        Self { offsets: self.offsets.clone(), items, distinct, hold_out: self.hold_out }
    }

    /// What truncation leaves out of a pass over all users, in training and in evaluation.
    pub(super) fn truncation(&self, schedule: &Schedule) -> (Truncation, Option<Truncation>) {
        let (mut training, mut evaluation) = (Truncation::default(), Truncation::default());
        let ids = |group: usize| {
            let of = |kind| matches!(kind, InputKind::Ids { lengths, .. } if lengths as usize == group);
            schedule.inputs.iter().any(|i| of(i.kind))
        };
        let shifted = usize::from(schedule.inputs.iter().any(|i| matches!(i.kind, InputKind::Next { .. })));
        for group in (0..schedule.lengths.len()).filter(|g| ids(*g)) {
            let max = schedule.lengths[group].max;
            for user in 0..self.users() {
                let length = self.history(user).len();
                training.add(length.saturating_sub(shifted), max);
                evaluation.add(length, max);
            }
        }
        (training, self.hold_out.then_some(evaluation))
    }

    /// Of all that is trained on or asked about.
    pub(super) fn digest(&self) -> String {
        let mut digest = Digest::new();
        digest.number(u64::from(self.hold_out));
        self.offsets.iter().for_each(|n| digest.number(*n as u64));
        self.items.iter().for_each(|item| digest.number(u64::from(*item)));
        digest.text()
    }

    /// Number of users.
    pub fn users(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Distinct items of all users.
    pub fn distinct_items(&self) -> usize {
        self.distinct
    }

    /// What may be trained on: everything but the held-out item.
    pub fn history(&self, user: usize) -> &[u32] {
        let all = &self.items[self.offsets[user]..self.offsets[user + 1]];
        if self.hold_out { all.split_last().map_or(all, |(_, rest)| rest) } else { all }
    }

    /// The held-out item.
    pub fn target(&self, user: usize) -> Option<u32> {
        let all = &self.items[self.offsets[user]..self.offsets[user + 1]];
        all.last().copied().filter(|_| self.hold_out)
    }

    /// Distinct items of a user's history, ascending, into `seen`.
    pub fn seen(&self, user: usize, seen: &mut Vec<u32>) {
        seen.clear();
        seen.extend_from_slice(self.history(user));
        seen.sort_unstable();
        seen.dedup();
    }

    /// Appends a training sample: with a `next` input every id but the last and what follows each, else all ids.
    /// Samples are appended in order; of one that is not wanted only the length is counted.
    pub(super) fn push_training(
        &self,
        schedule: &Schedule,
        user: usize,
        sample: usize,
        batch: &mut GlobalBatch,
    ) {
        let history = self.history(user);
        let shifted = schedule.inputs.iter().any(|i| matches!(i.kind, InputKind::Next { .. }));
        let (ids, next) = match history.len() {
            n if shifted => (&history[..n.saturating_sub(1)], &history[n.min(1)..]),
            _ => (history, &history[..0]),
        };
        push(schedule, ids, next, sample, batch);
    }

    /// Appends an evaluation sample: the newest ids of the history, and the question what came next.
    pub fn push_question(&self, schedule: &Schedule, user: usize, sample: usize, batch: &mut GlobalBatch) {
        let target = i64::from(self.target(user).unwrap_or_default());
        push(schedule, self.history(user), &[], sample, batch);
        batch.questions.push(Question { user, target });
    }
}

fn push(schedule: &Schedule, ids: &[u32], next: &[u32], sample: usize, batch: &mut GlobalBatch) {
    let here = batch.held.position(sample).is_some();
    let mut added = vec![0; schedule.lengths.len()];
    for (values, input) in batch.inputs.iter_mut().zip(&schedule.inputs) {
        let (group, sequence) = match input.kind {
            InputKind::Ids { lengths, .. } => (lengths, ids),
            InputKind::Next { of } => match schedule.inputs.get(of as usize).map(|i| i.kind) {
                Some(InputKind::Ids { lengths, .. }) => (lengths, next),
                _ => continue,
            },
            _ => continue,
        };
        let lengths = &schedule.lengths[group as usize];
        let kept = truncate(sequence, lengths.max as usize, lengths.keep);
        if let Some(values) = values.ids_mut().filter(|_| here) {
            values.extend(kept.iter().map(|&id| i64::from(id)));
        }
        if matches!(input.kind, InputKind::Ids { .. }) {
            added[group as usize] = kept.len();
        }
    }
    for ((offsets, elsewhere), n) in batch.offsets.iter_mut().zip(&mut batch.elsewhere).zip(added) {
        if here {
            offsets.push(offsets.last().copied().unwrap_or(0) + n);
        } else {
            *elsewhere += n;
        }
    }
}
