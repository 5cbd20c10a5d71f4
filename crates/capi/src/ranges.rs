//! Whose an address is, so that `terrace_free` needs nothing but the address.
//!
//! Promises: a range is found from when its memory can be handed out until it is closed; in a fork, its own hide what is left of its parent's. Never: touches an address.

use crate::handle::Handle;
use ::terrace_pool::RwLock;
use std::collections::BTreeMap;
use std::sync::RwLockWriteGuard;

/// First address to length and owner.
pub(crate) type Ranges = BTreeMap<usize, (usize, Handle)>;

static RANGES: RwLock<Ranges> = RwLock::new(BTreeMap::new());

/// Keeps everybody from them, for a fork.
pub(crate) fn hold() -> RwLockWriteGuard<'static, Ranges> {
    RANGES.write()
}

pub(crate) fn add((base, bytes): (usize, usize), owner: Handle) {
    let mut ranges = RANGES.write();
    // What was just reserved overlaps nothing that is alive; what a parent had there is not in this process.
    while let Some((&first, &(len, _))) = ranges.range(..base + bytes).next_back()
        && first + len > base
    {
        ranges.remove(&first);
    }
    ranges.insert(base, (bytes, owner));
}

pub(crate) fn remove(owner: Handle) {
    RANGES.write().retain(|_, (_, of)| *of != owner);
}

pub(crate) fn find(address: usize) -> Option<Handle> {
    let ranges = RANGES.read();
    let (base, (bytes, owner)) = ranges.range(..=address).next_back()?;
    (address - base < *bytes).then_some(*owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reserved_anew_hides_what_was_there() {
        let owner = |n: usize| Handle::from_pointer((n << 16) as *const u8);
        // Below all addresses that a process has.
        add((1000, 1000), owner(1));
        add((2000, 100), owner(2));
        add((2100, 400), owner(3));
        add((2600, 100), owner(4));
        add((1500, 900), owner(5));
        let found = [1499, 1500, 2000, 2099, 2399, 2400, 2499, 2600, 2699].map(find);
        let five = Some(owner(5));
        assert_eq!(
            found,
            [
                None,
                five,
                five,
                five,
                five,
                None,
                None,
                Some(owner(4)),
                Some(owner(4))
            ]
        );
        add((1000, 500), owner(1));
        assert_eq!([999, 1499, 1500].map(find), [None, Some(owner(1)), five]);
        (1..=5).for_each(|n| remove(owner(n)));
        assert_eq!([1200, 1600, 2650].map(find), [None; 3]);
    }
}
