//! The verifier: what holds of every schedule that the executor is given.
//!
//! It is the specification. It knows nothing of the compiler, trusts nothing in the file, and proves that every
//! execution that the machine of docs/scheduling.md allows gives the same bits as one batch after the other (the
//! proof is in docs/exactness.md). Each rule has a stable name, printed with the operations that break it. "X of
//! batch m before Y of batch m + D" always means: in every execution X has finished when Y starts, decided by
//! [vector clocks](clock).
//!
//! What a file may hold ([`limits`], [`declarations`]):
//! - `limits`: counts that bound the verifier's own time and memory.
//! - `version`: format and version are this crate's.
//! - `settings`: batch, ranks and microbatches are in range, a balance has costs of every length group, numbers are finite, rates and divisors in their ranges.
//! - `tables`: tables have rows and columns, names of tables, inputs and parameters are unique.
//! - `sharding`: owners are ranks, parts have columns; column-wise tables have no row-wise optimizer; only row-wise
//!   tables have a placement of rows, and planned rows are rows of the table, each on one rank that has room for them; hot rows, of
//!   which all ranks have replicas, are rows of a table with owners, each once.
//! - `exchanges`: one per part of a table, all parts there, parts after the first send the first's entries; lookahead
//!   in 1..=64, at most [`Reuse::MOST`](crate::reuse::Reuse::MOST) classes; with relays two of the same rows that name each
//!   other, of tables with owners and at most 2^32 rows, on several nodes; of a table with hot rows one that lists all entries,
//!   and for each part one with the owners and one of the hot rows that have a share of them, all of the same lookahead.
//! - `inputs`: inputs refer to tables, length groups and sequences that exist; groups hold at least one token.
//! - `reference` ([`mod@reference`]): terms refer to what is there and fit together, the digest is that of reference and
//!   declarations; training has a loss, evaluation ranks once.
//!
//! Each program without order ([`structure`]):
//! - `indices`: operands, dependencies, sizes and classes refer to what exists; column ranges lie in their buffer.
//! - `operands`: operands obey the action's signature ([`crate::signature`]); lists of numbers are whole buffers.
//! - `names`: names of operations are unique.
//! - `order`: dependencies within a step point backwards (so there is no cycle and no wait for oneself), none repeats.
//! - `writes`: only buffers, gradients, parameters and tables are written, each by the actions that may; no buffer is
//!   read and written by one operation, not even in different columns; an operation adds to all gradients that it makes
//!   or to none.
//! - `engines`: engines are declared and do such operations: host loads, compute computes, the others transfer.
//! - `joined`: operations of one launch stand together, are the same for other rows each, of one queue and batch, and none but
//!   the first has dependencies. None of them comes before another.
//! - `stages`: batch offsets and priorities are in range.
//! - `chunks`: only transfers have chunks, of at least one byte.
//! - `times`: planned times are numbers, in the order of the queue; so are predicted ones and those told of a search, which names tables
//!   that are there.
//! - `offsets`: only partitions read buffers of other batches, nothing writes them.
//! - `microbatch`: an operation uses its own microbatch's samples.
//! - `site`: an operation and the buffers that it uses are of samples at one site: as assigned, where samples go to other
//!   ranks, at home otherwise, and home is where they are loaded, planned and sent away.
//! - `inputs`: lengths of all groups are shared, and samples travel with all of their inputs.
//!
//! Buffers and gradients ([`storage`]):
//! - `fresh`: all columns that an operation reads were written before, and the writes come before the read, also those
//!   of another batch; an addition has something to add to.
//! - `sums`: additions into one place come one after the other, in one order.
//! - `storage`: nothing is overwritten before its readers are done; lifetimes cover uses; buffers of one slot live one
//!   after the other around the step.
//! - `copies`: all uses of batch m's copy come before batch m + copies writes it.
//! - `sizes` ([`sizes`]): an operation on a buffer whose rows are counted while its batch runs comes after the count.
//!
//! Batches and dense parameters ([`dense`]):
//! - `frame`: a step loads one batch, and gives its samples to ranks once if the settings say so; evaluation updates nothing, is not staged and not split by reuse distance.
//! - `batch`: every operation comes after the load of its batch, and on samples as assigned after they were brought.
//! - `in-flight`: every use of a batch and its sizes comes before the load of the batch that replaces it.
//! - `dense`: each gradient that is made is reduced once and updates its parameter once, in this order.
//! - `parameter`: a parameter is read after the update of the batch before and before the update of its own batch.
//!
//! Tables ([`tables`]), for each two operations whose classes can hold the same row:
//! - `fresh-read`: an update comes before the lookup at the row's next use.
//! - `early-write`: a lookup comes before its own batch's update.
//! - `apply-order`: an update comes before the update at the row's next use.
//!
//! Exchanges ([`exchange`]), by what buffers hold, not by names:
//! - `exchange`: every row that is asked for is looked up, sent and put in place once, in time for its first use; every
//!   gradient is sent and applied once, after its last; ids, classes and positions are this exchange's; rows of a
//!   sampled softmax are unique; relays pass on what their node asked for, rows to it and its gradients summed, once of
//!   each class, and nothing else reads what is on its way; hot rows are put in place once, with the first of the others, and
//!   what lists entries of which others have shares moves nothing itself.
//! - `history`: a partition sees the rows of exactly the batches that its distances reach.
//! - `collective`: transfers are of the table's kind, their counts those of the right side.
//!
//! The model ([`model`]):
//! - `model`: every loss, ranking, dense gradient that is reduced and row gradient that is sent is the reference's term
//!   for each microbatch, additions in the reference's order; none is missing, none comes twice; the ids that are asked
//!   for are those that the reference uses.

mod clock;
mod declarations;
mod dense;
mod exchange;
mod limits;
mod model;
mod reference;
mod sizes;
mod storage;
mod structure;
mod tables;

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::program::{Program, Schedule};
use clock::Clocks;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("rule `{rule}`: {message}")]
pub struct Violation {
    /// The rule's stable name.
    pub rule: &'static str,
    /// What breaks it, naming the operations.
    pub message: String,
}

/// The rules' names, in the order of this module's documentation.
pub const RULES: &[&str] = &[
    "limits",
    "version",
    "settings",
    "tables",
    "sharding",
    "exchanges",
    "inputs",
    "reference",
    "indices",
    "operands",
    "names",
    "order",
    "writes",
    "engines",
    "joined",
    "stages",
    "chunks",
    "times",
    "offsets",
    "microbatch",
    "site",
    "fresh",
    "sums",
    "storage",
    "copies",
    "sizes",
    "frame",
    "batch",
    "in-flight",
    "dense",
    "parameter",
    "fresh-read",
    "early-write",
    "apply-order",
    "exchange",
    "history",
    "collective",
    "model",
];

/// Violations of one rule beyond this number are not listed.
const MOST_VIOLATIONS: usize = 16;
/// Longest message, in characters.
const MOST_MESSAGE: usize = 2000;

/// Collects violations.
#[derive(Debug, Default)]
struct Report(Vec<Violation>, BTreeMap<&'static str, usize>);

impl Report {
    fn fail(&mut self, rule: &'static str, message: impl Into<String>) {
        debug_assert!(RULES.contains(&rule), "{rule} is not listed");
        let count = self.1.entry(rule).or_insert(0);
        *count += 1;
        if *count <= MOST_VIOLATIONS {
            let message: String = message.into();
            let message = match message.char_indices().nth(MOST_MESSAGE) {
                Some((end, _)) => format!("{}...", &message[..end]),
                None => message,
            };
            self.0.push(Violation { rule, message });
        }
    }
    fn check(&mut self, ok: bool, rule: &'static str, message: impl FnOnce() -> String) {
        if !ok && self.1.get(rule).is_none_or(|n| *n < MOST_VIOLATIONS) {
            self.fail(rule, message());
        }
    }
}

/// Violations found, at most 16 of a rule; none for a schedule that may run.
pub fn verify(schedule: &Schedule) -> Vec<Violation> {
    let mut report = Report::default();
    limits::check(schedule, &mut report);
    // Operands are judged against declarations, so those come first.
    if report.0.is_empty() {
        declarations::check(schedule, &mut report);
    }
    if report.0.is_empty() {
        let [train, evaluated] = reference::check(schedule, &mut report);
        program(schedule, &schedule.train, &train, false, &mut report);
        if let Some(evaluation) = &schedule.evaluation {
            program(schedule, evaluation, &evaluated, true, &mut report);
        }
    }
    report.0
}

impl Schedule {
    /// Writes down how this schedule's sums round, and the digest of the whole reference.
    pub fn seal(&mut self) {
        self.reference.sums = sums(self);
        self.reference.digest = self.reference_digest();
    }
}

/// How the sums of a schedule's training and evaluation round, as [`Reference::sums`](crate::reference::Reference::sums)
/// has it; empty where it makes no sense by itself.
fn sums(s: &Schedule) -> [String; 2] {
    let mut report = Report::default();
    limits::check(s, &mut report);
    if report.0.is_empty() {
        declarations::check(s, &mut report);
    }
    if !report.0.is_empty() {
        return Default::default();
    }
    let widths = reference::terms(s, &mut report);
    if !report.0.is_empty() {
        return Default::default();
    }
    let sound = |p: &Program, evaluation: bool| {
        let mut report = Report::default();
        structure::check(s, p, evaluation, &mut report);
        report.0.is_empty()
    };
    let of = |p: &Program, evaluation: bool| {
        let cx = sound(p, evaluation).then(|| Context::new(s, p, evaluation));
        let run = |cx| model::run(&cx, &widths[usize::from(evaluation)], &mut Report::default());
        cx.map(run).unwrap_or_default()
    };
    [of(&s.train, false), s.evaluation.as_ref().map_or_else(String::new, |p| of(p, true))]
}

fn program(s: &Schedule, p: &Program, widths: &reference::Widths, evaluation: bool, r: &mut Report) {
    let before = r.0.len();
    structure::check(s, p, evaluation, r);
    // Order is judged between operations that make sense by themselves.
    if r.0.len() > before {
        return;
    }
    let cx = Context::new(s, p, evaluation);
    storage::check(&cx, r);
    sizes::check(&cx, r);
    dense::check(&cx, r);
    tables::check(&cx, r);
    exchange::check(&cx, r);
    // A broken reference has been reported.
    let sound = !r.1.contains_key("reference");
    if sound {
        model::check(&cx, widths, r);
    }
    r.check(cx.steps.any(), "limits", || {
        "too many operations use the same storage: the order of all pairs takes too long to check".into()
    });
}

/// A program with what the rules of order need.
struct Context<'a> {
    s: &'a Schedule,
    p: &'a Program,
    evaluation: bool,
    clocks: Clocks,
    /// Where each operation stands in the order of one batch: falling stage, then position.
    rank: Vec<u32>,
    /// The operations in that order.
    sorted: Vec<u32>,
    /// Comparisons that may still be made.
    steps: Steps,
}

/// Comparisons that may still be made.
struct Steps(Cell<u64>);

impl Steps {
    /// Pays for asking and for `n` comparisons; false if there were too many.
    fn pay(&self, n: usize) -> bool {
        self.0.set(self.0.get().saturating_sub(n as u64).saturating_sub(1));
        self.any()
    }
    /// Whether there were not too many so far.
    fn any(&self) -> bool {
        self.0.get() != 0
    }
}

impl<'a> Context<'a> {
    fn new(s: &'a Schedule, p: &'a Program, evaluation: bool) -> Self {
        let mut sorted: Vec<u32> = (0..p.ops.len() as u32).collect();
        sorted.sort_by_key(|i| (-p.ops[*i as usize].stage, *i));
        let mut rank = vec![0; p.ops.len()];
        for (at, i) in sorted.iter().enumerate() {
            rank[*i as usize] = at as u32;
        }
        Self {
            s,
            p,
            evaluation,
            clocks: Clocks::new(p),
            rank,
            sorted,
            steps: Steps(Cell::new(limits::MOST_STEPS)),
        }
    }
    /// Fails unless `x` of batch m comes before `y` of batch m + `batches`; `why` ends the sentence.
    fn need(
        &self,
        x: u32,
        y: u32,
        batches: i64,
        rule: &'static str,
        r: &mut Report,
        why: impl FnOnce() -> String,
    ) {
        r.check(self.clocks.before(x as usize, y as usize, batches), rule, || {
            let of = |b: i64| if b == 0 { String::from("m") } else { format!("m{b:+}") };
            format!(
                "`{}` of batch m must come before `{}` of batch {}; nothing orders them: {}",
                self.name(x),
                self.name(y),
                of(batches),
                why()
            )
        });
    }
    /// Pays for `n` comparisons; false if there were too many.
    fn spend(&self, n: usize) -> bool {
        self.steps.pay(n)
    }
    fn name(&self, op: u32) -> &'a str {
        &self.p.ops[op as usize].name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asking costs one, so that what asks without end ends; what is spent stays spent.
    #[test]
    fn steps_run_out() {
        let steps = Steps(Cell::new(8));
        assert!(steps.pay(4) && steps.any(), "five of eight");
        assert!(steps.pay(1), "seven of eight");
        assert!(!steps.pay(0) && !steps.any(), "all of them");
        assert!(!steps.pay(0) && !steps.any());
        assert!(!Steps(Cell::new(8)).pay(usize::MAX));
    }
}
