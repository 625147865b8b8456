//! The dialects: which operations exist at each level, their rules, derivatives and costs.
//!
//! `model` is what the user wrote, `train` one differentiated training step, `comm` collectives with meaning.
//! An operation is one [`OpDef`] in the file of its family; the family's list stands in [`FAMILIES`]. Adding an
//! operation touches its file, or adds a file and a line there.
//!
//! An operation whose name after the dot is an action of the schedule's vocabulary is *executable*: its attributes
//! are the action's fields and its operands obey the action's signature, which is written down once, in
//! [`fs_schedule::signature`].

mod attention;
mod decl;
mod embedding;
mod exchange;
mod interaction;
mod linear;
mod loss;
mod norm;
mod pointwise;
mod sequence;
mod shape;
mod step;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use fs_schedule::op::{Action, Extent};
use fs_schedule::signature::{self, Shape};
use fs_schedule::{Cost, Exchange, Input, Poly, Symbol};

use crate::ir::attr::typed;
use crate::ir::{Attrs, Module, OpData, OpId, ValueId};
pub(crate) use decl::input_shape;
pub use decl::table_of;

use crate::passes::differentiate::Vjp;

/// Every family of operations.
static FAMILIES: &[&[OpDef]] = &[
    decl::OPS,
    embedding::OPS,
    linear::OPS,
    norm::OPS,
    pointwise::OPS,
    shape::OPS,
    sequence::OPS,
    attention::OPS,
    interaction::OPS,
    loss::OPS,
    exchange::OPS,
    step::OPS,
];

/// The definition of an operation.
#[derive(Debug)]
pub struct OpDef {
    /// Dialect and name: `model.linear`.
    pub name: &'static str,
    /// One line of documentation: `operands -> results`, and what is computed.
    pub summary: &'static str,
    /// Checks attributes, operands and result types.
    pub verify: fn(&Context<'_>, &OpData) -> Result<(), String>,
    /// How cotangents of the results become cotangents of the operands; `None`: it has no derivative (or needs none).
    pub vjp: Option<VjpRule>,
    /// Floating-point operations.
    pub flops: fn(&Module, &OpData) -> Poly,
    /// Results that can be added into a value instead of written to fresh storage.
    pub accumulates: &'static [usize],
}

/// A vector-Jacobian rule.
pub type VjpRule = fn(&mut Vjp<'_>, OpId) -> Result<(), String>;

impl OpDef {
    /// An executable operation without derivative, free of arithmetic.
    const fn executable(name: &'static str, summary: &'static str) -> Self {
        Self { name, summary, verify: executable, vjp: None, flops: no_flops, accumulates: &[] }
    }
    const fn with_vjp(mut self, vjp: VjpRule) -> Self {
        self.vjp = Some(vjp);
        self
    }
    const fn with_flops(mut self, flops: fn(&Module, &OpData) -> Poly) -> Self {
        self.flops = flops;
        self
    }
    const fn with_verify(mut self, verify: fn(&Context<'_>, &OpData) -> Result<(), String>) -> Self {
        self.verify = verify;
        self
    }
    const fn accumulating(mut self, results: &'static [usize]) -> Self {
        self.accumulates = results;
        self
    }
}

/// All operations in the order of their families.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// The operation of a name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    static INDEX: OnceLock<BTreeMap<&'static str, &'static OpDef>> = OnceLock::new();
    INDEX.get_or_init(|| all().map(|d| (d.name, d)).collect()).get(name).copied()
}

/// The operation of a name that this crate itself writes.
///
/// # Panics
/// If there is none: a misspelling in the compiler, which any test that reaches it shows.
pub fn named(name: &str) -> &'static OpDef {
    find(name).unwrap_or_else(|| unreachable!("operation {name} is not registered"))
}

/// docs/ir-operations.md.
pub fn document() -> String {
    use std::fmt::Write as _;
    let mut text =
        String::from("# Operations of the IR\n\nGenerated from the definitions in `compiler/src/dialect`.\n");
    for dialect in ["model", "train", "comm"] {
        let _ =
            write!(text, "\n## `{dialect}`\n\n| operation | what it does | derivative |\n|---|---|---|\n");
        for def in all().filter(|d| d.name.split('.').next() == Some(dialect)) {
            let vjp = if def.vjp.is_some() { "yes" } else { "" };
            let _ = writeln!(text, "| `{}` | {} | {vjp} |", def.name, def.summary);
        }
    }
    text
}

/// The schedule's action of an executable operation.
pub fn action(op: &OpData) -> Result<Action, String> {
    let tail = op.def.name.rsplit('.').next().unwrap_or_default();
    crate::ir::attr::variant(tail, &op.attrs).map_err(|e| format!("attributes do not fit: {e}"))
}

/// What operations refer to beside their operands: a module's declarations, read once.
#[derive(Debug)]
pub struct Context<'a> {
    module: &'a Module,
    exchanges: Vec<Exchange>,
    /// Columns that each exchange moves.
    columns: Vec<u32>,
    tables: usize,
    microbatches: u32,
    /// Evaluation runs whole batches, whatever training does.
    evaluating: bool,
    inputs: Vec<Input>,
    /// Where each declared value stands among those of its kind.
    positions: BTreeMap<ValueId, u32>,
}

impl<'a> Context<'a> {
    /// Reads a module's declarations. Ill-formed ones are left to their own verifiers.
    pub fn new(module: &'a Module) -> Self {
        let mut positions = BTreeMap::new();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for op in module.decls.iter().map(|id| module.op(*id)) {
            let n = counts.entry(op.def.name).or_insert(0);
            positions.extend(op.results.iter().map(|r| (*r, *n)));
            *n += 1;
        }
        let inputs = module.decls_of("model.input").map(|op| from_attrs::<Input>(&op.attrs));
        let tables: Vec<fs_schedule::Table> =
            module.decls_of("model.table").filter_map(|op| decl::table_of(op).ok()).collect();
        let exchanges = exchanges(module);
        let settings = typed::<fs_schedule::Settings>(&module.attrs, "settings");
        Self {
            module,
            columns: exchanges.iter().map(|e| e.columns(&tables)).collect(),
            exchanges,
            tables: tables.len(),
            microbatches: settings.map_or(1, |s| s.microbatches),
            evaluating: false,
            inputs: inputs.filter_map(Result::ok).collect(),
            positions,
        }
    }
    /// For the operations of a function.
    pub fn enter(&mut self, function: &str) {
        self.evaluating = function == "evaluate";
    }
}

impl std::ops::Deref for Context<'_> {
    type Target = Module;
    fn deref(&self) -> &Module {
        self.module
    }
}

/// The exchanges that a module declares.
pub fn exchanges(m: &Module) -> Vec<Exchange> {
    m.decls_of("comm.exchange").filter_map(|op| from_attrs(&op.attrs).ok()).collect()
}

/// A typed record from an operation's attributes.
pub fn from_attrs<T: serde::de::DeserializeOwned>(attrs: &Attrs) -> Result<T, String> {
    crate::ir::attr::record(attrs)
}

/// The verifier of executable operations.
fn executable(m: &Context<'_>, op: &OpData) -> Result<(), String> {
    let shapes = |ids: &[ValueId]| -> Result<Vec<Shape>, String> {
        ids.iter()
            .map(|v| m.ty(*v).shape().ok_or_else(|| format!("a {} operand is not executable", m.ty(*v))))
            .collect()
    };
    let writes = match op.def.name {
        // Written places that are not values: their state is the operand itself.
        "comm.apply" => {
            vec![m.ty(*op.operands.last().ok_or("needs a table")?).shape().ok_or("needs a table")?]
        }
        "comm.all_reduce" => shapes(&op.operands)?,
        "train.dense_update" => shapes(&op.operands[op.operands.len() / 2..])?,
        _ => shapes(&op.results)?,
    };
    let mut reads = shapes(&op.operands)?;
    match op.def.name {
        "comm.apply" => reads.truncate(reads.len() - 1),
        "train.dense_update" => reads.truncate(reads.len() / 2),
        _ => {}
    }
    if matches!(op.def.name, "comm.apply" | "train.dense_update") && !op.results.is_empty() {
        return Err("has no results".into());
    }
    let cx = signature::Context {
        exchanges: &m.exchanges,
        columns: &m.columns,
        tables: m.tables,
        microbatches: if m.evaluating { 1 } else { m.microbatches },
    };
    signature::check(&action(op)?, &reads, &writes, &cx)
}

fn no_flops(_: &Module, _: &OpData) -> Poly {
    Poly::zero()
}

/// `c` per element of the first result.
fn flops_per_result<const C: u32>(m: &Module, op: &OpData) -> Poly {
    op.results.first().map_or_else(Poly::zero, |v| elements(m, *v).times(f64::from(C)))
}

/// Elements of a value.
pub fn elements(m: &Module, v: ValueId) -> Poly {
    match m.ty(v).shape() {
        Some(Shape::Matrix { rows, columns, .. }) => extent(rows).times(columns.into()),
        Some(Shape::Parameter { rows, columns } | Shape::Gradient { rows, columns }) => {
            Poly::constant(f64::from(rows) * f64::from(columns))
        }
        Some(Shape::Ids { lengths, .. }) => Poly::term(1.0, &[Symbol::Tokens(lengths)]),
        Some(Shape::Dense { width }) => Poly::term(width.into(), &[Symbol::Samples]),
        Some(Shape::Labels { rows }) => extent(rows),
        Some(Shape::Offsets { .. }) => Poly::term(1.0, &[Symbol::Samples]),
        Some(Shape::Table { .. }) | None => Poly::zero(),
    }
}

/// Rows as a polynomial.
pub fn extent(rows: Extent) -> Poly {
    match rows {
        Extent::Symbol(s) => Poly::term(1.0, &[s]),
        Extent::Fixed(n) => Poly::constant(n.into()),
    }
}

/// Expected work of an operation: its arithmetic, its operands and results once through memory, and for collectives
/// what leaves the rank when destinations are spread evenly (what arrives, if everything goes to everybody).
pub fn cost(m: &Module, op: &OpData) -> Cost {
    exchange::cost(m, op)
}

/// A required attribute of the schedule's vocabulary, for verifiers.
fn require<T: serde::de::DeserializeOwned>(op: &OpData, name: &str) -> Result<T, String> {
    typed(&op.attrs, name)
}

/// Rows and columns of a real operand.
fn real(m: &Module, op: &OpData, i: usize) -> Result<(Extent, u32), String> {
    let v = op.operands.get(i).ok_or_else(|| format!("operand {i} is missing"))?;
    m.ty(*v).as_real().ok_or_else(|| format!("operand {i} must be a real matrix, is {}", m.ty(*v)))
}

/// Checks the number of operands and the result types.
fn expect_results(
    m: &Module,
    op: &OpData,
    operands: usize,
    results: &[crate::ir::Type],
) -> Result<(), String> {
    if op.operands.len() != operands {
        return Err(format!("takes {operands} operands, has {}", op.operands.len()));
    }
    let have: Vec<crate::ir::Type> = op.results.iter().map(|v| m.ty(*v)).collect();
    if have == results {
        return Ok(());
    }
    let list =
        |types: &[crate::ir::Type]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(format!("must give ({}), gives ({})", list(results), list(&have)))
}
