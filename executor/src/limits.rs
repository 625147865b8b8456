//! How much memory this process may still take.
//!
//! The least of: what the machine has free; what each control group around the process leaves (version 1 and 2; a
//! group's file cache does not count, it is given back when memory is short); what the process's own limits leave
//! (`ulimit -v` for address space, `ulimit -d` for data).

use std::fs;
use std::path::{Path, PathBuf};

/// The memory in bytes that may still be taken, with the system's files below `root` (`/` outside of tests); `None` where
/// the system does not tell.
pub fn available(root: &Path) -> Option<u64> {
    let file = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let free = kilobytes(&file("proc/meminfo"), "MemAvailable:");
    let (limits, status) = (file("proc/self/limits"), file("proc/self/status"));
    let own = [("Max address space", "VmSize:"), ("Max data size", "VmData:")].map(|(limit, used)| {
        let left = soft_limit(&limits, limit)?;
        Some(left.saturating_sub(kilobytes(&status, used).unwrap_or(0)))
    });
    let groups = file("proc/self/cgroup");
    let groups = groups.lines().flat_map(|line| group(root, line));
    groups.chain(own.into_iter().flatten()).chain(free).min()
}

/// A line such as `MemAvailable:  123 kB`, in bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit of a line such as `Max address space  4096  unlimited  bytes`.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// What the group of a line of `/proc/self/cgroup`, and each group around it, leaves.
fn group(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let (mount, limit, used, cache) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ")
    } else if controllers.split(',').any(|c| c == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ")
    } else {
        return Vec::new();
    };
    let mount = root.join(mount);
    let own: PathBuf = mount.join(path.trim_start_matches('/'));
    let left = |folder: &Path| {
        // `max` is no number: no limit.
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = stat.lines().find_map(|l| l.strip_prefix(cache)?.trim().parse::<u64>().ok());
        let taken = number(used)?.saturating_sub(cached.unwrap_or(0));
        Some(number(limit)?.saturating_sub(taken))
    };
    own.ancestors().take_while(|folder| folder.starts_with(&mount)).filter_map(left).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system's files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const FREE: (&str, &str) = ("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:     8000 kB\n");
    const STATUS: (&str, &str) = ("proc/self/status", "VmSize:\t  1000 kB\nVmData:\t 300 kB\n");

    fn limits(address: &str, data: &str) -> String {
        format!(
            "Limit                     Soft Limit           Hard Limit           Units\n\
             Max data size             {data}            unlimited            bytes\n\
             Max address space         {address}            unlimited            bytes\n"
        )
    }

    #[test]
    fn nothing_is_known_without_files() {
        assert_eq!(available(system(&[]).path()), None);
        assert_eq!(available(system(&[FREE]).path()), Some(8000 << 10));
        let limits = limits("unlimited", "unlimited");
        let root = system(&[FREE, STATUS, ("proc/self/limits", &limits)]);
        assert_eq!(available(root.path()), Some(8000 << 10));
    }

    #[test]
    fn limits_of_the_process_count_what_it_has() {
        let limits =
            [limits("2048000", "unlimited"), limits("unlimited", "1024000"), limits("1", "unlimited")];
        for (limits, left) in limits.iter().zip([1000 << 10, 700 << 10, 0]) {
            let root = system(&[FREE, STATUS, ("proc/self/limits", limits)]);
            assert_eq!(available(root.path()), Some(left));
        }
    }

    #[test]
    fn the_tightest_group_around_the_process_counts() {
        let v2 = |own: &str, around: &str| {
            let root = system(&[
                FREE,
                ("proc/self/cgroup", "0::/user/job\n"),
                ("sys/fs/cgroup/user/job/memory.max", own),
                ("sys/fs/cgroup/user/job/memory.current", "5000\n"),
                ("sys/fs/cgroup/user/job/memory.stat", "anon 1\ninactive_file 2000\n"),
                ("sys/fs/cgroup/user/memory.max", around),
                ("sys/fs/cgroup/user/memory.current", "6000\n"),
            ]);
            available(root.path())
        };
        assert_eq!(v2("10000\n", "max\n"), Some(7000), "cache is given back");
        assert_eq!(v2("max\n", "10000\n"), Some(4000));
        assert_eq!(v2("10000\n", "7000\n"), Some(1000));
        assert_eq!(v2("max\n", "max\n"), Some(8000 << 10));
        assert_eq!(v2("4\n", "max\n"), Some(0), "the group holds more than it may");
    }

    #[test]
    fn groups_of_version_1() {
        let root = system(&[
            FREE,
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n0::/\n"),
            ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "5000\n"),
            // Inside a container the process's own group may be the mount.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "100000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "50000\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 10000\n"),
        ]);
        assert_eq!(available(root.path()), Some(60000));
    }
}
