//! Which signals whoever started this process wants it to pass over.
//!
//! `nohup` and shells that start something in the background say so, and a process that takes such a signal all the same ends
//! with its terminal.

/// Whether a signal, by its number, was to be passed over when this process began. No, where the system does not tell.
pub fn is_ignored(number: u32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignored(&status, number))
}

fn ignored(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    number.checked_sub(1).and_then(|bit| 1u64.checked_shl(bit)).is_some_and(|bit| mask & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_signals() {
        // SIGHUP (1) and SIGPIPE (13).
        let status = "Name:\tfsx\nSigIgn:\t0000000000001001\nSigCgt:\t00000000fffffffe\n";
        let found: Vec<u32> = (0..=70).filter(|n| ignored(status, *n)).collect();
        assert_eq!(found, [1, 13]);
        assert!(!ignored("", 1));
    }
}
