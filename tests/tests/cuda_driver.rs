//! The emulated driver: order that streams keep, uses that nothing orders, copy engines, virtual time.

use fs_kernels::cuda::catalogue::sort;
use fs_kernels::cuda::driver::emulated::{Costs, Emulated, Kernels, NoKernels, Options};
use fs_kernels::cuda::driver::{
    Area, Driver, DriverError, Launch, Matrix, Memory, Pinned, Product, Stream, Touch,
};
use fs_kernels::cuda::sources::Precision;
use fs_kernels::cuda::{Call, In, Out};

fn driver(seed: u64) -> Emulated {
    Emulated::new(Options { seed, ..Options::default() }, Box::new(NoKernels))
}

/// A stream with some memory and page-locked memory of the host.
fn place(d: &Emulated, name: &str, bytes: u64) -> (Stream, Memory, Pinned) {
    let stream = d.stream(0).unwrap();
    d.name(stream, name);
    (stream, d.allocate(stream, bytes).unwrap(), d.pin(bytes).unwrap())
}

fn bytes(d: &Emulated, pinned: Pinned, n: usize) -> Vec<u8> {
    let mut out = vec![0; n];
    d.read(pinned, 0, &mut out).unwrap();
    out
}

#[test]
fn streams_keep_their_order_and_wait_for_events() {
    for seed in 0..200 {
        let d = driver(seed);
        let ((a, x, p), (b, y, q)) = (place(&d, "a", 64), place(&d, "b", 64));
        let event = d.event().unwrap();
        assert!(d.has_come(event).unwrap(), "nothing was recorded");
        d.write(p, 0, &[7; 64]).unwrap();
        d.upload(a, (p, 0), x.area()).unwrap();
        d.record(a, event).unwrap();
        d.wait(b, event).unwrap();
        d.copy(b, &[(x.area(), y.area())]).unwrap();
        d.fill(b, y.from(8, 8), 1).unwrap();
        d.download(b, y.area(), (q, 0)).unwrap();
        d.synchronize(b).unwrap();
        assert!(d.has_come(event).unwrap());
        let mut expected = [7; 64];
        expected[8..16].fill(1);
        assert_eq!(bytes(&d, q, 64), expected, "seed {seed}");
    }
}

/// Two streams use one place: whichever comes first, it is an error that names both.
#[test]
fn uses_that_nothing_orders_are_errors() {
    for (seed, written) in (0..100).flat_map(|seed| [(seed, false), (seed, true)]) {
        let d = driver(seed);
        let ((a, x, _), (b, y, _)) = (place(&d, "first", 64), place(&d, "second", 64));
        let event = d.event().unwrap();
        d.fill(a, x.area(), 0).unwrap();
        d.record(a, event).unwrap();
        d.wait(b, event).unwrap();
        // Both may read what both know of.
        d.copy(b, &[(x.first(8), y.first(8))]).unwrap();
        d.download(a, x.first(8), (d.pin(8).unwrap(), 0)).unwrap();
        d.synchronize(a).and_then(|()| d.synchronize(b)).unwrap();
        // One row in two is somebody else's, which is no conflict.
        let rows = |offset| Area { address: x.address + offset, width: 8, rows: 4, pitch: 16 };
        d.fill(a, rows(0), 1).unwrap();
        d.fill(b, rows(8), 1).unwrap();
        d.synchronize(a).and_then(|()| d.synchronize(b)).unwrap();
        let late = d.event().unwrap();
        d.fill(a, x.first(4), 2).unwrap();
        d.record(a, late).unwrap();
        let _ = if written { d.fill(b, x.first(8), 3) } else { d.copy(b, &[(x.first(8), y.first(8))]) };
        let error = d.synchronize(a).and_then(|()| d.synchronize(b)).unwrap_err();
        let DriverError::Unordered { first, second, .. } = &error else { panic!("{error}") };
        let mut both = [first.as_str(), second.as_str()];
        both.sort_unstable();
        assert_eq!(both, ["first", "second"], "seed {seed}");
        assert_eq!(d.fill(a, x.area(), 0), Err(error), "it stays");
    }
}

/// Of several launches that are one none may use what another writes, even if it is not said to.
#[test]
fn what_one_launch_does_for_several_is_apart() {
    let fill = |memory: Memory, words: u64| sort::fill_words(1, words, Out::at(memory.address));
    for (listed, apart) in [(true, true), (true, false), (false, true), (false, false)] {
        let d = driver(1);
        let (a, x, _) = place(&d, "both", 64);
        let y = if apart { d.allocate(a, 64).unwrap() } else { x };
        let calls = [fill(x, 8), fill(y, 8)];
        let touches = [[Touch::Out(x.first(32))], [Touch::InOut(y.first(32))]];
        let part = |n: usize| {
            let touches = if listed { &touches[n][..] } else { &[] };
            (Launch { call: &calls[n], touches }, ["one", "other"][n])
        };
        d.launch_joined(a, &[part(0), part(1)]).unwrap();
        assert_eq!(d.launches()["fill_words"], 1);
        let error = d.synchronize(a).unwrap_err();
        match error {
            DriverError::Unordered { first, second, .. } => {
                assert!(!apart && [first.as_str(), second.as_str()] == ["one", "other"]);
            }
            // There are no kernels here.
            error => assert!(apart && error.to_string().contains("fill_words_joined"), "{error}"),
        }
    }
}

/// The host is one of those that must know.
#[test]
fn the_host_asks_before_it_touches_what_the_device_uses() {
    let d = driver(1);
    let (a, x, p) = place(&d, "copy", 64);
    d.write(p, 0, &[1; 64]).unwrap();
    d.upload(a, (p, 0), x.area()).unwrap();
    d.download(a, x.area(), (p, 0)).unwrap();
    let event = d.event().unwrap();
    d.record(a, event).unwrap();
    while !d.has_come(event).unwrap() {}
    assert_eq!(bytes(&d, p, 64), [1; 64]);
    d.upload(a, (p, 0), x.area()).unwrap();
    d.record(a, event).unwrap();
    // However long it waits: nobody has told it.
    std::thread::sleep(std::time::Duration::from_millis(20));
    let error = d.write(p, 0, &[2; 64]).unwrap_err();
    assert!(matches!(&error, DriverError::Unordered { second, .. } if second == "the host"), "{error}");
}

/// What one thread of the host has asked after another does not know, unless the device orders it.
#[test]
fn threads_of_the_host_know_what_they_asked_after_themselves() {
    let d = driver(6);
    let ((a, x, p), (b, y, _)) = (place(&d, "first", 64), place(&d, "second", 64));
    d.write(p, 0, &[1; 64]).unwrap();
    d.upload(a, (p, 0), x.area()).unwrap();
    d.synchronize(a).unwrap();
    let use_it = || d.copy(b, &[(x.area(), y.area())]).and_then(|()| d.synchronize(b));
    let elsewhere = std::thread::scope(|scope| scope.spawn(use_it).join().unwrap());
    assert!(matches!(elsewhere, Err(DriverError::Unordered { .. })), "{elsewhere:?}");
    // The thread that has asked may go on, on any stream.
    let d = driver(7);
    let ((a, x, p), (b, y, _)) = (place(&d, "first", 64), place(&d, "second", 64));
    d.write(p, 0, &[1; 64]).unwrap();
    d.synchronize(b).unwrap();
    d.upload(a, (p, 0), x.area()).unwrap();
    d.synchronize(a).unwrap();
    d.copy(b, &[(x.area(), y.area())]).and_then(|()| d.synchronize(b)).unwrap();
}

#[test]
fn memory_begins_without_values_and_has_bounds() {
    let d = driver(2);
    let (a, x, p) = place(&d, "a", 16);
    d.download(a, x.area(), (p, 0)).unwrap();
    d.synchronize(a).unwrap();
    assert_eq!(bytes(&d, p, 16), [0xff; 16]);
    assert!(matches!(d.fill(a, x.from(8, 16), 0), Err(DriverError::Misuse(_))));
    assert!(matches!(d.allocate(a, 1 << 40), Err(DriverError::NoMemory { bytes, .. }) if bytes == 1 << 40));
    d.release(a, x).unwrap();
    d.synchronize(a).unwrap();
    assert!(matches!(d.fill(a, x.area(), 0), Err(DriverError::Misuse(_))));
}

#[test]
fn values_hold_streams_until_they_are_written() {
    let d = driver(3);
    let ((a, x, _), (b, y, q)) = (place(&d, "a", 8), place(&d, "b", 8));
    let event = d.event().unwrap();
    d.fill(a, x.area(), 0).unwrap();
    d.fill(b, y.area(), 5).unwrap();
    d.synchronize(a).and_then(|()| d.synchronize(b)).unwrap();
    d.wait_value(b, x, 3).unwrap();
    d.download(b, y.area(), (q, 0)).unwrap();
    d.record(b, event).unwrap();
    d.write_value(a, x, 2).unwrap();
    d.synchronize(a).unwrap();
    assert!(!d.has_come(event).unwrap());
    d.write_value(a, x, 3).unwrap();
    d.synchronize(b).unwrap();
    assert_eq!(bytes(&d, q, 8), [5; 8]);
}

#[test]
fn products_of_rows_with_gaps() {
    let d = driver(4);
    let (a, x, p) = place(&d, "product", 4 * 64);
    let numbers =
        |range: std::ops::Range<i32>| -> Vec<u8> { range.flat_map(|n| (n as f32).to_le_bytes()).collect() };
    d.write(p, 0, &numbers(0..64)).unwrap();
    d.upload(a, (p, 0), x.area()).unwrap();
    let matrix = |first: u64, rows, columns| {
        let (address, precision) = (x.address + 4 * first, Precision::F32);
        Matrix { address, rows, columns, stride: 4, precision }
    };
    // Rows 0 and 1 are 0..3 and 4..7 without the last of each; the transpose of rows 4 to 6.
    let product =
        Product { a: (matrix(0, 2, 3), false), b: (matrix(16, 2, 3), true), c: matrix(32, 2, 2), add: true };
    d.product(a, &product).unwrap();
    assert!(d.product(a, &Product { b: (matrix(16, 2, 3), false), ..product }).is_err());
    d.download(a, product.c.area(), (p, 0)).unwrap();
    d.synchronize(a).unwrap();
    let found: Vec<f32> =
        bytes(&d, p, 16).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let dot = |i: usize, j: usize| (0..3).map(|k| ((4 * i + k) * (16 + 4 * j + k)) as f32).sum::<f32>();
    assert_eq!(found, [32.0 + dot(0, 0), 33.0 + dot(0, 1), 36.0 + dot(1, 0), 37.0 + dot(1, 1)]);
}

/// Of brain floats: sums of floats, rounded once where the result is one too, to the even one of two.
#[test]
fn products_of_brain_floats() {
    let d = driver(4);
    let (a, x, p) = place(&d, "product", 256);
    let brain = |values: &[f32]| -> Vec<u8> {
        values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect()
    };
    // Two rows of three with a gap, a column of three, and what the product is added to.
    let bytes_of = [
        brain(&[1.0, 2.0, 3.0, 99.0, 256.0, 1.0, 0.0, 99.0]),
        brain(&[1.0, 1.0, 0.5, 99.0]),
        brain(&[0.25, 2.0]),
        [0.25f32, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect(),
    ]
    .concat();
    let matrix = |at: u64, rows, columns, stride, precision| Matrix {
        address: x.address + at,
        rows,
        columns,
        stride,
        precision,
    };
    let (left, right) = (matrix(0, 2, 3, 4, Precision::Bf16), matrix(16, 3, 1, 1, Precision::Bf16));
    let found = |add, precision| {
        d.write(p, 0, &bytes_of).unwrap();
        d.upload(a, (p, 0), x.first(bytes_of.len() as u64)).unwrap();
        let (at, each) = if precision == Precision::Bf16 { (24, 2) } else { (28, 4) };
        let c = matrix(at, 2, 1, 1, precision);
        d.product(a, &Product { a: (left, false), b: (right, false), c, add }).unwrap();
        d.download(a, c.area().joined(), (p, 0)).unwrap();
        d.synchronize(a).unwrap();
        let wide = |b: &[u8]| {
            f32::from_le_bytes(if each == 2 { [0, 0, b[0], b[1]] } else { [b[0], b[1], b[2], b[3]] })
        };
        bytes(&d, p, 2 * each).chunks_exact(each).map(wide).collect::<Vec<f32>>()
    };
    assert_eq!(found(false, Precision::F32), [4.5, 257.0]);
    assert_eq!(found(true, Precision::F32), [4.75, 259.0]);
    // Above 256 brain floats are even: 257 lies between two of them, and 259 between 258 and 260.
    assert_eq!(found(false, Precision::Bf16), [4.5, 256.0]);
    assert_eq!(found(true, Precision::Bf16), [4.75, 260.0]);
    let wrong = [
        (matrix(0, 2, 3, 4, Precision::F32), right, matrix(24, 2, 1, 1, Precision::F32)),
        (left, matrix(16, 3, 1, 1, Precision::F32), matrix(24, 2, 1, 1, Precision::F32)),
        (
            matrix(0, 2, 3, 4, Precision::F32),
            matrix(16, 3, 1, 1, Precision::F32),
            matrix(24, 2, 1, 1, Precision::Bf16),
        ),
    ];
    for (left, right, c) in wrong {
        let said = d.product(a, &Product { a: (left, false), b: (right, false), c, add: false });
        assert!(matches!(said, Err(DriverError::Misuse(why)) if why.contains("as")), "{left:?} {right:?}");
    }
}

/// Two copies to the device share an engine, whatever their streams' priority; one from the device has its own.
#[test]
fn copy_engines_are_queues() {
    let costs = Costs { each: 0.0, link_byte: 1.0, byte: 0.0, multiply: 0.0 };
    let d = Emulated::new(Options { costs, in_order: true, ..Options::default() }, Box::new(NoKernels));
    let (low, urgent, out) = (d.stream(0).unwrap(), d.stream(9).unwrap(), d.stream(0).unwrap());
    let (x, y, z) = (d.allocate(low, 100), d.allocate(urgent, 10), d.allocate(out, 30));
    let (x, y, z) = (x.unwrap(), y.unwrap(), z.unwrap());
    let p = d.pin(256).unwrap();
    // All three wait for one event, so that none begins before all are there.
    let (gate, start) = (d.stream(0).unwrap(), d.event().unwrap());
    let flag = d.allocate(gate, 8).unwrap();
    d.fill(gate, flag.area(), 0).unwrap();
    d.synchronize(gate).unwrap();
    d.wait_value(gate, flag, 1).unwrap();
    d.record(gate, start).unwrap();
    for stream in [low, urgent, out] {
        d.wait(stream, start).unwrap();
    }
    d.upload(low, (p, 0), x.area()).unwrap();
    d.upload(urgent, (p, 100), y.area()).unwrap();
    d.download(out, z.area(), (p, 200)).unwrap();
    let opener = d.stream(0).unwrap();
    d.write_value(opener, flag, 1).unwrap();
    for stream in [low, urgent, out] {
        d.synchronize(stream).unwrap();
    }
    let ends = [low, urgent, out].map(|stream| d.ended_of(stream));
    assert_eq!(ends, [100.0, 110.0, 30.0]);
    assert_eq!(d.ended(), 110.0);
}

/// Kernels that do nothing.
struct Idle;

impl Kernels for Idle {
    fn has(&self, _: Precision) -> bool {
        true
    }
    fn run(&self, _: &Call) -> Result<(), String> {
        Ok(())
    }
}

/// What a list of uses leaves out of what a kernel is given counts as used, with all of its block; what is set from everywhere does not.
#[test]
fn what_a_list_leaves_out_counts_as_used() {
    let writes = |listed: &[bool], ordered: bool| {
        let d = Emulated::new(Options::default(), Box::new(Idle));
        let ((a, x, _), (b, ..), event) = (place(&d, "a", 64), place(&d, "b", 64), d.event().unwrap());
        let (y, fault) = (d.allocate(a, 64).unwrap(), d.allocate(a, 4).unwrap());
        d.record(a, event).unwrap();
        d.wait(b, event).unwrap();
        let launch = |stream, list: Memory, out: Memory, listed: bool| {
            let (read, at) = (In::at(list.address + 8), In::at(list.address + 16));
            let call = sort::take_words(2, read, 2, at, Out::at(out.address + 4), Out::at(fault.address));
            let all = [Touch::In(list.area()), Touch::Out(out.area())];
            d.launch(stream, &Launch { call: &call, touches: if listed { &all } else { &[] } })
        };
        launch(a, x, y, listed[0]).unwrap();
        if ordered {
            d.record(a, event).unwrap();
            d.wait(b, event).unwrap();
        }
        launch(b, x, y, listed[1]).and_then(|()| d.synchronize(a)).and_then(|()| d.synchronize(b))
    };
    let reads = || {
        let d = Emulated::new(Options::default(), Box::new(Idle));
        let ((a, x, _), (b, y, _), event) = (place(&d, "a", 64), place(&d, "b", 64), d.event().unwrap());
        d.record(a, event).unwrap();
        d.wait(b, event).unwrap();
        let (z, w) = (d.allocate(a, 64).unwrap(), y);
        for (stream, out) in [(a, z), (b, w)] {
            let (read, at) = (In::at(x.address), In::at(x.address + 16));
            let call = sort::take_words(2, read, 2, at, Out::at(out.address), Out::NULL);
            d.launch(stream, &Launch { call: &call, touches: &[] }).unwrap();
        }
        d.synchronize(a).and_then(|()| d.synchronize(b))
    };
    for listed in [[false, false], [false, true], [true, false], [true, true]] {
        let error = writes(&listed, false).unwrap_err();
        assert!(matches!(&error, DriverError::Unordered { .. }), "{listed:?}: {error}");
        assert_eq!(writes(&listed, true), Ok(()), "{listed:?}");
    }
    assert_eq!(reads(), Ok(()), "both only read");
}
