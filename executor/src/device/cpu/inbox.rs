//! What other ranks sent.

use crate::device::{Fault, Inbox};
use crate::transport::{HostOutbox, Part, TransportError};

/// What a rank sent in a section.
pub(crate) fn receive<T, R, E: From<Fault>>(
    inbox: Inbox<'_, HostOutbox<T>>,
    from: usize,
    section: usize,
    read: impl FnOnce(Part<'_, T>) -> Result<R, E>,
) -> Result<R, E> {
    let (mut read, mut found) = (Some(read), None);
    inbox(from, &mut |message| {
        if let (Some(part), Some(read)) = (message.part(section), read.take()) {
            found = Some(read(part));
        }
    });
    let nothing = || TransportError::Sizes(format!("rank {from} sent no section {section}"));
    found.unwrap_or_else(|| Err(Fault::from(nothing()).into()))
}
