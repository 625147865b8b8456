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

/// What is asked for in two exchanges with relays between: of relays by the node, and of owners by relays.
#[derive(Debug, Clone)]
pub(super) struct Relays {
    /// What ranks ask for.
    entries: String,
    /// What a node asks its relay for.
    asked: String,
    /// What the relay asks for.
    pub(super) relayed: String,
    /// Where the former stands in the latter.
    places: String,
    /// What owners are asked for.
    pub(super) owned: String,
}

impl Relays {
    pub(super) fn new(within: u32, between: u32, entries: &str) -> Self {
        let asked = format!("(ask_relay {within} {entries})");
        let relayed = format!("(relayed {between} {asked})");
        let places = format!("(places {relayed} {asked})");
        let owned = ask(&between.to_string(), &relayed);
        Self { entries: entries.to_owned(), asked, relayed, places, owned }
    }

    /// Rows that travel together.
    pub(super) fn fetch(&self, shard: &str) -> String {
        let Self { entries, asked, relayed, places, owned } = self;
        format!(
            "(return (pass_rows (return (gather {shard} {owned}) {owned} {relayed}) {places}) {asked} {entries})"
        )
    }

    /// An update by gradients that travel together.
    pub(super) fn update(&self, sum: &str) -> String {
        let Self { entries, asked, relayed, places, owned } = self;
        let sums = format!("(sum_asked {places} {asked} (send {sum} {entries} {asked}))");
        format!("(update (total {owned} (send {sums} {relayed} {owned})))")
    }

    /// The relay's classes of what its node asks for, by those that owners tell it.
    fn passed(&self, told: &str) -> String {
        format!("(pass_classes {told} {})", self.places)
    }
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
    /// Relays that ask the owners, if ranks do not.
    pub relays: Option<Relays>,
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
        let Reuse { lookahead, windows, each } = self.reuse;
        format!("(partition {way} {lookahead} {windows} {each} {of} {})", self.asked)
    }

    /// Where the rows of a class stand at their owners.
    pub(super) fn at_owner(&self, class: usize) -> String {
        self.positions(class, &self.partition(&self.asked))
    }

    /// Where they stand at the ranks that asked.
    pub(super) fn at_asker(&self, class: usize) -> String {
        let classes = if self.replicated {
            self.partition(&format!("(own {} {})", self.asked, self.entries))
        } else if let Some(relays) = &self.relays {
            format!("(answer {} {})", relays.passed(&self.told(relays)), self.entries)
        } else {
            format!("(answer {} {})", self.partition(&self.asked), self.entries)
        };
        self.positions(class, &classes)
    }

    /// What owners tell relays.
    fn told(&self, relays: &Relays) -> String {
        format!("(answer {} {})", self.partition(&self.asked), relays.relayed)
    }

    /// Rows of a class on their way to the ranks that asked.
    fn returned(&self, shard: &str, class: usize) -> String {
        let (owner, asker, asked) = (self.at_owner(class), self.at_asker(class), &self.asked);
        let looked_up = format!("(gather {shard} {asked} {owner})");
        let Some(relays) = &self.relays else { return format!("(return {looked_up} {owner} {asker})") };
        let told = self.told(relays);
        let (there, of_node) = (self.positions(class, &told), self.positions(class, &relays.passed(&told)));
        let arrived = format!("(return {looked_up} {owner} {there})");
        format!("(return (pass_rows {arrived} {} {there} {of_node}) {of_node} {asker})", relays.places)
    }

    /// The update by gradients of a class.
    pub(super) fn updated(&self, sum: &str, class: usize) -> String {
        let (owner, asker, asked) = (self.at_owner(class), self.at_asker(class), &self.asked);
        let own = format!("(split {sum} {asker})");
        let sent = if let Some(relays) = &self.relays {
            let told = self.told(relays);
            let (there, of_node) =
                (self.positions(class, &told), self.positions(class, &relays.passed(&told)));
            let Relays { places, asked, .. } = relays;
            let received = format!("(send {own} {asker} {of_node})");
            format!("(send (sum_asked {places} {asked} {received} {of_node} {there}) {there} {owner})")
        } else {
            let send = if self.replicated { "send_all" } else { "send" };
            format!("({send} {own} {asker} {owner})")
        };
        format!("(update (total {asked} {sent} {owner}))")
    }

    /// The rows that a microbatch and those before need, of a shard.
    pub(super) fn merged(&self, shard: &str, microbatch: u32) -> String {
        let mut before: Option<String> = None;
        for window in 0..=self.reuse.window(microbatch) {
            let mut operands: Vec<String> = before.into_iter().collect();
            for class in classes_of(self.reuse, self.way, window) {
                let (rows, asker) = (self.returned(shard, class as usize), self.at_asker(class as usize));
                operands.push(format!("{rows} {asker}"));
            }
            before = Some(format!("(merge (list {}))", operands.join(" ")));
        }
        before.unwrap_or_default()
    }
}
