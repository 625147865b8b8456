//! Processes joined by streams of bytes: a world for tests, within one process or between two.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fs_executor::transport::frame::{FrameKind, Reader, overhead, read_header};
use fs_executor::transport::wire::{Sink, Wire, World};

/// Streams to all other processes.
#[derive(Debug)]
pub struct Pipes {
    /// Per process what is to be written; none to this one.
    out: Vec<Option<Sender<Vec<u8>>>>,
    /// Streams to read from, until reading starts.
    streams: Mutex<Vec<(usize, UnixStream)>>,
    /// Bytes of entries that were sent, and whole frames with data.
    pub entries: AtomicU64,
    /// Frames with data.
    pub messages: AtomicU64,
}

impl Pipes {
    /// Over streams to the processes given.
    pub fn new(processes: usize, streams: Vec<(usize, UnixStream)>) -> io::Result<Arc<Self>> {
        let mut out: Vec<_> = (0..processes).map(|_| None).collect();
        for (process, stream) in &streams {
            let (sender, frames) = channel::<Vec<u8>>();
            out[*process] = Some(sender);
            let mut stream = stream.try_clone()?;
            std::thread::spawn(move || {
                for frame in frames {
                    let length = (frame.len() as u64).to_le_bytes();
                    if stream.write_all(&length).and_then(|()| stream.write_all(&frame)).is_err() {
                        return;
                    }
                }
                let _ = stream.shutdown(std::net::Shutdown::Write);
            });
        }
        let streams = Mutex::new(streams);
        Ok(Arc::new(Self { out, streams, entries: AtomicU64::new(0), messages: AtomicU64::new(0) }))
    }
}

fn listen(process: usize, mut stream: UnixStream, sink: &Arc<dyn Sink>) -> io::Result<()> {
    let mut length = [0; 8];
    let mut frame = Vec::new();
    loop {
        stream.read_exact(&mut length)?;
        let seen = Instant::now();
        frame.resize(u64::from_le_bytes(length) as usize, 0);
        stream.read_exact(&mut frame)?;
        sink.frame(process, &frame, seen);
    }
}

impl Wire for Pipes {
    fn start(&self, sink: Arc<dyn Sink>) {
        let streams = std::mem::take(&mut *self.streams.lock().unwrap_or_else(PoisonError::into_inner));
        for (process, stream) in streams {
            let sink = Arc::clone(&sink);
            std::thread::spawn(move || {
                if let Err(error) = listen(process, stream, &sink) {
                    sink.lost(process, &error.to_string());
                }
            });
        }
    }

    fn send(&self, process: usize, frame: &[u8]) {
        if let Ok((FrameKind::Data, _, mut reader)) = Reader::new(frame) {
            let numbers = read_header(&mut reader).and_then(|_| Ok((reader.size()?, reader.size()?)));
            let (pieces, sections) = numbers.unwrap_or_default();
            self.entries.fetch_add(frame.len() as u64 - overhead(sections, pieces), Ordering::Relaxed);
            self.messages.fetch_add(1, Ordering::Relaxed);
        }
        // Who does not listen any more is known by what its stream says.
        let _ = self.out[process].as_ref().map(|out| out.send(frame.to_vec()));
    }
}

/// Worlds of processes that are joined within this one; `processes` are the ranks of each.
pub fn joined(processes: &[Vec<usize>]) -> io::Result<Vec<(World, Arc<Pipes>)>> {
    let n = processes.len();
    let mut streams: Vec<Vec<(usize, UnixStream)>> = (0..n).map(|_| Vec::new()).collect();
    for a in 0..n {
        for b in a + 1..n {
            let (one, other) = UnixStream::pair()?;
            streams[a].push((b, one));
            streams[b].push((a, other));
        }
    }
    let worlds = streams.into_iter().enumerate().map(|(process, streams)| {
        let pipes = Pipes::new(n, streams)?;
        Ok((World { processes: processes.to_vec(), process, wire: pipes.clone() }, pipes))
    });
    worlds.collect()
}

/// The world of two processes that one stream joins.
pub fn pair(processes: &[Vec<usize>; 2], process: usize, stream: UnixStream) -> io::Result<World> {
    let wire = Pipes::new(2, vec![(1 - process, stream)])?;
    Ok(World { processes: processes.to_vec(), process, wire })
}
