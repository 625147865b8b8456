//! CUDA's libraries: whether they are there and have what is called, and what they say of errors.
//!
//! cudarc ends the process at the first call of a library that is missing, or of a function that a library lacks. So all
//! are looked for before any is called.

use cudarc::driver::result::DriverError as Code;
use cudarc::driver::sys;

use super::super::DriverError;
use super::{calls, failed};

/// The least driver, as it tells its version: it must take the code of this release's compiler.
const DRIVER: i32 = 13_000;

const TOOLKIT: &str = "install the CUDA 13 toolkit, or put its libraries into LD_LIBRARY_PATH";

/// What tells which driver it is, and why it does not.
const VERSION: [&str; 2] = ["cuDriverGetVersion", "cuGetErrorString"];

/// Functions of CUDA's libraries that this crate calls, or cudarc for it.
pub const FUNCTIONS: &[&str] = &[
    "cuCtxDestroy_v2",
    "cuCtxGetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDefaultMemPool",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemPoolSetAttribute",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyBatchAsync_v2",
    "cuMemsetD2D8Async",
    "cuModuleGetFunction",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cuptiActivityEnable",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord",
    "cuptiActivityGetNumDroppedRecords",
    "cuptiActivityPopExternalCorrelationId",
    "cuptiActivityPushExternalCorrelationId",
    "cuptiActivityRegisterCallbacks",
    "cuptiGetResultString",
    "cuptiGetVersion",
    "nvrtcCompileProgram",
    "nvrtcCreateProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetCUBIN",
    "nvrtcGetCUBINSize",
    "nvrtcGetProgramLog",
    "nvrtcGetProgramLogSize",
    "nvrtcVersion",
];

type Function = unsafe extern "C" fn();

/// Looks for functions of a library by its loaded handle, which all of cudarc's modules give in the same way.
macro_rules! functions {
    ($module:path, $library:literal, $hint:expr, $names:expr) => {{
        use $module as own;
        for name in $names {
            // SAFETY: the library is there. What is found is not called, and its type is that of any function.
            if unsafe { own::culib().get::<Function>(name.as_bytes()) }.is_err() {
                let function = name.to_owned();
                return Err(DriverError::NoFunction { library: $library, function, hint: $hint });
            }
        }
    }};
}

fn named(prefix: &'static str) -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().copied().filter(move |name| name.starts_with(prefix))
}

/// Whether there is a driver that will do, with all that is called.
pub(super) fn driver() -> Result<(), DriverError> {
    const AGAIN: &str = "install the NVIDIA driver again";
    // SAFETY: probing loads a library and lets it go.
    if !unsafe { sys::is_culib_present() } {
        let hint = "no NVIDIA driver is installed here; `--backend cpu` needs none";
        return Err(DriverError::NoLibrary { library: "libcuda.so", hint });
    }
    // An old one lacks functions, too, and should be told by its age.
    functions!(cudarc::driver::sys, "libcuda.so", AGAIN, VERSION);
    // SAFETY: the library is there, and has what is called.
    let found = unsafe { calls::driver_version() }.map_err(|e| failed("cuDriverGetVersion", e))?;
    if found < DRIVER {
        return Err(DriverError::OldDriver { found, needed: DRIVER });
    }
    let others = named("cu").filter(|name| !name.starts_with("cublas") && !name.starts_with("cupti"));
    functions!(cudarc::driver::sys, "libcuda.so", AGAIN, others);
    Ok(())
}

/// Whether the libraries of the toolkit are there.
pub(super) fn toolkit() -> Result<(), DriverError> {
    // SAFETY: probing loads a library and lets it go.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(DriverError::NoLibrary { library: "libnvrtc.so", hint: TOOLKIT });
    }
    functions!(cudarc::nvrtc::sys, "libnvrtc.so", TOOLKIT, named("nvrtc"));
    // SAFETY: as above.
    if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
        return Err(DriverError::NoLibrary { library: "libcublasLt.so", hint: TOOLKIT });
    }
    functions!(cudarc::cublaslt::sys, "libcublasLt.so", TOOLKIT, named("cublasLt"));
    Ok(())
}

/// Whether what watches copies is there.
pub(super) fn profiler() -> Result<(), DriverError> {
    const HINT: &str = "it comes with the CUDA 13 toolkit (extras/CUPTI/lib64); put it into LD_LIBRARY_PATH, or run without `--copies`";
    // SAFETY: probing loads a library and lets it go.
    if !unsafe { cudarc::cupti::sys::is_culib_present() } {
        return Err(DriverError::NoLibrary { library: "libcupti.so", hint: HINT });
    }
    functions!(cudarc::cupti::sys, "libcupti.so", HINT, named("cupti"));
    Ok(())
}

/// What the driver says of an error, and its name.
pub(super) fn said(code: Code) -> String {
    let Code(name) = code;
    match code.error_string() {
        Ok(text) => format!("{} ({name:?})", text.to_string_lossy()),
        Err(_) => format!("{name:?}"),
    }
}
