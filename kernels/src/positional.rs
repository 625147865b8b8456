//! Learned positional embeddings over jagged sequences.

use crate::elementwise;
use crate::mat::{Mat, MatMut, Write, check_offsets, sequence};
use crate::real::Real;

fn assert_fits<T>(x: Mat<T>, offsets: &[usize], table: Mat<T>) {
    check_offsets(offsets, x.rows());
    let longest = offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0);
    assert!(
        longest <= table.rows() && x.cols() == table.cols(),
        "a sequence of {longest} tokens of {x:?} does not fit the positions {table:?}"
    );
}

/// `y = x + table[position]`, the position counted within each sequence.
pub fn positional<T: Real>(x: Mat<T>, offsets: &[usize], table: Mat<T>, mut y: MatMut<T>) {
    assert_fits(x, offsets, table);
    for s in 0..offsets.len().saturating_sub(1) {
        let tokens = sequence(offsets, s);
        let positions = table.rows_range(0..tokens.len());
        elementwise::add(&[x.rows_range(tokens.clone()), positions], y.rows_range_mut(tokens));
    }
}

/// Gradient of [`positional`] with respect to the table, overwritten: the sum of gy over the sequences that
/// reach a position, in sequence order. The gradient with respect to x is gy itself.
pub fn positional_grad<T: Real>(gy: Mat<T>, offsets: &[usize], mut gtable: MatMut<T>) {
    assert_fits(gy, offsets, gtable.as_mat());
    gtable.fill(T::ZERO);
    for s in 0..offsets.len().saturating_sub(1) {
        let tokens = sequence(offsets, s);
        elementwise::copy(gy.rows_range(tokens.clone()), gtable.rows_range_mut(0..tokens.len()), Write::Add);
    }
}
