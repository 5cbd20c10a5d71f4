//! Policies: pure functions of numbers, apart from every mechanism.
//!
//! Each is a first sound choice; the reasons and the measurements that replace
//! them belong into docs/adr. Never: touches state, time or chance.

use terrace_media::BLOCK_BYTES;

/// What to do with a live entry when its memory segment is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Append it again at the clean head, with this heat.
    Keep(u8),
    /// Point the directory at the copy below.
    StepDown,
}

/// Why a memory segment is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// The oldest of those with entries that were not used again yet.
    Probation,
    /// The oldest of the others.
    Main,
    /// Too little of it is live: what is, stays.
    Fragmented,
}

/// Probation gets a tenth of the memory (S3-FIFO; Yang et al. 2023): what is used once, as in a scan, passes through it
/// and leaves the rest alone.
pub fn victim_queue(probation: usize, main: usize, quota: usize) -> Victim {
    match main == 0 || probation * PROBATION_ONE_IN > quota {
        true => Victim::Probation,
        false => Victim::Main,
    }
}
const PROBATION_ONE_IN: usize = 10;

/// Main segments with fewer than this many 64ths live are compacted before any is emptied.
pub const COMPACT_BELOW: u8 = 58;

/// Hot entries get another round per unit of heat (a clock with a 2-bit counter in FIFO order).
pub fn fate_in_memory(heat: u8, victim: Victim) -> Fate {
    match (heat, victim) {
        (heat, Victim::Fragmented) => Fate::Keep(heat),
        (0, _) => Fate::StepDown,
        (heat, _) => Fate::Keep(heat - 1),
    }
}

/// Keys that are remembered after they left DRAM unused, at most: as many as entries of 512 bytes would fit.
pub fn ghost_keys(memory_bytes: u64) -> usize {
    memory_bytes as usize / GHOST_ENTRY_BYTES as usize
}
const GHOST_ENTRY_BYTES: u64 = 512;

/// One place in so many of those, a power of two, is used where entries of `mean_bytes` leave, if one in `now` is used: about as many keys as such entries would fit into
/// DRAM, between half of that and all (docs/adr/0012). It stays where it is until the mean is a quarter past the length at which it would change.
pub fn ghost_part(mean_bytes: u64, now: u64) -> u64 {
    let part = |mean: u64| {
        let entries = mean.div_ceil(GHOST_ENTRY_BYTES).max(1);
        entries.next_power_of_two().min(GHOST_PART_MAX)
    };
    now.clamp(part(mean_bytes * 4 / 5), part(mean_bytes * 5 / 4))
}
const GHOST_PART_MAX: u64 = 64;

/// Memory for fingerprints of what left DRAM, once updates would use them: a 32nd of what entries have (docs/adr/0047).
pub fn fingerprint_bytes(memory_bytes: usize) -> usize {
    (memory_bytes / 32).max(4096)
}

/// Heat after one more use.
pub fn warmer(heat: u8) -> u8 {
    (heat + 1).min(terrace_log::addr::HEAT_MAX)
}

/// Whether a read brings an entry up: always, as long as it takes no more than
/// a 64th of the memory.
pub fn admit_on_read(entry_bytes: usize, memory_bytes: usize) -> bool {
    entry_bytes <= memory_bytes / 64
}

/// Whether a clean entry that leaves DRAM enters the middle terrace: one that
/// was used since it came, or any while there is free room.
pub fn admit_to_middle(was_used: bool, free_segments: usize) -> bool {
    was_used || free_segments > 1
}

/// Whether the open epoch should be closed now.
pub fn close_epoch(p: &Pressure) -> bool {
    let anything = p.open_dirty_bytes > 0;
    let due = match p.sync {
        true => anything,
        false => anything && p.since_close_ms >= p.flush_interval_ms,
    };
    due || p.open_dirty_bytes >= epoch_bytes(p.dirty_max_bytes)
        || (anything && p.writers_wait)
        || p.freed_untold
        || p.cleaning_ready
        || p.asked
}

/// Dirty bytes at which an epoch is closed.
pub fn epoch_bytes(dirty_max_bytes: u64) -> u64 {
    dirty_max_bytes / 4
}

/// What `close_epoch` looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pressure {
    /// Acknowledge after durability.
    pub sync: bool,
    /// Dirty bytes of the open epoch.
    pub open_dirty_bytes: u64,
    /// The bound on dirty bytes.
    pub dirty_max_bytes: u64,
    /// Bytes of entries that reads brought up to DRAM since the last close.
    pub read_up_bytes: u64,
    /// Time since the last close.
    pub since_close_ms: u64,
    /// Longest time an update may stay in DRAM only.
    pub flush_interval_ms: u64,
    /// Somebody was refused room.
    pub writers_wait: bool,
    /// Emptied segments are needed, and free once an epoch tells so.
    pub freed_untold: bool,
    /// A victim is read and segments are needed.
    pub cleaning_ready: bool,
    /// Somebody wants everything durable now (checkpoint, stop).
    pub asked: bool,
}

/// What `slice_cost` looks at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pace {
    /// Somebody waits for what steps down.
    pub urgent: bool,
    /// Bytes of updates in the epoch under way.
    pub left_bytes: u64,
    /// Bytes that the cleaner is short of.
    pub missing_bytes: u64,
    /// Bytes of updates until the next epoch is to be closed.
    pub room_bytes: u64,
    /// Bytes of updates since the last slice.
    pub arrived_bytes: u64,
}

/// How much one slice stages and moves, in bytes with `ENTRY_COST_BYTES` for each entry: so much that the epoch under way is
/// through when a quarter of the room for updates is taken, if they go on coming as fast as they came since the last slice. Whoever
/// is served between two slices waits for one of them, so they are as small as that allows.
pub fn slice_cost(p: &Pace) -> u64 {
    if p.urgent {
        return SLICE_COST_MAX_BYTES;
    }
    let work = u128::from(p.left_bytes) + u128::from(p.missing_bytes) * MOVED_FOR_FREED;
    let wanted = work * u128::from(p.arrived_bytes) * AHEAD / u128::from(p.room_bytes.max(1));
    wanted.clamp(SLICE_COST_MIN_BYTES, SLICE_COST_MAX_BYTES.into()) as u64
}
/// Part of the room in which an epoch is to be through: one in so many.
const AHEAD: u128 = 4;
/// Bytes moved for each byte freed, where victims are two thirds live.
const MOVED_FOR_FREED: u128 = 2;
/// So that it gets on, also when no updates come.
const SLICE_COST_MIN_BYTES: u128 = 16 << 10;
const SLICE_COST_MAX_BYTES: u64 = 2 << 20;
/// What an entry costs beside its bytes: its slot and itself are fetched from memory.
pub const ENTRY_COST_BYTES: u64 = 64;

/// Benefit of cleaning a segment over its cost: free space gained times age,
/// over the bytes that must be read and written (LFS; Rosenblum and Ousterhout 1992, section 3.6).
pub fn clean_score(live_bytes: u64, segment_bytes: u64, age: u64) -> u64 {
    let live = live_bytes.min(segment_bytes);
    let gain = segment_bytes - live;
    (u128::from(gain) * u128::from(age.max(1)) * 1024 / u128::from(segment_bytes + live))
        .min(u128::from(u64::MAX)) as u64
}

/// Bytes of a segment that cleaning it would not gain. What is left at the end of a full one, since no entry fitted, is left again
/// where its entries go: counted as a gain, long entries on a full SSD would be moved round for ever.
pub fn kept_bytes(live_bytes: u64, used_bytes: u64, segment_bytes: u64) -> u64 {
    match live_bytes {
        0 => 0,
        live if is_well_filled(used_bytes, segment_bytes) => {
            live + segment_bytes.saturating_sub(used_bytes)
        }
        live => live,
    }
}

/// Bytes of the SSD that what is live in a closed segment takes wherever it lies: with its part of the end, into which nothing more fitted, and of what a block was filled up with.
/// Cleaning does not gain these: were they room, a lane of long entries would be out of free segments before it is full. `entries_bytes` is what the segment's entries have, about, dead ones included.
pub fn taken_bytes(
    live_bytes: u64,
    used_bytes: u64,
    entries_bytes: u64,
    segment_bytes: u64,
) -> u64 {
    let filled = match used_bytes.saturating_sub(entries_bytes) <= BLOCK_BYTES as u64 {
        true => used_bytes.min(entries_bytes),
        // Small epochs have filled up more of it, and cleaning gains that.
        false => used_bytes,
    };
    let end = segment_bytes.saturating_sub(filled);
    // Mostly next to nothing, and a division is worth avoiding.
    if end * END_FROM_ONE_IN < segment_bytes || !is_well_filled(used_bytes, segment_bytes) {
        return live_bytes;
    }
    (live_bytes * segment_bytes / filled.max(1)).min(segment_bytes)
}
/// An end of less than this part of a segment does not count: 1 / 128.
const END_FROM_ONE_IN: u64 = 128;

/// Whether a segment was closed since nothing more fitted, and not early: no entry is much longer than a quarter of one.
pub fn is_well_filled(used_bytes: u64, segment_bytes: u64) -> bool {
    used_bytes * 4 >= segment_bytes * 3
}

/// A segment of which so much is kept is not worth cleaning.
pub fn worth_cleaning(kept_bytes: u64, segment_bytes: u64) -> bool {
    kept_bytes * 100 < segment_bytes * 98
}

/// How many segments must stay out of reach of entries that live on: what the
/// whole dirty bound needs below, two checkpoints, and slack for the cleaner.
pub fn reserve_segments(
    dirty_max_bytes: u64,
    checkpoint_bytes: u64,
    segment_bytes: u64,
    count: usize,
) -> usize {
    let dirty = dirty_segments(dirty_max_bytes, segment_bytes);
    let checkpoints = 2 * (checkpoint_bytes.div_ceil(segment_bytes) as usize + 1);
    dirty + checkpoints + clean_slack(count)
}

/// Segments that dirty bytes step down into. A segment's end is wasted when the next entry does not fit: generously.
pub fn dirty_segments(dirty_bytes: u64, segment_bytes: u64) -> usize {
    (dirty_bytes + dirty_bytes / 4).div_ceil(segment_bytes) as usize + 2
}

/// Segments beside the rest of the reserve, so that the cleaner finds some garbage.
pub fn clean_slack(count: usize) -> usize {
    (count / 64).clamp(10, 64)
}

/// Segments that the cleaner keeps free or about to be, at least: where there are few, a
/// checkpoint more or less matters little, and room much.
pub fn kept_free(count: usize) -> usize {
    let most = match count < 512 {
        true => 36,
        false => 24,
    };
    (count * 5 / 8).min(most)
}

/// The bound on dirty bytes: half of the memory, and little of the SSD, since as much of it stays empty.
pub fn dirty_max_bytes(memory_bytes: u64, ssd_bytes: u64) -> u64 {
    let small = (ssd_bytes / 8).min(4 << 20);
    (memory_bytes / 2).min((ssd_bytes / 64).max(small))
}

/// Dirty bytes for which the cleaner keeps room ahead: all, where the SSD has room to spare, so that updates in a rush need not wait.
/// Near 80 % full that would be dear: each per cent of the SSD that lies idle costs 0.1 bytes written for each byte updated there.
/// But what a command waits for with `wanted_bytes` at once must come, whatever others write meanwhile.
pub fn dirty_ahead_bytes(
    dirty_max_bytes: u64,
    wanted_bytes: u64,
    live_bytes: u64,
    ssd_bytes: u64,
) -> u64 {
    if wanted_bytes > dirty_max_bytes / 64 {
        return dirty_max_bytes;
    }
    let percent = |bytes: u64| bytes * 100 / ssd_bytes.max(1);
    let roomy = roomy_percent(percent(dirty_max_bytes));
    let full = percent(live_bytes).clamp(roomy, TIGHT_PERCENT);
    let idle = dirty_max_bytes - dirty_max_bytes / 16;
    dirty_max_bytes - idle * (full - roomy) / (TIGHT_PERCENT - roomy)
}
/// Up to which part of the SSD live room for all that is dirty costs little: less, where the bound is much of a small SSD.
fn roomy_percent(dirty_max_percent: u64) -> u64 {
    let much = dirty_max_percent.saturating_sub(MUCH_PERCENT) * 4;
    ROOMY_PERCENT.saturating_sub(much).max(ROOMY_MIN_PERCENT)
}
/// Up to the first part of the SSD live, room costs little; from the other on, much. In between updates in a rush wait for the cleaner now and then (docs/adr/0040).
const ROOMY_PERCENT: u64 = 75;
const TIGHT_PERCENT: u64 = 78;
const ROOMY_MIN_PERCENT: u64 = 55;
/// A bound on dirty bytes of more of the SSD than this is much.
const MUCH_PERCENT: u64 = 2;

/// What may be dirty now, for an epoch to be a part of: half of what the free segments take can enter while the other half steps down.
pub fn dirty_now_bytes(dirty_max_bytes: u64, steppable_bytes: u64) -> u64 {
    let now = steppable_bytes.saturating_mul(2).max(dirty_max_bytes / 8);
    dirty_max_bytes.min(now).max(4)
}

/// Whether enough was appended since the last checkpoint that replay would grow too long.
/// A start reads the log of all lanes at once, from one device.
pub fn checkpoint_due(
    appended_bytes: u64,
    lane_bytes: u64,
    lanes: u64,
    directory_bytes: u64,
) -> bool {
    let replay_bound = (lane_bytes / 2).clamp(8 << 20, (REPLAY_MAX_BYTES / lanes).max(8 << 20));
    appended_bytes >= replay_bound.max(8 * directory_bytes)
}

/// Log that a start replays, over all lanes, unless directories are large.
const REPLAY_MAX_BYTES: u64 = 512 << 20;

/// Segments that must wait for a checkpoint of so many segments, so that it is made for them.
pub fn checkpoint_worth(checkpoint_segments: usize) -> usize {
    5 * checkpoint_segments
}

/// Free memory segments that only the cleaner may use.
pub(crate) const SPARE_SEGMENTS: usize = 1;
/// Free SSD segments beside a checkpoint's that must be there to take updates.
pub(crate) const CLEANER_SEGMENTS: usize = 6;
/// Part of the dirty bound, in eighths, above which the oldest entries step down.
const STEP_DOWN_EIGHTHS: u64 = 4;
/// Part of the dirty bound that reads bring up between two epochs, at least, for the second to be closed: twice of what one steps down. Where less is
/// written than that, what is dirty is mostly old, and nothing else makes it leave DRAM.
const READ_UP_ONE_IN: u64 = 4;

/// The bound on dirty bytes of a scratch lane: half of the memory; a sixteenth of the SSD, since as much stays empty there.
pub(crate) fn scratch_dirty_max_bytes(memory_bytes: u64, ssd_bytes: u64) -> u64 {
    (memory_bytes / 2).min(ssd_bytes / 16)
}

/// Whether entries of a scratch lane should step down now.
pub(crate) fn scratch_close_epoch(p: &Pressure) -> bool {
    let anything = p.open_dirty_bytes > 0;
    p.open_dirty_bytes * 8 >= p.dirty_max_bytes * STEP_DOWN_EIGHTHS
        || (anything && (p.writers_wait || p.asked))
        || (anything && p.read_up_bytes >= p.dirty_max_bytes / READ_UP_ONE_IN)
        || p.cleaning_ready
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_keys_are_remembered_as_entries_would_fit() {
        for (mean, now, part) in [(150, 1, 1), (1064, 1, 2), (2100, 1, 4), (1 << 20, 1, 64)] {
            assert_eq!(ghost_part(mean, now), part, "{mean} bytes");
        }
        // It does not go to and fro with the mean.
        for mean in 900..1200 {
            assert_eq!(ghost_part(mean, 2), 2, "{mean} bytes");
        }
        assert_eq!(ghost_part(200, 64), 1);
    }

    #[test]
    fn emptier_and_older_segments_are_cleaned_first() {
        let seg = 1 << 19;
        assert!(clean_score(seg / 4, seg, 10) > clean_score(seg / 2, seg, 10));
        assert!(clean_score(seg / 2, seg, 20) > clean_score(seg / 2, seg, 10));
        assert_eq!(clean_score(seg, seg, 1000), 0);
        assert!(!worth_cleaning(seg * 99 / 100, seg));
    }

    #[test]
    fn the_end_of_a_full_segment_is_no_gain() {
        let seg = 1 << 19;
        let worth = |live, used| worth_cleaning(kept_bytes(live, used, seg), seg);
        assert!(worth(seg * 9 / 10, seg));
        assert!(
            !worth(seg * 7 / 8, seg * 7 / 8),
            "its end was too short for an entry"
        );
        assert!(worth(seg * 6 / 8, seg * 7 / 8));
        assert!(worth(seg / 2, seg / 2), "two such make one");
        assert_eq!(kept_bytes(0, seg * 7 / 8, seg), 0);
    }

    #[test]
    fn the_end_of_a_full_segment_is_taken_by_what_is_in_it() {
        let seg = 1 << 19;
        // Seven values of 64 KiB: whole, they have all of it, and each has a seventh.
        let (entry, used) = (65_600, 113 * 4096);
        let taken = |n: u64| taken_bytes(n * entry, used, 7 * entry, seg);
        assert_eq!(taken(7), seg);
        assert!((0..7).all(|n| taken(n).abs_diff(n * seg / 7) <= 1));
        // Short ones leave no end; what was filled up by many epochs is to be gained.
        assert_eq!(taken_bytes(300_000, seg - 100, seg - 100, seg), 300_000);
        assert_eq!(taken_bytes(100_000, seg, 100_000, seg), 100_000);
        // Closed early.
        assert_eq!(taken_bytes(10_000, 20_000, 20_000, seg), 10_000);
        assert_eq!(taken_bytes(0, 0, 0, seg), 0);
    }

    #[test]
    fn heat_runs_out() {
        let mut heat = 3;
        let mut rounds = 0;
        while let Fate::Keep(next) = fate_in_memory(heat, Victim::Main) {
            heat = next;
            rounds += 1;
        }
        assert_eq!(rounds, 3);
        assert_eq!(fate_in_memory(0, Victim::Probation), Fate::StepDown);
        assert_eq!(fate_in_memory(0, Victim::Fragmented), Fate::Keep(0));
    }

    #[test]
    fn probation_is_emptied_first_when_it_is_large_or_alone() {
        assert_eq!(victim_queue(11, 80, 100), Victim::Probation);
        assert_eq!(victim_queue(10, 80, 100), Victim::Main);
        assert_eq!(victim_queue(3, 0, 100), Victim::Probation);
    }

    #[test]
    fn room_is_kept_for_all_that_is_dirty_while_the_ssd_is_three_quarters_full() {
        let ssd = 100_000;
        let of = |percent| dirty_ahead_bytes(1600, 0, percent * ssd / 100, ssd);
        assert_eq!([of(0), of(75), of(78), of(100)], [1600, 1600, 100, 100]);
        assert!((1..100).all(|p| of(p) >= of(p + 1) && of(p) - of(p + 1) <= 500));
        assert_eq!(dirty_ahead_bytes(1600, 26, 90_000, ssd), 1600);
    }

    #[test]
    fn where_the_bound_is_much_of_the_ssd_less_room_is_kept() {
        let of = |percent: u64| dirty_ahead_bytes(160, 0, percent * 20, 2000);
        assert_eq!([of(55), of(78)], [160, 10]);
        assert!(of(66) < 120 && of(75) < 40);
        assert_eq!(dirty_ahead_bytes(160, 0, 0, 0), 160, "nothing is no SSD");
    }

    #[test]
    fn slices_grow_with_what_is_foreseen() {
        let calm = Pace {
            left_bytes: 16 << 20,
            room_bytes: 16 << 20,
            ..Pace::default()
        };
        let least = slice_cost(&calm);
        assert!(least > ENTRY_COST_BYTES);
        let come = |arrived_bytes, pace| {
            slice_cost(&Pace {
                arrived_bytes,
                ..pace
            })
        };
        assert_eq!(come(1 << 10, calm), least, "little comes");
        assert_eq!(come(10 << 10, calm), 40 << 10, "four times what comes");
        let late = Pace {
            room_bytes: 1 << 20,
            ..calm
        };
        assert!(come(1 << 10, late) > least, "little room is left");
        let full = Pace {
            missing_bytes: 8 << 20,
            ..calm
        };
        assert_eq!(come(10 << 10, full), 80 << 10, "segments must be freed");
        let most = slice_cost(&Pace {
            urgent: true,
            ..Pace::default()
        });
        assert_eq!(come(1 << 30, calm), most);
        assert_eq!(
            come(
                1,
                Pace {
                    room_bytes: 0,
                    ..calm
                }
            ),
            most
        );
    }

    /// Updates that come steadily never find the epoch before still under way when the next is due.
    #[test]
    fn an_epoch_is_through_before_the_next_is_due() {
        for arrived_bytes in [100, 4 << 10, 64 << 10] {
            let mut p = Pace {
                left_bytes: 16 << 20,
                room_bytes: 16 << 20,
                arrived_bytes,
                ..Pace::default()
            };
            let mut stepped = 0;
            while stepped < p.left_bytes {
                stepped += slice_cost(&p);
                p.room_bytes = p.room_bytes.checked_sub(arrived_bytes).expect("in time");
            }
            assert!(p.room_bytes >= (16 << 20) * 2 / 3);
        }
    }

    #[test]
    fn an_epoch_closes_when_due_or_pressed() {
        let calm = Pressure {
            dirty_max_bytes: 1000,
            flush_interval_ms: 1000,
            ..Pressure::default()
        };
        assert!(!close_epoch(&calm));
        assert!(!close_epoch(&Pressure {
            open_dirty_bytes: 10,
            since_close_ms: 999,
            ..calm
        }));
        assert!(close_epoch(&Pressure {
            open_dirty_bytes: 10,
            since_close_ms: 1000,
            ..calm
        }));
        assert!(close_epoch(&Pressure {
            open_dirty_bytes: 250,
            ..calm
        }));
        assert!(close_epoch(&Pressure {
            open_dirty_bytes: 1,
            sync: true,
            ..calm
        }));
        assert!(close_epoch(&Pressure {
            open_dirty_bytes: 1,
            writers_wait: true,
            ..calm
        }));
    }
}
