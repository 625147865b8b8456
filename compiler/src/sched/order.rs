//! The search for an order: modulo scheduling, then iterated list scheduling.
//!
//! With steps of a given length every operation has an earliest and a latest start relative to the longest cycle
//! (longest paths over all dependencies); their difference is its slack. Transfers with little slack are a tier of
//! their own that passes the others between chunks. Two searches use this:
//!
//! - *[modulo scheduling](super::modulo)*: one batch is placed into the engines' reservation tables, the operations with
//!   the least slack first, for initiation intervals from the greater of ResMII and RecMII upwards;
//! - *[list scheduling](super::list) by simulation*: engines work on many batches at once, each taking the ready
//!   operation whose latest start, in absolute time, comes first: rows that somebody waits for before others, and work
//!   ahead and behind where nothing is urgent. A run gives an initiation interval; with it slacks are found again, for
//!   some rounds, with more and fewer batches in flight. Where that ends above the bound, the slacks that few batches in flight leave
//!   are tried as well.
//!
//! The best step that the limits allow is kept.

use std::collections::BTreeMap;

use fs_schedule::action::Phase;

use super::ahead;
use super::bounds;
use super::candidate::{Candidate, Tiers};
use super::graph::{Edge, Graph, Why};
use super::limits::{ClusterLimits, Limits, human};
use super::list::{Found, ListScheduler};
use super::modulo::{FAR, Request, place};
use super::problem::Problem;
use super::slack::{ENOUGH, hub, slacks, tiers, windows};
use super::{SchedError, Takes};
use crate::threads::abreast;

/// Share of a step by which lookups with much room come before they must.
const RESERVE: f64 = 0.3;
/// Rounds of simulation and slack: of many operations one. Of 1,098 searches for an order (20 random models) another round brought something
/// in 27, by up to 13%, but in 4 of the 51 with more than 1,500 operations, by 0.3%.
const ROUNDS: usize = 3;
const MANY: usize = 1000;
/// Batches in flight beyond those needed that are tried.
const MORE: u32 = 2;
/// By how much transfers may take longer than expected: the first that costs little enough is taken. In 838 of 1,706 cases the first of all
/// does, so the others are tried only where it does not, at once.
const MARGINS: [f64; 3] = [1.5, 1.3, 1.15];
/// What a step may cost for that.
const ROOM: f64 = 1.005;
/// Operations beyond which that is not tried.
const LARGE: usize = 600;
/// How many times as long a step may be for the host to learn in time what it must.
const LATE: f64 = 1.05;
/// How many times as long a simulation must be than another for keys of the other only to be changed at random.
const MUCH: f64 = 1.05;
/// How many times as long as it must be less than a step may be to be looked for further: after simulations of a kind, after a round, and
/// before keys are changed at random. Of 7,710 ways of 68 models whose search was long or could be beaten by hand 949 came out shorter; the
/// first of these would have missed none of them, the second 17 and the third 3.
const HOPE: [f64; 3] = [1.3, 1.1, 1.05];

/// The outcome of the search.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The step.
    pub candidate: Candidate,
    /// What the first good order takes; none if it is not known, because it was not looked for as far or does not fit.
    pub first: Option<Takes>,
    /// What kept it from being better, in sentences.
    pub limits: Vec<String>,
    /// Slack of each operation at the step's own initiation interval, in nanoseconds; infinite for what lies on no cycle with the
    /// longest.
    pub slack: Vec<f64>,
}

/// Schedules a program.
pub(crate) fn choose(p: &Problem<'_>) -> Result<Chosen, SchedError> {
    let mut limits: Vec<String> = p.policy.limit().map(str::to_owned).into_iter().collect();
    let (candidate, first) = if p.policy.reorders() {
        search(p, &p.blocking, &mut limits)?
    } else {
        let only = reference_order(p, &p.blocking, false)?;
        let takes = only.takes();
        (only, Some(takes))
    };
    if candidate.memory > p.limits.memory() {
        let (needs, has) = (human(candidate.memory), human(p.limits.memory()));
        let batches = candidate.in_flight;
        limits.push(format!(
            "memory: a rank needs {needs} with {batches} batch{} at once, the least that was found; {} has {has}",
            if batches == 1 { "" } else { "es" },
            p.cluster.name
        ));
    }
    if p.policy.reorders() {
        limits.extend(ahead::late(p, &candidate.frozen));
    }
    let slack = slacks(&windows(p, &p.graph, hub(p, &p.rec_mii.cycle), candidate.step));
    Ok(Chosen { candidate, first, limits, slack })
}

/// When the last operation of a batch ends, after its load.
fn horizon(p: &Problem<'_>, early: &[f64]) -> f64 {
    early.iter().enumerate().map(|(i, e)| e + p.graph.until(&p.time, i)).fold(0.0, f64::max)
}

/// Factors by which an initiation interval exceeds its bound, tried in turn.
const STRETCH: [f64; 8] = [1.0, 1.005, 1.015, 1.03, 1.04, 1.045, 1.05, 1.1];
/// Attempts of modulo scheduling for each initiation interval, over the number of operations: each costs their square.
const TRIES: usize = 1000;
/// Operations up to which modulo scheduling is tried.
const MODULO_OPS: usize = 300;

/// The best order that is found, and what the first good one takes.
fn search(
    p: &Problem<'_>,
    graph: &Graph,
    limits: &mut Vec<String>,
) -> Result<(Candidate, Option<Takes>), SchedError> {
    let least = p.history + 1;
    if let Some(asked) = p.limits.in_flight().filter(|f| *f < least) {
        limits.push(format!("in flight: {asked} asked for, {least} are needed to tell rows apart"));
    }
    // What telling rows apart needs is beyond any wish.
    let within =
        ClusterLimits { memory: p.limits.memory(), in_flight: p.limits.in_flight().map(|f| f.max(least)) };
    let most = within.in_flight;
    // Without limits first; if that holds too much, with fewer and fewer batches at once.
    let Reached { best: free, modulo, first } = at_depth(p, graph, None, p.time.len() <= MODULO_OPS)?;
    let first = first.filter(|first| within.admit(first.memory, first.in_flight));
    let mut depths = Depths { p, graph, modulo, known: BTreeMap::new() };
    let free = fewer_in_flight(&mut depths, free, least)?;
    let fits = |c: &Candidate| within.admit(c.memory, c.in_flight);
    if fits(&free) {
        return Ok((free, first));
    }
    let (mut found, mut smallest) = (None, reference_order(p, graph, true)?);
    if free.memory < smallest.memory && most.is_none_or(|m| free.in_flight <= m) {
        smallest = free.clone();
    }
    // With as many as that there is this one.
    let mut depth = most.unwrap_or(u32::MAX).min(free.in_flight.saturating_sub(1));
    while depth >= least && found.is_none() {
        let next = depths.at(depth)?;
        if fits(&next) {
            found = Some(fewer_in_flight(&mut depths, next, least)?);
        } else if next.memory < smallest.memory && most.is_none_or(|m| next.in_flight <= m) {
            smallest = next;
        }
        depth -= 1;
    }
    let slower = found.as_ref().is_none_or(|c| c.step > free.step * 1.001);
    if slower && free.memory > within.memory {
        limits.push(format!(
            "memory: {} batches at once would take {:.3} ms a step and {}, {} has {}",
            free.in_flight,
            free.step / 1e6,
            human(free.memory),
            p.cluster.name,
            human(within.memory)
        ));
    } else if slower {
        limits.push(format!(
            "in flight: {} batches at once would take {:.3} ms a step",
            free.in_flight,
            free.step / 1e6
        ));
    }
    Ok((found.unwrap_or(smallest), first))
}

/// Steps with at most so many batches in flight, each looked for once.
struct Depths<'a> {
    p: &'a Problem<'a>,
    graph: &'a Graph,
    /// Modulo scheduling finds an order without a limit.
    modulo: bool,
    known: BTreeMap<u32, Candidate>,
}

impl Depths<'_> {
    fn at(&mut self, depth: u32) -> Result<Candidate, SchedError> {
        if let Some(known) = self.known.get(&depth) {
            return Ok(known.clone());
        }
        let found = at_depth(self.p, self.graph, Some(depth), self.modulo)?.best;
        self.known.insert(depth, found.clone());
        Ok(found)
    }
}

/// As few batches at once as give the same step.
fn fewer_in_flight(
    depths: &mut Depths<'_>,
    mut best: Candidate,
    least: u32,
) -> Result<Candidate, SchedError> {
    let p = depths.p;
    while !p.is_far(best.step) && !p.loses(best.step) && p.time.len() <= MODULO_OPS && best.in_flight > least
    {
        let fewer = depths.at(best.in_flight - 1)?;
        // Fewer batches may still hold more.
        if !timely(p, &fewer, &best)
            || !better(&fewer, &best)
            || fewer.memory > p.limits.memory().max(best.memory)
        {
            break;
        }
        best = fewer;
    }
    Ok(best)
}

/// Where looking for an order ended.
struct Reached {
    best: Candidate,
    /// Modulo scheduling found one.
    modulo: bool,
    /// What the best takes before keys are changed at random, unless that was given up.
    first: Option<Takes>,
}

/// The best step with at most so many batches in flight, memory aside. Where
/// modulo scheduling finds none without a limit, looking again with one (`modulo`) has never changed a step, and costs most of the
/// search.
fn at_depth(p: &Problem<'_>, graph: &Graph, depth: Option<u32>, modulo: bool) -> Result<Reached, SchedError> {
    let within =
        Within::new(p, graph, depth).map_err(|_| SchedError::Defect("the policy waits for itself".into()))?;
    let (bound, hub) = (within.bound, within.hub);
    let mut orders = Orders { p, best: None, free: None, few: None, given_up: false };
    let mut modulo_found = false;
    if modulo {
        for ii in STRETCH.map(|stretch| (bound * stretch).ceil()) {
            if p.loses(ii) {
                break;
            }
            let found = modulo_schedule(p, &within.graph, hub, ii)?;
            if let Some(c) = found {
                orders.keep(c, None);
                modulo_found = true;
                break;
            }
        }
    }
    let mut step = bound;
    for _ in 0..if p.time.len() > MANY { 1 } else { ROUNDS } {
        if orders.step() <= bound * ENOUGH {
            break;
        }
        let early = bounds::earliest(&within.graph, &p.time, step * 1.0001);
        let need = ((horizon(p, &early) / step).ceil() as u32).max(p.history + 1);
        let mut depths: Vec<u32> =
            (need..=need + MORE).map(|d| depth.map_or(d, |most| d.min(most))).collect();
        depths.dedup();
        let before = orders.step();
        // From the first much is learned that the others may be spared for.
        let (first, others) = depths.split_at(1);
        orders.simulate(&[(&within, first[0])], Some(step))?;
        if !orders.hopeless(HOPE[0]) {
            let others: Vec<(&Within, u32)> = others.iter().map(|depth| (&within, *depth)).collect();
            orders.simulate(&others, Some(step))?;
        }
        // A round that brought nothing will not bring more.
        if orders.hopeless(HOPE[1]) || orders.step() > before * 0.999 {
            break;
        }
        step = orders.step().max(bound);
    }
    let limited = if depth.is_none() && orders.step() > bound * ENOUGH && !orders.hopeless(HOPE[0]) {
        orders.limited(graph)?
    } else {
        Vec::new()
    };
    let first = orders.best.as_ref().filter(|_| !orders.given_up).map(|(best, _)| best.takes());
    orders.climb(&within, &limited, bound)?;
    let Orders { best, .. } = orders;
    let (best, of) = best.ok_or_else(|| SchedError::Defect("no simulation gave a step".into()))?;
    // Of orders that are about as good the one that hides transfers with room to spare.
    let within = of.map_or(&within, |of| &limited[of]);
    Ok(Reached { best: with_margin(p, within, modulo_found, best)?, modulo: modulo_found, first })
}

/// Dependencies to look for an order with: those of a strategy, those that so many batches in flight make, and what the host must learn
/// in time.
struct Within {
    depth: Option<u32>,
    graph: Graph,
    /// On the longest cycle.
    hub: usize,
    /// Nanoseconds that no step is shorter than.
    bound: f64,
}

impl Within {
    /// An error where they wait for themselves.
    fn new(p: &Problem<'_>, graph: &Graph, depth: Option<u32>) -> Result<Self, bounds::Deadlock> {
        let held = depth.and_then(|d| Some((d, p.load?))).map(|(d, load)| {
            (0..p.time.len()).map(move |i| Edge {
                from: i as u32,
                to: load as u32,
                distance: d as i32 + p.reaches_back(i),
                why: Why::InFlight,
            })
        });
        let held = held.map(|edges| graph.with(edges));
        let graph = held.as_ref().unwrap_or(graph);
        let rec_mii = bounds::rec_mii(graph, &p.time)?;
        let bound = rec_mii.time.max(p.mii());
        let hub = hub(p, &rec_mii.cycle);
        Ok(Self { depth, graph: ahead::plan(p, graph, bound), hub, bound })
    }
}

/// Orders that were found.
struct Orders<'a> {
    p: &'a Problem<'a>,
    /// The best, and which of some limits it was found within, if one.
    best: Option<(Candidate, Option<usize>)>,
    /// The simulation without limits that promised most, and that within one, with its place.
    free: Option<(ListScheduler<'a>, Found)>,
    few: Option<(ListScheduler<'a>, Found, usize)>,
    /// No more was looked for because what there is was hopeless.
    given_up: bool,
}

impl Orders<'_> {
    /// Keeps the better.
    fn keep(&mut self, c: Candidate, of: Option<usize>) {
        let worth = |b: &Candidate| better(&c, b) && (of.is_none() || timely(self.p, &c, b));
        if self.best.as_ref().is_none_or(|b| worth(&b.0)) {
            self.best = Some((c, of));
        }
    }

    /// Nanoseconds of the best.
    fn step(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |b| b.0.step)
    }

    /// Whether the best is so many times as long as what will be thrown away.
    fn hopeless(&mut self, times: f64) -> bool {
        let hopeless = self.best.is_some() && self.p.loses(self.step() / times);
        self.given_up |= hopeless;
        hopeless
    }

    /// Simulates within each of some dependencies with so many batches in flight, all at once: with slacks of steps that take `step`, or,
    /// if these dependencies are those of limits, what each allows.
    fn simulate(&mut self, some: &[(&Within, u32)], step: Option<f64>) -> Result<(), SchedError> {
        let (p, limited) = (self.p, step.is_none());
        let simulated = abreast(some.to_vec(), |(within, depth): (&Within, u32)| {
            let step = step.unwrap_or(within.bound);
            let search = ListScheduler::new(p, &within.graph, within.hub, step, within.bound, depth);
            let found = search.iterate();
            let candidate = search.freeze(&within.graph, &found);
            (search, found, candidate)
        });
        for (of, (search, found, candidate)) in simulated.into_iter().enumerate() {
            self.keep(candidate?, limited.then_some(of));
            if limited && self.few.as_ref().is_none_or(|few| found.ii < few.1.ii) {
                self.few = Some((search, found, of));
            } else if !limited && self.free.as_ref().is_none_or(|free| found.ii < free.1.ii) {
                self.free = Some((search, found));
            }
        }
        Ok(())
    }

    /// Simulates with slacks that few batches in flight leave: without them what works ahead has so much slack that it comes at any
    /// time, and holds up what others wait for. About as many batches as the best order has in flight.
    fn limited(&mut self, graph: &Graph) -> Result<Vec<Within>, SchedError> {
        let p = self.p;
        let most = self.best.as_ref().map_or(1, |b| b.0.in_flight);
        let depths = [most, most.saturating_sub(1), most + 1, most.saturating_sub(2)];
        let depths: Vec<u32> = depths.into_iter().filter(|depth| *depth > p.history).collect();
        if self.step() <= p.mii() * ENOUGH {
            return Ok(Vec::new());
        }
        // So few may not be possible.
        let within = |depth: &u32| Within::new(p, graph, Some(*depth)).ok().map(|within| (within, *depth));
        let shorter = |(within, _): &(Within, u32)| within.bound < self.step();
        let (limited, depths): (Vec<Within>, Vec<u32>) =
            depths.iter().filter_map(within).filter(shorter).unzip();
        let some: Vec<(&Within, u32)> = limited.iter().zip(depths).collect();
        self.simulate(&some, None)?;
        Ok(limited)
    }

    /// Changes keys at random of the simulations that promised most: without limits, unless one within limits is much better, and within, if
    /// that is better.
    fn climb(&mut self, within: &Within, limited: &[Within], bound: f64) -> Result<(), SchedError> {
        let enough = |orders: &Self| orders.step() <= bound * ENOUGH;
        if enough(self) || self.p.is_far(self.step()) || self.hopeless(HOPE[2]) {
            return Ok(());
        }
        let least = self.free.as_ref().map_or(f64::INFINITY, |free| free.1.ii);
        let few = self.few.take().filter(|few| few.1.ii < least);
        let much = few.as_ref().is_some_and(|few| few.1.ii * MUCH < least);
        if let Some((search, found)) = self.free.take().filter(|_| !much) {
            self.keep(search.freeze(&within.graph, &search.hill_climb(found))?, None);
        }
        if let Some((search, found, of)) = few.filter(|_| !enough(self)) {
            self.keep(search.freeze(&limited[of].graph, &search.hill_climb(found))?, Some(of));
        }
        Ok(())
    }
}

/// An order that was found with longer transfers, if it costs no more than [`ROOM`].
fn with_margin(
    p: &Problem<'_>,
    within: &Within,
    modulo_found: bool,
    best: Candidate,
) -> Result<Candidate, SchedError> {
    // In a modulo schedule what works ahead has a reserve already.
    if modulo_found || p.is_far(best.step) || p.loses(best.step) || p.time.len() > LARGE {
        return Ok(best);
    }
    let with = |margin: f64| {
        let Within { depth, graph, hub, bound } = within;
        let most = depth.unwrap_or(best.in_flight + MORE);
        let search = ListScheduler::with_margin(p, graph, *hub, best.step, *bound, most, margin);
        let fits = |c: &Candidate| c.memory <= best.memory.max(p.limits.memory());
        let found = search.iterate();
        let mut c = search.freeze(graph, &found)?;
        // Changes at random can't gain what is not lost, and hardly what is lost by far.
        let (costs_nothing, hopeless) =
            (c.step <= best.step && fits(&c), c.step > best.step * ROOM * HOPE[2]);
        if !costs_nothing && !hopeless {
            c = search.freeze(graph, &search.hill_climb(found))?;
        }
        Ok(Some(c).filter(|c| c.step <= best.step * ROOM && fits(c)))
    };
    let (first, others) = MARGINS.split_at(1);
    for margins in [first, others] {
        for found in abreast(margins.to_vec(), with) {
            if let Some(found) = found? {
                return Ok(found);
            }
        }
    }
    Ok(best)
}

/// Modulo scheduling with this initiation interval, operations with the least slack first.
fn modulo_schedule(
    p: &Problem<'_>,
    graph: &Graph,
    hub: usize,
    ii: f64,
) -> Result<Option<Candidate>, SchedError> {
    let window = windows(p, graph, hub, ii);
    let slack = slacks(&window);
    let tiers = tiers(p, &slack, ii);
    // What only feeds the cycle is placed from the cycle backwards.
    let near = |at: usize| {
        let near = if window.early[at].is_finite() { window.early[at] } else { -window.late[at] };
        near.clamp(-1e18, 1e18) as i64
    };
    let ordered = |bucket: f64| {
        let mut order: Vec<u32> = (0..p.time.len() as u32).collect();
        order.sort_by_key(|i| {
            let at = *i as usize;
            // Work on ids fits anywhere, also where the cycle has left no room.
            let last = p.op(at).action.facts().phase <= Phase::InputDist;
            ((slack[at] / bucket).min(1e9) as i64, last, near(at), *i)
        });
        order
    };
    let engine: Vec<u8> = p.engine.iter().map(|e| *e as u8).collect();
    let queue = tiers.queues(p);
    let early: Vec<f64> = window.early.iter().map(|e| if e.is_finite() { *e } else { 0.0 }).collect();
    let wish = |i: usize| {
        let roomy = slack[i] > 2.0 * RESERVE * ii && window.late[i].is_finite();
        if roomy { (window.late[i] - RESERVE * ii) as i64 } else { FAR }
    };
    let wish: Vec<i64> = (0..p.time.len()).map(wish).collect();
    let demand = Request {
        graph,
        time: &p.time,
        engine: &engine,
        queue: &queue,
        hold: &p.graph.lag,
        early: &early,
        ahead: &p.ahead,
        tight: (ii * 0.02) as i64,
        hub,
        wish: &wish,
    };
    let tries = (TRIES / p.time.len().max(1)).clamp(4, 20);
    // In the order of time first, which interleaves as the model does; then what is tight before what is not.
    let natural = place(&demand, &ordered(1e18), ii as i64, tries);
    let placed = natural.or_else(|| place(&demand, &ordered(ii * 0.02), ii as i64, tries));
    match placed {
        None => Ok(None),
        Some(position) => Candidate::build(p, graph, position, ii as i64, tiers, true).map(Some),
    }
}

/// A better step; of about equal ones the one that holds less. Without a second batch ids are late on every step that
/// takes longer than expected, so that is not given up for memory alone.
fn better(a: &Candidate, b: &Candidate) -> bool {
    let alone = a.in_flight.min(b.in_flight) < 2;
    let much = if alone { 0.0 } else { 0.002 * a.step.min(b.step) };
    if (a.step - b.step).abs() > much {
        return a.step < b.step;
    }
    (a.in_flight, a.memory) < (b.in_flight, b.memory)
}

/// Whether few batches in flight leave the host as much time to learn what it must, or are worth that it waits.
fn timely(p: &Problem<'_>, few: &Candidate, other: &Candidate) -> bool {
    let late = |c: &Candidate| ahead::late(p, &c.frozen).is_some();
    few.step * LATE < other.step || !late(few) || late(other)
}

/// The operations of a batch one after the other, as in the reference; `staged`: the step begins with the first that
/// works on rows, else with the first of all.
fn reference_order(p: &Problem<'_>, graph: &Graph, staged: bool) -> Result<Candidate, SchedError> {
    let mut at = 0;
    let mut position = Vec::with_capacity(p.time.len());
    for i in 0..p.time.len() {
        position.push(at);
        at += graph.until(&p.time, i) as i64;
    }
    Candidate::build(p, graph, position, at, Tiers::flat(p.time.len()), staged)
}
