//! Kinds of operation with their colours, patterns and letters.
//!
//! The colours are those of Okabe and Ito (told apart with every kind of colour vision), with Tol's wine as a ninth.
//! Colour is never the only cue: each kind has a pattern and a letter too.

use std::collections::BTreeSet;

use fs_schedule::action::{Action, Effect, Of, Phase};
use fs_schedule::{Op, Place, Reuse, Schedule, Way};
use serde::Serialize;

/// What an operation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Ids and classes of rows: everything that happens before rows are looked up.
    InputDist,
    /// Lookup and output dist of rows that are not told apart.
    Rows,
    /// Of overlapping rows: the batch (microbatch) before used them too, so they wait for its update.
    Ol,
    /// Of rows with a greater reuse distance.
    Nol,
    /// Gradient dist and the update of rows.
    Gradient,
    /// All-reduce of dense gradients and the update of dense parameters.
    AllReduce,
    /// Work of the host.
    Host,
}

/// How a kind's boxes are filled besides their colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Pattern {
    /// Nothing.
    Solid,
    /// Lines like `/`.
    Rising,
    /// Lines like `\`.
    Falling,
    /// Both.
    Crossed,
    /// Dots.
    Dotted,
    /// Lines like `-`.
    Horizontal,
    /// Lines like `|`.
    Vertical,
    /// Lines like `-` and `|`.
    Grid,
}

impl Purpose {
    /// All of them, in the order of legends.
    pub(crate) const ALL: [Self; 9] = [
        Self::Forward,
        Self::Backward,
        Self::InputDist,
        Self::Rows,
        Self::Ol,
        Self::Nol,
        Self::Gradient,
        Self::AllReduce,
        Self::Host,
    ];
    /// Name in legends.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::InputDist => "input dist",
            Self::Rows => "rows (all)",
            Self::Ol => "OL rows",
            Self::Nol => "NOL rows",
            Self::Gradient => "gradient dist, apply",
            Self::AllReduce => "dense all-reduce, update",
            Self::Host => "host",
        }
    }
    /// What it means, in a sentence.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Forward => "forward pass of the dense model",
            Self::Backward => "backward pass of the dense model",
            Self::InputDist => "ids to the owners of their rows, and classes of reuse distance",
            Self::Rows => "lookup and output dist of rows that are not told apart by reuse distance",
            Self::Ol => "lookup and output dist of overlapping rows: the batch before updates them",
            Self::Nol => "lookup and output dist of rows that the batch before does not update",
            Self::Gradient => "row gradients to their owners, and the update there",
            Self::AllReduce => "sum of dense gradients over ranks, and the dense update",
            Self::Host => "work of the host",
        }
    }
    /// Fill, as `#rrggbb`; the same on light and dark backgrounds.
    pub(crate) fn colour(self) -> &'static str {
        match self {
            Self::Forward => "#0072b2",
            Self::Backward => "#d55e00",
            Self::InputDist => "#cc79a7",
            Self::Rows => "#f0e442",
            Self::Ol => "#e69f00",
            Self::Nol => "#009e73",
            Self::Gradient => "#56b4e9",
            Self::AllReduce => "#882255",
            Self::Host => "#999999",
        }
    }
    /// Text on it, as `#rrggbb`.
    pub(crate) fn ink(self) -> &'static str {
        match self {
            Self::Forward | Self::AllReduce => "#ffffff",
            _ => "#000000",
        }
    }
    /// Its pattern.
    pub(crate) fn pattern(self) -> Pattern {
        match self {
            Self::Forward | Self::Host => Pattern::Solid,
            Self::Backward => Pattern::Rising,
            Self::InputDist => Pattern::Dotted,
            Self::Rows => Pattern::Horizontal,
            Self::Ol => Pattern::Crossed,
            Self::Nol => Pattern::Vertical,
            Self::Gradient => Pattern::Falling,
            Self::AllReduce => Pattern::Grid,
        }
    }
    /// Its letter, for text.
    pub fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputDist => 'I',
            Self::Rows => 'R',
            Self::Ol => 'O',
            Self::Nol => 'N',
            Self::Gradient => 'G',
            Self::AllReduce => 'A',
            Self::Host => 'H',
        }
    }
}

/// Reuse of an exchange's rows; `None` if its rows travel all together.
pub(super) fn reuse(s: &Schedule, exchange: u32) -> Option<Reuse> {
    s.exchanges.get(exchange as usize)?.reuse(s.settings.microbatches)
}

/// The exchange, way and class of an operation on rows of one class.
pub(super) fn class(action: &Action) -> Option<(u32, Way, u32)> {
    // Of several classes the first is the most urgent.
    let Of { exchanges, way, classes } = action.facts().of;
    Some((*exchanges.first()?, way?, *classes.first()?))
}

/// True for a class of lookups that the batch before may update: those of a distance that reaches into it.
fn urgent(reuse: Reuse, class: u32) -> bool {
    let urgent = |c: &fs_schedule::reuse::Class| c.distance.is_some_and(|d| d <= c.window + reuse.windows);
    reuse.classes(Way::Forward).get(class as usize).is_some_and(urgent)
}

/// The kind of every operation of the training program. `order`: operations in the order of one batch.
pub(super) fn kinds(s: &Schedule, order: &[u32]) -> Vec<Purpose> {
    let ops = &s.train.ops;
    let mut kinds = vec![Purpose::Forward; ops.len()];
    // What depends on a loss is the backward pass, whatever its action (gradients are added, scaled and copied too).
    let mut derived: BTreeSet<Place> = BTreeSet::new();
    for i in order {
        let op: &Op = &ops[*i as usize];
        let after_loss = op.reads.iter().any(|r| r.batch == 0 && derived.contains(&r.place));
        let facts = op.action.facts();
        if facts.effects.contains(&Effect::AddsLoss) || after_loss {
            let places = op.writes.iter().map(|w| w.place);
            derived.extend(places.filter(|p| matches!(p, Place::Buffer(_) | Place::Gradient(_))));
        }
        kinds[*i as usize] = match facts.phase {
            Phase::Load | Phase::Balance => Purpose::Host,
            Phase::InputDist => Purpose::InputDist,
            // Of several classes it waits for the most urgent one.
            Phase::OutputDist => {
                let reuse = facts.of.exchanges.first().and_then(|e| reuse(s, *e));
                match reuse.filter(|_| !facts.of.classes.is_empty()) {
                    Some(r) if facts.of.classes.iter().any(|c| urgent(r, *c)) => Purpose::Ol,
                    Some(_) => Purpose::Nol,
                    None => Purpose::Rows,
                }
            }
            Phase::GradientDist => Purpose::Gradient,
            Phase::DenseUpdate => Purpose::AllReduce,
            Phase::Model | Phase::Evaluation if after_loss => Purpose::Backward,
            Phase::Model | Phase::Evaluation => Purpose::Forward,
        };
    }
    kinds
}
