//! What of the cap a fork's children have for their pages, and who of them gets more or gives some back: the decision, and what it is made from.
//!
//! A child begins with the least share, so a fork that runs another program at once costs little. One whose pages come back after they left asks for more, and
//! gets it as long as its parent's do not: all of them together up to half of what there is for pages, and [`ALL_OF_8`] eighths of the cap. Who has more than the least asks again and again what it may
//! keep: where its parent's pages come back soon after they left, or a sibling has asked in vain for less than others have, it gives a quarter of it back.
//!
//! Promises: nothing is built on what a child says but on what it was given. Never: counts in the cap, or waits; who serves does.

use crate::given::Given;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A child's least share: one part of the cap in so many, within these bounds.
const LEAST_ONE_IN: u64 = 32;
const LEAST_MIN_BYTES: u64 = 1 << 20;
const LEAST_MAX_BYTES: u64 = 16 << 20;
/// Eighths of the cap that children may come to together by asking; with the least shares of those that are forked later, it may be [`FORKS_OF_8`] until others have given back.
const ALL_OF_8: u64 = 3;
const FORKS_OF_8: u64 = 6;
/// Of the cap, what the least shares of all children may be.
const LEASTS_ONE_IN: u64 = 2;
/// What pages of the parent, and what they are packed into, keep of what they and children have.
const KEEPS_ONE_IN: u64 = 2;
/// What is given back at a time of what is more than the least.
const BACK_ONE_IN: u64 = 4;
/// Smaller steps are not worth a question.
const STEP_BYTES: u64 = 64 << 10;
/// A parent that spends such a part of its time with pages that come back soon after they left, by what one costs and what a read of the device does, lacks DRAM.
const LACKS_ONE_IN: u32 = 100;
const FAULT_US: u64 = 10;
const READ_US: u64 = 100;
/// In no less than this.
const LOOKS_AGAIN: Duration = Duration::from_millis(100);
/// Who lacked DRAM is taken to lack it for so long.
const LACKS_FOR: Duration = Duration::from_secs(3);

/// What all children have, bytes.
pub static ALL: Given = Given::new();

/// What is known of who lacks DRAM.
struct Lacks {
    /// What the parent's pages that came back soon had cost, when it was looked at last, µs.
    lost_us: u64,
    looked: Option<Instant>,
    parent_until: Option<Instant>,
    child_until: Option<Instant>,
}

static LACKS: Mutex<Lacks> = Mutex::new(Lacks::NONE);

/// DRAM that a child's pages have under a cap in any case.
pub fn least_bytes(cap_bytes: u64) -> u64 {
    (cap_bytes / LEAST_ONE_IN).clamp(LEAST_MIN_BYTES, LEAST_MAX_BYTES)
}

/// Whether one more child may have that, beside so many.
pub fn has_room(cap_bytes: u64, children: u64) -> bool {
    let least = least_bytes(cap_bytes);
    (children + 1) * least <= cap_bytes / LEASTS_ONE_IN
        && ALL.bytes() + least <= cap_bytes / 8 * FORKS_OF_8
}

fn lacks() -> MutexGuard<'static, Lacks> {
    LACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How things stand when a child asks.
#[derive(Clone, Copy)]
pub struct Asked {
    pub cap_bytes: u64,
    /// What it has, and what it would have.
    pub has: u64,
    pub wants: u64,
    /// How many children there are.
    pub children: u64,
    /// What its parent's pages and the DRAM terrace have between them.
    pub between_bytes: u64,
    /// The parent's pages that came back soon after they left, so far, and those of them for which the device was read.
    pub near: u64,
    pub near_read: u64,
}

/// What it may have from now on, bytes; more than it has is in [`ALL`] already, less is not.
pub fn decide(asked: Asked) -> u64 {
    let (mut lacks, now) = (lacks(), Instant::now());
    lacks.look(asked.near * FAULT_US + asked.near_read * READ_US, now);
    let is = |until: Option<Instant>| until.is_some_and(|until| now < until);
    let others = ALL.bytes().saturating_sub(asked.has);
    let may = may_have(
        &asked,
        others,
        is(lacks.parent_until),
        is(lacks.child_until),
    );
    let fair = fair_bytes(&asked, others);
    if may < asked.wants.min(fair) && asked.has < fair {
        lacks.child_until = Some(now + LACKS_FOR);
    }
    ALL.add(may.saturating_sub(asked.has));
    may
}

impl Lacks {
    const NONE: Lacks = Lacks {
        lost_us: 0,
        looked: None,
        parent_until: None,
        child_until: None,
    };

    fn look(&mut self, lost_us: u64, now: Instant) {
        if let Some(looked) = self.looked {
            let elapsed = now - looked;
            if elapsed < LOOKS_AGAIN {
                return;
            }
            let lost = Duration::from_micros(lost_us.saturating_sub(self.lost_us));
            // What was lost while nobody asked for so long says nothing of now.
            if elapsed <= LACKS_FOR && lost >= elapsed / LACKS_ONE_IN {
                self.parent_until = Some(now + LACKS_FOR);
            }
        }
        (self.lost_us, self.looked) = (lost_us, Some(now));
    }
}

/// What all children may have by asking.
fn all_bytes(asked: &Asked, others: u64) -> u64 {
    let there = asked.between_bytes + asked.has + others;
    (there / KEEPS_ONE_IN).min(asked.cap_bytes / 8 * ALL_OF_8)
}

/// What each has where all want more.
fn fair_bytes(asked: &Asked, others: u64) -> u64 {
    let each = all_bytes(asked, others) / asked.children.max(1);
    each.max(least_bytes(asked.cap_bytes))
}

fn may_have(asked: &Asked, others: u64, parent_lacks: bool, child_lacks: bool) -> u64 {
    let (has, least, fair) = (
        asked.has,
        least_bytes(asked.cap_bytes),
        fair_bytes(asked, others),
    );
    let down_to = |goal: u64| match has.saturating_sub(goal) {
        little if little <= STEP_BYTES => has.min(goal),
        more => has - (more / BACK_ONE_IN).max(STEP_BYTES),
    };
    // Those that were forked since have their least shares, too.
    let room = all_bytes(asked, others).saturating_sub(others).max(least);
    if parent_lacks {
        return down_to(least).min(room);
    }
    if child_lacks && has > fair {
        return down_to(fair).min(room);
    }
    match asked.wants.min(room) {
        wants if wants < has + STEP_BYTES => has.min(room),
        wants => wants,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn asked(has_mib: u64, wants_mib: u64, between_mib: u64) -> Asked {
        Asked {
            cap_bytes: 512 * MIB,
            has: has_mib * MIB,
            wants: wants_mib * MIB,
            children: 4,
            between_bytes: between_mib * MIB,
            near: 0,
            near_read: 0,
        }
    }

    #[test]
    fn a_child_gets_of_what_nobody_needs() {
        let may = |asked: Asked, others: u64| may_have(&asked, others * MIB, false, false) / MIB;
        assert_eq!(may(asked(16, 32, 400), 48), 32);
        // Its parent keeps half.
        assert_eq!(may(asked(16, 32, 80), 48), 24);
        // Three eighths for all of them, and the least in any case.
        assert_eq!(may(asked(128, 256, 400), 48), 144);
        assert_eq!(may(asked(16, 32, 400), 190), 16);
        // More siblings since.
        assert_eq!(may(asked(144, 144, 400), 96), 96);
        assert_eq!(may(asked(32, 32, 400), 48), 32);
    }

    #[test]
    fn a_child_gives_back_what_others_lack() {
        let mut has = asked(144, 288, 400);
        let mut steps = 0;
        while has.has > 16 * MIB {
            let may = may_have(&has, 48 * MIB, true, false);
            assert!(may < has.has && may >= 16 * MIB);
            has.has = may;
            steps += 1;
        }
        assert!(steps < 40, "{steps}");
        assert_eq!(may_have(&has, 48 * MIB, true, false), 16 * MIB);
        // To a sibling: down to what each has, of four 48.
        let may = |has: u64| may_have(&asked(has, 288, 400), 48 * MIB, false, true) / MIB;
        assert_eq!(may(144), 120);
        assert_eq!(may(48), 144);
    }

    #[test]
    fn a_parent_lacks_dram_while_its_pages_come_back() {
        let (mut lacks, began) = (Lacks::NONE, Instant::now());
        let mut look = |lost_us, ms| {
            let now = began + Duration::from_millis(ms);
            lacks.look(lost_us, now);
            lacks.parent_until.is_some_and(|until| now < until)
        };
        assert!(!look(50_000, 0));
        assert!(!look(51_900, 200));
        assert!(!look(90_000, 250));
        assert!(look(90_000, 400));
        assert!(look(90_001, 3000));
        assert!(!look(90_002, 3500));
        assert!(!look(9_000_000, 9000));
        assert!(look(9_002_000, 9200));
    }

    #[test]
    fn the_least_is_within_bounds_and_there_is_room_for_so_many() {
        assert_eq!(least_bytes(16 * MIB), MIB);
        assert_eq!(least_bytes(512 * MIB), 16 * MIB);
        assert_eq!(least_bytes(64 << 30), 16 * MIB);
        assert!(has_room(512 * MIB, 15));
        assert!(!has_room(512 * MIB, 16));
    }
}
