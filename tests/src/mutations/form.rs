//! Files that say what no schedule may: declarations, operands, engines, ranges.

use fs_schedule::{
    Action, Dep, Duration, Element, Engine, Extent, Init, InputKind, Operand, Place, RowPlacement, Schedule,
    Sharding, Site, SparseOptimizer, Symbol, Way,
};

use super::{Mutation, all, classes_of_gather, find, linear, says};

/// Plans the rows of a row-wise table, wrongly.
fn plan(s: &mut Schedule, wrong: impl FnOnce(&mut Vec<Vec<u64>>)) -> Option<()> {
    let mut hot = vec![Vec::new(); s.ranks as usize];
    wrong(&mut hot);
    let table = s.tables.iter_mut().find(|t| t.sharding == Sharding::RowWise)?;
    table.placement = RowPlacement::Planned { hot };
    Some(())
}

pub(super) const MUTATIONS: &[Mutation] = &[
    says("another version", "version", |s| {
        s.version = 99;
        Some(())
    }),
    says("a transfer launched with what is before it", "joined", |s| {
        let transfer = find(s, Action::is_transfer)?;
        s.train.ops[transfer].joined = true;
        Some(())
    }),
    says("another format", "version", |s| {
        s.format = "chakra".into();
        Some(())
    }),
    says("a name of a megabyte", "limits", |s| {
        s.train.ops[0].name = "x".repeat(1 << 20);
        Some(())
    }),
    says("more queues than clocks can tell apart", "limits", |s| {
        (0..).zip(&mut s.train.ops).for_each(|(i, op)| op.priority = i);
        (s.train.ops.len() > 64).then_some(())
    }),
    says("no samples in a batch", "settings", |s| {
        s.settings.batch = 0;
        Some(())
    }),
    says("a batch that does not divide by the ranks", "settings", |s| {
        // More than there were: tables' owners stay.
        s.ranks = (s.ranks..=s.settings.batch + 1).find(|ranks| !s.settings.batch.is_multiple_of(*ranks))?;
        Some(())
    }),
    says("no ranks", "settings", |s| {
        s.ranks = 0;
        Some(())
    }),
    says("no steps", "settings", |s| {
        s.settings.duration = Duration::Steps(0);
        Some(())
    }),
    says("no microbatches", "settings", |s| {
        s.settings.microbatches = 0;
        Some(())
    }),
    says("a table without rows", "tables", |s| {
        s.tables[0].rows = 0;
        Some(())
    }),
    says("an infinite initial value", "tables", |s| {
        s.tables[0].init = Init::Constant(f64::INFINITY);
        Some(())
    }),
    says("two parameters of one name", "tables", |s| {
        s.parameters[1].name = s.parameters[0].name.clone();
        Some(())
    }),
    says("an exchange of a table that is not there", "tables", |s| {
        s.exchanges[0].table = 77;
        Some(())
    }),
    says("a table on a rank that is not there", "sharding", |s| {
        let found = s.tables.iter_mut().find_map(|t| match &mut t.sharding {
            Sharding::TableWise { rank } => Some(rank),
            Sharding::ColumnWise { ranks } => ranks.first_mut(),
            _ => None,
        });
        *found? = 9;
        Some(())
    }),
    says("a column-wise table with a row-wise optimizer", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| t.sharding.parts() > 1)?;
        t.optimizer = SparseOptimizer::RowwiseAdagrad { lr: 0.1, eps: 1e-8 };
        Some(())
    }),
    says("hashed rows of a table that no ranks share", "sharding", |s| {
        s.tables.iter_mut().find(|t| t.sharding != Sharding::RowWise)?.placement = RowPlacement::Hashed;
        Some(())
    }),
    says("a hot row that is not there", "sharding", |s| plan(s, |hot| hot[0] = vec![u64::MAX])),
    says("a hot row on two ranks", "sharding", |s| plan(s, |hot| (hot[0], hot[1]) = (vec![3], vec![3]))),
    says("hot rows out of order", "sharding", |s| plan(s, |hot| hot[0] = vec![2, 1])),
    says("more hot rows than their rank owns", "sharding", |s| {
        let t = s.tables.iter_mut().find(|t| t.sharding == Sharding::RowWise)?;
        t.rows = 12;
        plan(s, |hot| hot[1] = (0..7).collect())
    }),
    says("hot rows of more ranks than there are", "sharding", |s| plan(s, |hot| hot.push(Vec::new()))),
    says("a part of the columns that no exchange moves", "exchanges", |s| {
        let t = s.tables.iter_mut().find(|t| t.sharding.parts() > 1)?;
        t.sharding = Sharding::ColumnWise { ranks: vec![0, 1, 0] };
        Some(())
    }),
    says("a part that sends entries of its own", "exchanges", |s| {
        let e = s.exchanges.iter().position(|x| x.part > 0)?;
        s.exchanges[e].entries = e as u32;
        Some(())
    }),
    says("a lookahead beyond the limit", "exchanges", |s| {
        let x = s.exchanges.iter_mut().find(|x| x.lookahead.is_some())?;
        x.lookahead = Some(65);
        Some(())
    }),
    says("windows that do not cut microbatches evenly", "exchanges", |s| {
        let microbatches = s.settings.microbatches;
        let x = s.exchanges.iter_mut().find(|x| x.lookahead.is_some()).filter(|_| microbatches > 1)?;
        x.windows = Some((2..=microbatches + 1).find(|n| !microbatches.is_multiple_of(*n))?);
        Some(())
    }),
    says("as many windows as microbatches", "exchanges", |s| {
        let x = s.exchanges.iter_mut().find(|x| x.lookahead.is_some())?;
        x.windows = Some(s.settings.microbatches);
        Some(())
    }),
    says("windows of rows that are not told apart", "exchanges", |s| {
        let x = s.exchanges.iter_mut().find(|x| x.lookahead.is_none())?;
        x.windows = Some(1);
        Some(())
    }),
    says("a sequence of a group that is not there", "inputs", |s| {
        s.inputs[0].kind = InputKind::TokenLabel { lengths: 99 };
        Some(())
    }),
    says("a group of empty sequences", "inputs", |s| {
        s.lengths[0].max = 0;
        Some(())
    }),
    says("an operand that is not there", "indices", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0] = Operand::buffer(9999);
        Some(())
    }),
    says("columns outside of a buffer", "indices", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0].columns = Some((0, 1 << 20));
        Some(())
    }),
    says("rows of an unknown length group", "indices", |s| {
        s.train.buffers[0].rows = Extent::Symbol(Symbol::Tokens(99));
        Some(())
    }),
    says("rows of a class that is not there", "indices", |s| {
        s.train.buffers[0].rows = Extent::Symbol(Symbol::SentClass(0, Way::Forward, 200));
        Some(())
    }),
    says("a dependency on nothing", "indices", |s| {
        s.train.ops[3].deps.push(Dep { op: 9999, distance: 0 });
        Some(())
    }),
    says("a buffer without copies", "indices", |s| {
        s.train.buffers[0].copies = 0;
        Some(())
    }),
    says("a missing operand", "operands", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads.pop();
        Some(())
    }),
    says("a weight of another layer", "operands", |s| {
        let at = *all(s, |a| matches!(a, Action::Linear { .. })).get(1)?;
        s.train.ops[at].reads[1] = Operand::new(Place::Parameter(0));
        Some(())
    }),
    says("a result of another type", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[b as usize].element = Element::Real;
        Some(())
    }),
    says("an f32 that is read as a bf16", "operands", |s| {
        let at = linear(s)?;
        let Place::Buffer(b) = s.train.ops[at].reads[0].place else { return None };
        s.train.buffers[b as usize].element = Element::Bf16;
        Some(())
    }),
    says("an f32 that is written as a bf16", "operands", |s| {
        let at = linear(s)?;
        let Place::Buffer(b) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[b as usize].element = Element::Bf16;
        Some(())
    }),
    says("rows that travel in bf16", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::AllToAllRows { .. } | Action::AllGatherGrads { .. }))?;
        let Place::Buffer(b) = s.train.ops[at].reads[0].place else { return None };
        s.train.buffers[b as usize].element = Element::Bf16;
        Some(())
    }),
    says("positions of another class", "operands", |s| {
        let gathers = all(s, |a| classes_of_gather(a).is_some());
        let other = s.train.ops[*gathers.get(1)?].reads[2];
        s.train.ops[gathers[0]].reads[2] = other;
        Some(())
    }),
    says("a partition that is not shown the oldest batch", "operands", |s| {
        let at = find(s, |a| matches!(a, Action::Partition { .. }))?;
        s.train.ops[at].reads.pop();
        Some(())
    }),
    says("two operations of one name", "names", |s| {
        s.train.ops[2].name = s.train.ops[1].name.clone();
        Some(())
    }),
    says("a wait cycle within a step", "order", |s| {
        let (i, d) = s
            .train
            .ops
            .iter()
            .enumerate()
            .find_map(|(i, op)| op.deps.iter().find(|d| d.distance == 0).map(|d| (i, d.op as usize)))?;
        s.train.ops[d].deps.push(Dep { op: i as u32, distance: 0 });
        Some(())
    }),
    says("an operation that waits for itself", "order", |s| {
        s.train.ops[3].deps.push(Dep { op: 3, distance: 0 });
        Some(())
    }),
    says("a dependency twice", "order", |s| {
        let op = s.train.ops.iter_mut().find(|o| !o.deps.is_empty())?;
        op.deps.push(op.deps[0]);
        Some(())
    }),
    says("an operation that overwrites what it reads", "writes", |s| {
        let at = find(s, |a| matches!(a, Action::Add))?;
        s.train.ops[at].writes[0] = s.train.ops[at].reads[0];
        Some(())
    }),
    says("an addition by an operation that overwrites", "writes", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0].accumulate = true;
        Some(())
    }),
    says("an input that is written", "writes", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0] = Operand::new(Place::Parameter(0));
        Some(())
    }),
    says("a transfer on the compute engine", "engines", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        s.train.ops[at].engine = Engine::Compute;
        Some(())
    }),
    says("an engine that is not declared", "engines", |s| {
        s.engines.pop();
        Some(())
    }),
    says("a stage out of range", "stages", |s| {
        s.train.ops[0].stage = 65;
        Some(())
    }),
    says("a chunk of no bytes", "chunks", |s| {
        let at = find(s, |a| matches!(a, Action::AllReduce))?;
        s.train.ops[at].chunk = Some(0);
        Some(())
    }),
    says("chunks of a matrix product", "chunks", |s| {
        let at = linear(s)?;
        s.train.ops[at].chunk = Some(64);
        Some(())
    }),
    says("a plan against the queue's order", "times", |s| {
        let at = linear(s)?;
        s.train.ops[at].start = 1 << 50;
        Some(())
    }),
    says("a matrix product with another batch's activations", "offsets", |s| {
        let at = linear(s)?;
        s.train.ops[at].reads[0].batch = -1;
        Some(())
    }),
    says("a result for another batch", "offsets", |s| {
        let at = linear(s)?;
        s.train.ops[at].writes[0].batch = 1;
        Some(())
    }),
    says("samples of another microbatch", "microbatch", |s| {
        let expands = all(s, |a| matches!(a, Action::Expand));
        let (a, b) = (*expands.first()?, *expands.iter().find(|i| s.train.ops[**i].microbatch == Some(1))?);
        let other = s.train.ops[b].reads[1];
        s.train.ops[a].reads[1] = other;
        Some(())
    }),
    says("ids of microbatches in another order", "microbatch", |s| {
        let at = find(s, |a| matches!(a, Action::Unique { .. }))?;
        let n = s.train.ops[at].writes.len();
        s.train.ops[at].writes.swap(n - 1, n - 2);
        (s.settings.microbatches > 1).then_some(())
    }),
    says("rows of samples at home where samples are as assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::Expand))?;
        s.train.ops[at].site = Site::Assigned;
        let Place::Buffer(written) = s.train.ops[at].writes[0].place else { return None };
        s.train.buffers[written as usize].site = Site::Assigned;
        Some(())
    }),
    says("samples loaded where they are assigned", "site", |s| {
        let at = find(s, |a| matches!(a, Action::LoadBatch))?;
        s.train.ops[at].site = Site::Assigned;
        Some(())
    }),
];
