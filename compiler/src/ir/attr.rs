//! Constants of operations and modules: a small value type that converts from and to anything serde knows,
//! so that the schedule's own types (initial values, optimizers, data sources) stand in the IR unchanged.

use std::collections::BTreeMap;

use serde::de::value::{Error as ValueError, MapAccessDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{Deserializer, Error as _, IntoDeserializer, Visitor};
use serde_json::Value;

/// Why constants are not what is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttrError {
    /// One is missing, or of another kind.
    #[error("needs {what}`{name}`")]
    Missing {
        /// What it must be, with a blank behind it; empty: something.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// A number beyond what is counted.
    #[error("`{name}` = {value} is out of range")]
    Range {
        /// Its name.
        name: String,
        /// What it is.
        value: i128,
    },
    /// One does not convert.
    #[error("`{name}`: {source}")]
    Value {
        /// Its name.
        name: String,
        /// Why.
        source: Box<AttrError>,
    },
    /// Names or values do not fit what is read from them.
    #[error("{0}")]
    Form(String),
}

impl AttrError {
    fn missing(what: &'static str, name: &str) -> Self {
        Self::Missing { what, name: name.into() }
    }
}

impl From<ValueError> for AttrError {
    fn from(e: ValueError) -> Self {
        Self::Form(e.to_string())
    }
}

/// Named constants, in order of their names.
pub type Attrs = BTreeMap<String, Attr>;

/// A constant.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr {
    /// Absent, of optional settings.
    None,
    /// True or false.
    Bool(bool),
    /// Integer.
    Int(i128),
    /// Float; printed so that it is not an integer.
    Float(f64),
    /// Text.
    Str(String),
    /// List.
    List(Vec<Attr>),
    /// Named constants.
    Dict(Attrs),
}

impl Attr {
    /// From anything that serialises.
    pub(crate) fn from<T: serde::Serialize>(value: &T) -> Self {
        // Plain data with text keys has no way to fail.
        serde_json::to_value(value).map_or(Self::None, |v| Self::from_json(&v))
    }
    /// Into anything that deserialises; the error says what does not fit.
    pub(crate) fn to<T: serde::de::DeserializeOwned>(&self) -> Result<T, AttrError> {
        Ok(T::deserialize(self)?)
    }
    fn from_json(value: &Value) -> Self {
        match value {
            Value::Null => Self::None,
            Value::Bool(b) => Self::Bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(i), _) => Self::Int(i.into()),
                (_, Some(u)) => Self::Int(u.into()),
                _ => Self::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(s) => Self::Str(s.clone()),
            Value::Array(a) => Self::List(a.iter().map(Self::from_json).collect()),
            Value::Object(o) => Self::Dict(o.iter().map(|(k, v)| (k.clone(), Self::from_json(v))).collect()),
        }
    }
}

/// Verification reads the attributes of every operation after every pass, so they are read where they stand.
impl<'de> Deserializer<'de> for &'de Attr {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, v: V) -> Result<V::Value, ValueError> {
        match self {
            Attr::None => v.visit_unit(),
            Attr::Bool(b) => v.visit_bool(*b),
            Attr::Int(i) => match (u64::try_from(*i), i64::try_from(*i)) {
                (Ok(u), _) => v.visit_u64(u),
                (_, Ok(i)) => v.visit_i64(i),
                _ => v.visit_f64(*i as f64),
            },
            Attr::Float(x) => v.visit_f64(*x),
            Attr::Str(s) => v.visit_borrowed_str(s),
            Attr::List(l) => SeqDeserializer::new(l.iter()).deserialize_any(v),
            Attr::Dict(d) => entries(d).deserialize_any(v),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, v: V) -> Result<V::Value, ValueError> {
        if *self == Attr::None { v.visit_none() } else { v.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        v: V,
    ) -> Result<V::Value, ValueError> {
        v.visit_newtype_struct(self)
    }

    /// `"name"` without fields, `{name = fields}` with them.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        v: V,
    ) -> Result<V::Value, ValueError> {
        match self {
            Attr::Str(s) => v.visit_enum(s.as_str().into_deserializer()),
            Attr::Dict(d) if d.len() == 1 => v.visit_enum(MapAccessDeserializer::new(entries(d))),
            Attr::Dict(_) => Err(ValueError::custom("expected one name with its fields")),
            other => Err(ValueError::custom(format!("expected a name, found `{other}`"))),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'a> IntoDeserializer<'a, ValueError> for &'a Attr {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

/// Named constants as a map.
fn entries(attrs: &Attrs) -> MapDeserializer<'_, impl Iterator<Item = (&str, &Attr)>, ValueError> {
    MapDeserializer::new(attrs.iter().map(|(k, v)| (k.as_str(), v)))
}

/// A record from named constants.
pub(crate) fn record<T: serde::de::DeserializeOwned>(attrs: &Attrs) -> Result<T, AttrError> {
    Ok(T::deserialize(entries(attrs))?)
}

/// A variant from its name and its fields.
pub(crate) fn variant<T: serde::de::DeserializeOwned>(name: &str, attrs: &Attrs) -> Result<T, AttrError> {
    if attrs.is_empty() {
        let name: serde::de::value::StrDeserializer<'_, ValueError> = name.into_deserializer();
        return Ok(T::deserialize(name)?);
    }
    let fields = Fields(attrs);
    let one = MapDeserializer::new(std::iter::once((name, fields)));
    Ok(T::deserialize(MapAccessDeserializer::new(one))?)
}

/// Fields of a variant.
struct Fields<'a>(&'a Attrs);

impl<'a> IntoDeserializer<'a, ValueError> for Fields<'a> {
    type Deserializer = FieldsOf<'a>;
    fn into_deserializer(self) -> FieldsOf<'a> {
        FieldsOf(self.0)
    }
}

struct FieldsOf<'a>(&'a Attrs);

impl<'de> Deserializer<'de> for FieldsOf<'de> {
    type Error = ValueError;
    fn deserialize_any<V: Visitor<'de>>(self, v: V) -> Result<V::Value, ValueError> {
        entries(self.0).deserialize_any(v)
    }
    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Named constants of anything that serialises to an object.
pub(crate) fn attrs_of<T: serde::Serialize>(value: &T) -> Attrs {
    match Attr::from(value) {
        Attr::Dict(d) => d,
        Attr::None => Attrs::new(),
        other => Attrs::from([("value".into(), other)]),
    }
}

/// An integer constant.
pub(crate) fn int(attrs: &Attrs, name: &str) -> Result<u32, AttrError> {
    match attrs.get(name) {
        Some(Attr::Int(i)) => {
            u32::try_from(*i).map_err(|_| AttrError::Range { name: name.into(), value: *i })
        }
        _ => Err(AttrError::missing("an integer ", name)),
    }
}

/// A float constant.
pub(crate) fn float(attrs: &Attrs, name: &str) -> Result<f64, AttrError> {
    match attrs.get(name) {
        Some(Attr::Float(x)) => Ok(*x),
        Some(Attr::Int(i)) => Ok(*i as f64),
        _ => Err(AttrError::missing("a number ", name)),
    }
}

/// A Boolean constant.
pub(crate) fn boolean(attrs: &Attrs, name: &str) -> Result<bool, AttrError> {
    match attrs.get(name) {
        Some(Attr::Bool(b)) => Ok(*b),
        _ => Err(AttrError::missing("true or false for ", name)),
    }
}

/// A constant of the schedule's vocabulary.
pub(crate) fn typed<T: serde::de::DeserializeOwned>(attrs: &Attrs, name: &str) -> Result<T, AttrError> {
    let value = attrs.get(name).ok_or_else(|| AttrError::missing("", name))?;
    value.to().map_err(|e| AttrError::Value { name: name.into(), source: Box::new(e) })
}

#[cfg(test)]
mod tests {
    use fs_schedule::{Action, Data, Exchange, Normalize, Sharding, Way};

    use super::*;

    fn round_trips<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
        value: &T,
    ) {
        assert_eq!(Attr::from(value).to::<T>().as_ref(), Ok(value));
    }

    #[test]
    fn what_is_written_is_read_back() {
        round_trips(&Sharding::RowWise);
        round_trips(&Sharding::TableWise { rank: 3 });
        round_trips(&Sharding::ColumnWise { ranks: vec![2, 0] });
        round_trips(&Normalize::Constant(3.0));
        round_trips(&Normalize::Tokens(1));
        round_trips(&Exchange {
            table: 1,
            part: 0,
            entries: 4,
            unique: true,
            lookahead: Some(2),
            windows: Some(2),
            folded: false,
            leg: fs_schedule::Leg::Whole,
            shares: Some(fs_schedule::Shares { owned: 5, hot: 6 }),
            of: None,
        });
        round_trips(&Exchange {
            table: 1,
            part: 0,
            entries: 4,
            unique: true,
            lookahead: None,
            windows: None,
            folded: true,
            leg: fs_schedule::Leg::Within { between: 5 },
            shares: None,
            of: Some(3),
        });
        round_trips(&None::<Data>);
        round_trips(&Some(Data::Safetensors { path: "x".into() }));
        round_trips(&vec![u64::MAX, 0]);
        round_trips(&i64::MIN);
    }

    /// An action is its name and its fields.
    #[test]
    fn actions() {
        for action in [
            Action::Expand,
            Action::Partition { exchange: 1, way: Way::Backward },
            Action::AllToAllRows { exchanges: vec![0, 2], class: Some(1) },
            Action::LayerNorm { affine: false, eps: 1.0 },
        ] {
            let (name, fields) = match Attr::from(&action) {
                Attr::Str(name) => (name, Attrs::new()),
                Attr::Dict(d) => match d.into_iter().next() {
                    Some((name, Attr::Dict(fields))) => (name, fields),
                    other => unreachable!("{other:?}"),
                },
                other => unreachable!("{other:?}"),
            };
            assert_eq!(variant::<Action>(&name, &fields), Ok(action));
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let attrs =
            |text: &str| match crate::ir::parse::parse(&format!("module \"m\" {{{text}}} {{}}"), |_| None) {
                Ok(m) => m.attrs,
                Err(e) => unreachable!("{e}"),
            };
        let wrong = |text: &str| record::<Exchange>(&attrs(text)).unwrap_err().to_string();
        assert!(wrong("table = 1").contains("part"));
        assert!(wrong("table = \"x\"").contains("expected u32"));
        assert!(wrong("size = 1").contains("unknown field `size`"));
        assert!(variant::<Action>("gather", &attrs("exchange = -1")).unwrap_err().to_string().contains("-1"));
        assert!(
            variant::<Action>("nothing", &Attrs::new()).unwrap_err().to_string().contains("unknown variant")
        );
    }
}
