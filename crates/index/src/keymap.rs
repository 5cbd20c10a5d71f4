//! The key map as a directory of the log: subjects to slots.
//!
//! The user's keys are spread over the shards by bits of their hash; internal
//! keys (pieces of big values and their records) have the last shard for
//! themselves, so that the user's keys are counted exactly.
//!
//! A saved piece is a run of pages: shard u32, depth u8, count u8, two zero
//! bytes, prefix u64, then count slots of 8 bytes with their tags.

use crate::{At, Config, Index};
use terrace_log::addr::SLOT_LOW_BITS;
use terrace_log::{Directory, Full, Loc, Order, Slot, Snapshot, Subject};

const PAGE_HEADER_BYTES: usize = 16;

/// The key map of one lane.
pub struct KeyMap {
    index: Index,
    user_shards: u32,
    /// What was updated last, and where, if its page did not shift: mostly its slot is swung next. None once a page may have moved.
    last: Option<(Subject, At)>,
}

impl KeyMap {
    /// With `user_shards` shards for the user's keys; `unit_bits` is how many bits
    /// the largest location in the lane needs, in 16-byte units.
    pub fn new(user_shards: u32, unit_bits: u32) -> KeyMap {
        let payload_bits = (SLOT_LOW_BITS + unit_bits).clamp(32, 46);
        KeyMap {
            index: Index::new(Config {
                shards: user_shards + 1,
                payload_bits,
            }),
            user_shards,
            last: None,
        }
    }

    #[inline]
    fn shard(&self, who: Subject) -> u32 {
        let bits = (who.hash.place >> 32) as u32;
        match who.space {
            0 if self.user_shards.is_power_of_two() => bits & (self.user_shards - 1),
            0 => bits % self.user_shards,
            _ => self.user_shards,
        }
    }

    /// Slots of the page that covers `from` among the user's keys, and where to go
    /// on (None at the end). A slot that stays is met at least once in a walk.
    pub fn page(&self, from: Order, mut f: impl FnMut(Slot)) -> Option<Order> {
        let view = self.index.page_from(from.shard, from.hash);
        view.slots().for_each(|payload| f(Slot(payload)));
        match view.next_cursor() {
            Some(hash) => Some(Order {
                shard: from.shard,
                hash,
            }),
            None if from.shard + 1 < self.user_shards => Some(Order {
                shard: from.shard + 1,
                hash: 0,
            }),
            None => None,
        }
    }

    /// Shards of the user's keys.
    pub fn user_shards(&self) -> u32 {
        self.user_shards
    }

    fn save_page(
        &self,
        at: Order,
        resolve: &mut impl FnMut(Slot) -> Option<Slot>,
        out: &mut Vec<u8>,
    ) -> (usize, Option<u64>) {
        let view = self.index.page_from(at.shard, at.hash);
        if view.is_empty() && view.depth() == 0 {
            return (0, view.next_cursor());
        }
        let header = out.len();
        out.extend_from_slice(&at.shard.to_le_bytes());
        out.extend_from_slice(&[view.depth() as u8, 0, 0, 0]);
        out.extend_from_slice(&view.prefix_start().to_le_bytes());
        let mut count = 0u8;
        for (raw, payload) in view.raw().iter().zip(view.slots()) {
            if let Some(slot) = resolve(Slot(payload)) {
                out.extend_from_slice(&(raw - payload + slot.0).to_le_bytes());
                count += 1;
            }
        }
        out[header + 5] = count;
        (view.len(), view.next_cursor())
    }
}

impl Directory for KeyMap {
    fn find(&self, who: Subject, mut f: impl FnMut(Slot) -> bool) -> Option<Slot> {
        let found = self
            .index
            .find(self.shard(who), who.hash.index, |_, payload| {
                f(Slot(payload))
            });
        found.map(|(_, payload)| Slot(payload))
    }

    fn prefetch(&self, who: Subject) {
        self.index.prefetch(self.shard(who), who.hash.index);
    }

    fn update(&mut self, who: Subject, mut f: impl FnMut(Slot) -> Option<Slot>) -> Option<Slot> {
        let mut new = None;
        let shard = self.shard(who);
        let (at, old) = self.index.find(shard, who.hash.index, |_, payload| {
            new = f(Slot(payload));
            new.is_some()
        })?;
        let new = new.expect("found");
        if new.loc() != Slot(old).loc() {
            // As in `swing`. More heat alone comes with every read, and is not worth it.
            self.index.set_refresh(shard, who.hash.index, at, new.0);
        } else if new.0 != old {
            self.index.set(at, new.0);
        }
        self.last = Some((who, at));
        Some(Slot(old))
    }

    fn insert(&mut self, who: Subject, slot: Slot) -> Result<(), Full> {
        self.last = None;
        let shard = self.shard(who);
        self.index
            .insert(shard, who.hash.index, slot.0)
            .map_err(|_| Full)
    }

    fn remove(&mut self, who: Subject, at: Loc) -> bool {
        self.last = None;
        let shard = self.shard(who);
        let named = |payload| Slot(payload).loc() == at;
        self.index.remove(shard, who.hash.index, named).is_some()
    }

    fn swing(&mut self, who: Subject, from: Loc, to: Slot) -> bool {
        let shard = self.shard(who);
        let named = |_, payload| Slot(payload).loc() == from;
        let last = self.last.filter(|(last, _)| *last == who);
        let there = last.filter(|(_, at)| named(*at, self.index.payload(*at)));
        match there.or_else(|| {
            self.index
                .find(shard, who.hash.index, named)
                .map(|(at, _)| (who, at))
        }) {
            Some((_, at)) => {
                // The whole hash is known here: the tag gets back what growth took.
                self.index.set_refresh(shard, who.hash.index, at, to.0);
                true
            }
            None => false,
        }
    }
}

impl Snapshot for KeyMap {
    fn order(&self, who: Subject) -> Order {
        Order {
            shard: self.shard(who),
            hash: who.hash.index,
        }
    }

    fn keep_still(&mut self, still: bool) {
        self.last = None;
        self.index.keep_pages(still);
    }

    fn save(
        &self,
        from: Order,
        slots_max: usize,
        mut resolve: impl FnMut(Slot) -> Option<Slot>,
        out: &mut Vec<u8>,
    ) -> Option<Order> {
        let mut at = from;
        let mut slots = 0;
        while slots < slots_max {
            let (saved, next) = self.save_page(at, &mut resolve, out);
            slots += saved.max(1);
            at = match next {
                Some(hash) => Order { hash, ..at },
                None if at.shard < self.user_shards => Order {
                    shard: at.shard + 1,
                    hash: 0,
                },
                None => return None,
            };
        }
        Some(at)
    }

    fn load(&mut self, mut image: &[u8]) -> Result<(), String> {
        self.last = None;
        while !image.is_empty() {
            let (header, rest) = image
                .split_at_checked(PAGE_HEADER_BYTES)
                .ok_or("a page ends early")?;
            let shard = u32::from_le_bytes(header[0..4].try_into().expect("four bytes"));
            let (depth, count) = (u32::from(header[4]), header[5] as usize);
            let prefix = u64::from_le_bytes(header[8..16].try_into().expect("eight bytes"));
            let (slots, rest) = rest
                .split_at_checked(8 * count)
                .ok_or("a page ends early")?;
            if shard > self.user_shards {
                return Err(format!("shard {shard}; at most {}", self.user_shards));
            }
            let word = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
            let slots: Vec<u64> = slots.chunks_exact(8).map(word).collect();
            self.index
                .restore_page(shard, prefix, depth, &slots)
                .map_err(|e| e.to_string())?;
            image = rest;
        }
        Ok(())
    }

    fn each(&self, mut f: impl FnMut(Slot)) {
        for shard in 0..=self.user_shards {
            let mut at = Some(0);
            while let Some(hash) = at {
                let view = self.index.page_from(shard, hash);
                view.slots().for_each(|payload| f(Slot(payload)));
                at = view.next_cursor();
            }
        }
    }

    fn clear(&mut self) {
        self.last = None;
        self.index.clear();
    }

    fn len(&self, space: u8) -> u64 {
        match space {
            0 => self.index.total() - self.index.len(self.user_shards),
            _ => self.index.len(self.user_shards),
        }
    }

    fn bytes(&self) -> usize {
        self.index.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use terrace_log::{KeyHash, Terrace};

    fn who(n: u64) -> Subject {
        let spread = |salt: u64| {
            (n + salt)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        };
        let hash = KeyHash {
            index: spread(1),
            place: spread(77),
        };
        Subject { space: 0, hash }
    }

    fn slot(unit: u64) -> Slot {
        Slot::new(Loc::new(Terrace::Dram, 0, unit), 0)
    }

    /// What was updated last is swung right wherever it lies by then, and nothing else is: between the two, pages split, merge and go, also
    /// all those that a saved image kept where they were.
    #[test]
    fn what_was_updated_last_may_have_moved() {
        const PHASE: u64 = 100_000;
        let mut map = KeyMap::new(2, 40);
        let mut model = HashMap::new();
        let (mut unit, mut x) = (0, 1u64);
        for round in 0..6 * PHASE {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(round | 1);
            let (n, other) = ((x >> 33) % 12_000, (x >> 20) % 12_000);
            // One of the few that are left at the end of a phase in which most went.
            let n = match round % PHASE {
                0 => model.keys().max().copied().unwrap_or(n),
                _ => n,
            };
            let seen = map.update(who(n), |s| {
                (Some(&s.loc().unit()) == model.get(&n)).then_some(s)
            });
            assert_eq!(
                seen.map(|s| s.loc().unit()),
                model.get(&n).copied(),
                "round {round}"
            );
            unit += 1;
            let drains = round / PHASE % 2 == 1;
            if round % PHASE == 0 {
                // What stayed while they went merges now.
                map.keep_still(drains);
            }
            match model.get(&other).copied() {
                // Full of them for a while, then almost none.
                Some(at) if drains => {
                    let loc = slot(at).loc();
                    assert!(map.remove(who(other), loc));
                    model.remove(&other);
                }
                None if !drains => {
                    map.insert(who(other), slot(unit)).expect("room");
                    model.insert(other, unit);
                }
                _ => {}
            }
            unit += 1;
            if let Some(at) = model.get_mut(&n) {
                assert!(
                    map.swing(who(n), slot(*at).loc(), slot(unit)),
                    "round {round}"
                );
                assert!(
                    !map.swing(who(n), slot(*at).loc(), slot(unit)),
                    "it is not there any more"
                );
                *at = unit;
            }
        }
        let mut there: Vec<u64> = Vec::new();
        map.each(|s| there.push(s.loc().unit()));
        let mut wanted: Vec<u64> = model.into_values().collect();
        there.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(there, wanted);
    }

    /// When an image was saved, pages that stayed for it merge; what was updated just before lies in one of them.
    #[test]
    fn what_was_updated_last_may_have_merged() {
        const KEYS: u64 = 12_000;
        let stays = |n: u64| n.is_multiple_of(KEYS / 8);
        for last in (0..KEYS).filter(|n| stays(*n)) {
            let mut map = KeyMap::new(2, 40);
            for n in 0..KEYS {
                map.insert(who(n), slot(n)).expect("room");
            }
            map.keep_still(true);
            for n in (0..KEYS).filter(|n| !stays(*n)) {
                assert!(map.remove(who(n), slot(n).loc()));
            }
            let seen = map.update(who(last), |s| (s == slot(last)).then_some(s));
            assert_eq!(seen, Some(slot(last)));
            map.keep_still(false);
            assert!(map.swing(who(last), slot(last).loc(), slot(KEYS)));
            assert!(map.names(who(last), slot(KEYS).loc()));
        }
    }
}
