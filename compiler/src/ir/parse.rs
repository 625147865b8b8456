//! Reads the textual form of a module back. The grammar is small: see [`super::print`]. The first operand stands on
//! the line of its operation, the others behind commas.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fs_schedule::Site;

use super::attr::{AttrError, record};
use super::{Attr, Attrs, Func, Module, OpDef, OpId, Type, ValueId};

/// A syntax error in textual IR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: Syntax,
}

/// What is wrong with a text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Syntax {
    /// Something else belongs here.
    #[error("expected {0}")]
    Expected(Cow<'static, str>),
    /// A quoted text without an end.
    #[error("unfinished quoted text")]
    Unfinished,
    /// Attributes in attributes.
    #[error("attributes are nested too deeply")]
    Deep,
    /// Functions of one name.
    #[error("a second function `{0}`")]
    SecondFunction(String),
    /// Values of one name.
    #[error("%{0} is defined twice")]
    SecondValue(String),
    /// Attributes of one name.
    #[error("attribute `{0}` is given twice")]
    SecondAttribute(String),
    /// A value that no operation gives.
    #[error("%{0} is not defined")]
    NoValue(String),
    /// An operation of no dialect.
    #[error("there is no operation `{0}`")]
    NoOperation(String),
    /// A word where a batch offset belongs.
    #[error("`{0}` is not a batch offset")]
    NoOffset(String),
    /// A word where a constant belongs.
    #[error("`{0}` is not a constant")]
    NoConstant(String),
    /// Attributes behind `sched`.
    #[error("not a placement: {0}")]
    NoPlacement(#[source] AttrError),
}

impl Syntax {
    fn expected(what: impl Into<Cow<'static, str>>) -> Self {
        Self::Expected(what.into())
    }
}

/// Nesting of attributes beyond which the text is refused (the parser recurses).
const DEEPEST: usize = 64;

/// Finds the definition of an operation.
pub(crate) type Find = fn(&str) -> Option<&'static OpDef>;

struct Parser<'a> {
    text: &'a str,
    find: Find,
    at: usize,
    module: Module,
    values: BTreeMap<&'a str, ValueId>,
    depth: usize,
    lines: Lines,
    /// A place whose line is known, so that lines are counted once.
    counted: (usize, usize),
}

/// On which line of the text each operation starts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines(Vec<usize>);

impl Lines {
    /// The line of an operation, from 1; nothing for those that passes made.
    pub fn of(&self, op: OpId) -> Option<usize> {
        self.0.get(op.0 as usize).copied()
    }
}

/// A use of a value by name, and where it stands.
struct Use<'a> {
    name: &'a str,
    at: usize,
}

/// What an operation uses, to be filled in.
struct Uses<'a> {
    op: OpId,
    operands: Vec<Option<Use<'a>>>,
    into: Vec<Option<Use<'a>>>,
}

/// Parses a module of the operations that `find` knows.
pub(crate) fn parse(text: &str, find: Find) -> Result<Module, ParseError> {
    parse_with_lines(text, find).map(|(module, _)| module)
}

/// Parses a module, and says where its operations stand.
pub(crate) fn parse_with_lines(text: &str, find: Find) -> Result<(Module, Lines), ParseError> {
    let mut p = Parser {
        text,
        find,
        at: 0,
        module: Module::default(),
        values: BTreeMap::new(),
        depth: 0,
        lines: Lines::default(),
        counted: (0, 1),
    };
    p.module().map_err(|message| {
        let before = &text[..p.at];
        ParseError {
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1,
            message,
        }
    })?;
    Ok((p.module, p.lines))
}

impl<'a> Parser<'a> {
    /// Skips white space and `//` comments; returns the rest.
    fn rest(&mut self) -> &'a str {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return trimmed;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }
    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }
    fn expect(&mut self, token: &str) -> Result<(), Syntax> {
        if self.eat(token) { Ok(()) } else { Err(Syntax::expected(format!("`{token}`"))) }
    }
    /// A run of characters that belong together.
    fn word(&mut self, what: &str, accept: impl Fn(char) -> bool) -> Result<&'a str, Syntax> {
        let rest = self.rest();
        let end = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(Syntax::expected(what.to_owned()));
        }
        self.at += end;
        Ok(&rest[..end])
    }
    fn string(&mut self) -> Result<String, Syntax> {
        let rest = self.rest();
        let mut stream = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
        if !rest.starts_with('"') {
            return Err(Syntax::expected("a quoted text"));
        }
        match stream.next() {
            Some(Ok(serde_json::Value::String(s))) => {
                self.at += stream.byte_offset();
                Ok(s)
            }
            _ => Err(Syntax::Unfinished),
        }
    }
    fn module(&mut self) -> Result<(), Syntax> {
        self.expect("module")?;
        self.module.name = self.string()?;
        self.module.attrs = self.attrs()?;
        self.expect("{")?;
        while !self.eat("}") {
            if self.eat("func") {
                self.expect("@")?;
                let name =
                    self.word("a function's name", |c| c.is_ascii_alphanumeric() || c == '_')?.to_owned();
                if self.module.func(&name).is_some() {
                    return Err(Syntax::SecondFunction(name));
                }
                self.expect("{")?;
                let (mut body, mut uses) = (Vec::new(), Vec::new());
                while !self.eat("}") {
                    let op = self.op()?;
                    body.push(op.op);
                    uses.push(op);
                }
                self.resolve(uses)?;
                self.module.funcs.push(Func { name, body });
            } else {
                let op = self.op()?;
                self.module.decls.push(op.op);
                self.resolve(vec![op])?;
            }
        }
        if self.rest().is_empty() { Ok(()) } else { Err(Syntax::expected("the end of the text")) }
    }
    fn name(&mut self) -> Result<&'a str, Syntax> {
        self.expect("%")?;
        self.word("a value's name", |c| c.is_ascii_alphanumeric() || c == '_')
    }
    /// A use of a value. Its definition may stand below: another batch's, or a scheduled function's.
    fn value(&mut self) -> Result<Use<'a>, Syntax> {
        self.rest();
        let at = self.at;
        Ok(Use { name: self.name()?, at })
    }
    /// Fills in the operands of operations, now that all values of the function are known.
    fn resolve(&mut self, uses: Vec<Uses<'a>>) -> Result<(), Syntax> {
        for u in uses {
            let mut find = |list: Vec<Option<Use<'a>>>| -> Result<Vec<Option<ValueId>>, Syntax> {
                let mut found = Vec::with_capacity(list.len());
                for u in list {
                    let Some(u) = u else {
                        found.push(None);
                        continue;
                    };
                    let Some(v) = self.values.get(u.name) else {
                        self.at = u.at;
                        return Err(Syntax::NoValue(u.name.to_owned()));
                    };
                    found.push(Some(*v));
                }
                Ok(found)
            };
            let operands = find(u.operands)?;
            let into = find(u.into)?;
            let op = self.module.op_mut(u.op);
            (op.operands, op.into) = (operands.into_iter().flatten().collect(), into);
        }
        Ok(())
    }
    /// `head` and a number in parentheses, if it is there.
    fn numbered(&mut self, head: &str, expected: &'static str) -> Result<Option<u32>, Syntax> {
        if !self.eat(head) {
            return Ok(None);
        }
        let number = self.word("a number", |c| c.is_ascii_digit())?;
        self.expect(")")?;
        number.parse().map(Some).map_err(|_| Syntax::expected(expected))
    }
    fn op(&mut self) -> Result<Uses<'a>, Syntax> {
        let mut results: Vec<(&'a str, Type)> = Vec::new();
        self.rest();
        let line = self.counted.1 + self.text[self.counted.0..self.at].matches('\n').count();
        self.counted = (self.at, line);
        if self.rest().starts_with('%') {
            loop {
                let name = self.name()?;
                if self.values.contains_key(name) || results.iter().any(|(n, _)| *n == name) {
                    return Err(Syntax::SecondValue(name.to_owned()));
                }
                self.expect(":")?;
                results.push((name, self.ty()?));
                if !self.eat(",") {
                    break;
                }
            }
            self.expect("=")?;
        }
        let start = self.at;
        let name =
            self.word("an operation", |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'))?.to_owned();
        let Some(def) = (self.find)(&name) else {
            self.at = start;
            return Err(Syntax::NoOperation(name));
        };
        let (mut operands, mut offsets) = (Vec::new(), Vec::new());
        // The first on the line of the name: the next line may start with a result.
        let mut more = self.text[self.at..].trim_start_matches([' ', '\t']).starts_with('%');
        while more {
            operands.push(Some(self.value()?));
            let of_another = ["@+", "@-"].iter().any(|mark| self.text[self.at..].starts_with(mark));
            offsets.push(if of_another { self.offset()? } else { 0 });
            more = self.eat(",");
        }
        let mut into = Vec::new();
        if self.eat("into(") {
            while !self.eat(")") {
                into.push(if self.eat("_") { None } else { Some(self.value()?) });
                self.eat(",");
            }
        }
        let attrs = if self.rest().starts_with('{') { self.attrs()? } else { Attrs::new() };
        let scope = if self.eat("@") { self.string()? } else { String::new() };
        let microbatch = self.numbered("microbatch(", "the number of a microbatch")?;
        let site = if self.eat("assigned") { Site::Assigned } else { Site::Home };
        let group = self.numbered("group(", "the number of a group")?;
        let placement = if self.eat("sched") {
            let attrs = self.attrs()?;
            Some(record(&attrs).map_err(Syntax::NoPlacement)?)
        } else {
            None
        };
        let types: Vec<Type> = results.iter().map(|(_, t)| *t).collect();
        let id = self.module.create(def, Vec::new(), attrs, &types, &scope);
        self.lines.0.push(line);
        let op = self.module.op_mut(id);
        (op.microbatch, op.site, op.group, op.placement) = (microbatch, site, group, placement);
        if offsets.iter().any(|o| *o != 0) {
            op.offsets = offsets;
        }
        for ((name, _), value) in results.iter().zip(self.module.op(id).results.clone()) {
            self.values.insert(name, value);
        }
        Ok(Uses { op: id, operands, into })
    }
    /// The batch of an operand: `@-1`.
    fn offset(&mut self) -> Result<i32, Syntax> {
        self.expect("@")?;
        let word = self.word("a batch offset", |c| c.is_ascii_digit() || matches!(c, '+' | '-'))?;
        word.parse().map_err(|_| Syntax::NoOffset(word.to_owned()))
    }
    fn ty(&mut self) -> Result<Type, Syntax> {
        let start = self.at;
        let rest = self.rest();
        let end = rest.find('>').ok_or(Syntax::expected("a type"))? + 1;
        self.at += end;
        rest[..end].parse().map_err(|()| {
            self.at = start;
            Syntax::expected("a type, for example real<T0 x 64>")
        })
    }
    fn attrs(&mut self) -> Result<Attrs, Syntax> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Syntax::Deep);
        }
        self.expect("{")?;
        let mut attrs = Attrs::new();
        while !self.eat("}") {
            let key = if self.rest().starts_with('"') {
                self.string()?
            } else {
                self.word("an attribute's name", |c| c.is_ascii_alphanumeric() || c == '_')?.to_owned()
            };
            self.expect("=")?;
            let value = self.attr()?;
            if attrs.insert(key.clone(), value).is_some() {
                return Err(Syntax::SecondAttribute(key));
            }
            if !self.eat(",") {
                self.expect("}")?;
                break;
            }
        }
        self.depth -= 1;
        Ok(attrs)
    }
    fn attr(&mut self) -> Result<Attr, Syntax> {
        match self.rest().chars().next() {
            Some('"') => Ok(Attr::Str(self.string()?)),
            Some('{') => Ok(Attr::Dict(self.attrs()?)),
            Some('[') => {
                self.depth += 1;
                if self.depth > DEEPEST {
                    return Err(Syntax::Deep);
                }
                self.expect("[")?;
                let mut list = Vec::new();
                while !self.eat("]") {
                    list.push(self.attr()?);
                    if !self.eat(",") {
                        self.expect("]")?;
                        break;
                    }
                }
                self.depth -= 1;
                Ok(Attr::List(list))
            }
            _ => {
                let word = self.word("a constant", |c| {
                    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+')
                })?;
                match word {
                    "none" => Ok(Attr::None),
                    "true" => Ok(Attr::Bool(true)),
                    "false" => Ok(Attr::Bool(false)),
                    _ => word.parse().map(Attr::Int).or_else(|_| match word.parse::<f64>() {
                        Ok(x) if x.is_finite() => Ok(Attr::Float(x)),
                        _ => Err(Syntax::NoConstant(word.to_owned())),
                    }),
                }
            }
        }
    }
}
