//! The terms of a table: how its rows and gradients travel, as its choice says.

use fs_schedule::reuse::Reuse;
use fs_schedule::{Sharding, Way};

use super::choice::Choice;
use super::op::Op;
use super::term::{Id, Terms};
use super::ty::TypeError;

/// A list at both sides: of all rows that are asked for, or of those of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// At the owners, or at all replicas.
    pub owner: Id,
    /// At those who ask.
    pub asker: Id,
}

/// Classes of one way, at both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    /// The class of each row, at both sides.
    pub of_rows: Lists,
    /// Where the rows of each class stand.
    pub lists: Vec<Lists>,
}

/// One exchange of a table, or two with relays between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The exchange with the owners.
    pub exchange: u32,
    /// Columns that it moves.
    pub columns: (u32, u32),
    /// Those of the table's rows.
    pub shard: Id,
    /// All that is asked for: of the owners, by ranks or relays.
    pub all: Lists,
    /// Replicated: rows of the rank's own entries.
    pub own: Option<Id>,
    /// Classes of lookups, if they are told apart.
    pub lookups: Option<Classes>,
    /// Classes of gradients, if they are told apart.
    pub(crate) updates: Option<Classes>,
    /// Who asks, if ranks do not.
    pub relay: Option<Relay>,
}

/// What is between ranks and a relay of their node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// All that ranks ask it for.
    pub all: Lists,
    /// Where each stands among what it asks for.
    pub(crate) places: Id,
    /// Classes of lookups, if they are told apart.
    pub lookups: Option<Classes>,
    /// Classes of gradients, if they are told apart.
    pub(crate) updates: Option<Classes>,
}

/// How the rows of one table travel in one function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// Every rank has all rows.
    pub replicated: bool,
    /// How rows are told apart; `None`: they travel together.
    pub reuse: Option<Reuse>,
    /// What a rank asks for.
    pub entries: Id,
    /// Those of it with owners and those of hot rows, if it has some.
    pub(crate) shares: Vec<Id>,
    /// Its exchanges: one, or one per part of a column-wise table.
    pub parts: Vec<Part>,
    /// Those of the hot rows of each part, if it has some.
    pub hot: Vec<Part>,
}

/// The exchanges of a table with hot rows beside those with the owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// That which lists all entries.
    pub list: u32,
    /// That of the hot rows of the first part; those of the other parts follow.
    pub hot: u32,
}

/// An exchange that has been given a number: which columns of a table it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numbered {
    /// Its number.
    pub exchange: u32,
    /// Of rows that come through relays: the number of the exchange between these and the owners.
    pub between: Option<u32>,
    /// First column, and one behind the last.
    pub columns: (u32, u32),
}

impl Distribution {
    /// The terms of a table that is used by `ids`, as chosen; where others ask for what a rank needs, ids were dispatched. `exchanges` are
    /// those of its parts; rows are told apart in functions that update them, `microbatches` long.
    ///
    /// # Errors
    /// If ids are none.
    pub fn build(
        terms: &mut Terms,
        table: u32,
        choice: &Choice,
        exchanges: &[Numbered],
        ids: &[Id],
        microbatches: Option<u32>,
    ) -> Result<Self, TypeError> {
        Self::with_hot(terms, table, choice, (exchanges, None), ids, microbatches)
    }

    /// The same of a table that may have hot rows.
    ///
    /// # Errors
    /// If ids are none.
    pub fn with_hot(
        terms: &mut Terms,
        table: u32,
        choice: &Choice,
        (exchanges, listed): (&[Numbered], Option<Listed>),
        ids: &[Id],
        microbatches: Option<u32>,
    ) -> Result<Self, TypeError> {
        let replicated = choice.sharding == Sharding::DataParallel;
        let reuse = microbatches.and_then(|microbatches| choice.reuse(microbatches));
        let exchange = exchanges.first().map_or(0, |e| e.exchange);
        let uses = reuse.is_some_and(|r| r.windows > 1);
        let list = listed.map_or(exchange, |listed| listed.list);
        let all_entries = terms.add(Op::Entries { exchange: list, unique: choice.unique, uses }, ids)?;
        let entries = match listed {
            Some(_) => terms.add(Op::Share { exchange, hot: false }, &[all_entries])?,
            None => all_entries,
        };
        let mut parts = Vec::with_capacity(exchanges.len());
        for Numbered { exchange, between, columns } in exchanges.iter().copied() {
            let (start, end) = columns;
            let shard = terms.add(Op::Shard { table, start, end, replicated }, &[])?;
            let relay = between.filter(|_| !replicated).map(|_| Relay::new(terms, exchange, entries));
            let relay = relay.transpose()?;
            let (exchange, asker) = match (&relay, between) {
                (Some(relay), Some(between)) => {
                    let relayed = Op::Relayed { exchange: between, uses };
                    (between, terms.add(relayed, &[relay.all.owner])?)
                }
                _ => (exchange, entries),
            };
            let relay = relay.map(|relay| relay.placed(terms, asker)).transpose()?;
            let asked = if replicated {
                terms.add(Op::AskAll { exchange }, &[asker])?
            } else if choice.folded && relay.is_none() {
                let at_home: Vec<Id> = ids.iter().flat_map(|ids| terms.node(*ids).children.clone()).collect();
                terms.add(Op::AskFor { exchange, unique: choice.unique, uses }, &at_home)?
            } else {
                terms.add(Op::Ask { exchange }, &[asker])?
            };
            let own = if replicated { Some(terms.add(Op::Own, &[asked, entries])?) } else { None };
            let all = Lists { owner: asked, asker };
            let mut part = Part { exchange, columns, shard, all, own, lookups: None, updates: None, relay };
            if let Some(reuse) = reuse {
                // Rows of replicas are at home, so their lookups are not told apart.
                if !replicated {
                    part.lookups = Some(part.classes(terms, reuse, Way::Forward)?);
                }
                part.updates = Some(part.classes(terms, reuse, Way::Backward)?);
                part.relay = part.relay.take().map(|relay| relay.told(terms, &part, reuse)).transpose()?;
            }
            parts.push(part);
        }
        let (mut hot, mut shares) = (Vec::new(), Vec::new());
        for (listed, part) in listed.into_iter().flat_map(|listed| parts.iter().map(move |p| (listed, p))) {
            let share = terms.add(Op::Share { exchange: listed.hot, hot: true }, &[all_entries])?;
            let exchange = listed.hot + hot.len() as u32;
            shares = vec![entries, share];
            hot.push(Part::hot(terms, (table, exchange), part.columns, share, reuse)?);
        }
        Ok(Self { replicated, reuse, entries: all_entries, shares, parts, hot })
    }

    /// A part, or behind all of these the hot rows of one.
    pub(crate) fn part(&self, i: usize) -> &Part {
        i.checked_sub(self.parts.len()).map_or_else(|| &self.parts[i], |hot| &self.hot[hot])
    }

    /// Parts and hot rows of parts.
    pub(crate) fn exchanges(&self) -> std::ops::Range<usize> {
        0..self.parts.len() + self.hot.len()
    }

    /// Which of these the hot rows of a part are.
    fn hot_of(&self, part: usize) -> Option<usize> {
        (part < self.hot.len()).then(|| self.parts.len() + part)
    }

    /// Rows that an exchange brings: of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn fetched(&self, terms: &mut Terms, part: usize, class: Option<u32>) -> Result<Id, TypeError> {
        let y = self.looked_up(terms, part, class)?;
        let p = self.part(part);
        if p.own.is_some() {
            return Ok(y);
        }
        let lists = p.lists(p.lookups.as_ref(), class)?;
        let Some(relay) = &p.relay else { return terms.add(Op::Return, &[y, lists.owner, lists.asker]) };
        let y = self.passed(terms, part, class)?.unwrap_or(y);
        let within = relay.lists(relay.lookups.as_ref(), class)?;
        terms.add(Op::Return, &[y, within.owner, within.asker])
    }

    /// Rows that relays are sent, if there are any: of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub(crate) fn relayed(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
    ) -> Result<Option<Id>, TypeError> {
        let p = &self.parts[part];
        if p.relay.is_none() {
            return Ok(None);
        }
        let y = self.looked_up(terms, part, class)?;
        let lists = p.lists(p.lookups.as_ref(), class)?;
        terms.add(Op::Return, &[y, lists.owner, lists.asker]).map(Some)
    }

    /// The same for each rank that asked, at the relay.
    ///
    /// # Errors
    /// If there is no such class.
    pub(crate) fn passed(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
    ) -> Result<Option<Id>, TypeError> {
        let p = &self.parts[part];
        let (Some(relay), Some(z)) = (&p.relay, self.relayed(terms, part, class)?) else { return Ok(None) };
        let mut operands = vec![z, relay.places];
        if class.is_some() {
            operands.push(p.lists(p.lookups.as_ref(), class)?.asker);
            operands.push(relay.lists(relay.lookups.as_ref(), class)?.owner);
        }
        terms.add(Op::PassRows, &operands).map(Some)
    }

    /// Rows at the owner (at home, of replicas): of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn looked_up(&self, terms: &mut Terms, part: usize, class: Option<u32>) -> Result<Id, TypeError> {
        let p = self.part(part);
        if let Some(own) = p.own {
            return terms.add(Op::Gather, &[p.shard, own]);
        }
        if class.is_none() {
            return terms.add(Op::Gather, &[p.shard, p.all.owner]);
        }
        let lists = p.lists(p.lookups.as_ref(), class)?;
        terms.add(Op::Gather, &[p.shard, p.all.owner, lists.owner])
    }

    /// Rows of an exchange that microbatch `round` and those before need, in the order of the entries.
    ///
    /// # Errors
    /// None that a built distribution has.
    pub(crate) fn arrived(&self, terms: &mut Terms, part: usize, round: u32) -> Result<Id, TypeError> {
        let hot = self.hot_of(part).map(|hot| self.looked_up(terms, hot, None)).transpose()?;
        let Some(reuse) = self.reuse.filter(|_| !self.replicated) else {
            let rows = self.fetched(terms, part, None)?;
            return hot.map_or(Ok(rows), |hot| terms.add(Op::Unite, &[rows, hot, self.entries]));
        };
        let mut before = None;
        for window in 0..=reuse.window(round) {
            let mut operands: Vec<Id> = before.into_iter().collect();
            for class in classes_of(reuse, Way::Forward, window) {
                operands.push(self.fetched(terms, part, Some(class))?);
                operands.push(self.part(part).at_rank(Way::Forward, Some(class))?);
            }
            before = Some(match hot.filter(|_| before.is_none()) {
                Some(hot) => {
                    operands.extend([hot, self.entries]);
                    terms.add(Op::Unite, &operands)?
                }
                None => terms.add(Op::Merge, &operands)?,
            });
        }
        before.ok_or(TypeError { op: "merge", operand: 0, wanted: "there" })
    }

    /// All columns of the rows that microbatch `round` and those before need.
    ///
    /// # Errors
    /// None that a built distribution has.
    pub fn rows(&self, terms: &mut Terms, round: u32) -> Result<Id, TypeError> {
        let parts: Result<Vec<Id>, TypeError> =
            (0..self.parts.len()).map(|i| self.arrived(terms, i, round)).collect();
        match parts?[..] {
            [one] => Ok(one),
            ref parts => terms.add(Op::Concat, parts),
        }
    }

    /// The columns of a part of a rank's summed gradients.
    ///
    /// # Errors
    /// If `sum` has not as many columns as the table.
    pub(crate) fn columns(&self, terms: &mut Terms, part: usize, sum: Id) -> Result<Id, TypeError> {
        if self.parts.len() == 1 {
            return Ok(sum);
        }
        let (start, end) = self.part(part).columns;
        terms.add(Op::Columns { start, end }, &[sum])
    }

    /// Gradients to send: of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub(crate) fn to_send(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
        sum: Id,
    ) -> Result<Id, TypeError> {
        let own = self.columns(terms, part, sum)?;
        if class.is_none() && self.hot.is_empty() {
            return Ok(own);
        }
        let p = self.part(part);
        if class.is_none() {
            // Of what a rank asks its relay for, or the owner.
            let lists = p.relay.as_ref().map_or(p.all, |relay| relay.all);
            let exchange = terms.exchange(lists.owner).unwrap_or(p.exchange);
            return terms.add(Op::Cut { exchange }, &[own, lists.asker]);
        }
        terms.add(Op::Split, &[own, p.at_rank(Way::Backward, class)?])
    }

    /// Gradients at relays, if there are any: of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub(crate) fn sent_within(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
        sum: Id,
    ) -> Result<Option<Id>, TypeError> {
        let Some(relay) = &self.part(part).relay else { return Ok(None) };
        let own = self.to_send(terms, part, class, sum)?;
        let within = relay.lists(relay.updates.as_ref(), class)?;
        Ok(Some(terms.add(Op::Send, &[own, within.asker, within.owner])?))
    }

    /// A node's sums of these.
    ///
    /// # Errors
    /// If there is no such class.
    pub(crate) fn summed(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
        sum: Id,
    ) -> Result<Option<Id>, TypeError> {
        let p = self.part(part);
        let received = self.sent_within(terms, part, class, sum)?;
        let (Some(relay), Some(received)) = (&p.relay, received) else { return Ok(None) };
        let mut operands = vec![relay.places, relay.all.owner, received];
        if class.is_some() {
            operands.push(relay.lists(relay.updates.as_ref(), class)?.owner);
            operands.push(p.lists(p.updates.as_ref(), class)?.asker);
        }
        terms.add(Op::SumAsked, &operands).map(Some)
    }

    /// Gradients at the owners, or at all replicas: of a class, or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn sent(&self, terms: &mut Terms, part: usize, class: Option<u32>, sum: Id) -> Result<Id, TypeError> {
        let own = match self.summed(terms, part, class, sum)? {
            Some(sums) => sums,
            None => self.to_send(terms, part, class, sum)?,
        };
        let p = self.part(part);
        let lists = p.lists(p.updates.as_ref(), class)?;
        let op = if p.own.is_some() { Op::SendAll } else { Op::Send };
        terms.add(op, &[own, lists.asker, lists.owner])
    }

    /// What the optimizer takes: sums per row, of a class or all.
    ///
    /// # Errors
    /// If there is no such class.
    pub fn total(
        &self,
        terms: &mut Terms,
        part: usize,
        class: Option<u32>,
        sum: Id,
    ) -> Result<Id, TypeError> {
        let received = self.sent(terms, part, class, sum)?;
        let p = self.part(part);
        if class.is_none() {
            return terms.add(Op::Total, &[p.all.owner, received]);
        }
        let lists = p.lists(p.updates.as_ref(), class)?;
        terms.add(Op::Total, &[p.all.owner, received, lists.owner])
    }

    /// What is added up by all classes of all exchanges.
    ///
    /// # Errors
    /// If `sum` has not as many columns as the table.
    pub fn update(&self, terms: &mut Terms, sum: Id) -> Result<Id, TypeError> {
        let mut parts = Vec::with_capacity(self.parts.len());
        for i in self.exchanges() {
            let p = self.part(i);
            let classes: Vec<Option<u32>> = match &p.updates {
                None => vec![None],
                Some(classes) => (0..classes.lists.len() as u32).map(Some).collect(),
            };
            let mut updates = Vec::with_capacity(classes.len());
            for class in classes {
                let total = self.total(terms, i, class, sum)?;
                updates.push(terms.add(Op::Update, &[total])?);
            }
            parts.push(match updates[..] {
                [one] => one,
                ref updates => terms.add(Op::Join, updates)?,
            });
        }
        let beside = |terms: &mut Terms, parts: &[Id]| match parts {
            [one] => Ok(*one),
            parts => terms.add(Op::Beside, parts),
        };
        let (owned, hot) = parts.split_at(self.parts.len());
        let owned = beside(terms, owned)?;
        if hot.is_empty() {
            return Ok(owned);
        }
        let hot = beside(terms, hot)?;
        terms.add(Op::Join, &[owned, hot])
    }
}

impl Part {
    /// Hot rows, which all ranks have.
    fn hot(
        terms: &mut Terms,
        (table, exchange): (u32, u32),
        columns: (u32, u32),
        share: Id,
        reuse: Option<Reuse>,
    ) -> Result<Self, TypeError> {
        let (start, end) = columns;
        let shard = terms.add(Op::Replicas { table, start, end }, &[])?;
        let asked = terms.add(Op::AskAll { exchange }, &[share])?;
        let own = Some(terms.add(Op::Own, &[asked, share])?);
        let all = Lists { owner: asked, asker: share };
        let mut part = Self { exchange, columns, shard, all, own, lookups: None, updates: None, relay: None };
        part.updates = reuse.map(|reuse| part.classes(terms, reuse, Way::Backward)).transpose()?;
        Ok(part)
    }

    fn classes(&self, terms: &mut Terms, reuse: Reuse, way: Way) -> Result<Classes, TypeError> {
        let Reuse { lookahead, windows, each } = reuse;
        let partition = Op::Partition { way, lookahead, windows, each };
        let owner = terms.add(partition, &[self.all.owner, self.all.owner])?;
        // Replicas know what all use, and classify their own entries themselves.
        let asker = match self.own {
            Some(own) => terms.add(partition, &[own, self.all.owner])?,
            None => terms.add(Op::Answer, &[owner, self.all.asker])?,
        };
        listed(terms, Lists { owner, asker }, reuse, way)
    }

    /// Both sides' lists of a class, or of all.
    fn lists(&self, classes: Option<&Classes>, class: Option<u32>) -> Result<Lists, TypeError> {
        lists(self.all, classes, class)
    }

    /// The list of a class, or of all, at those who use rows.
    fn at_rank(&self, way: Way, class: Option<u32>) -> Result<Id, TypeError> {
        let of = |lookups, updates| if way == Way::Forward { lookups } else { updates };
        Ok(match &self.relay {
            Some(relay) => relay.lists(of(relay.lookups.as_ref(), relay.updates.as_ref()), class)?.asker,
            None => self.lists(of(self.lookups.as_ref(), self.updates.as_ref()), class)?.asker,
        })
    }
}

impl Relay {
    /// Asked by ranks in an exchange.
    fn new(terms: &mut Terms, exchange: u32, entries: Id) -> Result<Self, TypeError> {
        let asked = terms.add(Op::AskRelay { exchange }, &[entries])?;
        let all = Lists { owner: asked, asker: entries };
        Ok(Self { all, places: asked, lookups: None, updates: None })
    }

    /// Asking owners for this.
    fn placed(self, terms: &mut Terms, relayed: Id) -> Result<Self, TypeError> {
        Ok(Self { places: terms.add(Op::Places, &[relayed, self.all.owner])?, ..self })
    }

    /// Telling ranks the classes that owners tell it.
    fn told(self, terms: &mut Terms, part: &Part, reuse: Reuse) -> Result<Self, TypeError> {
        let mut of = |classes: Option<&Classes>, way| {
            let Some(classes) = classes else { return Ok(None) };
            let owner = terms.add(Op::PassClasses, &[classes.of_rows.asker, self.places])?;
            let asker = terms.add(Op::Answer, &[owner, self.all.asker])?;
            listed(terms, Lists { owner, asker }, reuse, way).map(Some)
        };
        let lookups = of(part.lookups.as_ref(), Way::Forward)?;
        let updates = of(part.updates.as_ref(), Way::Backward)?;
        Ok(Self { lookups, updates, ..self })
    }

    fn lists(&self, classes: Option<&Classes>, class: Option<u32>) -> Result<Lists, TypeError> {
        lists(self.all, classes, class)
    }
}

fn lists(all: Lists, classes: Option<&Classes>, class: Option<u32>) -> Result<Lists, TypeError> {
    let Some(class) = class else { return Ok(all) };
    let list = classes.and_then(|c| c.lists.get(class as usize)).copied();
    list.ok_or(TypeError { op: "positions", operand: 0, wanted: "classes with that number" })
}

/// Lists of each class, of classes at both sides.
fn listed(terms: &mut Terms, of_rows: Lists, reuse: Reuse, way: Way) -> Result<Classes, TypeError> {
    let of = reuse.count(way) as u32;
    let mut lists = Vec::with_capacity(of as usize);
    for class in 0..of {
        let mut positions = |classes| terms.add(Op::Positions { way, class, of }, &[classes]);
        lists.push(Lists { owner: positions(of_rows.owner)?, asker: positions(of_rows.asker)? });
    }
    Ok(Classes { of_rows, lists })
}

/// The classes that belong to a window.
pub(crate) fn classes_of(reuse: Reuse, way: Way, window: u32) -> Vec<u32> {
    (0..).zip(reuse.classes(way)).filter(|(_, c)| c.window == window).map(|(i, _)| i).collect()
}
