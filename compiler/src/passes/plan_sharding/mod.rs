//! Where tables live: decides what a model leaves to the compiler, and finds ranks for what it asks for.
//!
//! Per table and step a rank uses U unique rows of D bytes. With W ranks the choices cost:
//!
//! | placement | memory of a rank | wire, per rank | for |
//! |---|---|---|---|
//! | data-parallel | all | (W - 1) U D, gathered gradients | small tables that few ranks share |
//! | table-wise | all, at one rank | 2 U D, rows and gradients, but the owner serves W U D | many tables of middling size |
//! | column-wise | a part, at some ranks | the same, shared by the parts' owners | wide tables that are too much for one owner |
//! | row-wise | 1 / W | 2 U D, served evenly | everything else |
//!
//! A table is *too much for one owner* if serving it is more than an even share of what all tables need: its rank
//! would keep the others waiting. Owners are found largest table first, each on the least loaded rank that has the
//! memory. The number of ranks enters as a number only: ranks that own nothing yet are not looked at one by one.
//!
//! rowwise_adagrad keeps one state per row, the mean over all its columns, so such tables are never cut by columns.

pub(crate) mod columns;
mod load;
mod owners;
mod rows;

use fs_schedule::profile::Rows;
use fs_schedule::{BLOCK, Element, RowPlacement, Settings, Sharding, SparseOptimizer, Table};

use super::{OptionError, Options, PassError, Statistics, option};
use crate::distribution::PerTable;
use crate::ir::attr::typed;
use crate::ir::{Attr, Attrs, Module, OpId, table_of};
use fs_workload::placement::MOST_HOT;
use load::Load;
use owners::Owners;
use rows::{Known, Wish};

/// Tables of at least this many columns are worth cutting.
const WIDE: u32 = 128;
/// A replicated table may take this part of a rank's memory,
const SMALL_PART: u64 = 256;
/// and at most so many bytes.
const SMALL: u64 = 64 << 20;
/// Every rank applies every gradient of a replicated table: the time for that, in parts of its transfer's.
const APPLY: f64 = 0.5;

/// Why tables cannot be placed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// All of them together.
    #[error(
        "the tables and their optimizer state need {} on a rank, which has {}; use more ranks or smaller tables",
        bytes(*.needed), bytes(*.memory)
    )]
    TooLarge {
        /// Bytes of the rank that holds most.
        needed: u64,
        /// Bytes of a rank.
        memory: u64,
    },
    /// One that should have an owner.
    #[error(
        "no rank has {} left for table {table}, of {} each; use more ranks, or row_wise",
        bytes(*.needed), bytes(*.memory)
    )]
    NoRoom {
        /// Its name.
        table: String,
        /// Bytes of it, or of each of its parts.
        needed: u64,
        /// Bytes of a rank.
        memory: u64,
    },
    /// The rank that a table asks for.
    #[error("table {table} is placed on rank {rank} of {ranks} ranks")]
    NoRank {
        /// The table's name.
        table: String,
        /// As asked for.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
    },
    /// A table whose optimizer needs whole rows.
    #[error(
        "table {table} cannot be column-wise: the state of rowwise_adagrad is the mean over a whole row, which no part sees"
    )]
    WholeRows {
        /// Its name.
        table: String,
    },
    /// A table whose rows travel in blocks.
    #[error(
        "table {table} of {columns} columns cannot be column-wise: its rows travel as mxint8, and no number of equal parts, at most one a rank, begins at blocks of {BLOCK} columns; use another sharding, or another `output_dist`"
    )]
    Blocks {
        /// Its name.
        table: String,
        /// Its columns.
        columns: u32,
    },
    /// A placement of rows where no rank owns some of them.
    #[error("table {table} has a placement of rows, but is {sharding}: only row_wise tables have one")]
    NoRows {
        /// The table's name.
        table: String,
        /// Where it lives, for people.
        sharding: &'static str,
    },
    /// Rows that are to be planned, of data that nobody has counted.
    #[error(
        "table {table}: nothing says which rows are asked for most, so they cannot be planned; compile with a profile (fsx profile, fsc compile --profile), or with data that are generated"
    )]
    Uncounted {
        /// The table's name.
        table: String,
    },
    /// Hot rows of a table of which every rank has all.
    #[error(
        "table {table} has hot rows, but every rank has all of its rows; leave out `hot`, or give its rows owners (`sharding=row_wise`)"
    )]
    NoOwners {
        /// The table's name.
        table: String,
    },
    /// More hot rows than a schedule lists.
    #[error("table {table}: {hot} hot rows, the most is {MOST_HOT}")]
    ManyHot {
        /// The table's name.
        table: String,
        /// As asked for.
        hot: u32,
    },
    /// Hot rows of data that nobody has counted.
    #[error(
        "table {table}: nothing says which rows are asked for most, so none can be hot; compile with the data that the model names (without `--assume workload`), with a profile (fsx profile, fsc compile --profile), or with data that are generated"
    )]
    NoneHot {
        /// The table's name.
        table: String,
    },
    /// A law of ids that cannot be.
    #[error("table {table}: {law}")]
    Law {
        /// The table's name.
        table: String,
        /// What is wrong with it.
        #[source]
        law: fs_workload::LawError,
    },
}

/// Places all tables.
pub(super) fn run(
    module: &mut Module,
    options: &Options,
    statistics: &mut Statistics,
) -> Result<(), PassError> {
    let ranks = option::<u32>(options, "ranks")?.unwrap_or(1);
    let memory = option::<u64>(options, "memory")?.unwrap_or(u64::MAX);
    let latency = option::<f64>(options, "latency_bytes")?.unwrap_or(262_144.0);
    if ranks == 0 {
        return Err(OptionError::Zero { option: "ranks" }.into());
    }
    if let Some(node) = option::<u32>(options, "node")? {
        if node == 0 {
            return Err(OptionError::Zero { option: "node" }.into());
        }
        let mut settings: Settings = typed(&module.attrs, "settings")?;
        // On one node, or on nodes of one rank, nothing is summed otherwise and nobody asks for others.
        settings.node = Some(node).filter(|node| (2..ranks).contains(node));
        settings.sums_by_node = settings.node.is_some();
        module.attrs.insert("settings".into(), Attr::from(&settings));
    }
    let ops: Vec<OpId> =
        module.decls.iter().copied().filter(|id| module.op(*id).def.name == "model.table").collect();
    ask(module, &ops, &option(options, "sharding")?.unwrap_or_default())?;
    ask_rows(module, &ops, &option(options, "placement")?.unwrap_or_default())?;
    let hot: PerTable<u32> = option(options, "hot")?.unwrap_or_default();
    known("hot", &names(module, &ops), &hot)?;
    let tables: Vec<Table> = ops.iter().map(|id| table_of(module.op(*id))).collect::<Result<_, _>>()?;
    let asked: Vec<Asked> = ops.iter().map(|id| Asked::of(module.op(*id).attrs.get("sharding"))).collect();
    let loads = load::expect(module, &tables, f64::from(ranks));
    let laws: Vec<_> = loads.iter().map(|l| l.law).collect();
    let rows_known = Known::take(module, ranks, &laws)?;
    let rows = typed::<Settings>(&module.attrs, "settings").map_or(Element::Real, |s| s.wire.rows);
    if let Some(t) = tables.iter().find(|t| !columns::fits(t, rows)) {
        return Err(PlacementError::Blocks { table: t.name.clone(), columns: t.dim }.into());
    }
    let planner = Planner {
        total: loads.iter().map(|l| l.lookups(f64::from(ranks))).sum(),
        loads,
        hot: tables.iter().map(|t| hot.get(&t.name).is_some_and(|n| *n > 0)).collect(),
        tables: &tables,
        rows,
        ranks,
        memory,
        latency,
    };
    let placed = planner.place(&asked)?;
    let mut reasons = Attrs::new();
    for (i, ((id, table), (sharding, mut reason))) in ops.into_iter().zip(&tables).zip(placed).enumerate() {
        let wish = Wish::of(module.op(id).attrs.get("placement"))?;
        let (rows, why) = match sharding {
            Sharding::RowWise => rows_known.place(i, table, wish)?,
            _ if matches!(wish, Wish::Open | Wish::Placed(RowPlacement::Range)) => Default::default(),
            _ => {
                let sharding = name(&sharding);
                return Err(PlacementError::NoRows { table: table.name.clone(), sharding }.into());
            }
        };
        let (hot, hot_why) = match hot.get(&table.name).copied() {
            None | Some(0) => Default::default(),
            Some(_) if sharding == Sharding::DataParallel => {
                return Err(PlacementError::NoOwners { table: table.name.clone() }.into());
            }
            Some(hot) if hot as usize > MOST_HOT => {
                return Err(PlacementError::ManyHot { table: table.name.clone(), hot }.into());
            }
            Some(most) => rows_known.hottest(i, table, most)?,
        };
        for why in [why, hot_why].iter().filter(|why| !why.is_empty()) {
            reason = format!("{reason}; {why}");
        }
        match &rows {
            RowPlacement::Range => {}
            RowPlacement::Hashed => statistics.count("hashed"),
            RowPlacement::Planned { .. } => statistics.count("planned"),
        }
        // Ranges go without saying.
        let attrs = &mut module.op_mut(id).attrs;
        if rows.is_range() {
            attrs.remove("placement");
        } else {
            attrs.insert("placement".into(), Attr::from(&rows));
        }
        if hot.is_empty() {
            attrs.remove("hot");
        } else {
            attrs.insert("hot".into(), Attr::from(&hot));
            statistics.count("with hot rows");
        }
        statistics.count(name(&sharding));
        module.op_mut(id).attrs.insert("sharding".into(), Attr::from(&sharding));
        reasons.insert(table.name.clone(), Attr::Str(reason));
    }
    module.attrs.insert("placement".into(), Attr::Dict(reasons));
    Ok(())
}

/// For people.
fn name(sharding: &Sharding) -> &'static str {
    match sharding {
        Sharding::RowWise => "row-wise",
        Sharding::TableWise { .. } => "table-wise",
        Sharding::ColumnWise { .. } => "column-wise",
        Sharding::DataParallel => "data-parallel",
    }
}

/// Lets tables ask for other placements than they do.
fn ask(module: &mut Module, ops: &[OpId], asked: &PerTable<String>) -> Result<(), PassError> {
    let names = names(module, ops);
    known("sharding", &names, asked)?;
    for (id, name) in ops.iter().zip(&names) {
        let Some(sharding) = asked.get(name) else { continue };
        if !matches!(sharding.as_str(), "auto" | "row_wise" | "table_wise" | "column_wise" | "data_parallel")
        {
            return Err(OptionError::NoPlacement { sharding: sharding.clone() }.into());
        }
        let attrs = &mut module.op_mut(*id).attrs;
        attrs.insert("sharding".into(), Attr::Str(sharding.clone()));
        // What the model says of rows is of another sharding.
        if sharding != "row_wise" {
            attrs.remove("placement");
        }
    }
    Ok(())
}

/// Names of tables.
fn names(module: &Module, ops: &[OpId]) -> Vec<String> {
    ops.iter().filter_map(|id| Some(table_of(module.op(*id)).ok()?.name)).collect()
}

/// Fails if an option names a table that there is not.
fn known<T>(option: &'static str, names: &[String], asked: &PerTable<T>) -> Result<(), PassError> {
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    match asked.unknown(&known) {
        Some(name) => Err(OptionError::NoTable { option, table: name.into() }.into()),
        None => Ok(()),
    }
}

/// Lets row-wise tables ask for other placements of their rows than they do.
fn ask_rows(module: &mut Module, ops: &[OpId], asked: &PerTable<String>) -> Result<(), PassError> {
    let names = names(module, ops);
    known("placement", &names, asked)?;
    for (id, name) in ops.iter().zip(&names) {
        let Some(word) = asked.get(name) else { continue };
        if Wish::of_word(word).is_none() {
            return Err(OptionError::NoRows { placement: word.clone() }.into());
        }
        let attrs = &mut module.op_mut(*id).attrs;
        // Who says which rows ranks own says that ranks own rows.
        if Asked::of(attrs.get("sharding")) == Asked::Auto {
            attrs.insert("sharding".into(), Attr::Str("row_wise".into()));
        }
        attrs.insert("placement".into(), Attr::Str(word.clone()));
    }
    Ok(())
}

/// What a declaration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Auto,
    TableWise,
    ColumnWise,
    /// Nothing is left to decide.
    Placed,
}

impl Asked {
    fn of(attr: Option<&Attr>) -> Self {
        match attr {
            Some(Attr::Str(s)) if s == "auto" => Self::Auto,
            Some(Attr::Str(s)) if s == "table_wise" => Self::TableWise,
            Some(Attr::Str(s)) if s == "column_wise" => Self::ColumnWise,
            _ => Self::Placed,
        }
    }
}

struct Planner<'a> {
    tables: &'a [Table],
    loads: Vec<Load>,
    /// Tables with hot rows: the others have owners.
    hot: Vec<bool>,
    /// What rows are on their way.
    rows: Element,
    /// Work of all tables.
    total: f64,
    ranks: u32,
    memory: u64,
    /// Bytes that a transfer could have moved in its latency.
    latency: f64,
}

/// A placement and why.
type Placed = (Sharding, String);

impl Planner<'_> {
    fn place(&self, asked: &[Asked]) -> Result<Vec<Placed>, PlacementError> {
        let mut placed: Vec<Option<Placed>> = Vec::new();
        let mut owned: Vec<usize> = Vec::new();
        for (i, asked) in asked.iter().enumerate() {
            let decided = match asked {
                Asked::Placed => Some((self.tables[i].sharding.clone(), "asked for".to_owned())),
                Asked::Auto => self.without_owner(i),
                Asked::TableWise | Asked::ColumnWise => None,
            };
            if decided.is_none() {
                owned.push(i);
            }
            placed.push(decided);
        }
        // What every rank holds, whoever owns the rest.
        let share = |(i, p): (usize, &Option<Placed>)| match p {
            Some((Sharding::DataParallel, _)) => self.loads[i].bytes,
            Some((Sharding::RowWise, _)) => self.loads[i].bytes.div_ceil(self.ranks.into()),
            _ => 0,
        };
        let everywhere = placed.iter().enumerate().map(share).fold(0, u64::saturating_add);
        let mut owners = Owners::new(self.ranks, self.memory.saturating_sub(everywhere));
        for (i, p) in placed.iter().enumerate() {
            match p {
                Some((Sharding::TableWise { rank }, _)) => self.owned(i, &[*rank], &mut owners)?,
                Some((Sharding::ColumnWise { ranks }, _)) => self.owned(i, ranks, &mut owners)?,
                _ => {}
            }
        }
        owned.sort_by(|a, b| self.work(*b).total_cmp(&self.work(*a)).then(a.cmp(b)));
        let mut spilled = everywhere;
        for i in owned {
            let found = match asked[i] {
                Asked::TableWise => Some(self.table_wise(i, &mut owners, "asked for")?),
                Asked::ColumnWise => Some(self.column_wise(i, &mut owners, "asked for")?),
                _ if self.too_much(i) => self.column_wise(i, &mut owners, "too much for one owner").ok(),
                _ => self.table_wise(i, &mut owners, "largest first, on the least loaded rank").ok(),
            };
            placed[i] = Some(found.unwrap_or_else(|| {
                let share = self.loads[i].bytes.div_ceil(self.ranks.into());
                spilled = spilled.saturating_add(share);
                owners.shrink(share);
                let reason = "no rank has the memory for it as one, so its rows are spread";
                (Sharding::RowWise, reason.to_owned())
            }));
        }
        let needed = spilled.saturating_add(owners.fullest());
        if needed > self.memory {
            return Err(PlacementError::TooLarge { needed, memory: self.memory });
        }
        Ok(placed.into_iter().flatten().collect())
    }

    /// Bytes per step that the owners of a table serve.
    fn work(&self, i: usize) -> f64 {
        self.loads[i].lookups(f64::from(self.ranks))
    }

    /// Whether one owner would serve more than an even share.
    fn too_much(&self, i: usize) -> bool {
        self.work(i) > self.total / f64::from(self.ranks)
    }

    /// Placements that need no owner; `None`: one or several ranks should own the table.
    fn without_owner(&self, i: usize) -> Option<Placed> {
        let (t, load, ranks) = (&self.tables[i], &self.loads[i], f64::from(self.ranks));
        if self.ranks == 1 {
            return Some((Sharding::RowWise, "there is one rank".to_owned()));
        }
        let received = (ranks - 1.0) * load.unique * load.sent[1];
        let applied = (ranks - 1.0) * load.unique * load.row;
        let gathered = received + APPLY * applied + self.latency;
        let exchanged =
            load.unique * load.sent.iter().sum::<f64>() * (ranks - 1.0) / ranks + 2.0 * self.latency;
        let small = load.bytes <= SMALL.min(self.memory / SMALL_PART) && u32::try_from(t.rows).is_ok();
        if small && gathered < exchanged && !self.hot[i] {
            let reason = format!(
                "{} on every rank, and gathering its gradients ({} a step) is cheaper than sending rows and gradients",
                bytes(load.bytes),
                bytes(received as u64)
            );
            return Some((Sharding::DataParallel, reason));
        }
        if load.bytes > self.memory / 4 || u32::try_from(t.rows).is_err() {
            return Some((Sharding::RowWise, format!("large: {} with its state", bytes(load.bytes))));
        }
        let cuttable = t.dim >= WIDE
            && !matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. })
            && columns::parts(t.dim, self.ranks, self.rows, true).is_some();
        if self.too_much(i) && !cuttable {
            let reason = format!(
                "one owner would serve more than an even share ({} of rows a step)",
                bytes(self.work(i) as u64)
            );
            return Some((Sharding::RowWise, reason));
        }
        None
    }

    fn owned(&self, i: usize, ranks: &[u32], owners: &mut Owners) -> Result<(), PlacementError> {
        if let Some(rank) = ranks.iter().find(|r| **r >= self.ranks) {
            let table = self.tables[i].name.clone();
            return Err(PlacementError::NoRank { table, rank: *rank, ranks: self.ranks });
        }
        let parts = ranks.len().max(1) as u64;
        for rank in ranks {
            owners.add(*rank, self.work(i) / parts as f64, self.loads[i].bytes.div_ceil(parts));
        }
        Ok(())
    }

    fn table_wise(&self, i: usize, owners: &mut Owners, why: &str) -> Result<Placed, PlacementError> {
        let load = &self.loads[i];
        let found = owners.take(1, self.work(i), load.bytes);
        let rank = *found.first().ok_or_else(|| self.no_room(i, load.bytes))?;
        Ok((Sharding::TableWise { rank }, format!("{why} ({} of rows a step)", bytes(self.work(i) as u64))))
    }

    fn column_wise(&self, i: usize, owners: &mut Owners, why: &str) -> Result<Placed, PlacementError> {
        let t = &self.tables[i];
        if matches!(t.optimizer, SparseOptimizer::RowwiseAdagrad { .. }) {
            return Err(PlacementError::WholeRows { table: t.name.clone() });
        }
        let blocks = || PlacementError::Blocks { table: t.name.clone(), columns: t.dim };
        let parts = if self.ranks < 2 || t.dim < 2 {
            1
        } else {
            columns::parts(t.dim, self.ranks, self.rows, true).ok_or_else(blocks)?
        };
        let part_bytes = self.loads[i].bytes.div_ceil(parts.into());
        let ranks = owners.take(parts, self.work(i) / f64::from(parts), part_bytes);
        if ranks.len() < parts as usize {
            return Err(self.no_room(i, part_bytes));
        }
        Ok((Sharding::ColumnWise { ranks }, format!("{why}: {} columns in {parts} parts", t.dim)))
    }

    fn no_room(&self, i: usize, needed: u64) -> PlacementError {
        PlacementError::NoRoom { table: self.tables[i].name.clone(), needed, memory: self.memory }
    }
}

/// Bytes for people.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Puts down in a module what a profile has counted of rows, for the next run of the pass.
pub(crate) fn count(module: &mut Module, counted: &[Rows]) {
    rows::put(module, counted);
}
