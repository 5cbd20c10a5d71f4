//! A store and the memory that shows its objects: the page buffer, and the room on the SSD and in DRAM that is promised to objects before they are
//! there.
//!
//! Promises: what was promised is there, or refused. Never: makes arrays, pools or allocations; they are above it.

use crate::balance::Balance;
use crate::error::VmError;
use crate::memory::{Memory, Options};
use crate::parts::Way;
use crate::policy;
use crate::store::{ObjectError, Store, TABLES_MAX};
use std::sync::Arc;
use terrace_log::ObjectId;
use terrace_log::entry::entry_bytes;

/// Objects that an array or pool can grow to, if not said otherwise: what addresses it takes, which cost nothing.
pub const OBJECTS_MAX_DEFAULT: u64 = 1 << 28;
/// Of the addresses that are left, and of the DRAM for them, what a place for as many objects as there may be gets.
const ADDRESSES_OF_ONE_IN: u64 = 4;

/// Why objects cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// Of the memory that they are shown in.
    #[error(transparent)]
    Memory(#[from] VmError),
    /// Of the store that they are kept in.
    #[error(transparent)]
    Store(#[from] ObjectError),
    /// The pool is kept.
    #[error(
        "this pool is kept and has named regions only: open another, which is not, for what need not outlive the program"
    )]
    Kept,
    /// All tables of the store are in use.
    #[error("an array or pool needs a table, and all {max} of the store are in use: drop some")]
    NoTable {
        /// How many there are.
        max: usize,
    },
    /// More objects than an array or pool was made for.
    #[error("{asked} objects, where addresses are reserved for {max}: make it for more")]
    TooMany {
        /// Objects asked for.
        asked: u64,
        /// Objects it was made for.
        max: u64,
    },
    /// A size that the pool's objects do not have.
    #[error("an object of {asked} bytes, in a pool whose objects have {allowed}")]
    Size {
        /// What was asked for.
        asked: u64,
        /// What is allowed.
        allowed: String,
    },
    /// Not the address of an object that is there.
    #[error(
        "{address:#x} is not the address of an object of this pool, or the object is freed already"
    )]
    NotAnObject {
        /// What was given.
        address: usize,
    },
}

/// A store and the memory that shows its objects.
#[derive(Clone)]
pub struct Heap(Arc<Shared>);

struct Shared {
    memory: Memory,
    store: Arc<Store>,
    balance: Balance,
}

impl Heap {
    /// Shows objects of `store` in `memory`, and counts its page buffer against the store's cap.
    ///
    /// Errors: a page buffer that is too large for the cap.
    pub fn new(memory: Memory, store: Arc<Store>) -> Result<Heap, HeapError> {
        store.here()?;
        check_buffer(&store, memory.pages_max())?;
        let shared = Arc::new(Shared {
            balance: Balance::new(memory.clone(), store.clone()),
            memory,
            store,
        });
        let weak = Arc::downgrade(&shared);
        shared.memory.on_eviction(Box::new(move || {
            // If this is its last owner it ends here, in a thread that faults: the region that is faulted in holds the memory and the
            // store, so neither ends with it.
            if let Some(shared) = weak.upgrade() {
                shared.balance.look();
            }
        }));
        Ok(Heap(shared))
    }

    /// The same with a memory of its own, whose page buffer begins with a sixteenth of the store's cap; then it adapts.
    pub fn open(store: Arc<Store>, way: Way) -> Result<Heap, HeapError> {
        store.here()?;
        let memory = Memory::new(Options {
            way,
            ..Heap::options(&store)
        })?;
        Heap::new(memory, store)
    }

    /// How the memory for a store is made.
    pub fn options(store: &Store) -> Options {
        let (cap_bytes, _) = store.cap_and_used_bytes();
        Options {
            pages_max: policy::pages_of_cap(cap_bytes),
            remembered: Some(policy::remembered_of_cap(cap_bytes)),
            reserve_bytes: policy::addresses_of_ssd(store.usable_bytes()),
            ..Options::default()
        }
    }

    /// Says how many pages may be materialised, instead of letting that adapt; the DRAM terrace has the rest of the cap.
    pub fn set_pages_max(&self, pages_max: usize) -> Result<(), HeapError> {
        self.0.store.here()?;
        check_buffer(&self.0.store, pages_max)?;
        let Shared {
            memory, balance, ..
        } = &*self.0;
        let (before_bytes, _) = memory.buffer_bytes();
        let set = memory.set_pages_max(pages_max);
        let was_fixed = balance.fix(true);
        set?;
        let slots = self.0.store.room.slots_bytes();
        let lacks = slots.saturating_sub(balance.slots_max_bytes());
        if lacks == 0 {
            return Ok(());
        }
        // Slots that are promised have more than is left then.
        memory.set_buffer_bytes(before_bytes);
        balance.fix(was_fixed);
        Err(ObjectError::Slots {
            asked_bytes: slots,
            allowed_bytes: slots - lacks,
        }
        .into())
    }

    /// Gives pages most of the cap, before there are any; then it adapts. For programs that do not know this library: where all of their memory
    /// fits, no page faults twice.
    pub fn begin_large(&self) {
        if self.0.store.here().is_ok() {
            self.0.balance.begin_large();
        }
    }

    /// Counts up to so many bytes more of the cap for something else, until they are given back (`Ground::count`). Pages leave before, if the DRAM terrace would
    /// have too little. How many were counted: fewer where pages do not leave now.
    pub fn make_way(&self, bytes: u64) -> u64 {
        match self.0.store.here() {
            Ok(()) => self.0.balance.make_way(bytes),
            Err(_) => 0,
        }
    }

    /// What [`Heap::make_way`] could count now, if all pages that may leave do, and no slots that were promised are wanted; bytes.
    pub fn spare_bytes(&self) -> u64 {
        let spare = self.0.balance.spare_bytes();
        spare.min(self.unpromised_bytes())
    }

    /// Pages leave if the DRAM terrace has come to have too little: for who stores without faults in this memory.
    pub fn keep_terrace(&self) {
        if self.0.store.here().is_ok() {
            self.0.balance.keep_terrace();
        }
    }

    /// What pages and the DRAM terrace have of the cap together, bytes.
    pub fn between_them_bytes(&self) -> u64 {
        self.0.balance.between_them_bytes()
    }

    /// What is counted in the cap, but of pages what they hold now, and not what they may; bytes.
    pub fn held_bytes(&self) -> u64 {
        self.0.balance.held_bytes()
    }

    /// What pages and the DRAM terrace have that no slot was promised and neither needs, bytes.
    pub fn unpromised_bytes(&self) -> u64 {
        let max = self.0.balance.slots_max_bytes();
        max.saturating_sub(self.0.store.room.slots_bytes())
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// How many objects of `bytes` bytes the SSD takes, and a few more numbers, so that lanes need not be equally full; no more than a quarter of the addresses that are left has
    /// pages for, and a quarter of the DRAM what is known of those, so that there are some for others.
    pub fn objects_that_fit(&self, bytes: u32) -> u64 {
        let object = entry_bytes(ObjectId::KEY_BYTES, bytes as usize, false, false) as u64;
        let fit = self.promise_max_bytes() / object;
        let pages = self.memory().free_pages() / ADDRESSES_OF_ONE_IN;
        let known = policy::pages_of_addresses(self.unpromised_bytes() / ADDRESSES_OF_ONE_IN);
        (fit + fit / 8 + 1024)
            .min(OBJECTS_MAX_DEFAULT)
            .min(pages.min(known).max(1))
    }

    pub(crate) fn take_table(&self) -> Result<u16, HeapError> {
        self.0.store.here()?;
        if self.0.store.keeps {
            return Err(HeapError::Kept);
        }
        let table = self.0.store.take_table();
        table.ok_or(HeapError::NoTable { max: TABLES_MAX })
    }

    /// Makes sure that entries of so many more bytes have room on the SSD.
    pub(crate) fn promise_bytes(&self, bytes: u64) -> Result<(), HeapError> {
        // What cannot be stored any more is not promised.
        self.refuse_failed()?;
        Ok(self.0.store.room.promise(bytes)?)
    }

    /// An error once the device takes no more writes, and in a fork.
    pub(crate) fn refuse_failed(&self) -> Result<(), HeapError> {
        self.0.store.here()?;
        match self.0.store.failure() {
            None => Ok(()),
            Some(_) => Err(ObjectError::ReadOnly.into()),
        }
    }

    /// Makes sure that so many more bytes of slots have room in DRAM.
    pub(crate) fn promise_slots(&self, bytes: u64) -> Result<(), HeapError> {
        let max = || self.0.balance.slots_max_bytes();
        let room = &self.0.store.room;
        room.promise_slots(bytes, max())?;
        // Of two that take some of the cap at a time, one sees the other.
        let (all, max) = (room.slots_bytes(), max());
        if bytes > 0 && all > max {
            room.end_slots(bytes);
            let (asked_bytes, allowed_bytes) = (bytes, bytes.saturating_sub(all - max));
            return Err(ObjectError::Slots {
                asked_bytes,
                allowed_bytes,
            }
            .into());
        }
        Ok(())
    }

    pub(crate) fn unpromise_slots(&self, bytes: u64) {
        self.0.store.room.end_slots(bytes);
    }

    /// Makes sure of both.
    pub(crate) fn promise_room(&self, bytes: u64, slots_bytes: u64) -> Result<(), HeapError> {
        self.promise_bytes(bytes)?;
        let slots = self.promise_slots(slots_bytes);
        slots.inspect_err(|_| self.unpromise_bytes(bytes))
    }

    pub(crate) fn unpromise_room(&self, bytes: u64, slots_bytes: u64) {
        self.unpromise_slots(slots_bytes);
        self.unpromise_bytes(bytes);
    }

    /// Counts so many bytes more of the cap for pages and what is known of them, if slots that are promised, and what pages and entries must have at least, leave as much.
    pub(crate) fn take_dram(&self, bytes: u64) -> Result<(), HeapError> {
        self.take_dram_beside(bytes, self.0.store.room.slots_bytes())
    }

    /// The same beside slots of so many bytes, whatever was promised to others: for what is in the pool already.
    pub(crate) fn take_dram_beside(&self, bytes: u64, slots_bytes: u64) -> Result<(), HeapError> {
        let store = &self.0.store;
        store.count_pages(0, bytes);
        let lacks = self.0.balance.lacks_bytes(slots_bytes);
        if lacks == 0 {
            return Ok(());
        }
        store.count_pages(bytes, 0);
        Err(ObjectError::Slots {
            asked_bytes: bytes,
            allowed_bytes: bytes.saturating_sub(lacks),
        }
        .into())
    }

    /// The most that can be promised.
    pub(crate) fn promise_max_bytes(&self) -> u64 {
        self.0.store.room.max_bytes
    }

    pub(crate) fn unpromise_bytes(&self, bytes: u64) {
        self.0.store.room.end_promise(bytes);
    }
}

/// A page buffer must leave the DRAM terrace a part of the cap.
fn check_buffer(store: &Store, pages_max: usize) -> Result<(), HeapError> {
    let (cap_bytes, _) = store.cap_and_used_bytes();
    let most = policy::pages_max_of_cap(cap_bytes);
    match pages_max <= most {
        true => Ok(()),
        false => Err(VmError::Bounds {
            what: "pages materialised at a time",
            asked: pages_max as u64,
            allowed: format!("up to {most}, under a cap of {cap_bytes} bytes,"),
        }
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    /// Where no slot was promised yet, what is known of addresses could come to more than the cap, and the pool took nothing any more.
    #[test]
    fn addresses_that_the_cap_cannot_hold_are_refused_before_there_is_anything() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions::scratch(dir.path(), 32 << 20, 64 << 20);
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let (cap, before) = heap.store().cap_and_used_bytes();
        let refused = |e: Option<HeapError>| {
            let slots = matches!(&e, Some(HeapError::Store(ObjectError::Slots { asked_bytes, allowed_bytes })) if allowed_bytes < asked_bytes);
            assert!(slots, "{e:?}");
        };
        refused(heap.pool(64, 1 << 30).err());
        refused(heap.pool_of_any_size(64, 1 << 30).err());
        refused(heap.array(10, 64, 1 << 30).err());
        assert_eq!(heap.store().cap_and_used_bytes(), (cap, before));
        let pool = heap.pool(64, 1000).unwrap();
        for n in 0..1000 {
            let object = pool.alloc().unwrap();
            // SAFETY: allocated just now, of so many bytes.
            unsafe { object.write_bytes(n as u8, 64) };
        }
        let (_, used) = heap.store().cap_and_used_bytes();
        assert!(used <= cap, "{used} bytes of {cap}");
    }

    #[test]
    fn a_place_for_as_many_as_there_may_be_leaves_dram_for_objects() {
        let dir = tempfile::tempdir().unwrap();
        // As many as there may ever be would need some 8 MiB for their addresses alone.
        let mut options = StoreOptions::scratch(dir.path(), 24 << 20, 24 << 30);
        options.prewrite = false;
        let heap = Heap::open(Store::open(&options).unwrap(), Way::InThread).unwrap();
        let places: Vec<_> = (0..6)
            .map(|_| heap.pool_of_any_size(8, heap.objects_that_fit(1)).unwrap())
            .collect();
        for place in &places {
            for _ in 0..1000 {
                place.alloc_sized(8).unwrap();
            }
        }
    }
}
