//! Hot rows, which all ranks have: shares of entries, and what is put together of both.

use super::{EvalError, Evaluation, Operands, Part, Request, Values};
use crate::distribution::op::Op;
use crate::distribution::term::Id;

impl Evaluation<'_> {
    /// Entries of rows with owners, as many for each owner as there are, or those of hot rows.
    pub(super) fn share(&self, o: &Operands<'_>, hot: bool, rank: usize) -> Result<Part, EvalError> {
        let mut counts = vec![0; self.world.ranks];
        let mut requests = Vec::new();
        for request in o.requests(0, rank)?.iter().filter(|r| self.world.hot.contains(&r.row) == hot) {
            counts[if hot { rank } else { self.world.owner(request.row) }] += 1;
            requests.push(*request);
        }
        Ok(Part { values: Values::Requests(requests), counts })
    }

    /// Rows of both shares in the order of all entries.
    pub(super) fn unite(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let n = o.parts.len();
        let entries = o.requests(n - 1, rank)?;
        let owned = if n == 3 {
            o.reals(0, rank)?.to_vec()
        } else {
            // Rows that have not arrived yet are nothing that may be used: they show.
            let width = self.terms.ty(id).columns as usize;
            let many = entries.iter().filter(|r| !self.world.hot.contains(&r.row)).count();
            let mut owned = vec![vec![f32::NAN; width]; many];
            for i in (0..n - 2).step_by(2) {
                for (row, at) in o.reals(i, rank)?.iter().zip(o.positions(i + 1, rank)?) {
                    let place = owned.get_mut(at[0]).ok_or_else(|| o.wrong("a position is out of range"))?;
                    place.clone_from(row);
                }
            }
            owned
        };
        let places = self.places_of_shares(entries);
        let hot = o.reals(n - 2, rank)?;
        let rows = places.map(|(hot_one, at)| o.picked(if hot_one { hot } else { &owned }, at).cloned());
        let rows = rows.collect::<Result<_, _>>()?;
        Ok(Part { values: Values::Reals(rows), counts: o.part(n - 1, rank)?.counts.clone() })
    }

    /// Where the entries of a share stand among all; `None` of entries that are no share.
    pub(super) fn places_among_all(
        &self,
        entries: Id,
        o: &Operands<'_>,
        rank: usize,
    ) -> Result<Option<Vec<usize>>, EvalError> {
        let node = self.terms.node(entries);
        let Op::Share { hot, .. } = node.op else { return Ok(None) };
        let Values::Requests(all) = &self.known_part(node.children[0], o, rank)?.values else {
            return Err(o.wrong("no entries"));
        };
        let places = self.places_of_shares(all).enumerate().filter(|(_, (is_hot, _))| *is_hot == hot);
        Ok(Some(places.map(|(place, _)| place).collect()))
    }

    /// Of each entry which share it is of, and where it stands there.
    fn places_of_shares(&self, entries: &[Request]) -> impl Iterator<Item = (bool, usize)> {
        let mut next = [0; 2];
        entries.iter().map(move |request| {
            let hot = self.world.hot.contains(&request.row);
            let at = next[usize::from(hot)];
            next[usize::from(hot)] += 1;
            (hot, at)
        })
    }

    /// Gradients of a share.
    pub(super) fn cut(&self, id: Id, o: &Operands<'_>, rank: usize) -> Result<Part, EvalError> {
        let share = self.terms.node(id).children[1];
        let places = self.places_among_all(share, o, rank)?.ok_or_else(|| o.wrong("no share"))?;
        let gradients = o.reals(0, rank)?;
        let rows = places.iter().map(|at| o.picked(gradients, *at).cloned()).collect::<Result<_, _>>()?;
        Ok(Part { values: Values::Reals(rows), counts: o.part(1, rank)?.counts.clone() })
    }
}
