//! A look at the notes of this process's threads.

use std::sync::Arc;
use std::time::Duration;

use fs_schedule::{Element, Op, Place, Program};

use super::sighting::{Head, Need, Running, Standing, State};
use crate::runtime::Plan;
use crate::runtime::place::{Doing, Places};
use crate::runtime::progress::Progress;
use crate::transport::clock::Clock;
use crate::transport::{TransportError, Turn};

/// Sees where the ranks of this process are in a program.
pub(crate) struct Look {
    plan: Arc<Plan>,
    /// Of operations.
    names: Vec<String>,
    clock: Clock,
    evaluation: bool,
    first_step: u64,
    /// Per operation and dependency, the buffer whose memory is waited for.
    buffers: Vec<Vec<Option<usize>>>,
    ranks: Vec<(usize, Arc<Progress>, Arc<Places>)>,
    missing: Box<dyn Fn(Turn) -> Vec<usize> + Send + Sync>,
}

impl Look {
    /// At ranks of this process with their notes, whose times are those of `clock`; `missing` says which ranks have not
    /// posted a turn.
    pub(crate) fn new(
        (program, plan): (&Program, &Arc<Plan>),
        (clock, evaluation, first_step): (Clock, bool, u64),
        ranks: Vec<(usize, Arc<Progress>, Arc<Places>)>,
        missing: impl Fn(Turn) -> Vec<usize> + Send + Sync + 'static,
    ) -> Self {
        let buffers = |op: usize| {
            let of = |(other, _): &(u32, u64)| freed(program, *other as usize, op);
            plan.ops[op].deps.iter().map(of).collect()
        };
        let buffers = (0..plan.ops.len()).map(buffers).collect();
        let names = program.ops.iter().map(|op| op.name.clone()).collect();
        let (plan, missing) = (Arc::clone(plan), Box::new(missing));
        Self { plan, names, clock, evaluation, first_step, buffers, ranks, missing }
    }

    /// What one of them has waited for longest, if that is at least so long: for ranks of other processes alone, if one
    /// does.
    pub(super) fn overdue(&self, least: Duration) -> Option<TransportError> {
        let queues = |engine: usize| (0..self.plan.queues[engine].len()).map(move |queue| (engine, queue));
        let places: Vec<_> = (0..self.plan.queues.len()).flat_map(queues).collect();
        let waits = self.ranks.iter().flat_map(|own| places.iter().map(move |at| (own, *at)));
        let waits = waits.filter_map(|((rank, progress, places), at)| {
            let head = self.head(*rank, progress, places, at)?;
            let State::Begun(Doing::Meets, missing) = head.state else { return None };
            let since = places.met(at).1;
            let batch = progress.batch(&self.plan, head.op, head.step)?;
            (!missing.is_empty()).then_some((since, head.op, batch, missing))
        });
        let own = |rank: &usize| self.ranks.iter().any(|(own, ..)| own == rank);
        let (since, op, batch, ranks) =
            waits.min_by_key(|(since, _, _, missing)| (missing.iter().any(own), *since))?;
        let waited = Duration::from_nanos(self.clock.now().saturating_sub(since));
        (waited >= least).then(|| TransportError::Timeout {
            op: self.names[op].clone(),
            batch: Some(self.first_step + batch),
            ranks,
            seconds: (waited.as_secs_f64() * 10.0).round() / 10.0,
        })
    }

    /// Where they are.
    pub(super) fn running(&self) -> Running {
        Running {
            evaluation: self.evaluation,
            first_step: self.first_step,
            end: self.ranks.iter().map(|(_, p, _)| p.batches()).min().unwrap_or(0),
            ranks: self.ranks.iter().map(|own| self.standing(own)).collect(),
        }
    }

    fn standing(&self, (rank, progress, places): &(usize, Arc<Progress>, Arc<Places>)) -> Standing {
        let mut begun: Vec<u64> = (0..self.plan.ops.len()).map(|op| progress.steps(op)).collect();
        let mut queues = Vec::new();
        for engine in 0..self.plan.queues.len() {
            for queue in 0..self.plan.queues[engine].len() {
                let head = self.head(*rank, progress, places, (engine, queue));
                if let Some(Head { op, step, state: State::Begun(..), .. }) = &head {
                    begun[*op] = begun[*op].max(step + 1);
                }
                queues.extend(head);
            }
        }
        Standing { rank: *rank, begun, queues }
    }

    fn head(&self, rank: usize, progress: &Progress, places: &Places, at: (usize, usize)) -> Option<Head> {
        let (engine, queue) = at;
        let noted = places.get(at);
        let begun = match progress.passed(engine, queue) {
            // A note of an operation that has ended is of no use any more.
            Some(passed) => {
                let (op, step) = progress.head(&self.plan, engine, queue, passed)?;
                noted.filter(|noted| (noted.0, noted.1) == (op, step)).ok_or((op, step))
            }
            None => Ok(noted?),
        };
        let (op, step, state) = match begun {
            Ok((op, step, doing)) => {
                let channel = self.plan.ops[op].channel.filter(|_| doing == Doing::Meets);
                let turn = channel.map(|channel| Turn { channel, turn: places.met(at).0, rank });
                (op, step, State::Begun(doing, turn.map(&self.missing).unwrap_or_default()))
            }
            Err((op, step)) => (op, step, State::Waits(self.needs(progress, op, step))),
        };
        Some(Head { engine, op, step, state })
    }

    /// What an operation waits for.
    fn needs(&self, progress: &Progress, op: usize, step: u64) -> Vec<Need> {
        let deps = self.plan.ops[op].deps.iter().zip(&self.buffers[op]);
        let needs = deps.filter_map(|((other, distance), buffer)| {
            Some(Need { op: *other as usize, step: step.checked_sub(*distance)?, buffer: *buffer })
        });
        // A batch that does not exist is not loaded.
        let load = self.plan.load_of(op, step).filter(|_| progress.batch(&self.plan, op, step).is_some());
        let load = load.map(|(op, step)| Need { op, step, buffer: None });
        let mut needs: Vec<Need> =
            needs.chain(load).filter(|need| !progress.has_done(need.op, need.step)).collect();
        needs.dedup_by_key(|need| (need.op, need.step));
        needs
    }
}

/// The buffer that an operation writes and for which it waits for another one, which gives it nothing but still uses its
/// memory.
fn freed(program: &Program, other: usize, op: usize) -> Option<usize> {
    let (other, op) = (program.ops.get(other)?, program.ops.get(op)?);
    let memory = |buffer: usize| -> Option<(Element, u32)> {
        program.buffers.get(buffer).map(|b| (b.element, b.slot))
    };
    let gives = buffers(&other.writes).any(|b| buffers(&op.reads).any(|read| read == b));
    let uses = |b: &usize| touched(other).any(|used| memory(used).is_some() && memory(used) == memory(*b));
    if gives { None } else { buffers(&op.writes).find(uses) }
}

fn touched(op: &Op) -> impl Iterator<Item = usize> {
    buffers(&op.reads).chain(buffers(&op.writes))
}

fn buffers(operands: &[fs_schedule::Operand]) -> impl Iterator<Item = usize> {
    operands.iter().filter_map(|operand| match operand.place {
        Place::Buffer(b) => Some(b as usize),
        _ => None,
    })
}
