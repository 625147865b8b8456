//! The syntax tree: what the text says, with the place of every part, before any name is resolved.

use crate::source::Span;

/// One parsed text.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Top-level parts in order.
    pub(crate) items: Vec<Item>,
}

/// A word with its place.
#[derive(Debug, Clone)]
pub(crate) struct Ident {
    /// The word.
    pub text: String,
    /// Its place.
    pub span: Span,
}

/// A top-level part.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    /// `import "other.fs"`
    Import {
        /// The path as written.
        path: Text,
        /// The whole item.
        span: Span,
    },
    /// `model name { ... }`
    Model {
        /// Its name.
        name: Ident,
        /// Statements.
        body: Body,
        /// The whole item.
        span: Span,
    },
    /// `block name(parameters) { ... }`
    Block(Block),
    /// `train`, `workload name` or `cluster name`.
    Section(Section),
}

/// A user-defined block.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// Its name.
    pub name: Ident,
    /// Parameters with their defaults.
    pub params: Vec<(Ident, Option<Expr>)>,
    /// Statements.
    pub body: Body,
    /// The whole item.
    pub span: Span,
}

/// Statements in braces.
#[derive(Debug, Clone)]
pub(crate) struct Body {
    /// In order.
    pub statements: Vec<Statement>,
    /// With the braces.
    pub span: Span,
}

/// A statement of a model or block.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    /// What it says.
    pub kind: StatementKind,
    /// The whole statement.
    pub span: Span,
}

/// Kinds of statement.
#[derive(Debug, Clone)]
pub(crate) enum StatementKind {
    /// `table name { ... }`
    Table(Section),
    /// `input name: kind like other { ... }`
    Input {
        /// Its name.
        name: Ident,
        /// A call such as `ids(movies)` or a name such as `label`.
        kind: Expr,
        /// The input whose lengths it shares.
        like: Option<Ident>,
        /// Settings.
        settings: Option<Settings>,
    },
    /// `let a, b = expr` (`define`) or `a, b = expr`.
    Bind {
        /// Whether the names are new.
        define: bool,
        /// Names.
        names: Vec<Ident>,
        /// What they are bound to.
        value: Expr,
    },
    /// `repeat n as name { ... }`
    Repeat {
        /// How often.
        count: Expr,
        /// Scope of the parameters created inside.
        name: Option<Ident>,
        /// Statements.
        body: Body,
    },
    /// `loss expr`
    Loss(Expr),
    /// `return a, b`
    Return(Vec<Expr>),
}

/// A keyword with settings: `train { ... }`, `table movies { ... }`, `cluster mine from dgx_h100 { ... }`.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// The keyword.
    pub keyword: Ident,
    /// Its name, if the keyword takes one.
    pub name: Option<Ident>,
    /// The preset it starts from.
    pub from: Option<Ident>,
    /// Settings in braces.
    pub settings: Option<Settings>,
    /// The whole part.
    pub span: Span,
}

/// Settings in braces.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// In order.
    pub entries: Vec<Entry>,
    /// With the braces.
    pub span: Span,
}

/// One setting.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its key.
    pub key: Ident,
    /// Its value.
    pub value: Option<Expr>,
    /// Settings nested in it.
    pub settings: Option<Settings>,
    /// The whole setting.
    pub span: Span,
}

/// A string with its escapes resolved.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    /// What it says.
    pub value: String,
    /// With the quotes.
    pub span: Span,
}

/// An expression.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    /// What it says.
    pub kind: ExprKind,
    /// Its place.
    pub span: Span,
}

/// Kinds of expression. Sums and products are flat, so long chains need no deep recursion.
#[derive(Debug, Clone)]
pub(crate) enum ExprKind {
    /// A number as written, and its unit.
    Number {
        /// Digits as written.
        digits: String,
        /// Unit as written.
        unit: Option<Ident>,
    },
    /// A string.
    Text(String),
    /// A name.
    Name(String),
    /// `callee(arguments)`
    Call {
        /// What is called.
        callee: Ident,
        /// Arguments in order.
        args: Vec<Argument>,
    },
    /// `[a, b]`
    List(Vec<Expr>),
    /// `(a)`
    Paren(Box<Expr>),
    /// `a + b - c`; the flag says whether a term is subtracted (never for the first).
    Sum(Vec<(bool, Expr)>),
    /// `a * b / c`; the flag says whether a factor divides (never for the first).
    Product(Vec<(bool, Expr)>),
    /// `-a`
    Negative(Box<Expr>),
}

/// An argument of a call.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    /// `name:`
    pub name: Option<Ident>,
    /// Its value.
    pub value: Expr,
}
