//! Named regions: durable memory, at the same addresses in every process that opens it.
//!
//! A pool that is kept has regions by name. What a program writes into one is in DRAM, or steps down like any page; it is kept from a sync on, which
//! makes changes of any number of pages durable at once or not at all (`store/named`). A region that is opened again is as at its last sync, at the
//! same addresses, so pointers from it into it hold; its *root* is a byte of it from which a program finds the rest.
//!
//! Promises: pages of a region have room on the SSD and their slots in DRAM, so that a full SSD or cap is met by a region that is not made or does not grow; a region is open once at a time;
//! what was not synced is gone when a region is closed, as in a crash. Never: syncs by itself.

mod catalogue;
mod error;
mod place;
mod region;
mod shared;

pub use error::{NAME_MAX_BYTES, RegionError};
pub use region::{NamedRegion, SYNC_RANGES_MAX};

use crate::PAGE_BYTES;
use crate::error::VmError;
use crate::memory::{ADDRESSES_ALIGN_BYTES, Memory, Options};
use crate::opp::Heap;
use crate::parts::Way;
use crate::policy;
use crate::store::{NAMED_MAX, NAMED_PAGES_MAX, Named, Store, StoreOptions};
use crate::sys::SystemError;
use catalogue::{Catalogue, Record};
use error::out_of_bounds;
use shared::{Counted, Held, Shared, pages_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use terrace_pool::Mutex;

/// What is known of a region without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// Bytes it was made with or grew to.
    pub bytes: u64,
    /// Bytes it can grow to.
    pub bytes_max: u64,
    /// Where it lies when it is open.
    pub base: usize,
    /// Whether it is.
    pub open: bool,
}

/// The named regions of a pool that is kept.
#[derive(Clone)]
pub struct Regions(Arc<Shared>);

impl Regions {
    /// Opens the pool in `dir`, which is kept, or makes it: at most `cap_bytes` of DRAM, `ssd_bytes` on the SSD (0: four times the cap).
    pub fn open(options: &StoreOptions, way: Way) -> Result<Regions, RegionError> {
        let options = StoreOptions {
            durable: true,
            ..options.clone()
        };
        Regions::on_store(Store::open(&options)?, way)
    }

    pub(crate) fn on_store(store: Arc<Store>, way: Way) -> Result<Regions, RegionError> {
        let mut catalogue = Catalogue::read(&store)?;
        let place = catalogue.place;
        let (memory, place) = memory_at(&store, place, way)?;
        if catalogue.place.is_none() {
            catalogue.set_place(&store, place)?;
            store.make_durable()?;
        }
        let heap = Heap::new(memory, store)?;
        let regions = Regions(Arc::new(Shared {
            heap,
            base: place.0,
            bytes: place.1,
            held: Mutex::new(Held {
                catalogue,
                open: BTreeSet::new(),
            }),
        }));
        regions.take_stock()?;
        Ok(regions)
    }

    /// Ends removals that a crash broke off, and promises room to what is there.
    fn take_stock(&self) -> Result<(), RegionError> {
        let shared = &self.0;
        let mut held = shared.held.lock();
        let going: Vec<u16> = (held.catalogue.records.iter())
            .filter(|(_, record)| record.going)
            .map(|(number, _)| *number)
            .collect();
        for number in going {
            let pages = held.catalogue.records[&number].pages;
            Named::erase(shared.store(), number, pages)?;
            held.catalogue.remove(shared.store(), number)?;
        }
        // Under a larger cap the SSD promises less; what is there stays usable, and does not grow.
        for record in held.catalogue.records.values() {
            let (bytes, slots) = shared.room_of(0..record.pages);
            shared.store().room.owe(bytes);
            shared.store().room.owe_slots(slots);
        }
        Ok(())
    }

    /// Opens the region `name`; if there is none, makes it: `bytes` zeros, which can grow to `bytes_max` (0, or less than `bytes`: as many as the SSD
    /// takes). One that is there keeps its size.
    ///
    /// Errors: it is open already; no room on the SSD, no DRAM for slots, or no addresses for a new one.
    pub fn region(
        &self,
        name: &str,
        bytes: u64,
        bytes_max: u64,
    ) -> Result<NamedRegion, RegionError> {
        if name.is_empty() || name.len() > NAME_MAX_BYTES || name.contains('\0') {
            return Err(RegionError::Name { bytes: name.len() });
        }
        self.0.store().here()?;
        let mut held = self.0.held.lock();
        let heap = &self.0.heap;
        let (number, counted) = match held.catalogue.find(name) {
            Some(number) if held.open.contains(&number) => {
                let name = name.to_owned();
                return Err(RegionError::InUse { name });
            }
            Some(number) => {
                let record = &held.catalogue.records[&number];
                (number, Counted::new(heap, record, true)?)
            }
            None => self.make(&mut held, name, bytes, bytes_max)?,
        };
        let record = &held.catalogue.records[&number];
        let region = NamedRegion::open(&self.0, number, record, counted)?;
        held.open.insert(number);
        Ok(region)
    }

    fn make(
        &self,
        held: &mut Held,
        name: &str,
        bytes: u64,
        bytes_max: u64,
    ) -> Result<(u16, Counted), RegionError> {
        let (shared, store) = (&self.0, self.0.store());
        let fits = self.bytes_that_fit();
        let most = NAMED_PAGES_MAX * PAGE_BYTES as u64;
        if bytes == 0 || bytes > most {
            return Err(out_of_bounds("bytes of a region", bytes, most));
        }
        let bytes_max = if bytes_max < bytes {
            fits.max(bytes)
        } else {
            bytes_max
        };
        let pages_max = pages_of(bytes_max.min(most));
        let slots = crate::space::slots_of(pages_max) as u32;
        let slots_all = (shared.bytes / ADDRESSES_ALIGN_BYTES as u64) as u32;
        let (number, first_slot) = held.catalogue.room(slots, slots_all)?;
        let pages = pages_of(bytes);
        let record = Record {
            name: name.to_owned(),
            first_slot,
            slots,
            pages,
            pages_max,
            going: false,
        };
        shared.promise(0..pages)?;
        let counted = Counted::new(&shared.heap, &record, false);
        let counted = counted.inspect_err(|_| shared.unpromise(0..pages))?;
        // The record last: what has none is no region.
        let made = Named::make(store, number, pages)
            .and_then(|()| held.catalogue.put(store, number, record))
            .and_then(|()| store.make_durable());
        if let Err(e) = made {
            shared.unpromise(0..pages);
            // It may be in the log already, and durable with what comes: it is taken back there. Where that cannot be, its number and addresses stay taken.
            if held.catalogue.remove(store, number).is_err()
                && let Some(record) = held.catalogue.records.get_mut(&number)
            {
                record.going = true;
            }
            return Err(e.into());
        }
        Ok((number, counted))
    }

    /// How long a region can be that has the SSD for itself.
    pub fn bytes_that_fit(&self) -> u64 {
        let page = Named::promise_bytes(1);
        self.0.heap.promise_max_bytes() / page * PAGE_BYTES as u64
    }

    /// Removes the region `name` and all that is in it.
    pub fn remove(&self, name: &str) -> Result<(), RegionError> {
        let (shared, store) = (&self.0, self.0.store());
        store.here()?;
        let mut held = shared.held.lock();
        let name_owned = || name.to_owned();
        let missing = || RegionError::Missing { name: name_owned() };
        let number = held.catalogue.find(name).ok_or_else(missing)?;
        if held.open.contains(&number) {
            return Err(RegionError::InUse { name: name_owned() });
        }
        let record = held.catalogue.records[&number].clone();
        let pages = record.pages;
        // From here on it is gone, even if the next opening has to end it.
        held.catalogue.put(
            store,
            number,
            Record {
                going: true,
                ..record
            },
        )?;
        // Nobody finds it any more, and nobody has its number and addresses before its record is gone: all other regions need not wait for the device.
        drop(held);
        store.make_durable()?;
        Named::erase(store, number, pages)?;
        shared.held.lock().catalogue.remove(store, number)?;
        store.make_durable()?;
        shared.unpromise(0..pages);
        Ok(())
    }

    /// What regions there are, in the order they were made in as far as numbers were not used again.
    pub fn list(&self) -> Vec<RegionInfo> {
        let held = self.0.held.lock();
        let records = held.catalogue.records.iter().filter(|(_, r)| !r.going);
        let info = |(number, record): (&u16, &Record)| RegionInfo {
            name: record.name.clone(),
            bytes: record.pages * PAGE_BYTES as u64,
            bytes_max: record.pages_max * PAGE_BYTES as u64,
            base: self.0.base_of(record),
            open: held.open.contains(number),
        };
        records.map(info).collect()
    }

    /// The memory that shows them, the store, and what they take of the cap. It has no arrays, objects or handles: they would not be kept.
    pub fn heap(&self) -> &Heap {
        &self.0.heap
    }

    /// Where the pool's regions lie: first address and bytes.
    pub fn addresses(&self) -> (usize, usize) {
        (self.0.base as usize, self.0.bytes as usize)
    }
}

/// The pool's memory where its regions lie; if none was made yet, at the first place where nothing is.
fn memory_at(
    store: &Store,
    place: Option<(u64, u64)>,
    way: Way,
) -> Result<(Memory, (u64, u64)), RegionError> {
    let (cap_bytes, _) = store.cap_and_used_bytes();
    let memory = |base: u64, bytes: u64| {
        Memory::new(Options {
            way,
            pages_max: policy::pages_of_cap(cap_bytes),
            reserve_bytes: bytes as usize,
            base: Some(base as usize),
            remembered: Some(policy::remembered_of_cap(cap_bytes)),
            ..Options::default()
        })
    };
    if let Some((base, bytes)) = place {
        return Ok((memory(base, bytes)?, (base, bytes)));
    }
    let bytes = place::bytes_for(store.ssd_bytes());
    let mut places = place::places(bytes, store.identity());
    loop {
        let base = places.next().ok_or(RegionError::NoAddresses {
            asked_bytes: bytes,
            all_bytes: 0,
        })?;
        match memory(base, bytes) {
            Ok(memory) => return Ok((memory, (base, bytes))),
            Err(VmError::System(SystemError::Taken { .. })) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

const _: () = assert!(NAMED_MAX as usize * 3 < crate::store::TABLES_MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opp::HeapError;
    use crate::store::tests::{device, options, pool};
    use crate::store::{ObjectError, Work};
    use terrace_media::sim::Fault;
    use terrace_pool::Options;

    #[test]
    fn a_region_whose_addresses_the_cap_cannot_hold_is_not_made() {
        let options = Options {
            dram_bytes: 32 << 20,
            ..options(true)
        };
        let device = device(&options, 1024, 1);
        let store = Store::on_pool(pool(&device, options), Work::Both).expect("a store");
        let regions = Regions::on_store(store.clone(), Way::InThread).expect("regions");
        // Half of the pool's addresses come to 4 MiB.
        let large = regions.addresses().1 as u64 / 2;
        drop(regions.region("there", 1 << 16, large).expect("a region"));
        let others = regions.heap().unpromised_bytes() - (3 << 20);
        store.count_pages(0, others);
        let refused = |name| {
            let said = regions.region(name, 1 << 16, large).map(drop);
            let slots = RegionError::Heap(HeapError::Store(ObjectError::Slots {
                asked_bytes: 0,
                allowed_bytes: 0,
            }));
            let is_dram = said.as_ref().is_err_and(|e| {
                std::mem::discriminant(e) == std::mem::discriminant(&slots)
                    && e.to_string().contains("no DRAM")
            });
            assert!(is_dram, "{said:?}");
        };
        let (_, used) = store.cap_and_used_bytes();
        refused("new");
        refused("there");
        assert_eq!(store.cap_and_used_bytes().1, used);
        let region = regions
            .region("small", 1 << 16, 4 << 20)
            .expect("another region");
        region.grow(2 << 20).expect("longer");
        region.sync_all().expect("synced");
        let names: Vec<_> = regions.list().into_iter().map(|info| info.name).collect();
        assert_eq!(names, ["there", "small"]);
        store.count_pages(others, 0);
        regions.region("there", 0, 0).expect("as it was");
    }

    #[test]
    fn a_device_that_failed_is_told_by_every_sync() {
        let options = Options {
            dram_bytes: 32 << 20,
            ..options(true)
        };
        let device = device(&options, 1024, 1);
        let store = Store::on_pool(pool(&device, options), Work::Both).expect("a store");
        let regions = Regions::on_store(store, Way::InThread).expect("regions");
        let region = regions.region("r", 1 << 16, 0).expect("a region");
        device.faults().fail_write(Fault::eio().always());
        for n in 0..3 {
            region
                .word(0)
                .store(n + 1, std::sync::atomic::Ordering::Relaxed);
            let refused = region.sync_all().expect_err("nothing is written");
            let failed = RegionError::Heap(HeapError::Store(ObjectError::ReadOnly));
            assert_eq!(refused.to_string(), failed.to_string(), "sync {n}");
        }
    }
}
