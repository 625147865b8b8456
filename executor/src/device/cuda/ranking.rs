//! Ranks of held-out items, by kernels: what the CPU's handler means, in the same rounds.
//!
//! Scores are products of queries with the rows of the rank's block, for so many queries at once as there is room for. What
//! ranks give each other lies in outboxes on the device; where those leave the process it comes down first, and what
//! came goes up. Numbers of better rows always come down, because they are what the host wants to know.

use std::ops::Range;

use fs_kernels::cuda::catalogue::{ids, ranking};
use fs_kernels::cuda::driver::{Area, Driver, Matrix, Memory, Product, Stream, Touch};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call as Launched, In, Out};
use fs_schedule::ranking::{DIGITS, Round, Rounds};
use fs_schedule::{Action, RowMap, Sharding};

use super::kernels::Scratch;
use super::lane::Staging;
use super::outbox::{CudaOutbox, grow};
use super::plain::{Plain, bytes_of};
use super::questions::Asked;
use super::tables::Table;
use super::through_host::sent;
use super::transfer::check;
use super::{Cuda, Cursor, Fault, Job, Lane};
use crate::data::{Histories, Question};
use crate::device::cpu::{Call, EPS, block, put_down, receive};
use crate::device::{Inbox, Progress};

/// State of an evaluation. One stream uses it.
#[derive(Debug, Default)]
pub(super) struct Ranking {
    /// One over the norm of each row of the block.
    norms: Memory,
    /// Ids of the rows of the block, where slots are not row numbers.
    ids: Memory,
    /// Of all samples.
    queries: Memory,
    /// Of the rows of the block, for a chunk of queries.
    scores: Memory,
    /// Sums of products of this rank's columns with all rows.
    products: Memory,
    /// Each target's score.
    targets: Memory,
    /// Numbers of better rows, then of those of them that users know.
    counts: Memory,
    /// What other processes have sent, by rank.
    pub(super) arrived: Vec<Memory>,
    asked: Asked,
    /// What is on its way to the host.
    pub(super) down: Option<Staging>,
}

impl Ranking {
    fn all(&mut self) -> impl Iterator<Item = &mut Memory> {
        let own = [
            &mut self.norms,
            &mut self.ids,
            &mut self.queries,
            &mut self.scores,
            &mut self.products,
            &mut self.targets,
            &mut self.counts,
            &mut self.asked.memory,
        ];
        own.into_iter().chain(&mut self.arrived)
    }

    /// Bytes held.
    pub(super) fn held(&mut self) -> u64 {
        self.all().map(|memory| memory.bytes).sum()
    }

    /// All of its memory, which is gone from then on.
    pub(super) fn take(&mut self) -> Vec<Memory> {
        self.all().map(std::mem::take).filter(|memory| memory.bytes > 0).collect()
    }
}

/// Some floats of a list.
pub(super) fn floats(memory: Memory, first: usize, n: usize) -> Area {
    memory.from(4 * first as u64, 4 * n as u64)
}

/// A batch of questions to a table.
pub(super) struct Asking<'a, D: Driver> {
    pub(super) cuda: &'a Cuda<D>,
    pub(super) job: &'a Job<'a>,
    call: Call<'a, f32>,
    pub(super) stream: Stream,
    pub(super) ranking: &'a mut Ranking,
    /// The table's number.
    number: usize,
    table: &'a fs_schedule::Table,
    map: &'a RowMap,
    histories: &'a Histories,
    /// This rank's shards of its parts, and the columns of each.
    parts: Vec<(Table, Range<usize>)>,
    /// Slots of the first shard.
    first: Range<u64>,
    cosine: bool,
    by_columns: bool,
    pub(super) rounds: Rounds,
}

impl<D: Driver> Cuda<D> {
    /// Rounds of a batch.
    pub(super) fn rounds_of_ranking(&self, lane: &Lane, job: &Job<'_>) -> Result<u64, Fault> {
        let mut ranking = self.ranking.lock();
        Ok(Asking::new(self, lane, job, &mut ranking)?.rounds.count())
    }

    /// Takes in the round before, and fills the outbox of this one.
    pub(super) fn fill_ranking(
        &self,
        lane: &Lane,
        job: &Job<'_>,
        (round, from): (u64, Option<Cursor>),
        outbox: &mut CudaOutbox,
        inbox: Inbox<'_, CudaOutbox>,
    ) -> Result<Progress<Cursor>, Fault> {
        let mut ranking = self.ranking.lock();
        let mut asking = Asking::new(self, lane, job, &mut ranking)?;
        if from.is_some() {
            return asking.come(round, outbox);
        }
        if round == 0 {
            self.order.begin(&*self.driver, job)?;
        }
        if let Some(before) = round.checked_sub(1).and_then(|n| asking.rounds.round(n)) {
            asking.take(before, inbox)?;
        }
        asking.rounds.round(round).map_or(Ok(Progress::Done), |round| asking.give(round, outbox))
    }

    /// Takes in the last round.
    pub(super) fn drain_ranking(
        &self,
        job: &Job<'_>,
        inbox: Inbox<'_, CudaOutbox>,
    ) -> Result<Progress<Cursor>, Fault> {
        let questions = &job.batch.share.batch().questions;
        let mut digits = vec![0.0f32; DIGITS * questions.len()];
        for from in 0..job.env.ranks {
            receive(&sent(inbox), from, 0, |part| {
                check("numbers of better rows", part.reals.len(), digits.len())?;
                digits.iter_mut().zip(part.reals).for_each(|(sum, digit)| *sum += *digit);
                Ok::<_, Fault>(())
            })?;
        }
        put_down(job.env, questions, &digits);
        self.order.end(&*self.driver, job)?;
        Ok(Progress::Done)
    }
}

impl<'a, D: Driver> Asking<'a, D> {
    fn new(
        cuda: &'a Cuda<D>,
        lane: &'a Lane,
        job: &'a Job<'a>,
        ranking: &'a mut Ranking,
    ) -> Result<Self, Fault> {
        let env = job.env;
        let call = Call::new(&cuda.host, &lane.work, job);
        let cosine = matches!(job.op.action, Action::RankItems { cosine: true });
        let (number, _) = call.table(false, 2, 0)?;
        let histories = env.histories.as_deref().ok_or(Fault::NoHistories)?;
        let table = &env.schedule.tables[number];
        let by_columns = matches!(table.sharding, Sharding::ColumnWise { .. });
        // Between runs owners have what hot rows have become.
        let owned = table.sharding.parts() as usize;
        let shapes = cuda.host.tables[number].iter().map(|shard| shard.read().columns.clone());
        let parts = cuda.trained.tables[number].iter().copied().zip(shapes).take(owned).collect();
        let first = cuda.host.tables[number][0].read().rows.clone();
        let own = block(table, &first, env.rank, env.ranks).len();
        let (batch, questions) = (job.number == 0, job.batch.share.batch().questions.len());
        let rounds = Rounds::within(cuda.scores, table, cosine, batch, questions, own);
        let (stream, map) = (cuda.order.stream(job), &env.maps[number]);
        Ok(Self {
            cuda,
            job,
            call,
            stream,
            ranking,
            number,
            table,
            map,
            histories,
            parts,
            first,
            cosine,
            by_columns,
            rounds,
        })
    }

    pub(super) fn questions(&self) -> &'a [Question] {
        &self.job.batch.share.batch().questions
    }

    /// The rows that a rank scores; of another rank only where all have every row.
    pub(super) fn block(&self, rank: usize) -> Range<usize> {
        block(self.table, &self.first, rank, self.job.env.ranks)
    }

    fn own(&self) -> Range<usize> {
        self.block(self.job.env.rank)
    }

    fn dim(&self) -> usize {
        self.table.dim as usize
    }

    pub(super) fn all_rows(&self) -> usize {
        self.table.rows as usize
    }

    /// Whether outboxes leave the process.
    pub(super) fn leaves(&self) -> bool {
        self.cuda.leaves()
    }

    pub(super) fn run(&self, call: &Launched, touches: &[Touch]) -> Result<(), Fault> {
        self.cuda.run(self.stream, call, touches)
    }

    fn zero(&self, area: Area) -> Result<(), Fault> {
        if area.is_empty() { Ok(()) } else { Ok(self.cuda.driver.fill(self.stream, area, 0)?) }
    }

    /// Room for so many bytes; what was there is gone if there was too little.
    fn room(&mut self, which: fn(&mut Ranking) -> &mut Memory, bytes: usize) -> Result<Memory, Fault> {
        let own = which(self.ranking);
        grow(&*self.cuda.driver, self.stream, own, bytes.max(4) as u64)?;
        Ok(*own)
    }

    /// Numbers of the host, on the device for the length of a round.
    pub(super) fn up<E: Plain>(&self, scratch: &mut Scratch<'_, D>, values: &[E]) -> Result<u64, Fault> {
        let bytes = bytes_of(values);
        let memory = scratch.words((bytes.len() as u64).div_ceil(4))?;
        self.cuda.send(self.stream, &bytes, memory.first(bytes.len() as u64))?;
        Ok(memory.address)
    }

    /// Memory for the length of what is done with it.
    pub(super) fn with_scratch<R>(
        &mut self,
        work: impl FnOnce(&mut Self, &mut Scratch<'a, D>) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let mut scratch = Scratch::new(self.cuda, self.stream);
        let done = work(self, &mut scratch);
        scratch.end()?;
        done
    }

    /// The own block, where ranks have whole rows.
    fn rows(&self) -> Matrix {
        let (own, dim) = (self.own(), self.dim());
        let before = own.start - (self.first.start as usize).min(own.start);
        let address = self.parts[0].0.values.address + (4 * before * dim) as u64;
        Matrix {
            address,
            rows: own.len() as u64,
            columns: dim as u64,
            stride: dim as u64,
            precision: Precision::F32,
        }
    }

    /// Takes in what a round has brought.
    fn take(&mut self, round: Round, inbox: Inbox<'_, CudaOutbox>) -> Result<(), Fault> {
        let n = self.questions().len();
        match round {
            Round::Queries => {
                let queries = self.room(|r| &mut r.queries, 4 * n * self.dim())?;
                self.gather(inbox, queries, n * self.dim())?;
                if self.job.number == 0 {
                    self.learn_rows()?;
                }
                let targets = self.room(|r| &mut r.targets, 4 * n)?;
                self.zero(floats(targets, 0, n))?;
                let counts = self.room(|r| &mut r.counts, 16 * n)?;
                self.zero(counts.first(16 * n as u64))
            }
            Round::Norms => {
                let rows = self.own().len();
                let norms = self.room(|r| &mut r.norms, 4 * rows)?;
                self.add_up(inbox, norms, rows)?;
                self.run(&ranking::inverse_roots(rows as u32, EPS as f32, Out::at(norms.address)), &[])
            }
            Round::Scores(start) | Round::Again(start) => {
                let queries = self.rounds.queries_from(start);
                let sums = queries.len() * self.own().len();
                let scores = self.room(|r| &mut r.scores, 4 * sums)?;
                self.add_up(inbox, scores, sums)?;
                self.scale(queries.len())?;
                if round == Round::Scores(start) { self.find_targets(queries) } else { self.count(queries) }
            }
            Round::Targets => {
                let targets = self.ranking.targets;
                self.add_up(inbox, targets, n)
            }
            // The last one is drained.
            Round::Digits => Ok(()),
        }
    }

    /// Fills the outbox of a round.
    fn give(&mut self, round: Round, outbox: &mut CudaOutbox) -> Result<Progress<Cursor>, Fault> {
        outbox.again(&*self.cuda.driver, self.stream)?;
        match round {
            Round::Queries => {
                let own = self.own();
                let asked = (self.questions(), self.histories);
                let of = (self.map, self.table.rows, &own);
                self.ranking.asked.put(self.cuda, self.stream, asked, of)?;
                let samples = self.call.offsets(1)?.len().saturating_sub(1);
                let queries = self.to_everyone(outbox, samples * self.dim())?;
                self.ask(samples, queries)?;
            }
            Round::Norms => {
                let all = self.all_rows();
                let squares = self.room(|r| &mut r.products, 4 * all)?;
                self.zero(floats(squares, 0, all))?;
                for (part, columns) in self.parts.iter().filter(|(part, _)| part.rows > 0) {
                    let (dim, x) = (columns.len() as u32, In::at(part.values.address));
                    let sums = Out::at(squares.address);
                    let call = ranking::add_squares(part.rows, dim, x, u64::from(dim), sums);
                    self.run(&call, &[Touch::In(part.all())])?;
                }
                self.to_blocks(outbox, squares, 1)?;
            }
            Round::Scores(start) | Round::Again(start) => {
                let queries = self.rounds.queries_from(start);
                let products = self.products(queries.clone())?;
                self.to_blocks(outbox, products, queries.len())?;
            }
            Round::Targets => {
                if !self.by_columns {
                    self.in_chunks(Self::find_targets)?;
                }
                let n = self.questions().len();
                let own = self.to_everyone(outbox, n)?;
                if n > 0 {
                    let copies = [(floats(self.ranking.targets, 0, n), own)];
                    self.cuda.driver.copy(self.stream, &copies)?;
                }
            }
            Round::Digits => {
                if self.rounds.all_fit() {
                    self.count(0..self.questions().len())?;
                } else if !self.by_columns {
                    self.in_chunks(Self::count)?;
                }
                return self.begin_down(self.ranking.counts.first(16 * self.questions().len() as u64));
            }
        }
        outbox.filled(&*self.cuda.driver, self.stream)?;
        if !self.leaves() {
            return Ok(Progress::Done);
        }
        let sent = outbox.host.sections[0].everyone;
        let counts = &outbox.host.sections[0].counts;
        let n = if sent { counts.first().copied().unwrap_or(0) } else { counts.iter().sum() };
        self.begin_down(outbox.rows[0].first(4 * n))
    }

    /// The query of a sample is its last token; samples without tokens ask with zeros.
    fn ask(&mut self, samples: usize, queries: Area) -> Result<(), Fault> {
        let (n, dim) = (samples as u32, self.table.dim);
        let h = self.cuda.read_operand(self.job, 0, self.stream)?;
        let offsets: Vec<u32> = self.call.offsets(1)?.iter().map(|o| *o as u32).collect();
        self.with_scratch(|own, scratch| {
            let offsets = In::at(own.up(scratch, &offsets)?);
            let ((x, stride), out) = (h.input(), Out::at(queries.address));
            let call = ranking::last_tokens(n, dim, x, stride, offsets, out);
            own.run(&call, &[Touch::In(h.area), Touch::Out(queries)])?;
            if own.cosine {
                let norms = Out::at(scratch.words(u64::from(n))?.address);
                let (asked, width) = (In::at(queries.address), u64::from(dim));
                let call = ranking::inverse_norms(n, dim, asked, width, EPS as f32, norms);
                own.run(&call, &[Touch::In(queries)])?;
                let to = Out::at(queries.address);
                let call = ranking::scale_rows(n, dim, norms.read(), to, width);
                own.run(&call, &[Touch::InOut(queries)])?;
            }
            Ok(())
        })
    }

    /// What is the same for all batches: norms of rows, and which rows the slots of the block have.
    fn learn_rows(&mut self) -> Result<(), Fault> {
        let own = self.own();
        let n = own.len() as u32;
        if self.cosine && !self.by_columns {
            let norms = self.room(|r| &mut r.norms, 4 * own.len())?;
            let (rows, out) = (self.rows(), Out::at(norms.address));
            let (x, stride) = (In::at(rows.address), rows.stride);
            let call = ranking::inverse_norms(n, self.table.dim, x, stride, EPS as f32, out);
            self.run(&call, &[Touch::In(rows.area())])?;
        }
        let Some(words) = self.map.words().filter(|_| n > 0) else { return Ok(()) };
        let list = self.room(|r| &mut r.ids, 8 * own.len())?;
        let slots: Vec<i64> = own.map(|slot| slot as i64).collect();
        self.cuda.send(self.stream, &bytes_of(&slots), list.first(8 * u64::from(n)))?;
        let permutation = self.cuda.shelf.slots(self.number).permutation;
        self.with_scratch(|own, scratch| {
            let places = (words.rows.len() / 2) as u32;
            let moved = if places == 0 { In::NULL } else { In::at(own.up(scratch, &words.rows)?) };
            let (from, to) = (In::at(list.address), Out::at(list.address));
            own.run(&ids::rows_of_slots(n, from, permutation, moved, places, to), &[])
        })
    }

    /// Products of the own columns with every row of the table, for some queries.
    fn products(&mut self, queries: Range<usize>) -> Result<Memory, Fault> {
        let (n, all, dim) = (queries.len(), self.all_rows(), self.dim());
        let products = self.room(|r| &mut r.products, 4 * n * all)?;
        let c = Matrix {
            address: products.address,
            rows: n as u64,
            columns: all as u64,
            stride: all as u64,
            precision: Precision::F32,
        };
        if n == 0 || all == 0 {
            return Ok(products);
        }
        let mut add = false;
        for (part, columns) in self.parts.iter().filter(|(part, _)| part.rows > 0) {
            let address = self.ranking.queries.address + (4 * (queries.start * dim + columns.start)) as u64;
            let width = columns.len() as u64;
            let a = Matrix {
                address,
                rows: n as u64,
                columns: width,
                stride: dim as u64,
                precision: Precision::F32,
            };
            let b = Matrix {
                address: part.values.address,
                rows: all as u64,
                columns: width,
                stride: width,
                precision: Precision::F32,
            };
            self.cuda.driver.product(self.stream, &Product { a: (a, false), b: (b, true), c, add })?;
            add = true;
        }
        if !add {
            self.zero(floats(products, 0, n * all))?;
        }
        Ok(products)
    }

    /// Scores the own block for all queries, a chunk at a time.
    fn in_chunks(
        &mut self,
        then: impl Fn(&mut Self, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let (n, rows, dim) = (self.questions().len(), self.rows(), self.dim());
        if rows.rows == 0 {
            return Ok(());
        }
        for start in (0..n).step_by(self.rounds.chunk()) {
            let queries = self.rounds.queries_from(start);
            let len = queries.len() as u64;
            let scores = self.room(|r| &mut r.scores, 4 * queries.len() * rows.rows as usize)?;
            let address = self.ranking.queries.address + (4 * start * dim) as u64;
            let a = Matrix {
                address,
                rows: len,
                columns: dim as u64,
                stride: dim as u64,
                precision: Precision::F32,
            };
            let c = Matrix {
                address: scores.address,
                rows: len,
                columns: rows.rows,
                stride: rows.rows,
                precision: Precision::F32,
            };
            let product = Product { a: (a, false), b: (rows, true), c, add: false };
            self.cuda.driver.product(self.stream, &product)?;
            self.scale(queries.len())?;
            then(self, queries)?;
        }
        Ok(())
    }

    /// Divides scores of so many queries by the norms of their rows.
    fn scale(&self, queries: usize) -> Result<(), Fault> {
        let rows = self.own().len();
        if !self.cosine || queries * rows == 0 {
            return Ok(());
        }
        let (norms, scores) = (In::at(self.ranking.norms.address), Out::at(self.ranking.scores.address));
        let call = ranking::scale_columns(queries as u32, rows as u32, norms, scores, rows as u64);
        self.run(&call, &[Touch::InOut(floats(self.ranking.scores, 0, queries * rows))])
    }

    /// Puts down the scores of targets that lie in the own block.
    fn find_targets(&mut self, queries: Range<usize>) -> Result<(), Fault> {
        let (n, rows) = (queries.len(), self.own().len());
        if n * rows == 0 {
            return Ok(());
        }
        let ranking = &*self.ranking;
        let local = ranking.asked.rows_of_targets(queries.start);
        let (scores, targets) = (In::at(ranking.scores.address), floats(ranking.targets, queries.start, n));
        let (out, fault) = (Out::at(targets.address), self.cuda.fault());
        let call = ranking::target_scores(n as u32, rows as u32, scores, local, out, fault);
        self.run(&call, &[Touch::In(floats(ranking.scores, 0, n * rows)), Touch::InOut(targets)])
    }

    /// Counts the rows of the own block that are better than the targets.
    fn count(&mut self, queries: Range<usize>) -> Result<(), Fault> {
        let (own, all) = (self.own(), self.questions().len());
        let (n, rows, first) = (queries.len() as u32, own.len() as u32, queries.start);
        if n == 0 || rows == 0 {
            return Ok(());
        }
        let ranking = &*self.ranking;
        let ids = if self.map.is_range() { In::NULL } else { In::at(ranking.ids.address) };
        let scores: In<f32> = In::at(ranking.scores.address);
        let targets: In<f32> = In::at(ranking.targets.address + 4 * first as u64);
        let of_targets = ranking.asked.targets(first);
        let better = Out::at(ranking.counts.address + 8 * first as u64);
        let known = Out::at(ranking.counts.address + 8 * (all + first) as u64);
        let reads = [
            Touch::In(floats(ranking.scores, 0, queries.len() * own.len())),
            Touch::In(floats(ranking.targets, first, queries.len())),
        ];
        let start = own.start as i64;
        let call = ranking::count_better(n, rows, scores, targets, of_targets, ids, start, better);
        self.run(&call, &reads)?;
        let (offsets, seen) = (ranking.asked.offsets(first), ranking.asked.seen());
        let (local, fault) = (ranking.asked.rows_of_seen(), self.cuda.fault());
        let call =
            ranking::count_known(n, rows, scores, targets, of_targets, offsets, seen, local, known, fault);
        self.run(&call, &reads)
    }
}
