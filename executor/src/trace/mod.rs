//! The measured timeline of all ranks, for Perfetto and Holistic Trace Analysis (HTA).
//!
//! [`window`] chooses the steps, the session records them, [`Timeline`] puts the records in order, [`events`] turns
//! them into the trace's events, and [`shares`] computes from them what HTA computes from the file.

mod events;
mod shares;
mod target;
mod timeline;
pub mod window;

pub use shares::{Traced, TracedRank};
pub use target::Target;
pub use timeline::Timeline;
pub use window::Steps;
