//! What stands beside the model: training settings, the workload and clusters.

pub use fs_workload::{IdDistribution, LabelDistribution, LengthDistribution};

use super::{DType, DenseOptimizer};
use crate::source::Span;

/// The `train` block with defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Train {
    /// Samples of a global batch (default 32).
    pub batch: u32,
    /// How long to train.
    pub duration: Duration,
    /// Default Adam with PyTorch's settings, lr 1e-3.
    pub optimizer: DenseOptimizer,
    /// Sample balancing (default: the compiler chooses).
    pub balance: Balancing,
    /// Batches of lookahead (default 1).
    pub lookahead: u32,
    /// Microbatches per batch (default 1).
    pub microbatches: Microbatches,
    /// Send each row once per rank (default true) or once per occurrence.
    pub unique_rows: bool,
    /// Type of activations, and wire type of each collective (default f32 everywhere).
    pub precision: Precision,
    /// Seed of everything random (default 0).
    pub seed: u64,
    /// Where each setting was written, for errors found later: (setting, span).
    pub spans: Vec<(String, Span)>,
}

/// How long to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duration {
    /// Global batches.
    Steps(u64),
    /// Passes over the data.
    Epochs(u32),
}

/// Parts of a batch. Gradients are summed in each and then over all, so their number decides how sums round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Microbatches {
    /// So many.
    Fixed(u32),
    /// As many as a step is predicted to be shortest with: the model trains as well however its sums round.
    Auto,
}

impl Microbatches {
    /// Their number, if the model says it.
    pub fn fixed(self) -> Option<u32> {
        match self {
            Self::Fixed(n) => Some(n),
            Self::Auto => None,
        }
    }
}

/// Whether samples are given to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Balancing {
    /// Where lengths are known to differ and it is expected to pay.
    #[default]
    Auto,
    /// They stay where they are read.
    Off,
    /// They go to the ranks that have least to do.
    On(Balance),
}

/// How samples are given to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Balance {
    /// Cost of a sample of length L: `c0 + c1 L + c2 L^2`. `None`: derived from the model's flops.
    pub cost: Option<[f64; 3]>,
    /// What the samples of a rank may take up together.
    pub limit: Option<Limit>,
    /// Every rank works on as many samples as it reads.
    pub equal_counts: bool,
    /// Costs follow measured times.
    pub fit: bool,
}

/// What a rank can hold of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Ids of all sequences.
    Tokens(u64),
    /// Bytes of ids, features and labels.
    Bytes(u64),
}

/// What the dense graph computes in, and the wire types of the collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// Activations and their gradients: f32 or bf16.
    pub compute: DType,
    /// Rows back from their owners.
    pub output_dist: DType,
    /// Row gradients.
    pub gradient_dist: DType,
    /// Dense gradients.
    pub all_reduce: DType,
}

/// The `workload` block.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Name given in the file.
    pub name: String,
    /// The source of samples.
    pub source: DataSource,
    /// How to evaluate after training.
    pub evaluate: Option<Evaluate>,
    /// The block.
    pub span: Span,
}

/// Where samples come from.
#[derive(Debug, Clone, PartialEq)]
pub enum DataSource {
    /// A file of interactions, one a line, with a header.
    Csv {
        /// As written; relative to the `.fs` file that names it.
        path: String,
        /// Columns by role.
        user: String,
        /// Ids are numbered by first appearance in the file.
        item: String,
        /// Orders a user's interactions (ties by position in the file); file order without it.
        time: Option<String>,
        /// Must be a finite number on every line, if given.
        rating: Option<String>,
        /// Users with fewer interactions are left out; without it they are an error.
        min_interactions: Option<u32>,
    },
    /// Batches in the layout of the parity fixtures: lengths, ids, labels (and dense).
    Safetensors {
        /// As written; relative to the `.fs` file that names it.
        path: String,
    },
    /// Drawn from distributions.
    Generate {
        /// Lengths of each sequence group.
        lengths: LengthDistribution,
        /// Ids of every sequence, over a permuted table.
        ids: IdDistribution,
        /// Labels.
        labels: LabelDistribution,
        /// Number of distinct samples after which the data repeats; `None`: never (a step is an epoch).
        samples: Option<u64>,
    },
}

/// Evaluation after training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evaluate {
    /// A user's last interaction is the target, the rest the history.
    LeaveLastOut,
}

/// A described machine. Everything in SI units: bytes, bytes per second, seconds, operations per second.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Name.
    pub name: String,
    /// Machines.
    pub nodes: u32,
    /// Ranks of a node.
    pub gpus_per_node: u32,
    /// Between GPUs of a node, per GPU and direction.
    pub intra: Link,
    /// Between nodes, per GPU and direction.
    pub inter: Link,
    /// Between a GPU and its host.
    pub host: Link,
    /// Seconds until the host has learnt a size that a device found, beside the operation that found it.
    pub host_sync: f64,
    /// Copy engines of a GPU.
    pub copy_engines: u32,
    /// Network interfaces per GPU.
    pub nics: u32,
    /// Streaming multiprocessors of a GPU (0: a CPU).
    pub sms: u32,
    /// SMs that a collective kernel takes.
    pub comm_sms: u32,
    /// Peak rates by type, in floating-point operations per second.
    pub flops: Vec<(DType, f64)>,
    /// Device memory in bytes.
    pub memory: u64,
    /// Device memory bandwidth in bytes per second.
    pub memory_bandwidth: f64,
    /// The block; `None` for presets.
    pub span: Option<Span>,
}

/// A link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds.
    pub latency: f64,
}
