//! Whose an address is, so that `terrace_free` needs nothing but the address.
//!
//! Promises: a range is found from when its memory can be handed out until it is closed. Never: touches an address.

use crate::handle::Handle;
use ::terrace_pool::RwLock;
use std::collections::BTreeMap;

/// First address to length and owner.
static RANGES: RwLock<BTreeMap<usize, (usize, Handle)>> = RwLock::new(BTreeMap::new());

pub(crate) fn add((base, bytes): (usize, usize), owner: Handle) {
    RANGES.write().insert(base, (bytes, owner));
}

pub(crate) fn remove(owner: Handle) {
    RANGES.write().retain(|_, (_, of)| *of != owner);
}

pub(crate) fn find(address: usize) -> Option<Handle> {
    let ranges = RANGES.read();
    let (base, (bytes, owner)) = ranges.range(..=address).next_back()?;
    (address - base < *bytes).then_some(*owner)
}
