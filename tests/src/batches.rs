//! Files of batches for models that read them.

use std::fs;
use std::path::Path;

use fs_workload::random::{RandomKey, uniform_index};
use safetensors::tensor::{Dtype, TensorView};

/// Ids of so many rows, drawn by a seed.
pub fn ids(n: usize, rows: u64, seed: u64) -> Vec<i64> {
    let key = RandomKey { seed, stream: 1, step: 0 };
    (0..n as u64).map(|i| uniform_index(key, i, rows) as i64).collect()
}

/// A file of one batch: samples with so many of the ids each, and labels of zero. A run that takes more steps begins again, so all of them
/// are alike.
///
/// # Panics
/// If it cannot be written.
pub fn one_batch(file: &Path, lengths: &[i32], ids: &[i64]) {
    let of_ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let labels = vec![0; 4 * lengths.len()];
    let bytes: Vec<u8> = lengths.iter().flat_map(|n| n.to_le_bytes()).collect();
    let view = |of, shape, data| TensorView::new(of, shape, data).expect("a tensor");
    let tensors = [
        ("lengths", view(Dtype::I32, vec![1, 1, lengths.len()], &bytes)),
        ("ids", view(Dtype::I64, vec![1, ids.len()], &of_ids)),
        ("labels", view(Dtype::F32, vec![lengths.len()], &labels)),
    ];
    fs::write(file, safetensors::serialize(tensors, None).expect("serialised")).expect("written");
}
