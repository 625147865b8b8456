//! Executors with the devices that tests have, compiled once, here.
//!
//! A session is generic over its device, and generic code is compiled where it is first used with a type: without this by each file of
//! tests for itself, which took a third of the time in which tests are built. Nothing calls these; what they use, others link to.

use std::path::Path;

use fs_executor::device::Device;
use fs_executor::device::cpu::Cpu;
use fs_executor::device::cuda::Cuda;
use fs_executor::{Error, Observer, Options, Session};
use fs_kernels::Real;
use fs_kernels::cuda::driver::emulated::Emulated;
use fs_schedule::Schedule;

use crate::mock::Mock;
use crate::replay::Noting;
use crate::witness::Witness;

/// What a session is made of, and where it is saved.
pub struct Parts<'a, D: Device> {
    /// What is trained.
    pub schedule: Schedule,
    /// How.
    pub options: Options,
    /// On what.
    pub device: &'a D::Options,
    /// Who is told.
    pub observer: &'a mut dyn Observer,
    /// Where it is saved.
    pub path: &'a Path,
}

/// Everything that tests do with a session.
fn used<T: Real, D: Device<Real = T>>(parts: Parts<'_, D>) -> Result<(), Error> {
    let Parts { schedule, options, device, observer, path } = parts;
    let mut session = Session::<T, D>::with_device(schedule, options, device)?;
    session.run(observer)?;
    session.advance(1, observer)?;
    session.evaluate(observer)?;
    session.outcomes(observer)?;
    session.loss_and_gradients(0)?;
    session.table_state(0)?;
    let (table, parameter) = (session.table(0)?, session.parameter(0));
    session.parameter_state(0);
    session.set_table(0, &table)?;
    session.set_parameter(0, &parameter)?;
    session.timeline();
    session.take_records();
    session.save(path)
}

macro_rules! compiled {
    ($($name:ident: $real:ty, $device:ty;)*) => {$(
        /// With this device.
        ///
        /// # Errors
        /// Those of a session.
        pub fn $name(parts: Parts<'_, $device>) -> Result<(), Error> {
            used::<$real, $device>(parts)
        }
    )*};
}

compiled! {
    single: f32, Cpu<f32>;
    double: f64, Cpu<f64>;
    emulated: f32, Cuda<Emulated>;
    noting: f32, Cuda<Noting<Emulated>>;
    witnessed: f32, Witness<Cpu<f32>>;
    witnessed_emulated: f32, Witness<Cuda<Emulated>>;
    mock: f32, Mock;
}
