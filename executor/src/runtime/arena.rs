//! Storage of a program's buffers, and views of them.
//!
//! Buffers of one element type with the same slot share one growable vector. Each vector has a lock that is only
//! ever tried: an operation whose operands overlap, or two operations that should have waited for each other, are an
//! error and never a race. An operation may write several column ranges of one buffer at once.

use fs_kernels::{Mat, MatMut, Write};
use fs_schedule::{Element, Program};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::fault::Fault;

/// Vectors behind slots of one element type.
pub type Pool<E> = Vec<RwLock<Vec<E>>>;

/// All buffers of a rank.
#[derive(Debug)]
pub struct Arena<T> {
    /// Intermediate values.
    pub reals: Pool<T>,
    /// Row ids.
    pub ids: Pool<i64>,
    /// Positions.
    pub indices: Pool<u32>,
    /// Counts per rank.
    pub counts: Pool<u64>,
}

impl<T> Arena<T> {
    /// Empty storage for several programs that never run at the same time.
    pub fn new<'p>(programs: impl Iterator<Item = &'p Program> + Clone) -> Self {
        fn pool<'p, E>(programs: impl Iterator<Item = &'p Program>, element: Element) -> Pool<E> {
            let buffers = programs.flat_map(|p| &p.buffers).filter(|b| b.element == element);
            let slots = buffers.map(|b| b.slot + 1).max().unwrap_or(0);
            (0..slots).map(|_| RwLock::new(Vec::new())).collect()
        }
        Self {
            reals: pool(programs.clone(), Element::Real),
            ids: pool(programs.clone(), Element::Id),
            indices: pool(programs.clone(), Element::Index),
            counts: pool(programs, Element::Count),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        fn of<E>(pool: &Pool<E>) -> usize {
            pool.iter().map(|v| v.read().capacity() * size_of::<E>()).sum()
        }
        (of(&self.reals) + of(&self.ids) + of(&self.indices) + of(&self.counts)) as u64
    }
}

/// Shape of an operand: a range of columns of a row-major matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Columns of the whole matrix.
    pub stride: usize,
    /// First column.
    pub start: usize,
    /// One past the last column.
    pub end: usize,
}

impl Shape {
    /// All columns.
    pub fn whole(rows: usize, columns: usize) -> Self {
        Self { rows, stride: columns, start: 0, end: columns }
    }

    /// Columns in the range.
    pub fn columns(self) -> usize {
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
    shape: Shape,
}

impl<'a, E> Read<'a, E> {
    /// Locks a vector for reading; `name` is for messages.
    pub fn lock(lock: &'a RwLock<Vec<E>>, shape: Shape, name: impl Fn() -> String) -> Result<Self, Fault> {
        let guard = lock.try_read().ok_or_else(|| Fault::Conflict(name()))?;
        if guard.len() < shape.elements() {
            return Err(Fault::Unsupported(format!(
                "operand {} is read before anything was written to it",
                name()
            )));
        }
        Ok(Self { guard, shape })
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// As a matrix.
    pub fn mat(&self) -> Mat<'_, E> {
        let Shape { rows, stride, start, end } = self.shape;
        Mat::new(&self.guard[aligned(&self.guard, rows * stride)], rows, stride).columns(start..end)
    }

    /// All elements; only for operands with all columns.
    pub fn slice(&self) -> Result<&[E], Fault> {
        if self.shape.is_whole() {
            Ok(&self.guard[aligned(&self.guard, self.shape.elements())])
        } else {
            Err(Fault::Unsupported("a range of columns stands where a whole buffer is needed".into()))
        }
    }
}

/// A written operand with all columns of its buffer.
#[derive(Debug)]
pub struct Whole<'a, E> {
    guard: RwLockWriteGuard<'a, Vec<E>>,
    len: usize,
}

impl<'a, E: Copy + Default> Whole<'a, E> {
    /// Locks a vector for writing and makes it long enough.
    pub fn lock(lock: &'a RwLock<Vec<E>>, shape: Shape, name: impl Fn() -> String) -> Result<Self, Fault> {
        if !shape.is_whole() {
            return Err(Fault::Unsupported(format!("operand {} must be a whole buffer", name())));
        }
        let mut guard = lock.try_write().ok_or_else(|| Fault::Conflict(name()))?;
        grow(&mut guard, shape.elements());
        Ok(Self { guard, len: shape.elements() })
    }

    /// Its elements, with unspecified contents.
    pub fn slice(&mut self) -> &mut [E] {
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
fn grow<E: Copy + Default>(vector: &mut Vec<E>, len: usize) {
    if vector.len() < len {
        let padded = len + line::<E>();
        // Contents are unspecified: no need to carry old ones over.
        if vector.capacity() < padded {
            *vector = Vec::new();
            vector.reserve_exact(padded + len / 16);
        }
        vector.resize(padded, E::default());
    }
}

/// Where `len` elements lie: from the first cache line on, if there is room for that. Writing and reading find the
/// same place, since a vector never moves between them. Vector instructions that straddle lines cost double.
fn aligned<E>(vector: &[E], len: usize) -> std::ops::Range<usize> {
    let offset =
        if vector.len() >= len + line::<E>() { vector.as_ptr().align_offset(64).min(line::<E>()) } else { 0 };
    offset..offset + len
}

/// A vector, the right to write it, and its shape.
type Locked<'a, E> = (&'a RwLock<Vec<E>>, RwLockWriteGuard<'a, Vec<E>>, Shape);

/// Written operands, several of which may be columns of one buffer.
#[derive(Debug, Default)]
pub struct Writes<'a, E> {
    guards: Vec<Locked<'a, E>>,
    /// Guard and shape of each operand.
    parts: Vec<(usize, Shape, Write)>,
}

impl<'a, E: Copy + Default> Writes<'a, E> {
    /// Adds an operand.
    pub fn lock(
        &mut self,
        lock: &'a RwLock<Vec<E>>,
        shape: Shape,
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
            let mut guard = lock.try_write().ok_or_else(|| Fault::Conflict(name()))?;
            grow(&mut guard, shape.elements());
            self.guards.push((lock, guard, shape));
            self.guards.len() - 1
        };
        self.parts.push((index, shape, mode));
        Ok(())
    }

    /// The operands in order, each with whether to add into it.
    pub fn views(&mut self) -> Vec<(MatMut<'_, E>, Write)> {
        let mut out: Vec<Option<(MatMut<'_, E>, Write)>> = self.parts.iter().map(|_| None).collect();
        for (index, (_, guard, shape)) in self.guards.iter_mut().enumerate() {
            let range = aligned(guard, shape.elements());
            let all = MatMut::new(&mut guard[range], shape.rows, shape.stride);
            let mut mine: Vec<usize> = (0..self.parts.len()).filter(|&i| self.parts[i].0 == index).collect();
            mine.sort_by_key(|&i| self.parts[i].1.start);
            // Gaps between the ranges are cut out as columns of their own.
            let mut widths = Vec::with_capacity(2 * mine.len());
            let mut at = 0;
            for &i in &mine {
                let Shape { start, end, .. } = self.parts[i].1;
                widths.push(start - at);
                widths.push(end - start);
                at = end;
            }
            let pieces = all.split_columns(&widths).into_iter().skip(1).step_by(2);
            for (i, piece) in mine.into_iter().zip(pieces) {
                out[i] = Some((piece, self.parts[i].2));
            }
        }
        out.into_iter().flatten().collect()
    }

    /// The first operand.
    pub fn first(&mut self) -> Result<(MatMut<'_, E>, Write), Fault> {
        let missing = Fault::Unsupported("an operation writes nothing".into());
        self.views().into_iter().next().ok_or(missing)
    }

    /// Exactly `N` operands.
    pub fn array<const N: usize>(&mut self) -> Result<[(MatMut<'_, E>, Write); N], Fault> {
        let wrong =
            |v: Vec<_>| Fault::Unsupported(format!("an operation writes {} operands, not {N}", v.len()));
        self.views().try_into().map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_one_buffer_are_written_together() {
        let lock = RwLock::new(Vec::new());
        let mut writes = Writes::default();
        let part = |start, end| Shape { rows: 2, stride: 5, start, end };
        for (start, end) in [(3, 5), (0, 1)] {
            writes.lock(&lock, part(start, end), Write::Set, String::new).unwrap();
        }
        assert!(matches!(writes.lock(&lock, part(4, 5), Write::Set, String::new), Err(Fault::Conflict(_))));
        for (i, (mut view, _)) in writes.views().into_iter().enumerate() {
            view.fill(i as f32 + 1.0);
        }
        assert!(Read::lock(&lock, part(0, 1), String::new).is_err(), "written and read at once");
        drop(writes);
        let whole = Read::lock(&lock, Shape::whole(2, 5), String::new).unwrap();
        assert_eq!(whole.slice().unwrap(), [2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(whole.slice().unwrap().as_ptr().align_offset(64), 0);
        let (a, b) = (Read::lock(&lock, part(0, 2), String::new), Read::lock(&lock, part(1, 3), String::new));
        assert_eq!((a.unwrap().mat().row(1), b.unwrap().mat().cols()), (&[2.0, 0.0][..], 2));
    }
}
