//! Links between processes are measured: over streams, and over wires whose speed is known.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fs_executor::net::{Asked, Exchange, Links, NetError, measure};
use fs_executor::transport::wire::{Sink, Wire, World};
use fs_tests::pipes::joined;

const TIMEOUT: Duration = Duration::from_secs(20);
const SIZES: [u64; 3] = [0, 1000, 300_000];

fn asked(seconds: f64, timeout: Duration) -> Asked {
    Asked { seconds, sizes: SIZES.into(), timeout }
}

/// Measures in a thread for each process; what the first has found, and what the others said.
fn measured(worlds: Vec<World>, seconds: f64) -> Vec<Result<Option<Links>, NetError>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = worlds
            .into_iter()
            .map(|world| scope.spawn(move || measure(&world, &asked(seconds, TIMEOUT))))
            .collect();
        all.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

fn ranks(n: usize) -> Vec<Vec<usize>> {
    (0..n).map(|rank| vec![rank]).collect()
}

#[test]
fn every_pair_is_measured_once_in_both_directions() {
    for n in [2, 3, 5] {
        let worlds = joined(&ranks(n)).expect("streams").into_iter().map(|(world, _)| world).collect();
        let mut found = measured(worlds, 0.2).into_iter();
        let links = found.next().expect("a first").expect("it measures").expect("the first knows");
        assert!(found.all(|other| other == Ok(None)));
        let mut pairs: Vec<_> = links.directions.iter().map(|d| (d.from, d.to)).collect();
        pairs.sort_unstable();
        let all: Vec<_> = (0..n).flat_map(|a| (0..n).filter(move |b| *b != a).map(move |b| (a, b))).collect();
        assert_eq!(pairs, all);
        assert!(links.directions.iter().all(|d| d.latency > 0.0 && d.bandwidth > 0.0), "{links:?}");
        assert_eq!(links.hosts.len(), n);
        assert!(links.together > 0.0);
        assert_eq!(links.exchanges.iter().map(|e| e.bytes).collect::<Vec<_>>(), SIZES);
        let carried = |e: &Exchange| (n - 1) as f64 * e.bytes as f64 / e.seconds;
        assert!(
            links.exchanges.iter().all(|e| (e.bandwidth - carried(e)).abs() <= 1e-9 * carried(e)),
            "{links:?}"
        );
    }
}

/// A wire that is slow in a way that is known: nothing arrives sooner than it says.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Wire>,
    out: Vec<Mutex<Sender<Vec<u8>>>>,
}

impl Slow {
    fn new(inner: &Arc<dyn Wire>, processes: usize, link: impl Fn(usize) -> (f64, f64)) -> Self {
        let out = (0..processes).map(|to| {
            let (sender, frames) = channel::<Vec<u8>>();
            let (inner, (latency, bandwidth)) = (Arc::clone(inner), link(to));
            std::thread::spawn(move || {
                for frame in frames {
                    let time = Duration::from_secs_f64(latency + frame.len() as f64 / bandwidth);
                    std::thread::sleep(time);
                    inner.send(to, &frame);
                }
            });
            Mutex::new(sender)
        });
        Self { inner: Arc::clone(inner), out: out.collect() }
    }
}

impl Wire for Slow {
    fn start(&self, sink: Arc<dyn Sink>) {
        self.inner.start(sink);
    }

    fn send(&self, process: usize, frame: &[u8]) {
        let _ = self.out[process].lock().expect("no panic").send(frame.to_vec());
    }
}

#[test]
fn slow_links_are_told_from_fast_ones() {
    const LATENCY: f64 = 2e-3;
    // From the first process to the last: 20 MB/s; all others ten times as much.
    let bandwidth = |from: usize, to: usize| if (from, to) == (0, 2) { 2e7 } else { 2e8 };
    let worlds = joined(&ranks(3)).expect("streams").into_iter().map(|(world, _)| {
        let from = world.process;
        let wire = Arc::new(Slow::new(&world.wire, 3, |to| (LATENCY, bandwidth(from, to))));
        World { wire, ..world }
    });
    let links = measured(worlds.collect(), 2.0).remove(0).expect("it measures").expect("the first knows");
    for d in &links.directions {
        assert!(d.latency >= LATENCY, "{d:?}");
        // The answer's way back is taken off; that of the frames is in the time.
        assert!(d.bandwidth <= 1.01 * bandwidth(d.from, d.to), "{d:?}");
    }
    let slowest = links.directions.iter().min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth));
    assert_eq!(slowest.map(|d| (d.from, d.to)), Some((0, 2)), "{links:?}");
    // What all get is what the slowest link lets through, in both of its process's directions.
    assert!(links.together <= 2.0 * 1.01 * 2e7, "{links:?}");
    // Nor is an exchange faster than what its slowest pair takes.
    for e in &links.exchanges {
        assert!(e.seconds >= LATENCY + e.bytes as f64 / 2e7, "{e:?}");
    }
    assert!(links.of_a_rank(2).is_err());
    // Of three ranks each has a process; of six, two share one and need four of five links.
    let (three, six) = (links.of_a_rank(3).expect("enough"), links.of_a_rank(6).expect("enough"));
    assert!((three.bandwidth / links.together - 1.0).abs() < 1e-12);
    assert!((six.bandwidth / links.together - 0.5 * 5.0 / 4.0).abs() < 1e-12);
}

#[test]
fn who_is_missing_is_named() {
    let alone = joined(&ranks(1)).expect("no streams").remove(0).0;
    assert_eq!(measure(&alone, &asked(0.1, TIMEOUT)), Err(NetError::Alone));

    let mut worlds = joined(&ranks(3)).expect("streams").into_iter().map(|(world, _)| world);
    let (first, second, third) = (worlds.next(), worlds.next(), worlds.next());
    drop(third);
    let found = measured(first.into_iter().chain(second).collect(), 0.1);
    assert!(matches!(found[0], Err(NetError::Lost { process: 2, .. })), "{found:?}");

    // There, and silent.
    let mut worlds = joined(&ranks(2)).expect("streams").into_iter().map(|(world, _)| world);
    let (first, silent) = (worlds.next().expect("a world"), worlds.next());
    let began = Instant::now();
    let found = measure(&first, &asked(0.1, Duration::from_millis(300)));
    assert_eq!(found, Err(NetError::Timeout { process: 1, seconds: 0.3 }));
    assert!(began.elapsed() >= Duration::from_millis(300));
    // And one that speaks of something else.
    let silent = silent.expect("a world");
    silent.wire.send(0, b"?");
    let worlds = joined(&ranks(2)).expect("streams");
    worlds[1].0.wire.send(0, &[200; 40]);
    let found = measure(&worlds[0].0, &asked(0.1, TIMEOUT));
    assert_eq!(found, Err(NetError::Unasked { process: 1 }));
}
