//! The calls of MPI that are made here, behind safe functions: messages of bytes, begun and asked for, never waited for.
//!
//! All calls are made by the thread that started MPI ([`Mpi`] cannot leave it), and every code that one returns is
//! checked: errors are returned and do not abort. Bytes that MPI reads or writes are owned by the request's entry here
//! until MPI has said that it is done with them; what is still open at the end is leaked rather than freed.
#![allow(unsafe_code, reason = "MPI is a C library; each block says why it may be called")]

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi::{
    self, MPI_Abort, MPI_Comm_get_attr, MPI_Comm_set_errhandler, MPI_Error_string, MPI_Irecv, MPI_Isend,
    MPI_MAX_ERROR_STRING, MPI_Request, MPI_Status, MPI_Testsome,
};
use mpi::topology::Communicator;

use super::MpiError;
use super::courier::{Done, Messages};

/// The greatest tag that every MPI takes.
const LEAST_TAG_BOUND: i32 = 32767;
/// Parts of one message that are received into their place at once.
const OPEN_PARTS: usize = 32;

/// MPI, from its start to its end.
pub(super) struct Mpi {
    /// Ends MPI when it goes.
    universe: Option<Universe>,
    rank: usize,
    size: usize,
    greatest_tag: i32,
    /// Requests under way, and beside each what belongs to it.
    requests: Vec<MPI_Request>,
    entries: Vec<Entry>,
    landings: Vec<Option<Landing>>,
    indices: Vec<c_int>,
    statuses: Vec<MPI_Status>,
    /// Calls are this thread's alone.
    here: PhantomData<*const ()>,
}

/// What belongs to a request.
enum Entry {
    /// The bytes are read until it is done.
    Send(Arc<Vec<u8>>),
    /// The bytes are written until it is done.
    Receive(Vec<u8>),
    /// A part of a landing is written until it is done.
    Part { landing: usize, bytes: usize },
}

/// A message that is received in parts.
struct Landing {
    from: usize,
    tag: i32,
    /// Of a fixed size: MPI writes where they lie.
    bytes: Vec<u8>,
    /// Up to here receives have been begun.
    begun: usize,
    part: usize,
    /// Receives that are not done.
    open: usize,
}

fn checked(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0_u8; MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: MPI writes at most MPI_MAX_ERROR_STRING bytes into `text` and their number into `length`; both live here.
    let said = unsafe { MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    let known = said == ffi::MPI_SUCCESS as c_int;
    let reason =
        if known { String::from_utf8_lossy(&text[..length]).into_owned() } else { format!("error {code}") };
    Err(MpiError::Call { call, reason })
}

/// The null request, as MPI leaves it where one is done.
fn no_request() -> MPI_Request {
    // SAFETY: a constant of the library, set before anything runs.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

impl Mpi {
    /// Starts MPI on this thread, which makes all calls from now on.
    pub(super) fn start() -> Result<Self, MpiError> {
        let (universe, provided) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(MpiError::StartedBefore)?;
        if provided < Threading::Funneled {
            return Err(MpiError::Threads);
        }
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        // SAFETY: MPI runs, on this thread; both are constants of the library.
        let code = unsafe { MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
        checked("MPI_Comm_set_errhandler", code)?;
        let mut bound: *mut c_int = ptr::null_mut();
        let mut found: c_int = 0;
        // SAFETY: for this key MPI writes a pointer to an integer of its own, which lives as long as MPI runs.
        let code = unsafe {
            let key = ffi::MPI_TAG_UB as c_int;
            MPI_Comm_get_attr(ffi::RSMPI_COMM_WORLD, key, (&raw mut bound).cast::<c_void>(), &raw mut found)
        };
        checked("MPI_Comm_get_attr", code)?;
        // SAFETY: the pointer was just found, and points to an integer of MPI's.
        let greatest = if found != 0 && !bound.is_null() { unsafe { *bound } } else { LEAST_TAG_BOUND };
        Ok(Self {
            universe: Some(universe),
            rank: usize::try_from(rank).unwrap_or(0),
            size: usize::try_from(size).unwrap_or(1),
            greatest_tag: greatest.max(LEAST_TAG_BOUND),
            requests: Vec::new(),
            entries: Vec::new(),
            landings: Vec::new(),
            indices: Vec::new(),
            statuses: Vec::new(),
            here: PhantomData,
        })
    }

    /// This process, of how many.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.rank, self.size)
    }

    /// Ends MPI here and in all other processes, and this one.
    pub(super) fn abort(mut self, code: i32) -> ! {
        // MPI is not ended in order: others may be gone.
        std::mem::forget(self.universe.take());
        // SAFETY: MPI runs, on this thread.
        unsafe { MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
        std::process::exit(code)
    }

    fn begin(
        &mut self,
        call: &'static str,
        entry: Entry,
        begin: impl FnOnce(&mut MPI_Request) -> c_int,
    ) -> Result<(), MpiError> {
        let mut request = no_request();
        checked(call, begin(&mut request))?;
        self.requests.push(request);
        self.entries.push(entry);
        Ok(())
    }

    fn begin_part(&mut self, key: usize) -> Result<(), MpiError> {
        let Some(landing) = &mut self.landings[key] else { return Ok(()) };
        let (start, end) = (landing.begun, (landing.begun + landing.part).min(landing.bytes.len()));
        (landing.begun, landing.open) = (end, landing.open + 1);
        let (at, n) = (landing.bytes[start..end].as_mut_ptr(), length(end - start));
        let (from, tag) = (length(landing.from), landing.tag);
        // SAFETY: MPI runs, on this thread. The bytes are those of a vector in `landings` that is neither moved out, grown
        // nor read before all its parts are done, and no other part has them.
        self.begin("MPI_Irecv", Entry::Part { landing: key, bytes: end - start }, |request| unsafe {
            MPI_Irecv(at.cast(), n, ffi::RSMPI_UINT8_T, from, tag, ffi::RSMPI_COMM_WORLD, request)
        })
    }

    fn part_done(&mut self, key: usize, bytes: usize, done: &mut Vec<Done>) -> Result<(), MpiError> {
        let Some(landing) = &mut self.landings[key] else { return Ok(()) };
        landing.open -= 1;
        done.push(Done::Part { from: landing.from, bytes });
        if landing.begun < landing.bytes.len() {
            return self.begin_part(key);
        }
        if landing.open == 0
            && let Some(landing) = self.landings[key].take()
        {
            done.push(Done::Landed { from: landing.from, bytes: landing.bytes });
        }
        Ok(())
    }
}

/// Sizes and ranks are far below 2^31 here.
fn length(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

impl Messages for Mpi {
    fn greatest_tag(&self) -> i32 {
        self.greatest_tag
    }

    fn send(
        &mut self,
        to: usize,
        tag: i32,
        bytes: &Arc<Vec<u8>>,
        part: Range<usize>,
    ) -> Result<(), MpiError> {
        let part = &bytes[part];
        let (at, n) = (part.as_ptr(), length(part.len()));
        // SAFETY: MPI runs, on this thread. The bytes are behind an `Arc` that the entry holds until the send is done, and
        // nobody changes them meanwhile.
        self.begin("MPI_Isend", Entry::Send(Arc::clone(bytes)), |request| unsafe {
            MPI_Isend(at.cast(), n, ffi::RSMPI_UINT8_T, length(to), tag, ffi::RSMPI_COMM_WORLD, request)
        })
    }

    fn receive(&mut self, tag: i32, mut bytes: Vec<u8>) -> Result<(), MpiError> {
        let (at, n) = (bytes.as_mut_ptr(), length(bytes.len()));
        // SAFETY: MPI runs, on this thread. The entry holds the vector until the receive is done; moving it there does not
        // move its bytes.
        self.begin("MPI_Irecv", Entry::Receive(bytes), |request| unsafe {
            MPI_Irecv(
                at.cast(),
                n,
                ffi::RSMPI_UINT8_T,
                ffi::RSMPI_ANY_SOURCE,
                tag,
                ffi::RSMPI_COMM_WORLD,
                request,
            )
        })
    }

    fn land(
        &mut self,
        from: usize,
        tag: i32,
        bytes: Vec<u8>,
        begin: usize,
        part: usize,
    ) -> Result<(), MpiError> {
        let landing = Landing { from, tag, bytes, begun: begin, part, open: 0 };
        let parts = (landing.bytes.len() - begin).div_ceil(part.max(1));
        let free = self.landings.iter().position(Option::is_none);
        let key = free.unwrap_or_else(|| {
            self.landings.push(None);
            self.landings.len() - 1
        });
        self.landings[key] = Some(landing);
        (0..parts.min(OPEN_PARTS)).try_for_each(|_| self.begin_part(key))
    }

    fn finished(&mut self, done: &mut Vec<Done>) -> Result<(), MpiError> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let n = self.requests.len();
        self.indices.resize(n, 0);
        // SAFETY: a status is plain numbers, which may all be zero; MPI writes those that it counts.
        self.statuses.resize_with(n, || unsafe { std::mem::zeroed() });
        let mut count: c_int = 0;
        // SAFETY: MPI runs, on this thread. All four have room for `n`; the requests are those begun here, each with the bytes
        // that its entry holds.
        let code = unsafe {
            let (requests, indices) = (self.requests.as_mut_ptr(), self.indices.as_mut_ptr());
            MPI_Testsome(length(n), requests, &raw mut count, indices, self.statuses.as_mut_ptr())
        };
        // Of single requests the statuses say what is wrong; which of them it is the same to whoever loses a process.
        checked("MPI_Testsome", code)?;
        let count = usize::try_from(count).unwrap_or(0);
        let mut indices: Vec<(usize, usize)> =
            (0..count).map(|k| (usize::try_from(self.indices[k]).unwrap_or(usize::MAX), k)).collect();
        // From the back, so that what is swapped in is not done.
        indices.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        // As they were begun: receives match in that order.
        let mut found: Vec<(usize, Entry)> = Vec::with_capacity(count);
        for (at, k) in indices {
            self.requests.swap_remove(at);
            found.push((k, self.entries.swap_remove(at)));
        }
        for (k, entry) in found {
            match entry {
                Entry::Send(bytes) => done.push(Done::Sent(bytes)),
                Entry::Receive(bytes) => {
                    let status = &self.statuses[k];
                    let mut n: c_int = 0;
                    // SAFETY: a status that MPI has just written, of a receive of bytes.
                    let code = unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &raw mut n) };
                    checked("MPI_Get_count", code)?;
                    let (from, len) = (status.MPI_SOURCE, usize::try_from(n).unwrap_or(0));
                    done.push(Done::Received { from: usize::try_from(from).unwrap_or(0), bytes, len });
                }
                Entry::Part { landing, bytes } => self.part_done(landing, bytes, done)?,
            }
        }
        Ok(())
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // What MPI still reads or writes must stay.
        std::mem::forget(std::mem::take(&mut self.entries));
        std::mem::forget(std::mem::take(&mut self.landings));
    }
}
