//! Updates of tables and of dense parameters, by kernels.
//!
//! An update of rows has the distinct rows of what was received, ascending, and for each the sum of its gradients: within
//! each source rank in position order, then over the ranks of a node, then over nodes. How many rows that are only the device
//! knows, so the list has room for as many as there are gradients, and the kernels pass over its end.

use fs_kernels::cuda::catalogue::{dense_optimizers, ids, optimizers, sort};
use fs_kernels::cuda::driver::{Driver, Memory, Stream, Touch};
use fs_kernels::cuda::lists::{Segments, Senders, Sorting, bits_below, received_sum, scan_room, sort_by};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out};
use fs_kernels::optimizer::{SparseKind, adam_rate, dense_adam_factors};
use fs_schedule::{Action, DenseOptimizer, Place};

use super::kept::Update;
use super::kernels::{Enqueued, Scratch};
use super::operands::Located;
use super::plain::{bytes_of, values_of};
use super::stored::Capture;
use super::tables::{Dense, Table};
use super::transfer::check;
use super::{Cuda, Fault, Job};

/// What an update of rows works on.
struct Received {
    table: (usize, usize),
    /// Rows that the others have named, those of a class at some places of the list.
    rows: Located,
    at: Option<Located>,
    gradients: Located,
    /// Where the gradients of each rank end.
    ends: Vec<u32>,
}

impl<D: Driver> Cuda<D> {
    fn received(&self, job: &Job<'_>, stream: Stream) -> Result<Option<Received>, Fault> {
        let Action::Apply { exchange, class } = job.op.action else { return Ok(None) };
        let part = job.exchange(exchange)?.0.part as usize;
        let table = match job.op.writes.first().map(|operand| operand.place) {
            Some(Place::Table(n)) if self.trained.tables.get(n as usize).is_some_and(|t| part < t.len()) => {
                (n as usize, part)
            }
            _ => return Err(Fault::NoExchange { exchange }),
        };
        let more = usize::from(class.is_some());
        let rows = self.read_operand(job, 0, stream)?;
        let at = class.map(|_| self.read_operand(job, 1, stream)).transpose()?;
        let gradients = self.read_operand(job, 2 + more, stream)?;
        let mut counts = Vec::new();
        self.host_counts(job, job.op.reads[1 + more], &mut counts)?;
        let ends: Vec<u32> = values_of::<u64>(&counts)
            .iter()
            .scan(0, |end, n| {
                *end += *n as u32;
                Some(*end)
            })
            .collect();
        let n = gradients.shape.rows;
        check("rows of gradients", at.unwrap_or(rows).shape.rows, n)?;
        check("gradients of all ranks", ends.last().map_or(0, |end| *end as usize), n)?;
        Ok(Some(Received { table, rows, at, gradients, ends }))
    }

    /// Enqueues an update of a table, if there is room for what it has to put aside.
    pub(super) fn apply(&self, job: &Job<'_>, stream: Stream) -> Result<Enqueued, Fault> {
        let received = self.received(job, stream)?.ok_or(Fault::NotTransfer)?;
        if received.gradients.area.is_empty() {
            return Ok(Enqueued::Done);
        }
        let capture = self.capture_of(received.table.0, received.table.1)?;
        if matches!(capture, Capture::No) && !self.has_room(received.table, job.batch.step)? {
            return Ok(Enqueued::Crowded);
        }
        let mut scratch = Scratch::new(self, stream);
        let done = self.apply_received(job, &received, &capture, &mut scratch);
        scratch.end().and(done)?;
        Ok(Enqueued::Done)
    }

    fn apply_received(
        &self,
        job: &Job<'_>,
        received: &Received,
        capture: &Capture,
        scratch: &mut Scratch<'_, D>,
    ) -> Result<(), Fault> {
        let stream = scratch.stream;
        let (t, part) = received.table;
        let table = &self.trained.tables[t][part];
        let n = received.gradients.shape.rows as u32;
        let (members, sums) = self.sum_by_row(job, received, table, scratch)?;
        let list = members.first(4 * u64::from(n));
        let (rows, gradients) = (In::at(members.address), In::at(sums.address));
        let written = |all| Touch::Rows { all, list, at: None, written: true };
        if let Capture::Into(memory) = capture {
            let (to, dim) = (Out::at(memory.address), table.dim);
            let stride = u64::from(dim);
            let call =
                optimizers::capture_rows(n, dim, rows, gradients, stride, to, table.rows, self.fault());
            let all = fs_kernels::cuda::driver::Area { address: memory.address, ..table.all() };
            return self.run(stream, &call, &[written(all)]);
        }
        let call = self.rule(table, job.batch.step + 1, n, (rows, gradients));
        let fields = table.fields().into_iter().filter(|(_, width)| *width > 0);
        let touches: Vec<Touch> = fields.map(|(all, _)| written(all)).collect();
        let mut change = || self.run(stream, &call, &touches);
        let mut update = Update {
            stream,
            step: job.batch.step,
            table: received.table,
            rows: (n, members),
            change: &mut change,
        };
        self.update_rows(scratch, &mut update)
    }

    /// The distinct rows, and the sum of the gradients of each.
    fn sum_by_row(
        &self,
        job: &Job<'_>,
        received: &Received,
        table: &Table,
        scratch: &mut Scratch<'_, D>,
    ) -> Result<(Memory, Memory), Fault> {
        let stream = scratch.stream;
        let Received { table: (t, part), rows, at, gradients, ends } = received;
        let (n, dim) = (gradients.shape.rows as u32, table.dim);
        let shard = (*t as u32, *part as u32);
        let set = self.trained.set(shard, stream);
        let (set, all) = set.ok_or_else(|| Fault::Unwritten(format!("the set of rows of t{t}")))?;
        let mut touched = vec![Touch::InOut(all)];
        let mut list = In::at(rows.area.address);
        if let Some(at) = at {
            let (out, limit) = (scratch.out(n)?, rows.shape.rows as u32);
            let call = sort::take_words(n, list, limit, In::at(at.area.address), out, self.fault());
            self.run(stream, &call, &[Touch::In(rows.flat()), Touch::In(at.flat())])?;
            list = out.read();
        } else {
            touched.push(Touch::In(rows.flat()));
        }
        let members = scratch.words(u64::from(n))?;
        // The list ends with rows that there are not.
        self.driver.fill(stream, members.first(4 * u64::from(n)), 0xff)?;
        let slots = scratch.out(n)?;
        let mut calls = set.of_rows(n, list, Out::at(members.address), Out::NULL, self.fault());
        calls.push(ids::bitmap_rank_rows(n, list, set.limit, set.bits.read(), set.before.read(), slots));
        calls.push(ids::bitmap_remove_rows(n, list, set.limit, set.bits));
        for call in calls {
            self.run(stream, &call, &touched)?;
        }
        let counts = Sorting::counts(n);
        let work = Sorting {
            keys: [scratch.out(n)?, scratch.out(n)?],
            values: [scratch.out(n)?, scratch.out(n)?],
            counts: scratch.out(counts)?,
            sums: scratch.out(scan_room(counts) as u32)?,
        };
        let (calls, sorted) = sort_by(n, bits_below(u64::from(n)), slots.read(), In::NULL, &work, 0);
        for call in calls {
            self.run(stream, &call, &[])?;
        }
        let (group_ends, long, count) = (scratch.out(n)?, scratch.out(n)?, scratch.words(1)?);
        self.run(stream, &sort::bounds_of(n, n, sorted.keys, group_ends), &[])?;
        self.driver.fill(stream, count.first(4), 0)?;
        let sources = scratch.words(ends.len() as u64)?;
        self.send(stream, &bytes_of(ends), sources.first(4 * ends.len() as u64))?;
        let sums = scratch.words(u64::from(n) * u64::from(dim))?;
        let groups = Segments {
            n,
            groups: n,
            positions: sorted.values,
            ends: group_ends.read(),
            long,
            count: Out::at(count.address),
        };
        let precision = gradients.precision();
        let senders = Senders {
            ends: In::at(sources.address),
            count: ends.len() as u32,
            node: job.env.nodes.each(),
            // A relay would send its node's sum, and some do.
            round: precision == Precision::Bf16 && job.env.schedule.settings.node.is_some(),
        };
        let (to, stride) = (Out::at(sums.address), u64::from(dim));
        for call in received_sum(&groups, dim, gradients.input(), senders, to, stride) {
            self.run(stream, &call.of(precision), &[Touch::In(gradients.area)])?;
        }
        Ok((members, sums))
    }

    /// The rule of a table's optimizer; `step` counts from 1.
    fn rule(&self, table: &Table, step: u64, n: u32, (rows, gradients): (In<u32>, In<f32>)) -> Call {
        let (own, stride, fault) = (table.update, u64::from(table.dim), self.fault());
        let (cols, limit, to) = (table.dim, table.rows, Out::at(table.values.address));
        let (first, second) = (Out::at(table.states[0].address), Out::at(table.states[1].address));
        let (lr, eps, decay) = (own.lr as f32, own.eps as f32, own.weight_decay as f32);
        match own.kind {
            SparseKind::Sgd => {
                optimizers::sgd_rows(n, cols, lr, decay, rows, gradients, stride, to, limit, stride, fault)
            }
            SparseKind::RowwiseAdagrad => optimizers::rowwise_adagrad_rows(
                n, cols, lr, eps, decay, rows, gradients, stride, to, limit, stride, first, fault,
            ),
            SparseKind::Adagrad => optimizers::adagrad_rows(
                n, cols, lr, eps, decay, rows, gradients, stride, to, limit, stride, first, fault,
            ),
            SparseKind::Adam => {
                let rate = adam_rate(own.lr, own.beta1, own.beta2, step) as f32;
                let (keep1, keep2) = ((1.0 - own.beta1) as f32, (1.0 - own.beta2) as f32);
                optimizers::adam_rows(
                    n, cols, rate, eps, decay, keep1, keep2, rows, gradients, stride, to, limit, stride,
                    first, second, fault,
                )
            }
        }
    }

    /// Enqueues a step of the optimizer of dense parameters.
    pub(super) fn dense_update(&self, job: &Job<'_>, stream: Stream) -> Result<Enqueued, Fault> {
        if self.captures() {
            return Ok(Enqueued::Done);
        }
        let (optimizer, step) = (job.env.schedule.settings.optimizer, job.batch.step);
        for operand in &job.op.reads {
            let p = match operand.place {
                Place::Gradient(n) if (n as usize) < self.trained.dense.len() => n as usize,
                _ => return Err(Fault::Unwritten(operand.to_string())),
            };
            self.update_whole((p, step), stream, |dense| {
                let (call, states) = dense_rule(dense, optimizer, step + 1);
                let mut touches = vec![Touch::In(dense.gradient.area()), Touch::InOut(dense.values.area())];
                touches.extend(dense.states[..states].iter().map(|state| Touch::InOut(state.area())));
                touches.extend((dense.rounded.bytes > 0).then(|| Touch::Out(dense.rounded.area())));
                self.run(stream, &call, &touches)
            })?;
        }
        Ok(Enqueued::Done)
    }
}

/// The rule of a dense parameter's optimizer, and how many states it has; `step` counts from 1.
fn dense_rule(dense: &Dense, optimizer: DenseOptimizer, step: u64) -> (Call, usize) {
    let (w, g, n) = (Out::at(dense.values.address), In::at(dense.gradient.address), dense.elements);
    let [first, second] = dense.states.map(|state| Out::at(state.address));
    // Brain floats are written by the kernels that know them, and none where there is no memory for them.
    let precision = if dense.rounded.bytes > 0 { Precision::Bf16 } else { Precision::F32 };
    let rounded = Out::at(dense.rounded.address);
    let (call, states) = match optimizer {
        DenseOptimizer::Sgd { lr, momentum, weight_decay } => {
            let (lr, momentum, decay) = (lr as f32, momentum as f32, weight_decay as f32);
            let states = usize::from(dense.states[0].bytes > 0);
            (dense_optimizers::dense_sgd(w, g, first, rounded, lr, momentum, decay, n), states)
        }
        DenseOptimizer::Adam { lr, beta1, beta2, eps, weight_decay } => {
            let (rate, root) = dense_adam_factors(lr, beta1, beta2, step);
            let (keep1, keep2) = ((1.0 - beta1) as f32, (1.0 - beta2) as f32);
            let (rate, root, eps, decay) = (rate as f32, root as f32, eps as f32, weight_decay as f32);
            let call = dense_optimizers::dense_adam(
                w, g, first, second, rounded, rate, root, keep1, keep2, eps, decay, n,
            );
            (call, 2)
        }
    };
    (call.of(precision), states)
}
