//! What the compiler emits for models, random ones and examples: it verifies, it means what the model says in every order, it costs what
//! it was weighed by, and what is told of how it was found holds.
//!
//! One program, whose tests run beside each other: most are one property that takes half a minute.

mod interpreter;
mod properties;
mod relays;
mod together;
mod told;
mod weighed;
mod wide;
