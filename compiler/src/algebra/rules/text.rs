//! Patterns that several rules are made of.

use fs_schedule::Way;
use fs_schedule::reuse::Reuse;

use super::{Context, Use};
use crate::distribution::build::classes_of;

/// What is asked for in an exchange.
pub(super) fn ask(exchange: &str, entries: &str) -> String {
    format!("(ask {exchange} {entries})")
}

/// Rows that travel together, from their owners.
pub(super) fn fetch(shard: &str, exchange: &str, entries: &str) -> String {
    let asked = ask(exchange, entries);
    format!("(return (gather {shard} {asked}) {asked} {entries})")
}

/// An update by gradients that travel together, to the owners.
pub(super) fn update(sum: &str, exchange: &str, entries: &str) -> String {
    let asked = ask(exchange, entries);
    format!("(update (total {asked} (send {sum} {entries} {asked})))")
}

/// Likewise to all replicas.
pub(super) fn update_all(sum: &str, exchange: &str, entries: &str) -> String {
    let asked = format!("(ask_all {exchange} {entries})");
    format!("(update (total {asked} (send_all {sum} {entries} {asked})))")
}

/// A rank's summed gradients.
pub(super) fn sum(context: &Context, entries: &str) -> String {
    let of = |(n, how): (usize, &Use)| match how {
        Use::Each => format!("(expand_grad ?g{n} (inverse {entries} ?i{n}))"),
        Use::Sum => format!("(pool_grad added ?g{n} (inverse {entries} ?i{n}) ?o{n})"),
        Use::Mean => format!("(pool_grad averaged ?g{n} (inverse {entries} ?i{n}) ?o{n})"),
    };
    let each: Vec<String> = context.uses.iter().enumerate().map(of).collect();
    match &each[..] {
        [one] => one.clone(),
        _ => format!("(sum (list {}))", each.join(" ")),
    }
}

/// Classes of one way, as patterns.
pub(super) struct Classes<'a> {
    pub reuse: Reuse,
    pub way: Way,
    /// What the owners were asked for.
    pub asked: String,
    pub entries: &'a str,
    /// Replicas know what all use, and tell their own rows apart themselves.
    pub replicated: bool,
}

impl Classes<'_> {
    pub(super) fn count(&self) -> usize {
        self.reuse.count(self.way)
    }

    fn positions(&self, class: usize, of: &str) -> String {
        let way = match self.way {
            Way::Forward => "forward",
            Way::Backward => "backward",
        };
        format!("(positions {way} {class} {} {of})", self.count())
    }

    fn partition(&self, of: &str) -> String {
        let way = match self.way {
            Way::Forward => "forward",
            Way::Backward => "backward",
        };
        format!("(partition {way} {} {} {of} {})", self.reuse.lookahead, self.reuse.microbatches, self.asked)
    }

    /// Where the rows of a class stand at their owners.
    pub(super) fn at_owner(&self, class: usize) -> String {
        self.positions(class, &self.partition(&self.asked))
    }

    /// Where they stand at the ranks that asked.
    pub(super) fn at_asker(&self, class: usize) -> String {
        let classes = if self.replicated {
            self.partition(&format!("(own {} {})", self.asked, self.entries))
        } else {
            format!("(answer {} {})", self.partition(&self.asked), self.entries)
        };
        self.positions(class, &classes)
    }

    /// The rows that a microbatch and those before need, of a shard.
    pub(super) fn merged(&self, shard: &str, microbatch: u32) -> String {
        let mut before: Option<String> = None;
        for round in 0..=microbatch {
            let mut operands: Vec<String> = before.into_iter().collect();
            for class in classes_of(self.reuse, self.way, round) {
                let (owner, asker) = (self.at_owner(class as usize), self.at_asker(class as usize));
                let asked = &self.asked;
                operands.push(format!("(return (gather {shard} {asked} {owner}) {owner} {asker}) {asker}"));
            }
            before = Some(format!("(merge (list {}))", operands.join(" ")));
        }
        before.unwrap_or_default()
    }
}
