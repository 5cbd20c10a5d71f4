//! A run of pages of one size in one piece of memory.
//!
//! Promises: a full chunk is a mapping of its own, so that dropping it gives its memory back to the system at once and whole; a
//! smaller one is on the heap. Pages of a mapping begin on cache lines. Never knows what is in a page.

use std::ops::Range;

use memmap2::MmapMut;

/// What the kernel keeps for a mapping, beside the page table: about this much.
pub(crate) const MAPPING_OVERHEAD_BYTES: usize = 256;
pub(crate) const OS_PAGE_BYTES: usize = 4096;
/// Fills a new page.
const UNUSED: u64 = u64::MAX;

/// What an allocation of `bytes` costs under glibc: a header of 8 bytes, rounded up to 16, at least 32.
pub(crate) fn allocation_bytes(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        _ => (bytes + 8).next_multiple_of(16).max(32),
    }
}

enum Memory {
    Heap(Vec<u64>),
    Mapped(MmapMut),
}

/// Pages of one size, dense from the first.
pub(crate) struct Chunk {
    memory: Memory,
    used_words: u32,
}

impl Chunk {
    /// An empty chunk with room for so many words; a mapping where that is wanted and the system has one to give.
    pub(crate) fn with_room(room_words: usize, mapped: bool) -> Chunk {
        let mapping = mapped.then(|| MmapMut::map_anon(room_words * 8).ok());
        let memory = match mapping.flatten() {
            Some(mapping) => Memory::Mapped(mapping),
            // A process may have 65,530 mappings; past that the heap does, which only gives memory back later.
            None => Memory::Heap(Vec::with_capacity(room_words)),
        };
        Chunk {
            memory,
            used_words: 0,
        }
    }

    pub(crate) fn room_words(&self) -> usize {
        match &self.memory {
            Memory::Heap(words) => words.capacity(),
            Memory::Mapped(bytes) => bytes.len() / 8,
        }
    }

    pub(crate) fn used_words(&self) -> usize {
        self.used_words as usize
    }

    /// DRAM that the chunk takes, its owner's record apart.
    pub(crate) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Heap(words) => allocation_bytes(words.capacity() * 8),
            Memory::Mapped(bytes) => {
                bytes.len().next_multiple_of(OS_PAGE_BYTES) + MAPPING_OVERHEAD_BYTES
            }
        }
    }

    #[inline]
    fn words(&self, range: Range<usize>) -> &[u64] {
        match &self.memory {
            Memory::Heap(words) => &words[range],
            Memory::Mapped(bytes) => bytemuck::cast_slice(&bytes[range.start * 8..range.end * 8]),
        }
    }

    #[inline]
    fn words_mut(&mut self, range: Range<usize>) -> &mut [u64] {
        match &mut self.memory {
            Memory::Heap(words) => &mut words[range],
            Memory::Mapped(bytes) => {
                bytemuck::cast_slice_mut(&mut bytes[range.start * 8..range.end * 8])
            }
        }
    }

    #[inline]
    pub(crate) fn page(&self, number: usize, page_words: usize) -> &[u64] {
        self.words(number * page_words..(number + 1) * page_words)
    }

    #[inline]
    pub(crate) fn page_mut(&mut self, number: usize, page_words: usize) -> &mut [u64] {
        self.words_mut(number * page_words..(number + 1) * page_words)
    }

    /// Adds a page of ones behind the last. There must be room.
    pub(crate) fn push(&mut self, page_words: usize) {
        let end = self.used_words() + page_words;
        match &mut self.memory {
            Memory::Heap(words) => {
                debug_assert!(end <= words.capacity());
                words.resize(end, UNUSED);
            }
            Memory::Mapped(_) => self.words_mut(end - page_words..end).fill(UNUSED),
        }
        self.used_words = end as u32;
    }

    /// Frees the last page.
    pub(crate) fn pop(&mut self, page_words: usize) {
        self.used_words -= page_words as u32;
        if let Memory::Heap(words) = &mut self.memory {
            words.truncate(self.used_words as usize);
        }
    }

    /// The same pages with room for so many words.
    pub(crate) fn rebuilt(&self, room_words: usize, mapped: bool) -> Chunk {
        let mut chunk = Chunk::with_room(room_words, mapped);
        let used = self.words(0..self.used_words());
        match &mut chunk.memory {
            Memory::Heap(words) => words.extend_from_slice(used),
            Memory::Mapped(_) => chunk.words_mut(0..used.len()).copy_from_slice(used),
        }
        chunk.used_words = self.used_words;
        chunk
    }
}
