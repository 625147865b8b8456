//! Terms of the algebra, its rules, and what ways of distributing tables cost.

mod costs;
mod distribution;
mod rules;
mod terms;
mod together;
