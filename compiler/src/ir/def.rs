//! The definition of an operation: all that passes may ask of it.

use fs_schedule::Poly;

use super::{Context, Effects, Module, OpData, OpId, Resource, Vjp};

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
    /// What it reads and writes beside its values.
    pub effects: Effects,
    /// What it declares, if it stands before functions.
    pub declares: Option<Declares>,
    /// Set if it moves nothing where storage allows.
    pub view: Option<View>,
    /// Which operands it writes where they stand.
    pub updates: Updates,
    /// In evaluation it is its first operand.
    pub only_trains: bool,
}

/// A vector-Jacobian rule.
pub type VjpRule = fn(&mut Vjp<'_>, OpId) -> Result<(), String>;

/// Kinds of declarations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declares {
    /// An embedding table.
    Table,
    /// A group of sequences that share lengths.
    Lengths,
    /// What a sample holds.
    Input,
    /// A dense parameter.
    Parameter,
    /// Who asks whom for which rows.
    Exchange,
}

/// Ranges of columns instead of copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Its results are ranges of its operand.
    Split,
    /// Its operands are ranges of its result.
    Concat,
}

/// Operands that are written, of operations that have places for results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updates {
    /// None: results are values of their own.
    Nothing,
    /// The last one (a table).
    Last,
    /// All, which are read too; results name what then stands there (sums of gradients).
    All,
    /// The second half (parameters, behind their gradients).
    SecondHalf,
}

impl Updates {
    /// How many of `operands` are read only.
    pub const fn reads(self, operands: usize) -> usize {
        match self {
            Self::Nothing | Self::All => operands,
            Self::Last => operands.saturating_sub(1),
            Self::SecondHalf => operands / 2,
        }
    }
}

impl OpDef {
    /// A pure operation without derivative, free of arithmetic.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        verify: fn(&Context<'_>, &OpData) -> Result<(), String>,
    ) -> Self {
        Self {
            name,
            summary,
            verify,
            vjp: None,
            flops: no_flops,
            accumulates: &[],
            effects: Effects::PURE,
            declares: None,
            view: None,
            updates: Updates::Nothing,
            only_trains: false,
        }
    }
    /// With a derivative.
    #[must_use]
    pub const fn with_vjp(mut self, vjp: VjpRule) -> Self {
        self.vjp = Some(vjp);
        self
    }
    /// With arithmetic.
    #[must_use]
    pub const fn with_flops(mut self, flops: fn(&Module, &OpData) -> Poly) -> Self {
        self.flops = flops;
        self
    }
    /// With rules of its own.
    #[must_use]
    pub const fn with_verify(mut self, verify: fn(&Context<'_>, &OpData) -> Result<(), String>) -> Self {
        self.verify = verify;
        self
    }
    /// Some results can be added into a value.
    #[must_use]
    pub const fn accumulating(mut self, results: &'static [usize]) -> Self {
        self.accumulates = results;
        self
    }
    /// Reads something beside its operands.
    #[must_use]
    pub const fn reading(mut self, what: Resource) -> Self {
        self.effects = self.effects.reading(what);
        self
    }
    /// Writes something beside its results.
    #[must_use]
    pub const fn writing(mut self, what: Resource) -> Self {
        self.effects = self.effects.writing(what);
        self
    }
    /// Is a declaration.
    #[must_use]
    pub const fn declaring(mut self, what: Declares) -> Self {
        self.declares = Some(what);
        self
    }
    /// Is a view of storage.
    #[must_use]
    pub const fn viewing(mut self, view: View) -> Self {
        self.view = Some(view);
        self
    }
    /// Writes operands where they stand.
    #[must_use]
    pub const fn updating(mut self, updates: Updates) -> Self {
        self.updates = updates;
        self
    }
    /// Does nothing in evaluation.
    #[must_use]
    pub const fn only_training(mut self) -> Self {
        self.only_trains = true;
        self
    }
}

fn no_flops(_: &Module, _: &OpData) -> Poly {
    Poly::zero()
}
