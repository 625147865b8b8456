//! The arguments of a call, each in the form that its parameter asked for.

use super::values::Failed;
use crate::checked::{
    Balancing, DenseOptimizer, IdDistribution, Init, InputId, LabelDistribution, LengthDistribution, Limit,
    Normalize, Sharding, SparseOptimizer, TableId, ValueId,
};
use crate::source::Span;

/// An argument in the form that its parameter asked for.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    Missing,
    Value(ValueId),
    Values(Vec<(ValueId, Span)>),
    Table(TableId),
    Input(InputId),
    Count(u64),
    CountOrAuto(Option<u64>),
    Number(f64),
    Switch(bool),
    Choice(&'static str),
    Text(String),
    Widths(Vec<u32>),
    Normalize(Normalize),
    Init(Init),
    SparseOptimizer(SparseOptimizer),
    DenseOptimizer(DenseOptimizer),
    Lengths(LengthDistribution),
    Ids(IdDistribution),
    Labels(LabelDistribution),
    Balance(Balancing),
    Limit(Limit),
    Sharding(Sharding),
}

/// The arguments of one call, by parameter.
#[derive(Debug)]
pub(crate) struct Bound {
    /// The whole call.
    pub(crate) span: Span,
    /// The name that `let` gives to the result.
    pub(crate) hint: Option<String>,
    pub(super) entries: Vec<(&'static str, Data, Span)>,
}

macro_rules! getters {
    ($($name:ident: $variant:ident => $ty:ty;)*) => {
        $(pub(crate) fn $name(&self, param: &str) -> Result<$ty, Failed> {
            match self.data(param) {
                Data::$variant(v) => Ok(v.clone()),
                _ => Err(Failed),
            }
        })*
    };
}

impl Bound {
    fn data(&self, param: &str) -> &Data {
        self.entries.iter().find(|e| e.0 == param).map_or(&Data::Missing, |e| &e.1)
    }

    /// Where an argument stands; the whole call if its default was taken.
    pub(crate) fn span_of(&self, param: &str) -> Span {
        self.entries.iter().find(|e| e.0 == param).map_or(self.span, |e| e.2)
    }

    /// Whether an optional parameter was given.
    pub(crate) fn has(&self, param: &str) -> bool {
        !matches!(self.data(param), Data::Missing)
    }

    getters! {
        value: Value => ValueId;
        values: Values => Vec<(ValueId, Span)>;
        table: Table => TableId;
        input: Input => InputId;
        count: Count => u64;
        count_or_auto: CountOrAuto => Option<u64>;
        number: Number => f64;
        switch: Switch => bool;
        choice: Choice => &'static str;
        text: Text => String;
        widths: Widths => Vec<u32>;
        normalize: Normalize => Normalize;
        init: Init => Init;
        sparse_optimizer: SparseOptimizer => SparseOptimizer;
        dense_optimizer: DenseOptimizer => DenseOptimizer;
        lengths: Lengths => LengthDistribution;
        ids: Ids => IdDistribution;
        labels: Labels => LabelDistribution;
        balance: Balance => Balancing;
        limit: Limit => Limit;
        sharding: Sharding => Sharding;
    }
}
