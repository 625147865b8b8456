//! Sleeping until something may have changed.
//!
//! An event is a number that grows. A thread reads it, looks whether it can go on, and if not sleeps until the number
//! differs from what it read: whatever changed after the reading has raised the number, so no change is slept
//! through. Raising it costs one atomic addition while nobody sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// What one thread sleeps on.
#[derive(Debug, Default)]
pub struct Event {
    number: AtomicU64,
    asleep: AtomicBool,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Event {
    /// The number now.
    pub fn read(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Raises the number and wakes the sleeper.
    pub fn raise(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
        // Either the sleeper's flag is seen here, or the sleeper sees the new number before it sleeps: both are
        // written before the other is read, in one total order.
        if self.asleep.load(Ordering::SeqCst) {
            let _held = self.lock.lock();
            self.changed.notify_all();
        }
    }

    /// Sleeps until the number differs from `seen`, or until `deadline`.
    pub fn sleep(&self, seen: u64, deadline: Option<Instant>) {
        let mut held = self.lock.lock();
        self.asleep.store(true, Ordering::SeqCst);
        while self.read() == seen {
            match deadline {
                None => self.changed.wait(&mut held),
                Some(at) => {
                    if self.changed.wait_until(&mut held, at).timed_out() {
                        break;
                    }
                }
            }
        }
        self.asleep.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    /// Two threads hand a token to and fro; a lost wake-up would hang.
    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: usize = 20_000;
        let token = AtomicUsize::new(0);
        let events = [Event::default(), Event::default()];
        std::thread::scope(|scope| {
            for me in 0..2 {
                let (token, events) = (&token, &events);
                scope.spawn(move || {
                    loop {
                        let seen = events[me].read();
                        let now = token.load(Ordering::Acquire);
                        if now >= TURNS {
                            events[1 - me].raise();
                            return;
                        }
                        if now % 2 == me {
                            token.store(now + 1, Ordering::Release);
                            events[1 - me].raise();
                        } else {
                            events[me].sleep(seen, None);
                        }
                    }
                });
            }
        });
        assert!(token.into_inner() >= TURNS);
    }

    #[test]
    fn a_deadline_ends_sleep() {
        let event = Event::default();
        let until = Instant::now() + Duration::from_millis(5);
        event.sleep(event.read(), Some(until));
        assert!(Instant::now() >= until);
    }
}
