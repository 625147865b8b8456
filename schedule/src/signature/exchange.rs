//! Operand rules of the actions that move ids, rows and gradients between ranks.

use super::{Context, Fault, Operands, Shape, counts, id, index, name, real, tokens};
use crate::model::Exchange;
use crate::op::{Action, Element, Extent, Way};
use crate::reuse::Reuse;
use crate::size::Symbol;

/// An exchange and its sizes.
struct Facts<'a> {
    of: &'a Exchange,
    /// Its index.
    number: u32,
    columns: u32,
    reuse: Option<Reuse>,
}

impl Facts<'_> {
    fn sent(&self, way: Way, class: Option<u32>) -> Result<Extent, Fault> {
        self.class(way, class)?;
        let e = self.of.entries;
        Ok(Extent::Symbol(class.map_or(Symbol::Sent(e), |c| Symbol::SentClass(e, way, c))))
    }
    fn received(&self, way: Way, class: Option<u32>) -> Result<Extent, Fault> {
        self.class(way, class)?;
        let e = self.number;
        Ok(Extent::Symbol(class.map_or(Symbol::Received(e), |c| Symbol::ReceivedClass(e, way, c))))
    }
    fn class(&self, way: Way, class: Option<u32>) -> Result<(), Fault> {
        let Some(class) = class else { return Ok(()) };
        let classes = self.classes(way)?;
        if class as usize >= classes {
            return Err(format!("class {class} of exchange {}, which has {classes}", self.number));
        }
        Ok(())
    }
    fn classes(&self, way: Way) -> Result<usize, Fault> {
        self.reuse
            .map(|r| r.count(way))
            .ok_or_else(|| format!("the rows of exchange {} are not told apart", self.number))
    }
    /// Whether entries carry the microbatches of their uses.
    fn uses(&self) -> bool {
        self.reuse.is_some_and(|r| r.microbatches > 1)
    }
}

fn byte(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Byte, rows, columns }
}

fn facts<'a>(cx: &Context<'a>, number: u32) -> Result<Facts<'a>, Fault> {
    let of = cx.exchanges.get(number as usize).ok_or(format!("there is no exchange {number}"))?;
    let columns = *cx.columns.get(number as usize).ok_or(format!("exchange {number} has no columns"))?;
    let reuse = of.lookahead.map(|lookahead| Reuse { lookahead, microbatches: cx.microbatches });
    Ok(Facts { of, number, columns, reuse })
}

/// The exchanges of a collective, rising: equal sets are written alike, and none travels twice.
fn group<'a>(cx: &Context<'a>, exchanges: &[u32]) -> Result<Vec<Facts<'a>>, Fault> {
    if exchanges.is_empty() || exchanges.windows(2).any(|w| w[0] >= w[1]) {
        return Err("its exchanges must be at least one, in rising order".into());
    }
    exchanges.iter().map(|e| facts(cx, *e)).collect()
}

/// The rule of an action of this kind; `None` for others.
pub(super) fn check(action: &Action, o: &Operands<'_>, cx: &Context<'_>) -> Option<Result<(), Fault>> {
    Some(match action {
        Action::Unique { exchange } => unique(o, cx, *exchange),
        Action::AllToAllIds { exchanges } => ids(o, cx, exchanges, false),
        Action::AllGatherIds { exchanges } => ids(o, cx, exchanges, true),
        Action::Partition { exchange, way } => partition(o, cx, *exchange, *way),
        Action::AllToAllClasses { exchanges, way: _ } => classes(o, cx, exchanges),
        Action::Positions { exchange, way } => positions(o, cx, *exchange, *way),
        Action::Gather { exchange, class } => gather(o, cx, *exchange, *class),
        Action::AllToAllRows { exchanges, class } => rows(o, cx, exchanges, *class),
        Action::Merge { exchange, classes } => merge(o, cx, *exchange, classes),
        Action::Split { exchange, class } => split(o, cx, *exchange, *class),
        Action::AllToAllGrads { exchanges, class } | Action::AllGatherGrads { exchanges, class } => {
            grads(o, cx, exchanges, *class)
        }
        Action::Apply { exchange, class } => apply(o, cx, *exchange, *class),
        _ => return None,
    })
}

fn unique(o: &Operands<'_>, cx: &Context<'_>, exchange: u32) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    if f.of.entries != exchange {
        return Err(format!("exchange {exchange} sends the entries of exchange {}", f.of.entries));
    }
    let (n, extra) = (o.reads.len(), 2 + usize::from(f.uses()));
    o.count(n, n + extra)?;
    if n == 0 || !n.is_multiple_of(cx.microbatches as usize) {
        return Err(format!("needs sequences of ids for each of {} microbatches", cx.microbatches));
    }
    let sent = f.sent(Way::Forward, None)?;
    o.write(0, id(sent, 1))?;
    o.write(1, counts())?;
    if f.uses() {
        o.write(2, byte(sent, 2))?;
    }
    for (i, r) in o.reads.iter().enumerate() {
        match r {
            Shape::Ids { table, lengths } if *table == f.of.table => {
                o.write(i + extra, index(tokens(*lengths), 1))?;
            }
            Shape::Matrix { element: Element::Id, rows, columns } => {
                o.write(i + extra, index(*rows, *columns))?;
            }
            other => return Err(format!("operand {i} must be ids of table {}, is {other}", f.of.table)),
        }
    }
    Ok(())
}

fn ids(o: &Operands<'_>, cx: &Context<'_>, exchanges: &[u32], replicated: bool) -> Result<(), Fault> {
    let (mut r, mut w) = (0, 0);
    let group = group(cx, exchanges)?;
    let count = |each: usize| group.iter().map(|f| each + usize::from(f.uses())).sum::<usize>();
    o.count(count(2), count(2 + usize::from(replicated)))?;
    for f in &group {
        let (sent, received) = (f.sent(Way::Forward, None)?, f.received(Way::Forward, None)?);
        o.read(r, id(sent, 1))?;
        o.read(r + 1, counts())?;
        o.write(w, index(received, 1))?;
        o.write(w + 1, counts())?;
        (r, w) = (r + 2, w + 2);
        if replicated {
            o.write(w, index(sent, 1))?;
            w += 1;
        }
        if f.uses() {
            o.read(r, byte(sent, 2))?;
            o.write(w, byte(received, 2))?;
            (r, w) = (r + 1, w + 1);
        }
    }
    Ok(())
}

/// The rows that a partition or gather works on: those received, or (replicated tables) the rank's own.
fn subject(f: &Facts<'_>, rows: Extent) -> Result<bool, Fault> {
    match rows {
        Extent::Symbol(Symbol::Received(e)) if e == f.number => Ok(true),
        Extent::Symbol(Symbol::Sent(e)) if e == f.of.entries => Ok(false),
        _ => Err(format!("operand 0 must have a row per entry of exchange {}, has {rows}", f.number)),
    }
}

fn partition(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, way: Way) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    f.classes(way)?;
    let each = 1 + usize::from(f.uses());
    let history = f.reuse.map_or(0, Reuse::history) as usize;
    o.count(each * (1 + history), 1)?;
    let (rows, _) = o.index(0)?;
    subject(&f, rows)?;
    let received = f.received(way, None)?;
    for i in 0..=history {
        let extent = if i == 0 { rows } else { received };
        o.read(i * each, index(extent, 1))?;
        if f.uses() {
            o.read(i * each + 1, byte(extent, 2))?;
        }
    }
    o.write(0, byte(rows, 1))
}

fn classes(o: &Operands<'_>, cx: &Context<'_>, exchanges: &[u32]) -> Result<(), Fault> {
    let group = group(cx, exchanges)?;
    o.count(3 * group.len(), group.len())?;
    for (i, f) in group.iter().enumerate() {
        f.classes(Way::Forward)?;
        o.read(3 * i, byte(f.received(Way::Forward, None)?, 1))?;
        o.read(3 * i + 1, counts())?;
        o.read(3 * i + 2, counts())?;
        o.write(i, byte(f.sent(Way::Forward, None)?, 1))?;
    }
    Ok(())
}

fn positions(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, way: Way) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    let n = f.classes(way)?;
    o.count(2, 2 * n)?;
    let rows = match o.reads[0] {
        Shape::Matrix { element: Element::Byte, rows, columns: 1 } => rows,
        other => return Err(format!("operand 0 must be classes, is {other}")),
    };
    let owner = subject(&f, rows)?;
    o.read(1, counts())?;
    for c in 0..n as u32 {
        let extent = if owner { f.received(way, Some(c))? } else { f.sent(way, Some(c))? };
        o.write(2 * c as usize, index(extent, 1))?;
        o.write(2 * c as usize + 1, counts())?;
    }
    Ok(())
}

fn table_of(f: &Facts<'_>, shape: Option<&Shape>, what: &str) -> Result<(), Fault> {
    match shape {
        Some(Shape::Table { table, .. }) if *table == f.of.table => Ok(()),
        other => Err(format!("{what} must be table {}, is {}", f.of.table, name(other))),
    }
}

fn gather(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, class: Option<u32>) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    o.count(2 + usize::from(class.is_some()), 1)?;
    table_of(&f, o.reads.first(), "operand 0")?;
    let (rows, _) = o.index(1)?;
    let owner = match rows {
        Extent::Symbol(Symbol::Received(e)) if e == f.number => true,
        Extent::Symbol(Symbol::Sent(e)) if e == f.of.entries => false,
        _ => return Err(format!("operand 1 must have a row per entry of exchange {exchange}, has {rows}")),
    };
    o.read(1, index(rows, 1))?;
    let extent = if owner { f.received(Way::Forward, class)? } else { f.sent(Way::Forward, class)? };
    if class.is_some() {
        o.read(2, index(extent, 1))?;
    }
    o.write(0, real(extent, f.columns))
}

fn rows(o: &Operands<'_>, cx: &Context<'_>, exchanges: &[u32], class: Option<u32>) -> Result<(), Fault> {
    let group = group(cx, exchanges)?;
    o.count(3 * group.len(), group.len())?;
    for (i, f) in group.iter().enumerate() {
        o.read(3 * i, real(f.received(Way::Forward, class)?, f.columns))?;
        o.read(3 * i + 1, counts())?;
        o.read(3 * i + 2, counts())?;
        o.write(i, real(f.sent(Way::Forward, class)?, f.columns))?;
    }
    Ok(())
}

fn merge(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, classes: &[u32]) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    if classes.is_empty() || classes.windows(2).any(|w| w[0] >= w[1]) {
        return Err("its classes must be at least one, in rising order".into());
    }
    o.count(2 * classes.len(), 1)?;
    for (i, c) in classes.iter().enumerate() {
        let extent = f.sent(Way::Forward, Some(*c))?;
        o.read(2 * i, real(extent, f.columns))?;
        o.read(2 * i + 1, index(extent, 1))?;
    }
    o.write(0, real(f.sent(Way::Forward, None)?, f.columns))
}

fn split(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, class: u32) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    let extent = f.sent(Way::Backward, Some(class))?;
    o.count(2, 1)?;
    o.read(0, real(f.sent(Way::Backward, None)?, f.columns))?;
    o.read(1, index(extent, 1))?;
    o.write(0, real(extent, f.columns))
}

fn grads(o: &Operands<'_>, cx: &Context<'_>, exchanges: &[u32], class: Option<u32>) -> Result<(), Fault> {
    let group = group(cx, exchanges)?;
    o.count(3 * group.len(), group.len())?;
    for (i, f) in group.iter().enumerate() {
        o.read(3 * i, real(f.sent(Way::Backward, class)?, f.columns))?;
        o.read(3 * i + 1, counts())?;
        o.read(3 * i + 2, counts())?;
        o.write(i, real(f.received(Way::Backward, class)?, f.columns))?;
    }
    Ok(())
}

fn apply(o: &Operands<'_>, cx: &Context<'_>, exchange: u32, class: Option<u32>) -> Result<(), Fault> {
    let f = facts(cx, exchange)?;
    let more = usize::from(class.is_some());
    o.count(3 + more, 1)?;
    table_of(&f, o.writes.first(), "result 0")?;
    o.read(0, index(f.received(Way::Backward, None)?, 1))?;
    let extent = f.received(Way::Backward, class)?;
    if class.is_some() {
        o.read(1, index(extent, 1))?;
    }
    o.read(1 + more, counts())?;
    o.read(2 + more, real(extent, f.columns))
}
