//! Dispatch and combine: rows that arrive in order of their rank, put into the order of samples, and back (figure 7 of the
//! paper). A rank's worth is 2,048 rows of 128 columns; samples have 64 rows.

use fs_kernels::cuda::catalogue::rows;
use fs_kernels::cuda::driver::{Driver, DriverError};
use fs_kernels::cuda::{In, Out};

use crate::draw;
use crate::meter::{Meter, Work};

const DIM: u32 = 128;
const ROWS: u32 = 2048;
const SAMPLE: u32 = 64;

pub(crate) fn measure<D: Driver>(meter: &mut Meter<'_, D>) -> Result<(), DriverError> {
    let ranks: &[u32] = if meter.small { &[2] } else { &[32, 64, 128, 256, 512] };
    for ranks in ranks {
        let n = ranks * ROWS;
        let samples = draw::shuffled(&(0..n / SAMPLE).collect::<Vec<_>>());
        let order: Vec<u32> = samples.iter().flat_map(|s| s * SAMPLE..(s + 1) * SAMPLE).collect();
        let at = meter.words(&order)?;
        let bytes = u64::from(n) * u64::from(DIM) * meter.precision.bytes() as u64;
        let (x, y) = (meter.filled(bytes)?, meter.filled(bytes)?);
        let (stride, fault) = (u64::from(DIM), Out::at(meter.fault()));
        let (from, list, to) = (In::at(x.address), In::at(at.address), Out::at(y.address));
        let work = Work::Bytes(2.0 * bytes as f64 + 4.0 * f64::from(n));
        let dispatch = [rows::scatter(n, DIM, from, stride, list, to, n, stride, fault)];
        let combine = [rows::expand(n, DIM, from, n, stride, list, to, stride, 0, fault)];
        for (what, calls) in [("dispatch", dispatch), ("combine", combine)] {
            meter.calls(format!("{what}, {ranks} ranks' rows"), work, &calls, &[x, at, y])?;
        }
        meter.release(&[at, x, y])?;
    }
    Ok(())
}
