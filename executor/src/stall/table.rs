//! Where all ranks are, for people.

use std::fmt::Write as _;

use fs_schedule::{Engine, Program};

use super::sighting::{Head, Need, Running, Sighting, Standing, State};
use crate::runtime::Plan;
use crate::runtime::place::Doing;

/// Places at which ranks are that are listed; others are counted.
const PLACES: usize = 12;
/// Operations that one waits for that are named.
const NEEDS: usize = 3;

/// Where the ranks of each process are: what was seen of it, or why nothing was heard.
/// `train` and `evaluation` are what they may run.
pub(super) fn table(
    (train, evaluation): (&Program, Option<&Program>),
    processes: &[(Vec<usize>, Result<Sighting, String>)],
) -> String {
    let running: Vec<&Running> = processes
        .iter()
        .filter_map(|(_, seen)| match seen {
            Ok(Sighting::Running(running)) => Some(running),
            _ => None,
        })
        .collect();
    let silent: Vec<usize> =
        processes.iter().filter(|(_, seen)| seen.is_err()).flat_map(|(ranks, _)| ranks.clone()).collect();
    let mut text = String::from("where the ranks are:\n");
    for (evaluates, program) in [(false, Some(train)), (true, evaluation)] {
        let of: Vec<&Running> = running.iter().copied().filter(|r| r.evaluation == evaluates).collect();
        let program = program.filter(|_| !of.is_empty());
        if let Some(line) = program.and_then(|program| Names::new(program, &of).first(&of, &silent)) {
            let _ = writeln!(text, "  {line}");
        }
    }
    // Ranks at the same place are said once.
    let mut places: Vec<(Vec<usize>, Vec<String>)> = Vec::new();
    let mut put = |ranks: &[usize], lines: Vec<String>| match places.iter_mut().find(|(_, l)| *l == lines) {
        Some((own, _)) => own.extend(ranks),
        None => places.push((ranks.to_vec(), lines)),
    };
    for (ranks, seen) in processes {
        match seen {
            Err(why) => put(ranks, vec![why.clone()]),
            Ok(Sighting::Else(what)) => put(ranks, vec![what.clone()]),
            Ok(Sighting::Running(running)) => {
                let program = evaluation.filter(|_| running.evaluation);
                let names = Names::new(program.unwrap_or(train), &[running]);
                running
                    .ranks
                    .iter()
                    .for_each(|standing| put(&[standing.rank], names.lines(standing, running)));
            }
        }
    }
    for (ranks, _) in &mut places {
        ranks.sort_unstable();
    }
    for (ranks, lines) in places.iter().take(PLACES) {
        match &lines[..] {
            [line] if !line.starts_with(' ') => {
                let _ = writeln!(text, "  {}: {line}", some(ranks));
            }
            lines => {
                let _ = writeln!(text, "  {}", some(ranks));
                for line in lines {
                    let _ = writeln!(text, "  {line}");
                }
            }
        }
    }
    let others: Vec<usize> = places.iter().skip(PLACES).flat_map(|(ranks, _)| ranks.clone()).collect();
    if !others.is_empty() {
        let _ = writeln!(text, "  {}: elsewhere, at {} places", some(&others), places.len() - PLACES);
    }
    text
}

/// `rank 3`, `ranks 0-2, 5`.
pub(super) fn some(ranks: &[usize]) -> String {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for rank in sorted {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let span = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    };
    let spans: Vec<String> = spans.iter().map(span).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, spans.join(", "))
}

/// What operations and steps of a program are called.
struct Names<'a> {
    program: &'a Program,
    plan: Plan,
    evaluation: bool,
    first_step: u64,
    end: u64,
}

impl<'a> Names<'a> {
    fn new(program: &'a Program, running: &[&Running]) -> Self {
        let first = running.first();
        let (evaluation, first_step) =
            (first.is_some_and(|r| r.evaluation), first.map_or(0, |r| r.first_step));
        let end = running.iter().map(|r| r.end).min().unwrap_or(0);
        Self { program, plan: Plan::new(program), evaluation, first_step, end }
    }

    /// The batch of an operation in a step of the plan, if there is one.
    fn batch(&self, op: usize, step: u64) -> Option<u64> {
        let stage = self.plan.ops.get(op)?.stage;
        let batch = u64::try_from(i64::try_from(step).ok()? - self.plan.stages.1 + stage).ok()?;
        (batch < self.end).then_some(batch)
    }

    /// `rows.ids of step 12`.
    fn instance(&self, op: usize, step: u64) -> String {
        let name = self.program.ops.get(op).map_or("?", |op| op.name.as_str());
        let of = if self.evaluation { "batch" } else { "step" };
        match self.batch(op, step) {
            Some(batch) => format!("{name} of {of} {}", self.first_step + batch),
            None => format!("{name} of no {of}"),
        }
    }

    /// What the head of a queue waits for.
    fn need(&self, head: &Head, need: Need) -> String {
        let by = self.instance(need.op, need.step);
        if self.plan.load == Some(head.op) {
            return format!("a free place for its batch, in use until {by}");
        }
        let buffer = need.buffer.and_then(|b| self.program.buffers.get(b));
        buffer.map_or_else(|| by.clone(), |b| format!("a free copy of `{}`, in use until {by}", b.name))
    }

    fn state(&self, head: &Head) -> String {
        match &head.state {
            State::Begun(Doing::Runs, _) => "runs".into(),
            State::Begun(Doing::Fills, _) => "puts together what it sends".into(),
            State::Begun(Doing::Sends, _) => "waits for its link".into(),
            State::Begun(Doing::Meets, ranks) if ranks.is_empty() => "has what all sent".into(),
            State::Begun(Doing::Meets, ranks) => {
                format!("waits for what {} {}", some(ranks), if ranks.len() == 1 { "sends" } else { "send" })
            }
            State::Begun(Doing::Drains, _) => "takes what has come".into(),
            State::Begun(Doing::Leave, _) => "waits for the first process's leave to load".into(),
            State::Begun(Doing::Reads, _) => "waits for samples that are read".into(),
            State::Waits(needs) if needs.is_empty() => "can start".into(),
            State::Waits(needs) => {
                let mut named: Vec<String> =
                    needs.iter().take(NEEDS).map(|need| self.need(head, *need)).collect();
                if needs.len() > NEEDS {
                    named.push(format!("{} more", needs.len() - NEEDS));
                }
                format!("waits for {}", named.join(", "))
            }
        }
    }

    /// A line for each queue.
    fn lines(&self, standing: &Standing, running: &Running) -> Vec<String> {
        if standing.queues.is_empty() {
            let what = if running.evaluation { "evaluated" } else { "trained" };
            return vec![format!("has {what} all its batches")];
        }
        let engine = |head: &Head| {
            let name = self.plan.engines.get(head.engine).copied().map_or("?", Engine::name);
            let several = self.plan.queues.get(head.engine).is_some_and(|queues| queues.len() > 1);
            let priority = self.program.ops.get(head.op).map_or(0, |op| op.priority);
            if several { format!("{name}, priority {priority}") } else { name.to_owned() }
        };
        let cells: Vec<[String; 3]> = standing
            .queues
            .iter()
            .map(|head| [engine(head), self.instance(head.op, head.step), self.state(head)])
            .collect();
        let width = |column: usize| cells.iter().map(|c| c[column].chars().count()).max().unwrap_or(0);
        let (first, second) = (width(0), width(1));
        cells.iter().map(|[a, b, c]| format!("  {a:first$}  {b:second$}  {c}")).collect()
    }

    /// The first operation that some rank has not begun although another has. What a silent rank has begun is known by
    /// what others wait for.
    fn first(&self, running: &[&Running], silent: &[usize]) -> Option<String> {
        let ranks: Vec<&Standing> = running.iter().flat_map(|r| &r.ranks).collect();
        let begun = |rank: &Standing, op: usize| rank.begun.get(op).copied().unwrap_or(0);
        let behind = (0..self.plan.ops.len()).filter_map(|op| {
            let least = ranks.iter().map(|rank| begun(rank, op)).min()?;
            let most = ranks.iter().map(|rank| begun(rank, op)).max()?;
            (least..most).find(|step| self.batch(op, *step).is_some()).map(|step| (step, op))
        });
        let heads = ranks.iter().flat_map(|rank| &rank.queues);
        let missed = heads.filter_map(|head| match &head.state {
            State::Begun(Doing::Meets, missing) if missing.iter().any(|rank| silent.contains(rank)) => {
                Some((head.step, head.op))
            }
            _ => None,
        });
        let (step, op) = behind.chain(missed.collect::<Vec<_>>()).min()?;
        let of = |yes: bool| -> Vec<usize> {
            ranks.iter().filter(|rank| (begun(rank, op) > step) == yes).map(|rank| rank.rank).collect()
        };
        let mut without = of(false);
        let waited = ranks.iter().flat_map(|rank| &rank.queues).filter(|h| (h.step, h.op) == (step, op));
        for head in waited {
            if let State::Begun(Doing::Meets, missing) = &head.state {
                without.extend(missing.iter().filter(|rank| silent.contains(rank)));
            }
        }
        without.sort_unstable();
        without.dedup();
        let (with, instance) = (some(&of(true)), self.instance(op, step));
        Some(format!(
            "the first operation that not all have begun is {instance}: {with} {}, {} not",
            if with.starts_with("ranks ") { "have" } else { "has" },
            some(&without)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use fs_schedule::{Action, Buffer, Dep, Element, Extent, Op, Operand};

    use super::super::look::Look;
    use crate::runtime::place::Places;
    use crate::runtime::progress::Progress;
    use crate::transport::clock::Clock;
    use std::sync::Arc;
    use std::time::Duration;

    /// Loads on the host, sends on a link, works on what has come; what comes has one buffer.
    fn program() -> Program {
        let dep = |op: u32, distance: u32| Dep { op, distance };
        let rows = Buffer {
            name: "rows".into(),
            element: Element::Real,
            rows: Extent::Fixed(1),
            columns: 1,
            microbatch: None,
            site: fs_schedule::Site::Home,
            copies: 1,
            slot: 0,
            first: 1,
            last: 2,
        };
        let op = |name: &str, action: Action, engine: Engine, deps: Vec<Dep>| Op {
            deps,
            ..Op::new(name, action, engine)
        };
        let load = op("load", Action::LoadBatch, Engine::Host, vec![dep(2, 2)]);
        let send = Op {
            writes: vec![Operand::buffer(0)],
            ..op("send", Action::AllReduce, Engine::CopyOut, vec![dep(0, 0), dep(2, 1)])
        };
        let work = Op {
            reads: vec![Operand::buffer(0)],
            ..op("work", Action::Zero, Engine::Compute, vec![dep(1, 0)])
        };
        Program { in_flight: 2, buffers: vec![rows], ops: vec![load, send, work] }
    }

    /// A rank that has done so many steps of each operation, and is in one.
    fn seen(rank: usize, done: [u64; 3], doing: Option<(usize, Doing)>) -> Sighting {
        Sighting::Running(look(rank, done, doing).running())
    }

    fn look(rank: usize, done: [u64; 3], doing: Option<(usize, Doing)>) -> Look {
        let program = program();
        let plan = Arc::new(Plan::new(&program));
        let (progress, places) = (Progress::new(&plan, 50), Places::new(3, [1, 1, 1].into_iter()));
        for (op, steps) in done.into_iter().enumerate() {
            let engine = plan.ops[op].engine;
            let events: Vec<_> =
                plan.engines.iter().map(|_| crate::transport::event::Event::default()).collect();
            (0..steps).for_each(|step| {
                progress.complete(&plan, op, step, &events);
            });
            progress.publish(engine, 0, Some(steps));
            if let Some((of, doing)) = doing.filter(|(of, _)| *of == op) {
                places.meet((engine, 0), (of, steps), (steps, 1_000 * rank as u64));
                places.set((engine, 0), (of, steps), doing);
                progress.publish(engine, 0, None);
            }
        }
        let ranks = vec![(rank, Arc::new(progress), Arc::new(places))];
        // Rank 1 has posted nothing since turn 3, and rank 3 never does.
        let missing = |turn: crate::transport::Turn| if turn.turn > 3 { vec![1, 3] } else { vec![3] };
        Look::new((&program, &plan), (Clock::start(), false, 100), ranks, missing)
    }

    #[test]
    fn who_has_waited_for_long_says_for_whom() {
        let least = Duration::from_micros(1);
        let meets = look(0, [6, 4, 4], Some((1, Doing::Meets)));
        std::thread::sleep(2 * least);
        let waits = meets.overdue(least).expect("it waits since the start");
        assert_eq!(waits.to_string(), "`send` of step 104 has waited 0 s for ranks 1, 3");
        assert_eq!(meets.overdue(Duration::from_secs(1_000)), None, "not for so long");
        let runs = look(0, [6, 5, 4], Some((2, Doing::Runs)));
        assert_eq!(runs.overdue(Duration::ZERO), None, "it works");
    }

    #[test]
    fn who_waits_for_what_is_said() {
        let program = program();
        let said =
            |processes: Vec<(Vec<usize>, Result<Sighting, String>)>| table((&program, None), &processes);
        let meets = |rank: usize| seen(rank, [6, 4, 4], Some((1, Doing::Meets)));
        let text = said(vec![
            (vec![0], Ok(meets(0))),
            (vec![1], Ok(seen(1, [5, 4, 3], Some((2, Doing::Runs))))),
            (vec![2], Ok(meets(2))),
            (vec![3], Err("its process says nothing".into())),
        ]);
        assert_eq!(
            text,
            "where the ranks are:
  the first operation that not all have begun is send of step 104: ranks 0, 2 have, ranks 1, 3 not
  ranks 0, 2
    host      load of step 106  waits for a free place for its batch, in use until work of step 104
    compute   work of step 104  waits for send of step 104
    copy out  send of step 104  waits for what ranks 1, 3 send
  rank 1
    host      load of step 105  waits for a free place for its batch, in use until work of step 103
    compute   work of step 103  runs
    copy out  send of step 104  waits for a free copy of `rows`, in use until work of step 103
  rank 3: its process says nothing
"
        );
        // Only the silent one is behind.
        let text = said(vec![
            (vec![0], Ok(meets(0))),
            (vec![3], Err("its process is gone: killed".into())),
            (vec![1], Ok(Sighting::Else("between runs".into()))),
        ]);
        assert!(text.contains("is send of step 104: rank 0 has, rank 3 not"), "{text}");
        assert!(text.contains("  rank 1: between runs\n"), "{text}");
    }

    #[test]
    fn many_places_are_counted() {
        let program = program();
        let at = |rank: usize| (vec![rank], Ok(seen(rank, [rank as u64 / 2 + 2, 1, 1], None)));
        let text = table((&program, None), &(0..40).map(at).collect::<Vec<_>>());
        assert!(text.lines().count() < 2 + 5 * PLACES, "{text}");
        assert!(text.ends_with("  ranks 24-39: elsewhere, at 8 places\n"), "{text}");
    }

    #[test]
    fn ranks_are_said_in_spans() {
        assert_eq!(some(&[3]), "rank 3");
        assert_eq!(some(&[1, 0]), "ranks 0, 1");
        assert_eq!(some(&[0, 1, 2, 5, 7, 8]), "ranks 0-2, 5, 7, 8");
    }
}
