//! How the page buffer and the DRAM terrace are to share a cap, as pure functions: what each seems to spare, and what follows from it.
//!
//! Promises: no clock; what is kept from look to look is in [`Gains`] and [`Pace`]. Never: moves anything.

use crate::PAGE_BYTES;
use std::ops::Range;

/// Faults between two looks at how cap is shared.
pub(crate) const BALANCE_EVERY_FAULTS: u64 = 4096;
/// Times that faults and reads cost, as measured where both processors are busy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    fault_ns: u64,
    /// What a page that was written to costs more.
    changed_ns: u64,
    read_ns: u64,
    /// All entries are remembered when they leave the terrace (`Store::remember_used`).
    sees_all: bool,
}

/// What the buffer spares over what the terrace does, for it to shrink, and to grow. Not one, since only entries that were never used
/// again are remembered when they leave the terrace: about half of those that a larger one would have.
const WORTH: Range<f64> = 1.0..2.0;
/// The same where all are (docs/adr/0068).
const WORTH_SEEN: Range<f64> = 0.95..1.25;
/// The same where pages take as much below: what the buffer has spares all that a terrace of as many bytes would, and faults.
const WORTH_WHOLE: Range<f64> = 0.95..1.0;
/// From this part of a page on that it takes below, pages count as whole: of a program whose values do not pack its tables do.
const WHOLE_PART: f64 = 0.75;
/// Of whole pages the terrace keeps one part in so many, for what is on its way to the device.
const TERRACE_OF_WHOLE_ONE_IN: u64 = 6;

/// Faults in the faulting thread (docs/adr/0022).
const IN_THREAD: Costs = Costs {
    fault_ns: 5_500,
    changed_ns: 3_000,
    read_ns: 18_000,
    sees_all: false,
};
/// Faults taken by handler threads: waking them and being woken, beside a read that is waited for likewise (docs/adr/0033).
const BY_HANDLERS: Costs = Costs {
    fault_ns: 60_000,
    changed_ns: 10_000,
    read_ns: 100_000,
    sees_all: false,
};

/// Faults in the threads of a program that does not know this library: it has few threads, often with a lock of its own in its hands, so that what a read takes counts and not only what it costs the
/// processor (docs/adr/0050).
const IN_FEW_THREADS: Costs = Costs {
    fault_ns: 10_000,
    changed_ns: 5_000,
    read_ns: 110_000,
    sees_all: true,
};

/// What they are where handler threads take faults, or where they are not needed; of an `unmodified` program.
pub(crate) fn costs(by_handlers: bool, unmodified: bool) -> Costs {
    match (by_handlers, unmodified) {
        (true, _) => Costs {
            sees_all: unmodified,
            ..BY_HANDLERS
        },
        (false, true) => IN_FEW_THREADS,
        (false, false) => IN_THREAD,
    }
}
/// What changes hands at a time, of a cap.
pub(crate) fn step_bytes(cap_bytes: u64) -> u64 {
    cap_bytes / STEP_ONE_IN
}
const STEP_ONE_IN: u64 = 64;
/// The buffer and the terrace each keep one part in so many.
const BUFFER_MIN_ONE_IN: u64 = 64;
const TERRACE_MIN_ONE_IN: u64 = 32;
/// Events without which nothing can be said.
const EVENTS_MIN: u64 = 32;

/// The most looks between two steps.
const PATIENCE_MAX: u32 = 16;

/// How soon the next step is taken. A step disturbs what is seen: what left for it comes back soon, so that the next look asks for the opposite. Without a pause the
/// buffer went up and down by a step at each look, and reads of objects were a quarter slower than with a fixed size in the middle (docs/adr/0067).
#[derive(Debug, Default)]
pub(crate) struct Pace {
    grew: bool,
    /// Looks between steps now, and those that are still to come before the next.
    patience: u32,
    pause: u32,
}

impl Pace {
    /// A look, in which the buffer would grow, shrink or stay: whether it does. Steps that go on in one direction come sooner and sooner, those that turn later and later.
    pub fn steps(&mut self, grows: Option<bool>) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let Some(grows) = grows else {
            return false;
        };
        self.patience = match grows == self.grew {
            true => self.patience / 2,
            false => self.patience * 2,
        };
        self.patience = self.patience.clamp(1, PATIENCE_MAX);
        (self.grew, self.pause) = (grows, self.patience);
        true
    }
}

/// Looks before this one that count, each a little less than the one after it: what a single look sees hangs on where the hand is, since what
/// is touched all the time often lies together, and a size that follows it goes up and down (docs/adr/0072).
const LOOKS_KEPT: u64 = 8;

/// What was seen lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gains {
    /// Pages that came back right after they left, and those of them for which the device was read.
    pub near: u64,
    pub near_read: u64,
    /// Pages that left, and those of them that had been written to.
    pub left: u64,
    pub changed: u64,
    /// So much more buffer would have had them, bytes.
    pub near_bytes: u64,
    /// Entries that were read while the terrace remembered them, and their bytes; how many it remembers.
    pub recalled: u64,
    pub recalled_bytes: u64,
    pub remembered: u64,
}

impl Gains {
    /// With what was seen since the last look.
    pub fn and(self, new: Gains) -> Gains {
        let sum = |kept: u64, new: u64| kept - kept / LOOKS_KEPT + new;
        Gains {
            near: sum(self.near, new.near),
            near_read: sum(self.near_read, new.near_read),
            left: sum(self.left, new.left),
            changed: sum(self.changed, new.changed),
            recalled: sum(self.recalled, new.recalled),
            recalled_bytes: sum(self.recalled_bytes, new.recalled_bytes),
            ..new
        }
    }

    /// Bytes of an entry that was read again, on the average.
    fn entry_bytes(&self) -> f64 {
        self.recalled_bytes as f64 / self.recalled.max(1) as f64
    }

    /// Which part of a page it takes below.
    fn packed(&self) -> f64 {
        (self.entry_bytes() / PAGE_BYTES as f64).min(1.0)
    }

    /// Whether pages take as much below as in the buffer. None: too little was seen.
    pub fn are_whole(&self) -> Option<bool> {
        (self.recalled >= EVENTS_MIN).then(|| self.packed() > WHOLE_PART)
    }
}

/// The most that the buffer may have of `data_bytes`, which it and the terrace share.
pub(crate) fn buffer_most(cap_bytes: u64, data_bytes: u64, terrace_min_bytes: u64) -> u64 {
    let keeps = (data_bytes / TERRACE_MIN_ONE_IN).max(terrace_min_bytes);
    data_bytes
        .saturating_sub(keeps)
        .max(buffer_least(cap_bytes))
}

/// The least that the buffer may have.
pub(crate) fn buffer_least(cap_bytes: u64) -> u64 {
    cap_bytes / BUFFER_MIN_ONE_IN
}

/// What it begins with where handler threads take faults: a program that fits into it never faults twice on a page, and a fault costs more than
/// what the terrace could spare. The terrace has half as much again as it must have, for what comes to need DRAM before the next look.
pub(crate) fn buffer_at_first(data_bytes: u64, terrace_min_bytes: u64) -> u64 {
    (data_bytes / 4 * 3).min(data_bytes.saturating_sub(terrace_min_bytes + terrace_min_bytes / 2))
}

/// What the page buffer is to have of `data_bytes`, which it and the terrace share, if it has `now` bytes. The terrace keeps `terrace_min_bytes`.
pub(crate) fn buffer_wanted(
    cap_bytes: u64,
    data_bytes: u64,
    terrace_min_bytes: u64,
    now: u64,
    gains: Gains,
    costs: Costs,
) -> u64 {
    let step = step_bytes(cap_bytes);
    let least = buffer_least(cap_bytes);
    let most = buffer_most(cap_bytes, data_bytes, terrace_min_bytes);
    if gains.near + gains.recalled < EVENTS_MIN {
        return now.min(most);
    }
    let fault_ns = costs.fault_ns + costs.changed_ns * gains.changed / gains.left.max(1);
    let mean = gains.entry_bytes();
    // By Zipf's law what a terrace of `held` bytes would spare with so many more goes with the logarithm of how much larger it is.
    let held = data_bytes.saturating_sub(now).max(1) as f64;
    let reach = held * (1.0 + gains.remembered as f64 * mean / held).ln();
    let terrace = (gains.recalled * costs.read_ns) as f64 / reach.max(1.0);
    let per_byte = |ns: u64| ns as f64 / gains.near_bytes.max(1) as f64;
    let reads = per_byte(gains.near_read * costs.read_ns);
    let whole = gains.are_whole() == Some(true);
    // What the buffer has the terrace need not have, where it takes what the page is packed to. Reads that either would spare count once.
    let shared = reads.max(terrace * gains.packed());
    let (worth, reads, most) = match costs.sees_all {
        true if whole => (
            WORTH_WHOLE,
            shared,
            most.min(data_bytes - data_bytes / TERRACE_OF_WHOLE_ONE_IN),
        ),
        true => (WORTH_SEEN, shared, most),
        false => (WORTH, reads, most),
    };
    let buffer = per_byte(gains.near * fault_ns) + reads;
    // Both fall as they grow; in between nothing is moved.
    let wanted = match buffer / terrace.max(f64::MIN_POSITIVE) {
        better if better > worth.end => now + step,
        better if better < worth.start => now.saturating_sub(step),
        _ => now,
    };
    wanted.clamp(least, most.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_turn_come_late_and_those_that_go_on_soon() {
        let mut pace = Pace::default();
        let mut looks_until = |grows: bool| {
            let looks = (1..100).find(|_| pace.steps(Some(grows)));
            looks.expect("it steps")
        };
        let turning: Vec<u32> = (0..7).map(|n| looks_until(n % 2 == 0)).collect();
        assert_eq!(turning, [1, 2, 3, 5, 9, 17, 17]);
        let going_on: Vec<u32> = (0..7).map(|_| looks_until(true)).collect();
        assert_eq!(going_on, [17, 9, 5, 3, 2, 2, 2]);
        assert!(!(0..100).any(|_| pace.steps(None)));
    }

    #[test]
    fn where_the_hand_is_does_not_move_the_buffer() {
        let cap = 512 << 20;
        let (data, now) = (cap / 8 * 7, cap / 2);
        // As seen of a Redis: the hand goes over pages that come back at once, then over those that do not.
        let look = |near| Gains {
            near,
            near_bytes: now / 4,
            left: 4096,
            recalled: 300,
            recalled_bytes: 300 * 1600,
            remembered: 220_000,
            ..Gains::default()
        };
        let wanted = |gains| buffer_wanted(cap, data, 0, now, gains, IN_FEW_THREADS);
        let (few, many) = (look(300), look(1000));
        assert!(wanted(few) < now && wanted(many) > now, "each by itself");
        let looks = [few, many].repeat(20);
        let mut seen = Gains::default();
        let moved = looks.iter().skip(8).filter(|look| {
            seen = seen.and(**look);
            wanted(seen) != now
        });
        assert!(moved.count() < 8, "once enough was seen it stays");
        let mut seen = few.and(few);
        let turned = (0..16).find(|_| {
            seen = seen.and(many);
            wanted(seen) > now
        });
        assert!(turned.is_some(), "but what has changed is seen");
    }

    #[test]
    fn what_the_buffer_has_the_terrace_need_not_have() {
        let cap = 512 << 20;
        let (data, now) = (cap / 8 * 7, cap / 2);
        // As seen of a Redis: pages that come back soon lie in the terrace, others are read.
        let gains = Gains {
            near: 700,
            near_read: 50,
            near_bytes: now / 4,
            left: 4096,
            changed: 4096,
            recalled: 800,
            recalled_bytes: 800 * 1600,
            remembered: 220_000,
        };
        let wanted_of = |now, gains| buffer_wanted(cap, data, 0, now, gains, IN_FEW_THREADS);
        let wanted = |gains| wanted_of(now, gains);
        assert!(wanted(gains) < now, "two and a half pages are had for one");
        assert_eq!(gains.are_whole(), Some(false));
        let whole = Gains {
            recalled_bytes: 800 * 4200,
            remembered: 84_000,
            ..gains
        };
        assert_eq!(whole.are_whole(), Some(true));
        // Few come back soon: but nothing is had for it below.
        let few = Gains { near: 50, ..whole };
        assert!(wanted(few) > now);
        // All but what is on its way to the device, also where there were others before.
        let most = data - data / TERRACE_OF_WHOLE_ONE_IN;
        assert_eq!(
            (wanted_of(most, whole), wanted_of(data, whole)),
            (most, most)
        );
        let unseen = Gains {
            recalled: EVENTS_MIN - 1,
            ..whole
        };
        assert_eq!(unseen.are_whole(), None);
        // A little more would have them all.
        let read = Gains {
            near: 4000,
            near_read: 4000,
            ..gains
        };
        assert!(wanted(read) > now);
    }

    #[test]
    fn cap_goes_to_where_it_spares_more() {
        let cap = 512 << 20;
        let (data, now) = (cap / 2, cap / 8);
        let gains = Gains {
            near: 2000,
            near_bytes: now / 4,
            recalled: 1000,
            recalled_bytes: 160_000,
            remembered: 500_000,
            ..Gains::default()
        };
        let wanted = |gains| buffer_wanted(cap, data, 0, now, gains, IN_THREAD);
        // A fault for each of 16 MiB, against a read for each of 80 MB.
        assert!(wanted(gains) > now);
        let few = Gains { near: 100, ..gains };
        assert!(wanted(few) < now);
        let read = Gains {
            near: 200,
            near_read: 200,
            ..gains
        };
        assert!(wanted(read) > wanted(few));
        let idle = Gains {
            near: 10,
            recalled: 10,
            ..gains
        };
        assert_eq!(wanted(idle), now);
        let none = Gains {
            recalled: 0,
            recalled_bytes: 0,
            ..gains
        };
        let most = buffer_wanted(cap, data, 0, data, none, IN_THREAD);
        assert_eq!(most, data - data / TERRACE_MIN_ONE_IN);
        assert_eq!(buffer_wanted(cap, data, 0, 0, few, IN_THREAD), cap / 64);
        // Whatever it would spare, and also when it has more already: with less the terrace refuses updates.
        let kept = data / 2;
        assert_eq!(
            buffer_wanted(cap, data, kept, data, few, IN_THREAD),
            data - kept
        );
        assert_eq!(
            buffer_wanted(cap, data, kept, data, none, IN_THREAD),
            data - kept
        );
    }
}
