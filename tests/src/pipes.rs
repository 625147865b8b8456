//! Processes joined by streams of bytes: a world for tests, within one process or between two.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use fs_executor::transport::frame::{FrameKind, Reader, overhead, read_header};
use fs_executor::transport::wire::{Sink, Wire, World};

/// Streams to all other processes.
#[derive(Debug)]
pub struct Pipes {
    /// Per process what is to be written; none to this one.
    out: Vec<Option<Arc<Queue>>>,
    writers: Vec<JoinHandle<()>>,
    /// Streams to read from, until reading starts.
    streams: Mutex<Vec<(usize, UnixStream)>>,
    /// Bytes of entries that were sent, and whole frames with data.
    pub entries: AtomicU64,
    /// Frames with data.
    pub messages: AtomicU64,
    /// Per process, bytes of frames with something that is gathered.
    pub gathered: Vec<AtomicU64>,
}

/// Frames that wait at most, and their bytes, before anything is allocated for them.
const READY: (usize, usize) = (64, 1 << 16);

/// Frames on their way to a process, in buffers that are used again.
#[derive(Debug)]
struct Queue {
    frames: Mutex<Frames>,
    changed: Condvar,
}

#[derive(Debug)]
struct Frames {
    waiting: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    closed: bool,
}

impl Queue {
    fn new() -> Self {
        let free = (0..READY.0).map(|_| Vec::with_capacity(READY.1)).collect();
        let frames = Frames { waiting: VecDeque::with_capacity(READY.0), free, closed: false };
        Self { frames: Mutex::new(frames), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, frame: &[u8]) {
        let mut frames = self.lock();
        let mut bytes = frames.free.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame);
        frames.waiting.push_back(bytes);
        drop(frames);
        self.changed.notify_one();
    }

    /// The next frame, once there is one; none after the last.
    fn next(&self) -> Option<Vec<u8>> {
        let mut frames = self.lock();
        loop {
            if let Some(frame) = frames.waiting.pop_front() {
                return Some(frame);
            }
            if frames.closed {
                return None;
            }
            frames = self.changed.wait(frames).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        for queue in self.out.iter().flatten() {
            queue.lock().closed = true;
            queue.changed.notify_one();
        }
        // What waits is written first: others may need it after this process has ended.
        for writer in self.writers.drain(..) {
            let _ = writer.join();
        }
    }
}

impl Pipes {
    /// Over streams to the processes given.
    pub fn new(processes: usize, streams: Vec<(usize, UnixStream)>) -> io::Result<Arc<Self>> {
        let mut out: Vec<_> = (0..processes).map(|_| None).collect();
        let mut writers = Vec::with_capacity(streams.len());
        for (process, stream) in &streams {
            let queue = Arc::new(Queue::new());
            out[*process] = Some(Arc::clone(&queue));
            let mut stream = stream.try_clone()?;
            writers.push(std::thread::spawn(move || {
                while let Some(frame) = queue.next() {
                    let length = (frame.len() as u64).to_le_bytes();
                    if stream.write_all(&length).and_then(|()| stream.write_all(&frame)).is_err() {
                        return;
                    }
                    queue.lock().free.push(frame);
                }
                let _ = stream.shutdown(std::net::Shutdown::Write);
            }));
        }
        let streams = Mutex::new(streams);
        let gathered = (0..processes).map(|_| AtomicU64::new(0)).collect();
        let (entries, messages) = Default::default();
        Ok(Arc::new(Self { out, writers, streams, entries, messages, gathered }))
    }
}

fn listen(process: usize, mut stream: UnixStream, sink: &Arc<dyn Sink>) -> io::Result<()> {
    let mut length = [0; 8];
    let mut frame = Vec::with_capacity(READY.1);
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
        match Reader::new(frame) {
            Ok((FrameKind::Data, _, mut reader)) => {
                let numbers = read_header(&mut reader).and_then(|_| Ok((reader.size()?, reader.size()?)));
                let (pieces, sections) = numbers.unwrap_or_default();
                self.entries.fetch_add(frame.len() as u64 - overhead(sections, pieces), Ordering::Relaxed);
                self.messages.fetch_add(1, Ordering::Relaxed);
            }
            Ok((FrameKind::Gather, ..)) => {
                self.gathered[process].fetch_add(frame.len() as u64, Ordering::Relaxed);
            }
            _ => {}
        }
        // Who does not listen any more is known by what its stream says.
        if let Some(queue) = &self.out[process] {
            queue.push(frame);
        }
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
