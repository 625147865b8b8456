//! Constants of operations and modules: a small value type that converts from and to anything serde knows,
//! so that the schedule's own types (initial values, optimizers, data sources) stand in the IR unchanged.

use std::collections::BTreeMap;

use serde_json::Value;

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
    pub fn from<T: serde::Serialize>(value: &T) -> Self {
        // Plain data with text keys has no way to fail.
        serde_json::to_value(value).map_or(Self::None, |v| Self::from_json(&v))
    }
    /// Into anything that deserialises; the error says what does not fit.
    pub fn to<T: serde::de::DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_value(self.to_json()).map_err(|e| e.to_string())
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
    /// As JSON.
    pub fn to_json(&self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Bool(b) => Value::Bool(*b),
            Self::Int(i) => match (i64::try_from(*i), u64::try_from(*i)) {
                (Ok(i), _) => Value::from(i),
                (_, Ok(u)) => Value::from(u),
                _ => Value::from(*i as f64),
            },
            Self::Float(x) => Value::from(*x),
            Self::Str(s) => Value::from(s.as_str()),
            Self::List(l) => Value::Array(l.iter().map(Self::to_json).collect()),
            Self::Dict(d) => Value::Object(d.iter().map(|(k, v)| (k.clone(), v.to_json())).collect()),
        }
    }
}

/// Named constants of anything that serialises to an object.
pub fn attrs_of<T: serde::Serialize>(value: &T) -> Attrs {
    match Attr::from(value) {
        Attr::Dict(d) => d,
        Attr::None => Attrs::new(),
        other => Attrs::from([("value".into(), other)]),
    }
}

/// An integer constant.
pub fn int(attrs: &Attrs, name: &str) -> Result<u32, String> {
    match attrs.get(name) {
        Some(Attr::Int(i)) => u32::try_from(*i).map_err(|_| format!("`{name}` = {i} is out of range")),
        _ => Err(format!("needs an integer `{name}`")),
    }
}

/// A float constant.
pub fn float(attrs: &Attrs, name: &str) -> Result<f64, String> {
    match attrs.get(name) {
        Some(Attr::Float(x)) => Ok(*x),
        Some(Attr::Int(i)) => Ok(*i as f64),
        _ => Err(format!("needs a number `{name}`")),
    }
}

/// A Boolean constant.
pub fn boolean(attrs: &Attrs, name: &str) -> Result<bool, String> {
    match attrs.get(name) {
        Some(Attr::Bool(b)) => Ok(*b),
        _ => Err(format!("needs true or false for `{name}`")),
    }
}

/// A constant of the schedule's vocabulary.
pub fn typed<T: serde::de::DeserializeOwned>(attrs: &Attrs, name: &str) -> Result<T, String> {
    attrs.get(name).ok_or(format!("needs `{name}`"))?.to().map_err(|e| format!("`{name}`: {e}"))
}
