//! Attention, forward and backward: 16 sequences of 2048 tokens, 8 heads of 64 columns, causal. Operations as docs/cuda.md
//! counts them: 2 L² d a head forward; backward 5 L² d, which is what any way must do, and 7 L² d as done here. Rates beside
//! another's are by the former.

use fs_kernels::cuda::catalogue::attention::{Attention, Score};
use fs_kernels::cuda::driver::{Driver, DriverError};
use fs_kernels::cuda::{In, Out};

use crate::meter::{Meter, Work};

pub(crate) fn measure<D: Driver>(meter: &mut Meter<'_, D>) -> Result<(), DriverError> {
    let (sequences, length, heads, dim) = if meter.small { (2, 70, 2, 64) } else { (16, 2048, 8, 64) };
    let tokens = sequences * length;
    let columns = u64::from(heads) * u64::from(dim);
    let bytes = tokens * columns * meter.precision.bytes() as u64;
    let offsets: Vec<u8> = (0..=sequences).flat_map(|s| (s * length).to_le_bytes()).collect();
    let offsets = meter.bytes(&offsets)?;
    let activations = (0..8).map(|_| meter.filled(bytes)).collect::<Result<Vec<_>, _>>()?;
    let numbers = [meter.zeros(4 * tokens * u64::from(heads))?, meter.zeros(4 * tokens * u64::from(heads))?];
    let read = |i: usize| (In::at(activations[i].address), columns);
    let write = |i: usize| (Out::at(activations[i].address), columns);
    let touched: Vec<_> = activations.iter().copied().chain([offsets, numbers[0], numbers[1]]).collect();
    let pairs = (sequences * length * length) as f64 * f64::from(heads) * f64::from(dim);
    for (name, score) in [("SiLU", Score::Silu), ("softmax", Score::Softmax { causal: true })] {
        let attention = Attention {
            score,
            q: read(0),
            k: read(1),
            v: read(2),
            offsets: In::at(offsets.address),
            sequences,
            tokens,
            heads,
            dim,
            precision: meter.precision,
        };
        let [stats, dots] = numbers.map(|memory| Out::at(memory.address));
        let wide = || DriverError::Misuse("heads are too wide".into());
        let forward = [attention.forward(write(3), 0, stats).ok_or_else(wide)?];
        let mut backward = vec![
            attention.grad_q(read(4), stats.read(), dots.read(), write(5), 0).ok_or_else(wide)?,
            attention
                .grad_kv(
                    read(4),
                    stats.read(),
                    dots.read(),
                    (write(6).0, columns, 0),
                    (write(7).0, columns, 0),
                )
                .ok_or_else(wide)?,
        ];
        if matches!(score, Score::Softmax { .. }) {
            backward.insert(0, attention.dots(read(3), read(4), dots));
        }
        let shape = format!("{sequences} x {length} tokens, {heads} heads of {dim}");
        let what = |way| format!("{name} attention, {way}, {shape}");
        meter.calls(what("forward"), Work::Operations(2.0 * pairs), &forward, &touched)?;
        let seconds = meter.seconds(&[meter.stream], || meter.run(&backward, &touched))?;
        meter.keep(what("backward (5 L^2 d)"), Work::Operations(5.0 * pairs), seconds);
        meter.keep(what("backward as done (7 L^2 d)"), Work::Operations(7.0 * pairs), seconds);
    }
    meter.release(&touched)
}
