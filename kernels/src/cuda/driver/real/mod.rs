//! CUDA, found when it is asked for: a program that has this runs where there is none.
//!
//! Before any of its libraries is called it is looked for with all that is called of it, because the calls themselves end
//! the process where it is missing. cudarc's own tracking of events is off before anything is allocated: what orders work of several streams is the
//! schedule.

mod calls;
pub mod compile;
mod libraries;
mod product;
mod watch;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::result::DriverError as Code;
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaModule, CudaStream};
use cudarc::nvrtc::Ptx;
use parking_lot::{Mutex, RwLock};

use super::super::Shape;
use super::super::joined::Joined;
use super::super::sources::{FAMILIES, HEADERS, JOINED, OPTIONS, Precision, Source};
use super::{
    Area, Copies, Driver, DriverError, Event, Facts, Launch, Memory, Pinned, Product, Stream, same_shape,
};
use calls::Side;
use compile::{Cache, Found, Unit};
use product::{Products, WORKSPACE};
use watch::Region;

pub use libraries::FUNCTIONS;

/// A GPU.
pub struct Real {
    context: Arc<CudaContext>,
    facts: Facts,
    /// The driver's least and greatest priority; smaller numbers are more.
    priorities: (i32, i32),
    streams: RwLock<Vec<Queue>>,
    events: RwLock<Vec<CudaEvent>>,
    pinned: Mutex<HashMap<u32, (Page, u64)>>,
    /// Kernels, by what activations are.
    functions: RwLock<HashMap<Precision, HashMap<String, CudaFunction>>>,
    cache: Cache,
    products: Products,
    /// What was noticed about the cache of kernels.
    notes: Mutex<Vec<String>>,
}

struct Queue {
    stream: Arc<CudaStream>,
    /// For products, once there is one.
    workspace: Mutex<Option<u64>>,
    /// What its work belongs to, while copies are watched.
    name: Mutex<Option<String>>,
}

/// Page-locked memory.
#[derive(Debug, Clone, Copy)]
struct Page(*mut u8);

// SAFETY: the memory is the process's, and reached through the driver only.
unsafe impl Send for Page {}

fn failed(call: &str, code: Code) -> DriverError {
    DriverError::Failed { call: call.into(), reason: libraries::said(code) }
}

impl Real {
    /// The GPU with this number, with all kernels for activations of this type, which are kept in `cache`.
    pub fn open(ordinal: u32, precision: Precision, cache: &Path) -> Result<Self, DriverError> {
        libraries::driver()?;
        let devices = match cudarc::driver::result::init() {
            Ok(()) => CudaContext::device_count().map_err(|e| failed("cuDeviceGetCount", e))?,
            Err(Code(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => 0,
            Err(error) => return Err(DriverError::NoStart { reason: libraries::said(error) }),
        };
        if ordinal as i64 >= i64::from(devices) {
            return Err(DriverError::NoDevice { ordinal, found: devices as u32 });
        }
        libraries::toolkit()?;
        let context =
            CudaContext::new(ordinal as usize).map_err(|e| failed("cuDevicePrimaryCtxRetain", e))?;
        // SAFETY: nothing has been allocated yet; whoever uses several streams says what comes after what.
        unsafe { context.disable_event_tracking() };
        let asked = |what| context.attribute(what).map_err(|e| failed("cuDeviceGetAttribute", e));
        let capability = context.compute_capability().map_err(|e| failed("cuDeviceGetAttribute", e))?;
        let (free, memory) = context.mem_get_info().map_err(|e| failed("cuMemGetInfo", e))?;
        let facts = Facts {
            name: context.name().map_err(|e| failed("cuDeviceGetName", e))?,
            memory: memory as u64,
            free: free as u64,
            multiprocessors: asked(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            copy_engines: asked(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)? as u32,
            capability: (capability.0 as u32, capability.1 as u32),
        };
        // SAFETY: the device is the context's.
        unsafe { calls::keep_pool(context.cu_device()) }.map_err(|e| failed("cuMemPoolSetAttribute", e))?;
        let priorities = cudarc::driver::result::stream::get_priority_range();
        let priorities = priorities.map_err(|e| failed("cuCtxGetStreamPriorityRange", e))?;
        let own = Self {
            context,
            facts,
            priorities,
            streams: RwLock::default(),
            events: RwLock::default(),
            pinned: Mutex::default(),
            functions: RwLock::default(),
            cache: Cache::at(cache),
            products: Products::new()?,
            notes: Mutex::default(),
        };
        own.prepare(precision)?;
        Ok(own)
    }

    /// What was noticed when kernels were loaded, in sentences.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Page-locked memory at an address that is the host's and the device's alike, for what is tested rather than fast.
    /// [`unpin`](Driver::unpin) gives it back.
    pub fn shared(&self, bytes: u64) -> Result<(Pinned, *mut u8), DriverError> {
        let pinned = self.pin(bytes)?;
        Ok((pinned, self.page((pinned, 0), bytes)?))
    }

    fn load(&self, precision: Precision) -> Result<HashMap<String, CudaFunction>, DriverError> {
        let mut functions = HashMap::new();
        let architecture = format!("sm_{}{}", self.facts.capability.0, self.facts.capability.1);
        let headers: Vec<_> = HEADERS.iter().map(|header| (header.name, header.text)).collect();
        let real = format!("-DREAL={}", precision.name());
        let options: Vec<&str> = OPTIONS.split_whitespace().chain([real.as_str()]).collect();
        // SAFETY: the library is there.
        let version = unsafe { compile::version() }?;
        for source in FAMILIES {
            let unit = Unit { name: source.name, source: source.text, headers: &headers, options: &options };
            let key = unit.key(&architecture, version);
            let found = self.cache.get(&key);
            let note = |text| self.notes.lock().push(text);
            if let Found::Damaged(why) = found {
                note(format!("the compiled kernels of {} are made anew: {why}", unit.name));
            }
            let code = if let Found::Code(code) = found {
                code
            } else {
                // SAFETY: the library is there.
                let code = unsafe { compile::compile(&unit, &architecture) }?;
                if let Err(error) = self.cache.put(&key, &code) {
                    note(format!("the compiled kernels of {} are not kept: {error}", unit.name));
                }
                code
            };
            let module = self.context.load_module(Ptx::from_binary(code));
            let module = module.map_err(|e| failed("cuModuleLoadData", e))?;
            functions.extend(functions_of(source, &module)?);
        }
        Ok(functions)
    }

    fn new_event(&self, flags: sys::CUevent_flags) -> Result<Event, DriverError> {
        let event = self.context.new_event(Some(flags)).map_err(|e| failed("cuEventCreate", e))?;
        let mut events = self.events.write();
        events.push(event);
        Ok(Event(events.len() as u32 - 1))
    }

    /// Runs with a stream, and the context current.
    fn with<R>(
        &self,
        stream: Stream,
        call: &str,
        run: impl FnOnce(&Queue) -> Result<R, Code>,
    ) -> Result<R, DriverError> {
        self.context.bind_to_thread().map_err(|e| failed("cuCtxSetCurrent", e))?;
        let streams = self.streams.read();
        let queue =
            streams.get(stream.0 as usize).ok_or_else(|| DriverError::Misuse("no such stream".into()))?;
        run(queue).map_err(|e| failed(call, e))
    }

    /// Launches a kernel.
    ///
    /// # Safety
    /// Arguments are addresses of such as the kernel takes.
    unsafe fn run(
        &self,
        stream: Stream,
        name: &str,
        (precision, shape): (Precision, Shape),
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let functions = self.functions.read();
        let built = functions.get(&precision).ok_or(DriverError::NoPrecision(precision))?;
        let function = built.get(name).ok_or_else(|| DriverError::NoKernel(name.into()))?.cu_function();
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        self.with(stream, "cuLaunchKernel", |queue| {
            let stream = queue.stream.cu_stream();
            // SAFETY: the function's module lives as long as the driver. Arguments are as the caller says; they are read
            // before the call returns.
            unsafe {
                cudarc::driver::result::launch_kernel(
                    function,
                    (gx, gy, gz),
                    (bx, by, bz),
                    shape.shared,
                    stream,
                    arguments,
                )
            }
        })
    }

    /// Copies bytes from address to address, one of which is page-locked memory's, in one call.
    fn copy_all(&self, stream: Stream, copies: &[(u64, u64, u64)]) -> Result<(), DriverError> {
        if copies.is_empty() {
            return Ok(());
        }
        self.with(stream, "cuMemcpyBatchAsync", |queue| {
            let _region = Region::of(|| queue.name.lock().clone());
            // SAFETY: pages are as long, and the caller leaves them alone until the copies are done.
            unsafe { calls::copy_bytes(queue.stream.cu_stream(), copies, 0) }
        })
    }

    fn page(&self, (pinned, offset): (Pinned, u64), bytes: u64) -> Result<*mut u8, DriverError> {
        let pages = self.pinned.lock();
        let page = pages.get(&pinned.0);
        let page = page.filter(|(_, size)| offset.checked_add(bytes).is_some_and(|end| end <= *size));
        let (Page(start), _) = page.ok_or_else(|| DriverError::Misuse("beyond page-locked memory".into()))?;
        // SAFETY: within the page.
        Ok(unsafe { start.add(offset as usize) })
    }
}

/// The kernels of a source.
fn functions_of(
    source: &Source,
    module: &Arc<CudaModule>,
) -> Result<Vec<(String, CudaFunction)>, DriverError> {
    let function = |name: String| {
        let function = module.load_function(&name);
        let function = function.map_err(|e| failed(&format!("cuModuleGetFunction of `{name}`"), e))?;
        Ok((name, function))
    };
    let joined = source.joined().map(|name| format!("{name}{JOINED}"));
    source.kernels().map(str::to_owned).chain(joined).map(function).collect()
}

impl Driver for Real {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn prepare(&self, precision: Precision) -> Result<(), DriverError> {
        // Ranks of one device open it at the same time.
        let mut functions = self.functions.write();
        if let Entry::Vacant(none) = functions.entry(precision) {
            self.context.bind_to_thread().map_err(|e| failed("cuCtxSetCurrent", e))?;
            none.insert(self.load(precision)?);
        }
        Ok(())
    }

    fn stream(&self, priority: i32) -> Result<Stream, DriverError> {
        let (least, greatest) = self.priorities;
        let priority = (-priority).clamp(greatest.min(least), greatest.max(least));
        let stream = self.context.new_stream_with_priority(priority);
        let stream = stream.map_err(|e| failed("cuStreamCreateWithPriority", e))?;
        let mut streams = self.streams.write();
        streams.push(Queue { stream, workspace: Mutex::default(), name: Mutex::default() });
        Ok(Stream(streams.len() as u32 - 1))
    }

    fn event(&self) -> Result<Event, DriverError> {
        self.new_event(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn timer(&self) -> Result<Event, DriverError> {
        self.new_event(sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn elapsed(&self, from: Event, to: Event) -> Result<i64, DriverError> {
        let events = self.events.read();
        let ms = events[from.0 as usize].elapsed_ms(&events[to.0 as usize]);
        ms.map(|ms| (f64::from(ms) * 1e6) as i64).map_err(|e| failed("cuEventElapsedTime", e))
    }

    fn record(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let events = self.events.read();
        self.with(stream, "cuEventRecord", |queue| events[event.0 as usize].record(&queue.stream))
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<(), DriverError> {
        let events = self.events.read();
        self.with(stream, "cuStreamWaitEvent", |queue| queue.stream.wait(&events[event.0 as usize]))
    }

    fn has_come(&self, event: Event) -> Result<bool, DriverError> {
        let come = self.events.read()[event.0 as usize].try_is_complete();
        come.map_err(|e| failed("cuEventQuery", e))
    }

    fn allocate(&self, stream: Stream, bytes: u64) -> Result<Memory, DriverError> {
        let address = self.with(stream, "cuMemAllocAsync", |queue| {
            // SAFETY: the stream lives as long as the driver.
            unsafe { calls::allocate(queue.stream.cu_stream(), bytes.max(1) as usize) }
        });
        match address {
            Ok(address) => Ok(Memory { address, bytes }),
            Err(error) => match self.context.mem_get_info() {
                Ok((free, _)) if (free as u64) < bytes => {
                    Err(DriverError::NoMemory { bytes, free: free as u64 })
                }
                _ => Err(error),
            },
        }
    }

    fn release(&self, stream: Stream, memory: Memory) -> Result<(), DriverError> {
        self.with(stream, "cuMemFreeAsync", |queue| {
            // SAFETY: memory comes from `allocate`, and whoever has it gives it back once.
            unsafe { calls::release(queue.stream.cu_stream(), memory.address) }
        })
    }

    fn pin(&self, bytes: u64) -> Result<Pinned, DriverError> {
        self.context.bind_to_thread().map_err(|e| failed("cuCtxSetCurrent", e))?;
        // SAFETY: the context is current.
        let start = unsafe { calls::pin(bytes.max(1) as usize) }.map_err(|e| failed("cuMemHostAlloc", e))?;
        // SAFETY: as many bytes were just allocated. From now on all of them are defined, whoever reads them.
        unsafe { start.cast::<u8>().write_bytes(0, bytes as usize) };
        let mut pages = self.pinned.lock();
        let number = (0..=u32::MAX).find(|n| !pages.contains_key(n)).unwrap_or(u32::MAX);
        pages.insert(number, (Page(start.cast()), bytes));
        Ok(Pinned(number))
    }

    fn unpin(&self, pinned: Pinned) -> Result<(), DriverError> {
        let Some((Page(start), _)) = self.pinned.lock().remove(&pinned.0) else { return Ok(()) };
        self.context.bind_to_thread().map_err(|e| failed("cuCtxSetCurrent", e))?;
        // SAFETY: it comes from `pin`, is known no longer, and the caller says that nothing uses it.
        unsafe { calls::unpin(start.cast()) }.map_err(|e| failed("cuMemFreeHost", e))
    }

    fn read(&self, pinned: Pinned, offset: u64, to: &mut [u8]) -> Result<(), DriverError> {
        let from = self.page((pinned, offset), to.len() as u64)?;
        // SAFETY: within the page, and the caller says that no copy to it is under way.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    fn write(&self, pinned: Pinned, offset: u64, from: &[u8]) -> Result<(), DriverError> {
        let to = self.page((pinned, offset), from.len() as u64)?;
        // SAFETY: within the page, and the caller says that no copy is at it.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    fn upload(&self, stream: Stream, from: (Pinned, u64), to: Area) -> Result<(), DriverError> {
        let (page, packed) = (self.page(from, to.bytes())?, Area { pitch: to.width, ..to });
        let (from, side) = (Side::Host(page.cast::<c_void>()), Side::Device(to.address));
        self.with(stream, "cuMemcpy2DAsync", |queue| {
            let _region = Region::of(|| queue.name.lock().clone());
            // SAFETY: the page is as long; the caller leaves it alone until the copy is done.
            unsafe { calls::copy_rows(queue.stream.cu_stream(), from, side, &packed, &to) }
        })
    }

    fn download(&self, stream: Stream, from: Area, to: (Pinned, u64)) -> Result<(), DriverError> {
        let (page, packed) = (self.page(to, from.bytes())?, Area { pitch: from.width, ..from });
        let (side, to) = (Side::Device(from.address), Side::Host(page.cast::<c_void>()));
        self.with(stream, "cuMemcpy2DAsync", |queue| {
            let _region = Region::of(|| queue.name.lock().clone());
            // SAFETY: the page is as long; the caller leaves it alone until the copy is done.
            unsafe { calls::copy_rows(queue.stream.cu_stream(), side, to, &from, &packed) }
        })
    }

    fn copy(&self, stream: Stream, copies: &[(Area, Area)]) -> Result<(), DriverError> {
        copies.iter().try_for_each(|(from, to)| same_shape(*from, *to))?;
        let copies: Vec<_> = copies.iter().copied().filter(|(from, _)| !from.is_empty()).collect();
        self.with(stream, "cuMemcpyBatchAsync", |queue| {
            let _region = Region::of(|| queue.name.lock().clone());
            // SAFETY: the stream lives as long as the driver, and areas are the device's.
            unsafe { calls::copy_areas(queue.stream.cu_stream(), &copies) }
        })
    }

    fn fill(&self, stream: Stream, area: Area, byte: u8) -> Result<(), DriverError> {
        if area.is_empty() {
            return Ok(());
        }
        self.with(stream, "cuMemsetD2D8Async", |queue| {
            // SAFETY: the stream lives as long as the driver.
            unsafe { calls::fill(queue.stream.cu_stream(), area, byte) }
        })
    }

    fn launch(&self, stream: Stream, launch: &Launch<'_>) -> Result<(), DriverError> {
        let (name, shape) = (launch.call.kernel.name, launch.call.shape);
        if shape.is_empty() {
            return Ok(());
        }
        let build = (launch.call.precision, shape);
        // SAFETY: arguments are as the catalogue says, which is held against the source.
        launch.call.with_arguments(|arguments| unsafe { self.run(stream, name, build, arguments) })
    }

    fn launch_joined(&self, stream: Stream, launches: &[(Launch<'_>, &str)]) -> Result<(), DriverError> {
        let there = launches.iter().filter(|(launch, _)| !launch.call.shape.is_empty());
        let calls: Vec<_> = there.map(|(launch, _)| launch.call).collect();
        if calls.is_empty() {
            return Ok(());
        }
        let unlike = || DriverError::Misuse("launches as one that are not alike".into());
        let joined = Joined::of(calls).ok_or_else(unlike)?;
        let mut arguments = [joined.words().as_ptr().cast_mut().cast()];
        let (name, build) = (joined.kernel.joined_name(), (joined.precision, joined.shape));
        // SAFETY: the kernel takes as many words, by value: the catalogue is held against the source.
        unsafe { self.run(stream, &name, build, &mut arguments) }
    }

    fn upload_all(&self, stream: Stream, copies: &[((Pinned, u64), Area)]) -> Result<(), DriverError> {
        let piece = |(from, to): &((Pinned, u64), Area)| {
            let page = self.page(*from, to.bytes())?;
            Ok(to.joined()).map(|to| (page as u64, to))
        };
        let pieces = copies.iter().map(piece).collect::<Result<Vec<_>, DriverError>>()?;
        if pieces.iter().any(|(_, to)| to.rows > 1) {
            return copies.iter().try_for_each(|(from, to)| self.upload(stream, *from, *to));
        }
        let all = pieces.iter().map(|(from, to)| (*from, to.address, to.bytes()));
        self.copy_all(stream, &all.filter(|(.., bytes)| *bytes > 0).collect::<Vec<_>>())
    }

    fn download_all(&self, stream: Stream, copies: &[(Area, (Pinned, u64))]) -> Result<(), DriverError> {
        let piece = |(from, to): &(Area, (Pinned, u64))| {
            let page = self.page(*to, from.bytes())?;
            Ok(from.joined()).map(|from| (from, page as u64))
        };
        let pieces = copies.iter().map(piece).collect::<Result<Vec<_>, DriverError>>()?;
        if pieces.iter().any(|(from, _)| from.rows > 1) {
            return copies.iter().try_for_each(|(from, to)| self.download(stream, *from, *to));
        }
        let all = pieces.iter().map(|(from, to)| (from.address, *to, from.bytes()));
        self.copy_all(stream, &all.filter(|(.., bytes)| *bytes > 0).collect::<Vec<_>>())
    }

    fn product(&self, stream: Stream, product: &Product) -> Result<(), DriverError> {
        let mut outcome = Ok(());
        self.with(stream, "cuMemAllocAsync", |queue| {
            let own = queue.stream.cu_stream();
            let mut workspace = queue.workspace.lock();
            let at = match *workspace {
                Some(at) => at,
                // SAFETY: the stream lives as long as the driver.
                None => *workspace.insert(unsafe { calls::allocate(own, WORKSPACE as usize) }?),
            };
            // SAFETY: the context is current, the stream its own, and so is the stream's workspace.
            outcome = unsafe { self.products.enqueue(product, at, own) };
            Ok(())
        })?;
        outcome
    }

    fn write_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.with(stream, "cuStreamWriteValue32", |queue| {
            // SAFETY: the stream lives, and memory begins at a multiple of 256.
            unsafe { calls::write_value(queue.stream.cu_stream(), at.address, value) }
        })
    }

    fn wait_value(&self, stream: Stream, at: Memory, value: u32) -> Result<(), DriverError> {
        self.with(stream, "cuStreamWaitValue32", |queue| {
            // SAFETY: the stream lives, and memory begins at a multiple of 256.
            unsafe { calls::wait_value(queue.stream.cu_stream(), at.address, value) }
        })
    }

    fn name(&self, stream: Stream, what: &str) {
        if let Some(queue) = self.streams.read().get(stream.0 as usize).filter(|_| watch::is_on()) {
            *queue.name.lock() = Some(what.to_owned());
        }
    }

    fn watch_copies(&self) -> Result<(), DriverError> {
        watch::begin()
    }

    fn copies(&self) -> Result<Vec<Copies>, DriverError> {
        watch::end()
    }

    fn synchronize(&self, stream: Stream) -> Result<(), DriverError> {
        self.with(stream, "cuStreamSynchronize", |queue| queue.stream.synchronize())
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // Of a context that is lost nothing can be given back.
        let _ = self.context.synchronize();
        let pages: Vec<u32> = self.pinned.lock().keys().copied().collect();
        for page in pages {
            let _ = self.unpin(Pinned(page));
        }
    }
}
