//! What a relay does for its node, by kernels: it asks owners once for what its ranks ask it for, hands rows on, and sums
//! gradients.

use fs_kernels::cuda::catalogue::{classes, ids, mxint8, rows, sort};
use fs_kernels::cuda::driver::{Driver, Touch};
use fs_kernels::cuda::lists::{Segments, bits_below, node_sum, sort_by};
use fs_kernels::cuda::{In, Out};
use fs_schedule::Element;

use super::Fault;
use super::ids::Ids;
use super::kernels::result;
use super::numbers::{Room, Then};
use super::transfer::check;

/// Where what the node asks for stands among what is there.
struct Places {
    n: u32,
    at: In<u32>,
    /// What reads them touches.
    touch: Option<Touch>,
}

impl<D: Driver> Ids<'_, D> {
    /// Each row once that the node asks for, by owner.
    pub(super) fn unique_asked(&mut self, exchange: u32) -> Result<(Room, Then), Fault> {
        let (rows, owners) = self.shares(self.job.exchange(exchange)?.1);
        let with_uses = self.job.op.reads.len() > 2;
        let asked = self.read(0)?;
        let n = asked.shape.rows as u32;
        let room = self.room(owners as usize)?;
        let (set, _) = self.bitmap(rows.saturating_mul(u64::from(owners)))?;
        let entries = self.write_at_most(0, n as usize)?.flat();
        let inverse = self.write(2 + usize::from(with_uses))?.flat();
        // Behind the last entry stand greater numbers than ids.
        self.cuda.driver.fill(self.stream, entries, 0xff)?;
        let (list, to, places) =
            (In::at(asked.area.address), Out::at(entries.address), Out::at(inverse.address));
        let [number @ .., rank] = set.ids_of_rows(n, list, to, places, room.fault());
        self.run_all(number, &[Touch::In(asked.flat()), Touch::InOut(entries)])?;
        self.run(&rank, &[Touch::In(asked.flat()), Touch::Out(inverse)])?;
        let call = ids::count_by_owner(owners, n, to.read(), rows, room.counts());
        self.run(&call, &[Touch::In(entries)])?;
        if with_uses {
            // First and last of any rank of the node.
            let (told, uses) = (self.read(2)?, self.write_at_most(2, n as usize)?.flat());
            check("uses of entries", told.shape.rows, n as usize)?;
            let (first, last) = (self.scratch.out(n)?, self.scratch.out(n)?);
            self.run(&ids::uses_begin(n, first, last), &[])?;
            let from = In::at(told.area.address);
            let call = ids::uses_join(n, places.read(), from, n, first, last, room.fault());
            self.run(&call, &[Touch::In(inverse), Touch::In(told.area)])?;
            let call = ids::uses_end(n, first.read(), last.read(), Out::at(uses.address));
            self.run(&call, &[Touch::Out(uses)])?;
        }
        Ok((room, Then::Entries))
    }

    /// Classes of what the node asks for, from those of what the relay asks for.
    pub(super) fn pass_classes(&mut self) -> Result<(), Fault> {
        let (classes, places, to) = (self.read(0)?, self.read(1)?, self.write(0)?);
        check("classes of a node", places.shape.rows, to.shape.rows)?;
        let call = sort::take_bytes(
            to.shape.rows as u32,
            In::at(classes.area.address),
            classes.shape.rows as u32,
            In::at(places.area.address),
            Out::at(to.area.address),
            self.cuda.fault(),
        );
        self.run(&call, &[Touch::In(classes.flat()), Touch::In(places.flat()), Touch::Out(to.flat())])
    }

    /// Of a class, both what is asked for and what is there is listed, by operands `asked` and `there`.
    fn found(&mut self, all: usize, class: Option<(usize, usize)>) -> Result<Places, Fault> {
        let all = self.read(all)?;
        let (list, limit) = (In::at(all.area.address), all.shape.rows as u32);
        let Some((asked, there)) = class else {
            return Ok(Places { n: limit, at: list, touch: Some(Touch::In(all.flat())) });
        };
        let (asked, there) = (self.read(asked)?, self.read(there)?);
        let n = asked.shape.rows as u32;
        let found = self.scratch.out(n)?;
        let call = classes::places_in_class(
            n,
            In::at(asked.area.address),
            list,
            limit,
            In::at(there.area.address),
            there.shape.rows as u32,
            found,
            self.cuda.fault(),
        );
        let touches = [asked, all, there].map(|at| Touch::In(at.flat()));
        self.run(&call, &touches)?;
        Ok(Places { n, at: found.read(), touch: None })
    }

    /// Rows for each that asked.
    pub(super) fn pass_rows(&mut self, class: Option<u32>) -> Result<(), Fault> {
        let places = self.found(1, class.map(|_| (3, 2)))?;
        let x = self.read(0)?;
        let (y, add) = self.cuda.written_operand(self.job, 0, self.stream)?;
        check("rows of a node", places.n as usize, y.shape.rows)?;
        let ((from, stride), (to, to_stride)) = (x.input(), y.output());
        let (n, columns) = (places.n, y.shape.columns() as u32);
        let (there, add_in, fault) = (x.shape.rows as u32, u32::from(add), self.cuda.fault());
        let call = if x.element == Element::Mxint8 {
            let (from, to) = (In::at(x.area.address), Out::at(y.area.address));
            mxint8::pass_mxint8(n, columns, from, there, places.at, to, fault)
        } else {
            rows::expand(n, columns, from, there, stride, places.at, to, to_stride, add_in, fault)
                .of(y.precision())
        };
        let touches: Vec<Touch> =
            [Touch::In(x.area), result(&y, add)].into_iter().chain(places.touch).collect();
        self.run(&call, &touches)
    }

    /// Sums of what the node's ranks send.
    pub(super) fn sum_asked(&mut self, class: Option<u32>) -> Result<(), Fault> {
        let places = self.found(0, class.map(|_| (3, 4)))?;
        let gradients = self.read(2)?;
        let (y, add) = self.cuda.written_operand(self.job, 0, self.stream)?;
        if add {
            let reason = "what a relay sums is sent, and nothing is there before";
            return Err(Fault::NoKernel { action: self.job.op.action.name(), reason });
        }
        let mut end = 0;
        let each = |n: &u64| {
            end += *n as u32;
            end
        };
        let ends: Vec<u32> = self.call.read_counts(1)?.slice()?.iter().map(each).collect();
        let (n, groups, fault) = (places.n, y.shape.rows as u32, self.cuda.fault());
        check("gradients of a node", n as usize, gradients.shape.rows)?;
        check("gradients of its ranks", n as usize, end as usize)?;
        let touches: Vec<Touch> = places.touch.into_iter().collect();
        self.run(&sort::check_below(n, places.at, groups, fault), &touches)?;
        let work = self.scratch.sorting(n)?;
        // What is not there stands behind all that is.
        let bits = bits_below(u64::from(groups) + 1);
        let (calls, sorted) = sort_by(n, bits, places.at, In::NULL, &work, 0);
        self.run_all(calls, &touches)?;
        let (bounds, long, count) =
            (self.scratch.out(groups)?, self.scratch.out(groups)?, self.scratch.words(1)?);
        self.run(&sort::bounds_of(groups, n, sorted.keys, bounds), &[])?;
        self.cuda.driver.fill(self.stream, count.first(4), 0)?;
        let segments = Segments {
            n,
            groups,
            positions: sorted.values,
            ends: bounds.read(),
            long,
            count: Out::at(count.address),
        };
        // All of one node: the sum is one of the terms that owners add, and is rounded as those are.
        let (sources, columns) = ((In::at(self.up(&ends)?), ends.len() as u32), y.shape.columns() as u32);
        let ((to, stride), precision) = (y.output(), y.precision());
        let [begin, most, rest] = node_sum(&segments, columns, gradients.input(), sources, to, stride);
        self.run(&begin, &[])?;
        self.run(&most.of(precision), &[Touch::In(gradients.area), Touch::Out(y.area)])?;
        // Long lists come on top of what the others have written.
        self.run(&rest.of(precision), &[Touch::In(gradients.area), Touch::InOut(y.area)])
    }
}
