//! Bytes that ranks send each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a rank sends to others in a step, on average over ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Bytes.
    pub bytes: f64,
    /// Those of them that go to other nodes.
    pub between_nodes: f64,
}
