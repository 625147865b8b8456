//! What a GPU is asked for: memory, streams, events, copies, launches, products.
//!
//! A [`Driver`] is one device. It hands out memory and takes work on streams; work of one stream is done in order, work of
//! several in any, and an event says in one stream how far another one is. No call waits for the device but
//! [`synchronize`](Driver::synchronize), which is for the time between runs. [`Real`](real::Real) talks to CUDA; `Emulated`
//! (feature `emulated`) does the work on the CPU at a time of its own choosing, and notices two uses of one range of memory
//! that nothing orders.
//!
//! All handles are numbers. Addresses are the device's, never followed by the host.

#[cfg(feature = "emulated")]
pub mod emulated;
pub mod real;

use std::fmt;

use super::Call;
use super::sources::Precision;

/// A device, and what may be asked of it.
pub trait Driver: Send + Sync + 'static {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Makes the kernels for activations of a precision ready, unless they are.
    fn prepare(&self, precision: Precision) -> Result<(), DriverError>;

    /// A stream; of those that have work the device prefers greater priorities, where it can (copies: never).
    fn stream(&self, priority: i32) -> Result<Stream, DriverError>;

    /// An event that nothing has been recorded in: it has come.
    fn event(&self) -> Result<Event, DriverError>;

    /// The same, and it knows when it comes.
    fn timer(&self) -> Result<Event, DriverError> {
        Err(DriverError::Misuse("this driver has no clock".into()))
    }

    /// Nanoseconds from the coming of one [timer](Self::timer) to that of another. Both were recorded and have come.
    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let _ = (from, to);
        Err(DriverError::Misuse("this driver has no clock".into()))
    }

    /// The event comes when all work that the stream has now is done. Earlier records of the event no longer count.
    fn record(&self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Later work of the stream waits for the event, as it was recorded last.
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError>;

    /// Whether the event has come. Fails if the device did.
    fn has_come(&self, event: Event) -> Result<bool, DriverError>;

    /// Memory, undefined, for work of the stream from now on; others must wait for the stream first.
    fn allocate(&self, stream: Stream, bytes: u64) -> Result<Memory, DriverError>;

    /// Gives memory back once the stream's present work is done. All others that use it must be done then.
    fn release(&self, stream: Stream, memory: Memory) -> Result<(), DriverError>;

    /// Page-locked memory of the host, cached, not write-combined.
    fn pin(&self, bytes: u64) -> Result<Pinned, DriverError>;

    /// Gives it back; nothing on the device uses it any more.
    fn unpin(&self, pinned: Pinned) -> Result<(), DriverError>;

    /// Copies what page-locked memory holds from `offset` on. No work that writes there is unfinished.
    fn read(&self, pinned: Pinned, offset: u64, to: &mut [u8]) -> Result<(), DriverError>;

    /// Replaces what page-locked memory holds from `offset` on. No work that uses that place is unfinished.
    fn write(&self, pinned: Pinned, offset: u64, from: &[u8]) -> Result<(), DriverError>;

    /// Copies packed bytes of the host into an area.
    fn upload(&self, stream: Stream, from: (Pinned, u64), to: Area) -> Result<(), DriverError>;

    /// Copies an area to packed bytes of the host.
    fn download(&self, stream: Stream, from: Area, to: (Pinned, u64)) -> Result<(), DriverError>;

    /// Copies areas to areas of as many rows and bytes a row, in one call where the device has one.
    fn copy(&self, stream: Stream, copies: &[(Area, Area)]) -> Result<(), DriverError>;

    /// Sets every byte of an area.
    fn fill(&self, stream: Stream, area: Area, byte: u8) -> Result<(), DriverError>;

    /// Runs a kernel.
    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DriverError>;

    /// Does the work of several launches that are [alike](super::joined::alike), of which none uses what another writes, by one. Each
    /// belongs to something, for messages.
    fn launch_joined(&self, stream: Stream, launches: &[(Launch<'_>, &str)]) -> Result<(), DriverError> {
        launches.iter().try_for_each(|(launch, _)| self.launch(stream, launch))
    }

    /// [`upload`](Self::upload) of several, in one call where the device has one.
    fn upload_all(&self, stream: Stream, copies: &[((Pinned, u64), Area)]) -> Result<(), DriverError> {
        copies.iter().try_for_each(|(from, to)| self.upload(stream, *from, *to))
    }

    /// [`download`](Self::download) of several, in one call where the device has one.
    fn download_all(&self, stream: Stream, copies: &[(Area, (Pinned, u64))]) -> Result<(), DriverError> {
        copies.iter().try_for_each(|(from, to)| self.download(stream, *from, *to))
    }

    /// A matrix product, `c = a b` or `c += a b`, summed in floats: of floats, or of brain floats with either as the result.
    fn product(&self, stream: Stream, product: &Product) -> Result<(), DriverError>;

    /// Writes a number when the stream's work so far is done.
    fn write_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError>;

    /// Later work of the stream waits until the number there is at least this one (as the difference of both, wrapping, is
    /// not negative).
    fn wait_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError>;

    /// What follows on a stream belongs to something that has been named before, and others since.
    fn resume(&self, stream: Stream, what: &str) {
        self.name(stream, what);
    }

    /// Says what the work that follows on a stream belongs to, for messages.
    fn name(&self, stream: Stream, what: &str) {
        let _ = (stream, what);
    }

    /// From now on it is noted what carries out copies, which takes some time of the host.
    fn watch_copies(&self) -> Result<(), DriverError> {
        Err(DriverError::Misuse("this driver does not see what carries out copies".into()))
    }

    /// What has carried out the copies since, as far as they are done. Between runs only.
    fn copies(&self) -> Result<Vec<Copies>, DriverError> {
        Ok(Vec::new())
    }

    /// Waits until all work of a stream is done. Between runs only.
    fn synchronize(&self, stream: Stream) -> Result<(), DriverError>;
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Bytes that it has.
    pub memory: u64,
    /// Bytes that are free when it is opened.
    pub free: u64,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Engines that copy beside them.
    pub copy_engines: u32,
    /// Compute capability.
    pub capability: (u32, u32),
}

/// Copies that belong to one thing, go one way, and were carried out by one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// What they belong to ([`Driver::name`]).
    pub name: String,
    /// Which way.
    pub way: Way,
    /// What carried them out.
    pub by: Mover,
    /// How many.
    pub copies: u64,
    /// Bytes of them all.
    pub bytes: u64,
    /// How long they took, one after the other.
    pub nanoseconds: u64,
}

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// To the device.
    In,
    /// To the host.
    Out,
    /// From the device's memory to itself.
    Within,
    /// Any other.
    Other,
}

/// What carries out a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mover {
    /// A copy engine, which no multiprocessor has to do with: the number of a channel to it, of which it may have several.
    CopyEngine(u32),
    /// Multiprocessors, which kernels need too.
    Multiprocessors,
    /// It is not known.
    Unknown,
}

/// Adds a copy to those like it.
fn add_copy(sums: &mut Vec<Copies>, one: Copies) {
    let like = sums.iter_mut().find(|s| (&s.name, s.way, s.by) == (&one.name, one.way, one.by));
    match like {
        Some(sum) => {
            sum.copies += one.copies;
            sum.bytes += one.bytes;
            sum.nanoseconds += one.nanoseconds;
        }
        None => sums.push(one),
    }
}

/// A queue of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stream(pub(crate) u32);

/// A point in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event(pub(crate) u32);

/// Page-locked memory of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pinned(pub(crate) u32);

/// Memory of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Memory {
    /// All of it as an area of one row.
    pub fn area(self) -> Area {
        self.first(self.bytes)
    }

    /// Its first bytes.
    pub fn first(self, bytes: u64) -> Area {
        Area { address: self.address, width: bytes, rows: 1, pitch: bytes }
    }

    /// Bytes from `offset` on.
    pub fn from(self, offset: u64, bytes: u64) -> Area {
        Area { address: self.address + offset, ..self.first(bytes) }
    }
}

/// Rows of bytes, a pitch apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Area {
    /// Where the first row begins.
    pub address: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub rows: u64,
    /// Bytes from the beginning of a row to that of the next.
    pub pitch: u64,
}

impl Area {
    /// Its bytes.
    pub fn bytes(self) -> u64 {
        self.width * self.rows
    }

    /// Some of its rows.
    #[must_use]
    pub fn rows(self, first: u64, rows: u64) -> Self {
        Self { address: self.address + first * self.pitch, rows, ..self }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(self) -> bool {
        self.bytes() == 0
    }

    /// The same as few rows: one, where nothing lies between them.
    #[must_use]
    pub fn joined(self) -> Self {
        if self.rows > 1 && self.pitch == self.width {
            Self { width: self.bytes(), rows: 1, pitch: self.bytes(), ..self }
        } else {
            self
        }
    }
}

/// What a kernel does with memory that it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// It is read.
    In(Area),
    /// It is written, all of it.
    Out(Area),
    /// It is read and written, or written in part.
    InOut(Area),
    /// Those of its rows are read, or read and written, whose numbers (`u32`) are in a list.
    Rows {
        /// All rows, without gaps.
        all: Area,
        /// The list.
        list: Area,
        /// Places in the list (`u32`) of the numbers that are meant; without any, all are.
        at: Option<Area>,
        /// Whether they are written.
        written: bool,
    },
}

/// A kernel about to run.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// With its arguments.
    pub call: &'a Call,
    /// All memory that it touches. A device has no use for that, an emulated one has.
    pub touches: &'a [Touch],
}

/// A matrix of floats or brain floats, row-major.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    /// Where it begins.
    pub address: u64,
    /// Rows.
    pub rows: u64,
    /// Columns.
    pub columns: u64,
    /// Elements from one row to the next.
    pub stride: u64,
    /// Of its elements.
    pub precision: Precision,
}

impl Matrix {
    /// Its bytes.
    pub fn area(self) -> Area {
        let each = self.precision.bytes() as u64;
        Area { address: self.address, width: each * self.columns, rows: self.rows, pitch: each * self.stride }
    }
}

/// A product of two matrices, each perhaps transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// The left factor, and whether its transpose is meant.
    pub a: (Matrix, bool),
    /// The right factor, and whether its transpose is meant.
    pub b: (Matrix, bool),
    /// The result.
    pub c: Matrix,
    /// Whether it is added to what is there.
    pub add: bool,
}

/// Why a driver cannot do what it is asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// A library of CUDA is not installed, or not found.
    #[error("{library} cannot be loaded: {hint}")]
    NoLibrary {
        /// Its name.
        library: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// A library of CUDA is there, and not all that is called of it.
    #[error("{library} has no `{function}`, so it is not whole or not the one that is meant: {hint}")]
    NoFunction {
        /// The library's name.
        library: &'static str,
        /// What it lacks.
        function: String,
        /// What to do.
        hint: &'static str,
    },
    /// The driver is there and does not start.
    #[error("the NVIDIA driver does not start: {reason}; see whether nvidia-smi works, which needs it too")]
    NoStart {
        /// What it says.
        reason: String,
    },
    /// The driver is older than what this program needs.
    #[error("the NVIDIA driver is too old: it knows CUDA {}.{}, and {}.{} is needed; update the driver", .found / 1000, .found % 1000 / 10, .needed / 1000, .needed % 1000 / 10)]
    OldDriver {
        /// Its version as the driver tells it: 1000 times the major number and 10 times the minor one.
        found: i32,
        /// The least that will do.
        needed: i32,
    },
    /// There is no device, or none with that number.
    #[error(
        "there is no GPU {ordinal}: the driver sees {found}; look at CUDA_VISIBLE_DEVICES and nvidia-smi"
    )]
    NoDevice {
        /// The one that was asked for.
        ordinal: u32,
        /// How many there are.
        found: u32,
    },
    /// Memory that the device does not have.
    #[error("out of GPU memory: another {bytes} bytes are needed where {free} are free")]
    NoMemory {
        /// What was asked for.
        bytes: u64,
        /// What is left.
        free: u64,
    },
    /// A call failed; once one has, all later ones do.
    #[error("{call} failed: {reason}")]
    Failed {
        /// What was called.
        call: String,
        /// What was said.
        reason: String,
    },
    /// Two uses of one place that nothing orders.
    #[error("`{second}` uses {what} that `{first}` uses too, and nothing orders the two")]
    Unordered {
        /// What was there first.
        first: String,
        /// What came upon it.
        second: String,
        /// Which place.
        what: String,
    },
    /// A kernel could not be compiled.
    #[error("the kernels of {source_name} do not compile:\n{log}")]
    Compile {
        /// The source.
        source_name: String,
        /// What the compiler says.
        log: String,
    },
    /// There is no such kernel.
    #[error("there is no kernel `{0}`")]
    NoKernel(String),
    /// Kernels were not built for a precision of activations, rows or gradients.
    #[error("there are no kernels for numbers in {0}")]
    NoPrecision(Precision),
    /// Areas, handles or sizes that do not fit together: a defect of the caller.
    #[error("{0}")]
    Misuse(String),
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} bytes at {:#x}", self.rows, self.width, self.address)
    }
}

/// Two areas of one copy have one shape.
pub(crate) fn same_shape(from: Area, to: Area) -> Result<(), DriverError> {
    if (from.rows, from.width) == (to.rows, to.width) || from.bytes() == 0 && to.bytes() == 0 {
        return Ok(());
    }
    Err(DriverError::Misuse(format!("a copy of {from} to {to}")))
}

/// The shape of a product, which must have a form: rows, columns, and what is summed over.
pub(crate) fn shape(p: &Product) -> Result<(u64, u64, u64), DriverError> {
    let of = |(m, t): (Matrix, bool)| if t { (m.columns, m.rows) } else { (m.rows, m.columns) };
    let ((m, k), (k2, n)) = (of(p.a), of(p.b));
    if k != k2 || (m, n) != (p.c.rows, p.c.columns) {
        return Err(DriverError::Misuse(format!("a product of {m} x {k} and {k2} x {n}")));
    }
    let (left, right, made) = (p.a.0.precision, p.b.0.precision, p.c.precision);
    if left != right || made != left && made != Precision::F32 {
        return Err(DriverError::Misuse(format!("a product of {left} and {right} as {made}")));
    }
    Ok((m, n, k))
}
