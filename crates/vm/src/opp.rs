//! Objects on pages of their own (OPP): arrays and pools of objects of one size, as plain memory.
//!
//! Object `n` lies on page `n` of a region, at an offset of its own, so that few objects touched mean few pages materialised and
//! what goes back to DRAM and SSD is the object alone. Its number is its slot in a table of the store, so ids are dense.
//!
//! Promises: an object reads as zeros until it is written to; what was allocated has room on the SSD, and its slot room in DRAM, so that a full SSD or cap is met by an
//! allocation that is refused and never by a program that is killed; freeing what is not there is an error. Never: keeps a list or a
//! map of objects of its own.

mod pool;
mod slots;

pub use pool::ObjectPool;

use crate::backing::PAGE_BYTES;
use crate::balance::Balance;
use crate::memory::{Memory, Options, VmError, Way};
use crate::policy;
use crate::region::Region;
use crate::store::{ObjectError, Objects, Store, TABLES_MAX};
use pool::SIZE_BYTES;
pub(crate) use slots::Slots;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use terrace_log::ObjectId;
use terrace_log::entry::entry_bytes;

/// Objects that an array or pool can grow to, if not said otherwise: what addresses it takes, which cost nothing.
pub const OBJECTS_MAX_DEFAULT: u64 = 1 << 28;

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
            ..Options::default()
        }
    }

    /// Says how many pages may be materialised, instead of letting that adapt; the DRAM terrace has the rest of the cap.
    pub fn set_pages_max(&self, pages_max: usize) -> Result<(), HeapError> {
        check_buffer(&self.0.store, pages_max)?;
        let Shared {
            memory, balance, ..
        } = &*self.0;
        let (before_bytes, _) = memory.buffer_bytes();
        let set = memory.set_pages_max(pages_max);
        let was_fixed = balance.fix(true);
        set?;
        // Slots that are promised may have more than is left then.
        self.take_dram(0).inspect_err(|_| {
            memory.set_buffer_bytes(before_bytes);
            balance.fix(was_fixed);
        })
    }

    /// Gives pages most of the cap, before there are any; then it adapts. For programs that do not know this library: where all of their memory
    /// fits, no page faults twice.
    pub fn begin_large(&self) {
        self.0.balance.begin_large();
    }

    /// Counts so many bytes more of the cap for something else, until they are given back (`Ground::count`). Pages leave before, if the DRAM terrace would
    /// have too little.
    pub fn make_way(&self, bytes: u64) {
        self.0.balance.make_way(bytes);
    }

    /// What pages and the DRAM terrace have of the cap together, bytes.
    pub fn between_them_bytes(&self) -> u64 {
        self.0.balance.between_them_bytes()
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.0.memory
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// How many objects of `bytes` bytes the SSD takes, and a few more numbers, so that lanes need not be equally full.
    pub fn objects_that_fit(&self, bytes: u32) -> u64 {
        let object = entry_bytes(ObjectId::KEY_BYTES, bytes as usize, false, false) as u64;
        let fit = self.promise_max_bytes() / object;
        (fit + fit / 8 + 1024).min(OBJECTS_MAX_DEFAULT)
    }

    /// An array of `len` objects of `bytes` bytes (up to 4,096), which can be resized up to `objects_max`.
    pub fn array(&self, len: u64, bytes: u32, objects_max: u64) -> Result<Array, HeapError> {
        let max = objects_max.max(len);
        let objects = Shown::new(self, bytes, max, |store, table| {
            Objects::new(store, table, bytes)
        })?;
        objects.promise(len, bytes)?;
        objects.slots.reach(len)?;
        Ok(Array {
            objects,
            len: Mutex::new(len),
        })
    }

    /// A pool of objects of `bytes` bytes (up to 4,096), of up to `objects_max` of them.
    pub fn pool(&self, bytes: u32, objects_max: u64) -> Result<ObjectPool, HeapError> {
        let objects = Shown::new(self, bytes, objects_max, |store, table| {
            Ok(Objects::new(store, table, bytes)?.strict())
        })?;
        Ok(ObjectPool::of(objects))
    }

    /// The same, of objects that have up to `bytes_max` bytes, each its own number, which can change. Two bytes and a wider slot more for each.
    pub fn pool_of_any_size(
        &self,
        bytes_max: u32,
        objects_max: u64,
    ) -> Result<ObjectPool, HeapError> {
        let objects = Shown::new(self, bytes_max, objects_max, |store, table| {
            Ok(Objects::of_any_size(store, table, bytes_max, objects_max)?.strict())
        })?;
        Ok(ObjectPool::of(objects))
    }

    pub(crate) fn take_table(&self) -> Result<u16, HeapError> {
        if self.0.store.keeps {
            return Err(HeapError::Kept);
        }
        let table = self.0.store.take_table();
        table.ok_or(HeapError::NoTable { max: TABLES_MAX })
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

/// A table of objects and the region that shows it.
struct Shown {
    heap: Heap,
    table: u16,
    /// Of each, or the longest.
    bytes: u32,
    objects: Arc<Objects>,
    /// None only while it is dropped.
    region: Option<Region>,
    slots: Slots,
    /// Objects that have room on the SSD, and how much.
    promised: AtomicU64,
    promised_bytes: AtomicU64,
}

impl Shown {
    fn new(
        heap: &Heap,
        bytes: u32,
        objects_max: u64,
        make: impl FnOnce(Arc<Store>, u16) -> Result<Objects, ObjectError>,
    ) -> Result<Shown, HeapError> {
        let table = heap.take_table()?;
        let made = make(heap.0.store.clone(), table)
            .map_err(HeapError::from)
            .and_then(|objects| {
                let objects = Arc::new(objects);
                let region = heap.0.memory.region(objects_max, objects.clone())?;
                let beside_bytes = objects.sizes().map_or(0, |_| SIZE_BYTES);
                let slots = Slots::new(heap, table, beside_bytes)?;
                heap.take_dram(policy::addresses_bytes(objects_max))?;
                Ok((objects, region, slots))
            });
        match made {
            Ok((objects, region, slots)) => Ok(Shown {
                heap: heap.clone(),
                table,
                bytes,
                objects,
                region: Some(region),
                slots,
                promised: AtomicU64::new(0),
                promised_bytes: AtomicU64::new(0),
            }),
            Err(e) => {
                heap.0.store.give_table(table);
                Err(e)
            }
        }
    }

    fn region(&self) -> &Region {
        self.region.as_ref().expect("there until it is dropped")
    }

    fn objects_max(&self) -> u64 {
        self.region().pages()
    }

    fn addresses(&self) -> (usize, usize) {
        (self.region().base() as usize, self.region().bytes())
    }

    /// Makes sure that so many more objects of a size have room on the SSD.
    fn promise(&self, objects: u64, bytes: u32) -> Result<(), HeapError> {
        let bytes = objects.saturating_mul(room_bytes(bytes));
        self.heap.promise_bytes(bytes)?;
        self.promised.fetch_add(objects, Ordering::Relaxed);
        self.promised_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn unpromise(&self, objects: u64, bytes: u32) {
        let bytes = objects * room_bytes(bytes);
        self.promised.fetch_sub(objects, Ordering::Relaxed);
        self.promised_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.heap.unpromise_bytes(bytes);
    }

    fn bytes_of(&self, object: u64) -> u32 {
        match self.objects.sizes() {
            Some(sizes) => sizes.get(object) as u32,
            None => self.bytes,
        }
    }

    fn address(&self, object: u64) -> *mut u8 {
        let offset = self.objects.offset(object);
        let at = object as usize * PAGE_BYTES + offset;
        (self.region().base() as usize + at) as *mut u8
    }

    /// Which object lies at an address.
    fn object_at(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.region().base() as usize)?;
        let object = (offset / PAGE_BYTES) as u64;
        let there = object < self.objects_max() && self.address(object) as usize == address;
        there.then_some(object)
    }
}

/// What an object takes of the SSD.
fn room_bytes(bytes: u32) -> u64 {
    entry_bytes(ObjectId::KEY_BYTES, bytes as usize, false, false) as u64
}

impl Heap {
    /// Makes sure that entries of so many more bytes have room on the SSD.
    pub(crate) fn promise_bytes(&self, bytes: u64) -> Result<(), HeapError> {
        let store = &self.0.store;
        // What cannot be stored any more is not promised.
        if store.failure().is_some() {
            return Err(ObjectError::ReadOnly.into());
        }
        Ok(store.room.promise(bytes)?)
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

    /// Counts so many bytes more of the cap for pages and what is known of them, if what slots are promised leaves as much.
    pub(crate) fn take_dram(&self, bytes: u64) -> Result<(), HeapError> {
        let store = &self.0.store;
        store.count_pages(0, bytes);
        let max = self.0.balance.slots_max_bytes();
        let lacks = store.room.slots_bytes().saturating_sub(max);
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

impl Drop for Shown {
    fn drop(&mut self) {
        let addresses = policy::addresses_bytes(self.objects_max());
        self.heap.0.store.count_pages(addresses, 0);
        // First what shows it, so that nothing is written to the table after it is gone.
        self.region = None;
        let promised = self.promised_bytes.load(Ordering::Relaxed);
        self.heap.unpromise_bytes(promised);
        match self.heap.0.store.drop_table(self.table) {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(table = self.table, %error, "a table could not be dropped and is not used again");
            }
        }
    }
}

/// Objects by index. Dropping it frees them all.
pub struct Array {
    objects: Shown,
    len: Mutex<u64>,
}

impl Array {
    /// The address of object `index`. Valid for reads and writes of its bytes as long as the array has it.
    pub fn address(&self, index: u64) -> *mut u8 {
        assert!(
            index < self.objects.objects_max(),
            "object {index} of {}",
            self.len()
        );
        self.objects.address(index)
    }

    /// Where its addresses begin, and how many bytes of them it has.
    pub fn addresses(&self) -> (usize, usize) {
        self.objects.addresses()
    }

    /// Objects it has.
    pub fn len(&self) -> u64 {
        *self.len.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes how many objects it has. New ones are zeros. Nobody may use those that go.
    pub fn resize(&self, len: u64) -> Result<(), HeapError> {
        let mut held = self.len.lock().unwrap_or_else(PoisonError::into_inner);
        let max = self.objects.objects_max();
        if len > max {
            return Err(HeapError::TooMany { asked: len, max });
        }
        if len > *held {
            let more = len - *held;
            self.objects.promise(more, self.objects.bytes)?;
            let slots = self.objects.slots.reach(len);
            slots.inspect_err(|_| self.objects.unpromise(more, self.objects.bytes))?;
        } else {
            self.objects.region().discard(len..*held)?;
            self.objects.unpromise(*held - len, self.objects.bytes);
            self.objects.slots.let_go(len);
        }
        *held = len;
        Ok(())
    }

    /// Frees the contents of one object: it is zeros again, and takes no DRAM and no SSD. Its place in the array stays.
    pub fn clear(&self, index: u64) -> Result<(), HeapError> {
        Ok(self.objects.region().discard(index..index + 1)?)
    }

    /// The 8 bytes at `word` times 8 of object `index`, as an atomic.
    pub fn word(&self, index: u64, word: usize) -> &AtomicU64 {
        assert!((word + 1) * 8 <= self.objects.bytes as usize);
        let at = index as usize * PAGE_BYTES + self.objects.objects.offset(index);
        self.objects.region().word(at / 8 + word)
    }
}
