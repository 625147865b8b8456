//! What is asked of actions everywhere: their names, which of them are transfers, which exchanges they concern.

use crate::op::Action;

impl Action {
    /// Its name in the schedule's text.
    pub fn name(&self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            Ok(serde_json::Value::Object(fields)) => fields.keys().next().cloned().unwrap_or_default(),
            _ => String::new(),
        }
    }

    /// Whether it moves data between ranks and computes nothing but sums of it.
    pub fn is_transfer(&self) -> bool {
        matches!(
            self,
            Self::AllToAllIds { .. }
                | Self::AllGatherIds { .. }
                | Self::AllToAllClasses { .. }
                | Self::AllToAllRows { .. }
                | Self::AllToAllGrads { .. }
                | Self::AllGatherGrads { .. }
                | Self::AllReduce
        )
    }

    /// Rounds in which a transfer goes to and fro: sums are sent in a second one. Each uses a channel.
    pub fn rounds(&self) -> u32 {
        if *self == Self::AllReduce { 2 } else { 1 }
    }

    /// Exchanges that it concerns.
    pub fn exchanges(&self) -> &[u32] {
        match self {
            Self::Unique { exchange }
            | Self::Partition { exchange, .. }
            | Self::Positions { exchange, .. }
            | Self::Gather { exchange, .. }
            | Self::Merge { exchange, .. }
            | Self::Split { exchange, .. }
            | Self::Apply { exchange, .. } => std::slice::from_ref(exchange),
            Self::AllToAllIds { exchanges }
            | Self::AllGatherIds { exchanges }
            | Self::AllToAllClasses { exchanges, .. }
            | Self::AllToAllRows { exchanges, .. }
            | Self::AllToAllGrads { exchanges, .. }
            | Self::AllGatherGrads { exchanges, .. } => exchanges,
            _ => &[],
        }
    }
}
