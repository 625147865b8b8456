//! What working on a sample costs, by its lengths.

/// Cost of a sample of one or several sequences: `constant` and, of each sequence of L ids, `linear` L + `square` L^2.
/// In any unit; only ratios matter.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(deny_unknown_fields))]
pub struct CostModel {
    /// Of any sample.
    pub constant: f64,
    /// Of each length group.
    pub groups: Vec<GroupCost>,
}

/// What a sequence adds to a sample's cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[cfg_attr(feature = "schema", derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema))]
#[cfg_attr(feature = "schema", serde(deny_unknown_fields))]
pub struct GroupCost {
    /// Per id.
    pub linear: f64,
    /// Per pair of ids.
    pub square: f64,
}

/// The dearest that a sample may be: sums over many batches of many samples are still numbers.
const MOST: f64 = 1e100;

/// A cost that is beyond what can be added up, or is below zero.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("sample {sample} would cost {cost}: a cost must be a number from 0 to {MOST:e}")]
pub struct Overflow {
    /// The sample.
    pub sample: usize,
    /// What it would cost.
    pub cost: f64,
}

/// The dearest sample's cost has at most about so many bits, fewer where many samples are to be summed.
const BITS: i32 = 40;

impl CostModel {
    /// Cost of a sample with so many ids in each group, in the model's unit.
    pub fn of(&self, lengths: impl IntoIterator<Item = u32>) -> f64 {
        let mut cost = self.constant;
        for (group, length) in self.groups.iter().zip(lengths) {
            let length = f64::from(length);
            cost += length * (group.linear + group.square * length);
        }
        cost
    }

    /// Whether samples of up to so many ids in each group cost what can be planned with: numbers from 0 that can be added.
    pub fn usable(&self, longest: impl IntoIterator<Item = u32>) -> bool {
        let parts = self.groups.iter().flat_map(|g| [g.linear, g.square]);
        let numbers = parts.chain([self.constant]).all(|x| x.is_finite() && x >= 0.0);
        numbers && self.of(longest) <= MOST
    }

    /// Costs as integers in proportion, the same on every machine: the dearest has 40 bits or 41 (fewer of
    /// more than two million samples, so that they can be added). What one unit of
    /// them is worth is returned.
    ///
    /// # Errors
    /// If a cost is no number, too large to be added up, or below zero.
    pub fn scaled(&self, costs: &[f64], out: &mut Vec<u64>) -> Result<f64, Overflow> {
        out.clear();
        let mut most = 0.0;
        for (sample, cost) in costs.iter().enumerate() {
            if !(0.0..=MOST).contains(cost) {
                return Err(Overflow { sample, cost: *cost });
            }
            most = f64::max(most, *cost);
        }
        // A power of two, so that scaling rounds nothing but the last bits of small costs.
        let whole = if most > 0.0 { power_of_two(exponent(most)) } else { 1.0 };
        let counted = 64 - (costs.len() as u64).leading_zeros() as i32;
        let parts = power_of_two(BITS.min(61 - counted));
        out.extend(costs.iter().map(|cost| (cost / whole * parts).round() as u64));
        Ok(whole / parts)
    }
}

/// The exponent of the next power of two above a positive number.
fn exponent(x: f64) -> i32 {
    let biased = ((x.to_bits() >> 52) & 0x7ff) as i32;
    // Subnormal numbers count as the smallest normal one.
    biased.max(1) - 1022
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}
