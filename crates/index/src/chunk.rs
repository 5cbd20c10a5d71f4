//! A run of pages of one size in one piece of memory.
//!
//! Promises: a full chunk is a part of a block that moves to a huge page when all its parts are full, and dropping it gives its memory back to
//! the system; a smaller one is on the heap. Pages of a part begin on cache lines. Never knows what is in a page.

use std::ops::Range;

use terrace_media::Part;

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
    Mapped(Part),
}

/// Pages of one size, dense from the first.
pub(crate) struct Chunk {
    memory: Memory,
    used_words: u32,
}

impl Chunk {
    /// An empty chunk on the heap with room for so many words.
    pub(crate) fn with_room(room_words: usize) -> Chunk {
        Chunk {
            memory: Memory::Heap(Vec::with_capacity(room_words)),
            used_words: 0,
        }
    }

    /// An empty full chunk, in the block of the one before it if there is room.
    pub(crate) fn full(room_words: usize, before: Option<&Chunk>) -> Chunk {
        let behind = match before.map(|chunk| &chunk.memory) {
            Some(Memory::Mapped(part)) => part.next(),
            _ => None,
        };
        match behind.or_else(|| Part::first(room_words * 8)) {
            Some(part) => Chunk {
                memory: Memory::Mapped(part),
                used_words: 0,
            },
            // A process may have 65,530 mappings; past that the heap does, which only gives memory back later.
            None => Chunk::with_room(room_words),
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
            Memory::Mapped(part) if part.is_last() => {
                part.len() + Part::rest_bytes(part.len()) + MAPPING_OVERHEAD_BYTES
            }
            Memory::Mapped(part) => part.len(),
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
        if let Memory::Mapped(part) = &self.memory
            && end * 8 == part.len()
            && part.is_last()
        {
            part.make_huge();
        }
    }

    /// Frees the last page.
    pub(crate) fn pop(&mut self, page_words: usize) {
        self.used_words -= page_words as u32;
        if let Memory::Heap(words) = &mut self.memory {
            words.truncate(self.used_words as usize);
        }
    }

    /// Takes over the pages of another, in whose place it comes.
    pub(crate) fn replaces(mut self, other: &Chunk) -> Chunk {
        let chunk = &mut self;
        let used = other.words(0..other.used_words());
        match &mut chunk.memory {
            Memory::Heap(words) => words.extend_from_slice(used),
            Memory::Mapped(_) => chunk.words_mut(0..used.len()).copy_from_slice(used),
        }
        chunk.used_words = other.used_words;
        self
    }
}
