//! The communication algebra: equality saturation over the terms of a table.
//!
//! A table's terms ([`crate::distribution`]) are put into an e-graph ([`lang`], [`convert`]); rules ([`rules`]) add what means
//! the same, until nothing is new; types and sizes ([`analysis`], [`size`]) say of every class what it is and how many there are of
//! it. What is extracted ([`extract`]) are ways of distributing the table that no other beats in bytes, in bytes that must hurry, in
//! hops and in memory at once.

pub mod analysis;
pub mod convert;
pub mod cost;
pub mod derive;
pub mod explanation;
pub mod extract;
pub mod lang;
pub mod rules;
pub mod size;
