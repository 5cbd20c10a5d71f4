//! Objects on pages of their own (OPP): arrays and pools of objects of one size, as plain memory.
//!
//! Object `n` lies on page `n` of a region, at an offset of its own, so that few objects touched mean few pages materialised and
//! what goes back to DRAM and SSD is the object alone. Its number is its slot in a table of the store, so ids are dense.
//!
//! Promises: an object reads as zeros until it is written to; what was allocated has room on the SSD, so that a full SSD is met by an
//! allocation that is refused and never by a program that is killed; freeing what is not there is an error. Never: keeps a list or a
//! map of objects of its own.

use crate::backing::PAGE_BYTES;
use crate::memory::{Memory, Options, VmError, Way};
use crate::policy;
use crate::region::Region;
use crate::store::{ObjectError, Objects, Store, TABLES_MAX};
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
    tables: Mutex<Vec<bool>>,
    /// Bytes that live objects may come to on the SSD, and their bound.
    promised_bytes: AtomicU64,
    promise_max_bytes: u64,
    /// What the cap was told of the page buffer, bytes.
    counted_bytes: AtomicU64,
}

impl Heap {
    /// Shows objects of `store` in `memory`, and counts its page buffer against the store's cap.
    pub fn new(memory: Memory, store: Arc<Store>) -> Heap {
        let heap = Heap(Arc::new(Shared {
            promise_max_bytes: store.usable_bytes() / 10 * 9,
            memory,
            store,
            tables: Mutex::new(vec![false; TABLES_MAX]),
            promised_bytes: AtomicU64::new(0),
            counted_bytes: AtomicU64::new(0),
        }));
        heap.count();
        heap
    }

    /// The same with a memory of its own, whose page buffer has a sixteenth of the store's cap.
    pub fn open(store: Arc<Store>, way: Way) -> Result<Heap, HeapError> {
        let (cap_bytes, _) = store.cap_and_used_bytes();
        let memory = Memory::new(Options {
            way,
            pages_max: policy::pages_of_cap(cap_bytes),
            ..Options::default()
        })?;
        Ok(Heap::new(memory, store))
    }

    /// Changes how many pages may be materialised; the DRAM terrace has the rest of the cap.
    pub fn set_pages_max(&self, pages_max: usize) -> Result<(), HeapError> {
        self.0.memory.set_pages_max(pages_max)?;
        self.count();
        Ok(())
    }

    fn count(&self) {
        let bytes = policy::buffer_bytes(self.0.memory.pages_max());
        let before = self.0.counted_bytes.swap(bytes, Ordering::Relaxed);
        self.0.store.count_pages(before, bytes);
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
        let fit = self.0.promise_max_bytes / object;
        (fit + fit / 8 + 1024).min(OBJECTS_MAX_DEFAULT)
    }

    /// An array of `len` objects of `bytes` bytes (up to 4,096), which can be resized up to `objects_max`.
    pub fn array(&self, len: u64, bytes: u32, objects_max: u64) -> Result<Array, HeapError> {
        let objects = Shown::new(self, bytes, objects_max.max(len), false)?;
        objects.promise(len)?;
        Ok(Array {
            objects,
            len: Mutex::new(len),
        })
    }

    /// A pool of objects of `bytes` bytes (up to 4,096), of up to `objects_max` of them.
    pub fn pool(&self, bytes: u32, objects_max: u64) -> Result<ObjectPool, HeapError> {
        Ok(ObjectPool {
            objects: Shown::new(self, bytes, objects_max, true)?,
            freeing: std::array::from_fn(|_| Mutex::new(())),
        })
    }

    pub(crate) fn take_table(&self) -> Result<u16, HeapError> {
        if self.0.store.keeps {
            return Err(HeapError::Kept);
        }
        let mut tables = self.0.tables.lock().unwrap_or_else(PoisonError::into_inner);
        let free = tables.iter().position(|taken| !taken);
        let free = free.ok_or(HeapError::NoTable { max: TABLES_MAX })?;
        tables[free] = true;
        Ok(free as u16)
    }
}

/// A table of objects and the region that shows it.
struct Shown {
    heap: Heap,
    table: u16,
    bytes: u32,
    objects: Arc<Objects>,
    /// None only while it is dropped.
    region: Option<Region>,
    promised: AtomicU64,
}

impl Shown {
    fn new(heap: &Heap, bytes: u32, objects_max: u64, strict: bool) -> Result<Shown, HeapError> {
        let table = heap.take_table()?;
        let made = Objects::new(heap.0.store.clone(), table, bytes)
            .map_err(HeapError::from)
            .and_then(|objects| {
                let objects = Arc::new(if strict { objects.strict() } else { objects });
                let region = heap.0.memory.region(objects_max, objects.clone())?;
                Ok((objects, region))
            });
        match made {
            Ok((objects, region)) => {
                let addresses = policy::addresses_bytes(objects_max);
                heap.0.store.count_pages(0, addresses);
                Ok(Shown {
                    heap: heap.clone(),
                    table,
                    bytes,
                    objects,
                    region: Some(region),
                    promised: AtomicU64::new(0),
                })
            }
            Err(e) => {
                heap.give_table(table);
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

    fn entry_bytes(&self) -> u64 {
        entry_bytes(ObjectId::KEY_BYTES, self.bytes as usize, false, false) as u64
    }

    /// Makes sure that so many more objects have room on the SSD.
    fn promise(&self, objects: u64) -> Result<(), HeapError> {
        let bytes = objects.saturating_mul(self.entry_bytes());
        self.heap.promise_bytes(bytes)?;
        self.promised.fetch_add(objects, Ordering::Relaxed);
        Ok(())
    }

    fn unpromise(&self, objects: u64) {
        self.promised.fetch_sub(objects, Ordering::Relaxed);
        self.heap.unpromise_bytes(objects * self.entry_bytes());
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

impl Heap {
    /// Makes sure that entries of so many more bytes have room on the SSD.
    pub(crate) fn promise_bytes(&self, bytes: u64) -> Result<(), HeapError> {
        let shared = &self.0;
        let promised = shared.promised_bytes.fetch_add(bytes, Ordering::Relaxed);
        if promised.saturating_add(bytes) > shared.promise_max_bytes {
            shared.promised_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(ObjectError::Full { asked_bytes: bytes }.into());
        }
        Ok(())
    }

    /// The most that can be promised.
    pub(crate) fn promise_max_bytes(&self) -> u64 {
        self.0.promise_max_bytes
    }

    pub(crate) fn unpromise_bytes(&self, bytes: u64) {
        self.0.promised_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn give_table(&self, table: u16) {
        let mut tables = self.0.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables[usize::from(table)] = false;
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        let addresses = policy::addresses_bytes(self.objects_max());
        self.heap.0.store.count_pages(addresses, 0);
        // First what shows it, so that nothing is written to the table after it is gone.
        self.region = None;
        self.unpromise(self.promised.load(Ordering::Relaxed));
        match self.heap.0.store.drop_table(self.table) {
            Ok(()) => self.heap.give_table(self.table),
            Err(error) => {
                tracing::warn!(table = self.table, %error, "a table could not be dropped and is not used again");
            }
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let counted = self.counted_bytes.load(Ordering::Relaxed);
        self.store.count_pages(counted, 0);
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
            self.objects.promise(len - *held)?;
        } else {
            self.objects.region().discard(len..*held)?;
            self.objects.unpromise(*held - len);
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

/// Threads that free objects of one pool at a time.
const FREEING_MAX: usize = 16;

/// Objects that are allocated and freed one by one. Dropping it frees them all. Who touches one that is freed gets SIGBUS.
pub struct ObjectPool {
    objects: Shown,
    /// Of two threads that free the same object, one is told.
    freeing: [Mutex<()>; FREEING_MAX],
}

impl ObjectPool {
    /// A new object, zeros.
    pub fn alloc(&self) -> Result<*mut u8, HeapError> {
        let Shown { heap, table, .. } = &self.objects;
        self.objects.promise(1)?;
        let inserted = heap.0.store.insert(*table, &[]).map_err(HeapError::from);
        let object = inserted.and_then(|object| {
            let max = self.objects.objects_max();
            if object < max {
                return Ok(object);
            }
            heap.0.store.free(*table, object)?;
            Err(HeapError::TooMany {
                asked: object + 1,
                max,
            })
        });
        match object {
            Ok(object) => Ok(self.objects.address(object)),
            Err(e) => {
                self.objects.unpromise(1);
                Err(e)
            }
        }
    }

    /// Frees an object. Nobody may use it any more.
    ///
    /// Errors: not the address of an object that is allocated.
    pub fn free(&self, address: *mut u8) -> Result<(), HeapError> {
        let address = address as usize;
        let Shown { heap, table, .. } = &self.objects;
        let object = self.objects.object_at(address);
        let object = object.ok_or(HeapError::NotAnObject { address })?;
        let _one = self.freeing[object as usize % FREEING_MAX]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !heap.0.store.contains(*table, object)? {
            return Err(HeapError::NotAnObject { address });
        }
        self.objects.region().discard(object..object + 1)?;
        self.objects.unpromise(1);
        Ok(())
    }

    /// Where its addresses begin, and how many bytes of them it has.
    pub fn addresses(&self) -> (usize, usize) {
        self.objects.addresses()
    }

    /// Objects that are allocated.
    pub fn len(&self) -> u64 {
        self.objects.promised.load(Ordering::Relaxed)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
