//! Numbers as bytes of page-locked memory.

use crate::device::Fault;
use crate::device::cpu::arena::{ColumnRange, Read, Writes};
use fs_kernels::Write;
use parking_lot::RwLock;

/// A number as the device has it, which is little-endian like all hosts that have one.
pub(super) trait Plain: Copy + Default {
    const SIZE: usize;
    fn get(bytes: &[u8]) -> Self;
    fn put(self, bytes: &mut [u8]);
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Plain for $t {
            const SIZE: usize = size_of::<$t>();
            fn get(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(bytes);
                <$t>::from_le_bytes(own)
            }
            fn put(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
plain!(f32, i64, u32, u64, u8);

/// Packed values as bytes.
pub(super) fn bytes_of<E: Plain>(values: &[E]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * E::SIZE];
    for (value, bytes) in values.iter().zip(bytes.chunks_exact_mut(E::SIZE)) {
        value.put(bytes);
    }
    bytes
}

/// Bytes as values.
pub(super) fn values_of<E: Plain>(bytes: &[u8]) -> Vec<E> {
    bytes.chunks_exact(E::SIZE).map(E::get).collect()
}

/// Brain floats as the bytes of floats.
pub(super) fn widened(brain: &[u8]) -> Vec<u8> {
    brain.chunks_exact(2).flat_map(|x| [0, 0, x[0], x[1]]).collect()
}

/// Bytes of floats that are brain floats, as those.
pub(super) fn narrowed(floats: &[u8]) -> Vec<u8> {
    floats.chunks_exact(4).flat_map(|x| [x[2], x[3]]).collect()
}

/// Packed bytes become a range of columns.
pub(super) fn put<E: Plain>(to: &RwLock<Vec<E>>, shape: ColumnRange, bytes: &[u8]) -> Result<(), Fault> {
    let mut writes = Writes::default();
    writes.lock(to, shape, Write::Set, || "of a copy from the device".into())?;
    let (mut target, _) = writes.first()?;
    let width = target.cols() * E::SIZE;
    for row in 0..if width == 0 { 0 } else { target.rows() } {
        let own = &bytes[row * width..(row + 1) * width];
        for (value, bytes) in target.row_mut(row).iter_mut().zip(own.chunks_exact(E::SIZE)) {
            *value = E::get(bytes);
        }
    }
    Ok(())
}

/// A range of columns becomes packed bytes.
pub(super) fn take<E: Plain>(
    from: &RwLock<Vec<E>>,
    shape: ColumnRange,
    bytes: &mut Vec<u8>,
) -> Result<(), Fault> {
    let read = Read::lock(from, shape, || "of a copy to the device".into())?;
    let source = read.mat();
    for row in 0..source.rows() {
        for value in source.row(row) {
            let at = bytes.len();
            bytes.resize(at + E::SIZE, 0);
            value.put(&mut bytes[at..]);
        }
    }
    Ok(())
}
