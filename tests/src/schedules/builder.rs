//! Writes the operations of one batch in reference order.

use fs_schedule::{
    Action, Buffer, Cost, Element, Engine, Extent, Normalize, Op, Operand, Place, Program, Schedule,
    Sharding, Site, Strategy, Symbol, Way,
};

use super::{DIM, Recipe, Stages};

/// Buffers of an exchange.
#[derive(Debug, Clone, Default)]
struct Held {
    entries: u32,
    counts: u32,
    uses: Option<u32>,
    inverse: Vec<u32>,
    rows: u32,
    received: u32,
    received_uses: Option<u32>,
    own: u32,
    /// Positions and counts by class, at the owner and at who asks, of lookups and of gradients.
    at_owner: [Vec<(u32, u32)>; 2],
    at_asker: [Vec<(u32, u32)>; 2],
    arrived: Vec<u32>,
    looked_up: u32,
    grads: u32,
}

pub(super) struct Builder<'a> {
    plan: &'a Recipe,
    program: Program,
    stages: Stages,
    microbatch: Option<u32>,
    exchanges: Vec<Held>,
}

fn at(b: u32, batch: i32) -> Operand {
    Operand { batch, ..Operand::buffer(b) }
}
fn buffers(list: &[u32]) -> Vec<Operand> {
    list.iter().map(|b| Operand::buffer(*b)).collect()
}
fn sent(e: u32) -> Extent {
    Extent::Symbol(Symbol::Sent(e))
}
fn received(e: u32) -> Extent {
    Extent::Symbol(Symbol::Received(e))
}
const TOKENS: Extent = Extent::Symbol(Symbol::Tokens(0));
const RANKS: Extent = Extent::Symbol(Symbol::Ranks);

impl<'a> Builder<'a> {
    pub(super) fn new(plan: &'a Recipe, exchanges: usize) -> Self {
        Self {
            plan,
            program: Program::default(),
            stages: Stages::of(plan),
            microbatch: None,
            exchanges: vec![Held::default(); exchanges],
        }
    }

    fn buffer(&mut self, name: String, element: Element, rows: Extent, columns: u32) -> u32 {
        let microbatch = self.microbatch;
        let slot = self.program.buffers.len() as u32;
        let site = Site::Home;
        let new =
            Buffer { name, element, rows, columns, microbatch, site, copies: 1, slot, first: 0, last: 0 };
        self.program.buffers.push(new);
        slot
    }

    fn op(&mut self, name: String, action: Action, stage: i32, reads: Vec<Operand>, writes: Vec<Operand>) {
        let (engine, priority) = match &action {
            Action::LoadBatch => (Engine::Host, 0),
            Action::AllReduce => (Engine::NicSend, 0),
            Action::AllToAllIds { .. } | Action::AllGatherIds { .. } | Action::AllToAllClasses { .. } => {
                (Engine::CopyOut, 0)
            }
            Action::AllToAllRows { .. } | Action::AllToAllGrads { .. } | Action::AllGatherGrads { .. } => {
                (Engine::CopyOut, if stage == 0 { 2 } else { 1 })
            }
            // Work ahead and behind fills the gaps of the rest.
            _ => (Engine::Compute, -i32::from(stage != 0)),
        };
        let chunk = (engine == Engine::CopyOut && priority == 1).then_some(1 << 16);
        self.program.ops.push(Op {
            name: match self.microbatch {
                Some(m) => format!("{name}.m{m}"),
                None => name,
            },
            action,
            reads,
            writes,
            engine,
            stage,
            microbatch: self.microbatch,
            site: Site::Home,
            deps: Vec::new(),
            joined: false,
            priority,
            chunk,
            cost: Cost::default(),
            start: 0,
            time: 0,
            lag: 0,
            reason: String::new(),
        });
    }

    fn uses(&self) -> bool {
        self.plan.reuse().is_some_and(|reuse| reuse.windows > 1)
    }

    /// Exchanges that travel together; replicated ones apart.
    fn groups(&self, s: &Schedule) -> Vec<(bool, Vec<u32>)> {
        let replicated = |e: u32| {
            matches!(s.tables[s.exchanges[e as usize].table as usize].sharding, Sharding::DataParallel)
        };
        let all = 0..s.exchanges.len() as u32;
        if !self.plan.fused {
            return all.map(|e| (replicated(e), vec![e])).collect();
        }
        [false, true]
            .into_iter()
            .map(|kind| (kind, all.clone().filter(|e| replicated(*e) == kind).collect::<Vec<_>>()))
            .filter(|(_, list)| !list.is_empty())
            .collect()
    }

    /// The whole batch.
    pub(super) fn batch(mut self, s: &Schedule) -> Program {
        let m = self.plan.microbatches;
        self.op("load".into(), Action::LoadBatch, self.stages.ids, vec![], vec![]);
        for e in 0..s.exchanges.len() as u32 {
            self.unique(s, e);
        }
        let groups = self.groups(s);
        for (replicated, group) in &groups {
            self.ids(s, *replicated, group);
        }
        if self.plan.reuse().is_some() {
            for (replicated, group) in &groups {
                for way in [Way::Forward, Way::Backward] {
                    if !replicated || way == Way::Backward {
                        self.classes(s, *replicated, group, way);
                    }
                }
            }
        }
        for part in 0..m {
            for (replicated, group) in &groups {
                self.lookups(s, *replicated, group, part);
            }
            self.microbatch = (m > 1).then_some(part);
            self.model(s, part);
            self.microbatch = None;
            for (replicated, group) in &groups {
                self.gradients(s, *replicated, group, part);
            }
        }
        let buckets: &[&[u32]] =
            if self.plan.strategy == Strategy::Serial { &[&[1, 0]] } else { &[&[1], &[0]] };
        for (n, bucket) in buckets.iter().enumerate() {
            let g: Vec<Operand> = bucket.iter().map(|p| Operand::new(Place::Gradient(*p))).collect();
            let p: Vec<Operand> = bucket.iter().map(|p| Operand::new(Place::Parameter(*p))).collect();
            self.op(format!("reduce{n}"), Action::AllReduce, 0, g.clone(), g.clone());
            self.op(format!("update{n}"), Action::DenseUpdate, 0, g, p);
        }
        self.program
    }

    fn unique(&mut self, s: &Schedule, e: u32) {
        let x = &s.exchanges[e as usize];
        if x.entries != e {
            let first = self.exchanges[x.entries as usize].clone();
            self.exchanges[e as usize] = first;
            return;
        }
        let m = self.plan.microbatches;
        let mut h = Held {
            entries: self.buffer(format!("entries{e}"), Element::Id, sent(e), 1),
            counts: self.buffer(format!("counts{e}"), Element::Count, RANKS, 1),
            ..Held::default()
        };
        if self.uses() {
            h.uses = Some(self.buffer(format!("uses{e}"), Element::Byte, sent(e), 2));
        }
        for part in 0..m {
            self.microbatch = (m > 1).then_some(part);
            h.inverse.push(self.buffer(format!("inverse{e}.{part}"), Element::Index, TOKENS, 1));
        }
        self.microbatch = None;
        let reads = vec![Operand::new(Place::Input(x.table)); m as usize];
        let mut writes = vec![h.entries, h.counts];
        writes.extend(h.uses);
        writes.extend(&h.inverse);
        let stage = self.stages.ids;
        self.op(format!("unique{e}"), Action::Unique { exchange: e }, stage, reads, buffers(&writes));
        self.exchanges[e as usize] = h;
    }

    fn ids(&mut self, s: &Schedule, replicated: bool, group: &[u32]) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for e in group {
            let rows = self.buffer(format!("rows{e}"), Element::Index, received(*e), 1);
            let counts = self.buffer(format!("received{e}"), Element::Count, RANKS, 1);
            let first = sent(s.exchanges[*e as usize].entries);
            let own = replicated.then(|| self.buffer(format!("own{e}"), Element::Index, first, 1));
            let uses =
                self.uses().then(|| self.buffer(format!("received_uses{e}"), Element::Byte, received(*e), 2));
            let h = &mut self.exchanges[*e as usize];
            (h.rows, h.received, h.received_uses, h.own) = (rows, counts, uses, own.unwrap_or(0));
            reads.extend([h.entries, h.counts].into_iter().chain(h.uses));
            writes.extend([rows, counts].into_iter().chain(own).chain(uses));
        }
        let exchanges = group.to_vec();
        let action =
            if replicated { Action::AllGatherIds { exchanges } } else { Action::AllToAllIds { exchanges } };
        let stage = self.stages.ids;
        self.op(format!("ids{group:?}"), action, stage, buffers(&reads), buffers(&writes));
    }

    /// Partition and positions of lookups or gradients, at both sides.
    fn classes(&mut self, s: &Schedule, replicated: bool, group: &[u32], way: Way) {
        let Some(reuse) = self.plan.reuse() else { return };
        let stage = self.stages.partition;
        let tag = if way == Way::Forward { "f" } else { "b" };
        let away = if way == Way::Forward { -1 } else { 1 };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut asked = Vec::new();
        for e in group {
            let h = self.exchanges[*e as usize].clone();
            let first = sent(s.exchanges[*e as usize].entries);
            let history = |list: &mut Vec<Operand>| {
                for i in 1..=reuse.history() as i32 {
                    list.push(at(h.rows, away * i));
                    list.extend(h.received_uses.map(|u| at(u, away * i)));
                }
            };
            let mut operands = buffers(&[h.rows]);
            operands.extend(h.received_uses.map(Operand::buffer));
            history(&mut operands);
            let owner = self.buffer(format!("classes{e}{tag}"), Element::Byte, received(*e), 1);
            let action = Action::Partition { exchange: *e, way };
            self.op(format!("partition{e}{tag}"), action.clone(), stage, operands, buffers(&[owner]));
            let asker = self.buffer(format!("asked_classes{e}{tag}"), Element::Byte, first, 1);
            if replicated {
                let mut operands = buffers(&[h.own]);
                operands.extend(h.uses.map(Operand::buffer));
                history(&mut operands);
                self.op(format!("partition_own{e}{tag}"), action, stage, operands, buffers(&[asker]));
            }
            reads.extend([owner, h.received, h.counts]);
            writes.push(asker);
            asked.push((*e, owner, asker));
        }
        if !replicated {
            let action = Action::AllToAllClasses { exchanges: group.to_vec(), way };
            self.op(format!("classes{group:?}{tag}"), action, stage, buffers(&reads), buffers(&writes));
        }
        for (e, owner, asker) in asked {
            for (side, classes) in [("owner", owner), ("asker", asker)] {
                let h = self.exchanges[e as usize].clone();
                let first = s.exchanges[e as usize].entries;
                let mut lists = Vec::new();
                for c in 0..reuse.count(way) as u32 {
                    let rows = Extent::Symbol(if side == "owner" {
                        Symbol::ReceivedClass(e, way, c)
                    } else {
                        Symbol::SentClass(first, way, c)
                    });
                    let positions = self.buffer(format!("{side}{e}{tag}{c}"), Element::Index, rows, 1);
                    let counts = self.buffer(format!("{side}_counts{e}{tag}{c}"), Element::Count, RANKS, 1);
                    lists.push((positions, counts));
                }
                let counts = if side == "owner" { h.received } else { h.counts };
                let writes: Vec<u32> = lists.iter().flat_map(|(p, c)| [*p, *c]).collect();
                self.op(
                    format!("positions_{side}{e}{tag}"),
                    Action::Positions { exchange: e, way },
                    stage,
                    buffers(&[classes, counts]),
                    buffers(&writes),
                );
                let h = &mut self.exchanges[e as usize];
                let to = if side == "owner" { &mut h.at_owner } else { &mut h.at_asker };
                to[usize::from(way == Way::Backward)] = lists;
            }
        }
    }

    /// Operand of a part's columns in a buffer of whole rows.
    fn part(s: &Schedule, e: u32, buffer: u32) -> Operand {
        let x = &s.exchanges[e as usize];
        let table = &s.tables[x.table as usize];
        let columns = (table.sharding.parts() > 1).then(|| table.part_columns(x.part));
        Operand { columns, ..Operand::buffer(buffer) }
    }

    fn lookups(&mut self, s: &Schedule, replicated: bool, group: &[u32], part: u32) {
        if part == 0 {
            for e in group {
                let first = s.exchanges[*e as usize].entries;
                let new = if first == *e {
                    self.buffer(format!("looked_up{e}"), Element::Real, sent(first), DIM)
                } else {
                    self.exchanges[first as usize].looked_up
                };
                self.exchanges[*e as usize].looked_up = new;
            }
        }
        let classes = match self.plan.reuse() {
            Some(reuse) if !replicated => {
                let list = (0..).zip(reuse.classes(Way::Forward));
                list.filter(|(_, c)| c.window * reuse.each == part).map(|(c, _)| Some(c)).collect()
            }
            _ if part == 0 => vec![None],
            _ => Vec::new(),
        };
        for class in &classes {
            let stage = class.map_or(0, |c| self.stages.gathers[c as usize]);
            let tag = class.map_or(String::new(), |c| format!("f{c}"));
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for e in group {
                let h = self.exchanges[*e as usize].clone();
                let x = &s.exchanges[*e as usize];
                let table = Operand::new(Place::Table(x.table));
                let action = Action::Gather { exchange: *e, class: *class };
                if replicated {
                    let operands = vec![table, Operand::buffer(h.own)];
                    self.op(format!("gather{e}"), action, 0, operands, vec![Self::part(s, *e, h.looked_up)]);
                    continue;
                }
                let columns = x.columns(&s.tables);
                let (from, to) = match class {
                    Some(c) => (
                        Symbol::ReceivedClass(*e, Way::Forward, *c),
                        Symbol::SentClass(x.entries, Way::Forward, *c),
                    ),
                    None => (Symbol::Received(*e), Symbol::Sent(x.entries)),
                };
                let y =
                    self.buffer(format!("gathered{e}{tag}"), Element::Real, Extent::Symbol(from), columns);
                let mut operands = vec![table, Operand::buffer(h.rows)];
                operands.extend(class.map(|c| Operand::buffer(h.at_owner[0][c as usize].0)));
                self.op(format!("gather{e}{tag}"), action, stage, operands, buffers(&[y]));
                if let Some(c) = class {
                    let to = Extent::Symbol(to);
                    let z = self.buffer(format!("arrived{e}{tag}"), Element::Real, to, columns);
                    self.exchanges[*e as usize].arrived.push(z);
                    let (owner, asker) = (h.at_owner[0][*c as usize].1, h.at_asker[0][*c as usize].1);
                    reads.extend([y, owner, asker]);
                    writes.push(Operand::buffer(z));
                } else {
                    reads.extend([y, h.received, h.counts]);
                    writes.push(Self::part(s, *e, h.looked_up));
                }
            }
            if !replicated {
                let action = Action::AllToAllRows { exchanges: group.to_vec(), class: *class };
                self.op(format!("rows{group:?}{tag}"), action, stage, buffers(&reads), writes);
            }
        }
        let classes: Vec<u32> = classes.into_iter().flatten().collect();
        if classes.is_empty() {
            return;
        }
        for e in group {
            let h = &self.exchanges[*e as usize];
            let pair = |c: &u32| [h.arrived[*c as usize], h.at_asker[0][*c as usize].0];
            let reads = buffers(&classes.iter().flat_map(pair).collect::<Vec<_>>());
            let write = Operand { accumulate: part > 0, ..Self::part(s, *e, h.looked_up) };
            let action = Action::Merge { exchange: *e, classes: classes.clone() };
            self.op(format!("merge{e}.{part}"), action, 0, reads, vec![write]);
        }
    }

    /// Forward and backward of one microbatch.
    fn model(&mut self, s: &Schedule, part: u32) {
        let firsts: Vec<u32> =
            (0..s.exchanges.len() as u32).filter(|e| s.exchanges[*e as usize].entries == *e).collect();
        let real = |this: &mut Self, name: &str, columns| {
            this.buffer(format!("{name}.{part}"), Element::Real, TOKENS, columns)
        };
        let p = |n| Operand::new(Place::Parameter(n));
        let mut xs = Vec::new();
        for e in &firsts {
            let h = self.exchanges[*e as usize].clone();
            let x = real(self, &format!("x{e}"), DIM);
            let reads = buffers(&[h.looked_up, h.inverse[part as usize]]);
            self.op(format!("expand{e}"), Action::Expand, 0, reads, buffers(&[x]));
            xs.push(x);
        }
        let sum = real(self, "sum", DIM);
        self.op("add".into(), Action::Add, 0, buffers(&xs), buffers(&[sum]));
        let (hidden, logits) = (real(self, "hidden", DIM), real(self, "logits", 1));
        let linear = Action::Linear { bias: false };
        self.op("linear0".into(), linear.clone(), 0, vec![at(sum, 0), p(0)], buffers(&[hidden]));
        self.op("linear1".into(), linear, 0, vec![at(hidden, 0), p(1)], buffers(&[logits]));
        let loss = self.buffer(format!("loss.{part}"), Element::Real, Extent::Fixed(1), 1);
        let glogits = real(self, "glogits", 1);
        let bce = Action::BceWithLogits { normalize: Normalize::Tokens(0) };
        let labels = Operand::new(Place::Input(s.inputs.len() as u32 - 1));
        self.op("loss".into(), bce, 0, vec![at(logits, 0), labels], buffers(&[loss, glogits]));
        let weight = Action::LinearGradWeight { bias: false };
        let g = |n| Operand { accumulate: part > 0, ..Operand::new(Place::Gradient(n)) };
        let (ghidden, gsum) = (real(self, "ghidden", DIM), real(self, "gsum", DIM));
        self.op("gweight1".into(), weight.clone(), 0, buffers(&[glogits, hidden]), vec![g(1)]);
        let input = Action::LinearGradInput;
        self.op("ginput1".into(), input.clone(), 0, vec![at(glogits, 0), p(1)], buffers(&[ghidden]));
        self.op("gweight0".into(), weight, 0, buffers(&[ghidden, sum]), vec![g(0)]);
        self.op("ginput0".into(), input, 0, vec![at(ghidden, 0), p(0)], buffers(&[gsum]));
        for e in &firsts {
            if part == 0 {
                let microbatch = self.microbatch.take();
                let grads = self.buffer(format!("grads{e}"), Element::Real, sent(*e), DIM);
                self.microbatch = microbatch;
                for (n, x) in s.exchanges.iter().enumerate().filter(|(_, x)| x.entries == *e) {
                    debug_assert!(x.entries <= n as u32);
                    self.exchanges[n].grads = grads;
                }
            }
            let h = self.exchanges[*e as usize].clone();
            let write = Operand { accumulate: part > 0, ..Operand::buffer(h.grads) };
            let reads = buffers(&[gsum, h.inverse[part as usize]]);
            self.op(format!("expand_grad{e}"), Action::ExpandGrad, 0, reads, vec![write]);
        }
    }

    fn gradients(&mut self, s: &Schedule, replicated: bool, group: &[u32], part: u32) {
        let classes: Vec<Option<u32>> = match self.plan.reuse() {
            Some(reuse) => {
                let list = (0..).zip(reuse.classes(Way::Backward));
                list.filter(|(_, c)| reuse.end(c.window) == part).map(|(c, _)| Some(c)).collect()
            }
            None if part + 1 == self.plan.microbatches => vec![None],
            None => Vec::new(),
        };
        for class in classes {
            let stage = class.map_or(0, |c| self.stages.applies[c as usize]);
            let tag = class.map_or(String::new(), |c| format!("b{c}"));
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            for e in group {
                let h = self.exchanges[*e as usize].clone();
                let x = &s.exchanges[*e as usize];
                let columns = x.columns(&s.tables);
                let grads = Self::part(s, *e, h.grads);
                let (from, to) = match class {
                    Some(c) => (
                        Symbol::SentClass(x.entries, Way::Backward, c),
                        Symbol::ReceivedClass(*e, Way::Backward, c),
                    ),
                    None => (Symbol::Sent(x.entries), Symbol::Received(*e)),
                };
                if let Some(c) = class {
                    let (asker, owner) = (h.at_asker[1][c as usize], h.at_owner[1][c as usize]);
                    let rows = Extent::Symbol(from);
                    let split = self.buffer(format!("split{e}{tag}"), Element::Real, rows, columns);
                    let action = Action::Split { exchange: *e, class: Some(c) };
                    let operands = vec![grads, Operand::buffer(asker.0)];
                    self.op(format!("split{e}{tag}"), action, stage, operands, buffers(&[split]));
                    reads.extend(buffers(&[split, asker.1, owner.1]));
                } else {
                    reads.push(grads);
                    reads.extend(buffers(&[h.counts, h.received]));
                }
                let to = Extent::Symbol(to);
                writes.push(self.buffer(format!("gradients{e}{tag}"), Element::Real, to, columns));
            }
            let exchanges = group.to_vec();
            let action = if replicated {
                Action::AllGatherGrads { exchanges, class }
            } else {
                Action::AllToAllGrads { exchanges, class }
            };
            self.op(format!("grads{group:?}{tag}"), action, stage, reads, buffers(&writes));
            for (e, gradients) in group.iter().zip(&writes) {
                let h = &self.exchanges[*e as usize];
                let mut operands = vec![h.rows];
                match class {
                    Some(c) => {
                        let (positions, counts) = h.at_owner[1][c as usize];
                        operands.extend([positions, counts]);
                    }
                    None => operands.push(h.received),
                }
                operands.push(*gradients);
                let table = Operand::new(Place::Table(s.exchanges[*e as usize].table));
                let action = Action::Apply { exchange: *e, class };
                self.op(format!("apply{e}{tag}"), action, stage, buffers(&operands), vec![table]);
            }
        }
    }
}
