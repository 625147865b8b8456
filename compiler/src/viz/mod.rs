//! Pictures of a schedule.
//!
//! All of them draw one [`Timeline`]: the steady state of a schedule with a lane per engine, what every operation
//! waits for, idle times with their causes, the longest cycle and memory over a step. [`palette`] has the colours,
//! patterns and letters of the kinds of operation, the same in every output.

mod cells;
pub mod dot;
pub mod html;
pub mod measured;
mod memory;
pub mod palette;
mod ranks;
pub mod svg;
mod sweep;
pub mod text;
pub mod timeline;
mod views;

pub use palette::Purpose;
pub use timeline::{Timeline, VizError};
