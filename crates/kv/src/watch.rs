//! WATCH: who looks at a key is told at its next look whether somebody has changed it since.
//!
//! Promises: a change of a watched key is noted while its lane is held, so that a look with the lane held sees all changes
//! before it. A key nobody watches costs one load. Never: keeps anything for a key that nobody watches any more.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use terrace_pool::Mutex;

/// Room for so many keys stays when nobody watches them any more.
const KEPT_KEYS: usize = 128;

/// Keys that are watched, with how many watch each and how often it was changed since the first of them came.
#[derive(Default)]
pub(crate) struct Watch {
    watched: AtomicUsize,
    keys: Mutex<HashMap<Box<[u8]>, Counts>>,
}

#[derive(Default, Clone, Copy)]
struct Counts {
    watchers: u32,
    changes: u64,
}

/// A key that is watched; to be given back with [`unwatch`](crate::unwatch).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The key.
    pub key: Box<[u8]>,
    changes: u64,
    /// Whether it existed when it began to be watched: one that has expired since has changed too.
    pub existed: bool,
}

impl Watched {
    /// A key as it is now, for stores that count changes by themselves.
    pub fn new(key: &[u8], changes: u64, existed: bool) -> Watched {
        Watched {
            key: key.into(),
            changes,
            existed,
        }
    }
    /// How often it had been changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

impl Watch {
    /// Takes note that a key was changed. Its lane is held.
    #[inline]
    pub(crate) fn touch(&self, key: &[u8]) {
        if self.watched.load(Ordering::Acquire) > 0
            && let Some(counts) = self.keys.lock().get_mut(key)
        {
            counts.changes += 1;
        }
    }
    /// Takes note that everything was deleted. All lanes are held.
    pub(crate) fn touch_all(&self) {
        self.keys.lock().values_mut().for_each(|c| c.changes += 1);
    }
    pub(crate) fn begin(&self, key: &[u8]) -> u64 {
        let mut keys = self.keys.lock();
        let counts = keys.entry(key.into()).or_default();
        counts.watchers += 1;
        self.watched.store(keys.len(), Ordering::Release);
        keys[key].changes
    }
    pub(crate) fn end(&self, key: &[u8]) {
        let mut keys = self.keys.lock();
        if let Some(counts) = keys.get_mut(key) {
            counts.watchers -= 1;
            if counts.watchers == 0 {
                keys.remove(key);
                // Nobody counts the room of those that are gone.
                if keys.capacity() > KEPT_KEYS.max(4 * keys.len()) {
                    let kept = KEPT_KEYS.max(2 * keys.len());
                    keys.shrink_to(kept);
                }
            }
        }
        self.watched.store(keys.len(), Ordering::Release);
    }
    /// Whether nobody has changed the key.
    pub(crate) fn unchanged(&self, watched: &Watched) -> bool {
        let keys = self.keys.lock();
        keys.get(&watched.key)
            .is_some_and(|c| c.changes == watched.changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_stays_of_keys_that_nobody_watches_any_more() {
        let watch = Watch::default();
        let keys: Vec<[u8; 4]> = (0..100_000u32).map(u32::to_le_bytes).collect();
        for key in &keys {
            watch.begin(key);
        }
        for key in &keys[1..] {
            watch.end(key);
        }
        assert!(watch.keys.lock().capacity() < 1_000);
        let last = Watched::new(&keys[0], 0, true);
        assert!(watch.unchanged(&last));
        watch.touch(&keys[0]);
        assert!(!watch.unchanged(&last));
    }
}
