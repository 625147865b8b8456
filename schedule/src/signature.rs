//! Operand rules of every action: the one place that says which shapes fit together.
//!
//! The verifier applies it to schedules, the compiler to its IR, so an action that passes never makes a kernel
//! meet matrices that do not fit.

use std::fmt;

mod exchange;

use crate::model::Exchange;
use crate::op::{Action, Element, Extent};
use crate::size::Symbol;

/// What an operand is, as far as operand rules care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A matrix in a buffer.
    Matrix {
        /// Element type.
        element: Element,
        /// Rows.
        rows: Extent,
        /// Columns.
        columns: u32,
    },
    /// A dense parameter.
    Parameter {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// The gradient of a dense parameter.
    Gradient {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// A table's shard.
    Table {
        /// Its index.
        table: u32,
        /// Columns.
        dim: u32,
    },
    /// Ids of the batch.
    Ids {
        /// The table they name rows of.
        table: u32,
        /// Their length group.
        lengths: u32,
    },
    /// Dense features of the batch.
    Dense {
        /// Features per sample.
        width: u32,
    },
    /// Labels of the batch, one per row.
    Labels {
        /// Rows.
        rows: Extent,
    },
    /// Offsets of a length group.
    Offsets {
        /// The group.
        lengths: u32,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matrix { element, rows, columns } => {
                let name = match element {
                    Element::Real => "real",
                    Element::Id => "id",
                    Element::Index => "index",
                    Element::Count => "count",
                    Element::Byte => "byte",
                };
                write!(f, "{name}<{rows} x {columns}>")
            }
            Self::Parameter { rows, columns } => write!(f, "parameter<{rows} x {columns}>"),
            Self::Gradient { rows, columns } => write!(f, "gradient<{rows} x {columns}>"),
            Self::Table { table, dim } => write!(f, "table<{table} x {dim}>"),
            Self::Ids { table, lengths } => write!(f, "ids<{table} x T{lengths}>"),
            Self::Dense { width } => write!(f, "dense<B x {width}>"),
            Self::Labels { rows } => write!(f, "labels<{rows}>"),
            Self::Offsets { lengths } => write!(f, "offsets<T{lengths}>"),
        }
    }
}

/// A real matrix.
pub fn real(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Real, rows, columns }
}
/// A matrix of positions.
pub fn index(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Index, rows, columns }
}
/// A matrix of row ids.
pub fn id(rows: Extent, columns: u32) -> Shape {
    Shape::Matrix { element: Element::Id, rows, columns }
}
/// Numbers of entries per rank.
pub fn counts() -> Shape {
    Shape::Matrix { element: Element::Count, rows: Extent::Symbol(Symbol::Ranks), columns: 1 }
}

const ONE: Extent = Extent::Fixed(1);
const SAMPLES: Extent = Extent::Symbol(Symbol::Samples);

fn tokens(g: u32) -> Extent {
    Extent::Symbol(Symbol::Tokens(g))
}

/// Why operands do not fit.
type Fault = String;

/// Operands with accessors that explain a mismatch.
struct Operands<'a> {
    reads: &'a [Shape],
    writes: &'a [Shape],
}

impl Operands<'_> {
    fn count(&self, reads: usize, writes: usize) -> Result<(), Fault> {
        if self.reads.len() != reads || self.writes.len() != writes {
            return Err(format!(
                "takes {reads} operands and gives {writes} results, has {} and {}",
                self.reads.len(),
                self.writes.len()
            ));
        }
        Ok(())
    }
    /// Rows and columns of a real operand.
    fn real(&self, i: usize) -> Result<(Extent, u32), Fault> {
        match self.reads.get(i) {
            Some(Shape::Matrix { element: Element::Real, rows, columns }) => Ok((*rows, *columns)),
            other => Err(format!("operand {i} must be a real matrix, is {}", name(other))),
        }
    }
    fn index(&self, i: usize) -> Result<(Extent, u32), Fault> {
        match self.reads.get(i) {
            Some(Shape::Matrix { element: Element::Index, rows, columns }) => Ok((*rows, *columns)),
            other => Err(format!("operand {i} must be an index matrix, is {}", name(other))),
        }
    }
    fn parameter(&self, i: usize) -> Result<(u32, u32), Fault> {
        match self.reads.get(i) {
            Some(Shape::Parameter { rows, columns }) => Ok((*rows, *columns)),
            other => Err(format!("operand {i} must be a parameter, is {}", name(other))),
        }
    }
    fn offsets(&self, i: usize) -> Result<u32, Fault> {
        match self.reads.get(i) {
            Some(Shape::Offsets { lengths }) => Ok(*lengths),
            other => Err(format!("operand {i} must be offsets, is {}", name(other))),
        }
    }
    fn read(&self, i: usize, want: Shape) -> Result<(), Fault> {
        if self.reads.get(i) == Some(&want) {
            return Ok(());
        }
        Err(format!("operand {i} must be {want}, is {}", name(self.reads.get(i))))
    }
    fn write(&self, i: usize, want: Shape) -> Result<(), Fault> {
        if self.writes.get(i) == Some(&want) {
            return Ok(());
        }
        Err(format!("result {i} must be {want}, is {}", name(self.writes.get(i))))
    }
    /// Gradient of a vector parameter with `columns` entries.
    fn vector_gradient(&self, i: usize, columns: u32) -> Result<(), Fault> {
        self.write(i, Shape::Gradient { rows: 1, columns })
    }
    fn same_reals(&self, reads: std::ops::Range<usize>) -> Result<(Extent, u32), Fault> {
        let first = self.real(reads.start)?;
        for i in reads {
            self.read(i, real(first.0, first.1))?;
        }
        Ok(first)
    }
}

fn name(shape: Option<&Shape>) -> String {
    shape.map_or("missing".into(), ToString::to_string)
}

fn token_group(rows: Extent) -> Result<u32, Fault> {
    match rows {
        Extent::Symbol(Symbol::Tokens(g)) => Ok(g),
        _ => Err(format!("rows must be tokens, are {rows}")),
    }
}

fn heads_fit(columns: u32, heads: u32) -> Result<(), Fault> {
    if heads == 0 || !columns.is_multiple_of(heads) {
        return Err(format!("{columns} columns do not divide into {heads} heads"));
    }
    Ok(())
}

/// What signatures need to know beside the operands.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The schedule's exchanges.
    pub exchanges: &'a [Exchange],
    /// Columns that each exchange moves: those of its part of the table.
    pub columns: &'a [u32],
    /// Number of tables.
    pub tables: usize,
    /// Microbatches of a batch.
    pub microbatches: u32,
}

/// Checks the operands of an action. The error is a sentence that names the operand.
pub fn check(action: &Action, reads: &[Shape], writes: &[Shape], cx: &Context<'_>) -> Result<(), Fault> {
    let o = Operands { reads, writes };
    if let Some(result) = exchange::check(action, &o, cx) {
        return result;
    }
    match action {
        Action::LoadBatch => o.count(0, 0),
        Action::DrawNegatives { table, lengths, count, .. } => {
            o.count(0, 1)?;
            if *table as usize >= cx.tables {
                return Err(format!("there is no table {table}"));
            }
            o.write(0, id(tokens(*lengths), *count))
        }
        Action::Expand => {
            o.count(2, 1)?;
            let ((_, dim), (rows, per_row)) = (o.real(0)?, o.index(1)?);
            if per_row != 1 {
                return Err(format!("operand 1 must have one column, has {per_row}"));
            }
            o.write(0, real(rows, dim))
        }
        Action::ExpandGrad => {
            o.count(2, 1)?;
            let ((rows, dim), inverse) = (o.real(0)?, o.index(1)?);
            if inverse != (rows, 1) {
                return Err("operands 0 and 1 must have the same rows".into());
            }
            o.write(0, real(sent_rows(writes)?, dim))
        }
        Action::Pool { .. } => {
            o.count(3, 1)?;
            let ((_, dim), g) = (o.real(0)?, o.offsets(2)?);
            o.read(1, index(tokens(g), 1))?;
            o.write(0, real(SAMPLES, dim))
        }
        Action::PoolGrad { .. } => {
            o.count(3, 1)?;
            let ((rows, dim), g) = (o.real(0)?, o.offsets(2)?);
            if rows != SAMPLES {
                return Err(format!("operand 0 must have a row per sample, has {rows}"));
            }
            o.read(1, index(tokens(g), 1))?;
            o.write(0, real(sent_rows(writes)?, dim))
        }
        Action::Dense => {
            o.count(1, 1)?;
            match reads[0] {
                Shape::Dense { width } => o.write(0, real(SAMPLES, width)),
                other => Err(format!("operand 0 must be dense features, is {other}")),
            }
        }
        Action::Linear { bias } => {
            o.count(2 + usize::from(*bias), 1)?;
            let ((rows, columns), (out, input)) = (o.real(0)?, o.parameter(1)?);
            if columns != input {
                return Err(format!("the weight takes {input} columns, x has {columns}"));
            }
            if *bias {
                o.read(2, Shape::Parameter { rows: 1, columns: out })?;
            }
            o.write(0, real(rows, out))
        }
        Action::LinearGradInput => {
            o.count(2, 1)?;
            let ((rows, columns), (out, input)) = (o.real(0)?, o.parameter(1)?);
            if columns != out {
                return Err(format!("the weight gives {out} columns, the gradient has {columns}"));
            }
            o.write(0, real(rows, input))
        }
        Action::LinearGradWeight { bias } => {
            o.count(2, 1 + usize::from(*bias))?;
            let ((rows, out), (x_rows, input)) = (o.real(0)?, o.real(1)?);
            if rows != x_rows {
                return Err("operands 0 and 1 must have the same rows".into());
            }
            o.write(0, Shape::Gradient { rows: out, columns: input })?;
            if *bias { o.vector_gradient(1, out) } else { Ok(()) }
        }
        Action::LayerNorm { affine, .. } => {
            o.count(if *affine { 3 } else { 1 }, 2)?;
            let (rows, columns) = o.real(0)?;
            if *affine {
                o.read(1, Shape::Parameter { rows: 1, columns })?;
                o.read(2, Shape::Parameter { rows: 1, columns })?;
            }
            o.write(0, real(rows, columns))?;
            o.write(1, real(rows, 2))
        }
        Action::LayerNormGrad { affine } => {
            let extra = usize::from(*affine);
            o.count(3 + extra, 1 + 2 * extra)?;
            let (rows, columns) = o.real(0)?;
            if *affine {
                o.read(1, Shape::Parameter { rows: 1, columns })?;
                o.vector_gradient(1, columns)?;
                o.vector_gradient(2, columns)?;
            }
            o.read(1 + extra, real(rows, 2))?;
            o.read(2 + extra, real(rows, columns))?;
            o.write(0, real(rows, columns))
        }
        Action::Unary { .. }
        | Action::Softmax
        | Action::Scale { .. }
        | Action::Copy
        | Action::Dropout { .. }
        | Action::DropoutGrad { .. } => {
            o.count(1, 1)?;
            let (rows, columns) = o.real(0)?;
            o.write(0, real(rows, columns))
        }
        Action::Zero => {
            o.count(0, 1)?;
            match writes[0] {
                Shape::Matrix { element: Element::Real, .. } => Ok(()),
                other => Err(format!("result 0 must be a real matrix, is {other}")),
            }
        }
        Action::UnaryGrad { .. } | Action::SoftmaxGrad | Action::Mul => {
            o.count(2, 1)?;
            let (rows, columns) = o.same_reals(0..2)?;
            o.write(0, real(rows, columns))
        }
        Action::Add => {
            o.count(reads.len().max(1), 1)?;
            let (rows, columns) = o.same_reals(0..reads.len())?;
            o.write(0, real(rows, columns))
        }
        Action::MulGrad => {
            o.count(3, 2)?;
            let (rows, columns) = o.same_reals(0..3)?;
            o.write(0, real(rows, columns))?;
            o.write(1, real(rows, columns))
        }
        Action::Positional => {
            o.count(3, 1)?;
            let ((rows, columns), g, (_, dim)) = (o.real(0)?, o.offsets(1)?, o.parameter(2)?);
            if rows != tokens(g) || columns != dim {
                return Err("x must have the rows of the offsets and the columns of the weight".into());
            }
            o.write(0, real(rows, columns))
        }
        Action::PositionalGrad => {
            o.count(2, 1)?;
            let ((rows, columns), g) = (o.real(0)?, o.offsets(1)?);
            match writes[0] {
                Shape::Gradient { columns: c, .. } if c == columns && rows == tokens(g) => Ok(()),
                other => Err(format!("result 0 must be a gradient with {columns} columns, is {other}")),
            }
        }
        Action::L2Normalize { .. } => {
            o.count(1, 2)?;
            let (rows, columns) = o.real(0)?;
            o.write(0, real(rows, columns))?;
            o.write(1, real(rows, 1))
        }
        Action::L2NormalizeGrad { .. } => {
            o.count(3, 1)?;
            let (rows, columns) = o.real(0)?;
            o.read(1, real(rows, 1))?;
            o.read(2, real(rows, columns))?;
            o.write(0, real(rows, columns))
        }
        Action::SiluAttention { heads } => {
            o.count(4, 1)?;
            let (rows, columns) = o.same_reals(0..3)?;
            heads_fit(columns, *heads)?;
            o.read(3, Shape::Offsets { lengths: token_group(rows)? })?;
            o.write(0, real(rows, columns))
        }
        Action::SiluAttentionGrad { heads } => {
            o.count(5, 3)?;
            let (rows, columns) = o.same_reals(0..3)?;
            heads_fit(columns, *heads)?;
            o.read(3, Shape::Offsets { lengths: token_group(rows)? })?;
            o.read(4, real(rows, columns))?;
            (0..3).try_for_each(|i| o.write(i, real(rows, columns)))
        }
        Action::SoftmaxAttention { heads, .. } => {
            o.count(4, 2)?;
            let (rows, columns) = o.same_reals(0..3)?;
            heads_fit(columns, *heads)?;
            o.read(3, Shape::Offsets { lengths: token_group(rows)? })?;
            o.write(0, real(rows, columns))?;
            o.write(1, real(rows, *heads))
        }
        Action::SoftmaxAttentionGrad { heads, .. } => {
            o.count(7, 3)?;
            let (rows, columns) = o.same_reals(0..4)?;
            heads_fit(columns, *heads)?;
            o.read(4, real(rows, *heads))?;
            o.read(5, Shape::Offsets { lengths: token_group(rows)? })?;
            o.read(6, real(rows, columns))?;
            (0..3).try_for_each(|i| o.write(i, real(rows, columns)))
        }
        Action::DotInteraction => {
            o.count(reads.len().max(2), 1)?;
            let (rows, _) = o.same_reals(0..reads.len())?;
            let n = reads.len() as u32;
            o.write(0, real(rows, n * (n - 1) / 2))
        }
        Action::DotInteractionGrad => {
            let n = writes.len();
            o.count(n.max(2) + 1, n.max(2))?;
            let (rows, columns) = o.same_reals(0..n)?;
            o.read(n, real(rows, (n * (n - 1) / 2) as u32))?;
            (0..n).try_for_each(|i| o.write(i, real(rows, columns)))
        }
        Action::BceWithLogits { .. } => {
            o.count(2, 2)?;
            let (rows, columns) = o.real(0)?;
            if columns != 1 {
                return Err(format!("logits must have one column, have {columns}"));
            }
            o.read(1, Shape::Labels { rows })?;
            o.write(0, real(ONE, 1))?;
            o.write(1, real(rows, 1))
        }
        Action::SampledSoftmax { negatives, .. } => {
            o.count(4, 2)?;
            let ((rows, dim), (_, row_dim)) = (o.real(0)?, o.real(1)?);
            token_group(rows)?;
            if dim != row_dim {
                return Err(format!("h has {dim} columns, the rows have {row_dim}"));
            }
            o.read(2, index(rows, 1))?;
            o.read(3, index(rows, *negatives))?;
            o.write(0, real(ONE, 1))?;
            o.write(1, real(rows, 1 + negatives))
        }
        Action::SampledSoftmaxGrad { negatives } => {
            o.count(5, 2)?;
            let ((rows, dim), (entries, row_dim)) = (o.real(0)?, o.real(1)?);
            if dim != row_dim {
                return Err(format!("h has {dim} columns, the rows have {row_dim}"));
            }
            o.read(2, index(rows, 1))?;
            o.read(3, index(rows, *negatives))?;
            o.read(4, real(rows, 1 + negatives))?;
            o.write(0, real(rows, dim))?;
            o.write(1, real(entries, dim))
        }
        Action::AllReduce => {
            o.count(reads.len(), reads.len())?;
            for (i, r) in reads.iter().enumerate() {
                match r {
                    Shape::Gradient { .. } => o.write(i, *r)?,
                    other => return Err(format!("operand {i} must be a gradient, is {other}")),
                }
            }
            Ok(())
        }
        Action::DenseUpdate => {
            o.count(reads.len(), reads.len())?;
            for (i, r) in reads.iter().enumerate() {
                match *r {
                    Shape::Gradient { rows, columns } => o.write(i, Shape::Parameter { rows, columns })?,
                    other => return Err(format!("operand {i} must be a gradient, is {other}")),
                }
            }
            Ok(())
        }
        Action::RankItems { .. } => {
            o.count(3, 0)?;
            let ((rows, columns), g) = (o.real(0)?, o.offsets(1)?);
            match reads[2] {
                Shape::Table { dim, .. } if dim == columns && rows == tokens(g) => Ok(()),
                other => {
                    Err(format!("h must have the columns of the table and a row per token, table is {other}"))
                }
            }
        }
        // The rest has been judged above.
        _ => Ok(()),
    }
}

/// The rows of a gradient that is summed per entry of an exchange.
fn sent_rows(writes: &[Shape]) -> Result<Extent, Fault> {
    match writes.first() {
        Some(Shape::Matrix { rows: rows @ Extent::Symbol(Symbol::Sent(_)), .. }) => Ok(*rows),
        other => Err(format!("result 0 must have a row per entry of an exchange, is {}", name(other))),
    }
}
