//! What carries out copies, as NVIDIA's profiling interface (CUPTI) sees it.
//!
//! A copy that the driver is asked for may go by a copy engine or by a kernel of the driver's own; which of them, only its
//! record says. Copies are enqueued within a *region*, whose number CUPTI notes with the call and which stands for what
//! the copy belongs to. Records come in buffers that this module hands out, at any time, on any thread; CUPTI has one
//! set of callbacks for a process, so what they collect is the process's.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::ptr::{addr_of, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::cupti::result::{CuptiError, activity};
use cudarc::cupti::sys::{
    self, CUpti_Activity, CUpti_ActivityExternalCorrelation, CUpti_ActivityKind, CUpti_ActivityMemcpy6,
    CUpti_ExternalCorrelationKind,
};
use cudarc::driver::sys::CUcontext;
use parking_lot::Mutex;

use super::super::{Copies, DriverError, Mover, Way, add_copy};
use super::libraries;

/// Bytes of a buffer of records, and where it may begin.
const BUFFER: usize = 1 << 20;
const ALIGNMENT: usize = 8;
/// Calls whose regions are remembered: their copies come at most so many calls later.
const REMEMBERED: usize = 1 << 20;
/// The first version whose records of copies have a number of them: that of CUDA 12.8.
const COUNTED: u32 = 26;
/// Calls after which a copy's region is no longer waited for.
const WAIT: u32 = 1 << 16;
/// What copies belong to of which nobody says it.
const ELSE: &str = "something else";
/// What numbers of regions are to CUPTI.
const KIND: CUpti_ExternalCorrelationKind =
    CUpti_ExternalCorrelationKind::CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
const KINDS: [CUpti_ActivityKind; 3] = [
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_DRIVER,
    CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
];

static WATCHING: AtomicBool = AtomicBool::new(false);

/// What has been collected so far.
fn seen() -> &'static Mutex<Seen> {
    static SEEN: OnceLock<Mutex<Seen>> = OnceLock::new();
    SEEN.get_or_init(Mutex::default)
}

#[derive(Debug, Default)]
struct Seen {
    /// Numbers of regions, by name, and the names.
    numbers: HashMap<String, u64>,
    names: Vec<String>,
    /// The region of a call, by its number.
    regions: BTreeMap<u32, u64>,
    /// Copies whose calls are not known yet: call, way, by, copies, bytes, nanoseconds.
    strays: Vec<Stray>,
    sums: Vec<Copies>,
    /// Records that CUPTI had no room for.
    dropped: u64,
}

type Stray = (u32, Way, Mover, [u64; 3]);

impl Seen {
    fn number(&mut self, name: &str) -> u64 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u64;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    fn region(&mut self, call: u32, region: u64) {
        self.regions.insert(call, region);
        if self.regions.len() > REMEMBERED {
            self.regions.pop_first();
        }
    }

    fn copy(&mut self, (call, way, by, [copies, bytes, nanoseconds]): Stray) {
        let name = self.regions.get(&call).and_then(|region| self.names.get(*region as usize));
        match name {
            Some(name) => {
                let name = name.clone();
                add_copy(&mut self.sums, Copies { name, way, by, copies, bytes, nanoseconds });
            }
            None => self.strays.push((call, way, by, [copies, bytes, nanoseconds])),
        }
    }

    /// Looks again for what copies belong to. Of calls long ago nobody will say it: these belong to something else.
    fn retry(&mut self, forget: bool) {
        let newest = self.regions.last_key_value().map_or(0, |(call, _)| *call);
        for stray in std::mem::take(&mut self.strays) {
            let (call, way, by, [copies, bytes, nanoseconds]) = stray;
            let late = forget || newest.saturating_sub(call) > WAIT;
            if late && !self.regions.contains_key(&call) {
                let name = ELSE.to_owned();
                add_copy(&mut self.sums, Copies { name, way, by, copies, bytes, nanoseconds });
            } else {
                self.copy(stray);
            }
        }
    }

    /// All of them, and that some are missing.
    fn all(&mut self) -> Vec<Copies> {
        self.retry(true);
        if self.dropped > 0 {
            let name = format!("{} records that CUPTI had no room for", self.dropped);
            let lost =
                Copies { name, way: Way::Other, by: Mover::Unknown, copies: 0, bytes: 0, nanoseconds: 0 };
            return self.sums.iter().cloned().chain([lost]).collect();
        }
        self.sums.clone()
    }
}

fn failed(call: &str, error: CuptiError) -> DriverError {
    let CuptiError(name) = error;
    let reason = match error.error_string() {
        Ok(text) => format!("{} ({name:?})", text.to_string_lossy()),
        Err(_) => format!("{name:?}"),
    };
    DriverError::Failed { call: call.into(), reason }
}

/// Starts watching, if CUPTI can be had and nobody else uses it.
pub(super) fn begin() -> Result<(), DriverError> {
    libraries::profiler()?;
    if WATCHING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let started = activity::register_callbacks(Some(requested), Some(completed))
        .map_err(|e| failed("cuptiActivityRegisterCallbacks", e))
        .and_then(|()| {
            KINDS
                .into_iter()
                .try_for_each(|kind| activity::enable(kind).map_err(|e| failed("cuptiActivityEnable", e)))
        });
    if started.is_err() {
        WATCHING.store(false, Ordering::SeqCst);
    }
    started
}

/// Whether anything is watched.
pub(super) fn is_on() -> bool {
    WATCHING.load(Ordering::Relaxed)
}

/// What has been seen. Copies that are still under way are not in it.
pub(super) fn end() -> Result<Vec<Copies>, DriverError> {
    if !WATCHING.load(Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    // Records of what is done come at once; a forced flush would bring records of what is not, too.
    activity::flush_all(0).map_err(|e| failed("cuptiActivityFlushAll", e))?;
    Ok(seen().lock().all())
}

/// Calls made by this thread belong to something, until this is dropped.
#[derive(Debug)]
pub(super) struct Region(bool);

impl Region {
    /// Of the thing of a name, if anything is watched.
    pub(super) fn of(name: impl FnOnce() -> Option<String>) -> Self {
        if !is_on() {
            return Self(false);
        }
        let Some(name) = name() else { return Self(false) };
        let number = seen().lock().number(&name);
        Self(activity::push_external_correlation_id(KIND, number).is_ok())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let mut last = 0;
        if self.0 {
            // SAFETY: `last` is there to be written. What this thread pushed is popped; of an error nobody would know more.
            let _ = unsafe { activity::pop_external_correlation_id(KIND, &raw mut last) };
        }
    }
}

/// Whether this version of CUPTI says how many copies a record stands for.
fn counts() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    *COUNTS.get_or_init(|| {
        let mut version = 0;
        // SAFETY: the library is there, or nobody watches; `version` is there to be written.
        let known =
            unsafe { sys::is_culib_present() && sys::cuptiGetVersion(&raw mut version).result().is_ok() };
        known && version >= COUNTED
    })
}

/// A buffer of records; that it can be is known when this is compiled.
const LAYOUT: Layout = match Layout::from_size_align(BUFFER, ALIGNMENT) {
    Ok(layout) => layout,
    Err(_) => panic!("no alignment"),
};

/// CUPTI asks for a buffer.
unsafe extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, records: *mut usize) {
    // SAFETY: a layout of more than no bytes.
    let memory = unsafe { alloc_zeroed(LAYOUT) };
    // SAFETY: CUPTI hands over three places to be written. Without a buffer it drops records.
    unsafe {
        *buffer = memory;
        *size = if memory.is_null() { 0 } else { BUFFER };
        // As many as fit.
        *records = 0;
    }
}

/// CUPTI gives one back.
unsafe extern "C" fn completed(context: CUcontext, stream: u32, buffer: *mut u8, _: usize, valid: usize) {
    if buffer.is_null() {
        return;
    }
    let mut record: *mut CUpti_Activity = null_mut();
    // Until there are no more, or one comes that this version of CUPTI does not know.
    // SAFETY: the buffer is one that was handed out, as many bytes of it are valid, and `record` is none or its last one.
    while let Ok(()) = unsafe { activity::get_next_record(buffer, valid, &raw mut record) } {
        if record.is_null() {
            break;
        }
        // SAFETY: it is a record of the buffer.
        unsafe { take(record) };
    }
    let mut dropped = 0;
    // SAFETY: context and stream are CUPTI's, and `dropped` is there to be written.
    let _ = unsafe { activity::get_num_dropped_records(context, stream, &raw mut dropped) };
    let mut seen = seen().lock();
    seen.dropped += dropped as u64;
    seen.retry(false);
    drop(seen);
    // SAFETY: it was allocated by `requested`, with this layout.
    unsafe { dealloc(buffer, LAYOUT) };
}

/// Takes in a record.
///
/// # Safety
/// It is a whole record of CUPTI's.
unsafe fn take(record: *const CUpti_Activity) {
    // Numbers, not enumerations: a later version may have others.
    // SAFETY: every record begins with its kind.
    let kind = unsafe { addr_of!((*record).kind).cast::<u32>().read_unaligned() };
    if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION as u32 {
        let region = record.cast::<CUpti_ActivityExternalCorrelation>();
        // SAFETY: records of this kind are of this form.
        let (call, number, of) = unsafe {
            (
                addr_of!((*region).correlationId).read_unaligned(),
                addr_of!((*region).externalId).read_unaligned(),
                addr_of!((*region).externalKind).cast::<u32>().read_unaligned(),
            )
        };
        if of == KIND as u32 {
            seen().lock().region(call, number);
        }
    } else if kind == CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY as u32 {
        let copy = record.cast::<CUpti_ActivityMemcpy6>();
        // SAFETY: records of this kind begin like this form, in later versions too.
        let (call, way, bytes, start, end, channel, by) = unsafe {
            (
                addr_of!((*copy).correlationId).read_unaligned(),
                addr_of!((*copy).copyKind).read_unaligned(),
                addr_of!((*copy).bytes).read_unaligned(),
                addr_of!((*copy).start).read_unaligned(),
                addr_of!((*copy).end).read_unaligned(),
                addr_of!((*copy).channelID).read_unaligned(),
                addr_of!((*copy).channelType).cast::<u32>().read_unaligned(),
            )
        };
        let way = match u32::from(way) {
            1 => Way::In,
            2 => Way::Out,
            8 => Way::Within,
            _ => Way::Other,
        };
        let by = match by {
            x if x == sys::CUpti_ChannelType::CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY as u32 => {
                Mover::CopyEngine(channel)
            }
            x if x == sys::CUpti_ChannelType::CUPTI_CHANNEL_TYPE_COMPUTE as u32 => Mover::Multiprocessors,
            _ => Mover::Unknown,
        };
        // A batch is one record, and later versions say of how many.
        let copies = if counts() {
            // SAFETY: as above; versions that know the number have records that are as long.
            unsafe { addr_of!((*copy).copyCount).read_unaligned() }.max(1)
        } else {
            1
        };
        seen().lock().copy((call, way, by, [copies, bytes, end.saturating_sub(start)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records in a buffer as CUPTI leaves them: copies are summed by what they belong to, whichever record came first.
    #[test]
    fn records_are_summed() {
        let number = seen().lock().number("rows");
        // SAFETY: all bits zero are values of both.
        let (mut region, mut copy): (CUpti_ActivityExternalCorrelation, CUpti_ActivityMemcpy6) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        region.kind = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
        region.externalKind = KIND;
        (region.externalId, region.correlationId) = (number, 77);
        copy.kind = CUpti_ActivityKind::CUPTI_ACTIVITY_KIND_MEMCPY;
        (copy.correlationId, copy.copyKind, copy.bytes, copy.start, copy.end) = (77, 8, 100, 5, 12);
        (copy.channelID, copy.channelType) = (3, sys::CUpti_ChannelType::CUPTI_CHANNEL_TYPE_ASYNC_MEMCPY);
        let mut by_kernel = copy;
        (by_kernel.channelType, by_kernel.copyKind) = (sys::CUpti_ChannelType::CUPTI_CHANNEL_TYPE_COMPUTE, 1);
        let mut stray = copy;
        stray.correlationId = 78;
        // SAFETY: whole records.
        unsafe {
            take((&raw const copy).cast());
            take((&raw const region).cast());
            take((&raw const copy).cast());
            take((&raw const by_kernel).cast());
            take((&raw const stray).cast());
        }
        let found = seen().lock().all();
        let of = |name: &str| -> Vec<(Way, Mover, u64, u64, u64)> {
            let own = found.iter().filter(|c| c.name == name);
            own.map(|c| (c.way, c.by, c.copies, c.bytes, c.nanoseconds)).collect()
        };
        let mut rows = of("rows");
        rows.sort();
        assert_eq!(
            rows,
            [(Way::In, Mover::Multiprocessors, 1, 100, 7), (Way::Within, Mover::CopyEngine(3), 2, 200, 14)]
        );
        assert_eq!(of("something else"), [(Way::Within, Mover::CopyEngine(3), 1, 100, 7)]);
    }

    /// Without the library it says so, and nothing is watched.
    #[test]
    fn without_the_library_it_says_so() {
        // SAFETY: probing loads a library and lets it go.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        assert!(matches!(begin(), Err(DriverError::NoLibrary { library: "libcupti.so", .. })));
        assert!(!Region::of(|| unreachable!("nobody asks for a name")).0);
        assert_eq!(end(), Ok(Vec::new()));
    }
}
