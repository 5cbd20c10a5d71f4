//! What the cleaner asks of a directory, whichever kind it is.
//!
//! The key map is one; object tables and address ranges will be others. The
//! cleaner knows entries and locations only through this trait.

use crate::addr::{Loc, Slot};
use crate::hash::KeyHash;

/// Whose entry it is: enough to find its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// 0 the user's keys, 1 internal ones (pieces of big values, their records).
    pub space: u8,
    /// The key's hash.
    pub hash: KeyHash,
}

/// The directory cannot take one more slot: too many keys share a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the index cannot tell more keys apart at this hash; delete keys that collide")]
pub struct Full;

/// Says where the newest copy of a subject lies, and lets it be moved.
///
/// Several slots may look like the subject's (a slot has no key), so `find`
/// offers each and the caller says which one it is. `swing` is a
/// compare-and-set: it fails when something newer came.
pub trait Directory {
    /// Offers each slot that may be `who`'s to `f` until it says yes; returns that one.
    fn find(&self, who: Subject, f: impl FnMut(Slot) -> bool) -> Option<Slot>;
    /// Offers each slot that may be `who`'s to `f`; the first one it has a new
    /// value for, which is known then to be `who`'s, is overwritten and its old value returned.
    fn update(&mut self, who: Subject, f: impl FnMut(Slot) -> Option<Slot>) -> Option<Slot>;
    /// Asks for the memory that the next `find` of `who` looks at.
    fn prefetch(&self, _who: Subject) {}
    /// Adds a slot.
    fn insert(&mut self, who: Subject, slot: Slot) -> Result<(), Full>;
    /// Removes the slot that names `at`. False: there was none.
    fn remove(&mut self, who: Subject, at: Loc) -> bool;
    /// Replaces the slot that names `from` by `to`. False: no slot names `from` any more.
    fn swing(&mut self, who: Subject, from: Loc, to: Slot) -> bool {
        self.update(who, |s| (s.loc() == from).then_some(to))
            .is_some()
    }
    /// Whether a slot names `at`.
    fn names(&self, who: Subject, at: Loc) -> bool {
        self.find(who, |s| s.loc() == at).is_some()
    }
}

/// Where a subject stands in a directory's own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Order {
    /// Shard.
    pub shard: u32,
    /// Hash within the shard.
    pub hash: u64,
}

/// A directory that can be saved piece by piece while it changes, and loaded again.
pub trait Snapshot: Directory {
    /// Where `who` stands.
    fn order(&self, who: Subject) -> Order;
    /// While told so, pieces saved one after the other fit together whatever changes in between.
    fn keep_still(&mut self, still: bool);
    /// Appends an image of the slots from `from` on, some `slots_max` of them,
    /// each as `resolve` says (None: leave out); returns where to go on, None at the end.
    fn save(
        &self,
        from: Order,
        slots_max: usize,
        resolve: impl FnMut(Slot) -> Option<Slot>,
        out: &mut Vec<u8>,
    ) -> Option<Order>;
    /// Adds what `save` wrote; the pieces come in order. The bytes come from a
    /// medium: anything wrong is an error, never a panic.
    fn load(&mut self, image: &[u8]) -> Result<(), String>;
    /// Visits every slot.
    fn each(&self, f: impl FnMut(Slot));
    /// Removes everything.
    fn clear(&mut self);
    /// Slots of a space.
    fn len(&self, space: u8) -> u64;
    /// Memory taken, bytes.
    fn bytes(&self) -> usize;
}
