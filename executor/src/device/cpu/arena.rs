//! Storage of a program's buffers, and views of them.
//!
//! Buffers of one element type with the same slot share one growable vector. Each vector has a lock that is only
//! tried: an operation whose operands overlap, or two operations that should have waited for each other, are an error
//! and never a race. An operation may write several column ranges of one buffer at once, and operations of different
//! engines may use different columns of one buffer: only for those a lock is waited for.

use std::time::Duration;

use fs_kernels::allocator::tolerant;
use fs_kernels::{Mat, MatMut, Write};
use fs_schedule::{Buffer, Element, Program};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use super::Fault;

/// How long an operation waits for a buffer of which another one uses other columns.
const PATIENCE: Duration = Duration::from_secs(10);

/// Vectors behind slots of one element type.
pub(crate) type Pool<E> = Vec<RwLock<Vec<E>>>;

/// The vectors of one element type. A slot whose buffers have several copies is as many vectors.
#[derive(Debug)]
pub struct Slots<E> {
    vectors: Pool<E>,
    /// Where the vectors of each slot start.
    starts: Vec<usize>,
}

impl<E> Slots<E> {
    fn new<'p>(programs: impl Iterator<Item = &'p Program>, element: Element) -> Self {
        let mut copies: Vec<usize> = Vec::new();
        for buffer in programs.flat_map(|p| &p.buffers).filter(|b| b.element == element) {
            let slot = buffer.slot as usize;
            copies.resize(copies.len().max(slot + 1), 1);
            copies[slot] = copies[slot].max(buffer.copies as usize);
        }
        let mut starts = Vec::with_capacity(copies.len());
        let mut n = 0;
        for copies in copies {
            starts.push(n);
            n += copies;
        }
        Self { vectors: (0..n).map(|_| RwLock::new(Vec::new())).collect(), starts }
    }

    /// The vector of a buffer's copy for a batch.
    pub fn get(&self, buffer: &Buffer, batch: u64) -> Option<&RwLock<Vec<E>>> {
        let start = *self.starts.get(buffer.slot as usize)?;
        self.vectors.get(start + (batch % u64::from(buffer.copies.max(1))) as usize)
    }

    fn bytes(&self) -> usize {
        self.vectors.iter().map(|v| v.read().capacity() * size_of::<E>()).sum()
    }
}

/// All buffers of a rank.
#[derive(Debug)]
pub struct Arena<T> {
    /// Intermediate values.
    pub reals: Slots<T>,
    /// Those that are brain floats: numbers of the same type, rounded when they have been written.
    pub bf16s: Slots<T>,
    /// Those that are rows on their way: the same, rounded by block.
    pub mxint8s: Slots<T>,
    /// Row ids.
    pub ids: Slots<i64>,
    /// Positions.
    pub indices: Slots<u32>,
    /// Counts per rank.
    pub counts: Slots<u64>,
    /// Classes and uses.
    pub bytes: Slots<u8>,
}

impl<T> Arena<T> {
    /// Empty storage for several programs that never run at the same time.
    pub(crate) fn new<'p>(programs: impl Iterator<Item = &'p Program> + Clone) -> Self {
        Self {
            reals: Slots::new(programs.clone(), Element::Real),
            bf16s: Slots::new(programs.clone(), Element::Bf16),
            mxint8s: Slots::new(programs.clone(), Element::Mxint8),
            ids: Slots::new(programs.clone(), Element::Id),
            indices: Slots::new(programs.clone(), Element::Index),
            counts: Slots::new(programs.clone(), Element::Count),
            bytes: Slots::new(programs, Element::Byte),
        }
    }

    /// The vectors of floats of a precision; none of what is no floats.
    pub fn floats(&self, element: Element) -> Option<&Slots<T>> {
        match element {
            Element::Real => Some(&self.reals),
            Element::Bf16 => Some(&self.bf16s),
            Element::Mxint8 => Some(&self.mxint8s),
            Element::Id | Element::Index | Element::Count | Element::Byte => None,
        }
    }

    /// Bytes held.
    pub(crate) fn held(&self) -> u64 {
        let parts = [
            self.reals.bytes(),
            self.bf16s.bytes(),
            self.mxint8s.bytes(),
            self.ids.bytes(),
            self.indices.bytes(),
            self.counts.bytes(),
            self.bytes.bytes(),
        ];
        parts.iter().sum::<usize>() as u64
    }
}

/// ColumnRange of an operand: a range of columns of a row-major matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnRange {
    /// Rows.
    pub rows: usize,
    /// Columns of the whole matrix.
    pub stride: usize,
    /// First column.
    pub start: usize,
    /// One past the last column.
    pub end: usize,
}

impl ColumnRange {
    /// All columns.
    pub fn whole(rows: usize, columns: usize) -> Self {
        Self { rows, stride: columns, start: 0, end: columns }
    }

    /// Columns in the range.
    pub(crate) fn columns(self) -> usize {
        self.end - self.start
    }

    fn is_whole(self) -> bool {
        self.start == 0 && self.end == self.stride
    }

    fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn elements(self) -> usize {
        self.rows * self.stride
    }
}

/// A read operand.
#[derive(Debug)]
pub struct Read<'a, E> {
    guard: RwLockReadGuard<'a, Vec<E>>,
    shape: ColumnRange,
}

impl<'a, E> Read<'a, E> {
    /// Locks a vector for reading; `name` is for messages.
    pub fn lock(
        lock: &'a RwLock<Vec<E>>,
        shape: ColumnRange,
        name: impl Fn() -> String,
    ) -> Result<Self, Fault> {
        let patience = if shape.is_whole() { Duration::ZERO } else { PATIENCE };
        let guard = lock.try_read().or_else(|| lock.try_read_for(patience));
        let guard = guard.ok_or_else(|| Fault::Conflict(name()))?;
        if guard.len() < shape.elements() {
            return Err(Fault::Unwritten(name()));
        }
        Ok(Self { guard, shape })
    }

    /// Its shape.
    pub(crate) fn shape(&self) -> ColumnRange {
        self.shape
    }

    /// As a matrix.
    pub fn mat(&self) -> Mat<'_, E> {
        let ColumnRange { rows, stride, start, end } = self.shape;
        Mat::new(&self.guard[aligned(&self.guard, rows * stride)], rows, stride).columns(start..end)
    }

    /// All elements; only for operands with all columns.
    pub fn slice(&self) -> Result<&[E], Fault> {
        if self.shape.is_whole() {
            Ok(&self.guard[aligned(&self.guard, self.shape.elements())])
        } else {
            Err(Fault::NotWhole(format!("[{}:{}]", self.shape.start, self.shape.end)))
        }
    }
}

/// A written operand with all columns of its buffer.
#[derive(Debug)]
pub(crate) struct Whole<'a, E> {
    guard: RwLockWriteGuard<'a, Vec<E>>,
    len: usize,
}

impl<'a, E: Copy + Default> Whole<'a, E> {
    /// Locks a vector for writing and makes it long enough.
    pub(crate) fn lock(
        lock: &'a RwLock<Vec<E>>,
        shape: ColumnRange,
        name: impl Fn() -> String,
    ) -> Result<Self, Fault> {
        if !shape.is_whole() {
            return Err(Fault::NotWhole(name()));
        }
        let mut guard = lock.try_write().ok_or_else(|| Fault::Conflict(name()))?;
        grow(&mut guard, shape.elements(), name)?;
        Ok(Self { guard, len: shape.elements() })
    }

    /// Its elements, with unspecified contents.
    pub(crate) fn slice(&mut self) -> &mut [E] {
        let range = aligned(&self.guard, self.len);
        &mut self.guard[range]
    }
}

/// Elements in a cache line.
const fn line<E>() -> usize {
    64 / size_of::<E>()
}

/// Makes a vector at least `len` long, with room to start on a cache line and without doubling large ones.
/// Vectors that are long enough, as those of parameters are, stay as they are.
fn grow<E: Copy + Default>(vector: &mut Vec<E>, len: usize, name: impl Fn() -> String) -> Result<(), Fault> {
    if vector.len() < len {
        let padded = len + line::<E>();
        // Contents are unspecified: no need to carry old ones over.
        if vector.capacity() < padded {
            *vector = Vec::new();
            let room = padded + len / 16;
            let bytes = (room as u64).saturating_mul(size_of::<E>() as u64);
            tolerant(|| vector.try_reserve_exact(room))
                .map_err(|_| Fault::NoMemory { operand: name(), bytes })?;
        }
        vector.resize(padded, E::default());
    }
    Ok(())
}

/// Where `len` elements lie: from the first cache line on, if there is room for that. Writing and reading find the
/// same place, since a vector never moves between them. Vector instructions that straddle lines cost double.
fn aligned<E>(vector: &[E], len: usize) -> std::ops::Range<usize> {
    let offset =
        if vector.len() >= len + line::<E>() { vector.as_ptr().align_offset(64).min(line::<E>()) } else { 0 };
    offset..offset + len
}

/// A vector, the right to write it, and its shape.
type Locked<'a, E> = (&'a RwLock<Vec<E>>, RwLockWriteGuard<'a, Vec<E>>, ColumnRange);

/// Lists of operands, which rarely are longer.
pub(crate) type Few<X> = SmallVec<[X; 8]>;

/// Written operands, several of which may be columns of one buffer.
#[derive(Debug)]
pub struct Writes<'a, E> {
    guards: Few<Locked<'a, E>>,
    /// Guard and shape of each operand.
    parts: Few<(usize, ColumnRange, Write)>,
}

impl<E> Default for Writes<'_, E> {
    fn default() -> Self {
        Self { guards: SmallVec::new(), parts: SmallVec::new() }
    }
}

impl<'a, E: Copy + Default> Writes<'a, E> {
    /// Adds an operand.
    pub fn lock(
        &mut self,
        lock: &'a RwLock<Vec<E>>,
        shape: ColumnRange,
        mode: Write,
        name: impl Fn() -> String,
    ) -> Result<(), Fault> {
        let index = if let Some(index) = self.guards.iter().position(|g| std::ptr::eq(g.0, lock)) {
            let overlap = self.parts.iter().any(|(i, s, _)| *i == index && s.overlaps(shape));
            if overlap || self.guards[index].2.elements() != shape.elements() {
                return Err(Fault::Conflict(name()));
            }
            index
        } else {
            let patience = if shape.is_whole() { Duration::ZERO } else { PATIENCE };
            let guard = lock.try_write().or_else(|| lock.try_write_for(patience));
            let mut guard = guard.ok_or_else(|| Fault::Conflict(name()))?;
            grow(&mut guard, shape.elements(), name)?;
            self.guards.push((lock, guard, shape));
            self.guards.len() - 1
        };
        self.parts.push((index, shape, mode));
        Ok(())
    }

    /// The operands in order, each with whether to add into it.
    pub fn views(&mut self) -> Few<(MatMut<'_, E>, Write)> {
        let mut out: Few<Option<(MatMut<'_, E>, Write)>> = self.parts.iter().map(|_| None).collect();
        for (index, (_, guard, shape)) in self.guards.iter_mut().enumerate() {
            let range = aligned(guard, shape.elements());
            let mut rest = MatMut::new(&mut guard[range], shape.rows, shape.stride);
            let mut mine: Few<usize> = (0..self.parts.len()).filter(|&i| self.parts[i].0 == index).collect();
            mine.sort_unstable_by_key(|&i| self.parts[i].1.start);
            let mut at = 0;
            for i in mine {
                let ColumnRange { start, end, .. } = self.parts[i].1;
                let [_gap, piece, right] = rest.cut([start - at, end - start]);
                out[i] = Some((piece, self.parts[i].2));
                (rest, at) = (right, end);
            }
        }
        out.into_iter().flatten().collect()
    }

    /// The first operand.
    pub(crate) fn first(&mut self) -> Result<(MatMut<'_, E>, Write), Fault> {
        self.views().into_iter().next().ok_or(Fault::Writes { found: 0, expected: 1 })
    }

    /// Exactly `N` operands.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[(MatMut<'_, E>, Write); N], Fault> {
        let found = self.views();
        let n = found.len();
        let mut found = found.into_iter();
        if n != N {
            return Err(Fault::Writes { found: n, expected: N });
        }
        let empty = || (MatMut::new(&mut [], 0, 0), Write::Set);
        Ok(std::array::from_fn(|_| found.next().unwrap_or_else(empty)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_no_memory_holds_is_an_error() {
        let lock = RwLock::new(Vec::<f32>::new());
        let shape = ColumnRange::whole(1 << 40, 1 << 20);
        let faults = [
            Whole::lock(&lock, shape, || "b".into()).err(),
            Writes::default().lock(&lock, shape, Write::Set, || "b".into()).err(),
        ];
        for fault in faults {
            assert!(matches!(fault, Some(Fault::NoMemory { operand, .. }) if operand == "b"));
        }
        // Whoever comes later finds nothing written, not something half made.
        assert!(matches!(Read::lock(&lock, shape, String::new), Err(Fault::Unwritten(_))));
    }

    #[test]
    fn columns_of_one_buffer_are_written_together() {
        let lock = RwLock::new(Vec::new());
        let mut writes = Writes::default();
        let part = |start, end| ColumnRange { rows: 2, stride: 5, start, end };
        for (start, end) in [(3, 5), (0, 1)] {
            writes.lock(&lock, part(start, end), Write::Set, String::new).unwrap();
        }
        assert!(matches!(writes.lock(&lock, part(4, 5), Write::Set, String::new), Err(Fault::Conflict(_))));
        for (i, (mut view, _)) in writes.views().into_iter().enumerate() {
            view.fill(i as f32 + 1.0);
        }
        assert!(Read::lock(&lock, part(0, 5), String::new).is_err(), "written and read at once");
        drop(writes);
        let whole = Read::lock(&lock, ColumnRange::whole(2, 5), String::new).unwrap();
        assert_eq!(whole.slice().unwrap(), [2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(whole.slice().unwrap().as_ptr().align_offset(64), 0);
        let (a, b) = (Read::lock(&lock, part(0, 2), String::new), Read::lock(&lock, part(1, 3), String::new));
        assert_eq!((a.unwrap().mat().row(1), b.unwrap().mat().cols()), (&[2.0, 0.0][..], 2));
    }
}
