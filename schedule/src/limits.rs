//! How much memory this process may still take, and how many threads it may start.
//!
//! Memory is the least of: what the machine has free; what each control group around the process leaves (version 1 and 2; a
//! group's file cache does not count, it is given back when memory is short); what the process's own limits leave
//! (`ulimit -v` for address space, `ulimit -d` for data). Threads are the least of: what the machine's and the groups'
//! numbers of threads leave, what the user's does (`ulimit -u`, which does not hold for the superuser), and what there
//! are places in the address space for.

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

/// Address space that the stack of a thread takes.
const STACK: u64 = 2 << 20;

/// The threads that may still be started, with the system's files below `root`; `None` where the system does not tell.
pub fn threads(root: &Path) -> Option<u64> {
    let file = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
    let number = |name: &str| file(name).trim().parse::<u64>().ok();
    // Of the form `running/all`.
    let load = file("proc/loadavg");
    let all = load.split_whitespace().nth(3).and_then(|n| n.split_once('/')?.1.parse().ok()).unwrap_or(0);
    let machine = ["proc/sys/kernel/threads-max", "proc/sys/kernel/pid_max"]
        .map(|name| Some(number(name)?.saturating_sub(all)));
    // A stack and its guard are two mappings.
    let mapped = file("proc/self/maps").lines().count() as u64;
    let mappings = number("proc/sys/vm/max_map_count").map(|most| most.saturating_sub(mapped) / 2);
    let (limits, status) = (file("proc/self/limits"), file("proc/self/status"));
    let stacks = soft_limit(&limits, "Max address space")
        .map(|most| most.saturating_sub(kilobytes(&status, "VmSize:").unwrap_or(0)) / STACK);
    let user = soft_limit(&limits, "Max processes").filter(|_| !is_exempt(&status));
    let user = user.map(|most| most.saturating_sub(threads_of(root, field(&status, "Uid:"))));
    let groups = file("proc/self/cgroup");
    let groups = groups.lines().flat_map(|line| group_threads(root, line));
    groups.chain(machine.into_iter().chain([mappings, stacks, user]).flatten()).min()
}

/// The first word behind a name.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()
}

/// Whether the limit of a user's threads does not hold: for the superuser, and with `CAP_SYS_RESOURCE` or
/// `CAP_SYS_ADMIN`.
fn is_exempt(status: &str) -> bool {
    const CAPABLE: u64 = 1 << 24 | 1 << 21;
    let capabilities = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    field(status, "Uid:") == Some("0") || capabilities.is_some_and(|own| own & CAPABLE != 0)
}

/// Threads of all processes of a user.
fn threads_of(root: &Path, user: Option<&str>) -> u64 {
    let processes = fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let status = processes.filter_map(|process| fs::read_to_string(process.path().join("status")).ok());
    let own = status.filter(|status| user.is_some() && field(status, "Uid:") == user);
    own.filter_map(|status| field(&status, "Threads:")?.parse::<u64>().ok()).sum()
}

/// The threads that the group of a line of `/proc/self/cgroup`, and each group around it, leaves.
fn group_threads(root: &Path, line: &str) -> Vec<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let mount = match controllers {
        "" => "sys/fs/cgroup",
        own if own.split(',').any(|c| c == "pids") => "sys/fs/cgroup/pids",
        _ => return Vec::new(),
    };
    let mount = root.join(mount);
    let own: PathBuf = mount.join(path.trim_start_matches('/'));
    let left = |folder: &Path| {
        let number = |name| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        Some(number("pids.max")?.saturating_sub(number("pids.current")?))
    };
    own.ancestors().take_while(|folder| folder.starts_with(&mount)).filter_map(left).collect()
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
    fn threads_that_may_be_started() {
        const OF_USER: &str = "Max processes             64            100            processes\n";
        let status = |user: u32, capabilities: &str| {
            format!("Uid:\t{user}\t{user}\nThreads:\t3\nVmSize:\t 1024 kB\nCapEff:\t{capabilities}\n")
        };
        assert_eq!(threads(system(&[]).path()), None);
        let load = ("proc/loadavg", "0.1 0.2 0.3 2/900 4711\n");
        let machine =
            [load, ("proc/sys/kernel/threads-max", "5000\n"), ("proc/sys/kernel/pid_max", "32768\n")];
        assert_eq!(threads(system(&machine).path()), Some(4100));
        let of = |own: &str, limits: &str, more: &[(&str, &str)]| {
            let own = [("proc/self/status", own), ("proc/self/limits", limits), ("proc/7/status", own)];
            threads(system(&[&machine[..], &own, more].concat()).path())
        };
        let other = status(8, "0");
        assert_eq!(of(&status(9, "0"), OF_USER, &[("proc/8/status", &other)]), Some(64 - 6));
        assert_eq!(of(&status(0, "0"), OF_USER, &[]), Some(4100), "it does not hold for the superuser");
        assert_eq!(of(&status(9, "1000000"), OF_USER, &[]), Some(4100));
        let space = "Max address space         1074790400           unlimited            bytes\n";
        assert_eq!(of(&status(9, "0"), space, &[]), Some(512));
        let maps = [("proc/self/maps", "a\nb\n"), ("proc/sys/vm/max_map_count", "102\n")];
        assert_eq!(of(&status(9, "0"), "", &maps), Some(50));
        let group = [
            ("proc/self/cgroup", "0::/job\n"),
            ("sys/fs/cgroup/job/pids.max", "max\n"),
            ("sys/fs/cgroup/job/pids.current", "5\n"),
            ("sys/fs/cgroup/pids.max", "40\n"),
            ("sys/fs/cgroup/pids.current", "15\n"),
        ];
        assert_eq!(of(&status(9, "0"), OF_USER, &group), Some(25));
        let first = [
            ("proc/self/cgroup", "4:pids:/a\n"),
            ("sys/fs/cgroup/pids/a/pids.max", "30\n"),
            ("sys/fs/cgroup/pids/a/pids.current", "10\n"),
        ];
        assert_eq!(of(&status(9, "0"), "", &first), Some(20));
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
