//! Rows of tables: lookups, sums of gradients, updates, and lists of ids. Rows of 128 floats.

use fs_kernels::cuda::catalogue::{mxint8 as kernels, optimizers, rows, sort};
use fs_kernels::cuda::driver::{Driver, DriverError};
use fs_kernels::cuda::lists::{
    Bitmap, Gradients, Segments, Sorting, bits_below, scan_room, segment_sum, sort_by,
};
use fs_kernels::cuda::{In, Out};
use fs_kernels::mxint8;

use crate::draw::{self, Draw};
use crate::meter::{Meter, Work};

const DIM: u32 = 128;

pub(crate) fn measure<D: Driver>(meter: &mut Meter<'_, D>) -> Result<(), DriverError> {
    let (table_rows, n) = if meter.small { (1 << 10, 1 << 8) } else { (1 << 22, 1 << 20) };
    let row = u64::from(DIM) * 4;
    let activation = u64::from(DIM) * meter.precision.bytes() as u64;
    let table = meter.filled(u64::from(table_rows) * row)?;
    for (name, kind) in [("uniform", Draw::Uniform), ("Zipf", Draw::Zipf)] {
        let drawn = draw::rows(kind, n as usize, table_rows as usize, 0);
        let (unique, inverse) = draw::unique(&drawn);
        let u = unique.len() as u32;
        let (list, at, members) = (meter.words(&drawn)?, meter.words(&inverse)?, meter.words(&unique)?);
        let y = meter.filled(u64::from(n) * row)?;
        let few = meter.filled(u64::from(u) * activation)?;
        let fault = Out::at(meter.fault());
        let stride = u64::from(DIM);
        let gather = |count: u32, list: u64, y: u64| {
            let (table, list) = (In::at(table.address), In::at(list));
            rows::gather(
                count,
                DIM,
                table,
                table_rows,
                stride,
                list,
                count,
                In::NULL,
                Out::at(y),
                stride,
                0,
                fault,
            )
        };
        let moved = |count: u32, from: u64| Work::Bytes(f64::from(count) * (from + activation + 4) as f64);
        for (what, count, list, to) in [("as drawn", n, list, y), ("unique, ascending", u, members, few)] {
            let call = [gather(count, list.address, to.address)];
            let touched = [table, list, to];
            meter.calls(format!("gather, {name}, {what}"), moved(count, row), &call, &touched)?;
        }
        // To a row for each occurrence, and back into place.
        let expand = rows::expand(
            n,
            DIM,
            In::at(few.address),
            u,
            stride,
            In::at(at.address),
            Out::at(y.address),
            stride,
            0,
            fault,
        );
        let bytes = f64::from(n) * (activation + 4) as f64 + f64::from(u) * activation as f64;
        meter.calls(format!("expand, {name}"), Work::Bytes(bytes), &[expand], &[few, at, y])?;
        let places = meter.words(&draw::shuffled(&(0..u).collect::<Vec<_>>()))?;
        let merge = rows::merge(
            u,
            DIM,
            In::at(few.address),
            stride,
            In::at(places.address),
            Out::at(y.address),
            n,
            stride,
            fault,
        );
        meter.calls(format!("merge, {name}"), moved(u, row), &[merge], &[few, places, y])?;
        // In 8 bits there and back, whatever activations are.
        let (asked, to) = (In::at(members.address), Out::at(few.address));
        let (rows, packed) = (In::at(table.address), mxint8::row_bytes(DIM as usize) as f64);
        let call = [kernels::gather_mxint8(u, DIM, rows, table_rows, stride, asked, u, In::NULL, to, fault)];
        let bytes = f64::from(u) * (row as f64 + packed + 4.0);
        meter.calls(format!("gather_mxint8, {name}"), Work::Bytes(bytes), &call, &[table, members, few])?;
        let (from, to, there) = (In::at(few.address), Out::at(y.address), In::at(places.address));
        let call = [kernels::merge_mxint8(u, DIM, from, there, to, n, stride, fault)];
        meter.calls(format!("merge_mxint8, {name}"), Work::Bytes(bytes), &call, &[few, places, y])?;
        sums(meter, name, (n, u), &at, &y)?;
        updates(meter, name, (table_rows, u), &table, &members)?;
        ids(meter, name, (table_rows, &drawn))?;
        meter.release(&[list, at, members, y, few, places])?;
    }
    meter.release(&[table])
}

/// Gradients by occurrence, summed by row.
fn sums<D: Driver>(
    meter: &mut Meter<'_, D>,
    name: &str,
    (n, u): (u32, u32),
    at: &fs_kernels::cuda::driver::Memory,
    gradients: &fs_kernels::cuda::driver::Memory,
) -> Result<(), DriverError> {
    let words = |count: u32| meter.zeros(4 * u64::from(count.max(1)));
    let counts = Sorting::counts(n);
    let memory = [
        words(n)?,
        words(n)?,
        words(n)?,
        words(n)?,
        words(counts)?,
        words(scan_room(counts) as u32)?,
        words(u)?,
        words(u)?,
        words(1)?,
        meter.zeros(u64::from(u) * u64::from(DIM) * 4)?,
    ];
    let out = |i: usize| Out::at(memory[i].address);
    let work = Sorting { keys: [out(0), out(1)], values: [out(2), out(3)], counts: out(4), sums: out(5) };
    let (mut calls, sorted) = sort_by(n, bits_below(u64::from(u)), In::at(at.address), In::NULL, &work, 0);
    calls.push(sort::bounds_of(u, n, sorted.keys, out(6)));
    let touched: Vec<_> = memory.iter().copied().chain([*at, *gradients]).collect();
    meter.calls(format!("positions by row (sort), {name}"), Work::Items(f64::from(n)), &calls, &touched)?;
    let groups = Segments {
        n,
        groups: u,
        positions: sorted.values,
        ends: In::at(memory[6].address),
        long: out(7),
        count: out(8),
    };
    let of = Gradients {
        x: In::at(gradients.address),
        stride: u64::from(DIM),
        bags: In::NULL,
        offsets: In::NULL,
        mean: false,
    };
    let summed = segment_sum(&groups, DIM, &of, Out::at(memory[9].address), u64::from(DIM), false);
    let count = memory[8];
    let seconds = meter.seconds(&[meter.stream], || {
        meter.driver.fill(meter.stream, count.first(4), 0)?;
        meter.run(&summed, &touched)
    })?;
    let activation = f64::from(DIM) * meter.precision.bytes() as f64;
    let bytes = f64::from(n) * (activation + 4.0) + f64::from(u) * (f64::from(DIM) * 4.0 + 4.0);
    meter.keep(format!("segment sum, {name}"), Work::Bytes(bytes), seconds);
    meter.release(&memory)
}

/// Updates of unique rows by their gradients.
fn updates<D: Driver>(
    meter: &mut Meter<'_, D>,
    name: &str,
    (table_rows, u): (u32, u32),
    table: &fs_kernels::cuda::driver::Memory,
    members: &fs_kernels::cuda::driver::Memory,
) -> Result<(), DriverError> {
    let row = u64::from(DIM) * 4;
    let gradients = meter.zeros(u64::from(u) * row)?;
    let states = [meter.filled(u64::from(table_rows) * row)?, meter.filled(u64::from(table_rows) * row)?];
    let (list, grads, values) = (In::at(members.address), In::at(gradients.address), Out::at(table.address));
    let [first, second] = states.map(|state| Out::at(state.address));
    let (stride, fault) = (u64::from(DIM), Out::at(meter.fault()));
    let cases = [
        (
            "sgd",
            3 * row,
            optimizers::sgd_rows(u, DIM, 0.1, 0.0, list, grads, stride, values, table_rows, stride, fault),
        ),
        (
            "row-wise Adagrad",
            3 * row + 8,
            optimizers::rowwise_adagrad_rows(
                u, DIM, 0.1, 1e-8, 0.0, list, grads, stride, values, table_rows, stride, first, fault,
            ),
        ),
        (
            "Adagrad",
            5 * row,
            optimizers::adagrad_rows(
                u, DIM, 0.1, 1e-8, 0.0, list, grads, stride, values, table_rows, stride, first, fault,
            ),
        ),
        (
            "Adam",
            7 * row,
            optimizers::adam_rows(
                u, DIM, 0.1, 1e-8, 0.0, 0.1, 0.001, list, grads, stride, values, table_rows, stride, first,
                second, fault,
            ),
        ),
    ];
    let touched = [*table, *members, gradients, states[0], states[1]];
    for (optimizer, bytes, call) in cases {
        meter.calls(
            format!("{optimizer}, {name}"),
            Work::Bytes(f64::from(u) * (bytes + 4) as f64),
            &[call],
            &touched,
        )?;
    }
    meter.release(&[gradients, states[0], states[1]])
}

/// Unique ids and where each stands among them.
fn ids<D: Driver>(
    meter: &mut Meter<'_, D>,
    name: &str,
    (limit, drawn): (u32, &[u32]),
) -> Result<(), DriverError> {
    let n = drawn.len() as u32;
    let raw: Vec<u8> = drawn.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
    let limit = u64::from(limit);
    let memory = [
        meter.bytes(&raw)?,
        meter.zeros(4 * Bitmap::words(limit) as u64)?,
        meter.zeros(4 * u64::from(Bitmap::groups(limit)))?,
        meter.zeros(4 * u64::from(Bitmap::tiles(limit)))?,
        meter.zeros(8 * u64::from(n))?,
        meter.zeros(4 * u64::from(n))?,
        meter.zeros(4)?,
    ];
    let out = |i: usize| Out::at(memory[i].address);
    let set = Bitmap { limit, bits: out(1), before: out(2), sums: out(3) };
    let (list, members, fault) =
        (In::at(memory[0].address), Out::at(memory[4].address), Out::at(meter.fault()));
    let calls = set.unique_ids(n, list, members, out(5), out(6), fault);
    meter.calls(format!("unique and inverse, {name}"), Work::Items(f64::from(n)), &calls, &memory)?;
    meter.release(&memory)
}
