//! Which profiles are refused: numbers that no measurement gives, and those of other schedules.

use std::collections::BTreeSet;

use super::{DISTANCES, MOST_LENGTHS, Profile, ProfileError, ReuseCounts, Rows, shape};
use crate::program::Schedule;
use crate::size::Symbol;

/// Longest time that a profile may state: an operation of an hour is none.
const MOST_SECONDS: f64 = 3600.0;
/// Largest size or number of bytes or operations that a profile may state.
const MOST_SIZE: f64 = 1e18;
/// Bytes of what a profile says of the machine and its link.
const LONGEST_TEXT: usize = 200;

/// Of means of whole numbers.
const ROUNDING: f64 = 1e-6;
/// By how much the sum over all distances may differ from what is sent: they are counted over as many batches.
const SUM: f64 = 0.01;

fn damaged<T>(reason: String) -> Result<T, ProfileError> {
    Err(ProfileError::Number(reason))
}

/// Fails if something is there twice.
fn once<K: Ord>(keys: impl Iterator<Item = K>, what: impl Fn(&K) -> String) -> Result<(), ProfileError> {
    let mut seen = BTreeSet::new();
    for key in keys {
        if seen.contains(&key) {
            return damaged(format!("{} is there twice", what(&key)));
        }
        seen.insert(key);
    }
    Ok(())
}

impl Profile {
    /// Fails unless it was measured with a schedule of the same model on as many ranks.
    pub fn fits(&self, s: &Schedule) -> Result<(), ProfileError> {
        if self.model != s.model {
            let (a, b) = (&self.model, &s.model);
            return Err(ProfileError::Other(format!("it was measured for model `{a}`, this is `{b}`")));
        }
        if self.shape != shape(s) {
            return Err(ProfileError::Other(format!(
                "it was measured for a model `{}` with other tables, inputs, parameters, batch size or optimizers",
                self.model
            )));
        }
        if self.ranks != s.ranks {
            let (a, b) = (self.ranks, s.ranks);
            return Err(ProfileError::Other(format!("it was measured on {a} rank(s), this is for {b}")));
        }
        self.fits_in_a_batch(s)
    }

    /// Fails if it lacks sizes of the model's batches, or has larger ones than they can have.
    fn fits_in_a_batch(&self, s: &Schedule) -> Result<(), ProfileError> {
        let batch = f64::from(s.settings.batch);
        let groups = s.lengths.len() as u32;
        let wanted =
            (0..groups).flat_map(|g| [Symbol::Tokens(g), Symbol::Squares(g)]).chain([Symbol::Samples]);
        for symbol in wanted {
            if self.sizes.iter().all(|(known, _)| *known != symbol.to_string()) {
                return damaged(format!("size `{symbol}` is missing"));
            }
        }
        let at_most = |what: &str, x: f64, most: f64| {
            if x <= most * (1.0 + ROUNDING) {
                return Ok(());
            }
            damaged(format!("{what} is {x}, but a batch has at most {most}"))
        };
        let size = |wanted: Symbol| {
            let found = self.sizes.iter().find(|(known, _)| *known == wanted.to_string());
            found.map_or(0.0, |(_, n)| *n)
        };
        if size(Symbol::Samples) <= 0.0 {
            return damaged("size `B` is 0, so nothing was measured".into());
        }
        for g in 0..groups {
            let (tokens, squares) = (size(Symbol::Tokens(g)), size(Symbol::Squares(g)));
            if squares < tokens * (1.0 - ROUNDING) {
                return damaged(format!(
                    "size `Q{g}`, a sum of squares, is {squares}, less than `T{g}`, {tokens}"
                ));
            }
        }
        for (symbol, n) in &self.sizes {
            let longest = |g: u32| s.lengths.get(g as usize).map(|l| f64::from(l.max));
            let most = match symbol.parse() {
                Ok(Symbol::Tokens(g)) => longest(g).map(|l| batch * l),
                Ok(Symbol::Squares(g)) => longest(g).map(|l| batch * l * l),
                _ => Some(batch),
            };
            let Some(most) = most else {
                return damaged(format!("size `{symbol}` is of lengths that the model does not have"));
            };
            at_most(&format!("size `{symbol}`"), *n, most)?;
        }
        if !self.lengths.is_empty() && self.lengths.len() != s.lengths.len() {
            let (found, groups) = (self.lengths.len(), s.lengths.len());
            return damaged(format!("it has {found} lists of lengths, the model {groups} of sequences"));
        }
        for (list, group) in self.lengths.iter().zip(&s.lengths) {
            if let Some(n) = list.iter().find(|n| **n > group.max) {
                let (name, most) = (&group.name, group.max);
                return damaged(format!("a sequence of `{name}` has {n} ids, but has at most {most}"));
            }
        }
        if let Some(found) =
            self.samples.as_ref().map(|cost| cost.groups.len()).filter(|n| *n != s.lengths.len())
        {
            let groups = s.lengths.len();
            return damaged(format!("it has costs of {found} groups of sequences, the model has {groups}"));
        }
        let parts = self.microbatches.max(1);
        if !s.settings.batch.is_multiple_of(parts) {
            return damaged(format!("a batch of {batch} cannot be cut into {parts} microbatches"));
        }
        if let Some(r) = self.rows.iter().find(|r| s.tables.iter().all(|t| t.name != r.table)) {
            return damaged(format!("it has rows of `{}`, which is no table of the model", r.table));
        }
        for x in &s.exchanges {
            let Some(table) = s.tables.get(x.table as usize) else { continue };
            let name = &table.name;
            let Some(rows) = self.rows_of(name, x.part) else {
                return damaged(format!("rows of `{name}` are missing"));
            };
            if let Some((row, _)) = rows.hot.last().filter(|(row, _)| *row >= table.rows) {
                return damaged(format!("hot row {row} of `{name}` is none of its {}", table.rows));
            }
            // Ids may be drawn beside those of the data, but unique ones are rows of the table.
            if x.unique && x.leg.within().is_none() {
                at_most(&format!("rows of `{name}`"), rows.sent, table.rows as f64)?;
            }
        }
        Ok(())
    }

    /// Fails if a number is not what a measurement can give.
    pub fn check(&self) -> Result<(), ProfileError> {
        let number = |what: &str, x: f64, low: f64, high: f64| {
            if x.is_finite() && (low..=high).contains(&x) {
                return Ok(());
            }
            damaged(format!("{what} is {x:e}, which is not between {low:e} and {high:e}"))
        };
        let seconds = |what: &str, x: f64| number(what, x, 0.0, MOST_SECONDS);
        let size = |what: &str, x: f64| number(what, x, 0.0, MOST_SIZE);
        self.check_lists()?;
        number("`ranks`", self.ranks.into(), 1.0, 1e6)?;
        number("`microbatches`", self.microbatches.into(), 1.0, 64.0)?;
        seconds("`step`", self.step)?;
        number("`scatter`", self.scatter, 0.0, 1e6)?;
        seconds("`batch`", self.batch)?;
        if self.samples.as_ref().is_some_and(|cost| !cost.usable(cost.groups.iter().map(|_| u32::MAX))) {
            return damaged("costs of `samples` are no numbers from 0".into());
        }
        number("`sharing`", self.sharing, 0.0, 1.0)?;
        number("`cores`", self.cores.unwrap_or(1).into(), 1.0, 1e6)?;
        let samples = self.lengths.first().map_or(0, Vec::len);
        if self.lengths.iter().any(|group| group.len() != samples) {
            return damaged("lists of `lengths` differ in length".into());
        }
        number("the number of `lengths`", samples as f64, 0.0, MOST_LENGTHS as f64)?;
        for (symbol, n) in &self.sizes {
            if !matches!(symbol.parse(), Ok(Symbol::Samples | Symbol::Tokens(_) | Symbol::Squares(_))) {
                return damaged(format!("`{symbol}` in `sizes` is not a size of batches"));
            }
            size(&format!("size `{symbol}`"), *n)?;
        }
        // One owner may be asked for everything by all others, in place of its share of what all ask of all; its own rows
        // are no traffic.
        let ranks = f64::from(self.ranks);
        let busiest = ranks * ranks / (ranks - 1.0).max(1.0) + ROUNDING;
        let reuse = |name: &str, sent: f64, counts: &[ReuseCounts]| {
            for counts in counts {
                number("`microbatches`", counts.microbatches.into(), 1.0, 64.0)?;
                for list in [&counts.forward, &counts.backward] {
                    let whole = list.len() == counts.microbatches as usize
                        && list.iter().all(|l| l.len() == DISTANCES as usize + 1);
                    if !whole {
                        return damaged(format!("reuse distances of {name} are missing"));
                    }
                    list.iter().flatten().try_for_each(|n| size(&format!("reuse of {name}"), *n))?;
                    // Every entry has a distance, if the last one none.
                    let sum: f64 = list.iter().flatten().sum();
                    if (sum - sent).abs() > SUM * sent {
                        return damaged(format!("reuse of {name} adds up to {sum}, but {sent} are sent"));
                    }
                }
            }
            Ok(())
        };
        for rows in &self.rows {
            let name = format!("rows of `{}`", rows.table);
            size(&name, rows.sent)?;
            number(&format!("`busiest` of {name}"), rows.busiest, 0.0, busiest)?;
            number(&format!("`hashed` of {name}"), rows.hashed.unwrap_or(1.0), 0.0, busiest)?;
            number(&format!("`asking` of {name}"), rows.asking.unwrap_or(1.0), 0.0, ranks + ROUNDING)?;
            for (what, owners) in [("owners", &rows.owners), ("hashed_owners", &rows.hashed_owners)] {
                if !owners.is_empty() && owners.len() != self.ranks as usize {
                    return damaged(format!("`{what}` of {name} are not of {} ranks", self.ranks));
                }
                owners
                    .iter()
                    .try_for_each(|load| number(&format!("`{what}` of {name}"), *load, 0.0, busiest))?;
                // All that travels, if nobody asks himself for anything.
                let all = owners.iter().sum();
                number(&format!("the sum of `{what}` of {name}"), all, 0.0, busiest)?;
            }
            rows.hot.iter().try_for_each(|row| size(&format!("hot {name}"), row.1))?;
            if rows.hot.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                return damaged(format!("hot {name} are not in order"));
            }
            let hot: f64 = rows.hot.iter().map(|row| row.1).sum();
            if hot > rows.sent * (1.0 + SUM) {
                return damaged(format!("hot {name} add up to {hot}, but {} are sent", rows.sent));
            }
            reuse(&name, rows.sent, &rows.reuse)?;
            if let Some(relayed) = &rows.relayed {
                number(
                    &format!("ranks of a node of {name}"),
                    relayed.node.into(),
                    1.0,
                    f64::from(self.ranks),
                )?;
                size(&format!("what relays ask of {name}"), relayed.sent)?;
                reuse(&format!("{name} through relays"), relayed.sent, &relayed.reuse)?;
            }
        }
        for op in &self.ops {
            let name = format!("operation `{}`", op.name);
            seconds(&format!("`time` of {name}"), op.time)?;
            size(&format!("`flops` of {name}"), op.flops)?;
            size(&format!("`bytes` of {name}"), op.bytes)?;
        }
        for kind in &self.kinds {
            let name = format!("kind `{}`", kind.kind);
            seconds(&format!("`fixed` of {name}"), kind.fixed)?;
            size(&format!("`error` of {name}"), kind.error)?;
            number(&format!("`per_flop` of {name}"), kind.per_flop, 0.0, 1.0)?;
            number(&format!("`per_byte` of {name}"), kind.per_byte, 0.0, 1.0)?;
        }
        seconds("`fixed` of `transfers`", self.transfers.fixed)?;
        number("`per_byte` of `transfers`", self.transfers.per_byte, 0.0, 1.0)?;
        if let Some(link) = self.transfers.link {
            seconds("`latency` of `link`", link.latency)?;
            // Less than a byte a second is no link.
            number("`bandwidth` of `link`", link.bandwidth, 1.0, MOST_SIZE)?;
        }
        seconds("`dispatch` of `overhead`", self.overhead.dispatch)?;
        seconds("`wake` of `overhead`", self.overhead.wake)
    }

    /// What is known of the rows of a part of a table. Its parts send the same rows, however many there are.
    pub fn rows_of(&self, table: &str, part: u32) -> Option<&Rows> {
        let of = |r: &&Rows| r.table == table;
        self.rows.iter().filter(of).find(|r| r.part == part).or_else(|| self.rows.iter().find(of))
    }

    /// Fails if lists are not whole.
    fn check_lists(&self) -> Result<(), ProfileError> {
        for (what, missing) in [
            ("kinds of operations", self.kinds.is_empty()),
            ("operations", self.ops.is_empty()),
            ("sizes", self.sizes.is_empty()),
            ("steps", self.steps == 0),
            ("time", self.step == 0.0 || self.ops.iter().all(|op| op.time == 0.0)),
        ] {
            if missing {
                return damaged(format!("it holds no {what}"));
            }
        }
        once(self.ops.iter().map(|op| &op.name), |name| format!("operation `{name}`"))?;
        once(self.kinds.iter().map(|kind| &kind.kind), |name| format!("kind `{name}`"))?;
        once(self.sizes.iter().map(|size| &size.0), |name| format!("size `{name}`"))?;
        once(self.rows.iter().map(|r| (&r.table, r.part)), |(name, _)| format!("rows of `{name}`"))?;
        for rows in &self.rows {
            let name = &rows.table;
            if rows.reuse.is_empty() {
                return damaged(format!("reuse distances of rows of `{name}` are missing"));
            }
            let counted = rows.reuse.iter().map(|counts| counts.microbatches);
            once(counted, |m| format!("reuse of rows of `{name}` for {m} microbatches"))?;
        }
        if self.link.is_some() != self.transfers.link.is_some() {
            return damaged("`link` is named without its constants, or the other way round".into());
        }
        let texts = [Some(&self.machine), self.link.as_ref()];
        if texts.into_iter().flatten().any(|text| text.len() > LONGEST_TEXT) {
            return damaged(format!("`machine` or `link` has more than {LONGEST_TEXT} bytes"));
        }
        Ok(())
    }
}
