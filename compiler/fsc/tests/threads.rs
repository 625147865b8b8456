//! Schedules from outside on one thread and on several.

use std::path::Path;
use std::process::Command;

/// The same bytes and the same messages, whatever `RAYON_NUM_THREADS` says, and without it.
#[test]
fn threads_change_no_byte_of_a_schedule() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dlrm.fs");
    let dir = tempfile::TempDir::new().expect("a temporary folder");
    let compiled = |threads: Option<&str>| {
        let out = dir.path().join("out.json");
        let mut fsc = Command::new(env!("CARGO_BIN_EXE_fsc"));
        fsc.arg("compile").arg(&model).args([
            "--ranks",
            "4",
            "--cluster",
            "local",
            "--assume",
            "workload",
            "-o",
        ]);
        fsc.arg(&out).env_remove("RAYON_NUM_THREADS");
        let run = fsc.envs(threads.map(|n| ("RAYON_NUM_THREADS", n))).output().expect("fsc starts");
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.success(), "{said}");
        (std::fs::read(&out).expect("a schedule"), run.stdout, said)
    };
    let one = compiled(Some("1"));
    assert!(one.2.contains("other ways tried"), "no search: {}", one.2);
    for threads in [Some("2"), Some("7"), Some("100000"), Some("several"), Some("0"), None] {
        assert!(compiled(threads) == one, "{threads:?}");
    }
}
