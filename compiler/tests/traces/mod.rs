//! A decoder of Chakra traces that knows the wire format of protobuf and nothing of how they are written.

use std::collections::BTreeMap;

/// A field's value on the wire.
#[derive(Debug, Clone, PartialEq)]
enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a varint goes on");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a varint of more than ten bytes");
}

fn cut<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let n = varint(bytes) as usize;
    let (first, rest) = bytes.split_at(n);
    *bytes = rest;
    first
}

/// Number and value of each field of a message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut list = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Field::Varint(varint(&mut bytes)),
            2 => Field::Bytes(cut(&mut bytes)),
            other => panic!("wire type {other} is not used"),
        };
        list.push((key >> 3, value));
    }
    list
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text is UTF-8")
}

/// A node of a trace.
#[derive(Debug, Default, Clone)]
pub(crate) struct Node {
    pub id: u64,
    pub name: String,
    pub kind: u64,
    pub ctrl: Vec<u64>,
    pub data: Vec<u64>,
    pub duration: u64,
    /// Number of the field in the value's oneof, and the number or text.
    pub attr: BTreeMap<String, (u64, u64, String)>,
}

impl Node {
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.attr.get(name).unwrap_or_else(|| panic!("{} has no {name}", self.name)).1
    }
}

fn attribute(bytes: &[u8]) -> (String, (u64, u64, String)) {
    let mut name = String::new();
    // False and zero are there too: a oneof says which value is set.
    let mut value = None;
    for (n, field) in fields(bytes) {
        match (n, field) {
            (1, Field::Bytes(b)) => name = text(b),
            (n, Field::Varint(v)) => value = Some((n, v, String::new())),
            (n, Field::Bytes(b)) => value = Some((n, 0, text(b))),
        }
    }
    (name, value.expect("an attribute has a value"))
}

fn node(bytes: &[u8]) -> Node {
    let mut node = Node::default();
    let ids = |mut packed: &[u8]| {
        let mut ids = Vec::new();
        while !packed.is_empty() {
            ids.push(varint(&mut packed));
        }
        ids
    };
    for (n, field) in fields(bytes) {
        match (n, field) {
            (1, Field::Varint(v)) => node.id = v,
            (2, Field::Bytes(b)) => node.name = text(b),
            (3, Field::Varint(v)) => node.kind = v,
            (4, Field::Bytes(b)) => node.ctrl = ids(b),
            (5, Field::Bytes(b)) => node.data = ids(b),
            (6, Field::Varint(_)) | (8 | 9, Field::Bytes(_)) => {}
            (7, Field::Varint(v)) => node.duration = v,
            (10, Field::Bytes(b)) => {
                let (name, value) = attribute(b);
                assert!(node.attr.insert(name.clone(), value).is_none(), "{name} twice");
            }
            other => panic!("field {other:?} is none of Chakra's"),
        }
    }
    node
}

pub(crate) const COMPUTE: u64 = 4;
pub(crate) const SEND: u64 = 5;
pub(crate) const RECEIVE: u64 = 6;
pub(crate) const COLLECTIVE: u64 = 7;

/// The nodes of a file, after its metadata.
pub(crate) fn read(mut bytes: &[u8]) -> Vec<Node> {
    let metadata = fields(cut(&mut bytes));
    assert_eq!(metadata[0], (1, Field::Bytes(b"0.0.4")), "the schema's version comes first");
    let mut nodes = Vec::new();
    while !bytes.is_empty() {
        nodes.push(node(cut(&mut bytes)));
    }
    nodes
}
