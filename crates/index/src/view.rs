//! A look at one page, for SCAN, checkpoints and audits.
//!
//! Promises: shows exactly the slots of the page that covers a hash, and where the next page begins. Never changes anything.

use crate::page::Place;
use crate::slot::Layout;

/// One page of a shard: the slots whose hashes begin with one prefix.
#[derive(Clone, Copy, Debug)]
pub struct PageView<'a> {
    pub(crate) layout: Layout,
    pub(crate) place: Place,
    pub(crate) slots: &'a [u64],
    /// Whether pages follow; none do behind the end of a shard that is being restored.
    pub(crate) is_last: bool,
}

impl<'a> PageView<'a> {
    /// Bits of the hash prefix that the page's slots share.
    pub fn depth(&self) -> u32 {
        self.place.depth
    }

    /// The first hash that the page covers: the prefix with zeros behind it.
    pub fn prefix_start(&self) -> u64 {
        self.place.hash_first()
    }

    /// The first hash behind the page, or None when it is the last one of its shard.
    pub fn next_cursor(&self) -> Option<u64> {
        match self.is_last {
            true => None,
            false => self.place.hash_next(),
        }
    }

    /// The payloads of all slots, in hash order as far as tags tell it.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = u64> + 'a {
        let layout = self.layout;
        self.slots.iter().map(move |slot| layout.payload(*slot))
    }

    /// The slots with their tags, as `Index::restore_page` takes them.
    pub fn raw(&self) -> &'a [u64] {
        self.slots
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the page has no slot.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
