use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// Two processes whose links work off what was sent at a constant rate, in order, acknowledgements among the rest.
struct Links {
    rate: f64,
    /// Seconds that everything takes, and that the other's thread sleeps between looks at most.
    delay: f64,
    sleep: f64,
    /// Seconds that a thread has no core, now and then.
    away: f64,
    /// Whether both send, and how many bytes in a row before a rest.
    both: bool,
    row: u64,
    /// By how much the second one's clock is ahead.
    ahead: f64,
}

const SIMPLE: Links =
    Links { rate: 1e8, delay: 1e-4, sleep: 4e-5, away: 0.0, both: true, row: u64::MAX, ahead: 0.0 };

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Data(u64),
    Alive(u64, u64),
    Look,
}

/// What came of it.
#[derive(Debug)]
struct Found {
    /// Of the links' rate, in both directions.
    used: [f64; 2],
    /// Seconds that pieces waited in the first link: of the second half of the time the median and the greatest.
    waited: (f64, f64),
}

impl Links {
    fn play(&self, seconds: f64) -> Found {
        let start = Instant::now();
        let at = |t: f64| start + Duration::from_secs_f64(t);
        let mut random = 1_u64;
        let mut draw = move || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut paces = [Pace::new(start), Pace::new(start)];
        let (mut free, mut come, mut total) = ([0.0_f64; 2], [0_u64; 2], [0_u64; 2]);
        let mut away = [0.0_f64; 2];
        let mut waits = Vec::new();
        // Times in nanoseconds, so that they have an order.
        let mut events = BinaryHeap::new();
        let nanos = |t: f64| (t * 1e9) as u64;
        events.push(Reverse((0, 0, What::Look)));
        events.push(Reverse((0, 1, What::Look)));
        while let Some(Reverse((time, me, what))) = events.pop() {
            let t = time as f64 / 1e9;
            if t > seconds {
                break;
            }
            if what == What::Look {
                events.push(Reverse((nanos(t + 4e-5), me, What::Look)));
            }
            let clock = |who: usize| 1e5 + t + if who == 1 { self.ahead } else { 0.0 };
            let mut leave = |from: usize, bytes: u64, what: What| {
                let waited = (free[from] - t).max(0.0);
                free[from] = free[from].max(t) + bytes as f64 / self.rate;
                let mut seen = free[from] + self.delay + draw() * self.sleep;
                // While it is away everything is seen at its end.
                let back = &mut away[1 - from];
                if seen > *back && self.away > 0.0 && draw() < 0.01 {
                    *back = seen + self.away;
                }
                if *back - self.away < seen {
                    seen = seen.max(*back);
                }
                events.push(Reverse((nanos(seen), 1 - from, what)));
                waited
            };
            match what {
                What::Data(bytes) => {
                    come[me] = come[me].max(bytes);
                    leave(me, 56, What::Alive(come[me], nanos(clock(me))));
                }
                What::Alive(bytes, stamp) => {
                    paces[me].acknowledge(bytes, Some(stamp as f64 / 1e9), at(t));
                }
                What::Look => {}
            }
            if me == 0 || self.both {
                // After a row all must have come before the next one.
                let resting = total[me] > 0 && total[me] % self.row == 0 && !paces[me].is_empty();
                while !resting && paces[me].is_open(at(t)) {
                    let left = self.row - total[me] % self.row;
                    let part = paces[me].part().clamp(32 << 10, 4 << 20).min(left);
                    paces[me].send(part, at(t));
                    total[me] += part;
                    let waited = leave(me, part, What::Data(total[me]));
                    if me == 0 && t > seconds / 2.0 {
                        waits.push(waited);
                    }
                    if total[me] % self.row == 0 {
                        paces[me].rest();
                        break;
                    }
                }
            }
        }
        waits.sort_by(f64::total_cmp);
        let waited =
            waits.get(waits.len() / 2).map_or((0.0, 0.0), |middle| (*middle, waits[waits.len() - 1]));
        Found { used: [1, 0].map(|to| come[to] as f64 / seconds / self.rate), waited }
    }
}

const RATES: [f64; 5] = [1.25e7, 2.5e7, 6.25e7, 1.25e8, 1.25e9];

/// The links stay busy in both directions, whether the other sends too or not, and little waits in them.
#[test]
fn links_stay_busy() {
    for rate in RATES {
        for (both, ahead) in [(true, 0.0), (false, 0.0), (true, 1e4), (true, -1e4)] {
            let found = Links { rate, both, ahead, ..SIMPLE }.play(2.0);
            assert!(found.used[0] > 0.96 && (found.used[1] > 0.96 || !both), "{rate} {both}: {found:?}");
            assert!(found.waited.1 < 2.0 * WAIT.as_secs_f64(), "{rate} {both}: {found:?}");
        }
    }
}

/// They do so too where threads sleep long between looks, or lose their cores for milliseconds.
#[test]
fn sleep_and_absence_cost_little() {
    for rate in RATES {
        let slow = Links { rate, sleep: 1e-3, ..SIMPLE }.play(2.0);
        assert!(slow.used.iter().all(|used| *used > 0.93), "{rate}: {slow:?}");
        assert!(slow.waited.0 < 2.0 * WAIT.as_secs_f64(), "{rate}: {slow:?}");
        let away = Links { rate, away: 5e-3, ..SIMPLE }.play(2.0);
        assert!(away.used.iter().all(|used| *used > 0.8), "{rate}: {away:?}");
        assert!(away.waited.0 < 4.0 * WAIT.as_secs_f64(), "{rate}: {away:?}");
    }
}

/// Rows of bytes with rests between: neither do rests count as a slow link, nor is what is known forgotten.
#[test]
fn rests_are_no_slow_link() {
    for rate in RATES {
        let row = (rate * 0.02) as u64 / 1000 * 1000;
        let found = Links { rate, row, ..SIMPLE }.play(2.0);
        // Between rows there is the way there and back, and the other's row that the last word waits behind.
        assert!(found.used.iter().all(|used| *used > 0.6), "{rate}: {found:?}");
        let alone = Links { rate, row, both: false, ..SIMPLE }.play(2.0);
        assert!(alone.used[0] > 0.9, "{rate}: {alone:?}");
    }
}

/// A few bytes now and then say nothing of the link.
#[test]
fn drops_say_nothing_of_a_link() {
    let start = Instant::now();
    let mut pace = Pace::new(start);
    for n in 0..1000_u64 {
        let now = start + Duration::from_millis(10 * n);
        pace.send(100, now);
        pace.rest();
        pace.acknowledge(100 * (n + 1), Some(0.01 * n as f64 + 1e-4), now + Duration::from_micros(200));
    }
    assert_eq!(pace.rate(), None);
    let now = start + Duration::from_secs(10);
    (0..8).for_each(|_| pace.send(64 << 10, now));
    assert!(!pace.is_open(now), "no more than the first window");
}

#[test]
fn more_than_was_sent_is_not_believed() {
    let now = Instant::now();
    let mut pace = Pace::new(now);
    pace.send(1000, now);
    pace.acknowledge(5000, Some(1.0), now + Duration::from_millis(1));
    assert!(pace.is_empty());
    pace.acknowledge(10, Some(f64::NAN), now + Duration::from_millis(2));
    assert!(pace.is_empty());
}
