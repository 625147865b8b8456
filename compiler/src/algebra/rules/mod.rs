//! Rules: terms that mean the same.
//!
//! A rule is an equation, who may use it, why it holds, and what it must not be mistaken for. Its instances are patterns for
//! one table: how many sequences use it, into how many classes or columns it may fall. All go both ways.

mod columns;
mod dispatch;
mod fold;
mod partition;
mod relay;
pub(crate) mod replicate;
mod text;
pub(crate) mod together;
mod unique;

use std::fmt::Write as _;

use egg::{
    Applier, ConditionalApplier, EGraph, Id, MultiPattern, Pattern, PatternAst, Rewrite, SearchMatches,
    Subst, Symbol, Var,
};

use fs_schedule::{Element, Reuse, Way};

use super::analysis::{Kind, Kinds};
use super::lang::Node;
use crate::distribution::ty::Sharded;

/// All rules. A new one is a file, and a line here.
pub const RULES: [&Rule; 8] = [
    &unique::RULE,
    &partition::RULE,
    &replicate::RULE,
    &columns::RULE,
    &relay::RULE,
    &fold::RULE,
    &dispatch::RULE,
    &together::RULE,
];

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// Both sides are equal in every bit. Others change the order of sums, and are no ways for a table: they are off.
    pub exact: bool,
    /// What it may change.
    pub about: About,
    /// Both sides, for people; of rows, and of gradients.
    pub equations: &'static [&'static str],
    /// Of which tables it holds, for people.
    pub when: &'static str,
    /// Why it holds.
    pub because: &'static str,
    /// Whether it may be used for a table.
    pub open: fn(&Context) -> bool,
    /// Its patterns for a table.
    pub instances: fn(&Context) -> Vec<Instance>,
    /// What it must not be used for.
    pub twins: &'static [Twin],
}

/// What a rule changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// How one table is distributed.
    Table,
    /// Which transfers of any tables are one: bytes are the same, so no way of a table is cheaper by it, and schedules tell.
    Transfers,
}

/// Something that looks as if a rule held.
#[derive(Debug)]
pub struct Twin {
    /// Why the rule does not hold.
    pub why: &'static str,
    /// What it is.
    pub is: Lookalike,
}

/// What looks as if a rule held.
#[derive(Debug)]
pub enum Lookalike {
    /// A table that may not use it.
    Table(fn(&mut Context)),
    /// A term, as text.
    Term(&'static str),
}

/// How a sequence uses a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// A row for each id.
    Each,
    /// The sum of a sample's rows.
    Sum,
    /// Their mean.
    Mean,
}

/// What rules may know of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a rule's side condition")]
pub struct Context {
    /// Columns of its rows.
    pub columns: u32,
    /// Its first exchange.
    pub exchange: u32,
    /// What uses it.
    pub uses: Vec<Use>,
    /// Microbatches of a batch.
    pub microbatches: u32,
    /// Reuse distances that may be told apart; none where rows must travel together.
    pub lookaheads: Vec<u32>,
    /// By which numbers of windows of a batch: as many as microbatches, or fewer that cut these evenly.
    pub windows: Vec<u32>,
    /// Columns of the parts that it is cut into, or may be; none where it must stay whole.
    pub cuts: Vec<(u32, u32)>,
    /// What rows are on their way.
    pub rows: Element,
    /// Rows may be asked for once per occurrence.
    pub repeats: bool,
    /// Nobody has said where its rows live.
    pub moves: bool,
    /// The ranks are of several nodes, and nobody has said that rows come from owners or through relays.
    pub relays: bool,
    /// Samples move before their ids are looked at.
    pub moved: bool,
    /// What has been said of who asks owners for rows of samples that move: those who read them, or those who work on them.
    pub folds: Option<bool>,
    /// Places among its rows have numbers everywhere; whether ranks have the memory is seen where it is scheduled.
    pub replicates: bool,
}

impl Context {
    /// How rows may be told apart.
    pub fn reuses(&self) -> impl Iterator<Item = Reuse> {
        let each = move |lookahead: u32| {
            let windows = self.windows.iter();
            windows.filter_map(move |windows| Reuse::in_windows(lookahead, self.microbatches, *windows))
        };
        self.lookaheads
            .iter()
            .copied()
            .flat_map(each)
            .filter(|reuse| reuse.count(Way::Forward) <= Reuse::MOST)
    }

    /// The exchange between relays and owners of one within nodes.
    pub(crate) fn between(&self, exchange: u32) -> u32 {
        exchange + self.cuts.len().max(1) as u32
    }
    /// Relays of each exchange that the table has, or may have, as patterns.
    fn relayed(&self, entries: &str) -> Vec<text::Relays> {
        let exchanges = self.exchange..self.between(self.exchange);
        exchanges.map(|x| text::Relays::new(x, self.between(x), entries)).collect()
    }
}

/// Two patterns that mean the same; or what some values are by their patterns, and what they are as well, which goes one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// One side.
    pub left: String,
    /// The other.
    pub right: String,
    /// What must hold beside.
    pub condition: Condition,
}

/// What must hold of the variables of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    None,
    /// It has all columns of the table.
    Whole(&'static str),
    /// No two are the same.
    Distinct(Vec<String>),
    /// Neither are these, and values are at ranks of one kind: of one leg of the way.
    OneLeg {
        /// Not the same.
        apart: Vec<String>,
        /// The values.
        values: Vec<String>,
    },
}

/// All rules as a page of documentation.
pub fn document() -> String {
    let mut text = String::new();
    for rule in RULES {
        let off = if rule.exact {
            ""
        } else {
            "To rounding only: off, because strategies must train the same bits.\n\n"
        };
        let _ = writeln!(text, "### {}\n\n{off}```text", rule.name);
        for equation in rule.equations {
            let _ = writeln!(text, "{equation}");
        }
        let _ = writeln!(text, "```\n\nFor {}. {}\n\nNot:\n", rule.when, rule.because);
        for twin in rule.twins {
            let _ = writeln!(text, "- {}", twin.why);
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Entries, in every pattern: those of ranks, not of relays, of which no rule says anything by itself.
const ENTRIES: &str = "?e";

/// A condition of a table's pattern, as e-graphs ask for it.
struct Holds {
    /// Entries, if the pattern has some.
    entries: Option<Var>,
    vars: Vec<Var>,
    /// Of all; `None`: they are distinct.
    columns: Option<u32>,
    /// At ranks of one kind.
    one_leg: Vec<Var>,
}

impl egg::Condition<Node, Kinds> for Holds {
    fn check(&self, graph: &mut EGraph<Node, Kinds>, _: Id, subst: &Subst) -> bool {
        let of_rank = |id: Id| matches!(&graph[graph.find(id)].data, Kind::Term(term) if term.ty.sharded == Sharded::Sample);
        if self.entries.is_some_and(|entries| !of_rank(subst[entries])) {
            return false;
        }
        let sharded = |var: &Var| match &graph[graph.find(subst[*var])].data {
            Kind::Term(term) => Some(term.ty.sharded),
            _ => None,
        };
        if self.one_leg.iter().any(|var| sharded(var) != sharded(&self.one_leg[0])) {
            return false;
        }
        let classes: Vec<Id> = self.vars.iter().map(|var| graph.find(subst[*var])).collect();
        match self.columns {
            Some(columns) => classes
                .iter()
                .all(|c| matches!(&graph[*c].data, Kind::Term(term) if term.ty.columns == columns)),
            None => classes.iter().enumerate().all(|(i, c)| !classes[..i].contains(c)),
        }
    }
    fn vars(&self) -> Vec<Var> {
        self.vars.iter().copied().chain(self.entries).chain(self.one_leg.iter().copied()).collect()
    }
}

/// What several values are as well, if something holds of each match.
struct Values {
    condition: Holds,
    values: MultiPattern<Node>,
}

impl Applier<Node, Kinds> for Values {
    fn apply_matches(
        &self,
        graph: &mut EGraph<Node, Kinds>,
        matches: &[SearchMatches<'_, Node>],
        rule: Symbol,
    ) -> Vec<Id> {
        use egg::Condition as _;
        let mut kept = Vec::with_capacity(matches.len());
        for found in matches {
            let holds = |subst: &&Subst| self.condition.check(graph, found.eclass, subst);
            let substs = found.substs.iter().filter(holds).cloned().collect();
            kept.push(SearchMatches { eclass: found.eclass, substs, ast: None });
        }
        // It says that something was added even if all was there, and then rules would never end.
        let size = |graph: &EGraph<Node, Kinds>| (graph.total_size(), graph.number_of_classes());
        let before = size(graph);
        let added = self.values.apply_matches(graph, &kept, rule);
        if size(graph) == before { Vec::new() } else { added }
    }
    fn apply_one(
        &self,
        _: &mut EGraph<Node, Kinds>,
        _: Id,
        _: &Subst,
        _: Option<&PatternAst<Node>>,
        _: Symbol,
    ) -> Vec<Id> {
        Vec::new()
    }
    fn vars(&self) -> Vec<Var> {
        Applier::<Node, Kinds>::vars(&self.values)
    }
}

impl Rule {
    /// The rewrites that a table may use; both ways of each instance.
    ///
    /// # Panics
    /// If a rule's text is no pattern: a defect of the rule, which its tests find.
    #[expect(clippy::expect_used, reason = "texts are the rules' own")]
    pub fn rewrites(&self, context: &Context) -> Vec<Rewrite<Node, Kinds>> {
        if !(self.open)(context) {
            return Vec::new();
        }
        let mut rewrites = Vec::new();
        for (i, instance) in (self.instances)(context).into_iter().enumerate() {
            let var = |text: &str| text.parse::<Var>().expect("a rule's variable");
            let entries = instance.left.contains(ENTRIES).then(|| var(ENTRIES));
            let all = |vars: &[String]| vars.iter().map(|v| var(v)).collect::<Vec<_>>();
            let (vars, columns, one_leg) = match &instance.condition {
                Condition::None => (Vec::new(), None, Vec::new()),
                Condition::Whole(of) => (vec![var(of)], Some(context.columns), Vec::new()),
                Condition::Distinct(vars) => (all(vars), None, Vec::new()),
                Condition::OneLeg { apart, values } => (all(apart), None, all(values)),
            };
            let condition = || Holds { entries, vars: vars.clone(), columns, one_leg: one_leg.clone() };
            if instance.left.contains(" = ") {
                let values = |text: &str| text.parse::<MultiPattern<Node>>().expect("a rule's patterns");
                let applier = Values { condition: condition(), values: values(&instance.right) };
                let rewrite = Rewrite::new(format!("{}.{i}", self.name), values(&instance.left), applier);
                rewrites.push(rewrite.expect("variables of both sides"));
                continue;
            }
            let pattern = |text: &str| text.parse::<Pattern<Node>>().expect("a rule's pattern");
            let (left, right) = (pattern(&instance.left), pattern(&instance.right));
            for (from, to, back) in [(&left, &right, ""), (&right, &left, "~")] {
                let name = format!("{}{back}.{i}", self.name);
                let applier = ConditionalApplier { condition: condition(), applier: to.clone() };
                rewrites.push(Rewrite::new(name, from.clone(), applier).expect("variables of both sides"));
            }
        }
        rewrites
    }
}
