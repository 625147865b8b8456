//! Couriers of several processes over a network that keeps the order that MPI keeps, and no other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use parking_lot::Mutex;

use super::*;

/// A message under way: from, tag, bytes.
type Message = (usize, i32, Vec<u8>);

/// What several processes have sent each other. Messages of two processes with one tag keep their order, all others
/// arrive in any order.
#[derive(Default)]
struct Net {
    state: u64,
    /// Per receiver.
    under_way: Vec<VecDeque<Message>>,
    cut: Vec<bool>,
}

impl Net {
    fn random(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.state >> 33) as usize % n.max(1)
    }
}

struct End {
    net: Rc<RefCell<Net>>,
    me: usize,
    first: Vec<Vec<u8>>,
    landings: Vec<(usize, i32, Vec<u8>, usize, usize)>,
    sent: Vec<Arc<Vec<u8>>>,
    /// First messages begun, in order: what left, for whom and how urgent it can be told from its bytes.
    left: Vec<Vec<u8>>,
}

impl Messages for End {
    fn greatest_tag(&self) -> i32 {
        // Few, so that they are used again.
        5
    }
    fn send(
        &mut self,
        to: usize,
        tag: i32,
        bytes: &Arc<Vec<u8>>,
        part: Range<usize>,
    ) -> Result<(), MpiError> {
        let mut net = self.net.borrow_mut();
        if tag == FIRST_TAG {
            self.left.push(bytes[part.clone()].to_vec());
        }
        if !net.cut[to] && !net.cut[self.me] {
            net.under_way[to].push_back((self.me, tag, bytes[part].to_vec()));
        }
        self.sent.push(Arc::clone(bytes));
        Ok(())
    }
    fn receive(&mut self, tag: i32, bytes: Vec<u8>) -> Result<(), MpiError> {
        assert_eq!(tag, FIRST_TAG);
        self.first.push(bytes);
        Ok(())
    }
    fn land(
        &mut self,
        from: usize,
        tag: i32,
        bytes: Vec<u8>,
        begin: usize,
        part: usize,
    ) -> Result<(), MpiError> {
        self.landings.push((from, tag, bytes, begin, part));
        Ok(())
    }
    fn finished(&mut self, done: &mut Vec<Done>) -> Result<(), MpiError> {
        done.extend(self.sent.drain(..).map(Done::Sent));
        let mut net = self.net.borrow_mut();
        let count = net.under_way[self.me].len();
        let at = net.random(count);
        let Some((from, tag, _)) = net.under_way[self.me].get(at).cloned() else { return Ok(()) };
        // The first of this sender and tag.
        let at = net.under_way[self.me].iter().position(|m| (m.0, m.1) == (from, tag)).unwrap();
        if tag == FIRST_TAG {
            let Some(mut bytes) = self.first.pop() else { return Ok(()) };
            let (_, _, message) = net.under_way[self.me].remove(at).unwrap();
            bytes[..message.len()].copy_from_slice(&message);
            done.push(Done::Received { from, bytes, len: message.len() });
            return Ok(());
        }
        let Some(landing) = self.landings.iter().position(|l| (l.0, l.1) == (from, tag)) else {
            return Ok(());
        };
        let (_, _, message) = net.under_way[self.me].remove(at).unwrap();
        let (_, _, bytes, begin, part) = &mut self.landings[landing];
        assert!(message.len() == *part || *begin + message.len() == bytes.len());
        bytes[*begin..*begin + message.len()].copy_from_slice(&message);
        *begin += message.len();
        done.push(Done::Part { from, bytes: message.len() });
        if *begin == bytes.len() {
            let (_, _, bytes, ..) = self.landings.remove(landing);
            done.push(Done::Landed { from, bytes });
        }
        Ok(())
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<(usize, Vec<u8>)>>, Mutex<Vec<(usize, String)>>, Mutex<Vec<Instant>>);

impl Sink for Heard {
    fn frame(&self, process: usize, frame: &[u8], seen: Instant) {
        self.0.lock().push((process, frame.to_vec()));
        self.2.lock().push(seen);
    }
    fn lost(&self, process: usize, reason: &str) {
        self.1.lock().push((process, reason.into()));
    }
}

const TIMEOUT: Duration = Duration::from_secs(2);

fn world(n: usize, seed: u64, now: Instant) -> (Vec<Courier<End>>, Vec<Arc<Heard>>, Rc<RefCell<Net>>) {
    let net = Net { state: seed, under_way: vec![VecDeque::new(); n], cut: vec![false; n] };
    let net = Rc::new(RefCell::new(net));
    let end = |me: usize| End {
        net: Rc::clone(&net),
        me,
        first: Vec::new(),
        landings: Vec::new(),
        sent: Vec::new(),
        left: Vec::new(),
    };
    let couriers = (0..n).map(|me| Courier::new(end(me), (me, n), TIMEOUT, now).unwrap()).collect();
    (couriers, (0..n).map(|_| Arc::default()).collect(), net)
}

fn outgoing(to: usize, urgency: i64, frame: &[u8]) -> Outgoing {
    handed(Instant::now(), to, urgency, frame)
}

fn handed(handed: Instant, to: usize, urgency: i64, frame: &[u8]) -> Outgoing {
    Outgoing { to, urgency, bytes: [&[0; HEADER][..], frame].concat(), handed }
}

/// With data comes when they were handed over, by the receiver's clock, however long they wait and travel. Clocks began apart.
#[test]
fn when_data_were_handed_over_is_known() {
    let began = Instant::now();
    let (mut couriers, heard, _) = world(2, 7, began);
    couriers[0].began = began - Duration::from_secs(9);
    couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
    let mut now = began;
    let tick = Duration::from_micros(200);
    let mut steps = |couriers: &mut Vec<Courier<End>>, n: usize| {
        for _ in 0..n {
            now += tick;
            couriers.iter_mut().for_each(|c| drop(c.step(now)));
        }
        now
    };
    // Signs of life, which are quick.
    let began = steps(&mut couriers, 5_000);
    for n in 0..10 {
        couriers[0].take(handed(began, 1, 0, &vec![n; 400_000]));
    }
    // That control a run, when they came: clocks are read by them.
    couriers[0].take(handed(began, 1, CONTROL, &[99]));
    let ended = steps(&mut couriers, 5_000);
    assert_eq!(heard[1].0.lock().len(), 11);
    let took = ended - began;
    for ((_, frame), seen) in heard[1].0.lock().iter().zip(&*heard[1].2.lock()) {
        if frame[0] == 99 {
            assert!(*seen > began, "{:?} after", *seen - began);
        } else {
            let wrong = seen.max(&began).duration_since(*seen.min(&began));
            assert!(wrong <= 4 * tick, "{wrong:?} beside, of {took:?}");
        }
    }
}

/// Frames of any size arrive whole and once; those that control in order. Tags are used again and again.
#[test]
fn frames_arrive() {
    for seed in 0..20 {
        let mut now = Instant::now();
        let (mut couriers, heard, net) = world(3, seed, now);
        let mut sent: Vec<Vec<(usize, bool, Vec<u8>)>> = vec![Vec::new(); 3];
        for n in 0..60_u64 {
            let random = |n| net.borrow_mut().random(n);
            let (from, step) = (random(3), 1 + random(2));
            let size = [0, 9, FIRST - 1, FIRST, FIRST + 1, 3 * PARTS.0 + 77, 400_000][random(7)];
            let control = random(3) == 0;
            let mut frame: Vec<u8> = (0..size).map(|k| (k as u64 * 7 + n) as u8).collect();
            frame.extend_from_slice(&n.to_le_bytes());
            let (to, urgency) = ((from + step) % 3, if control { CONTROL } else { n as i64 % 3 });
            couriers[from].take(outgoing(to, urgency, &frame));
            sent[to].push((from, control, frame));
        }
        for (n, heard) in heard.iter().enumerate().take(2) {
            couriers[n].listen(Arc::clone(heard) as Arc<dyn Sink>);
        }
        for round in 0..4000 {
            now += Duration::from_micros(50);
            for courier in &mut couriers {
                courier.step(now).unwrap();
            }
            // What comes before there is a sink is kept.
            if round == 2000 {
                couriers[2].listen(Arc::clone(&heard[2]) as Arc<dyn Sink>);
            }
        }
        assert!(couriers.iter().all(Courier::is_idle), "seed {seed}");
        for (to, want) in sent.iter_mut().enumerate() {
            let mut got = heard[to].0.lock().clone();
            for from in 0..3 {
                let control = |(f, control, frame): &(usize, bool, Vec<u8>)| {
                    (*f == from && *control).then(|| frame.clone())
                };
                let ordered: Vec<Vec<u8>> = want.iter().filter_map(control).collect();
                let arrived: Vec<Vec<u8>> = got
                    .iter()
                    .filter(|(f, g)| *f == from && ordered.contains(g))
                    .map(|(_, g)| g.clone())
                    .collect();
                assert!(ordered == arrived, "seed {seed}: {from} to {to} out of order");
            }
            let mut all: Vec<(usize, Vec<u8>)> = want.drain(..).map(|(f, _, frame)| (f, frame)).collect();
            all.sort();
            got.sort();
            assert!(all == got, "seed {seed}: to {to}: {} of {}", got.len(), all.len());
        }
    }
}

/// What is urgent leaves before what has waited longer, once the window opens, also between parts of a frame.
#[test]
fn urgent_frames_pass() {
    let mut now = Instant::now();
    let (mut couriers, heard, _) = world(2, 1, now);
    couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
    for n in 0..40_u8 {
        couriers[0].take(outgoing(1, 0, &vec![n; 200_000]));
    }
    couriers[0].step(now).unwrap();
    couriers[0].take(outgoing(1, 3, &[99; 1000]));
    couriers[0].take(outgoing(1, CONTROL, &[100; 10]));
    for _ in 0..3000 {
        now += Duration::from_micros(100);
        couriers.iter_mut().for_each(|c| drop(c.step(now)));
    }
    let order: Vec<u8> = heard[1].0.lock().iter().map(|(_, frame)| frame[0]).collect();
    assert_eq!(order.len(), 42);
    let at = |n: u8| order.iter().position(|m| *m == n).unwrap();
    assert!(at(100) < 12 && at(99) < 12 && at(39) > 30, "{order:?}");
}

/// Who says nothing is lost, once, after the timeout; who only has nothing to say is not.
#[test]
fn silence_is_noticed() {
    let mut now = Instant::now();
    let (mut couriers, heard, net) = world(4, 3, now);
    for (courier, heard) in couriers.iter_mut().zip(&heard) {
        courier.listen(Arc::clone(heard) as Arc<dyn Sink>);
    }
    let mut run = |couriers: &mut Vec<Courier<End>>, time: Duration| {
        let until = now + time;
        while now < until {
            now += Duration::from_millis(5);
            couriers.iter_mut().for_each(|c| drop(c.step(now)));
        }
    };
    run(&mut couriers, 4 * TIMEOUT);
    assert!(heard.iter().all(|h| h.1.lock().is_empty()), "all live");
    net.borrow_mut().cut[2] = true;
    run(&mut couriers, TIMEOUT / 2);
    assert!(heard.iter().all(|h| h.1.lock().is_empty()), "not yet");
    run(&mut couriers, TIMEOUT);
    for n in [0, 1, 3] {
        let lost = heard[n].1.lock().clone();
        assert_eq!(lost, [(2, "nothing was heard of it for 2 s".to_owned())]);
    }
}

/// The last word arrives, with its reason.
#[test]
fn the_last_word_is_heard() {
    let mut now = Instant::now();
    let (mut couriers, heard, _) = world(2, 5, now);
    couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
    couriers[0].bye("no such file", now).unwrap();
    for _ in 0..100 {
        now += Duration::from_millis(1);
        couriers.iter_mut().for_each(|c| drop(c.step(now)));
    }
    assert_eq!(*heard[1].1.lock(), [(0, "no such file".to_owned())]);
    assert!(couriers[1].all_said_bye() && !couriers[0].all_said_bye());
}

/// Bytes of another version end it.
#[test]
fn other_messages_are_refused() {
    let now = Instant::now();
    for message in [vec![], vec![0; 10], vec![0xff; HEADER]] {
        let (mut couriers, _, net) = world(2, 7, now);
        net.borrow_mut().under_way[1].push_back((0, FIRST_TAG, message));
        assert_eq!(couriers[1].step(now), Err(MpiError::Message { from: 0 }));
    }
}

/// Where MPI itself fails, whoever waits for others is told, once.
#[test]
fn a_broken_wire_loses_everybody() {
    let now = Instant::now();
    let (mut couriers, heard, _) = world(3, 9, now);
    couriers[1].listen(Arc::clone(&heard[1]) as Arc<dyn Sink>);
    couriers[1].lose_all("MPI_Isend failed");
    couriers[1].lose_all("again");
    couriers[1].take(outgoing(0, 1, b"nobody gets it"));
    couriers[1].step(now).unwrap();
    let lost = [0, 2].map(|process| (process, "MPI_Isend failed".to_owned()));
    assert_eq!(*heard[1].1.lock(), lost);
    assert!(couriers[1].is_idle());
}
