//! Runs of many more ranks than there are cores.
//!
//! Among thousands of threads that compute, one that has slept gets its turn seconds later, and so would Ctrl-C, the
//! deadlines and the progress. So in a crowd the threads of ranks give way: all alike, so that none of them waits longer for
//! another, and to other programs, too.

/// Threads of a process that are a crowd.
const CROWD: usize = 1000;
/// What a thread in a crowd weighs is a 68th of one without.
const NICE: i32 = 19;

/// To be called by each of so many threads when it begins.
pub(super) fn give_way(threads: usize) {
    if threads >= CROWD {
        // It is nothing but slower to react where the system does not let it.
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn a_crowd_gives_way() {
        let of = |threads| {
            let own = move || (give_way(threads), getpriority_process(None)).1.ok();
            std::thread::spawn(own).join().ok().flatten()
        };
        let before = getpriority_process(None).ok();
        assert_eq!(of(CROWD - 1), before);
        assert_eq!(of(CROWD), Some(NICE));
        assert_eq!(getpriority_process(None).ok(), before, "others are as they were");
    }
}
