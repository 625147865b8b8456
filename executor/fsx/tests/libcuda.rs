//! `fsx run --backend cuda` with drivers that are not whole or do not start: stand-ins for them, which g++ builds.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use common::ranking;
use fs_kernels::cuda::driver::real::FUNCTIONS;
use tempfile::TempDir;

/// Functions of the driver's library.
fn of_the_driver() -> impl Iterator<Item = &'static str> {
    let others = ["cublas", "cupti"];
    FUNCTIONS.iter().copied().filter(move |f| f.starts_with("cu") && !others.iter().any(|o| f.starts_with(o)))
}

/// A driver that tells this version and has these functions, of which `cuInit` fails with a code.
fn driver(version: i32, functions: impl Iterator<Item = &'static str>, code: i32) -> Option<TempDir> {
    if Command::new("g++").arg("--version").output().is_err() {
        eprintln!("skipped: g++ is not installed, and builds the drivers that are not whole");
        return None;
    }
    let mut source = String::from("extern \"C\" {\n");
    for function in functions {
        let body = match function {
            "cuDriverGetVersion" => format!("(int* v) {{ *v = {version}; return 0; }}"),
            "cuGetErrorString" => "(int, const char** t) { *t = \"a reason\"; return 0; }".into(),
            _ => format!("() {{ return {code}; }}"),
        };
        writeln!(source, "int {function}{body}").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let (text, library) = (folder.path().join("driver.cpp"), folder.path().join("libcuda.so"));
    fs::write(&text, source + "}\n").unwrap();
    let built =
        Command::new("g++").args(["-shared", "-fPIC", "-o"]).args([&library, &text]).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(folder)
}

/// What a run says that finds this driver first.
fn said(driver: &TempDir) -> String {
    let schedule = driver.path().join("s.json");
    common::write(&schedule, &ranking(12, true));
    let run = Command::new(env!("CARGO_BIN_EXE_fsx"))
        .args(["run", "--backend", "cuda", "--steps", "1"])
        .arg(&schedule)
        .env("LD_LIBRARY_PATH", driver.path())
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("error:").count(), 1, "{said}");
    assert!(!said.contains("panicked") && !said.contains("DriverError"), "{said}");
    said
}

#[test]
fn a_driver_that_is_not_whole_is_said_to_be() {
    let lacks = |left_out: &'static str| {
        let driver = driver(13_000, of_the_driver().filter(move |f| *f != left_out), 999)?;
        Some((said(&driver), left_out))
    };
    // What is asked first, what old drivers lack, and what is called last of all.
    for left_out in ["cuDriverGetVersion", "cuGetErrorString", "cuMemcpyBatchAsync_v2", "cuStreamDestroy_v2"]
    {
        let Some((said, left_out)) = lacks(left_out) else { return };
        assert!(said.contains(&format!("libcuda.so has no `{left_out}`")), "{said}");
    }
}

#[test]
fn an_old_driver_is_told_by_its_age_and_not_by_what_it_lacks() {
    let few = ["cuDriverGetVersion", "cuGetErrorString", "cuInit"];
    let Some(old) = driver(12_080, few.into_iter(), 0) else { return };
    let said = said(&old);
    assert!(said.contains("the NVIDIA driver is too old: it knows CUDA 12.8, and 13.0 is needed"), "{said}");
}

#[test]
fn a_driver_that_does_not_start_says_why_in_words() {
    let Some(broken) = driver(13_000, of_the_driver(), 999) else { return };
    let text = said(&broken);
    let sentence =
        "the NVIDIA driver does not start: a reason (CUDA_ERROR_UNKNOWN); see whether nvidia-smi works";
    assert!(text.contains(sentence), "{text}");
    let Some(alone) = driver(13_000, of_the_driver(), 100) else { return };
    assert!(said(&alone).contains("there is no GPU 0: the driver sees 0"));
}

/// A function that is called and not looked for would end the process where it is missing. What can be called is linked,
/// and names of what is linked stand in a binary with symbols.
#[test]
fn all_that_is_called_is_looked_for() {
    let binary = fs::read(env!("CARGO_BIN_EXE_fsx")).unwrap();
    let mut linked = BTreeSet::new();
    for module in ["6driver3sys", "5nvrtc3sys", "8cublaslt3sys", "5cupti3sys"] {
        let mut rest = binary.as_slice();
        while let Some(at) = rest.windows(module.len()).position(|w| w == module.as_bytes()) {
            rest = &rest[at + module.len()..];
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let length = std::str::from_utf8(&rest[..digits]).unwrap().parse().unwrap_or(0);
            let name = rest[digits..].get(..length).unwrap_or_default();
            linked.insert(String::from_utf8_lossy(name).into_owned());
        }
    }
    // cudarc's own.
    linked.retain(|name| !["", "culib", "is_culib_present", "load"].contains(&name.as_str()));
    assert!(linked.contains("cuInit") && linked.contains("cuptiGetVersion"), "no symbols: {linked:?}");
    let missing: Vec<_> = linked.iter().filter(|name| !FUNCTIONS.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
