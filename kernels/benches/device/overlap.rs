//! What a transfer costs the products beside it (figure 10 of the paper): by copy engines, and by a kernel of few blocks.
//!
//! Products go on one stream, transfers on another, each about as long as the other; what is kept is how much longer the
//! products take beside transfers than alone. The device may serve either way of copying by whichever engine it likes, so
//! copies from and to the host stand beside those on the device: only of the former it is certain that they use no
//! multiprocessor.

use fs_kernels::cuda::catalogue::elementwise;
use fs_kernels::cuda::driver::{Driver, DriverError, Launch, Matrix, Memory, Product, Stream, Touch};
use fs_kernels::cuda::{In, Out};

use crate::meter::{Meter, Work};

/// How bytes are moved.
#[derive(Clone, Copy)]
enum Way {
    Host,
    Device,
    Blocks(u32),
}

pub(crate) fn measure<D: Driver>(meter: &mut Meter<'_, D>) -> Result<(), DriverError> {
    let (side, bytes) = if meter.small { (64, 1 << 14) } else { (4096, 1 << 28) };
    let (precision, each) = (meter.precision, meter.precision.bytes() as u64);
    let square = meter.filled(each * side * side)?;
    let (other, result) = (meter.filled(each * side * side)?, meter.filled(each * side * side)?);
    let matrix =
        |at: Memory| Matrix { address: at.address, rows: side, columns: side, stride: side, precision };
    let product =
        Product { a: (matrix(square), false), b: (matrix(other), false), c: matrix(result), add: false };
    let driver = meter.driver;
    let compute = meter.stream;
    let alone = meter.seconds(&[compute], || driver.product(compute, &product))?;
    let operations = 2.0 * (side as f64).powi(3);
    meter.keep(format!("product of {side} x {side}, alone"), Work::Operations(operations), alone);
    let (from, to) = (meter.filled(bytes)?, meter.filled(bytes)?);
    let pinned = driver.pin(bytes)?;
    driver.synchronize(compute)?;
    let beside = driver.stream(0)?;
    let ways = [Way::Host, Way::Device, Way::Blocks(4), Way::Blocks(8), Way::Blocks(16), Way::Blocks(32)];
    for way in ways {
        let send = |stream: Stream| match way {
            Way::Host => driver.upload(stream, (pinned, 0), to.area()),
            Way::Device => driver.copy(stream, &[(from.area(), to.area())]),
            Way::Blocks(blocks) => {
                let elements = bytes / each;
                let (x, y) = (In::at(from.address), Out::at(to.address));
                let mut call = elementwise::copy(x, elements, y, elements, 0, 1, elements).of(precision);
                call.shape.grid = [blocks, 1, 1];
                let touches = [Touch::In(from.area()), Touch::Out(to.area())];
                driver.launch(stream, &Launch { call: &call, touches: &touches })
            }
        };
        let transfer = meter.seconds(&[beside], || send(beside))?;
        // As many products as last about as long as transfers, and enough of both for the ends not to matter.
        let products = ((transfer / alone).round() as u32).max(1);
        let transfers = ((alone / transfer).round() as u32).max(1);
        let time = |with: bool| -> Result<f64, DriverError> {
            let rounds = if meter.small { 1 } else { 20 };
            for stream in [compute, beside] {
                driver.synchronize(stream)?;
            }
            let began = std::time::Instant::now();
            for _ in 0..rounds {
                for _ in 0..transfers {
                    if with {
                        send(beside)?;
                    }
                }
                for _ in 0..products {
                    driver.product(compute, &product)?;
                }
            }
            driver.synchronize(compute)?;
            let took = began.elapsed().as_secs_f64();
            driver.synchronize(beside)?;
            Ok(took / f64::from(rounds) / f64::from(products))
        };
        let mut pairs = Vec::new();
        for _ in 0..if meter.small { 1 } else { 7 } {
            pairs.push(time(true)? / time(false)?);
        }
        pairs.sort_by(f64::total_cmp);
        let slower = pairs[pairs.len() / 2];
        let name = match way {
            Way::Host => "a copy from the host".to_owned(),
            Way::Device => "a copy on the device".to_owned(),
            Way::Blocks(blocks) => format!("a kernel of {blocks} blocks"),
        };
        meter.keep(format!("{name}, {bytes} bytes"), Work::Bytes(2.0 * bytes as f64), transfer);
        meter.keep_beside(format!("product beside {name}"), slower * alone, slower);
    }
    driver.unpin(pinned)?;
    meter.release(&[square, other, result, from, to])
}
