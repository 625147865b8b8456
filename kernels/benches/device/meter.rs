//! Times work of a device, and keeps what was found.

use std::time::Instant;

use fs_kernels::cuda::Call;
use fs_kernels::cuda::driver::{Driver, DriverError, Launch, Memory, Stream, Touch};
use fs_kernels::cuda::sources::Precision;

/// What a case does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Useful bytes: each operand read once, each result written once.
    Bytes(f64),
    /// Multiplications and additions.
    Operations(f64),
    /// Ids, rows or the like.
    Items(f64),
    /// Nothing that has a rate.
    None,
}

/// What was found of a case.
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) precision: Precision,
    pub(crate) seconds: f64,
    pub(crate) work: Work,
    /// Of the rate of the copy.
    pub(crate) share: Option<f64>,
    /// Of the time that it takes with nothing beside it.
    pub(crate) of_alone: Option<f64>,
}

impl Figure {
    pub(crate) fn json(&self) -> serde_json::Value {
        let (unit, amount) = match self.work {
            Work::Bytes(n) => ("bytes", Some(n)),
            Work::Operations(n) => ("operations", Some(n)),
            Work::Items(n) => ("items", Some(n)),
            Work::None => ("", None),
        };
        serde_json::json!({
            "what": self.what, "activations": self.precision.name(), "seconds": self.seconds, "unit": unit,
            "work": amount, "share_of_copy": self.share, "of_alone": self.of_alone,
        })
    }
}

/// A device that is measured.
pub(crate) struct Meter<'d, D: Driver> {
    pub(crate) driver: &'d D,
    pub(crate) precision: Precision,
    pub(crate) stream: Stream,
    /// Everything is done once, with little.
    pub(crate) small: bool,
    pub(crate) figures: Vec<Figure>,
    /// Bytes a second.
    copy: f64,
    fault: Memory,
}

impl<'d, D: Driver> Meter<'d, D> {
    pub(crate) fn new(driver: &'d D, precision: Precision, small: bool) -> Result<Self, DriverError> {
        let stream = driver.stream(0)?;
        let fault = driver.allocate(stream, 4)?;
        driver.fill(stream, fault.area(), 0)?;
        Ok(Self { driver, precision, stream, small, figures: Vec::new(), copy: 0.0, fault })
    }

    /// Where kernels tell of faults.
    pub(crate) fn fault(&self) -> u64 {
        self.fault.address
    }

    /// Memory with one byte all over: as floats about 0.01, whichever floats they are.
    pub(crate) fn filled(&self, bytes: u64) -> Result<Memory, DriverError> {
        let memory = self.driver.allocate(self.stream, bytes.max(16))?;
        self.driver.fill(self.stream, memory.area(), 0x3c)?;
        Ok(memory)
    }

    /// Memory of zeros.
    pub(crate) fn zeros(&self, bytes: u64) -> Result<Memory, DriverError> {
        let memory = self.driver.allocate(self.stream, bytes.max(16))?;
        self.driver.fill(self.stream, memory.area(), 0)?;
        Ok(memory)
    }

    /// Memory with these bytes.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<Memory, DriverError> {
        let memory = self.driver.allocate(self.stream, (bytes.len() as u64).max(16))?;
        let pinned = self.driver.pin(bytes.len() as u64)?;
        self.driver.write(pinned, 0, bytes)?;
        self.driver.upload(self.stream, (pinned, 0), memory.first(bytes.len() as u64))?;
        self.driver.synchronize(self.stream)?;
        self.driver.unpin(pinned)?;
        Ok(memory)
    }

    /// Memory with these numbers.
    pub(crate) fn words(&self, words: &[u32]) -> Result<Memory, DriverError> {
        self.bytes(&words.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(crate) fn release(&self, all: &[Memory]) -> Result<(), DriverError> {
        all.iter().try_for_each(|memory| self.driver.release(self.stream, *memory))
    }

    /// Runs kernels on the meter's stream. All of a case is on one stream: nothing has to be told of what they touch but to the
    /// emulation, which takes all memory that a call names for what it touches.
    pub(crate) fn run(&self, calls: &[Call], touched: &[Memory]) -> Result<(), DriverError> {
        let touches: Vec<Touch> = touched.iter().map(|memory| Touch::InOut(memory.area())).collect();
        calls.iter().try_for_each(|call| {
            let call = &call.clone().of(self.precision);
            self.driver.launch(self.stream, &Launch { call, touches: &touches })
        })
    }

    /// Seconds that `enqueue` takes the device, the median of seven blocks; `enqueue` puts one round on streams, and `all` are
    /// those.
    pub(crate) fn seconds(
        &self,
        all: &[Stream],
        mut enqueue: impl FnMut() -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        let wait = || all.iter().try_for_each(|stream| self.driver.synchronize(*stream));
        let mut block = |rounds: u32| -> Result<f64, DriverError> {
            wait()?;
            let began = Instant::now();
            for _ in 0..rounds {
                enqueue()?;
            }
            wait()?;
            Ok(began.elapsed().as_secs_f64() / f64::from(rounds))
        };
        // The first one compiles, chooses algorithms and makes memory known.
        block(1)?;
        if self.small {
            return block(1);
        }
        let once = block(3)?;
        let rounds = (0.02 / once.max(1e-9)).ceil().clamp(3.0, 2000.0) as u32;
        let mut blocks = (0..7).map(|_| block(rounds)).collect::<Result<Vec<_>, _>>()?;
        blocks.sort_by(f64::total_cmp);
        Ok(blocks[blocks.len() / 2])
    }

    /// Times kernels, one after the other on the meter's stream.
    pub(crate) fn calls(
        &mut self,
        what: impl Into<String>,
        work: Work,
        calls: &[Call],
        touched: &[Memory],
    ) -> Result<(), DriverError> {
        let seconds = self.seconds(&[self.stream], || self.run(calls, touched))?;
        self.keep(what, work, seconds);
        Ok(())
    }

    pub(crate) fn keep(&mut self, what: impl Into<String>, work: Work, seconds: f64) {
        let share = match work {
            Work::Bytes(n) if self.copy > 0.0 => Some(n / seconds / self.copy),
            _ => None,
        };
        let (what, precision) = (what.into(), self.precision);
        self.figures.push(Figure { what, precision, seconds, work, share, of_alone: None });
    }

    /// Of work that was timed beside other work.
    pub(crate) fn keep_beside(&mut self, what: String, seconds: f64, of_alone: f64) {
        let (precision, work) = (self.precision, Work::None);
        self.figures.push(Figure { what, precision, seconds, work, share: None, of_alone: Some(of_alone) });
    }

    /// The copy that all shares are of, and those to and from the host.
    pub(crate) fn copies(&mut self) -> Result<(), DriverError> {
        let bytes = if self.small { 1 << 16 } else { 1 << 30 };
        let (from, to) = (self.filled(bytes)?, self.filled(bytes)?);
        let (driver, stream) = (self.driver, self.stream);
        let seconds = self.seconds(&[stream], || driver.copy(stream, &[(from.area(), to.area())]))?;
        self.copy = 2.0 * bytes as f64 / seconds;
        self.keep("copy on the device, 1 GiB", Work::Bytes(2.0 * bytes as f64), seconds);
        let half = bytes / 4;
        let pinned = driver.pin(half)?;
        let up = self.seconds(&[stream], || driver.upload(stream, (pinned, 0), to.first(half)))?;
        let down = self.seconds(&[stream], || driver.download(stream, to.first(half), (pinned, 0)))?;
        self.keep("copy from page-locked memory, 256 MiB", Work::Items(half as f64), up);
        self.keep("copy to page-locked memory, 256 MiB", Work::Items(half as f64), down);
        driver.unpin(pinned)?;
        self.release(&[from, to])
    }
}
