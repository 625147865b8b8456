//! What became of a search over tables, as a schedule keeps it and as people read it.

use std::fmt;

use fs_schedule::search::{Derivation, OtherWay, Rewrite, TriedStrategy, by};
use fs_schedule::{Sent, Sharding};

use super::{Best, Cost, Verdict};
use crate::distribution::Choice;

/// Ways that were not taken and are told of.
const TOLD: usize = 5;

/// What became of the search over tables.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was changed, in order.
    pub swaps: Vec<Swap>,
    /// Classes of alike tables.
    pub classes: usize,
    /// Ways that were compiled, and of those the ones that were scheduled.
    pub tried: usize,
    /// As said.
    pub scheduled: usize,
    /// Nodes of the largest e-graph.
    pub nodes: usize,
    /// There was more to try.
    pub limited: bool,
    /// Operations that were simulated to find orders: what the search costs, on any machine.
    pub simulated: u64,
    /// Ways that a defect of the compiler has ended.
    pub defects: usize,
    /// What came closest of what was not taken, the shortest step first.
    pub others: Vec<Other>,
    /// How the serial way became what there is.
    pub derivations: Vec<Derivation>,
}

/// What may change: all that is said of it is said in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// How tables are distributed.
    Distributed(Choice),
    /// How tables are distributed that are not all alike.
    Several(String),
    /// Who owns their rows.
    Owned(String),
    /// With which others they travel.
    Travelling(String),
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Distributed(choice) => f.write_str(&words(choice)),
            Self::Several(said) | Self::Owned(said) | Self::Travelling(said) => f.write_str(said),
        }
    }
}

/// A choice that made the step shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct Swap {
    /// Of these tables.
    pub tables: Vec<String>,
    /// What they were, and what they are.
    pub ways: (Way, Way),
    /// Rules by which one follows from the other.
    pub rules: Vec<&'static str>,
    /// Seconds of a step, before and after.
    pub step: (f64, f64),
    /// Bytes that a rank sends of all of them in a step, before and after, as expected.
    pub wire: (f64, f64),
    /// Those to other nodes.
    pub far: (f64, f64),
    /// Seconds of a step with all other swaps and without this one, if that can be scheduled, and what a rank sends in it.
    pub without: Option<(f64, Sent)>,
}

/// A way that was scheduled and not taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Other {
    /// For these tables.
    pub tables: Vec<String>,
    /// What they would be.
    pub way: Way,
    /// Seconds of a step in the best order that was looked for.
    pub step: f64,
}

/// Where a table lives, in a word.
pub fn place(sharding: &Sharding) -> &'static str {
    match sharding {
        Sharding::RowWise => "row-wise",
        Sharding::TableWise { .. } => "table-wise",
        Sharding::ColumnWise { .. } => "column-wise",
        Sharding::DataParallel => "replicated",
    }
}

/// How a table is distributed, in few words.
pub(super) fn words(choice: &Choice) -> String {
    let place = place(&choice.sharding);
    let rows = if choice.unique { "each row once" } else { "a row per occurrence" };
    let apart = match choice.lookahead {
        Some(k) => format!("lookahead {k}"),
        None => "together".into(),
    };
    let windows = choice
        .windows
        .map_or_else(String::new, |n| format!(" in {n} window{}", if n == 1 { "" } else { "s" }));
    let relayed = if choice.relayed { ", through relays" } else { "" };
    let folded = if choice.folded { ", asked for where samples are read" } else { "" };
    format!("{place}, {rows}, {apart}{windows}{relayed}{folded}")
}

impl fmt::Display for Swap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Of no table are the gradients of parameters.
        let first = self.tables.first().map_or("dense gradients", String::as_str);
        let others = match self.tables.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let by = by(&self.rules);
        write!(
            f,
            "{first}{others}: {} instead of {} (by {by}): {:.3} ms a step instead of {:.3}, {:.3} MB sent instead of {:.3}",
            self.ways.1,
            self.ways.0,
            self.step.1 * 1e3,
            self.step.0 * 1e3,
            self.wire.1 / 1e6,
            self.wire.0 / 1e6,
        )?;
        if self.far != (0.0, 0.0) {
            write!(f, ", {:.3} MB between nodes instead of {:.3}", self.far.1 / 1e6, self.far.0 / 1e6)?;
        }
        if self.step.1 > self.step.0 {
            write!(f, "; worth it with what follows")?;
        }
        Ok(())
    }
}

impl Outcome {
    /// Remembers a way and what it costs in the best order known of it.
    pub(super) fn passed_over(&mut self, tables: &[String], way: &Way, cost: Cost) {
        let known = self.others.iter_mut().find(|o| o.tables == tables && o.way == *way);
        match known {
            Some(other) => other.step = other.step.min(cost.step),
            None => self.others.push(Other { tables: tables.to_vec(), way: way.clone(), step: cost.step }),
        }
    }

    /// What was tried since.
    pub(super) fn since(&self, before: &Self) -> Self {
        let (tried, scheduled) = (self.tried - before.tried, self.scheduled - before.scheduled);
        Self { tried, scheduled, limited: self.limited, ..Self::default() }
    }

    /// Counts what was tried from another start.
    pub(super) fn also(&mut self, other: &Self) {
        self.tried += other.tried;
        self.scheduled += other.scheduled;
        self.limited |= other.limited;
    }

    /// Keeps what came closest of what was not taken.
    pub(super) fn told(&mut self) {
        let swaps = &self.swaps;
        let taken = |o: &Other| swaps.iter().any(|swap| (&swap.tables, &swap.ways.1) == (&o.tables, &o.way));
        self.others.retain(|other| !taken(other));
        self.others.sort_by(|a, b| a.step.total_cmp(&b.step).then_with(|| a.tables.cmp(&b.tables)));
        self.others.truncate(TOLD);
    }

    /// As a schedule keeps it.
    pub(super) fn record(&self, best: &Best) -> fs_schedule::Search {
        let strategies = best.tried.iter().map(|tried| {
            let (step, at_least) = match tried.verdict {
                Verdict::Scheduled(cost) => (Some(cost.step), None),
                Verdict::Pruned(bound) => (None, Some(bound.step)),
            };
            TriedStrategy { name: tried.describe(), step, at_least }
        });
        let rewrites = self.swaps.iter().map(|swap| Rewrite {
            tables: swap.tables.clone(),
            from: swap.ways.0.to_string(),
            to: swap.ways.1.to_string(),
            rules: swap.rules.iter().map(|rule| (*rule).to_owned()).collect(),
            step: swap.step.into(),
            bytes: swap.wire.into(),
            between_nodes: (swap.far != (0.0, 0.0)).then_some(swap.far.into()),
            without: swap.without.map(|(step, _)| step),
            without_sent: swap.without.map(|(_, sent)| sent),
        });
        let others = self.others.iter().map(|other| OtherWay {
            tables: other.tables.clone(),
            to: other.way.to_string(),
            step: other.step,
        });
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        fs_schedule::Search {
            strategies: strategies.collect(),
            rewrites: rewrites.collect(),
            others: others.collect(),
            derivations: self.derivations.clone(),
            kinds: count(self.classes),
            nodes: count(self.nodes),
            ways: count(self.tried),
            scheduled: count(self.scheduled),
            limited: self.limited,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.limited { "; there was more to try" } else { "" };
        write!(
            f,
            "{} kind(s) of tables, e-graphs of up to {} nodes, {} other ways tried, {} scheduled, {} taken{more}",
            self.classes,
            self.nodes,
            self.tried,
            self.scheduled,
            self.swaps.len()
        )?;
        if self.defects > 0 {
            write!(f, "; {} ended by a defect of the compiler, which is worth a report", self.defects)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_makes_steps_longer_is_said_to_be_worth_it() {
        let told = |after: f64| {
            let ways = (Way::Travelling("alone".into()), Way::Travelling("together".into()));
            let rules = vec!["together"];
            let none = (0.0, 0.0);
            Swap {
                tables: vec!["t".into()],
                ways,
                rules,
                step: (1e-3, after),
                wire: none,
                far: none,
                without: None,
            }
            .to_string()
        };
        let begins = "t: together instead of alone (by together): ";
        assert_eq!(
            told(1e-3),
            format!("{begins}1.000 ms a step instead of 1.000, 0.000 MB sent instead of 0.000")
        );
        assert!(told(2e-3).ends_with("0.000 MB sent instead of 0.000; worth it with what follows"));
    }
}
