//! Memory that the emulated driver hands out: of the host, and known block by block.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;

use super::super::{Area, DriverError};

/// What memory holds that nothing was written to: as floats no number, as ids, positions and counts far out of range.
pub(super) const POISON: u8 = 0xff;
/// Blocks begin at multiples of this.
const ALIGNMENT: usize = 256;

/// A block of memory.
#[derive(Debug)]
pub(super) struct Block {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the block is owned by whoever has it, and its bytes are only reached through the lock or the one worker of the
// emulated driver.
unsafe impl Send for Block {}

impl Block {
    pub(super) fn new(bytes: u64, content: u8) -> Option<Self> {
        let layout = Layout::from_size_align((bytes as usize).max(1), ALIGNMENT).ok()?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: as many bytes were just allocated.
        unsafe { start.write_bytes(content, layout.size()) };
        Some(Self { start, layout })
    }

    pub(super) fn address(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and given back once.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// All blocks, by where they begin, with their lengths.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: BTreeMap<u64, (Block, u64)>,
    /// Bytes in them.
    pub(super) held: u64,
}

impl Blocks {
    pub(super) fn add(&mut self, bytes: u64, content: u8) -> Option<u64> {
        let block = Block::new(bytes, content)?;
        let address = block.address();
        self.held += bytes;
        self.blocks.insert(address, (block, bytes));
        Some(address)
    }

    pub(super) fn remove(&mut self, address: u64) -> Option<(Block, u64)> {
        let (block, bytes) = self.blocks.remove(&address)?;
        self.held -= bytes;
        Some((block, bytes))
    }

    /// The block that has an address, whole.
    pub(super) fn around(&self, address: u64) -> Option<Area> {
        let (start, (_, bytes)) = self.blocks.range(..=address).next_back()?;
        let whole = Area { address: *start, width: *bytes, rows: 1, pitch: *bytes };
        (address < start + bytes).then_some(whole)
    }

    /// Whether an area lies in one block.
    pub(super) fn check(&self, area: Area) -> Result<(), DriverError> {
        if area.is_empty() {
            return Ok(());
        }
        let wrong = || DriverError::Misuse(format!("{area}: not in memory that was handed out"));
        let (start, (_, bytes)) = self.blocks.range(..=area.address).next_back().ok_or_else(wrong)?;
        let end = area.address + (area.rows - 1) * area.pitch + area.width;
        if area.rows > 1 && area.pitch < area.width || end > start + bytes { Err(wrong()) } else { Ok(()) }
    }
}

/// Copies rows. Both areas lie in blocks ([`Blocks::check`]), have one shape, and nobody else is at them.
pub(super) fn copy(from: Area, to: Area) {
    for row in 0..from.rows {
        let (source, target) = (from.address + row * from.pitch, to.address + row * to.pitch);
        // SAFETY: the caller has checked both areas; they may overlap.
        unsafe { std::ptr::copy(source as *const u8, target as *mut u8, from.width as usize) };
    }
}

/// Sets all bytes. The area lies in a block, and nobody else is at it.
pub(super) fn fill(area: Area, byte: u8) {
    for row in 0..area.rows {
        // SAFETY: the caller has checked the area.
        unsafe { ((area.address + row * area.pitch) as *mut u8).write_bytes(byte, area.width as usize) };
    }
}

/// The bytes of an area of one row. It lies in a block that lives while they are looked at, and nobody writes there.
pub(super) fn bytes<'a>(area: Area) -> &'a [u8] {
    if area.is_empty() {
        return &[];
    }
    // SAFETY: the caller has checked the area.
    unsafe { std::slice::from_raw_parts(area.address as *const u8, area.bytes() as usize) }
}

/// The same, to be written.
pub(super) fn bytes_mut<'a>(area: Area) -> &'a mut [u8] {
    if area.is_empty() {
        return &mut [];
    }
    // SAFETY: the caller has checked the area.
    unsafe { std::slice::from_raw_parts_mut(area.address as *mut u8, area.bytes() as usize) }
}
