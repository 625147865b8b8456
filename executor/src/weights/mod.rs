//! Models in safetensors files: values, states of optimizers, and which rows ids have.
//!
//! One file, written whole or not at all ([`save`]) and read with checks ([`load`]); names and shapes stand in
//! [`layout`], the format in docs/weights.md. Reading and writing go in pieces of rows, so that a large table needs no
//! second copy in memory, and any sharding starts from any other's.

pub(crate) mod checkpoint;
mod convert;
mod differ;
mod header;
pub(crate) mod layout;
mod load;
mod ordered;
mod origin;
pub(crate) mod save;
mod taken;

pub use checkpoint::{
    Best, Listed, checkpoint_around, checkpoints, has_checkpoint, lock_file, wait_for_writer,
};
pub use convert::{Converted, convert};
pub use differ::{Difference, Differences, differences};
pub use layout::check;
pub(crate) use load::{Loading, seed};
pub use taken::{Ids, Taken};
