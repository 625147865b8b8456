pub mod bounds;
pub mod graph;
pub mod latency;
pub mod play;
pub mod rows;
pub mod sizes;
