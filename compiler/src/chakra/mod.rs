//! Schedules as MLCommons Chakra execution traces, which simulators such as ASTRA-sim replay.
//!
//! One file per rank: length-delimited protobuf messages, first the metadata, then the nodes of a number of batches
//! ([`unroll`]). Computation becomes a compute node; sums over ranks and all-gathers, which are uniform, become
//! collectives. Chakra has no uneven all-to-all, so these become messages between pairs of ranks ([`messages`]): in
//! round k rank r sends to r + k and receives from r - k, one message after the other, and both sides name the
//! operation's instance by the same tag. With one rank there is nobody to send to: transfers are local copies then,
//! which are compute nodes.
//!
//! `data_deps` are all that a node waits for: the values that it reads, the schedule's other order, and, of transfers,
//! the one before on the link ([`turns`]), the same on every rank. Simulators follow nothing else.

mod messages;
mod proto;
mod turns;
mod unroll;

use std::collections::BTreeMap;

use fs_schedule::{Element, Engine, Op, Operand, Place, Schedule, Symbol};
use prost::Message as _;

use crate::sched::evidence::Evidence;
use crate::sched::sizes::Sizes;
use crate::viz::timeline::{Timeline, VizError};
use messages::Transfer;
use proto::{Attribute, CollectiveType, GlobalMetadata, IoInfo, Node, NodeType, Value};
use turns::{Part, Turn};
use unroll::Instance;

/// Version of Chakra's schema that files name.
pub(crate) const SCHEMA: &str = "0.0.4";

/// The most nodes of all ranks together that are written: some gigabytes.
pub(crate) const MOST_NODES: u64 = 1 << 24;

/// The most turns of operations that are written out in memory.
const MOST_TURNS: u64 = 1 << 22;

/// Why there is no export.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ChakraError {
    /// Times and sizes are not known.
    #[error("the schedule has no prediction; compile it again with this version")]
    NoPrediction,
    /// Nothing would be written.
    #[error("--steps must be at least 1")]
    NoSteps,
    /// Times that are not those of the schedule's steps.
    #[error(transparent)]
    Times(#[from] VizError),
    /// More than anything reads.
    #[error(
        "{steps} steps on {ranks} ranks are {nodes} nodes, too many for a trace; export fewer steps, or compile for fewer ranks"
    )]
    Large {
        /// Batches asked for.
        steps: u64,
        /// Ranks.
        ranks: u32,
        /// Nodes of all ranks.
        nodes: u64,
    },
}

/// An export in the making: everything but the files.
#[derive(Debug)]
pub struct Export<'a> {
    s: &'a Schedule,
    /// Nanoseconds of a step.
    step: u64,
    steps: u64,
    sizes: Sizes,
    instances: Vec<Instance>,
    /// Parts of each operation.
    parts: Vec<Vec<Part>>,
    /// Parts of all instances, each after all that it waits for.
    turns: Vec<Turn>,
    transfers: Vec<Option<Transfer>>,
}

/// Last nodes of an instance.
#[derive(Debug, Clone, Copy, Default)]
struct Nodes {
    /// The last one that holds results: the last received message, or the only node.
    result: Option<u64>,
    /// The last sent message.
    sent: Option<u64>,
}

impl Nodes {
    fn all(self) -> impl Iterator<Item = u64> {
        [self.result, self.sent].into_iter().flatten()
    }
}

/// Nanoseconds by which the durations of an engine's nodes are less than planned so far, because files have whole
/// microseconds: what follows makes up for it, so that ends do not drift.
#[derive(Debug, Default)]
struct Carry(BTreeMap<(Engine, bool), i64>);

impl Carry {
    /// Whole microseconds of a node, at least 1: readers take 0 for unknown. No node makes up for more than half of
    /// itself.
    fn micros(&mut self, engine: (Engine, bool), nanos: u64) -> u64 {
        let carry = self.0.entry(engine).or_insert(0);
        let nanos = nanos as i64;
        let micros = ((nanos + (*carry).max(-nanos / 2) + 500).div_euclid(1000)).max(1);
        *carry += nanos - 1000 * micros;
        micros as u64
    }
}

impl<'a> Export<'a> {
    /// Of `steps` batches.
    pub fn new(s: &'a Schedule, steps: u64) -> Result<Self, ChakraError> {
        let p = s.prediction.as_ref().ok_or(ChakraError::NoPrediction)?;
        if steps == 0 {
            return Err(ChakraError::NoSteps);
        }
        let sizes =
            p.sizes.iter().filter_map(|(symbol, value)| Some((symbol.parse::<Symbol>().ok()?, *value)));
        let sizes = Sizes::given(sizes, s.settings.microbatches);
        // How rows are spread over owners is no size, and follows from the workload.
        let spread = Sizes::mean(s, Evidence::default());
        let transfers: Vec<_> = s.train.ops.iter().map(|op| messages::of(s, &sizes, &spread, op)).collect();
        let peers = u64::from(s.ranks.saturating_sub(1));
        let of = |t: &Option<Transfer>| match t {
            Some(Transfer::Pairs(_)) => (2 * peers).max(1),
            _ => 1,
        };
        let parts = if s.train.ops.is_empty() { Vec::new() } else { turns::parts(s, &Timeline::of(s)?) };
        let per_batch: u64 = transfers.iter().zip(&parts).map(|(t, parts)| of(t) * parts.len() as u64).sum();
        let nodes = per_batch.saturating_mul(steps).saturating_mul(s.ranks.into());
        let turns = unroll::extent(s, steps).0.saturating_mul(s.train.ops.len() as u64);
        if nodes > MOST_NODES || turns > MOST_TURNS {
            return Err(ChakraError::Large { steps, ranks: s.ranks, nodes });
        }
        let step = (p.step * 1e9).round().max(0.0) as u64;
        let instances = unroll::unroll(s, steps);
        let linked: Vec<bool> = transfers.iter().map(|t| t.is_some() && s.ranks > 1).collect();
        let turns = turns::turns(&instances, &parts, &linked, step);
        Ok(Self { s, step, steps, sizes, instances, parts, turns, transfers })
    }

    /// The file of a rank.
    pub fn file(&self, rank: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.metadata(rank).encode_length_delimited_to_vec());
        for node in self.nodes(rank) {
            out.extend(node.encode_length_delimited_to_vec());
        }
        out
    }

    fn metadata(&self, rank: u32) -> GlobalMetadata {
        let text = |name: &str, value: &str| Attribute::new(name, Value::Text(value.into()));
        let number = |name: &str, value: u64| Attribute::new(name, Value::Uint64(value));
        let strategy = format!("{:?}", self.s.strategy).to_lowercase();
        GlobalMetadata {
            version: SCHEMA.into(),
            attr: vec![
                text("model", &self.s.model),
                text("strategy", &strategy),
                text("digest", &self.s.digest),
                text("cluster", self.s.prediction.as_ref().map_or("", |p| &p.cluster)),
                number("ranks", self.s.ranks.into()),
                number("rank", rank.into()),
                number("steps", self.steps),
            ],
        }
    }

    /// The nodes of a rank, each after all that it waits for.
    pub(crate) fn nodes(&self, rank: u32) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        let mut known = vec![Nodes::default(); self.instances.len()];
        let mut carry = Carry::default();
        // The last on the link.
        let mut link = Nodes::default();
        for turn in &self.turns {
            let instance = &self.instances[turn.instance as usize];
            let mut waits: Vec<u64> = known[turn.instance as usize].all().collect();
            if turn.part == 0 {
                waits.extend(instance.data.iter().filter_map(|i| known[*i as usize].result));
                waits.extend(instance.order.iter().flat_map(|i| known[*i as usize].all()));
            }
            if turn.linked {
                waits.extend(link.all());
            }
            waits.sort_unstable();
            waits.dedup();
            let made = self.place(rank, *turn, waits, &mut carry, &mut nodes);
            if turn.linked && made.all().next().is_some() {
                link = made;
            }
            let last = &mut known[turn.instance as usize];
            *last = Nodes { result: made.result.or(last.result), sent: made.sent.or(last.sent) };
        }
        nodes
    }

    /// Puts the nodes of a part into the list.
    fn place(
        &self,
        rank: u32,
        turn: Turn,
        waits: Vec<u64>,
        carry: &mut Carry,
        nodes: &mut Vec<Node>,
    ) -> Nodes {
        let instance = &self.instances[turn.instance as usize];
        let op = &self.s.train.ops[instance.op as usize];
        let parts = &self.parts[instance.op as usize];
        let part = parts[turn.part as usize];
        // A node has one duration, so the last one lasts until others may start.
        let last = turn.part as usize + 1 == parts.len();
        let time = part.time + if last { op.lag } else { 0 };
        // What of the whole is moved before this part and with it.
        let moved = |bytes: u64| {
            let until = |parts: &[Part]| parts.iter().map(|p| u128::from(p.time)).sum::<u128>();
            let all = until(parts).max(1);
            let share = |n: usize| (u128::from(bytes) * until(&parts[..n]) / all) as u64;
            let (before, after) = (share(turn.part as usize), share(turn.part as usize + 1));
            // A part is there even if it has less than a byte.
            (after - before).max(1)
        };
        let node = self.node(instance, (part, time), waits);
        let transfer = self.transfers[instance.op as usize].as_ref().filter(|_| turn.linked);
        let mut add = |mut node: Node| {
            let id = nodes.len() as u64;
            node.id = id;
            nodes.push(node);
            id
        };
        let mut collective = |kind: CollectiveType, bytes: u64| {
            let attr = vec![
                Attribute::new("is_cpu_op", Value::Bool(false)),
                Attribute::new("comm_type", Value::Int64(kind as i64)),
                Attribute::new("comm_size", Value::Int64(moved(bytes) as i64)),
                Attribute::new("comm_priority", Value::Int32(op.priority.max(0))),
            ];
            Node {
                kind: NodeType::Collective.into(),
                duration_micros: carry.micros((op.engine, false), time),
                attr: [attr, node.attr.clone()].concat(),
                ..node.clone()
            }
        };
        match transfer {
            None => {
                let duration_micros = carry.micros((op.engine, false), time);
                let id = add(Node { duration_micros, ..self.compute(op, node) });
                Nodes { result: Some(id), sent: None }
            }
            Some(Transfer::AllReduce(bytes)) => {
                let id = add(collective(CollectiveType::AllReduce, *bytes));
                Nodes { result: Some(id), sent: None }
            }
            Some(Transfer::AllGather(bytes)) => {
                let id = add(collective(CollectiveType::AllGather, *bytes));
                Nodes { result: Some(id), sent: None }
            }
            Some(Transfer::Pairs(pairs)) => {
                let ranks = self.s.ranks;
                let to: Vec<u32> = (1..ranks).map(|k| (rank + k) % ranks).collect();
                let from: Vec<u32> = (1..ranks).map(|k| (rank + ranks - k) % ranks).collect();
                let sides = [
                    (NodeType::Send, to.iter().map(|to| (rank, *to)).collect::<Vec<_>>()),
                    (NodeType::Receive, from.iter().map(|from| (*from, rank)).collect()),
                ];
                let mut ends = [None, None];
                for (end, (kind, messages)) in ends.iter_mut().zip(sides) {
                    let messages: Vec<(u32, u32, u64)> = messages
                        .into_iter()
                        .map(|(a, b)| (a, b, pairs.bytes(a, b)))
                        .filter(|m| m.2 > 0)
                        .map(|(a, b, bytes)| (a, b, moved(bytes)))
                        .collect();
                    let all: u64 = messages.iter().map(|m| m.2).sum();
                    let mut before: u64 = 0;
                    for (a, b, bytes) in messages {
                        let mut message = node.clone();
                        message.kind = kind.into();
                        message.name = if kind == NodeType::Send {
                            format!("{} to {b}", node.name)
                        } else {
                            format!("{} from {a}", node.name)
                        };
                        let until = |sent: u64| (time as f64 * sent as f64 / all as f64) as u64;
                        let start = self.start(instance, part) + until(before);
                        let own = until(before + bytes) - until(before);
                        message.start_time_micros = micros(start);
                        message.duration_micros = carry.micros((op.engine, kind == NodeType::Receive), own);
                        // The first waits for what all of them wait for, the others for the message before.
                        if let Some(last) = *end {
                            message.data_deps = vec![last];
                        }
                        let attr = vec![
                            Attribute::new("is_cpu_op", Value::Bool(false)),
                            Attribute::new("comm_src", Value::Int32(a as i32)),
                            Attribute::new("comm_dst", Value::Int32(b as i32)),
                            Attribute::new("comm_tag", Value::Int32(turn.tag as i32)),
                            Attribute::new("comm_size", Value::Int64(bytes as i64)),
                            Attribute::new("comm_priority", Value::Int32(op.priority.max(0))),
                        ];
                        message.attr = [attr, node.attr.clone()].concat();
                        *end = Some(add(message));
                        before += bytes;
                    }
                }
                if ends == [None, None] {
                    // Nobody talks to this rank, but what waits for the operation still does.
                    let id = add(Node { duration_micros: 1, ..self.compute(op, node) });
                    return Nodes { result: Some(id), sent: None };
                }
                Nodes { result: ends[1], sent: ends[0] }
            }
        }
    }

    fn start(&self, instance: &Instance, part: Part) -> u64 {
        instance.step * self.step + part.start
    }

    /// What all nodes of a part have.
    fn node(&self, instance: &Instance, (part, time): (Part, u64), data_deps: Vec<u64>) -> Node {
        let op = &self.s.train.ops[instance.op as usize];
        Node {
            id: 0,
            name: format!("{}@{}", op.name, instance.batch),
            kind: NodeType::Invalid.into(),
            ctrl_deps: Vec::new(),
            data_deps,
            start_time_micros: micros(self.start(instance, part)),
            duration_micros: 0,
            inputs: Some(self.tensors(op, &op.reads)),
            outputs: Some(self.tensors(op, &op.writes)),
            attr: vec![
                Attribute::new("engine", Value::Text(op.engine.name().into())),
                Attribute::new("batch", Value::Uint64(instance.batch)),
                Attribute::new("op", Value::Text(op.name.clone())),
                Attribute::new("duration_nanos", Value::Uint64(time)),
            ],
        }
    }

    fn compute(&self, op: &Op, node: Node) -> Node {
        let size = |poly: &fs_schedule::Poly| poly.eval(|symbol| self.sizes.of(op, symbol)).max(0.0);
        let attr = vec![
            Attribute::new("is_cpu_op", Value::Bool(op.engine == Engine::Host)),
            // A roofline divides by both: what only moves bytes has one operation, and what only counts moves one.
            Attribute::new("num_ops", Value::Int64((size(&op.cost.flops).round() as i64).max(1))),
            Attribute::new("tensor_size", Value::Uint64((size(&op.cost.bytes).round() as u64).max(1))),
        ];
        Node { kind: NodeType::Compute.into(), attr: [attr, node.attr.clone()].concat(), ..node }
    }

    /// Operands as lists of names, shapes at the expected sizes, and types.
    fn tensors(&self, op: &Op, operands: &[Operand]) -> IoInfo {
        let (mut values, mut shapes, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for o in operands {
            let parameter = |p: u32| s_parameter(self.s, p).map(|p| (f64::from(p.0), p.1, "Tensor(float)"));
            let known = match o.place {
                Place::Buffer(b) => self.s.train.buffers.get(b as usize).map(|b| {
                    // A block's power of two is a byte like its numbers.
                    let all = if b.element == Element::Mxint8 {
                        b.element.row_bytes(b.columns) as u32
                    } else {
                        b.columns
                    };
                    let columns = o.columns.map_or(all, |(a, z)| z - a);
                    (
                        self.sizes.extent(b.rows, b.site, b.microbatch.or(op.microbatch)),
                        columns,
                        element(b.element),
                    )
                }),
                Place::Parameter(p) | Place::Gradient(p) => parameter(p),
                Place::Table(_) | Place::Input(_) | Place::Lengths(_) => None,
            };
            let Some((rows, columns, kind)) = known else { continue };
            values.push(format!("\"{o}\""));
            shapes.push(format!("[{}, {columns}]", rows.round() as u64));
            types.push(format!("\"{kind}\""));
        }
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        IoInfo { values: list(values), shapes: list(shapes), types: list(types) }
    }
}

fn s_parameter(s: &Schedule, p: u32) -> Option<(u32, u32)> {
    s.parameters.get(p as usize).map(|p| (p.rows, p.columns))
}

/// PyTorch's names of element types, as Chakra traces have them.
fn element(element: Element) -> &'static str {
    match element {
        Element::Real => "Tensor(float)",
        Element::Bf16 => "Tensor(c10::BFloat16)",
        Element::Mxint8 => "Tensor(signed char)",
        Element::Id | Element::Count => "Tensor(long int)",
        Element::Index => "Tensor(int)",
        Element::Byte => "Tensor(unsigned char)",
    }
}

/// Whole microseconds of nanoseconds, rounded.
fn micros(ns: u64) -> u64 {
    ns.saturating_add(500) / 1000
}
