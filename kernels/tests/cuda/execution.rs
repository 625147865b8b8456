//! The emulation itself: what it runs, and what it refuses.

use std::ffi::c_void;

use fs_kernels::cuda::sources::Precision;

use super::device::{Device, Memory};

/// Launches a kernel of `selftest.cu` on one block.
fn launch(name: &str, threads: u32, shared: u32, data: &mut Memory<u32>) -> Result<(), String> {
    let device = Device::new(Precision::F32);
    let (mut address, mut n) = (data.write().0, data.len() as u32);
    let mut args: [*mut c_void; 2] = [(&raw mut address).cast(), (&raw mut n).cast()];
    // SAFETY: kernels of that source take an address and how many numbers are there.
    let ran = unsafe { device.emulation.launch(name, [1, 1, 1], [threads, 1, 1], shared, &mut args) };
    ran.map_err(|e| e.to_string())
}

#[test]
fn barriers_shared_memory_and_warp_operations_work() {
    for seed in 0..20 {
        Device::new(Precision::F32).emulation.set_seed(seed);
        for threads in [32, 64, 256, 1024] {
            let mut data = Memory::filled(threads as usize, 0xdead_beef_u32);
            launch("selftest_scan", threads, 4 * threads, &mut data).unwrap();
            let expect: Vec<u32> = (0..threads).map(|i| i * (i + 1) / 2).collect();
            assert_eq!(&data[..], expect);
        }
    }
}

#[test]
fn divergence_is_an_error() {
    let mut data = Memory::filled(64, 0u32);
    let says = |name: &str, text: &str, data: &mut Memory<u32>| {
        let said = launch(name, 64, 0, data).unwrap_err();
        assert!(said.contains(text) && said.contains("selftest.cu:"), "{name}: {said}");
        // A launch after it works.
        let mut data = Memory::filled(64, 0u32);
        launch("selftest_scan", 64, 256, &mut data).unwrap();
        assert_eq!(data[63], 64 * 63 / 2);
    };
    says("selftest_barrier_of_some", "divergence", &mut data);
    says("selftest_two_barriers", "different barriers", &mut data);
    says("selftest_missing_lane", "divergence", &mut data);
    says("selftest_not_in_mask", "lacks", &mut data);
    says("selftest_reads_outside_mask", "does not take part", &mut data);
}

#[test]
fn parts_of_a_warp_may_go_their_own_ways() {
    let mut data = Memory::filled(32, 0u32);
    launch("selftest_halves", 32, 0, &mut data).unwrap();
    // Even lanes sum the even, odd ones the odd.
    let expect: Vec<u32> = (0..32).map(|lane| if lane % 2 == 0 { 240 } else { 256 }).collect();
    assert_eq!(&data[..], expect);
}

#[test]
fn a_barrier_that_is_missing_shows() {
    let wrong = (0..20).any(|seed| {
        Device::new(Precision::F32).emulation.set_seed(seed);
        let mut data = Memory::filled(64, 0u32);
        launch("selftest_no_barrier", 64, 0, &mut data).unwrap();
        data.iter().zip(0..).any(|(found, i)| *found != 63 - i)
    });
    assert!(wrong);
}

#[test]
fn impossible_launches_are_refused() {
    let mut data = Memory::filled(64, 0u32);
    for (threads, shared) in [(0, 0), (1025, 0), (64, 300 << 10)] {
        assert!(launch("selftest_scan", threads, shared, &mut data).unwrap_err().contains("not possible"));
    }
    assert!(launch("nothing", 32, 0, &mut data).unwrap_err().contains("no kernel nothing"));
}

/// Runs one of the kernels that a sanitizer must stop; `tests/cuda/sanitize.sh` says which, and sees that it does.
#[test]
#[ignore = "ends the process, if sanitizers work"]
fn what_sanitizers_stop() {
    let name = std::env::var("FS_CUDA_BREAKS").unwrap();
    let mut data = Memory::filled(64, 1u32);
    launch(&name, 64, 4 * 64, &mut data).unwrap();
}
