//! Byte media: an [`Arena`] is a pool's DRAM, cut into equal [`Piece`]s.
//!
//! Promises: a piece's memory is faulted in on first use, locked then if the system allows it, and
//! given back to the kernel when the piece is dropped, so that the process's use falls; a piece
//! has one owner.
//! Never: hands out more than it was made for, moves a piece, or clears one (what a taken piece
//! holds is unspecified).

use crate::descriptors;
use crate::huge::{self, Answer, Blocks};
use crate::pages::reserve_aligned;
use crate::{BLOCK_BYTES, Buf, MediaError};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MlockFlags, ProtFlags, mlock_with, mmap, munmap};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most pieces an arena is cut into; bounds the list of free ones to 64 MiB.
const PIECES_MAX: usize = 1 << 24;
/// The longest piece.
const PIECE_BYTES_MAX: usize = 1 << 30;

/// Equal pieces of memory for a pool: shared, locked memory, or plain memory for tests.
pub struct Arena {
    piece_bytes: usize,
    pieces_max: usize,
    backing: Backing,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Indices of returned pieces, the last returned on top.
    returned: Vec<u32>,
    /// Pieces below this index were taken at least once.
    touched: u32,
    taken: usize,
    give_back_failures: u64,
    /// None: huge pages are not for this arena.
    blocks: Option<Blocks>,
}

enum Backing {
    Shared {
        memory: OwnedFd,
        base: NonNull<u8>,
        lock: Result<(), Errno>,
    },
    Plain,
}

// SAFETY: the base pointer is an address that never changes; each byte behind it is reached only
// through the one Piece that owns it.
unsafe impl Send for Arena {}
// SAFETY: as above, and what changes in an arena is behind its mutex.
unsafe impl Sync for Arena {}

impl Arena {
    /// One shared mapping of `pieces_max` pieces of `piece_bytes` (a multiple of
    /// [`BLOCK_BYTES`]). It takes addresses only; memory comes with first use. If the system
    /// refuses to lock it, it stays unlocked, and [`Arena::is_locked`] says so.
    pub fn new(piece_bytes: usize, pieces_max: usize) -> Result<Arc<Arena>, MediaError> {
        let len = check_sizes(piece_bytes, pieces_max)?;
        let fail = |what| move |e| MediaError::setup(what, format!("{len} bytes"), e);
        let memory = memfd_create("terrace-dram", MemfdFlags::CLOEXEC)
            .map_err(fail("make shared memory of"))?;
        let memory = descriptors::keep(memory);
        ftruncate(&memory, len as u64).map_err(fail("size shared memory to"))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let base = reserve_aligned(len).map_err(fail("find addresses for"))?;
        let flags = flags | MapFlags::FIXED;
        // SAFETY: replaces the reservation just made, of this very length; the descriptor is ours alone, so nobody can
        // shrink it under us.
        let base = unsafe { mmap(base.cast(), len, access, flags, &memory, 0) }
            .map_err(fail("map shared memory of"))?;
        // SAFETY: locks the mapping just made; locking changes no content.
        let lock = unsafe { mlock_with(base, len, MlockFlags::ONFAULT) };
        let base = NonNull::new(base.cast::<u8>()).expect("the kernel maps no null page for us");
        let arena = Self::assemble(
            piece_bytes,
            pieces_max,
            Backing::Shared { memory, base, lock },
        );
        if let Some((blocks, told)) = Blocks::new(piece_bytes, pieces_max) {
            arena.state().blocks = Some(blocks);
            let weak = Arc::downgrade(&arena);
            let make_huge = move |block| match weak.upgrade() {
                Some(arena) => arena.make_huge(block),
                None => Answer::Refused,
            };
            huge::start(told, make_huge);
        }
        Ok(arena)
    }

    /// The same over ordinary memory: allocated (and zero) when a piece is taken, freed when it
    /// is dropped, never locked. Costs nothing until used, for tests with thousands of pools.
    pub fn new_plain(piece_bytes: usize, pieces_max: usize) -> Result<Arc<Arena>, MediaError> {
        check_sizes(piece_bytes, pieces_max)?;
        Ok(Self::assemble(piece_bytes, pieces_max, Backing::Plain))
    }

    fn assemble(piece_bytes: usize, pieces_max: usize, backing: Backing) -> Arc<Arena> {
        Arc::new(Arena {
            piece_bytes,
            pieces_max,
            backing,
            state: Mutex::default(),
        })
    }

    /// A piece, or `None` when all are taken. A piece that was used last is used again first.
    pub fn take(self: &Arc<Self>) -> Option<Piece> {
        let index = {
            let mut state = self.state();
            let index = match state.returned.pop() {
                Some(index) => index,
                None if (state.touched as usize) < self.pieces_max => {
                    state.touched += 1;
                    state.touched - 1
                }
                None => return None,
            };
            state.taken += 1;
            if let Some(blocks) = &mut state.blocks {
                blocks.took(index as usize);
            }
            index
        };
        let memory = match &self.backing {
            Backing::Plain => Memory::Own(Buf::zeroed(self.piece_bytes)),
            Backing::Shared { base, .. } => {
                // SAFETY: index < pieces_max, so the offset lies within the mapping.
                Memory::Mapped(unsafe { base.add(index as usize * self.piece_bytes) })
            }
        };
        Some(Piece {
            arena: Arc::clone(self),
            index,
            memory,
        })
    }

    /// Whether the pieces' memory is locked once it is there, so that it never goes to swap.
    pub fn is_locked(&self) -> bool {
        matches!(self.backing, Backing::Shared { lock: Ok(()), .. })
    }

    /// Why the memory is not locked, in words; `None` if it is.
    pub fn unlocked_because(&self) -> Option<String> {
        match &self.backing {
            Backing::Plain => Some("plain memory is never locked".to_owned()),
            Backing::Shared { lock, .. } => lock.err().map(|errno| {
                let bytes = self.piece_bytes * self.pieces_max;
                format!("locking {bytes} bytes was refused: {errno}; raise the memlock limit")
            }),
        }
    }

    /// Pieces taken and not yet dropped.
    pub fn taken(&self) -> usize {
        self.state().taken
    }

    /// Pieces there are in all.
    pub fn pieces_max(&self) -> usize {
        self.pieces_max
    }

    /// Length of a piece in bytes.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    /// How often the kernel refused to take a dropped piece's memory back. Such a piece is used
    /// again, but its memory stays counted until the arena goes. Zero on a healthy system.
    pub fn give_back_failures(&self) -> u64 {
        self.state().give_back_failures
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement that could panic under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back a piece's memory, then its index: in this order, since the next owner's bytes
    /// must not be punched away.
    fn give_back(&self, index: u32) {
        if let Some(blocks) = &mut self.state().blocks {
            blocks.leaves(index as usize);
        }
        let given = self.punch(index as usize);
        let mut state = self.state();
        state.give_back_failures += u64::from(given.is_err());
        state.returned.push(index);
        state.taken -= 1;
    }

    fn punch(&self, piece: usize) -> Result<(), Errno> {
        match &self.backing {
            Backing::Plain => Ok(()),
            Backing::Shared { memory, .. } => {
                let offset = (piece * self.piece_bytes) as u64;
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let punch = || fallocate(memory, flags, offset, self.piece_bytes as u64);
                rustix::io::retry_on_intr(punch)
            }
        }
    }

    /// Bytes that lie on huge pages.
    pub fn huge_bytes(&self) -> usize {
        self.state().blocks.as_ref().map_or(0, Blocks::huge_bytes)
    }

    /// Asks the kernel to put a block on one page, if all of its pieces are taken.
    pub(crate) fn make_huge(&self, block: usize) -> Answer {
        let whole = |state: &mut State| state.blocks.as_mut().is_some_and(|b| b.is_whole(block));
        let Backing::Shared { base, .. } = &self.backing else {
            return Answer::Refused;
        };
        if !whole(&mut self.state()) {
            return Answer::Busy;
        }
        let at = base.as_ptr().wrapping_add(block * huge::BLOCK_BYTES).cast();
        // SAFETY: the block lies within our mapping (`Blocks` has no others), and the advice changes no content.
        let refused = unsafe { libc::madvise(at, huge::BLOCK_BYTES, libc::MADV_COLLAPSE) } != 0;
        let mut state = self.state();
        let Some(blocks) = &mut state.blocks else {
            return Answer::Refused;
        };
        match refused.then(std::io::Error::last_os_error) {
            None => {
                // Held, so that nobody takes one of them meanwhile.
                let left = blocks.moved(block);
                let failed = left.into_iter().filter(|p| self.punch(*p).is_err()).count();
                state.give_back_failures += failed as u64;
                Answer::Moved
            }
            Some(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                state.blocks = None;
                Answer::Refused
            }
            Some(_) => Answer::Busy,
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let Backing::Shared { base, .. } = &self.backing {
            let len = self.piece_bytes * self.pieces_max;
            // SAFETY: our mapping of this very length; every Piece holds the arena, so none lives.
            let unmapped = unsafe { munmap(base.as_ptr().cast(), len) };
            debug_assert!(unmapped.is_ok(), "munmap of our own mapping: {unmapped:?}");
        }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (taken, all) = (self.taken(), self.pieces_max);
        write!(
            f,
            "Arena({taken} of {all} pieces of {} bytes)",
            self.piece_bytes
        )
    }
}

fn check_sizes(piece_bytes: usize, pieces_max: usize) -> Result<usize, MediaError> {
    let refuse = |what, asked: usize, allowed| {
        Err(MediaError::Size {
            what,
            asked: asked as u64,
            allowed,
        })
    };
    if !piece_bytes.is_multiple_of(BLOCK_BYTES) || !(1..=PIECE_BYTES_MAX).contains(&piece_bytes) {
        let allowed = format!("multiples of {BLOCK_BYTES} up to {PIECE_BYTES_MAX}");
        return refuse("piece of an arena, in bytes", piece_bytes, allowed);
    }
    if !(1..=PIECES_MAX).contains(&pieces_max) {
        return refuse(
            "pieces of an arena",
            pieces_max,
            format!("1 to {PIECES_MAX}"),
        );
    }
    match piece_bytes.checked_mul(pieces_max) {
        Some(len) if isize::try_from(len).is_ok() => Ok(len),
        _ => refuse(
            "pieces of an arena",
            pieces_max,
            format!("{} in all bytes", isize::MAX),
        ),
    }
}

/// One piece of an arena, owned. Dropping it returns it and gives its memory to the kernel.
pub struct Piece {
    arena: Arc<Arena>,
    index: u32,
    memory: Memory,
}

enum Memory {
    Own(Buf),
    Mapped(NonNull<u8>),
}

// SAFETY: a Piece owns its bytes alone (the arena hands each index out once), and memory has no
// thread affinity.
unsafe impl Send for Piece {}
// SAFETY: a shared Piece gives shared slices only; writing needs `&mut`.
unsafe impl Sync for Piece {}

impl Piece {
    /// Which of the arena's pieces this is, below [`Arena::pieces_max`].
    pub fn index(&self) -> usize {
        self.index as usize
    }
}

impl Deref for Piece {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(buf) => &buf[..],
            // SAFETY: the piece's range of a mapping that the arena keeps alive, initialised (the
            // kernel fills it with zeros), and written only through `deref_mut`.
            Memory::Mapped(ptr) => unsafe {
                std::slice::from_raw_parts(ptr.as_ptr(), self.arena.piece_bytes)
            },
        }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(buf) => &mut buf[..],
            // SAFETY: as in `deref`; the piece is the only way to these bytes and is borrowed
            // mutably.
            Memory::Mapped(ptr) => unsafe {
                std::slice::from_raw_parts_mut(ptr.as_ptr(), self.arena.piece_bytes)
            },
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.arena.give_back(self.index);
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({}, {} bytes)", self.index, self.arena.piece_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_BYTES: usize = 64 * 1024;

    fn both() -> [Arc<Arena>; 2] {
        [
            Arena::new(PIECE_BYTES, 4).unwrap(),
            Arena::new_plain(PIECE_BYTES, 4).unwrap(),
        ]
    }

    #[test]
    fn pieces_are_unique_and_come_back() {
        for arena in both() {
            let mut pieces: Vec<Piece> = (0..4).map(|_| arena.take().unwrap()).collect();
            assert!(arena.take().is_none());
            assert_eq!(arena.taken(), 4);
            for (n, piece) in pieces.iter_mut().enumerate() {
                assert_eq!(piece.len(), PIECE_BYTES);
                piece.fill(n as u8 + 1);
            }
            for (n, piece) in pieces.iter().enumerate() {
                assert_eq!(piece.index(), n);
                assert!(
                    piece.iter().all(|&b| b == n as u8 + 1),
                    "piece {n} of {arena:?}"
                );
            }
            drop(pieces.remove(2));
            assert_eq!(arena.taken(), 3);
            assert_eq!(arena.take().unwrap().index(), 2);
            assert_eq!(arena.give_back_failures(), 0);
        }
    }

    #[test]
    fn dropping_a_piece_gives_its_memory_back() {
        let arena = Arena::new(1 << 20, 8).unwrap();
        let held_blocks = |arena: &Arena| match &arena.backing {
            Backing::Shared { memory, .. } => rustix::fs::fstat(memory).unwrap().st_blocks,
            Backing::Plain => unreachable!("this arena is shared"),
        };
        assert_eq!(held_blocks(&arena), 0, "nothing is faulted in before use");
        let mut pieces: Vec<Piece> = (0..8).map(|_| arena.take().unwrap()).collect();
        pieces.iter_mut().for_each(|piece| piece.fill(1));
        assert_eq!(held_blocks(&arena) * 512, 8 << 20);
        pieces.truncate(3);
        assert_eq!(held_blocks(&arena) * 512, 3 << 20);
        drop(pieces);
        assert_eq!(held_blocks(&arena), 0);
        let again = arena.take().unwrap();
        assert!(again.iter().all(|&b| b == 0));
    }

    #[test]
    fn whole_blocks_move_to_huge_pages_and_come_back() {
        const PIECE: usize = 512 << 10;
        let arena = Arena::new(PIECE, 130).unwrap();
        let held_bytes = || match &arena.backing {
            Backing::Shared { memory, .. } => {
                rustix::fs::fstat(memory).unwrap().st_blocks as usize * 512
            }
            Backing::Plain => unreachable!("this arena is shared"),
        };
        let mut pieces: Vec<Piece> = (0..130).map(|_| arena.take().unwrap()).collect();
        for (n, piece) in pieces.iter_mut().enumerate() {
            piece.fill(n as u8 + 1);
        }
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while arena.huge_bytes() < 64 << 20 && std::time::Instant::now() < patience {
            if arena.state().blocks.is_none() {
                println!("this kernel puts no shared memory on huge pages when asked");
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Another program may have all the memory that lies together.
        println!("{} MiB on huge pages", arena.huge_bytes() >> 20);
        let same = |pieces: &[Piece]| {
            let is = |p: &Piece| p.iter().all(|b| *b == p.index() as u8 + 1);
            assert!(pieces.iter().all(is));
        };
        same(&pieces);
        assert_eq!(held_bytes(), 130 * PIECE);
        // One of each block.
        let (left, kept): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|p| p.index() % 4 == 1);
        drop(left);
        assert_eq!(held_bytes(), kept.len() * PIECE);
        assert_eq!(arena.huge_bytes(), 0);
        same(&kept);
        // Taken and dropped while blocks move: what is held is what is taken.
        for round in 0..200 {
            let mut again: Vec<Piece> = (0..1 + round % 32).filter_map(|_| arena.take()).collect();
            again.iter_mut().for_each(|p| p[0] = 1);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        same(&kept);
        assert_eq!(
            (held_bytes(), arena.give_back_failures()),
            (kept.len() * PIECE, 0)
        );
    }

    #[test]
    fn locked_or_says_why_not() {
        for arena in both() {
            assert_eq!(arena.is_locked(), arena.unlocked_because().is_none());
        }
        assert!(!Arena::new_plain(4096, 1).unwrap().is_locked());
    }

    #[test]
    fn pieces_move_between_threads() {
        let arena = Arena::new(4096, 64).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let arena = &arena;
                scope.spawn(move || {
                    for round in 0..200u8 {
                        let mut piece = arena.take().expect("4 threads, 64 pieces");
                        let mark = thread.wrapping_mul(50).wrapping_add(round);
                        piece.fill(mark);
                        assert!(piece.iter().all(|&b| b == mark));
                    }
                });
            }
        });
        assert_eq!(arena.taken(), 0);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (piece_bytes, pieces_max) in [(0, 1), (100, 1), (4096, 0), (4096, usize::MAX)] {
            for made in [
                Arena::new(piece_bytes, pieces_max),
                Arena::new_plain(piece_bytes, pieces_max),
            ] {
                assert!(
                    matches!(made, Err(MediaError::Size { .. })),
                    "{piece_bytes} {pieces_max}"
                );
            }
        }
    }
}
