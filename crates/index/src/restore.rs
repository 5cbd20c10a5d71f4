//! Rebuilding a shard from the pages of a checkpoint.
//!
//! Promises: what comes from a disk is checked before it is used (counts, prefixes, order, sentinels) and can ask for no more
//! memory than `DIRECTORY_FREE_ENTRIES`, its own slots or its pages justify. A refused page changes nothing. Never panics on bad input.

use std::fmt;

use crate::page::{DEPTH_MAX, PageBuf, Place, SLOTS_MAX};
use crate::slot::Layout;
use crate::tree::Tree;

/// Directory entries (of 4 bytes) that a restored shard may have whatever it holds; beyond that it needs a slot for each, or a page for so many.
const DIRECTORY_FREE_ENTRIES: usize = 1 << 16;
/// A directory doubles with eight slots for each entry, so with one page for eight; its first pages may have fewer than their share. While a checkpoint is saved pages stay whatever goes out of them, and
/// slots of what is only in DRAM are not saved.
const ENTRIES_A_PAGE_MAX: usize = 16;

/// Why a page of a checkpoint was refused. The shard should be cleared and rebuilt from the log instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPage {
    /// The page claims a prefix of `depth` bits; at most `DEPTH_MAX` are allowed.
    Depth {
        /// What the page claims.
        depth: u32,
    },
    /// The page has more slots than fit into one.
    Count {
        /// What the page has.
        slots: usize,
    },
    /// The page does not begin where the one before it ended; pages must come in hash order and cover a shard without a gap.
    Gap {
        /// First hash that has no page yet, or None when the shard is whole.
        expected: Option<u64>,
        /// Where the page begins.
        prefix_start: u64,
    },
    /// A slot has no sentinel, as zeroed bytes do not.
    Sentinel {
        /// Index of the slot.
        slot: usize,
    },
    /// A slot's tag is smaller than the one's before it.
    Order {
        /// Index of the slot.
        slot: usize,
    },
    /// The directory would become larger than so few slots can justify.
    Directory {
        /// Entries it would have.
        entries: usize,
    },
}

impl fmt::Display for BadPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a page of the key map's checkpoint is damaged: ")?;
        match self {
            BadPage::Depth { depth } => {
                write!(f, "depth {depth}, at most {DEPTH_MAX} is allowed")
            }
            BadPage::Count { slots } => {
                write!(f, "{slots} slots, at most {SLOTS_MAX} are allowed")
            }
            BadPage::Gap {
                expected: Some(expected),
                prefix_start,
            } => write!(f, "begins at {prefix_start:#x} instead of {expected:#x}"),
            BadPage::Gap { prefix_start, .. } => {
                write!(f, "begins at {prefix_start:#x}, but the shard is whole")
            }
            BadPage::Sentinel { slot } => write!(f, "slot {slot} has no sentinel"),
            BadPage::Order { slot } => write!(f, "slot {slot} is out of order"),
            BadPage::Directory { entries } => {
                write!(f, "{entries} directory entries for too few slots")
            }
        }?;
        write!(f, "; clear the shard and rebuild it from the log")
    }
}

impl std::error::Error for BadPage {}

/// Adds the next page to a shard that is being restored.
pub(crate) fn restore_page(
    tree: &mut Tree,
    shard: u32,
    prefix_start: u64,
    depth: u32,
    raw: &[u64],
) -> Result<(), BadPage> {
    if depth > DEPTH_MAX {
        return Err(BadPage::Depth { depth });
    }
    check_slots(tree.layout, raw)?;
    let place = Place {
        shard,
        depth,
        prefix: ((prefix_start >> 1) >> (63 - depth)) as u32,
    };
    check_position(tree, place, prefix_start)?;
    if raw.is_empty() && depth == 0 {
        return Ok(()); // An empty shard owns no page.
    }
    check_directory(tree, place, raw.len())?;
    while tree.shards[shard as usize].depth() < depth {
        tree.deepen(shard);
    }
    let mut page = PageBuf::empty(place);
    raw.iter().for_each(|slot| page.push(*slot));
    tree.put(&page);
    let directory = &mut tree.shards[shard as usize];
    directory.slots += raw.len() as u32;
    if directory.is_whole() && directory.is_too_deep() {
        tree.merge_all(shard);
    }
    Ok(())
}

fn check_slots(layout: Layout, raw: &[u64]) -> Result<(), BadPage> {
    if raw.len() > SLOTS_MAX {
        return Err(BadPage::Count { slots: raw.len() });
    }
    if let Some(slot) = raw.iter().position(|slot| !layout.is_well_formed(*slot)) {
        return Err(BadPage::Sentinel { slot });
    }
    let disorder = raw
        .windows(2)
        .position(|pair| layout.tag(pair[0]) > layout.tag(pair[1]));
    match disorder {
        Some(before) => Err(BadPage::Order { slot: before + 1 }),
        None => Ok(()),
    }
}

/// First hash of a shard that no page covers yet; None when the shard is whole.
pub(crate) fn covered_until(tree: &Tree, shard: u32) -> Option<u64> {
    let directory = &tree.shards[shard as usize];
    match (directory.is_empty(), directory.is_whole()) {
        (true, _) => Some(0),
        (false, true) => None,
        (false, false) => Some((directory.len() as u64) << (64 - directory.depth())),
    }
}

fn check_position(tree: &Tree, place: Place, prefix_start: u64) -> Result<(), BadPage> {
    let expected = covered_until(tree, place.shard);
    // The second condition refuses a start with bits behind the prefix.
    if expected == Some(prefix_start) && place.hash_first() == prefix_start {
        return Ok(());
    }
    Err(BadPage::Gap {
        expected,
        prefix_start,
    })
}

fn check_directory(tree: &Tree, place: Place, slots: usize) -> Result<(), BadPage> {
    let directory = &tree.shards[place.shard as usize];
    let depth = directory.depth().max(place.depth);
    // At most 2^24 entries before the page and as many for it: no overflow.
    let entries = (place.prefix as usize + 1) << (depth - place.depth);
    let slots_so_far = directory.slots as usize + slots;
    let pages_so_far = directory.pages as usize + 1;
    let justified = slots_so_far.max(pages_so_far * ENTRIES_A_PAGE_MAX);
    if entries > DIRECTORY_FREE_ENTRIES.max(justified) {
        return Err(BadPage::Directory { entries });
    }
    Ok(())
}
