//! What a device is told of an operation, and what it says back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fs_kernels::random::RandomKey;
use fs_schedule::action::Effect;
use fs_schedule::{
    Buffer, CostModel, Exchange, Extent, Nodes, Op, Operand, Program, RowMap, Schedule, Symbol, Table,
};
use fs_workload::placement::HotRows;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::Fault;
use crate::data::assign::Assigner;
use crate::data::samples::{Blocks, Deal};
use crate::data::share::{Share, Span};
use crate::data::sizes::Layout;
use crate::data::{GlobalBatch, Histories};
use crate::evaluate::Outcome;

/// What the host knows of a rank.
pub struct Env {
    /// The schedule.
    pub schedule: Arc<Schedule>,
    /// This rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Per table, which slot each of its rows is in.
    pub maps: Arc<[RowMap]>,
    /// Per table, its hot rows.
    pub hot: Vec<Option<HotRows>>,
    /// Which ranks share a node.
    pub nodes: Nodes,
    /// Which samples of a training batch this rank works on.
    pub deal: Arc<dyn Deal>,
    /// Plans which rank works on which sample.
    pub assigner: Mutex<Assigner>,
    /// The batches in flight: batch n at n modulo their number.
    pub batches: Vec<RwLock<Batch>>,
    /// Entries that this rank asked for, per exchange and class of lookups.
    pub asked: Vec<Vec<AtomicU64>>,
    /// Entries that this rank was asked for in training, per exchange.
    pub served: Vec<AtomicU64>,
    /// Bytes that other ranks did not send to this one because rows were asked for on their behalf, in training.
    pub spared: AtomicU64,
    /// Users' histories, for evaluation.
    pub(crate) histories: Option<Arc<Histories>>,
    /// Ranks of held-out items in the present evaluation; every rank has all of them.
    pub(crate) outcomes: Mutex<Vec<Outcome>>,
}

/// A rank's part of a batch in flight.
#[derive(Debug, Default)]
pub struct Batch {
    /// Counted from the first of the run.
    pub number: u64,
    /// The step that it trains.
    pub step: u64,
    /// The rank's share.
    pub share: Share,
    /// For how many nanoseconds the rank's compute engine worked for the batch that had this place before; 0 if that is not
    /// known, or nobody asks.
    pub worked: u64,
    /// This rank's contributions to the loss (bits of f64), in the plan's order.
    pub losses: Vec<AtomicU64>,
}

impl Batch {
    /// This rank's contribution to the loss.
    pub fn loss(&self) -> f64 {
        self.losses.iter().fold(0.0, |sum, l| sum + f64::from_bits(l.load(Ordering::Relaxed)))
    }
}

impl Env {
    /// Costs of a rank's step and of samples, if they were fitted to measured times.
    pub(crate) fn fitted(&self) -> Option<(f64, CostModel)> {
        self.assigner.lock().fitted()
    }

    /// A rank of `ranks` that has `ring` batches in flight.
    pub fn new(
        schedule: &Arc<Schedule>,
        maps: &Arc<[RowMap]>,
        (rank, ranks): (usize, usize),
        seed: u64,
        ring: usize,
        histories: Option<Arc<Histories>>,
    ) -> Self {
        let layout = Arc::new(Layout::new(schedule));
        let batch =
            || RwLock::new(Batch { number: u64::MAX, share: Share::new(&layout), ..Batch::default() });
        Self {
            schedule: Arc::clone(schedule),
            rank,
            ranks,
            seed,
            maps: Arc::clone(maps),
            hot: schedule.tables.iter().map(|t| HotRows::new(&t.hot)).collect(),
            nodes: Nodes::new(ranks as u32, schedule.settings.node),
            deal: Arc::new(Blocks),
            assigner: Mutex::default(),
            batches: (0..ring).map(|_| batch()).collect(),
            asked: layout.classes().map(|n| (0..n).map(|_| AtomicU64::new(0)).collect()).collect(),
            served: schedule.exchanges.iter().map(|_| AtomicU64::new(0)).collect(),
            spared: AtomicU64::new(0),
            histories,
            outcomes: Mutex::default(),
        }
    }

    /// Whether it is worth knowing how long batches of a program take.
    pub fn measures(&self, program: &Program) -> bool {
        let fits = self.schedule.settings.balance.as_ref().is_some_and(|b| b.fit);
        fits && std::ptr::eq(program, &raw const self.schedule.train)
    }

    /// Puts a batch of a program into its place in the ring, where one was for which the rank `worked`; `losses` operations
    /// add to its loss.
    pub fn load(
        &self,
        program: &Program,
        (number, step): (u64, u64),
        losses: usize,
        worked: u64,
        batch: Arc<GlobalBatch>,
    ) -> Result<(), Fault> {
        let place = self.batches[(number % self.batches.len() as u64) as usize].try_write();
        let mut place = place.ok_or(Fault::Replaced { batch: number })?;
        // Microbatches are cuts of training batches.
        let training = std::ptr::eq(program, &raw const self.schedule.train);
        let cuts = if training { self.schedule.settings.microbatches as usize } else { 1 };
        place.losses.resize_with(losses, AtomicU64::default);
        place.losses.iter().for_each(|l| l.store(0, Ordering::Relaxed));
        (place.number, place.step, place.worked) = (number, step, worked);
        // Evaluation ranks samples in the order in which ranks have them.
        let deal: &dyn Deal = if training { &*self.deal } else { &Blocks };
        Ok(place.share.load(&self.schedule, batch, (self.rank, self.ranks), cuts, deal)?)
    }

    /// A batch in flight.
    fn batch(&self, number: u64) -> Result<RwLockReadGuard<'_, Batch>, Fault> {
        let batch = self.batches[(number % self.batches.len() as u64) as usize].try_read();
        let batch = batch.ok_or(Fault::Replaced { batch: number })?;
        if batch.number == number { Ok(batch) } else { Err(Fault::NotInFlight { batch: number }) }
    }
}

/// An operation of a batch.
pub struct Job<'a> {
    /// The rank.
    pub env: &'a Env,
    /// Its program.
    pub program: &'a Program,
    /// The operation.
    pub op: &'a Op,
    /// Its position in the program.
    pub index: usize,
    /// Its batch, counted from the first of the run.
    pub number: u64,
    /// Its batch.
    pub batch: RwLockReadGuard<'a, Batch>,
    end: &'a AtomicU64,
    loss: Option<usize>,
}

impl<'a> Job<'a> {
    /// The operation at `index` of a batch that is in flight. Batches below `end` exist; `loss` is where its part of
    /// the loss goes.
    pub fn new(
        env: &'a Env,
        program: &'a Program,
        index: usize,
        number: u64,
        end: &'a AtomicU64,
        loss: Option<usize>,
    ) -> Result<Self, Fault> {
        let batch = env.batch(number)?;
        Ok(Self { env, program, op: &program.ops[index], index, number, batch, end, loss })
    }

    /// States that the operation touches something beside its buffers. Debug builds hold the table of actions against
    /// it, so every test that runs an operation checks that its facts name all that it touches.
    pub fn touches(&self, effect: Effect) {
        debug_assert!(
            self.op.action.has(effect),
            "`{}` touches what its facts do not name: {effect:?}",
            self.op.name
        );
    }

    /// Whether there is a batch with this number in the run.
    pub fn is_batch(&self, number: u64) -> bool {
        number < self.end.load(Ordering::Acquire)
    }

    /// The batch that an operand belongs to; `None` if there is no such batch.
    pub fn batch_of(&self, operand: Operand) -> Option<u64> {
        let batch = self.number.checked_add_signed(i64::from(operand.batch))?;
        self.is_batch(batch).then_some(batch)
    }

    /// Rows of an operand's buffer; `None` if its batch does not exist.
    pub fn rows(&self, buffer: &Buffer, operand: Operand) -> Result<Option<usize>, Fault> {
        Ok(Some(match buffer.rows {
            Extent::Fixed(n) => n as usize,
            Extent::Symbol(symbol) if operand.batch == 0 => {
                self.batch.share.size(symbol, buffer.site, buffer.microbatch)
            }
            Extent::Symbol(symbol) => match self.batch_of(operand) {
                Some(number) => self.env.batch(number)?.share.size(symbol, buffer.site, buffer.microbatch),
                None => return Ok(None),
            },
        }))
    }

    /// Samples and tokens that the operation works on.
    pub fn span(&self) -> Span<'_> {
        self.batch.share.part(self.op.site, self.op.microbatch)
    }

    /// An exchange and its table.
    pub fn exchange(&self, number: u32) -> Result<(&'a Exchange, &'a Table), Fault> {
        let schedule = &self.env.schedule;
        let found = schedule.exchanges.get(number as usize);
        let found = found.and_then(|e| Some((e, schedule.tables.get(e.table as usize)?)));
        found.ok_or(Fault::NoExchange { exchange: number })
    }

    /// The random key of a stream in this step.
    pub fn key(&self, stream: u32) -> RandomKey {
        self.touches(Effect::Random);
        RandomKey { seed: self.env.seed, stream, step: self.batch.step }
    }

    /// States a size of the batch that the operation has learnt, before it ends.
    pub fn learn(&self, symbol: Symbol, n: usize) {
        let learns = self.op.action.facts().learns;
        debug_assert!(
            learns.sizes.holds(symbol),
            "`{}` learns {symbol}, which its facts do not say",
            self.op.name
        );
        self.batch.share.sizes.set(symbol, n);
    }

    /// Which part of the step's loss the operation makes, if it makes one that is asked for.
    pub(crate) fn loss_slot(&self) -> Option<usize> {
        self.touches(Effect::AddsLoss);
        self.loss
    }

    /// States the operation's part of the step's loss, before it ends.
    pub fn add_loss(&self, value: f64) {
        self.touches(Effect::AddsLoss);
        if let Some(slot) = self.loss {
            self.batch.losses[slot].store(value.to_bits(), Ordering::Relaxed);
        }
    }

    /// Counts entries that this rank asks for in a class of lookups.
    pub fn asked(&self, exchange: u32, class: usize, entries: usize) {
        self.env.asked[exchange as usize][class].fetch_add(entries as u64, Ordering::Relaxed);
    }

    /// Counts entries that this rank is asked for, in training.
    pub fn served(&self, exchange: u32, entries: usize) {
        if std::ptr::eq(self.program, &raw const self.env.schedule.train) {
            self.env.served[exchange as usize].fetch_add(entries as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes that ranks did not send because others asked on their behalf, in training.
    pub fn spared(&self, bytes: usize) {
        if std::ptr::eq(self.program, &raw const self.env.schedule.train) {
            self.env.spared.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}
