//! `carry.cu`: rows of samples on their way between lists.

use super::{In, Out, Shape, catalogue};

fn items(n: u32) -> Shape {
    Shape::items(u64::from(n))
}

catalogue! { "carry.cu":
    /// `lengths[k]` = rows of the k-th sample that moves: `offsets` of the list, or one each without. As many as there
    /// are moves.
    lengths_of_moves(
        moves: u32, samples: In<u32>, count: u32, offsets: In<u32>, lengths: Out<u32>, fault: Out<u32>,
    ) => items(moves);
    /// `rows[i]` = the row of the list that is the i-th to travel; `starts` are the scanned lengths.
    rows_of_moves(
        n: u32, moves: u32, starts: In<u32>, samples: In<u32>, count: u32, offsets: In<u32>, rows: Out<u32>,
        fault: Out<u32>,
    ) => items(n);
    /// Joins jagged lists into one: sample s of the result is that of each part, one after the other. Row i of part
    /// `part` goes to `rows[i]`; the result's sample begins at `offsets[s]`, and earlier parts have ``before[s]`` rows
    /// of it.
    rows_of_joined(
        n: u32, samples: u32, part: In<u32>, offsets: In<u32>, before: In<u32>, rows: Out<u32>, fault: Out<u32>,
    ) => items(n);
}
