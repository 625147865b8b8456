//! The signalling core in every interleaving: sleeping and waking, counters of operations, turns of a channel.
//!
//! The sources of the executor's core are compiled here once more, with the model checker's atomics and threads in
//! place of the standard library's. It runs through all orders that the memory model allows, and says so when threads
//! wait for each other for good, or use one outbox at once. Each property has twins that are broken on purpose, in
//! which it must find the fault.

#[path = "../../executor/src/transport/channel.rs"]
#[allow(dead_code, reason = "a part is used here")]
mod channel;
#[path = "../../executor/src/transport/event.rs"]
#[allow(dead_code, reason = "a part is used here")]
mod event;
#[path = "../../executor/src/transport/mpi/mailbox.rs"]
#[allow(dead_code, reason = "a part is used here")]
mod mailbox;
#[path = "../../executor/src/runtime/plan.rs"]
#[allow(dead_code, reason = "a part is used here")]
mod plan;
#[path = "../../executor/src/transport/posts.rs"]
mod posts;
#[path = "../../executor/src/runtime/progress.rs"]
#[allow(dead_code, reason = "a part is used here")]
mod progress;

/// The core's atomics and threads.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
    use loom::sync::{Condvar, MutexGuard};

    /// A lock that no panic leaves behind.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// A token that is waited for. Nothing is modelled that ends by itself.
    #[derive(Debug, Default)]
    pub(crate) struct Parker(loom::sync::Mutex<bool>, Condvar);

    impl Parker {
        #[allow(clippy::unused_self, reason = "the core's own takes note of the thread")]
        pub(crate) fn attach(&self) {}

        pub(crate) fn park(&self, _: Option<std::time::Instant>) -> bool {
            let mut token = self.0.lock().unwrap();
            while !std::mem::take(&mut *token) {
                token = self.1.wait(token).unwrap();
            }
            true
        }

        pub(crate) fn unpark(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_one();
        }
    }
}

mod transport {
    pub(crate) use crate::channel::Channel;
    pub(crate) use crate::event;
}

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use event::{Event, publish};
use fs_schedule::{Action, Dep, Engine, Op, Program};
use loom::cell::UnsafeCell;
use loom::thread;
use mailbox::{End, Mailbox};
use plan::Plan;
use posts::Posts;
use progress::Progress;
use sync::{AtomicU64, Ordering};

/// Runs through the interleavings with at most `preemptions` switches that no thread asked for (all without it).
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 100_000;
    builder.check(model);
}

/// What the checker says against a model, if it finds something.
fn fault(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) -> Option<String> {
    let found = catch_unwind(AssertUnwindSafe(|| explore(preemptions, model))).err()?;
    let text = found.downcast_ref::<String>().cloned();
    Some(text.or_else(|| found.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
}

/// How a change is told to a thread that sleeps.
#[derive(Clone, Copy, PartialEq)]
enum Telling {
    Right,
    /// The thread sleeps without having looked once more.
    NoSecondLook,
    /// Whoever changes something asks who sleeps before the change is there.
    AskedTooEarly,
    /// No fence between the change and the question.
    NoFence,
}

/// One thread waits for two changes in turn, another one makes them.
fn tell(telling: Telling) {
    let shared = Arc::new((AtomicU64::new(0), Event::default()));
    shared.1.attach();
    let other = Arc::clone(&shared);
    thread::spawn(move || {
        let (number, event) = &*other;
        for n in 1..=2 {
            match telling {
                Telling::AskedTooEarly => {
                    publish();
                    event.wake();
                    number.store(n, Ordering::Release);
                }
                Telling::NoFence => {
                    number.store(n, Ordering::Release);
                    event.wake();
                }
                Telling::Right | Telling::NoSecondLook => {
                    number.store(n, Ordering::Release);
                    publish();
                    event.wake();
                }
            }
        }
    });
    let (number, event) = &*shared;
    loop {
        let seen = number.load(Ordering::Acquire);
        if seen == 2 {
            break;
        }
        event.sleep(None, || telling != Telling::NoSecondLook && number.load(Ordering::Acquire) != seen);
    }
}

#[test]
fn no_change_is_slept_through() {
    explore(Some(4), || tell(Telling::Right));
    for broken in [Telling::NoSecondLook, Telling::AskedTooEarly, Telling::NoFence] {
        let said = fault(Some(4), move || tell(broken)).unwrap_or_default();
        assert!(said.contains("deadlock"), "the model misses the fault: {said}");
    }
}

fn op(name: &str, engine: Engine, deps: &[(u32, u32)]) -> Op {
    Op {
        deps: deps.iter().map(|(op, distance)| Dep { op: *op, distance: *distance }).collect(),
        ..Op::new(name, Action::Zero, engine)
    }
}

/// Two operations on engines of their own, a third that needs both, and the first needs the third of the step before.
fn three() -> Plan {
    let ops = vec![
        op("left", Engine::Host, &[(2, 1)]),
        op("right", Engine::CopyIn, &[]),
        op("both", Engine::Compute, &[(0, 0), (1, 0)]),
    ];
    Plan::new(&Program { in_flight: 2, buffers: Vec::new(), ops })
}

/// Every engine's thread runs its queue for some steps, as the executor's do.
fn run_steps(steps: u64, look_again: bool) {
    let plan = Arc::new(three());
    let shared =
        Arc::new((Progress::new(&plan, steps), (0..3).map(|_| Event::default()).collect::<Vec<_>>()));
    let run = |engine: usize| {
        let (plan, shared) = (Arc::clone(&plan), Arc::clone(&shared));
        move || {
            let (progress, events) = &*shared;
            events[engine].attach();
            for passed in 0..steps {
                let (op, step) = progress.head(&plan, engine, 0, passed).unwrap();
                while !progress.ready(&plan, op, step) {
                    events[engine].sleep(None, || look_again && progress.ready(&plan, op, step));
                }
                for (other, at) in plan.needs(op, step) {
                    assert!(progress.has_done(other, at));
                }
                progress.complete(&plan, op, step, events);
                progress.publish(engine, 0, Some(passed + 1));
            }
        }
    };
    for engine in [0, 2] {
        thread::spawn(run(engine));
    }
    run(1)();
}

#[test]
fn operations_wake_those_that_they_let_go_on() {
    explore(Some(3), || run_steps(1, true));
    explore(Some(1), || run_steps(2, true));
    let said = fault(Some(2), || run_steps(1, false)).unwrap_or_default();
    assert!(said.contains("deadlock"), "the model misses the fault: {said}");
}

/// Ranks exchange numbers over some turns of a channel with `outboxes` outboxes each.
fn exchange(ranks: usize, turns: u64, outboxes: usize, look_again: bool) {
    struct Shared {
        posts: Posts,
        events: Vec<Event>,
        /// Contents, and who uses them.
        outboxes: Vec<Vec<(AtomicU64, UnsafeCell<()>)>>,
    }
    let outbox = || (0..outboxes).map(|_| (AtomicU64::new(0), UnsafeCell::new(()))).collect();
    #[allow(clippy::arc_with_non_send_sync, reason = "the model's threads share what it watches")]
    let shared = Arc::new(Shared {
        posts: Posts::new(ranks),
        events: (0..ranks).map(|_| Event::default()).collect(),
        outboxes: (0..ranks).map(|_| outbox()).collect(),
    });
    let run = |me: usize| {
        let shared = Arc::clone(&shared);
        move || {
            let Shared { posts, events, outboxes } = &*shared;
            events[me].attach();
            for turn in 0..turns {
                let slot = Posts::slot(turn) % outboxes[me].len();
                let (content, user) = &outboxes[me][slot];
                user.with_mut(|_| content.store(10 * turn + me as u64, Ordering::Relaxed));
                if posts.post() {
                    publish();
                    for event in events {
                        event.wake();
                    }
                }
                while !posts.complete(turn) {
                    events[me].sleep(None, || look_again && posts.complete(turn));
                }
                for (from, outbox) in outboxes.iter().enumerate() {
                    let (content, user) = &outbox[slot];
                    let found = user.with(|_| content.load(Ordering::Relaxed));
                    assert_eq!(found, 10 * turn + from as u64, "another turn's contents");
                }
            }
        }
    };
    for rank in 1..ranks {
        thread::spawn(run(rank));
    }
    run(0)();
}

#[test]
fn turns_of_a_channel_do_not_mix() {
    explore(Some(3), || exchange(2, 3, 2, true));
    explore(Some(1), || exchange(3, 3, 2, true));
    let said = fault(Some(2), || exchange(2, 2, 1, true)).expect("one outbox is too few");
    assert!(said.contains("another turn") || said.contains("Concurrent"), "{said}");
    let said = fault(Some(2), || exchange(2, 3, 2, false)).unwrap_or_default();
    assert!(said.contains("deadlock"), "the model misses the fault: {said}");
}

/// How frames are handed over, and how they are waited for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Handing {
    Right,
    /// The thread is woken before the frame is there.
    WakeFirst,
    /// Nobody wakes the thread.
    Silent,
    /// The end is said before the frames are handed over.
    EndFirst,
}

/// Two threads hand over frames, one of them the end behind its own; another takes all of them.
fn hand_over(handing: Handing) {
    let mailbox = Arc::new(Mailbox::<()>::new(1));
    let hand = move |mailbox: &Mailbox<()>, urgency| match handing {
        Handing::WakeFirst => {
            mailbox.wake();
            mailbox.put(0, urgency, 1, &mut |bytes| bytes.push(7));
        }
        Handing::Silent => drop(mailbox.put(0, urgency, 1, &mut |bytes| bytes.push(7))),
        _ => mailbox.hand(0, urgency, 1, &mut |bytes| bytes.push(7)),
    };
    let other = Arc::clone(&mailbox);
    let other = thread::spawn(move || hand(&other, 10));
    let last = Arc::clone(&mailbox);
    let last = thread::spawn(move || {
        if handing == Handing::EndFirst {
            last.end(End::Finish);
        }
        hand(&last, 20);
        if handing == Handing::Right {
            hand(&last, 21);
            last.end(End::Finish);
        }
    });
    mailbox.attach();
    let expected: &[i64] = if handing == Handing::Right { &[20, 21] } else { &[20] };
    let (mut frames, mut taken, mut ended) = (Vec::new(), Vec::new(), false);
    while taken.len() <= expected.len() || (handing == Handing::Right && !ended) {
        let (_, end) = mailbox.take(&mut frames, || None);
        for frame in frames.drain(..) {
            assert_eq!((frame.to, &frame.bytes[..]), (0, &[0, 7][..]));
            taken.push(frame.urgency);
        }
        if end.is_some() {
            ended = true;
            assert!(expected.iter().all(|f| taken.contains(f)), "the end overtakes what was handed over");
        }
        if taken.len() <= expected.len() || (handing == Handing::Right && !ended) {
            mailbox.sleep(None);
        }
    }
    other.join().unwrap();
    last.join().unwrap();
    assert_eq!(taken.iter().filter(|f| **f == 10).count(), 1);
    taken.retain(|frame| *frame != 10);
    assert_eq!(taken, expected, "frames of one thread keep their order");
}

/// Frames reach the thread that carries them, once and in order, and the end comes behind them.
#[test]
fn nothing_that_is_handed_over_stays_behind() {
    explore(Some(3), || hand_over(Handing::Right));
    for wrong in [Handing::WakeFirst, Handing::Silent] {
        let found = fault(Some(3), move || hand_over(wrong)).unwrap_or_default();
        assert!(found.contains("deadlock"), "{wrong:?}: {found}");
    }
    let found = fault(Some(3), || hand_over(Handing::EndFirst)).unwrap_or_default();
    assert!(found.contains("overtakes"), "{found}");
}
