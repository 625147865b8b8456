//! The matrix micro-kernel: C = A B or C += A B with a tile of C in registers.
//!
//! A is read one element at a time and broadcast, so it may be strided either way (plain or transposed) without
//! packing; rows of B and C are contiguous. That covers every product of training on tall matrices but one
//! (y = x w^T needs w transposed, which is small), and the blocks of attention.

use crate::real::Real;
use crate::simd::{Kernel, Simd};

/// Depth of one pass over A and B: a panel of B of this depth stays in the first-level cache.
const DEPTH: usize = 128;
/// Rows of A in one pass: with `DEPTH` they stay in the second-level cache while panels of B go by.
const HEIGHT: usize = 480;

/// Operands of one product; element (i, p) of A is at `a + i * a_row + p * a_step`.
#[derive(Clone, Copy)]
pub(crate) struct Product<T> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const T,
    pub a_row: usize,
    pub a_step: usize,
    /// Row p of B is at `b + p * b_row`.
    pub b: *const T,
    pub b_row: usize,
    /// Row i of C is at `c + i * c_row`.
    pub c: *mut T,
    pub c_row: usize,
    /// What the sums start from: nothing, C itself, or a row of biases (`start_row` 0).
    pub start: *const T,
    pub start_row: usize,
}

impl<T: Real> Product<T> {
    /// Computes the product.
    /// # Safety
    /// All elements described lie in live buffers, and C overlaps neither A nor B.
    pub(crate) unsafe fn run(self) {
        if self.m > 0 && self.n > 0 {
            T::dispatch(self);
        }
    }
}

impl<T: Real> Kernel<T> for Product<T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd<T = T>>(self, s: S) {
        let mut p = 0;
        loop {
            let depth = (self.k - p).min(DEPTH);
            let mut i = 0;
            while i < self.m {
                let height = (self.m - i).min(HEIGHT);
                // SAFETY: the blocks partition the product described.
                unsafe {
                    let c = self.c.add(i * self.c_row);
                    let (start, start_row) = if p > 0 {
                        (c.cast_const(), self.c_row)
                    } else if self.start.is_null() {
                        (self.start, 0)
                    } else {
                        (self.start.add(i * self.start_row), self.start_row)
                    };
                    let block = Product {
                        m: height,
                        k: depth,
                        a: self.a.add(i * self.a_row + p * self.a_step),
                        b: self.b.add(p * self.b_row),
                        c,
                        start,
                        start_row,
                        ..self
                    };
                    columns(s, block);
                }
                i += height;
            }
            p += depth;
            if p >= self.k {
                break;
            }
        }
    }
}

#[inline(always)]
unsafe fn columns<S: Simd>(s: S, block: Product<S::T>) {
    let lanes = S::LANES;
    let mut j = 0;
    // SAFETY: every panel lies within the `n` columns.
    unsafe {
        while block.n - j >= 4 * lanes {
            panel::<S, 4, false>(s, &block, j, S::TILE_ROWS[2], 0);
            j += 4 * lanes;
        }
        if block.n - j >= 2 * lanes {
            panel::<S, 2, false>(s, &block, j, S::TILE_ROWS[1], 0);
            j += 2 * lanes;
        }
        if block.n - j >= lanes {
            panel::<S, 1, false>(s, &block, j, S::TILE_ROWS[0], 0);
            j += lanes;
        }
        if block.n > j {
            panel::<S, 1, true>(s, &block, j, S::TILE_ROWS[0], block.n - j);
        }
    }
}

#[inline(always)]
unsafe fn panel<S: Simd, const NV: usize, const PART: bool>(
    s: S,
    block: &Product<S::T>,
    j: usize,
    tall: usize,
    part: usize,
) {
    let mut i = 0;
    // SAFETY: every tile lies within the `m` rows.
    unsafe {
        while block.m - i >= tall {
            match tall {
                12 => tile::<S, 12, NV, PART>(s, block, i, j, part),
                8 => tile::<S, 8, NV, PART>(s, block, i, j, part),
                6 => tile::<S, 6, NV, PART>(s, block, i, j, part),
                4 => tile::<S, 4, NV, PART>(s, block, i, j, part),
                3 => tile::<S, 3, NV, PART>(s, block, i, j, part),
                2 => tile::<S, 2, NV, PART>(s, block, i, j, part),
                _ => tile::<S, 1, NV, PART>(s, block, i, j, part),
            }
            i += tall;
        }
        while tall > 4 && block.m - i >= 4 {
            tile::<S, 4, NV, PART>(s, block, i, j, part);
            i += 4;
        }
        while tall > 2 && block.m - i >= 2 {
            tile::<S, 2, NV, PART>(s, block, i, j, part);
            i += 2;
        }
        while i < block.m {
            tile::<S, 1, NV, PART>(s, block, i, j, part);
            i += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NV: usize, const PART: bool>(
    s: S,
    block: &Product<S::T>,
    i: usize,
    j: usize,
    part: usize,
) {
    // SAFETY: rows i..i+MR and the columns from j (NV vectors, or `part` elements) belong to the product.
    unsafe {
        let mut sums = [[s.splat(S::T::ZERO); NV]; MR];
        if !block.start.is_null() {
            let start = block.start.add(i * block.start_row + j);
            for r in 0..MR {
                for v in 0..NV {
                    let p = start.add(r * block.start_row + v * S::LANES);
                    sums[r][v] = if PART { s.load_part(p, part) } else { s.load(p) };
                }
            }
        }
        let mut a = block.a.add(i * block.a_row);
        let mut b = block.b.add(j);
        for _ in 0..block.k {
            let mut row = [s.splat(S::T::ZERO); NV];
            for v in 0..NV {
                let p = b.add(v * S::LANES);
                row[v] = if PART { s.load_part(p, part) } else { s.load(p) };
            }
            for r in 0..MR {
                let x = s.splat(*a.add(r * block.a_row));
                for v in 0..NV {
                    sums[r][v] = s.fma(x, row[v], sums[r][v]);
                }
            }
            a = a.add(block.a_step);
            b = b.add(block.b_row);
        }
        let c = block.c.add(i * block.c_row + j);
        for r in 0..MR {
            for v in 0..NV {
                let p = c.add(r * block.c_row + v * S::LANES);
                if PART {
                    s.store_part(p, part, sums[r][v]);
                } else {
                    s.store(p, sums[r][v]);
                }
            }
        }
    }
}
