//! Calls of CUDA that cudarc has only as they are: each with what whoever calls it must see to.
//!
//! All of them want the context of their handles to be current on the calling thread; [`Real`](super::Real) sees to that.
//! Addresses are the device's: one that is wrong fails the context, and harms nothing of the host.

use std::ffi::c_void;

use cudarc::driver::result::DriverError as Code;
use cudarc::driver::sys;

use super::super::Area;

/// The version of the driver, as it tells it.
///
/// # Safety
/// The driver's library is there.
pub(super) unsafe fn driver_version() -> Result<i32, Code> {
    let mut version = 0;
    // SAFETY: the caller has found the library.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(version)
}

/// Copies areas of the device, of one shape each: all in one call if they are rows without gaps.
///
/// # Safety
/// The stream lives. Both sides are device memory.
pub(super) unsafe fn copy_areas(stream: sys::CUstream, copies: &[(Area, Area)]) -> Result<(), Code> {
    let mut pieces = Vec::with_capacity(copies.len());
    for (source, target) in copies {
        let flat = |area: &Area| area.rows == 1 || area.pitch == area.width;
        if flat(source) && flat(target) {
            pieces.push((source.address, target.address, source.bytes()));
        } else {
            // SAFETY: as of this function.
            unsafe {
                copy_rows(stream, Side::Device(source.address), Side::Device(target.address), source, target)
            }?;
        }
    }
    if pieces.is_empty() {
        return Ok(());
    }
    // Between two places of one device a copy is multiprocessors' work unless it is asked to run beside theirs.
    let overlap = sys::CUmemcpyFlags_enum::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as u32;
    // SAFETY: as of this function.
    unsafe { copy_bytes(stream, &pieces, overlap) }
}

/// Copies so many bytes from one address to another, in one call; there is at least one.
///
/// # Safety
/// The stream lives. Addresses are those of device memory, or of page-locked memory that nobody touches until the copies are
/// done.
pub(super) unsafe fn copy_bytes(
    stream: sys::CUstream,
    copies: &[(u64, u64, u64)],
    flags: u32,
) -> Result<(), Code> {
    let mut to: Vec<_> = copies.iter().map(|(_, to, _)| *to).collect();
    let mut from: Vec<_> = copies.iter().map(|(from, ..)| *from).collect();
    let mut sizes: Vec<_> = copies.iter().map(|(.., bytes)| *bytes as usize).collect();
    let location = sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
    let mut attributes = sys::CUmemcpyAttributes {
        srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: location,
        dstLocHint: location,
        flags,
    };
    let mut first = 0;
    // SAFETY: three lists of one length, one attribute that holds from the first copy on; the driver reads them before it
    // returns.
    unsafe {
        sys::cuMemcpyBatchAsync_v2(
            to.as_mut_ptr(),
            from.as_mut_ptr(),
            sizes.as_mut_ptr(),
            sizes.len(),
            &raw mut attributes,
            &raw mut first,
            1,
            stream,
        )
    }
    .result()
}

/// One side of a copy.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Device(u64),
    Host(*mut c_void),
}

/// Copies rows; what lies on the host is packed.
///
/// # Safety
/// The stream lives. What lies on the host is page-locked, is as long as the copy, and nobody touches it until the copy
/// is done.
pub(super) unsafe fn copy_rows(
    stream: sys::CUstream,
    from: Side,
    to: Side,
    source: &Area,
    target: &Area,
) -> Result<(), Code> {
    let parts = |side: Side| match side {
        Side::Device(address) => (sys::CUmemorytype::CU_MEMORYTYPE_DEVICE, std::ptr::null_mut(), address),
        Side::Host(pointer) => (sys::CUmemorytype::CU_MEMORYTYPE_HOST, pointer, 0),
    };
    let ((from_type, from_host, from_device), (to_type, to_host, to_device)) = (parts(from), parts(to));
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from_type,
        srcHost: from_host,
        srcDevice: from_device,
        srcArray: std::ptr::null_mut(),
        srcPitch: source.pitch as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to_type,
        dstHost: to_host,
        dstDevice: to_device,
        dstArray: std::ptr::null_mut(),
        dstPitch: target.pitch as usize,
        WidthInBytes: source.width as usize,
        Height: source.rows as usize,
    };
    // SAFETY: as of this function; the description is read before it returns.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream) }.result()
}

/// Sets all bytes of an area.
///
/// # Safety
/// The stream lives.
pub(super) unsafe fn fill(stream: sys::CUstream, area: Area, byte: u8) -> Result<(), Code> {
    let (width, rows) = (area.width as usize, area.rows as usize);
    // SAFETY: as of this function.
    unsafe { sys::cuMemsetD2D8Async(area.address, area.pitch as usize, byte, width, rows, stream) }.result()
}

/// Writes a number when the stream comes to it.
///
/// # Safety
/// The stream lives; the address is a multiple of 4.
pub(super) unsafe fn write_value(stream: sys::CUstream, at: u64, value: u32) -> Result<(), Code> {
    // SAFETY: as of this function. Without flags the write comes after all work before it, for all who see it.
    unsafe { sys::cuStreamWriteValue32_v2(stream, at, value, 0) }.result()
}

/// Holds the stream until the number there is at least this one, cyclically.
///
/// # Safety
/// The stream lives; the address is a multiple of 4. Somebody writes the number, or the stream never goes on.
pub(super) unsafe fn wait_value(stream: sys::CUstream, at: u64, value: u32) -> Result<(), Code> {
    let at_least = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: as of this function.
    unsafe { sys::cuStreamWaitValue32_v2(stream, at, value, at_least) }.result()
}

/// Memory for work of the stream from now on.
///
/// # Safety
/// The stream lives.
pub(super) unsafe fn allocate(stream: sys::CUstream, bytes: usize) -> Result<u64, Code> {
    // SAFETY: as of this function.
    unsafe { cudarc::driver::result::malloc_async(stream, bytes) }
}

/// Gives memory back when the stream comes to it.
///
/// # Safety
/// It came from [`allocate`] and is given back once.
pub(super) unsafe fn release(stream: sys::CUstream, address: u64) -> Result<(), Code> {
    // SAFETY: as of this function.
    unsafe { cudarc::driver::result::free_async(address, stream) }
}

/// Keeps what is given back in the device's pool: the next one who asks has it at once.
///
/// # Safety
/// The device is one of the driver's, and has pools.
pub(super) unsafe fn keep_pool(device: sys::CUdevice) -> Result<(), Code> {
    let mut keep = u64::MAX;
    let what = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a number of 64 bits, read before the call returns.
    unsafe {
        let pool = cudarc::driver::result::device::get_default_mem_pool(device)?;
        sys::cuMemPoolSetAttribute(pool, what, (&raw mut keep).cast()).result()
    }
}

/// Page-locked memory, cached by the host, for all contexts.
///
/// # Safety
/// A context is current.
pub(super) unsafe fn pin(bytes: usize) -> Result<*mut c_void, Code> {
    // Without the flag for write-combined memory, which the host would read a byte at a time.
    // SAFETY: as of this function.
    unsafe { cudarc::driver::result::malloc_host(bytes, sys::CU_MEMHOSTALLOC_PORTABLE) }
}

/// Gives it back.
///
/// # Safety
/// It came from [`pin`], is given back once, and no copy is at it.
pub(super) unsafe fn unpin(pointer: *mut c_void) -> Result<(), Code> {
    // SAFETY: as of this function.
    unsafe { cudarc::driver::result::free_host(pointer) }
}
