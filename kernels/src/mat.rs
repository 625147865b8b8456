//! Strided views of row-major matrices.
//!
//! A view is a pointer, a shape and the distance between rows, so the columns of a wider buffer are matrices
//! too: the query, key and value parts of one projection, or the heads of an attention, need no copies. Several
//! mutable views may lie interleaved in one buffer ([`MatMut::split_columns`]), which is why the views hold
//! pointers and not slices: no slice ever covers another view's elements.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A shared view of a row-major matrix, `rows` x `cols`, rows `stride` elements apart.
pub struct Mat<'a, T> {
    data: *const T,
    rows: usize,
    cols: usize,
    stride: usize,
    life: PhantomData<&'a [T]>,
}

/// A mutable view of a row-major matrix, `rows` x `cols`, rows `stride` elements apart.
pub struct MatMut<'a, T> {
    data: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Mat` stands for a `&[T]` of its elements.
unsafe impl<T: Sync> Send for Mat<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Mat<'_, T> {}
// SAFETY: a `MatMut` stands for a `&mut [T]` of its elements.
unsafe impl<T: Send> Send for MatMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for MatMut<'_, T> {}

impl<T> Clone for Mat<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Mat<'_, T> {}

impl<T> fmt::Debug for Mat<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mat[{} x {}, stride {}]", self.rows, self.cols, self.stride)
    }
}

impl<T> fmt::Debug for MatMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MatMut[{} x {}, stride {}]", self.rows, self.cols, self.stride)
    }
}

fn check(len: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "a matrix of {cols} columns cannot have a row stride of {stride}");
    let need = if rows == 0 { 0 } else { (rows - 1) * stride + cols };
    assert!(
        len >= need,
        "a matrix of {rows} x {cols} with stride {stride} needs {need} elements, the buffer has {len}"
    );
}

impl<'a, T> Mat<'a, T> {
    /// Views `data` as `rows` x `cols` without gaps. Panics if `data` is too short.
    pub fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Views `data` as `rows` x `cols` with rows `stride` apart. Panics if `data` is too short.
    pub fn with_stride(data: &'a [T], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Mat { data: data.as_ptr(), rows, cols, stride, life: PhantomData }
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    #[inline]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Pointer to the first element; good for `rows` rows of `cols` elements, `stride` apart.
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self.data
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &'a [T] {
        assert!(i < self.rows, "row {i} of a matrix of {} rows", self.rows);
        // SAFETY: the row lies in the buffer by the check at construction, and the lifetime is the buffer's.
        unsafe { std::slice::from_raw_parts(self.data.add(i * self.stride), self.cols) }
    }

    /// The columns `range` of every row.
    #[must_use]
    pub fn columns(&self, range: Range<usize>) -> Mat<'a, T> {
        assert!(
            range.start <= range.end && range.end <= self.cols,
            "columns {range:?} of a matrix of {} columns",
            self.cols
        );
        let start = if self.rows == 0 { 0 } else { range.start };
        // SAFETY: `start` is at most the length of the first row, or 0 where there is none.
        Mat { data: unsafe { self.data.add(start) }, cols: range.len(), ..*self }
    }

    /// The rows `range`.
    #[must_use]
    pub fn rows_range(&self, range: Range<usize>) -> Mat<'a, T> {
        assert!(
            range.start <= range.end && range.end <= self.rows,
            "rows {range:?} of a matrix of {} rows",
            self.rows
        );
        let start = if range.is_empty() { 0 } else { range.start * self.stride };
        // SAFETY: where the range holds a row, its first element lies in the buffer.
        Mat { data: unsafe { self.data.add(start) }, rows: range.len(), ..*self }
    }

    /// The same elements as one row, where no gaps lie between rows.
    #[inline]
    pub(crate) fn flat_shape(&self) -> Option<usize> {
        (self.stride == self.cols || self.rows <= 1).then_some(self.rows * self.cols)
    }

    /// The elements as one slice, where no gaps lie between rows.
    pub fn as_slice(&self) -> Option<&'a [T]> {
        // SAFETY: without gaps the elements are one run of the buffer.
        self.flat_shape().map(|n| unsafe { std::slice::from_raw_parts(self.data, n) })
    }
}

impl<'a, T> MatMut<'a, T> {
    /// Views `data` as `rows` x `cols` without gaps. Panics if `data` is too short.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self::with_stride(data, rows, cols, cols)
    }

    /// Views `data` as `rows` x `cols` with rows `stride` apart. Panics if `data` is too short.
    pub fn with_stride(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        MatMut { data: data.as_mut_ptr(), rows, cols, stride, life: PhantomData }
    }

    /// Number of rows.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    #[inline]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Elements from one row to the next.
    #[inline]
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Pointer to the first element; good for `rows` rows of `cols` elements, `stride` apart.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.data
    }

    /// Row `i`.
    #[inline]
    pub fn row(&self, i: usize) -> &[T] {
        self.as_mat().row(i)
    }

    /// Row `i`, to write.
    #[inline]
    pub fn row_mut(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "row {i} of a matrix of {} rows", self.rows);
        // SAFETY: the row lies in the buffer, and `self` is borrowed for as long as the row is.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(i * self.stride), self.cols) }
    }

    /// The same view, to read.
    #[inline]
    pub fn as_mat(&self) -> Mat<'_, T> {
        Mat { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride, life: PhantomData }
    }

    /// The same view for a shorter time, so that it can be given away and used again.
    #[inline]
    pub fn reborrow(&mut self) -> MatMut<'_, T> {
        MatMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride, life: PhantomData }
    }

    /// The columns `range` of every row, for as long as `self` is borrowed.
    pub fn columns_mut(&mut self, range: Range<usize>) -> MatMut<'_, T> {
        self.reborrow().into_columns(range)
    }

    /// The columns `range` of every row, for the whole life of the view.
    #[must_use]
    pub fn into_columns(self, range: Range<usize>) -> MatMut<'a, T> {
        let part = self.as_mat().columns(range);
        MatMut {
            data: part.data.cast_mut(),
            rows: part.rows,
            cols: part.cols,
            stride: part.stride,
            life: PhantomData,
        }
    }

    /// The rows `range`, for as long as `self` is borrowed.
    pub fn rows_range_mut(&mut self, range: Range<usize>) -> MatMut<'_, T> {
        let part = self.as_mat().rows_range(range);
        MatMut {
            data: part.data.cast_mut(),
            rows: part.rows,
            cols: part.cols,
            stride: part.stride,
            life: PhantomData,
        }
    }

    /// Cuts the view into neighbouring groups of columns, `widths[k]` wide each, all writable at once. The
    /// widths may leave columns over at the right; more than the view has is a panic.
    pub fn split_columns(self, widths: &[usize]) -> Vec<MatMut<'a, T>> {
        let mut rest = Some(self);
        widths.iter().map(|&width| Self::split_first(&mut rest, width)).collect()
    }

    /// [`MatMut::split_columns`] for a number of parts known beforehand; allocates nothing.
    pub fn split_columns_array<const N: usize>(self, widths: [usize; N]) -> [MatMut<'a, T>; N] {
        let mut rest = Some(self);
        widths.map(|width| Self::split_first(&mut rest, width))
    }

    /// Cuts off two neighbouring groups of columns at the left; the third part is what is left.
    pub fn cut(self, widths: [usize; 2]) -> [MatMut<'a, T>; 3] {
        let left = self.cols - (widths[0] + widths[1]).min(self.cols);
        self.split_columns_array([widths[0], widths[1], left])
    }

    fn split_first(rest: &mut Option<MatMut<'a, T>>, width: usize) -> MatMut<'a, T> {
        let all = rest.take().unwrap_or(MatMut {
            data: std::ptr::NonNull::dangling().as_ptr(),
            rows: 0,
            cols: 0,
            stride: 0,
            life: PhantomData,
        });
        let MatMut { data, rows, cols, stride, life } = all;
        assert!(width <= cols, "a view of {cols} columns is left, {width} were asked for");
        let skip = if rows == 0 { 0 } else { width };
        // SAFETY: `skip` stays within the first row. The two parts share no element: their columns differ and
        // a row's columns never exceed its stride.
        *rest = Some(MatMut { data: unsafe { data.add(skip) }, rows, cols: cols - width, stride, life });
        MatMut { data, rows, cols: width, stride, life }
    }

    /// Sets every element to `value`.
    pub fn fill(&mut self, value: T)
    where
        T: Copy,
    {
        for i in 0..self.rows {
            self.row_mut(i).fill(value);
        }
    }
}

/// Whether a kernel overwrites its output or adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// `y = value`
    Set,
    /// `y += value`
    Add,
}

/// The tokens of sequence `s`, given the offsets of all.
pub(crate) fn sequence(offsets: &[usize], s: usize) -> Range<usize> {
    offsets[s]..offsets[s + 1]
}

/// Checks that `offsets` starts at 0, never falls and ends at `rows`; an empty list describes no sequences.
pub(crate) fn check_offsets(offsets: &[usize], rows: usize) {
    let ordered = offsets.windows(2).all(|w| w[0] <= w[1]);
    let first = offsets.first().copied().unwrap_or(0);
    let last = offsets.last().copied().unwrap_or(0);
    assert!(
        ordered && first == 0 && last == rows,
        "offsets from {first} to {last} do not describe {rows} token rows"
    );
}
