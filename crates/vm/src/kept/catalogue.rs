//! Which named regions a pool has, and where they lie: entries of a table of their own.
//!
//! | entry | little-endian |
//! |---|---|
//! | [`PLACE_ID`] | base u64, bytes u64 |
//! | a region's number | first slot u32, slots u32, pages u64, most pages u64, 1 if it is being removed u64, name |
//!
//! Promises: what a call changed is in the pool's log when it returns, in order with all that is stored after. Never: waits until it is durable.

use super::error::{NAME_MAX_BYTES, RegionError};
use crate::opp::HeapError;
use crate::store::{NAMED_MAX, ObjectError, Shape, Store, TABLES_MAX, Value};
use std::collections::BTreeMap;

const TABLE: u16 = TABLES_MAX as u16 - 1;
/// The entry that says where the pool's regions lie.
const PLACE_ID: u64 = NAMED_MAX as u64;
const RECORD_BYTES: usize = 32;

/// One region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub name: String,
    pub first_slot: u32,
    pub slots: u32,
    /// Pages that it has, or had before a crash: they are promised room.
    pub pages: u64,
    pub pages_max: u64,
    /// Its pages are being freed.
    pub going: bool,
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES + self.name.len());
        bytes.extend(self.first_slot.to_le_bytes());
        bytes.extend(self.slots.to_le_bytes());
        for word in [self.pages, self.pages_max, u64::from(self.going)] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.name.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Record> {
        let (head, name) = bytes.split_at_checked(RECORD_BYTES)?;
        let half = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let whole = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        Some(Record {
            name: String::from_utf8(name.to_vec()).ok()?,
            first_slot: half(0)?,
            slots: half(4)?,
            pages: whole(8)?,
            pages_max: whole(16)?,
            going: whole(24)? != 0,
        })
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    /// Where regions lie: base and bytes. None: the pool was not opened yet.
    pub place: Option<(u64, u64)>,
    pub records: BTreeMap<u16, Record>,
}

impl Catalogue {
    /// What is in the pool.
    pub fn read(store: &Store) -> Result<Catalogue, HeapError> {
        store.make_owned_table(TABLE, Shape::Any)?;
        let mut catalogue = Catalogue::default();
        if let Some(bytes) = bytes_of(store, PLACE_ID)? {
            let word =
                |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
            let place = word(0).zip(word(8)).ok_or(damaged(&bytes))?;
            catalogue.place = Some(place);
        }
        for number in 0..NAMED_MAX {
            if let Some(bytes) = bytes_of(store, number.into())? {
                let record = Record::decode(&bytes).ok_or(damaged(&bytes))?;
                catalogue.records.insert(number, record);
            }
        }
        Ok(catalogue)
    }

    pub fn set_place(&mut self, store: &Store, place: (u64, u64)) -> Result<(), ObjectError> {
        let bytes = [place.0.to_le_bytes(), place.1.to_le_bytes()].concat();
        store.put_own(TABLE, PLACE_ID, &bytes)?;
        self.place = Some(place);
        Ok(())
    }

    pub fn find(&self, name: &str) -> Option<u16> {
        let mut all = self.records.iter();
        all.find(|(_, r)| !r.going && r.name == name)
            .map(|(n, _)| *n)
    }

    /// A number and slots for a region that is made; the record is the caller's to put.
    pub fn room(&self, slots: u32, slots_all: u32) -> Result<(u16, u32), RegionError> {
        let number = (0..NAMED_MAX).find(|number| !self.records.contains_key(number));
        let number = number.ok_or(RegionError::TooMany { max: NAMED_MAX })?;
        let mut taken: Vec<(u32, u32)> = (self.records.values())
            .map(|r| (r.first_slot, r.slots))
            .collect();
        taken.sort_unstable();
        let mut first = 0;
        for (start, len) in taken {
            if start.saturating_sub(first) >= slots {
                break;
            }
            first = start + len;
        }
        match slots_all.saturating_sub(first) >= slots {
            true => Ok((number, first)),
            false => Err(RegionError::NoAddresses {
                asked_bytes: u64::from(slots) * crate::ADDRESSES_ALIGN_BYTES as u64,
                all_bytes: u64::from(slots_all) * crate::ADDRESSES_ALIGN_BYTES as u64,
            }),
        }
    }

    pub fn put(&mut self, store: &Store, number: u16, record: Record) -> Result<(), ObjectError> {
        debug_assert!(record.name.len() <= NAME_MAX_BYTES);
        store.put_own(TABLE, number.into(), &record.encode())?;
        self.records.insert(number, record);
        Ok(())
    }

    pub fn remove(&mut self, store: &Store, number: u16) -> Result<(), ObjectError> {
        store.free_own(TABLE, number.into())?;
        self.records.remove(&number);
        Ok(())
    }
}

fn bytes_of(store: &Store, id: u64) -> Result<Option<Vec<u8>>, ObjectError> {
    store.read(TABLE, id, |value| match value {
        Value::Bytes(bytes) => Some(bytes.to_vec()),
        _ => None,
    })
}

/// Its checksum was right, and it is not what is written here.
fn damaged(bytes: &[u8]) -> ObjectError {
    ObjectError::Damaged {
        offset: 0,
        len: bytes.len() as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(first_slot: u32, slots: u32) -> Record {
        Record {
            name: format!("at {first_slot}"),
            first_slot,
            slots,
            pages: 7,
            pages_max: 9,
            going: first_slot == 3,
        }
    }

    #[test]
    fn records_come_back_and_gaps_are_used() {
        let mut catalogue = Catalogue::default();
        for (number, at) in [(0, (0, 2)), (1, (5, 1)), (3, (3, 1))] {
            let record = record(at.0, at.1);
            assert_eq!(Record::decode(&record.encode()), Some(record.clone()));
            catalogue.records.insert(number, record);
        }
        assert_eq!(Record::decode(&[0; 31]), None);
        let room = |slots| catalogue.room(slots, 10).ok();
        assert_eq!(room(1), Some((2, 2)));
        assert_eq!(room(2), Some((2, 6)));
        assert_eq!(room(4), Some((2, 6)));
        assert_eq!(room(5), None);
        assert_eq!(catalogue.find("at 5"), Some(1));
        assert_eq!(catalogue.find("at 3"), None, "it is being removed");
    }
}
