//! The messages of MLCommons Chakra execution traces that an export needs.
//!
//! Names and field numbers are those of Chakra's `et_def.proto` (schema version 0.0.4, package `ChakraProtoMsg`); what
//! a schedule has no use for (storage operations, lists of attributes) is left out, which readers of proto3 allow.

use prost::{Enumeration, Message, Oneof};

/// The first message of a file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GlobalMetadata {
    /// Version of the schema.
    #[prost(string, tag = "1")]
    pub version: String,
    /// What was exported.
    #[prost(message, repeated, tag = "2")]
    pub attr: Vec<Attribute>,
}

/// Kinds of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum NodeType {
    /// Never written.
    Invalid = 0,
    /// Arithmetic, or work of the host.
    Compute = 4,
    /// One message to one rank.
    Send = 5,
    /// One message from one rank.
    Receive = 6,
    /// All ranks at once.
    Collective = 7,
}

/// Kinds of collectives: the value of the attribute `comm_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum CollectiveType {
    /// Sum over ranks.
    AllReduce = 0,
    /// Everyone gets everything.
    AllGather = 2,
}

/// An operation, or one message of it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    /// Unique within its file.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// For people.
    #[prost(string, tag = "2")]
    pub name: String,
    /// What it is.
    #[prost(enumeration = "NodeType", tag = "3")]
    pub kind: i32,
    /// Nodes that must have finished, for order only.
    #[prost(uint64, repeated, tag = "4")]
    pub ctrl_deps: Vec<u64>,
    /// Nodes whose results it reads.
    #[prost(uint64, repeated, tag = "5")]
    pub data_deps: Vec<u64>,
    /// Planned start, in microseconds.
    #[prost(uint64, tag = "6")]
    pub start_time_micros: u64,
    /// Planned duration, in microseconds.
    #[prost(uint64, tag = "7")]
    pub duration_micros: u64,
    /// What it reads.
    #[prost(message, optional, tag = "8")]
    pub inputs: Option<IoInfo>,
    /// What it writes.
    #[prost(message, optional, tag = "9")]
    pub outputs: Option<IoInfo>,
    /// Everything else.
    #[prost(message, repeated, tag = "10")]
    pub attr: Vec<Attribute>,
}

/// Tensors, as texts of lists.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct IoInfo {
    /// Names.
    #[prost(string, tag = "1")]
    pub values: String,
    /// Rows and columns.
    #[prost(string, tag = "2")]
    pub shapes: String,
    /// Element types.
    #[prost(string, tag = "3")]
    pub types: String,
}

/// A named value.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its value.
    #[prost(oneof = "Value", tags = "7, 9, 13, 27, 29")]
    pub value: Option<Value>,
}

/// Values of attributes. Readers of Chakra traces look for one certain type per name.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Value {
    /// 32 bits.
    #[prost(int32, tag = "7")]
    Int32(i32),
    /// 64 bits.
    #[prost(int64, tag = "9")]
    Int64(i64),
    /// 64 bits, not negative.
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    /// Yes or no.
    #[prost(bool, tag = "27")]
    Bool(bool),
    /// Text.
    #[prost(string, tag = "29")]
    Text(String),
}

impl Attribute {
    /// A named value.
    pub(crate) fn new(name: &str, value: Value) -> Self {
        Self { name: name.into(), value: Some(value) }
    }
}
