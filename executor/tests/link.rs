//! Emulated links: as slow as they say, without work and without another result.

mod common;

use common::ranking;
use fs_executor::transport::link::EmulatedLink;
use fs_executor::{Options, Session};

/// Processor time of this process so far, in seconds.
fn processor() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    // Fields 14 and 15 of the file, in hundredths of a second.
    Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
}

#[test]
fn a_link_takes_its_time_and_no_processor() {
    let run = |link: Option<EmulatedLink>| {
        let mut session =
            Session::<f32>::new(ranking(12, true), Options::default().ranks(2).link(link)).unwrap();
        let (began, worked) = (std::time::Instant::now(), processor());
        let report = session.run(&mut ()).unwrap();
        let worked = processor().zip(worked).map(|(now, before)| now - before);
        (report, session.table(0).unwrap(), began.elapsed().as_secs_f64(), worked)
    };
    let (without, table, ..) = run(None);
    let latency = 0.02;
    let (with, same_table, elapsed, worked) = run(Some(EmulatedLink { bandwidth: 1e9, latency }));
    assert_eq!((with.loss, same_table), (without.loss, table));
    // Ids, rows, gradients, and the two rounds of the all-reduce, in each of six steps.
    let least = 5.0 * latency;
    assert!(with.step_ms.min > 1e3 * least * 0.99, "{:?}", with.step_ms);
    assert!(with.accounting.exposed_ms > 1e3 * least * 0.8, "{:?}", with.accounting);
    if let Some(worked) = worked {
        assert!(worked < 0.5 * elapsed, "{worked} s of work in {elapsed} s");
    }
    let by_op = with.accounting.exposed.iter().find(|e| e.op == "all_reduce").unwrap();
    assert!(by_op.ms > 1e3 * latency, "{by_op:?}");
}
