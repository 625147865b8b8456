//! Ways of distributing a table, out of an e-graph.
//!
//! Bottom up, each class of equal nodes gets the cheapest ways to have its value: sets of one node per class that is needed,
//! so what is shared counts once. A way *commits* itself: to rows once or per occurrence, to classes of a lookahead or to
//! none, to owners or replicas, to whole rows or columns apart. Ways that commit themselves differently cannot be
//! parts of one. Of those with one commitment, what another is no worse than in every cost is dropped, and of what
//! is left the first [`MOST`] by bytes stay.

use std::collections::BTreeMap;
use std::rc::Rc;

use egg::{EGraph, Id, Language as _, RecExpr};
use fs_schedule::Way;

use super::analysis::{Kind, Kinds, Term};
use super::cost::{Cost, Route, Sizes};
use super::lang::{Name, Node};
use super::size::{Class, List, Size, Symbol};
use crate::distribution::Lookahead;
use crate::distribution::ty::Sharded;

/// Ways of one commitment that a class keeps.
pub const MOST: usize = 8;

/// Bytes of an f32.
const REAL: f64 = 4.0;
/// Bytes of an id where it is read.
const ID: f64 = 8.0;
/// Bytes of an id on its way, as a row of its owner's.
const SENT: f64 = 4.0;
/// Bytes beside it by which owners know the windows that use a row first and last, where there are several.
const USES: f64 = 2.0;
/// Times that an id is read or written to find its like.
const FINDING: f64 = 6.0;

/// What a way of distributing a table has decided so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Commitment {
    /// Each row once, or once per occurrence.
    pub unique: Option<bool>,
    /// Reuse distances that are told apart; none: rows travel together.
    pub lookahead: Option<Lookahead>,
    /// Windows of a batch that are told apart; none: each microbatch is one.
    pub windows: Option<Option<u32>>,
    /// Rows live everywhere, or at owners.
    pub everywhere: Option<bool>,
    /// Columns apart.
    pub cut: Option<bool>,
    /// Through relays.
    pub relayed: Option<bool>,
    /// Owners are asked by those who read samples.
    pub folded: Option<bool>,
}

impl Commitment {
    /// Both, if they agree.
    fn and(self, other: Self) -> Option<Self> {
        fn agree<T: PartialEq>(a: Option<&T>, b: Option<&T>) -> bool {
            a.zip(b).is_none_or(|(a, b)| a == b)
        }
        let both = agree(self.unique.as_ref(), other.unique.as_ref())
            && agree(self.lookahead.as_ref(), other.lookahead.as_ref())
            && agree(self.windows.as_ref(), other.windows.as_ref())
            && agree(self.everywhere.as_ref(), other.everywhere.as_ref())
            && agree(self.cut.as_ref(), other.cut.as_ref())
            && agree(self.relayed.as_ref(), other.relayed.as_ref())
            && agree(self.folded.as_ref(), other.folded.as_ref());
        both.then_some(Self {
            unique: self.unique.or(other.unique),
            lookahead: self.lookahead.or(other.lookahead),
            windows: self.windows.or(other.windows),
            everywhere: self.everywhere.or(other.everywhere),
            cut: self.cut.or(other.cut),
            relayed: self.relayed.or(other.relayed),
            folded: self.folded.or(other.folded),
        })
    }
}

/// One way to have a value.
#[derive(Debug, Clone, PartialEq)]
struct Having {
    commitment: Commitment,
    /// Of each class that is needed, which node; ascending.
    picks: Vec<(Id, usize)>,
    cost: Cost,
}

/// A way of distributing a table.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its terms: of each class that is needed, which node; ascending.
    picks: Vec<(Id, usize)>,
    /// What it is.
    pub commitment: Commitment,
    /// What it costs.
    pub cost: Cost,
    /// Another costs no more in anything.
    pub covered: bool,
}

impl Found {
    /// Its terms, out of the e-graph that it was found in.
    pub(super) fn nodes(&self, graph: &EGraph<Node, Kinds>, root: Id) -> RecExpr<Node> {
        let pick = |id: Id| {
            let id = graph.find(id);
            // Parameters are one node each.
            let at = self.picks.binary_search_by_key(&id, |pick| pick.0);
            graph[id].nodes[at.map_or(0, |at| self.picks[at].1)].clone()
        };
        pick(root).build_recexpr(pick)
    }
}

/// The ways that may be, cheapest by bytes first.
pub fn extract(
    graph: &EGraph<Node, Kinds>,
    (root, columns): (Id, u32),
    sizes: &Sizes,
    may: impl Fn(Commitment) -> bool,
) -> Vec<Found> {
    let mut e = Extraction {
        graph,
        columns,
        sizes,
        known: BTreeMap::new(),
        costs: BTreeMap::new(),
        open: Vec::new(),
        nothing: Size::none(),
    };
    let root = graph.find(root);
    let ways = e.ways(root);
    let mut found: Vec<Found> = ways
        .iter()
        .filter(|way| may(way.commitment))
        .map(|way| Found {
            picks: way.picks.clone(),
            commitment: way.commitment,
            cost: way.cost.and(e.uses(way)),
            covered: false,
        })
        .collect();
    for i in 0..found.len() {
        let cost = found[i].cost;
        let better = |(n, other): (usize, &Found)| {
            n != i && other.cost.covers(&cost) && (!cost.covers(&other.cost) || n < i)
        };
        found[i].covered = found.iter().enumerate().any(better);
    }
    let first = |a: &Cost, b: &Cost| a.far.total_cmp(&b.far).then(a.wire.total_cmp(&b.wire));
    found.sort_by(|a, b| first(&a.cost, &b.cost).then(a.commitment.cmp(&b.commitment)));
    found
}

struct Extraction<'a> {
    graph: &'a EGraph<Node, Kinds>,
    columns: u32,
    sizes: &'a Sizes,
    known: BTreeMap<Id, Rc<[Having]>>,
    /// Of each node of the classes that were looked at, what it costs by itself.
    costs: BTreeMap<(Id, usize), Cost>,
    /// Classes whose ways are being looked for: what needs its own value is no way to it.
    open: Vec<Id>,
    /// The size of what has none.
    nothing: Size,
}

impl Extraction<'_> {
    fn ways(&mut self, class: Id) -> Rc<[Having]> {
        let class = self.graph.find(class);
        if let Some(known) = self.known.get(&class) {
            return Rc::clone(known);
        }
        if self.open.contains(&class) || self.graph[class].data == Kind::Ill {
            return Rc::from([]);
        }
        self.open.push(class);
        let mut all = Vec::new();
        for (n, node) in self.graph[class].nodes.iter().enumerate() {
            let (commitment, cost) = (self.commits(node, class), self.cost(node, class));
            self.costs.insert((class, n), cost);
            let own = Having { commitment, picks: vec![(class, n)], cost };
            let mut ways = vec![own];
            // Parameters cost nothing and are the same in all ways.
            let terms = node.children().iter().filter(|child| self.name(**child).is_none());
            for child in terms.copied().collect::<Vec<_>>() {
                let of = self.ways(child);
                let pairs = ways.iter().flat_map(|a| of.iter().map(move |b| (a, b)));
                ways = best(pairs.filter_map(|(a, b)| self.join(a, b)).collect());
            }
            all.extend(ways);
        }
        self.open.pop();
        let all: Rc<[Having]> = best(all).into();
        self.known.insert(class, Rc::clone(&all));
        all
    }

    /// Both, if they agree on what they share, which counts once.
    fn join(&self, a: &Having, b: &Having) -> Option<Having> {
        let commitment = a.commitment.and(b.commitment)?;
        let mut picks = Vec::with_capacity(a.picks.len() + b.picks.len());
        let (mut cost, mut left) = (a.cost, a.picks.iter().copied().peekable());
        for (class, n) in b.picks.iter().copied() {
            picks.extend(std::iter::from_fn(|| left.next_if(|pick| pick.0 < class)));
            match left.peek() {
                Some((same, other)) if *same == class && *other != n => return None,
                Some((same, _)) if *same == class => {}
                _ => {
                    cost = cost.and(self.costs.get(&(class, n)).copied().unwrap_or_default());
                    picks.push((class, n));
                }
            }
        }
        picks.extend(left);
        Some(Having { commitment, picks, cost })
    }

    /// What it costs to say who uses what is asked for, which is said where one of the partitions has several windows.
    fn uses(&self, way: &Having) -> Cost {
        let named = way.picks.iter().filter_map(|(class, n)| {
            let node = &self.graph[*class].nodes[*n];
            let Name::Op(name) = node.name else { return None };
            Some((*class, name, node))
        });
        let windows = |node: &Node| node.children.get(2).and_then(|c| self.number(*c));
        let told = named.clone().any(|(_, name, node)| name == "partition" && windows(node) > Some(1));
        let asks = named.filter(|_| told).filter_map(|(class, name, node)| {
            let share = match name {
                "ask" | "ask_relay" | "ask_all" => USES / SENT,
                "ask_for" => USES / (2.0 * SENT),
                _ => return None,
            };
            let Cost { wire, far, .. } = self.cost(node, class);
            Some(Cost { wire: wire * share, far: far * share, ..Cost::default() })
        });
        asks.fold(Cost::default(), Cost::and)
    }

    fn name(&self, class: Id) -> Option<Name> {
        match self.graph[class].data {
            Kind::Parameter(name) => Some(name),
            _ => None,
        }
    }

    fn number(&self, class: Id) -> Option<u32> {
        match self.name(class)? {
            Name::Number(n) => Some(n),
            _ => None,
        }
    }

    /// What a class is, if it is a term.
    fn term(&self, class: Id) -> Option<&Term> {
        match &self.graph[class].data {
            Kind::Term(term) => Some(term),
            _ => None,
        }
    }

    /// How many a class's value has; nothing of what is no term.
    fn size(&self, class: Id) -> &Size {
        self.term(class).map_or(&self.nothing, |term| &term.size)
    }

    /// Where a class's value is.
    fn place(&self, class: Id) -> Option<Sharded> {
        self.term(class).map(|term| term.ty.sharded)
    }

    /// Between whom a transfer of something is.
    fn route(&self, from: Id, to: Id) -> Route {
        let ends = self.place(from).zip(self.place(to));
        ends.map_or(Route::Whole, |(from, to)| Route::of(from, to))
    }

    fn commits(&self, node: &Node, class: Id) -> Commitment {
        let mut c = Commitment::default();
        let Name::Op(name) = node.name else { return c };
        let child = |i: usize| node.children[i];
        let is = |i: usize, word: &'static str| self.name(child(i)) == Some(Name::Word(word));
        match name {
            "entries" => c.unique = Some(is(1, "once")),
            "shard" => {
                c.everywhere = Some(is(3, "everywhere"));
                let width = self.number(child(2)).zip(self.number(child(1))).map(|(b, a)| b - a);
                c.cut = Some(width != Some(self.columns));
            }
            "partition" => {
                c.lookahead = Some(Lookahead(self.number(child(1))));
                c.windows = Some(self.number(child(2)).filter(|_| self.number(child(3)) != Some(1)));
            }
            "ask_relay" => (c.relayed, c.folded) = (Some(true), Some(false)),
            "ask_for" => (c.relayed, c.folded) = (Some(false), Some(true)),
            "ask" if self.route(child(1), class) == Route::Whole => c.folded = Some(false),
            "return" | "send" | "send_all" => {
                // Rows that are read everywhere must be updated everywhere.
                c.everywhere = Some(name == "send_all");
                // What is looked up by columns is updated by columns.
                c.cut = self.term(class).map(|term| term.ty.columns != self.columns);
                // What ranks ask owners for comes through no relay.
                if name != "send_all" && self.route(child(0), class) == Route::Whole {
                    c.relayed = Some(false);
                }
                // Replicas look up at home, whatever is told apart of their gradients.
                if self.size(child(1)).class().is_none() {
                    c.lookahead = Some(Lookahead(None));
                }
            }
            _ => {}
        }
        c
    }

    fn cost(&self, node: &Node, class: Id) -> Cost {
        let Name::Op(name) = node.name else { return Cost::default() };
        let s = self.sizes;
        let Some(Term { ty, size, .. }) = self.term(class) else { return Cost::default() };
        let row = REAL * f64::from(ty.columns);
        let of = |i: usize| node.children.get(i).map_or(&self.nothing, |c| self.size(*c));
        let bytes = |size: &Size, each: f64| s.bytes(size, each);
        match name {
            "shard" => {
                let whole =
                    node.children.get(3).and_then(|c| self.name(*c)) == Some(Name::Word("everywhere"));
                let part = f64::from(ty.columns) / f64::from(self.columns.max(1));
                Cost { held: s.table * part / if whole { 1.0 } else { s.ranks }, ..Cost::default() }
            }
            "ask" | "ask_relay" => {
                Cost::sent(bytes(of(1), SENT), s.away(self.route(node.children[1], class)), false)
            }
            // A row and for whom, as much again; each list is made once more, and owners join them.
            "ask_for" => {
                let unique = *size == Size::rows(List::Unique);
                let asked = Size::of(Symbol::Asked { unique });
                let sent = Cost::sent(bytes(&asked, 2.0 * SENT), s.away(Route::Whole), false);
                let listed = Size::rows(List::Occurrences).and(&asked);
                sent.and(Cost::touched(s.of(&listed) * ID * FINDING))
            }
            "ask_all" => Cost::sent(bytes(of(1), SENT), (s.ranks - 1.0, s.ranks - s.node), false),
            // A byte each.
            "answer" => Cost::sent(s.of(size), s.away(self.route(node.children[0], class)), false),
            "return" | "send" | "send_all" => {
                let route = self.route(node.children[0], class);
                let list = of(1);
                let hurries = list.class().is_none_or(|Class { reuse, way, class, .. }| {
                    let distance = reuse.classes(way).get(class as usize).and_then(|c| c.distance);
                    distance.is_some_and(|d| d <= reuse.windows)
                });
                let away = if name == "send_all" { (s.ranks - 1.0, s.ranks - s.node) } else { s.away(route) };
                let sent_row = s.row(if name == "return" { Way::Forward } else { Way::Backward }, ty.columns);
                let sent = Cost::sent(bytes(list, sent_row), away, hurries);
                // What travels together is made narrow, or wide again, by itself.
                let alone = list.class().is_none() && sent_row < row;
                let far = self.place(class) == Some(Sharded::Relay) || route == Route::Between;
                let turned = if alone && !far { bytes(list, row + sent_row) } else { 0.0 };
                sent.and(Cost::touched(turned))
            }
            // What a node asks for, each row once or per occurrence, is listed at its relay, and comes and goes once more in its
            // memory.
            "relayed" => Cost::touched(bytes(of(1), ID * FINDING)),
            "pass_rows" => Cost::touched(bytes(size, 2.0 * s.row(Way::Forward, ty.columns))),
            "sum_asked" => Cost::touched(bytes(of(2), 2.0 * s.row(Way::Backward, ty.columns))),
            // Finding equal ids takes several looks at each.
            "entries" => {
                let looks = if *size == Size::rows(List::Unique) { FINDING } else { 2.0 };
                Cost::touched(bytes(&Size::rows(List::Occurrences), ID * looks))
            }
            // Of what a rank asks for, whether it is known at owners, for relays, or everywhere.
            "partition" => {
                let lookahead = node.children.get(1).and_then(|c| self.number(*c)).unwrap_or(0);
                Cost::touched(s.bytes_of_rank(size, ID * FINDING) * f64::from(lookahead))
            }
            // As it is, and as it travels; of what a rank asks for, even if it is for relays.
            "gather" | "merge" | "split" => {
                let way = if name == "split" { Way::Backward } else { Way::Forward };
                Cost::touched(s.bytes_of_rank(size, row + s.row(way, ty.columns)))
            }
            // Replicas add up what all send, owners their part of it.
            "total" => Cost::touched(bytes(of(1), row + s.row(Way::Backward, ty.columns))),
            _ => Cost::default(),
        }
    }
}

/// Those that no other of the same commitment covers; the first of equal ones.
fn best(mut ways: Vec<Having>) -> Vec<Having> {
    ways.sort_by(|a, b| {
        let by_cost = a.cost.far.total_cmp(&b.cost.far).then(a.cost.wire.total_cmp(&b.cost.wire));
        let by_cost = by_cost.then(a.cost.urgent.total_cmp(&b.cost.urgent));
        a.commitment.cmp(&b.commitment).then(by_cost).then_with(|| a.picks.cmp(&b.picks))
    });
    let mut kept: Vec<Having> = Vec::new();
    for way in ways {
        let alike = kept.iter().rev().take_while(|k| k.commitment == way.commitment);
        let (mut n, mut covered) = (0, false);
        for k in alike {
            n += 1;
            covered |= k.cost.covers(&way.cost);
        }
        if !covered && n < MOST {
            kept.push(way);
        }
    }
    kept
}
