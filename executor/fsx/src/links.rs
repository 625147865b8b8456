//! What commands with `--link` share.

use std::io::{self, Write as _};

use fs_executor::transport::link::EmulatedLink;

/// Of `--link`.
pub(crate) const LINK_HELP: &str = "Emulate links between ranks: bandwidth per rank and direction (bit/s, kbit/s to \
                                    Gbit/s, B/s, kB/s to GB/s, MiB/s, GiB/s) and latency (ns to s), for example \
                                    \"200 Mbit/s, 50 us\"";

/// A link joins two ranks.
pub(crate) fn note_idle_link(link: Option<EmulatedLink>, ranks: usize) {
    if link.is_some() && ranks == 1 {
        let _ = writeln!(io::stderr(), "note: one rank has nobody to talk to; --link does nothing");
    }
}
