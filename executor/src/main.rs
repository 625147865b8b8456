//! fsx
fn main() {}
