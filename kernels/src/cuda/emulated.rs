//! Kernels on the CPU: their sources compiled as C++ against an emulation of CUDA's execution model.
//!
//! What a library is built from decides its name (a digest of the sources, the options and the compiler), so it is
//! built once and found again by every later process that names the same folder. Each family is an object of its own: a change
//! to one compiles one. Files end with a digest, and one that is not whole is built anew.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use sha2::{Digest as _, Sha256};

use super::joined::Joined;
use super::sources::{EMULATION, FAMILIES, HEADERS, JOINED, Precision, Source};
use super::{Call, Shape};

/// Why kernels cannot be emulated, or what one did that CUDA does not allow.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmulationError {
    /// A file or folder.
    #[error("{path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        error: std::io::Error,
    },
    /// There is no C++ compiler.
    #[error("{compiler}, which compiles the emulated kernels, cannot be run: {error}")]
    NoCompiler {
        /// Its name.
        compiler: String,
        /// What is wrong.
        error: std::io::Error,
    },
    /// It does not compile.
    #[error("{source_name} does not compile:\n{said}")]
    Compile {
        /// Which source.
        source_name: String,
        /// What the compiler says.
        said: String,
    },
    /// The library cannot be loaded.
    #[error("{path} cannot be loaded: {said}")]
    Load {
        /// Where it is.
        path: PathBuf,
        /// What the loader says.
        said: String,
    },
    /// No kernel has this name.
    #[error("there is no kernel {0}")]
    NoKernel(String),
    /// Another number of arguments than the kernel has.
    #[error("kernel {name} takes {takes} arguments, not {given}")]
    Arguments {
        /// Which kernel.
        name: String,
        /// How many it takes.
        takes: usize,
        /// How many there are.
        given: usize,
    },
    /// A launch that CUDA does not allow, or leaves undefined.
    #[error("{0}")]
    Launch(String),
}

/// How the library is compiled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// What activations are.
    pub precision: Precision,
    /// With the address and undefined-behaviour sanitizers. The process must have started with the address
    /// sanitizer's library (`LD_PRELOAD`).
    pub sanitized: bool,
}

type Find = unsafe extern "C" fn(*const c_char) -> *const c_void;
type Arguments = unsafe extern "C" fn(*const c_void) -> *const c_char;
type Name = unsafe extern "C" fn(usize) -> *const c_char;
type Launch = unsafe extern "C" fn(
    *const c_void,
    *const u32,
    *const u32,
    usize,
    *mut *mut c_void,
    u64,
    *mut c_char,
    usize,
) -> c_int;

/// A kernel of the library.
#[derive(Debug)]
struct Known {
    handle: *const c_void,
    arguments: Vec<String>,
}

/// Emulated kernels. Launches run to their end in the thread that asks for them; several threads may launch at once.
#[derive(Debug)]
pub struct Emulation {
    precision: Precision,
    launch: Launch,
    kernels: BTreeMap<String, Known>,
    launches: AtomicU64,
}

// SAFETY: handles are addresses of constants of a library that is never unloaded, and the library keeps what a launch needs
// for each thread.
unsafe impl Send for Emulation {}
// SAFETY: as above.
unsafe impl Sync for Emulation {}

impl Emulation {
    /// The library for these options, built in `folder` if it is not there. One process loads each once.
    pub fn load(build: Build, folder: &Path) -> Result<Arc<Self>, EmulationError> {
        type Loaded = BTreeMap<(PathBuf, Build), Arc<Emulation>>;
        static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
        let loaded = LOADED.get_or_init(Mutex::default);
        // Also keeps two threads from building the same.
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(emulation) = loaded.get(&(folder.to_owned(), build)) {
            return Ok(emulation.clone());
        }
        let emulation = Arc::new(Self::open(build.precision, &compile(build, folder)?)?);
        loaded.insert((folder.to_owned(), build), emulation.clone());
        Ok(emulation)
    }

    fn open(precision: Precision, path: &Path) -> Result<Self, EmulationError> {
        let said = || {
            // SAFETY: the loader's message, if there is one, is text that lives until its next call.
            let said = unsafe { libc::dlerror() };
            let said = if said.is_null() {
                "for no reason that is given".to_owned()
            } else {
                // SAFETY: as above.
                unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned()
            };
            EmulationError::Load { path: path.to_owned(), said }
        };
        let name = c_text(&path.to_string_lossy());
        // SAFETY: what runs when the library is loaded only lists its kernels.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(said());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is open and stays so.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(said()) } else { Ok(found) }
        };
        // SAFETY: `emulate.cpp` defines these functions with these types.
        let (find, arguments, name, launch) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Find>(symbol(c"emulate_find")?),
                std::mem::transmute::<*mut c_void, Arguments>(symbol(c"emulate_arguments")?),
                std::mem::transmute::<*mut c_void, Name>(symbol(c"emulate_name")?),
                std::mem::transmute::<*mut c_void, Launch>(symbol(c"emulate_launch")?),
            )
        };
        let mut kernels = BTreeMap::new();
        for number in 0.. {
            // SAFETY: the functions take any number and the names that they give, and return texts that stay.
            unsafe {
                let name = name(number);
                if name.is_null() {
                    break;
                }
                let handle = find(name);
                let types = CStr::from_ptr(arguments(handle)).to_string_lossy();
                let arguments = types.split_terminator(',').map(str::to_owned).collect();
                kernels
                    .insert(CStr::from_ptr(name).to_string_lossy().into_owned(), Known { handle, arguments });
            }
        }
        Ok(Emulation { precision, launch, kernels, launches: AtomicU64::new(0) })
    }

    /// What activations are.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The order of threads and blocks and the garbage in shared memory are drawn from a seed and the number of the launch
    /// since this was called.
    pub fn set_seed(&self, seed: u64) {
        self.launches.store(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
    }

    /// All kernels with the types of their arguments.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.kernels.iter().map(|(name, known)| (name.as_str(), known.arguments.as_slice()))
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// `args` are addresses of the kernel's arguments, of their types, and what is addressed by these is there, as
    /// the kernel's description demands. Nobody else uses what it writes.
    pub unsafe fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &mut [*mut c_void],
    ) -> Result<(), EmulationError> {
        let known = self.kernels.get(name).ok_or_else(|| EmulationError::NoKernel(name.to_owned()))?;
        if known.arguments.len() != args.len() {
            let takes = known.arguments.len();
            return Err(EmulationError::Arguments { name: name.to_owned(), takes, given: args.len() });
        }
        let seed = self.launches.fetch_add(1, Ordering::Relaxed);
        let mut error = [0 as c_char; 512];
        // SAFETY: the caller's; `error` has room for as many bytes as are said.
        unsafe {
            let result = (self.launch)(
                known.handle,
                grid.as_ptr(),
                block.as_ptr(),
                shared as usize,
                args.as_mut_ptr(),
                seed,
                error.as_mut_ptr(),
                error.len(),
            );
            if result == 0 {
                return Ok(());
            }
            Err(EmulationError::Launch(CStr::from_ptr(error.as_ptr()).to_string_lossy().into_owned()))
        }
    }

    /// Runs a call to its end; nothing if there is nothing to do.
    ///
    /// # Safety
    /// What the call's arguments address is there, as the kernel's description demands, and nobody else uses what it
    /// writes.
    pub unsafe fn run(&self, call: &Call) -> Result<(), EmulationError> {
        if call.shape.is_empty() {
            return Ok(());
        }
        let Shape { grid, block, shared } = call.shape;
        // SAFETY: the catalogue's types are those of the sources (held by a test); the rest is the caller's.
        call.with_arguments(|args| unsafe { self.launch(call.kernel.name, grid, block, shared, args) })
    }

    /// Runs several launches as one, to its end; nothing if there is nothing to do.
    ///
    /// # Safety
    /// As of [`run`](Self::run), for each of them; none uses what another writes.
    pub unsafe fn run_joined(&self, joined: &Joined) -> Result<(), EmulationError> {
        if joined.shape.is_empty() {
            return Ok(());
        }
        let Shape { grid, block, shared } = joined.shape;
        let mut arguments = [joined.words().as_ptr().cast_mut().cast()];
        // SAFETY: the kernel reads as many words as there are (held by a test); the rest is the caller's.
        unsafe { self.launch(&joined.kernel.joined_name(), grid, block, shared, &mut arguments) }
    }
}

fn c_text(text: &str) -> CString {
    // A path has no zero byte; were there one, the file would not be found.
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

const COMPILER: &str = "g++";

fn options(build: Build) -> Vec<String> {
    // Products are fused only where a kernel says so, as on a device.
    let mut options: Vec<String> = ["-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden"]
        .into_iter()
        .chain(["-fno-strict-aliasing", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"])
        .chain(["-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-maybe-uninitialized"])
        .map(str::to_owned)
        .collect();
    options.push(format!("-DREAL={}", build.precision));
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        options.extend(["-mavx2", "-mfma"].map(str::to_owned));
    }
    if build.sanitized {
        options.extend(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"].map(str::to_owned));
        options.push("-fno-omit-frame-pointer".to_owned());
    }
    options
}

fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut sha = Sha256::new();
    for text in texts {
        // Lengths, so that two texts are not taken for one.
        sha.update((text.len() as u64).to_le_bytes());
        sha.update(text.as_bytes());
    }
    sha.finalize()[..12].iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Compiles what is not there, and returns the library's path.
fn compile(build: Build, folder: &Path) -> Result<PathBuf, EmulationError> {
    let options = options(build);
    let version = said_by(Command::new(COMPILER).arg("-v"), COMPILER)?;
    let texts = |sources: &[Source]| sources.iter().flat_map(|s| [s.name, s.text]).collect::<Vec<_>>();
    let mut common: Vec<&str> = options.iter().map(String::as_str).chain([version.as_str()]).collect();
    common.extend(texts(HEADERS));
    common.extend(texts(EMULATION));
    let all = digest(common.iter().copied().chain(texts(FAMILIES)));
    let library = folder.join(format!("kernels-{all}.so"));
    if is_whole(&library) {
        return Ok(library);
    }
    // In a folder of this process's own, because another may be building the same.
    let sources = folder.join(format!("sources-{all}.{}", std::process::id()));
    for source in HEADERS.iter().chain(FAMILIES).chain(EMULATION) {
        write(&sources.join(source.name), source.text)?;
    }
    let mut objects = vec![];
    let mut failures = vec![];
    std::thread::scope(|scope| {
        let mut running = vec![];
        for source in FAMILIES.iter().chain(EMULATION.iter().filter(|s| !s.is_header())) {
            let own = digest(common.iter().copied().chain([source.name, source.text]));
            let stem = source.name.rsplit('/').next().unwrap_or(source.name);
            let object = folder.join(format!("{stem}-{own}.o"));
            objects.push(object.clone());
            if is_whole(&object) {
                continue;
            }
            let (sources, options) = (&sources, &options);
            running.push(scope.spawn(move || object_of(*source, sources, options, &object)));
        }
        for one in running {
            match one.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failures.push(error),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    if let Some(failure) = failures.into_iter().next() {
        return Err(failure);
    }
    into_place(&library, |target| {
        let mut command = Command::new(COMPILER);
        command.args(&options).arg("-shared").arg("-Wl,-Bsymbolic").args(&objects).arg("-o").arg(target);
        said_by(&mut command, "the library")
    })?;
    // Were it left there, it would do no harm.
    let _ = std::fs::remove_dir_all(&sources);
    Ok(library)
}

/// Compiles one source, with the names of its kernels.
fn object_of(
    source: Source,
    sources: &Path,
    options: &[String],
    object: &Path,
) -> Result<(), EmulationError> {
    let file = if source.kernels().next().is_some() {
        let mut text = format!("#include \"{}\"\n", source.name);
        for kernel in source.kernels() {
            let _ = writeln!(text, "EMULATE_REGISTER({kernel});");
        }
        for kernel in source.joined() {
            let _ = writeln!(text, "EMULATE_REGISTER({kernel}{JOINED});");
        }
        let file = sources.join(format!("{}.cpp", source.name));
        write(&file, &text)?;
        file
    } else {
        sources.join(source.name)
    };
    into_place(object, |target| {
        let mut command = Command::new(COMPILER);
        command.args(options).arg("-I").arg(sources).arg("-c").arg(file).arg("-o").arg(target);
        said_by(&mut command, source.name)
    })
}

/// Makes a file under another name first, so that nobody finds half of it.
fn into_place(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<String, EmulationError>,
) -> Result<(), EmulationError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let beside = path.with_extension(format!("{}.{extension}", std::process::id()));
    make(&beside)?;
    let placed = seal(&beside).and_then(|()| std::fs::rename(&beside, path));
    placed.map_err(|error| EmulationError::File { path: path.to_owned(), error })
}

/// Before the digest at the end of a file.
const SEAL: &[u8; 8] = b"fs-whole";

/// Ends a file with its digest. Linkers and loaders find what is in it from its beginning, and pass over what follows.
fn seal(path: &Path) -> std::io::Result<()> {
    let digest = Sha256::digest(std::fs::read(path)?);
    let mut file = std::fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(SEAL)?;
    file.write_all(&digest)
}

/// Whether a file is there, and as it was made. Loading one that was cut off can end the process.
fn is_whole(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    let Some((rest, digest)) = bytes.split_last_chunk::<32>() else { return false };
    rest.strip_suffix(SEAL).is_some_and(|made| Sha256::digest(made)[..] == digest[..])
}

fn write(path: &Path, text: &str) -> Result<(), EmulationError> {
    let failed = |error| EmulationError::File { path: path.to_owned(), error };
    std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    std::fs::write(path, text).map_err(failed)
}

/// What a command says.
fn said_by(command: &mut Command, source_name: &str) -> Result<String, EmulationError> {
    let output = command
        .output()
        .map_err(|error| EmulationError::NoCompiler { compiler: COMPILER.to_owned(), error })?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    Err(EmulationError::Compile { source_name: source_name.to_owned(), said })
}
