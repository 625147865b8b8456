//! Failures that cross, and what is gathered, without wires or threads of their own.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// What processes of this one send each other, until it is delivered.
#[derive(Default)]
struct Post {
    sinks: Mutex<Vec<Option<Arc<dyn Sink>>>>,
    frames: Mutex<VecDeque<(usize, usize, Vec<u8>)>>,
}

impl Post {
    /// Delivers what was sent, and what is sent because of that.
    fn deliver(&self) {
        self.deliver_but(usize::MAX);
    }

    /// The same, but for what is for one of them.
    fn deliver_but(&self, deaf: usize) {
        loop {
            let next = self.frames.lock().unwrap().pop_front();
            let Some((from, to, frame)) = next else { return };
            if to == deaf {
                continue;
            }
            let sink = self.sinks.lock().unwrap()[to].clone();
            sink.unwrap().frame(from, &frame, Instant::now());
        }
    }
}

struct Bus(usize, Arc<Post>);

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the bus of process {}", self.0)
    }
}

impl Wire for Bus {
    fn start(&self, sink: Arc<dyn Sink>) {
        self.1.sinks.lock().unwrap()[self.0] = Some(sink);
    }
    fn send(&self, process: usize, frame: &[u8]) {
        self.1.frames.lock().unwrap().push_back((self.0, process, frame.to_vec()));
    }
}

/// Says its number, counts how often it is asked, and may have waited for 12 s.
struct Here(u8, AtomicU64, Mutex<Option<TransportError>>);

impl Witness for Here {
    fn testify(&self) -> Vec<u8> {
        vec![self.0]
    }
    fn freeze(&self) {}
    fn overdue(&self, least: Duration) -> Option<TransportError> {
        self.2.lock().unwrap().clone().filter(|_| least <= Duration::from_secs(12))
    }
    fn asked(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

fn peers(processes: usize) -> (Vec<Peers>, Arc<Post>) {
    let (peers, post, _) = witnessed(processes);
    (peers, post)
}

fn witnessed(processes: usize) -> (Vec<Peers>, Arc<Post>, Vec<Arc<Here>>) {
    let here: Vec<_> =
        (0..processes).map(|p| Arc::new(Here(p as u8 + 10, AtomicU64::new(0), Mutex::default()))).collect();
    let post = Arc::new(Post { sinks: Mutex::new(vec![None; processes]), ..Post::default() });
    let world = |process: usize| World {
        processes: (0..processes).map(|rank| vec![rank]).collect(),
        process,
        wire: Arc::new(Bus(process, Arc::clone(&post))),
    };
    let peer = |process: usize| {
        let witness: Weak<Here> = Arc::downgrade(&here[process]);
        Peers::new(world(process), Duration::from_secs(20), Some(witness))
    };
    ((0..processes).map(peer).collect(), post, here)
}

/// With another timeout, and nobody to ask where ranks are.
fn peers_with(processes: usize, timeout: Duration) -> (Vec<Peers>, Arc<Post>) {
    let (peers, post) = peers(processes);
    (peers.into_iter().map(|peer| Peers { timeout, ..peer }).collect(), post)
}

/// Three notice a failure of their own before they hear of the others', a fourth none.
#[test]
fn failures_that_cross_are_settled_alike() {
    let (peers, post) = peers(4);
    let of = |op: &str, rank: usize| TransportError::Timeout {
        op: op.into(),
        batch: Some(1),
        ranks: vec![rank],
        seconds: 1.0,
    };
    peers[2].fail(&of("rows", 3));
    peers[1].fail(&of("ids", 0));
    peers[3].fail(&of("gradients", 1));
    assert_eq!(peers[3].failure(), Some(of("gradients", 1)), "that is all that it knows");
    post.deliver();
    for peer in &peers {
        assert_eq!(peer.settle(), Some(of("ids", 0)), "process {}", peer.process());
        post.deliver();
    }
    peers[0].fail(&of("too late", 2));
    post.deliver();
    assert_eq!(peers[0].settle(), Some(of("ids", 0)));
}

/// The third of four stands still: the second waits for it, and the others for the second. All name the third, whether
/// the second has noticed by itself or hears that it is waited for.
#[test]
fn who_stands_still_is_named_and_not_who_waits_for_that() {
    let waits = |op: &str, rank: usize, seconds: f64| TransportError::Timeout {
        op: op.into(),
        batch: Some(1),
        ranks: vec![rank],
        seconds,
    };
    for notices in [true, false] {
        let (peers, post, here) = witnessed(4);
        let waited = waits("gradients", 2, 12.0);
        *here[1].2.lock().unwrap() = Some(waited.clone());
        // Who is not waited for has nothing to say of its own.
        *here[3].2.lock().unwrap() = Some(waits("ids", 0, 12.0));
        if notices {
            peers[1].fail(&waited);
        }
        peers[0].fail(&waits("rows", 1, 20.0));
        post.deliver_but(2);
        for process in [0, 1, 3] {
            assert_eq!(peers[process].failure(), Some(waited.clone()), "process {process}, {notices}");
        }
    }
    // Who has not waited for long is waited for indeed.
    let (peers, post, _here) = witnessed(3);
    peers[0].fail(&waits("rows", 1, 20.0));
    post.deliver();
    assert_eq!(peers[0].settle(), Some(waits("rows", 1, 20.0)));
    post.deliver();
    assert_eq!(peers[2].settle(), Some(waits("rows", 1, 20.0)));
}

/// A rank of a process waits for another one of it, and that for another process: what this one waits for counts.
#[test]
fn a_rank_beside_is_not_named() {
    let (peers, post, here) = witnessed(3);
    let waits = |op: &str, ranks: &[usize]| TransportError::Timeout {
        op: op.into(),
        batch: Some(1),
        ranks: ranks.to_vec(),
        seconds: 20.0,
    };
    *here[0].2.lock().unwrap() = Some(waits("rows", &[1]));
    peers[0].fail(&waits("sum", &[0, 1]));
    post.deliver_but(1);
    assert_eq!(peers[0].failure(), Some(waits("rows", &[1])));
    assert_eq!(peers[2].failure(), Some(waits("rows", &[1])));
    // If nobody knows more, that is what is said.
    let (peers, _, here) = witnessed(3);
    *here[0].2.lock().unwrap() = Some(waits("sum", &[0, 2]));
    peers[0].fail(&waits("sum", &[0, 1]));
    assert_eq!(peers[0].failure(), Some(waits("sum", &[0, 1])));
}

/// The third of three hears the others and is not heard: it says what they say, and not what it has noticed itself.
#[test]
fn one_decides_for_those_that_are_not_heard() {
    let (peers, post) = peers(3);
    let waits = |ranks: &[usize]| TransportError::Timeout {
        op: "rows".into(),
        batch: Some(1),
        ranks: ranks.to_vec(),
        seconds: 1.0,
    };
    peers[2].fail(&waits(&[1, 2]));
    post.frames.lock().unwrap().clear();
    peers[0].fail(&waits(&[1, 2]));
    peers[1].fail(&waits(&[2]));
    post.deliver();
    assert_ne!(peers[2].failure(), Some(waits(&[2])), "by what it knows another one counts");
    for peer in &peers {
        assert_eq!(peer.settle(), Some(waits(&[2])), "process {}", peer.process());
        post.deliver();
    }
}

/// Who would decide for those that are not heard is gone before it has: the next one does.
#[test]
fn the_next_decides_if_the_first_is_gone() {
    let (peers, post) = peers(4);
    let waits = |ranks: &[usize]| TransportError::Timeout {
        op: "rows".into(),
        batch: Some(1),
        ranks: ranks.to_vec(),
        seconds: 1.0,
    };
    peers[3].fail(&waits(&[2, 3]));
    post.frames.lock().unwrap().clear();
    peers[0].fail(&waits(&[2, 3]));
    peers[1].fail(&waits(&[2, 3]));
    peers[2].fail(&waits(&[3]));
    post.deliver();
    assert_ne!(peers[3].failure(), Some(waits(&[3])), "by what it knows another one counts");
    peers[1..].iter().for_each(|peer| peer.shared.lost(0, "it was killed"));
    for peer in &peers[1..] {
        assert_eq!(peer.settle(), Some(waits(&[3])), "process {}", peer.process());
        post.deliver();
    }
}

/// The first process gathers what all say, at once or until its patience ends.
#[test]
fn where_ranks_are_is_gathered() {
    let (peers, post, here) = witnessed(3);
    let inquire = |process: usize, patience: u64, deliver: bool| {
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| peers[process].inquire(Duration::from_millis(patience)));
            while !asking.is_finished() {
                if deliver {
                    post.deliver();
                }
                std::thread::yield_now();
            }
            asking.join().unwrap()
        })
    };
    let all = Answers::All([10, 11, 12].map(|n| Ok(vec![n])).to_vec());
    assert_eq!(inquire(0, 20_000, true), all);
    assert_eq!(inquire(2, 20_000, true), Answers::Elsewhere);
    assert_eq!(here[0].1.load(Ordering::Relaxed), 1, "the first process is asked");
    // Nothing arrives.
    let began = Instant::now();
    assert_eq!(inquire(2, 50, false), Answers::Own(vec![12]));
    post.frames.lock().unwrap().clear();
    let silent = || Err("its process says nothing".to_owned());
    assert_eq!(inquire(0, 50, false), Answers::All(vec![Ok(vec![10]), silent(), silent()]));
    assert!(began.elapsed() < Duration::from_secs(5));
    post.frames.lock().unwrap().clear();
    peers[0].shared.lost(1, "it was killed");
    let gone = Err("its process is gone: it was killed".to_owned());
    assert_eq!(inquire(0, 50, false), Answers::All(vec![Ok(vec![10]), gone, silent()]));
}

/// Who says that it has waited too long says before that where its ranks are.
#[test]
fn last_words_come_before_the_failure() {
    let (peers, post, _here) = witnessed(3);
    let stall = TransportError::Timeout { op: "rows".into(), batch: Some(1), ranks: vec![1], seconds: 1.0 };
    peers[2].fail(&stall);
    assert_eq!(peers[2].last_words(), Answers::Own(vec![12]), "nothing was heard of the first process");
    post.deliver_but(1);
    assert_eq!(peers[0].failure(), Some(stall));
    let silent = Err("its process says nothing".to_owned());
    assert_eq!(peers[0].last_words(), Answers::All(vec![Ok(vec![10]), silent, Ok(vec![12])]));
    assert_eq!(peers[2].last_words(), Answers::Elsewhere);
}

#[test]
fn one_gathers_from_all() {
    let (peers, post) = peers(3);
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = peers
            .iter()
            .map(|p| scope.spawn(|| p.gather_at(1, "numbers", &[p.process() as u8 + 5])))
            .collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            post.deliver();
            std::thread::yield_now();
        }
        threads.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    });
    assert_eq!(found, [None, Some(vec![vec![5], vec![6], vec![7]]), None]);
}

/// Who says that it is at work is waited for, and so is whoever waits for that one; who says nothing is not.
#[test]
fn those_at_work_are_waited_for() {
    let (peers, post) = peers_with(3, Duration::from_millis(400));
    let waits = |patient: bool| {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| peers[0].gather("the end", b"0"));
            let until = Instant::now() + Duration::from_secs(1);
            while Instant::now() < until {
                if patient {
                    peers[2].working();
                }
                post.deliver();
                std::thread::sleep(Duration::from_millis(20));
            }
            let ended = waiting.is_finished();
            for peer in &peers[1..] {
                peer.next_number();
                peer.give(peer.shared.lock().gathered, "the end", b"other", &[0]);
            }
            post.deliver();
            (ended, waiting.join().unwrap().is_ok())
        })
    };
    assert_eq!(waits(true), (false, true));
    assert_eq!(waits(false), (true, false));
}
