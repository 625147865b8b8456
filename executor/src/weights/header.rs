//! The head of a safetensors file.

use std::collections::HashMap;
use std::io;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::layout::{About, KEY};

/// A tensor to come: name, type and shape.
pub(super) type Planned = (String, Dtype, Vec<usize>);

/// Bytes of a tensor.
pub(super) fn bytes((_, dtype, shape): &Planned) -> u64 {
    (shape.iter().product::<usize>() * dtype.bitsize() / 8) as u64
}

/// What precedes the bytes of these tensors, which follow in their order: the header's length and the header, so long that they
/// begin where readers may use them in place.
pub(super) fn head(planned: &[Planned], about: Option<&About>) -> io::Result<Vec<u8>> {
    let mut at = 0;
    let infos = planned.iter().map(|tensor| {
        let (name, dtype, shape) = tensor;
        let from = at;
        at += bytes(tensor) as usize;
        (name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (from, at) })
    });
    // One text, because the crate writes several in any order.
    let about =
        about.map(|about| serde_json::to_string(about).map(|text| HashMap::from([(KEY.to_owned(), text)])));
    let header = Metadata::new(about.transpose()?, infos.collect());
    let mut header = serde_json::to_vec(&header.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok([&(header.len() as u64).to_le_bytes(), &header[..]].concat())
}
