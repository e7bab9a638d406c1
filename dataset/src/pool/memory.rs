//! The memory of a pool's buffer, and its registration with a device.

use arrow::buffer::{Buffer, MutableBuffer};
use bytes::Bytes;
use memmap2::{Advice, MmapMut};
use std::fmt;

/// Makes memory readable for a device without a copy, as CUDA does with memory whose pages stay where they
/// are.
pub trait Registrar: fmt::Debug + Send + Sync {
    /// Registers whole pages, until what it returns is dropped. `None` if the device does not take them.
    fn register(&self, bytes: &[u8]) -> Option<Registration>;
}

/// Memory that is registered. Dropping it ends that, which must be before the memory is freed.
pub struct Registration(Option<Box<dyn FnOnce() + Send + Sync>>);

/// A buffer to be written. Its contents are arbitrary at first.
#[derive(Debug, Default)]
pub struct PoolBuffer {
    /// Before the memory: fields are dropped in their order.
    registered: Registered,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    Heap(MutableBuffer),
    /// Pages that nothing else lies in.
    Pages(MmapMut),
}

#[derive(Debug, Default)]
enum Registered {
    /// It was not tried.
    #[default]
    Not,
    Refused,
    Yes(#[expect(dead_code, reason = "held")] Registration),
}

impl Registration {
    /// `end` ends it.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

/// Bytes of a page that takes the place of 512: new memory costs a fraction of the page faults in such pages.
pub(super) const HUGE_PAGE: usize = 2 << 20;

impl PoolBuffer {
    pub(super) fn new(bytes: usize) -> Self {
        let memory = Memory::Heap(MutableBuffer::from_len_zeroed(bytes));
        Self { registered: Registered::Not, memory }
    }

    /// In pages of its own, where the system has some left: in huge ones, as far as the first `filled` bytes
    /// fill them.
    pub(super) fn in_pages(bytes: usize, filled: usize) -> Self {
        let Ok(pages) = MmapMut::map_anon(bytes) else { return Self::new(bytes) };
        // A system without them has others.
        _ = pages.advise_range(Advice::HugePage, 0, filled.min(bytes) / HUGE_PAGE * HUGE_PAGE);
        Self { registered: Registered::Not, memory: Memory::Pages(pages) }
    }

    /// Whether it lies in pages of its own.
    #[cfg(test)]
    pub(super) fn has_pages(&self) -> bool {
        matches!(self.memory, Memory::Pages(_))
    }

    /// Registers it, unless that was tried before.
    pub(super) fn register(&mut self, registrar: &dyn Registrar) {
        if let (Registered::Not, Memory::Pages(pages)) = (&self.registered, &self.memory) {
            self.registered = registrar.register(pages).map_or(Registered::Refused, Registered::Yes);
        }
    }

    /// The same memory to be read, which the pool does not take back.
    pub(super) fn into_buffer(self) -> Buffer {
        match self {
            Self { memory: Memory::Heap(buffer), .. } => buffer.into(),
            pages => Bytes::from_owner(pages).into(),
        }
    }

    /// Its bytes, at least as many as were asked for.
    #[expect(clippy::len_without_is_empty, reason = "whether it is empty is nowhere asked")]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// See [`PoolBuffer::as_slice_mut`].
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(buffer) => buffer.as_slice(),
            Memory::Pages(pages) => pages,
        }
    }

    /// All of it, to be written.
    pub fn as_slice_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(buffer) => buffer.as_slice_mut(),
            Memory::Pages(pages) => pages,
        }
    }
}

impl AsRef<[u8]> for PoolBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(MutableBuffer::new(0))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registration")
    }
}
