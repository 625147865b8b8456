//! Rules about what a schedule declares.

use std::collections::{BTreeMap, BTreeSet};

use super::Report;
use crate::attribute::Way;
use fs_workload::placement::MOST_HOT;

use crate::model::{
    DenseOptimizer, Duration, Exchange, Init, InputKind, Leg, Sharding, SparseOptimizer, Table,
};
use crate::operand::Element;
use crate::program::{FORMAT, Schedule, VERSION};
use crate::reuse::Reuse;

/// Rows of a table beyond which 64-bit offsets of its elements might overflow.
const MOST_ROWS: u64 = 1 << 48;
/// Columns, lengths, batch sizes and ranks beyond which products might overflow.
const MOST: u32 = 1 << 24;

/// Microbatches, and reuse distances told apart.
const MOST_MICROBATCHES: u32 = 64;

pub(super) fn check(s: &Schedule, r: &mut Report) {
    r.check(s.format == FORMAT && s.version == VERSION, "version", || {
        format!("format is `{}` version {}, expected `{FORMAT}` version {VERSION}", s.format, s.version)
    });
    settings(s, r);
    let distinct: BTreeSet<_> = s.engines.iter().collect();
    r.check(distinct.len() == s.engines.len(), "engines", || "an engine is declared twice".into());
    prediction(s, r);
    search(s, r);
    tables(s, r);
    inputs(s, r);
    exchanges(s, r);
}

fn settings(s: &Schedule, r: &mut Report) {
    let in_range = |n: u32| (1..=MOST).contains(&n);
    r.check(in_range(s.ranks), "settings", || format!("ranks is {}, must be in 1..={MOST}", s.ranks));
    let batch = s.settings.batch;
    r.check(in_range(batch), "settings", || format!("batch is {batch}, must be in 1..={MOST}"));
    r.check(s.ranks == 0 || batch.is_multiple_of(s.ranks), "settings", || {
        format!("a batch of {batch} samples does not divide over {} ranks", s.ranks)
    });
    let microbatches = s.settings.microbatches;
    r.check((1..=MOST_MICROBATCHES).contains(&microbatches), "settings", || {
        format!("microbatches is {microbatches}, must be in 1..={MOST_MICROBATCHES}")
    });
    if let Some(node) = s.settings.node {
        r.check((1..s.ranks).contains(&node), "settings", || {
            format!("a node has {node} ranks, must be in 1..{} so that there are several nodes", s.ranks)
        });
    }
    r.check(s.settings.node.is_some() || !s.settings.sums_by_node, "settings", || {
        "dense gradients are summed node by node, and the ranks are of one node".into()
    });
    if let Some(balance) = &s.settings.balance {
        let groups = balance.cost.groups.len();
        r.check(groups == s.lengths.len(), "settings", || {
            format!("the balance has costs of {groups} length groups, there are {}", s.lengths.len())
        });
        let usable = balance.cost.usable(s.lengths.iter().map(|l| l.max));
        r.check(usable && balance.slack.is_finite() && balance.slack >= 0.0, "settings", || {
            "costs and slack of the balance must be numbers from 0, and the longest sample's cost one that can be added up"
                .into()
        });
        let holds = balance.limit.is_none_or(|limit| limit.most() > 0);
        r.check(holds, "settings", || "a rank must be able to hold samples".into());
    }
    let wire = s.settings.wire;
    let floats = wire.gradients.is_float() && wire.dense.is_float();
    r.check(wire.rows.carries_rows() && floats, "settings", || {
        "rows travel as `real`, as `bf16` or as `mxint8`, gradients and dense sums as `real` or as `bf16`"
            .into()
    });
    let endless = matches!(s.settings.duration, Duration::Steps(0) | Duration::Epochs(0));
    r.check(!endless, "settings", || "the duration is zero".into());
    let numbers: Vec<(&str, f64, bool)> = match s.settings.optimizer {
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
            vec![
                ("lr", lr, lr >= 0.0),
                ("momentum", momentum, momentum >= 0.0),
                ("weight_decay", weight_decay, weight_decay >= 0.0),
            ]
        }
        DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay } => vec![
            ("lr", lr, lr >= 0.0),
            ("beta1", beta1, (0.0..1.0).contains(&beta1)),
            ("beta2", beta2, (0.0..1.0).contains(&beta2)),
            ("eps", eps, eps >= 0.0),
            ("weight_decay", weight_decay, weight_decay >= 0.0),
        ],
    };
    for (name, value, ok) in numbers {
        r.check(ok && value.is_finite(), "settings", || format!("the dense optimizer's {name} is {value}"));
    }
}

fn sparse_numbers(o: SparseOptimizer) -> Vec<(&'static str, f64, bool)> {
    match o {
        SparseOptimizer::Sgd { lr } => vec![("lr", lr, lr >= 0.0)],
        SparseOptimizer::RowwiseAdagrad { lr, eps } | SparseOptimizer::Adagrad { lr, eps } => {
            vec![("lr", lr, lr >= 0.0), ("eps", eps, eps >= 0.0)]
        }
        SparseOptimizer::Adam { lr, beta1, beta2, eps } => vec![
            ("lr", lr, lr >= 0.0),
            ("beta1", beta1, (0.0..1.0).contains(&beta1)),
            ("beta2", beta2, (0.0..1.0).contains(&beta2)),
            ("eps", eps, eps >= 0.0),
        ],
    }
}

fn init_is_finite(init: Init) -> bool {
    match init {
        Init::Constant(x) => x.is_finite(),
        Init::Normal { mean, std } => mean.is_finite() && std.is_finite() && std >= 0.0,
        Init::Uniform { low, high } => low.is_finite() && high.is_finite() && low <= high,
        Init::Hash { scale, .. } => scale.is_finite(),
    }
}

fn prediction(s: &Schedule, r: &mut Report) {
    let Some(p) = &s.prediction else { return };
    let joint = p.joint.map_or(0.0, |joint| joint.time);
    let sent = p.sent.unwrap_or_default();
    let (bytes, others) = ([sent.bytes, sent.between_nodes], sent.bytes - sent.between_nodes);
    let times = [p.step, p.resource_bound, p.recurrence_bound, joint, p.bubble];
    let numbers = times.into_iter().chain(bytes).chain([others]);
    let busy = p.busy.iter().map(|b| b.time);
    let sizes = p.sizes.iter().map(|(_, n)| *n);
    let spread = p.stragglers.iter().flat_map(|x| {
        let pairs = x.ranks.iter().map(|r| (r.at_home, r.planned));
        let pairs = pairs.chain(x.compared.map(|c| (c.at_home, c.planned)));
        pairs.chain([(x.at_home, x.planned), (x.bound, x.moved)]).flat_map(|(a, b)| [a, b])
    });
    let ok = numbers.chain(busy).chain(sizes).chain(spread).all(|x| x.is_finite() && x >= 0.0);
    r.check(ok, "times", || "a predicted time or size is not a number of at least 0".into());
    let joint = p.joint.iter().flat_map(|joint| [joint.from, joint.to]);
    let known = p.cycle.iter().map(|d| d.op).chain(joint).all(|op| (op as usize) < s.train.ops.len());
    r.check(known, "times", || "a bound names an operation that is not there".into());
}

/// What is told of a search is told in numbers, and of tables that are there, each once.
fn search(s: &Schedule, r: &mut Report) {
    let Some(found) = &s.search else { return };
    let steps = found.strategies.iter().flat_map(|tried| [tried.step, tried.at_least]).flatten();
    let rewrites = found.rewrites.iter().flat_map(|change| {
        let sent =
            change.without_sent.map(|sent| [sent.bytes, sent.between_nodes, sent.bytes - sent.between_nodes]);
        let far = change.between_nodes.into_iter().flatten();
        let bytes = change.step.into_iter().chain(change.bytes).chain(far).chain(change.without);
        bytes.chain(sent.into_iter().flatten()).collect::<Vec<_>>()
    });
    let others = found.others.iter().map(|other| other.step);
    let ok = steps.chain(rewrites).chain(others).all(|x| x.is_finite() && x >= 0.0);
    r.check(ok, "times", || "a time or size that is told of the search is not a number of at least 0".into());
    let less = found.rewrites.iter().all(|change| {
        let far = change.between_nodes.unwrap_or_default();
        far.iter().zip(change.bytes).all(|(far, bytes)| *far <= bytes)
    });
    r.check(less, "times", || {
        "a change that is told of the search sends more bytes between nodes than in all".into()
    });
    let with = found.rewrites.iter().all(|change| change.without.is_some() || change.without_sent.is_none());
    r.check(with, "times", || {
        "what is sent without a change is told of the search, and not what a step takes".into()
    });
    let names: BTreeSet<&String> = s.tables.iter().map(|t| &t.name).collect();
    let told =
        found.rewrites.iter().map(|change| &change.tables).chain(found.others.iter().map(|o| &o.tables));
    let mut told = told.chain(found.derivations.iter().map(|d| &d.tables));
    let known = told.clone().flatten().all(|name| names.contains(name));
    r.check(known, "times", || "what is told of the search names a table that is not there".into());
    let once = told.all(|tables| tables.iter().collect::<BTreeSet<_>>().len() == tables.len());
    r.check(once, "times", || "what is told of the search names a table twice at once".into());
}

fn tables(s: &Schedule, r: &mut Report) {
    let mut names = BTreeSet::new();
    for t in &s.tables {
        r.check(names.insert(&t.name), "tables", || format!("two tables are called `{}`", t.name));
        let sizes = (1..=MOST_ROWS).contains(&t.rows) && (1..=MOST).contains(&t.dim);
        r.check(sizes, "tables", || format!("table `{}` has {} rows of {} columns", t.name, t.rows, t.dim));
        r.check(init_is_finite(t.init), "tables", || format!("table `{}` starts from {:?}", t.name, t.init));
        sharding(s, t, r);
        for (name, value, ok) in sparse_numbers(t.optimizer) {
            r.check(ok && value.is_finite(), "tables", || format!("table `{}`: {name} is {value}", t.name));
        }
    }
    let mut names = BTreeSet::new();
    for p in &s.parameters {
        r.check(names.insert(&p.name), "tables", || format!("two parameters are called `{}`", p.name));
        let sizes =
            (1..=MOST).contains(&p.rows) && (1..=MOST).contains(&p.columns) && (!p.vector || p.rows == 1);
        r.check(sizes, "tables", || format!("parameter `{}` has shape {} x {}", p.name, p.rows, p.columns));
        r.check(init_is_finite(p.init), "tables", || {
            format!("parameter `{}` starts from {:?}", p.name, p.init)
        });
    }
}

fn sharding(s: &Schedule, t: &Table, r: &mut Report) {
    let owners = match &t.sharding {
        Sharding::RowWise | Sharding::DataParallel => &[][..],
        Sharding::TableWise { rank } => std::slice::from_ref(rank),
        Sharding::ColumnWise { ranks } => ranks,
    };
    for rank in owners {
        r.check(*rank < s.ranks, "sharding", || {
            format!("table `{}` lies on rank {rank}, there are {}", t.name, s.ranks)
        });
    }
    if let Sharding::ColumnWise { ranks } = &t.sharding {
        r.check((1..=t.dim as usize).contains(&ranks.len()), "sharding", || {
            format!("table `{}` has {} parts of {} columns", t.name, ranks.len(), t.dim)
        });
        r.check(!matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. }), "sharding", || {
            format!("table `{}`: row-wise Adagrad needs whole rows, which no part of the columns has", t.name)
        });
    }
    if t.sharding != Sharding::RowWise {
        r.check(t.placement.is_range(), "sharding", || {
            format!("table `{}` has {} rows, but no rank owns some rows of it", t.name, t.placement.name())
        });
    } else if let Err(e) = t.row_map(s.ranks) {
        r.fail("sharding", format!("table `{}`: {e}", t.name));
    }
    hot(t, r);
}

/// Hot rows are some of a table whose rows have owners, each once.
fn hot(t: &Table, r: &mut Report) {
    let Some(last) = t.hot.last() else { return };
    let rises = t.hot.windows(2).all(|pair| pair[0] < pair[1]) && *last < t.rows;
    r.check(rises && t.hot.len() <= MOST_HOT, "sharding", || {
        format!(
            "table `{}` has {} hot rows, which must rise, be below {} and be at most {MOST_HOT}",
            t.name,
            t.hot.len(),
            t.rows
        )
    });
    r.check(t.sharding != Sharding::DataParallel, "sharding", || {
        format!("table `{}` has hot rows, but every rank has all of them", t.name)
    });
}

fn exchanges(s: &Schedule, r: &mut Report) {
    let mut found: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for (i, e) in s.exchanges.iter().enumerate() {
        legs(s, i, e, r);
        let Some(table) = s.tables.get(e.table as usize) else {
            r.fail("tables", format!("exchange {i} is of table {}, there are {}", e.table, s.tables.len()));
            continue;
        };
        shares(s, i, e, r);
        r.check(e.part < table.shards(), "exchanges", || {
            format!("exchange {i} is of part {} of table `{}`", e.part, table.name)
        });
        // What lists entries moves none.
        if e.shares.is_some() {
            continue;
        }
        // Those between nodes are known by the one that names them.
        let between = e.leg.within().is_some();
        let twice = if between { None } else { found.insert((e.table, e.part), i) };
        r.check(twice.is_none(), "exchanges", || format!("exchange {i} moves the rows of another one"));
        let first = s.exchanges.get(e.entries as usize);
        let alike = first.is_some_and(|f| {
            let of = |x: &Exchange| (x.table, x.unique, x.lookahead, x.windows, x.folded);
            let same = of(f) == of(e) && f.leg.between().is_some() == e.leg.between().is_some();
            // Relays of parts are different ranks, so each asks for itself.
            // Of parts with owners and of hot rows the first each.
            let part = if table.is_hot(e.part) { table.sharding.parts() } else { 0 };
            let first =
                if between { e.entries as usize == i } else { f.part == part && f.leg.within().is_none() };
            same && first && f.of == e.of && (between || e.part > part || e.entries as usize == i)
        });
        r.check(alike, "exchanges", || {
            format!(
                "exchange {i} sends the entries of exchange {}, which must be that of the table's first part",
                e.entries
            )
        });
        let (start, _) = table.part_columns(e.part);
        r.check(s.settings.wire.rows.cuts_at(start), "exchanges", || {
            format!("exchange {i} begins at column {start}, which would share its block of a row with another part")
        });
        let rounded = s.settings.wire.gradients != Element::Real;
        r.check(e.unique || !rounded, "exchanges", || {
            format!("exchange {i} sends a gradient for each occurrence, of which each would be rounded")
        });
        let may = s.settings.balance.is_some() && table.sharding != Sharding::DataParallel;
        r.check(!e.folded || may, "exchanges", || {
            format!(
                "exchange {i} asks on behalf of others, which is for owners of rows and for samples that move"
            )
        });
        if let Some(windows) = e.windows {
            let m = s.settings.microbatches;
            let fits = e.lookahead.is_some() && (1..m).contains(&windows) && m.is_multiple_of(windows);
            r.check(fits, "exchanges", || {
                format!(
                    "exchange {i} tells rows apart by {windows} windows, which must be fewer than the {m} microbatches, cut them evenly and come with a lookahead"
                )
            });
        }
        if let Some(k) = e.lookahead {
            r.check((1..=MOST_MICROBATCHES).contains(&k), "exchanges", || {
                format!("exchange {i} tells apart {k} reuse distances, must be in 1..={MOST_MICROBATCHES}")
            });
            let m = s.settings.microbatches;
            let reuse = e.reuse(m).filter(|_| k <= MOST_MICROBATCHES && m <= MOST_MICROBATCHES);
            if let Some(reuse) = reuse {
                let count = reuse.count(Way::Forward);
                r.check(count <= Reuse::MOST, "exchanges", || {
                    format!("exchange {i} has {count} classes, at most {} are allowed", Reuse::MOST)
                });
            }
        }
    }
    for (&(t, part), i) in &found {
        let parts = s.tables.get(t as usize).map_or(1, Table::shards);
        // Checked from the first part only, which every other one refers to.
        let missing = (part == 0).then(|| (0..parts).find(|p| !found.contains_key(&(t, *p)))).flatten();
        if let Some(p) = missing {
            r.fail("exchanges", format!("exchange {i} moves a part of table {t}, none moves part {p}"));
        }
    }
}

/// Entries of a table with hot rows are listed by one exchange, of which one for the owners of each part and one for hot rows have
/// shares.
fn shares(s: &Schedule, i: usize, e: &Exchange, r: &mut Report) {
    let table = s.tables.get(e.table as usize);
    let hot = table.is_some_and(|t| !t.hot.is_empty());
    let parts = table.map_or(0, |t| t.sharding.parts());
    let get = |e: u32| s.exchanges.get(e as usize);
    let alike = |x: &Exchange| {
        let of = |x: &Exchange| (x.table, x.unique, x.lookahead, x.windows);
        of(x) == of(e) && x.shares.is_none() && !x.folded && x.of == Some(i as u32)
    };
    if let Some(shares) = e.shares {
        let owned = get(shares.owned).is_some_and(|x| alike(x) && x.part == 0 && x.leg.within().is_none());
        let of_part = |part: u32| {
            let x = get(shares.hot_of(part));
            x.is_some_and(|x| alike(x) && x.part == parts + part && x.leg.is_whole())
        };
        let replicas = (0..parts).all(of_part);
        let itself =
            e.of.is_none() && e.part == 0 && e.leg.is_whole() && e.entries as usize == i && !e.folded;
        r.check(hot && owned && replicas && itself, "exchanges", || {
            format!(
                "exchange {i} lists entries of hot rows and of others, so it must be of a table that has some and name an \
                 exchange of its first part and those of the hot rows of its parts, of the same rows, lookahead and windows"
            )
        });
        return;
    }
    // Relays ask for what their ranks ask them for.
    r.check(e.of.is_some() == (hot && e.leg.within().is_none()), "exchanges", || {
        format!(
            "exchange {i} must have a share of another one's entries if its table has hot rows, and else none"
        )
    });
    let Some(list) = e.of else { return };
    let named = get(list).and_then(|x| x.shares);
    let named = named.is_some_and(|shares| [shares.owned, shares.hot].contains(&e.entries));
    r.check(named, "exchanges", || {
        format!("exchange {i} has a share of the entries of exchange {list}, which does not name it")
    });
}

/// An exchange with relays is two that name each other, of one table's rows.
fn legs(s: &Schedule, i: usize, e: &Exchange, r: &mut Report) {
    let other = match e.leg {
        Leg::Whole => return,
        Leg::Within { between } => between,
        Leg::Between { within } => within,
    };
    let number = Some(i as u32);
    let fits = s.exchanges.get(other as usize).is_some_and(|o| {
        let (within, between) = if e.leg.between().is_some() { (e, o) } else { (o, e) };
        let back = if e.leg.between().is_some() { o.leg.within() } else { o.leg.between() };
        let of = |x: &crate::model::Exchange| (x.table, x.part, x.lookahead, x.windows);
        let same = of(e) == of(o);
        same && back == number && between.unique && !within.folded && !between.folded
    });
    r.check(fits, "exchanges", || {
        format!(
            "exchange {i} has relays and names exchange {other}, which must name it, be of the same rows, lookahead and windows, for \
             ranks that ask for themselves, and between nodes ask for each row once"
        )
    });
    let owners = s.tables.get(e.table as usize).is_some_and(|t| t.sharding != Sharding::DataParallel);
    r.check(owners && s.settings.node.is_some(), "exchanges", || {
        format!("exchange {i} has relays, which is for rows that have owners and for ranks of several nodes")
    });
    let rows = s.tables.get(e.table as usize).map_or(0, |t| t.rows);
    r.check(rows <= 1 << 32, "exchanges", || {
        format!("exchange {i} has relays, which number the {rows} rows of the table with 32 bits")
    });
}

fn inputs(s: &Schedule, r: &mut Report) {
    for l in &s.lengths {
        r.check((1..=MOST).contains(&l.max), "inputs", || {
            format!("length group `{}` has maximum {}", l.name, l.max)
        });
    }
    let mut names = BTreeSet::new();
    let (tables, groups) = (s.tables.len() as u64, s.lengths.len() as u64);
    for i in &s.inputs {
        r.check(names.insert(&i.name), "inputs", || format!("two inputs are called `{}`", i.name));
        let ok = match i.kind {
            InputKind::Ids { table, lengths } => u64::from(table) < tables && u64::from(lengths) < groups,
            InputKind::Next { of } => {
                s.inputs.get(of as usize).is_some_and(|o| matches!(o.kind, InputKind::Ids { .. }))
            }
            InputKind::Dense { width } => (1..=MOST).contains(&width),
            InputKind::SampleLabel => true,
            InputKind::TokenLabel { lengths } => u64::from(lengths) < groups,
        };
        r.check(ok, "inputs", || {
            format!("input `{}` refers to something that is not declared: {:?}", i.name, i.kind)
        });
    }
}
