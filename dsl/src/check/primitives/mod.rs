//! The primitives: name, parameters, documentation and inference of each in one place.
//!
//! A family is a file; a new primitive is an entry in its table. The documentation is generated from it.

mod activation;
mod attention;
mod embedding;
mod layer;
mod loss;
mod shape;

use crate::check::{Bound, Checker, Failed, Val};
use crate::signature::{Param, ParamKind};

/// A primitive.
pub(crate) struct Primitive {
    /// As called.
    pub(crate) name: &'static str,
    /// Its parameters in order.
    pub(crate) params: &'static [Param],
    /// The type of its result, in words.
    pub(crate) result: &'static str,
    /// What it computes.
    pub(crate) doc: &'static str,
    /// Infers types, creates parameters and adds operations.
    pub(crate) apply: fn(&mut Checker<'_>, &Bound) -> Result<Val, Failed>,
}

/// Primitives that belong together.
pub(crate) struct Family {
    /// Heading in the documentation.
    pub(crate) title: &'static str,
    /// Its members.
    pub(crate) primitives: &'static [Primitive],
}

/// All primitives.
pub(crate) const PRIMITIVES: &[Family] = &[
    Family { title: "Embeddings", primitives: embedding::ALL },
    Family { title: "Layers", primitives: layer::ALL },
    Family { title: "Activations", primitives: activation::ALL },
    Family { title: "Arithmetic and shape", primitives: shape::ALL },
    Family { title: "Attention", primitives: attention::ALL },
    Family { title: "Losses", primitives: loss::ALL },
];

/// The primitive of a name.
pub(crate) fn find(name: &str) -> Option<&'static Primitive> {
    PRIMITIVES.iter().flat_map(|f| f.primitives).find(|p| p.name == name)
}

const X: Param = Param::required("x", ParamKind::Value, "The operand.");
const NAME: Param = Param::optional(
    "name",
    ParamKind::LayerName,
    "Prefix of its parameters; without it the name after `let`.",
);
