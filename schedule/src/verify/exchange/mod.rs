//! Rules `exchange`, `history` and `collective`: rows and gradients travel completely, once, and to the right place.
//!
//! What a buffer holds follows from the operation that writes it, not from its name: each result of an operation of
//! an exchange is a [`Value`], made once per batch, and each operand must be the value that belongs there. By
//! induction along the list, positions that reach a lookup are those that this exchange's `positions` listed from
//! classes that its own `partition` found. That every class is there once makes the rows complete.

mod completeness;
mod flow;
mod value;

use std::collections::BTreeMap;

use super::{Context, Report};
use crate::action::Action;
use crate::attribute::Way;
use crate::model::Exchange;
use crate::op::Op;
use crate::operand::{Element, Extent, Operand, Place};
use crate::reuse::Reuse;
use crate::signature::OperandType;
use crate::size::Symbol;
use value::{Side, Value};

/// Who must be at one end of an exchange.
#[derive(Debug, Clone, Copy)]
enum Asks {
    Ranks,
    Owners,
}

/// What buffers hold, and who makes values.
struct Flow<'a> {
    cx: &'a Context<'a>,
    /// Writers of each buffer in the order of a batch: operation and result.
    writers: Vec<Vec<(u32, usize)>>,
    /// Makers of each value.
    made: BTreeMap<Value, Vec<u32>>,
    /// Each operation's results that are values.
    results: Vec<Vec<(usize, Value)>>,
    /// Exchanges that send the entries of each.
    parts: Vec<Vec<u32>>,
}

pub(super) fn check(cx: &Context<'_>, r: &mut Report) {
    let p = cx.p;
    let mut flow = Flow {
        cx,
        writers: vec![Vec::new(); p.buffers.len()],
        made: BTreeMap::new(),
        results: vec![Vec::new(); p.ops.len()],
        parts: vec![Vec::new(); cx.s.exchanges.len()],
    };
    for (e, x) in (0..).zip(&cx.s.exchanges) {
        // Hot rows come with the others.
        if x.shares.is_none() && !cx.hot(e) {
            flow.parts[x.list() as usize].push(e);
        }
    }
    for &i in &cx.sorted {
        let op = &p.ops[i as usize];
        for (n, w) in op.writes.iter().enumerate() {
            if let Place::Buffer(b) = w.place {
                flow.writers[b as usize].push((i, n));
            }
        }
        flow.results[i as usize] = results(cx, op);
        for (_, value) in &flow.results[i as usize] {
            flow.made.entry(*value).or_default().push(i);
        }
    }
    for &i in &cx.sorted {
        flow.operands(i, r);
    }
    completeness::check(&flow, r);
}

/// The rank's side whose rows these are: those received, or those asked for.
fn side(cx: &Context<'_>, o: Option<&Operand>) -> Side {
    match o.map(|o| o.place) {
        Some(Place::Buffer(b)) => match cx.p.buffers[b as usize].rows {
            Extent::Symbol(Symbol::Received(_)) => Side::Owning,
            _ => Side::Asking,
        },
        _ => Side::Asking,
    }
}

impl Context<'_> {
    fn exchange(&self, e: u32) -> &Exchange {
        &self.s.exchanges[e as usize]
    }
    pub(super) fn reuse(&self, e: u32) -> Option<Reuse> {
        self.exchange(e).reuse(self.s.settings.microbatches)
    }
    /// The last microbatch in which gradients of a class are added to.
    pub(super) fn last(&self, e: u32, class: u32) -> Option<u32> {
        let reuse = self.reuse(e)?;
        let class = reuse.classes(Way::Backward).get(class as usize).copied()?;
        Some(reuse.end(class.window))
    }
    /// Whether entries travel with the windows of their uses.
    fn uses(&self, e: u32) -> bool {
        !self.evaluation && self.reuse(e).is_some_and(|reuse| reuse.windows > 1)
    }
    /// The exchange between nodes of one within a node; what operands fit has seen to it that it is there.
    fn between(&self, e: u32) -> u32 {
        self.exchange(e).leg.between().unwrap_or(e)
    }
    /// Whether others ask for what a rank needs.
    fn folded(&self, e: u32) -> bool {
        !self.evaluation && self.exchange(e).folded
    }
    pub(super) fn replicated(&self, e: u32) -> bool {
        self.exchange(e).replicated(&self.s.tables)
    }
    /// Whether it moves gradients of hot rows.
    fn hot(&self, e: u32) -> bool {
        let x = self.exchange(e);
        self.s.tables[x.table as usize].is_hot(x.part)
    }
    /// The exchange of the hot rows among the entries that one has a share of.
    fn hot_of(&self, e: u32) -> Option<u32> {
        let list = self.exchange(e).of.filter(|_| !self.hot(e))?;
        Some(self.exchange(list).shares?.hot_of(self.exchange(e).part))
    }
    /// Columns of its part, within the table's.
    pub(super) fn part(&self, e: u32) -> (u32, u32) {
        let x = self.exchange(e);
        self.s.tables[x.table as usize].part_columns(x.part)
    }
    pub(super) fn columns(&self, o: &Operand) -> (u32, u32) {
        match o.place {
            Place::Buffer(b) => o.columns.unwrap_or((0, self.p.buffers[b as usize].columns)),
            _ => (0, 1),
        }
    }
    /// How many columns that is.
    pub(super) fn width(&self, o: &Operand) -> u32 {
        let (start, end) = self.columns(o);
        end - start
    }
}

/// Results of an operation that are values. The signature has seen to their number.
fn results(cx: &Context<'_>, op: &Op) -> Vec<(usize, Value)> {
    let list = op.action.exchanges();
    let mut out = Vec::new();
    match &op.action {
        Action::Unique { exchange: e } => {
            let shares = cx.exchange(*e).shares;
            let mut values = Vec::new();
            if shares.is_some() {
                values.push(Value::Entries(*e));
            }
            for e in shares.map_or_else(|| vec![*e], |shares| vec![shares.owned, shares.hot]) {
                values.extend([Value::Entries(e), Value::Counts(e, Side::Asking)]);
                if cx.uses(e) {
                    values.push(Value::Uses(e, Side::Asking));
                }
            }
            out.extend(values.into_iter().enumerate());
            out.extend((out.len()..op.writes.len()).map(|i| (i, Value::Inverse(*e))));
        }
        Action::UniqueAsked { exchange: e } => {
            out.extend([(0, Value::Entries(*e)), (1, Value::Counts(*e, Side::Asking))]);
            if cx.uses(*e) {
                out.push((2, Value::Uses(*e, Side::Asking)));
            }
            out.push((out.len(), Value::Inverse(*e)));
        }
        Action::PassClasses { exchange, way } => {
            out.push((0, Value::Classes(*exchange, *way, Side::Owning)));
        }
        Action::SumAsked { exchange, class } => {
            out.push((0, Value::Summed(cx.between(*exchange), *class)));
        }
        Action::Assign => out.push((0, Value::Plan)),
        Action::UniqueFor { exchange: e } => {
            out.extend([(0, Value::Asked(*e)), (1, Value::AskedCounts(*e)), (2, Value::ForWhom(*e))]);
            if cx.uses(*e) {
                out.push((3, Value::AskedUses(*e)));
            }
        }
        Action::AllToAllIds { .. } | Action::AllToAllIdsFor { .. } | Action::AllGatherIds { .. } => {
            let replicated = matches!(op.action, Action::AllGatherIds { .. });
            let mut at = 0;
            for e in list {
                let mut values = vec![Value::Rows(*e), Value::Counts(*e, Side::Owning)];
                if replicated {
                    values.push(Value::Own(*e));
                }
                if cx.uses(*e) {
                    values.push(Value::Uses(*e, Side::Owning));
                }
                out.extend((at..).zip(values.iter().copied()));
                at += values.len();
            }
        }
        Action::Partition { exchange, way } => {
            out.push((0, Value::Classes(*exchange, *way, side(cx, op.reads.first()))));
        }
        Action::AllToAllClasses { way, .. } => {
            out.extend(list.iter().map(|e| Value::Classes(*e, *way, Side::Asking)).enumerate());
        }
        Action::Positions { exchange: e, way } => {
            let side = side(cx, op.reads.first());
            for c in 0..op.writes.len() / 2 {
                out.push((2 * c, Value::Positions(*e, *way, side, c as u32)));
                out.push((2 * c + 1, Value::ClassCounts(*e, *way, side, c as u32)));
            }
        }
        Action::Gather { exchange, class } | Action::PassRows { exchange, class } => {
            out.push((0, Value::Gathered(*exchange, *class)));
        }
        Action::AllToAllRows { class, .. } => {
            out.extend(list.iter().map(|e| Value::Arrived(*e, *class)).enumerate());
        }
        Action::Split { exchange, class } => out.push((0, Value::Split(*exchange, *class))),
        Action::AllToAllGrads { class, .. } | Action::AllGatherGrads { class, .. } => {
            out.extend(list.iter().map(|e| Value::Gradients(*e, *class)).enumerate());
        }
        // Whole rows are judged where they are read, tables where they are updated. Others are of no exchange; one that
        // is of an exchange and not named here is refused with its operands.
        _ => {}
    }
    out
}

impl Flow<'_> {
    /// The value that an operand holds: that of its only writer, whole.
    fn value(&self, o: &Operand) -> Option<Value> {
        let Place::Buffer(b) = o.place else { return None };
        let [(op, n)] = self.writers[b as usize][..] else { return None };
        let w = self.cx.p.ops[op as usize].writes[n];
        let whole = self.cx.columns(&w) == self.cx.columns(o) && !w.accumulate;
        let found = self.results[op as usize].iter().find(|(at, _)| *at == n);
        found.filter(|_| whole).map(|(_, v)| *v)
    }

    /// Fails unless an operand holds this value of this batch.
    fn expect(&self, i: u32, read: usize, want: Value, rule: &'static str, r: &mut Report) {
        let Some(o) = self.cx.p.ops[i as usize].reads.get(read) else { return };
        let exchanges = &self.cx.s.exchanges;
        let found = self.value(o);
        let ok = found.is_some_and(|v| v.canonical(exchanges) == want.canonical(exchanges));
        r.check(ok, rule, || {
            let found = found.map_or("something else".into(), |v| v.to_string());
            format!("operand {read} ({o}) of `{}` must be {want}, is {found}", self.cx.name(i))
        });
    }

    /// Operands of one operation.
    fn operands(&self, i: u32, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let first = |e: u32| cx.exchange(e).entries;
        let counts = |e: u32, way: Way, class: Option<u32>, s: Side| match (class, s) {
            (Some(c), _) => Value::ClassCounts(e, way, s, c),
            (None, Side::Asking) => Value::Counts(first(e), s),
            (None, Side::Owning) => Value::Counts(e, s),
        };
        let (x, k) = ("exchange", "collective");
        match &op.action {
            Action::Unique { exchange } => {
                let leg = cx.exchange(*exchange).leg;
                r.check(leg.within().is_none(), x, || {
                    format!("`{}` is of exchange {exchange}, which does not bring rows to the ranks that use them", op.name)
                });
                self.ids(i, *exchange, r);
            }
            Action::UniqueAsked { exchange: e } => {
                let within = cx.exchange(*e).leg.within().unwrap_or(*e);
                self.expect(i, 0, Value::Rows(within), x, r);
                self.expect(i, 1, Value::Counts(within, Side::Owning), k, r);
                if cx.uses(*e) {
                    self.expect(i, 2, Value::Uses(within, Side::Owning), x, r);
                }
            }
            Action::PassClasses { exchange: e, way } => {
                let between = cx.between(*e);
                self.expect(i, 0, Value::Classes(between, *way, Side::Asking), x, r);
                self.expect(i, 1, Value::Inverse(between), x, r);
            }
            Action::PassRows { exchange: e, class } => {
                let between = cx.between(*e);
                self.expect(i, 0, Value::Arrived(between, *class), x, r);
                self.expect(i, 1, Value::Inverse(between), x, r);
                if let Some(c) = class {
                    self.expect(i, 2, Value::Positions(between, Way::Forward, Side::Asking, *c), x, r);
                    self.expect(i, 3, Value::Positions(*e, Way::Forward, Side::Owning, *c), x, r);
                }
            }
            Action::SumAsked { exchange: e, class } => {
                let between = cx.between(*e);
                self.expect(i, 0, Value::Inverse(between), x, r);
                self.expect(i, 1, counts(*e, Way::Backward, *class, Side::Owning), k, r);
                self.expect(i, 2, Value::Gradients(*e, *class), x, r);
                if let Some(c) = class {
                    self.expect(i, 3, Value::Positions(*e, Way::Backward, Side::Owning, *c), x, r);
                    self.expect(i, 4, Value::Positions(between, Way::Backward, Side::Asking, *c), x, r);
                }
            }
            Action::UniqueFor { exchange } => {
                self.expect(i, 0, Value::Plan, x, r);
                self.ids(i, *exchange, r);
                self.asks(i, *exchange, true, r);
            }
            Action::AllToAllIdsFor { exchanges } => {
                let mut at = 0;
                for e in exchanges {
                    self.kind(i, *e, false, r);
                    self.asks(i, *e, true, r);
                    self.expect(i, at, Value::Asked(first(*e)), x, r);
                    self.expect(i, at + 1, Value::AskedCounts(first(*e)), k, r);
                    self.expect(i, at + 2, Value::ForWhom(first(*e)), x, r);
                    at += 3;
                    if cx.uses(*e) {
                        self.expect(i, at, Value::AskedUses(first(*e)), x, r);
                        at += 1;
                    }
                }
            }
            Action::AllToAllIds { exchanges } | Action::AllGatherIds { exchanges } => {
                let gathers = matches!(op.action, Action::AllGatherIds { .. });
                let mut at = 0;
                for e in exchanges {
                    self.kind(i, *e, gathers, r);
                    self.asks(i, *e, false, r);
                    self.expect(i, at, Value::Entries(first(*e)), x, r);
                    self.expect(i, at + 1, Value::Counts(first(*e), Side::Asking), k, r);
                    at += 2;
                    if cx.uses(*e) {
                        self.expect(i, at, Value::Uses(first(*e), Side::Asking), x, r);
                        at += 1;
                    }
                }
            }
            Action::Partition { exchange, way } => {
                self.leg(i, *exchange, Asks::Owners, r);
                self.partition(i, *exchange, *way, r);
            }
            Action::AllToAllClasses { exchanges, way } => {
                for (n, e) in exchanges.iter().enumerate() {
                    self.kind(i, *e, false, r);
                    self.expect(i, 3 * n, Value::Classes(*e, *way, Side::Owning), x, r);
                    self.expect(i, 3 * n + 1, counts(*e, *way, None, Side::Owning), k, r);
                    self.expect(i, 3 * n + 2, counts(*e, *way, None, Side::Asking), k, r);
                }
            }
            Action::Positions { exchange: e, way } => {
                let side = side(cx, op.reads.first());
                self.expect(i, 0, Value::Classes(*e, *way, side), x, r);
                self.expect(i, 1, counts(*e, *way, None, side), k, r);
            }
            Action::Gather { exchange: e, class } => {
                self.leg(i, *e, Asks::Owners, r);
                let replicated = cx.replicated(*e);
                self.expect(i, 1, if replicated { Value::Own(*e) } else { Value::Rows(*e) }, x, r);
                if let Some(c) = class {
                    let side = if replicated { Side::Asking } else { Side::Owning };
                    self.expect(i, 2, Value::Positions(*e, Way::Forward, side, *c), x, r);
                }
            }
            Action::AllToAllRows { exchanges, class } => {
                for (n, e) in exchanges.iter().enumerate() {
                    self.kind(i, *e, false, r);
                    self.expect(i, 3 * n, Value::Gathered(*e, *class), x, r);
                    self.expect(i, 3 * n + 1, counts(*e, Way::Forward, *class, Side::Owning), k, r);
                    self.expect(i, 3 * n + 2, counts(*e, Way::Forward, *class, Side::Asking), k, r);
                }
            }
            Action::Merge { exchange: e, classes } => {
                self.leg(i, *e, Asks::Ranks, r);
                if classes.is_empty() {
                    let replicated = cx.replicated(*e);
                    let all = if replicated { Value::Gathered(*e, None) } else { Value::Arrived(*e, None) };
                    self.expect(i, 0, all, x, r);
                }
                let arrived = if classes.is_empty() { 1 } else { 2 * classes.len() };
                if let Some(hot) = cx.hot_of(*e) {
                    self.expect(i, arrived, Value::Gathered(hot, None), x, r);
                }
                for (n, c) in classes.iter().enumerate() {
                    self.expect(i, 2 * n, Value::Arrived(*e, Some(*c)), x, r);
                    self.expect(i, 2 * n + 1, Value::Positions(*e, Way::Forward, Side::Asking, *c), x, r);
                }
            }
            Action::Split { exchange: e, class } => {
                self.leg(i, *e, Asks::Ranks, r);
                self.row_gradients(i, 0, *e, *class, r);
                if let Some(c) = class {
                    self.expect(i, 1, Value::Positions(*e, Way::Backward, Side::Asking, *c), x, r);
                }
            }
            Action::AllToAllGrads { exchanges, class } | Action::AllGatherGrads { exchanges, class } => {
                let gathers = matches!(op.action, Action::AllGatherGrads { .. });
                let narrow = cx.s.settings.wire.gradients != Element::Real;
                for (n, e) in exchanges.iter().enumerate() {
                    self.kind(i, *e, gathers, r);
                    let relays = cx.exchange(*e).leg.within().is_some();
                    let share = cx.exchange(*e).of.is_some();
                    if relays {
                        self.expect(i, 3 * n, Value::Summed(*e, *class), x, r);
                    } else if class.is_some() || narrow || share {
                        self.expect(i, 3 * n, Value::Split(*e, *class), x, r);
                    } else {
                        self.row_gradients(i, 3 * n, *e, None, r);
                    }
                    self.expect(i, 3 * n + 1, counts(*e, Way::Backward, *class, Side::Asking), k, r);
                    self.expect(i, 3 * n + 2, counts(*e, Way::Backward, *class, Side::Owning), k, r);
                }
            }
            Action::Apply { exchange: e, class } => {
                self.leg(i, *e, Asks::Owners, r);
                self.expect(i, 0, Value::Rows(*e), x, r);
                if let Some(c) = class {
                    self.expect(i, 1, Value::Positions(*e, Way::Backward, Side::Owning, *c), x, r);
                }
                let at = 1 + usize::from(class.is_some());
                self.expect(i, at, counts(*e, Way::Backward, *class, Side::Owning), k, r);
                self.expect(i, at + 1, Value::Gradients(*e, *class), x, r);
            }
            Action::Dispatch { .. } | Action::DispatchRows { .. } | Action::Combine { .. } => {
                self.expect(i, 0, Value::Plan, x, r);
                self.model_side(i, r);
            }
            action if action.exchanges().is_empty() => self.model_side(i, r),
            _ => r.fail(x, format!("no rule says what `{}` of an exchange reads", cx.name(i))),
        }
    }

    /// What only lists entries moves none.
    fn moves(&self, i: u32, e: u32, r: &mut Report) {
        r.check(self.cx.exchange(e).shares.is_none(), "exchange", || {
            format!(
                "`{}` is of exchange {e}, which lists entries that others have shares of",
                self.cx.name(i)
            )
        });
    }

    /// Replicated tables gather, others scatter.
    fn kind(&self, i: u32, e: u32, gathers: bool, r: &mut Report) {
        self.moves(i, e, r);
        r.check(self.cx.replicated(e) == gathers, "collective", || {
            let (is, wants) = if gathers { ("sharded", "all-to-all") } else { ("replicated", "all-gather") };
            format!("`{}` moves rows of a {is} table (exchange {e}), which needs an {wants}", self.cx.name(i))
        });
    }

    /// Ranks that use rows are of the whole way or within a node, owners of the whole way or between nodes.
    fn leg(&self, i: u32, e: u32, asks: Asks, r: &mut Report) {
        self.moves(i, e, r);
        let leg = self.cx.exchange(e).leg;
        let (ok, who) = match asks {
            Asks::Ranks => (leg.within().is_none(), "does not bring rows to the ranks that use them"),
            Asks::Owners => (leg.between().is_none(), "does not bring rows from their owners"),
        };
        r.check(ok, "exchange", || format!("`{}` is of exchange {e}, which {who}", self.cx.name(i)));
    }

    /// Where others ask for what a rank needs nobody asks for himself.
    fn asks(&self, i: u32, e: u32, for_others: bool, r: &mut Report) {
        r.check(self.cx.folded(e) == for_others, "exchange", || {
            let who = if for_others { "each rank asks for itself" } else { "others ask on a rank's behalf" };
            format!("`{}` is of exchange {e}, in which {who}", self.cx.name(i))
        });
    }

    /// Ids in buffers must be of the exchange's table.
    fn ids(&self, i: u32, e: u32, r: &mut Report) {
        let table = self.cx.exchange(e).table;
        let op = &self.cx.p.ops[i as usize];
        for o in &op.reads[op.action.facts().listed(op.reads.len())] {
            let Place::Buffer(b) = o.place else { continue };
            if !self.cx.spend(self.writers[b as usize].len()) {
                return;
            }
            let of_table = self.writers[b as usize].iter().all(|(w, _)| {
                let writer = &self.cx.p.ops[*w as usize];
                match writer.action {
                    Action::DrawNegatives { table: t, .. } => t == table,
                    Action::CopyIds => writer.reads.iter().all(|o| {
                        matches!(self.cx.s.shape(self.cx.p, o), Some(OperandType::Ids { table: t, .. }) if t == table)
                    }),
                    _ => false,
                }
            });
            r.check(of_table, "exchange", || {
                format!("`{}` takes {o}, which are not ids of table {table}", self.cx.name(i))
            });
        }
    }

    /// Rows of this batch and of exactly those around it that its distances reach, nearest first.
    fn partition(&self, i: u32, e: u32, way: Way, r: &mut Report) {
        let cx = self.cx;
        let op = &cx.p.ops[i as usize];
        let side = side(cx, op.reads.first());
        let (rows, uses) = match side {
            Side::Owning => (Value::Rows(e), Value::Uses(e, Side::Owning)),
            Side::Asking => (Value::Own(e), Value::Uses(cx.exchange(e).entries, Side::Asking)),
        };
        let each = 1 + usize::from(cx.uses(e));
        self.expect(i, 0, rows, "exchange", r);
        if each == 2 {
            self.expect(i, 1, uses, "exchange", r);
        }
        for (n, o) in op.reads.iter().enumerate() {
            let distance = (n / each) as i32;
            let away = if way == Way::Forward { -distance } else { distance };
            r.check(o.batch == away, "history", || {
                format!("operand {n} ({o}) of `{}` must be of batch {away:+}", op.name)
            });
            if n >= each {
                let want = if n % each == 0 { Value::Rows(e) } else { Value::Uses(e, Side::Owning) };
                self.expect(i, n, want, "history", r);
            }
        }
    }
}

/// True for a matrix of row values or gradients: real, with a row per entry.
fn per_entry(cx: &Context<'_>, o: &Operand) -> Option<u32> {
    let Place::Buffer(b) = o.place else { return None };
    let b = &cx.p.buffers[b as usize];
    match b.rows {
        Extent::Symbol(Symbol::Sent(e)) if b.element == Element::Real => Some(e),
        _ => None,
    }
}
