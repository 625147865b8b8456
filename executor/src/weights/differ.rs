//! In what two checkpoints or files of values differ.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::load::about;
use super::ordered::Ordered;
use super::origin::Origin;
use crate::data::tensorfile::{Dtype, Element};
use crate::error::Error;

/// Bytes compared at once.
const PIECE: usize = 4 << 20;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Differences {
    /// Steps that each was trained for, if it says so.
    pub steps: [Option<u64>; 2],
    /// Tensors that both have with equal bytes.
    pub equal: usize,
    /// All others.
    pub tensors: Vec<Difference>,
}

/// A tensor that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Type and shape in each; `None` where it is missing.
    pub shapes: [Option<String>; 2],
    /// Elements that differ, if the shapes are equal.
    pub elements: u64,
    /// Of how many.
    pub of: u64,
    /// The greatest difference of two numbers; nothing where one is not a finite number, and of texts.
    pub most: Option<f64>,
}

/// Compares all tensors, whatever files and ranks they are spread over. Bytes of checkpoints are held against their digests first.
pub fn differences(a: &Path, b: &Path) -> Result<Differences, Error> {
    let both = [Origin::open(a)?, Origin::open(b)?];
    for origin in &both {
        if let Origin::Checkpoint(checkpoint) = origin {
            checkpoint.verify()?;
        }
    }
    let mut found = Differences { steps: [None, None], equal: 0, tensors: Vec::new() };
    for (steps, origin) in found.steps.iter_mut().zip(&both) {
        *steps = about(origin)?.map(|about| about.step);
    }
    let names: BTreeSet<String> = both.iter().flat_map(Origin::names).collect();
    for name in names {
        let own = [Ordered::new(&both[0], &name)?, Ordered::new(&both[1], &name)?];
        let shapes = own.each_ref().map(|of| of.as_ref().map(|of| of.info().describe()));
        let mut difference = Difference { name, shapes, elements: 0, of: 0, most: None };
        match &own {
            [Some(a), Some(b)] if a.info().dtype == b.info().dtype && a.info().shape == b.info().shape => {
                difference.compare(a, b)?;
                if difference.elements == 0 {
                    found.equal += 1;
                    continue;
                }
            }
            _ => {}
        }
        found.tensors.push(difference);
    }
    Ok(found)
}

impl Difference {
    fn compare(&mut self, a: &Ordered<'_>, b: &Ordered<'_>) -> Result<(), Error> {
        let dtype = a.info().dtype;
        let size = dtype.bitsize() / 8;
        self.of = a.info().elements() as u64;
        let mut most = Some(0f64);
        let mut bytes = [Vec::new(), Vec::new()];
        for rows in a.blocks(PIECE) {
            a.read(&rows, &mut bytes[0])?;
            b.read(&rows, &mut bytes[1])?;
            if bytes[0] == bytes[1] {
                continue;
            }
            for (a, b) in bytes[0].chunks_exact(size).zip(bytes[1].chunks_exact(size)) {
                if a == b {
                    continue;
                }
                self.elements += 1;
                let by = number(dtype, a).zip(number(dtype, b)).map(|(a, b)| (a - b).abs());
                most = most.zip(by.filter(|by| by.is_finite())).map(|(most, by)| most.max(by));
            }
        }
        self.most = most.filter(|_| self.elements > 0);
        Ok(())
    }
}

fn number(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    match dtype {
        Dtype::F32 => Some(f64::from(f32::decode(bytes))),
        Dtype::F64 => Some(f64::decode(bytes)),
        Dtype::I64 => Some(i64::decode(bytes) as f64),
        _ => None,
    }
}
