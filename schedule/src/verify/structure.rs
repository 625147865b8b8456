//! Rules about one program that need no order: what it refers to, sizes, engines, microbatches.

use std::collections::{BTreeMap, BTreeSet};

use super::Report;
use crate::action::{Effect, Facts, Phase, Runs, Scope};
use crate::attribute::{Normalize, Site};
use crate::model::Engine;
use crate::op::{Buffer, Op};
use crate::operand::{Extent, Operand, Place};
use crate::program::{Program, Schedule};
use crate::signature::OperandType;
use crate::size::Symbol;

/// Farthest stages and offsets of batches.
const FARTHEST: i32 = 64;
/// Batches in flight, copies of a buffer, steps that a dependency spans.
const MOST_BATCHES: u32 = 1 << 10;
/// Elements of all buffers whose size no batch decides.
const MOST_FIXED: u64 = 1 << 31;
/// Greatest priority and its negative.
const MOST_PRIORITY: i32 = 1 << 10;
/// Planned times, in nanoseconds: exact in a double.
const MOST_TIME: u64 = 1 << 53;

/// Rules that need no order.
pub(super) fn check(s: &Schedule, p: &Program, evaluation: bool, r: &mut Report) {
    let before = r.0.len();
    indices(s, p, r);
    if r.0.len() > before {
        return;
    }
    ranges(s, p, r);
    joined(p, r);
    operands(s, p, evaluation, r);
    order(p, r);
    writes(p, r);
    sites(s, p, r);
    travels(p, r);
    if !evaluation {
        microbatches(s, p, r);
    }
}

fn indices(s: &Schedule, p: &Program, r: &mut Report) {
    let symbol_ok = |e: Extent| match e {
        Extent::Symbol(Symbol::Tokens(g)) => (g as usize) < s.lengths.len(),
        Extent::Symbol(Symbol::Sent(e) | Symbol::Received(e) | Symbol::Asked(e)) => {
            (e as usize) < s.exchanges.len()
        }
        Extent::Symbol(Symbol::SentClass(e, way, c) | Symbol::ReceivedClass(e, way, c)) => {
            let reuse = s.exchanges.get(e as usize).and_then(|x| x.reuse(s.settings.microbatches));
            reuse.is_some_and(|reuse| (c as usize) < reuse.count(way))
        }
        Extent::Symbol(Symbol::Squares(_)) => false,
        Extent::Symbol(Symbol::Ranks | Symbol::Samples) | Extent::Fixed(_) => true,
    };
    let mut all_fixed = 0u64;
    for (i, b) in p.buffers.iter().enumerate() {
        r.check((1..=MOST_BATCHES).contains(&b.copies), "indices", || {
            format!("buffer b{i} has {} copies, must be in 1..={MOST_BATCHES}", b.copies)
        });
        let fixed = match b.rows {
            Extent::Fixed(n) => u64::from(n) * u64::from(b.columns) * u64::from(b.copies),
            Extent::Symbol(_) => 0,
        };
        all_fixed = all_fixed.saturating_add(fixed);
        r.check(fixed <= MOST_FIXED, "indices", || {
            format!("buffer b{i} `{}` has {fixed} elements whatever the batch", b.name)
        });
        let known = |op: u32| (op as usize) < p.ops.len();
        r.check(known(b.first) && known(b.last), "indices", || {
            format!("buffer b{i} lives from operation {} to {}", b.first, b.last)
        });
        r.check(symbol_ok(b.rows), "indices", || format!("buffer b{i} `{}` has {} rows", b.name, b.rows));
        r.check((1..=1 << 24).contains(&b.columns), "indices", || {
            format!("buffer b{i} has {} columns", b.columns)
        });
        r.check((b.slot as usize) < p.buffers.len(), "indices", || {
            format!("buffer b{i} has slot {}", b.slot)
        });
    }
    r.check(all_fixed <= MOST_FIXED, "indices", || {
        format!("all buffers together have {all_fixed} elements whatever the batch")
    });
    for op in &p.ops {
        for o in op.reads.iter().chain(&op.writes) {
            let (n, count) = match o.place {
                Place::Buffer(n) => (n, p.buffers.len()),
                Place::Parameter(n) | Place::Gradient(n) => (n, s.parameters.len()),
                Place::Table(n) => (n, s.tables.len()),
                Place::Input(n) => (n, s.inputs.len()),
                Place::Lengths(n) => (n, s.lengths.len()),
            };
            let exists = (n as usize) < count;
            r.check(exists, "indices", || format!("`{}` uses {o}, there are {count}", op.name));
            let columns_ok = match (o.columns, o.place) {
                (None, _) => true,
                (Some((a, z)), Place::Buffer(b)) => exists && a < z && z <= p.buffers[b as usize].columns,
                _ => false,
            };
            r.check(columns_ok, "indices", || format!("`{}` uses {o}, which has no such columns", op.name));
        }
        for d in &op.deps {
            let exists = (d.op as usize) < p.ops.len();
            r.check(exists, "indices", || format!("`{}` depends on operation {}", op.name, d.op));
            r.check(d.distance <= MOST_BATCHES, "indices", || {
                format!("`{}` has a dependency of {} steps", op.name, d.distance)
            });
        }
        let facts = op.action.facts();
        let normalize = facts.loss;
        let normalize_ok = match normalize {
            Some(Normalize::Tokens(g)) => (g as usize) < s.lengths.len(),
            Some(Normalize::Constant(c)) => c.is_finite() && c > 0.0,
            _ => true,
        };
        r.check(normalize_ok, "indices", || format!("`{}` is normalised by {normalize:?}", op.name));
        r.check(facts.in_range, "indices", || {
            format!("`{}` has a number out of range: {:?}", op.name, op.action)
        });
    }
}

fn operands(s: &Schedule, p: &Program, evaluation: bool, r: &mut Report) {
    let columns: Vec<u32> = s.exchanges.iter().map(|e| e.columns(&s.tables)).collect();
    // Evaluation takes whole batches.
    let cx = s.context(&columns, if evaluation { 1 } else { s.settings.microbatches });
    for op in &p.ops {
        let lists = op.action.facts().lists;
        let sides = [(&op.reads, lists.reads), (&op.writes, lists.writes)];
        for (n, o, whole) in sides.iter().flat_map(|(l, w)| (0..).zip(l.iter()).map(|(n, o)| (n, o, *w))) {
            let Place::Buffer(b) = o.place else { continue };
            let b = &p.buffers[b as usize];
            let part = o.columns.is_some_and(|c| c != (0, b.columns));
            let needs = !b.element.is_float() || whole.contains(&n);
            r.check(!(part && needs), "operands", || {
                format!("`{}` uses {o}, some columns, where a whole buffer belongs", op.name)
            });
        }
        let (reads, writes) = s.shapes(p, op);
        if let Err(e) = op.action.check(&reads, &writes, &cx) {
            r.fail("operands", format!("`{}`: {e}", op.name));
        }
        // Who has both sequences and a parameter reads or sums a row of it per position.
        let groups = op.reads.iter().filter_map(|o| match o.place {
            Place::Lengths(g) => Some(g),
            _ => None,
        });
        for max in groups.map(|g| s.lengths[g as usize].max) {
            for weight in reads.iter().chain(&writes) {
                if let OperandType::Parameter { rows, .. } | OperandType::Gradient { rows, .. } = weight {
                    r.check(*rows >= max, "operands", || {
                        format!("`{}` has {rows} positions, sequences have up to {max}", op.name)
                    });
                }
            }
        }
    }
}

fn ranges(s: &Schedule, p: &Program, r: &mut Report) {
    r.check((1..=MOST_BATCHES).contains(&p.in_flight), "in-flight", || {
        format!("{} batches are in flight, must be in 1..={MOST_BATCHES}", p.in_flight)
    });
    let mut started: BTreeMap<(Engine, i32), (u64, usize)> = BTreeMap::new();
    for (i, op) in p.ops.iter().enumerate() {
        let name = &op.name;
        r.check(s.engines.contains(&op.engine), "engines", || {
            format!("`{name}` runs on {:?}, which is not declared", op.engine)
        });
        let facts = op.action.facts();
        let suits = match op.engine {
            Engine::Host => facts.runs == Runs::Host,
            Engine::Compute => facts.runs == Runs::Compute,
            Engine::CopyIn | Engine::CopyOut | Engine::NicSend | Engine::NicReceive => {
                facts.runs == Runs::Link
            }
        };
        r.check(suits, "engines", || {
            format!("`{name}` runs on {:?}, which does not do such operations", op.engine)
        });
        r.check((-FARTHEST..=FARTHEST).contains(&op.stage), "stages", || {
            format!("`{name}` has stage {}, must be in {}..={FARTHEST}", op.stage, -FARTHEST)
        });
        r.check((-MOST_PRIORITY..=MOST_PRIORITY).contains(&op.priority), "stages", || {
            format!("`{name}` has priority {}, must be in {}..={MOST_PRIORITY}", op.priority, -MOST_PRIORITY)
        });
        let chunk = op.chunk.is_none_or(|bytes| bytes > 0 && facts.runs == Runs::Link);
        r.check(chunk, "chunks", || {
            format!("`{name}` has chunks of {:?} bytes; only transfers have, of at least one", op.chunk)
        });
        r.check([op.start, op.time, op.lag].iter().all(|t| *t <= MOST_TIME), "times", || {
            format!("`{name}` is planned for {} + {} + {} ns", op.start, op.time, op.lag)
        });
        if let Some((before, x)) = started.insert((op.engine, op.priority), (op.start, i)) {
            r.check(before <= op.start, "times", || {
                format!("`{name}` is planned before `{}`, which precedes it in its queue", p.ops[x].name)
            });
        }
        let around = facts.effects.contains(&Effect::ReadsBatches);
        for o in &op.reads {
            let looks = around && matches!(o.place, Place::Buffer(_));
            r.check(o.batch == 0 || (looks && o.batch.abs() <= FARTHEST), "offsets", || {
                format!("`{name}` reads {o}: only partitions look at other batches, at most {FARTHEST} away")
            });
            r.check(!o.accumulate, "offsets", || format!("`{name}` reads {o}, an addition is a result"));
        }
        for o in &op.writes {
            r.check(o.batch == 0, "offsets", || format!("`{name}` writes {o}, of another batch"));
        }
    }
}

/// Samples travel with all of their inputs that are read where they are worked on, lengths of all groups are shared: in
/// order, none twice.
fn travels(p: &Program, r: &mut Report) {
    let input = |o: &Operand| match o.place {
        Place::Input(n) | Place::Lengths(n) => Some(n),
        _ => None,
    };
    for op in p.ops.iter().filter(|op| op.action.facts().phase == Phase::Balance) {
        let numbers: Vec<u32> = op.reads.iter().filter_map(input).collect();
        r.check(numbers.windows(2).all(|pair| pair[0] < pair[1]), "inputs", || {
            format!("`{}` must list what a sample has in order", op.name)
        });
    }
    let brings: Vec<&Op> = p.ops.iter().filter(|op| op.action.has(Effect::AssignsBatch)).collect();
    for op in p.ops.iter().filter(|op| op.site == Site::Assigned && !brings.is_empty()) {
        for o in op.reads.iter().filter(|o| matches!(o.place, Place::Input(_))) {
            let brought = brings.iter().any(|b| b.reads.iter().any(|i| i.place == o.place));
            r.check(brought, "inputs", || {
                format!("`{}` reads {o} of samples as assigned, which do not bring it along", op.name)
            });
        }
    }
}

/// Samples at home and samples as assigned are different ones, in number too, so no operation uses values of both, but for
/// those that bring values from one to the other and the one that lists the ids of a rank. Rows and gradients on their way
/// to and from their owners are a rank's: they have no site but home, and what works on nothing else is at home where
/// anything about rows is; all else that is of a rank is said to be as assigned. Work is done where samples go if they go
/// anywhere, but for what makes values of rows. Who asks on behalf of others lists samples at home; those others list what
/// they work on, and nothing else.
fn sites(s: &Schedule, p: &Program, r: &mut Report) {
    let assigns = p.ops.iter().any(|op| op.action.has(Effect::AssignsBatch));
    let buffer = |o: &Operand| match o.place {
        Place::Buffer(b) => Some(&p.buffers[b as usize]),
        _ => None,
    };
    for (n, b) in p.buffers.iter().enumerate() {
        let wanted = !assigns || !b.rows.of_samples();
        r.check(!wanted || b.site.is_home(), "site", || {
            let why = if assigns { "its rows are of none" } else { Site::Home.works() };
            format!("b{n} `{}` is of samples as assigned, {why}", b.name)
        });
    }
    // Rows are looked up, or asked for, where samples are read.
    let mut facts = p.ops.iter().map(|op| op.action.facts());
    let parted = facts.any(|facts| facts.asks_for_others() || facts.carries().is_some());
    for op in &p.ops {
        let (name, site, facts) = (&op.name, op.site, op.action.facts());
        let brings = matches!(facts.phase, Phase::Load | Phase::Balance) || facts.carries().is_some();
        let of_samples = |o: &Operand| buffer(o).is_some_and(|b| b.rows.of_samples());
        let buffers = op.reads.iter().chain(&op.writes).filter(|o| buffer(o).is_some()).count();
        let of_rank = buffers > 0 && !op.reads.iter().chain(&op.writes).any(of_samples);
        let of_parameters =
            buffers == 0 && !op.reads.iter().any(|o| matches!(o.place, Place::Input(_) | Place::Lengths(_)));
        // Of lists that two ranks make of the same samples: whose they are.
        let mut exchanges = op.action.exchanges().iter().filter_map(|e| s.exchanges.get(*e as usize));
        let folds = assigns && exchanges.any(|x| x.folded);
        let list = match (facts.scope, facts.asks_for_others()) {
            (Scope::Listed, true) => Some(Site::Home),
            (Scope::Listed, false) if folds => Some(Site::Assigned),
            _ => None,
        };
        let wanted = if !assigns || brings {
            Some(Site::Home)
        } else if list.is_some() {
            list
        } else if of_rank {
            Some(if parted { Site::Home } else { Site::Assigned })
        } else {
            (of_parameters || !facts.either_site()).then_some(Site::Assigned)
        };
        r.check(wanted.is_none_or(|wanted| site == wanted), "site", || {
            let why = match (brings, list) {
                (true, _) => "they are read at home",
                (false, None) if assigns && (of_rank || of_parameters) => {
                    let wanted = wanted.unwrap_or_default().describe();
                    return format!(
                        "`{name}` uses no samples, so it is to be {wanted}, not {}",
                        site.describe()
                    );
                }
                (false, Some(Site::Home)) => "on whose behalf it asks",
                (false, Some(Site::Assigned)) => "whose rows others ask for",
                (false, None) => wanted.unwrap_or_default().works(),
            };
            format!("`{name}` works on samples {}, {why}", site.describe())
        });
        // Where each operand must be.
        let listed = facts.scope == Scope::Listed;
        let extra = op.writes.len().saturating_sub(op.reads.len());
        let read = |i: usize| match facts.carries() {
            Some((from, _)) => Some(if i == 0 { Site::Home } else { from }),
            None if listed => list,
            None => Some(site),
        };
        let written = |i: usize| match facts.carries() {
            Some((_, to)) => Some(to),
            // Places of ids are where the ids are.
            None if listed && i >= extra && !facts.asks_for_others() => {
                Some(buffer(&op.reads[i - extra]).map_or(site, |b| b.site))
            }
            None => Some(site),
        };
        let reads = op.reads.iter().enumerate().map(|(i, o)| (o, read(i)));
        let writes = op.writes.iter().enumerate().map(|(i, o)| (o, written(i)));
        for (o, wanted) in reads.chain(writes) {
            let (Some(b), Some(wanted)) = (buffer(o).filter(|b| b.rows.of_samples()), wanted) else {
                continue;
            };
            r.check(b.site == wanted, "site", || {
                format!(
                    "`{name}` needs {o} of samples {}, which is of samples {}",
                    wanted.describe(),
                    b.site.describe()
                )
            });
        }
    }
}

/// An operation of a microbatch uses its samples only; the whole batch's `unique` lists them microbatch by
/// microbatch.
fn microbatches(s: &Schedule, p: &Program, r: &mut Report) {
    let m = s.settings.microbatches;
    let exists = |x: Option<u32>| x.is_none_or(|x| m > 1 && x < m);
    for (i, b) in p.buffers.iter().enumerate() {
        r.check(exists(b.microbatch), "microbatch", || {
            format!("b{i} `{}` is of microbatch {:?} of {m}", b.name, b.microbatch)
        });
    }
    let of_part = |b: &Buffer| match b.rows {
        Extent::Symbol(Symbol::Samples | Symbol::Tokens(_)) => true,
        Extent::Symbol(_) => false,
        Extent::Fixed(_) => b.microbatch.is_some(),
    };
    for op in &p.ops {
        let name = &op.name;
        r.check(exists(op.microbatch), "microbatch", || {
            format!("`{name}` is of microbatch {:?} of {m}", op.microbatch)
        });
        let scope = op.action.facts().scope;
        // Transfers of classes may carry the microbatch that they serve; their sizes are the batch's.
        let unsplit = matches!(scope, Scope::Batch | Scope::Listed);
        r.check(!unsplit || op.microbatch.is_none(), "microbatch", || {
            format!("`{name}` concerns the whole batch, not microbatch {:?}", op.microbatch)
        });
        if scope == Scope::Listed {
            let facts = op.action.facts();
            let listed = &op.reads[facts.listed(op.reads.len())];
            let each = (listed.len() / m.max(1) as usize).max(1);
            // Places of ids, if it finds them.
            let extra = if facts.asks_for_others() {
                op.writes.len()
            } else {
                op.writes.len().saturating_sub(listed.len())
            };
            for (i, o) in listed.iter().enumerate() {
                let part = (m > 1).then_some((i / each) as u32);
                let same_input = listed[i % each].place == o.place || matches!(o.place, Place::Buffer(_));
                r.check(same_input, "microbatch", || {
                    format!("`{name}` must list the same sequences for every microbatch, {o} is another")
                });
                for o in [Some(o), op.writes.get(i + extra)].into_iter().flatten() {
                    if let Place::Buffer(b) = o.place {
                        let of = p.buffers[b as usize].microbatch;
                        r.check(of == part, "microbatch", || {
                            format!("`{name}` uses {o} of microbatch {of:?} where one of {part:?} belongs")
                        });
                    }
                }
            }
            continue;
        }
        for o in op.reads.iter().chain(&op.writes) {
            let Place::Buffer(b) = o.place else { continue };
            let b = &p.buffers[b as usize];
            let own = scope == Scope::Samples && b.microbatch == op.microbatch;
            let ok = !of_part(b) || own;
            r.check(ok, "microbatch", || {
                format!(
                    "`{name}` of microbatch {:?} uses {o} of microbatch {:?}",
                    op.microbatch, b.microbatch
                )
            });
        }
    }
}

fn order(p: &Program, r: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, op) in p.ops.iter().enumerate() {
        r.check(names.insert(&op.name), "names", || format!("two operations are called `{}`", op.name));
        for d in op.deps.iter().filter(|d| d.distance == 0) {
            r.check((d.op as usize) < i, "order", || {
                format!("`{}` depends on `{}`, which stands behind it", op.name, p.ops[d.op as usize].name)
            });
        }
        let distinct: BTreeSet<_> = op.deps.iter().collect();
        r.check(distinct.len() == op.deps.len(), "order", || format!("`{}` repeats a dependency", op.name));
    }
}

/// Why one launch cannot start an operation and the one that stands before it.
fn apart(before: &Op, op: &Op) -> Option<&'static str> {
    let queue = |op: &Op| (op.engine, op.priority);
    let samples = |op: &Op| (op.microbatch, op.site);
    if queue(before) != queue(op) {
        Some("that is in another queue")
    } else if before.stage != op.stage {
        Some("that is of another stage")
    } else if samples(before) != samples(op) {
        Some("that is of other samples")
    } else if !op.deps.is_empty() {
        Some("has dependencies of its own: all of a launch wait where its first does")
    } else if !op.action.joins(&before.action) {
        Some("that is not the same action of other rows")
    } else {
        None
    }
}

/// What one launch starts stands together, is of one kind, queue and batch, for other rows each, and waits where its first does.
fn joined(p: &Program, r: &mut Report) {
    let (mut rows, mut tables) = (BTreeSet::new(), BTreeSet::new());
    for (i, op) in p.ops.iter().enumerate() {
        let before = if op.joined { i.checked_sub(1).map(|i| &p.ops[i]) } else { None };
        if op.joined {
            let wrong = before.map_or(Some("there is none"), |b| apart(b, op));
            r.check(wrong.is_none(), "joined", || {
                let other = before.map_or("one before it".into(), |b| format!("`{}`", b.name));
                let wrong = wrong.unwrap_or_default();
                format!("`{}` is to be one launch with {other}, but {wrong}", op.name)
            });
        }
        if !op.joined {
            rows.clear();
            tables.clear();
        }
        let mut updates = op.writes.iter().filter(|o| matches!(o.place, Place::Table(_))).map(|o| o.place);
        let of = op.action.facts().of;
        let other_rows = of.exchanges.iter().all(|x| rows.insert((*x, of.classes)));
        let other_tables = updates.all(|t| tables.insert(t));
        r.check(!op.joined || (other_rows && other_tables), "joined", || {
            format!(
                "`{}` is one launch with another of the same rows, or with another update of its table",
                op.name
            )
        });
    }
}

fn writes(p: &Program, r: &mut Report) {
    for op in &p.ops {
        let read: BTreeSet<Place> = op.reads.iter().map(|o| o.place).collect();
        let Facts { effects, results, .. } = op.action.facts();
        for (i, w) in op.writes.iter().enumerate() {
            let may = match w.place {
                Place::Buffer(_) => true,
                Place::Gradient(_) => effects.contains(&Effect::WritesGradient),
                Place::Parameter(_) => effects.contains(&Effect::WritesParameter),
                Place::Table(_) => effects.contains(&Effect::WritesTable),
                Place::Input(_) | Place::Lengths(_) => false,
            };
            r.check(may, "writes", || format!("`{}` may not write {w}", op.name));
            let adds = !w.accumulate || results.adds.contains(&i);
            r.check(adds, "writes", || format!("`{}` cannot add into {w}", op.name));
            let both = read.contains(&w.place);
            r.check(results.in_place || !both, "writes", || {
                format!("`{}` reads and writes {}", op.name, w.place)
            });
        }
        let mut gradients = op.writes.iter().filter(|w| matches!(w.place, Place::Gradient(_)));
        let first = gradients.next().is_some_and(|w| w.accumulate);
        r.check(gradients.all(|w| w.accumulate == first), "writes", || {
            format!("`{}` adds to one gradient and overwrites another", op.name)
        });
        let mut sorted: Vec<&Operand> = op.writes.iter().collect();
        sorted.sort_by_key(|o| (o.place, o.columns));
        for pair in sorted.windows(2) {
            r.check(!overlap(pair[0], pair[1]), "writes", || {
                format!("`{}` writes {} twice", op.name, pair[0])
            });
        }
    }
}

pub(super) fn overlap(a: &Operand, b: &Operand) -> bool {
    let (Some((s, e)), Some((t, f))) = (a.columns, b.columns) else { return a.place == b.place };
    a.place == b.place && s < f && t < e
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns of one place that meet, either way round; whatever is whole meets all of its place.
    #[test]
    fn operands_overlap_where_columns_meet() {
        let at = |b, columns| Operand { columns, ..Operand::buffer(b) };
        for (x, y, meet) in [
            (Some((0, 4)), Some((3, 8)), true),
            (Some((0, 8)), Some((3, 4)), true),
            (Some((2, 4)), Some((2, 4)), true),
            (Some((0, 4)), Some((4, 8)), false),
            (Some((0, 4)), Some((6, 8)), false),
            (None, Some((3, 8)), true),
            (None, None, true),
        ] {
            for (x, y) in [(x, y), (y, x)] {
                assert_eq!(overlap(&at(1, x), &at(1, y)), meet, "{x:?} {y:?}");
                assert!(!overlap(&at(1, x), &at(2, y)), "{x:?} {y:?} of different buffers");
            }
        }
    }
}
