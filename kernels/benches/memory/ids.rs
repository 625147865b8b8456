//! Unique ids and overlap.
/// Prints the table.
pub fn table() {}
