//! The life of a page, as one word.
//!
//! | state | the page in the application's view | who may move it on | to |
//! |---|---|---|---|
//! | absent | not there | a fault, or who brings it in ahead of one | filling |
//! | | | who frees it | discarding |
//! | filling | not there, or just put there | only the thread that fills it | clean (it was read), dirty (it is to be written), absent (it could not be read) |
//! | clean | there, write-protected, the backing has its contents | a fault by writing, or ahead of one | opening |
//! | | | an evictor | leaving clean |
//! | | | who frees it | discarding |
//! | opening | there, its protection is being taken away | only the thread that opens it | dirty |
//! | dirty | there, newer than the backing; writable, or protected because an evictor protected a range around it | a fault by writing | opening |
//! | | | an evictor | leaving dirty |
//! | | | who frees it | discarding |
//! | leaving clean | there and protected, or just taken away | only its evictor | absent |
//! | leaving dirty | the same, its contents are on their way to the backing | only its evictor, or who writes it back | absent (stored), dirty (not stored), clean (written back: it stays) |
//! | discarding | there or not; its contents are not wanted any more | only who frees it | absent |
//!
//! Filling, opening, leaving and discarding are *busy*: one thread owns the page, whatever else needs it waits and looks again.
//! Page tables are changed in busy states only, by the owner: so a late system call never undoes what another thread did. An
//! evictor that protects a range may hit pages it does not own: protection is all it adds, and a write to such a page just faults
//! once more.
//!
//! Besides the state: *heat*: the more, the more visits of an evictor it stays for, while it is clean; *unsure*, with dirty: it was made
//! writable without being written to, so it may be as it was fetched; with clean: it could not be fetched and is *poisoned* until it leaves; *awaited*, in busy states, tells the owner to wake others.
//!
//! Promises: no transition that the table does not have (each is asserted). Never: waits, or touches the page.

use crate::sync::atomic::{AtomicU8, Ordering};

const PHASE: u8 = 0x07;
const HEAT: u8 = 0x18;
const HEAT_ONE: u8 = 0x08;
const AWAITED: u8 = 0x20;
const UNSURE: u8 = 0x40;

/// The states of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    Absent = 0,
    Filling = 1,
    Clean = 2,
    Opening = 3,
    Dirty = 4,
    LeavingClean = 5,
    LeavingDirty = 6,
    Discarding = 7,
}

impl Phase {
    const ALL: [Phase; 8] = [
        Phase::Absent,
        Phase::Filling,
        Phase::Clean,
        Phase::Opening,
        Phase::Dirty,
        Phase::LeavingClean,
        Phase::LeavingDirty,
        Phase::Discarding,
    ];

    /// Whether one thread owns the page in this state.
    fn busy(self) -> bool {
        !matches!(self, Phase::Absent | Phase::Clean | Phase::Dirty)
    }
}

/// A page's word as it was read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u8);

impl Seen {
    pub fn phase(self) -> Phase {
        Phase::ALL[usize::from(self.0 & PHASE)]
    }

    pub fn heat(self) -> u8 {
        (self.0 & HEAT) / HEAT_ONE
    }

    pub fn unsure(self) -> bool {
        self.0 & UNSURE != 0
    }

    pub fn poisoned(self) -> bool {
        self.phase() == Phase::Clean && self.unsure()
    }
}

/// What a page becomes when its busy state ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Absent,
    Clean {
        heat: u8,
    },
    /// Clean, but what is there is a mark that ends every access in SIGBUS.
    Poisoned,
    Dirty {
        heat: u8,
        unsure: bool,
    },
}

impl Then {
    fn word(self) -> u8 {
        let heated = |heat: u8| (heat * HEAT_ONE) & HEAT;
        match self {
            Then::Absent => Phase::Absent as u8,
            Then::Clean { heat } => Phase::Clean as u8 | heated(heat),
            Then::Poisoned => Phase::Clean as u8 | UNSURE,
            Then::Dirty { heat, unsure } => {
                Phase::Dirty as u8 | heated(heat) | if unsure { UNSURE } else { 0 }
            }
        }
    }
}

/// The word of one page. All zeros is absent.
#[derive(Debug)]
pub(crate) struct PageState(AtomicU8);

impl PageState {
    /// An absent page.
    #[cfg_attr(not(test), allow(dead_code))]
    pub fn new() -> PageState {
        PageState(AtomicU8::new(Phase::Absent as u8))
    }

    pub fn look(&self) -> Seen {
        Seen(self.0.load(Ordering::Acquire))
    }

    fn go(&self, seen: Seen, to: u8) -> bool {
        self.0
            .compare_exchange(seen.0, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Absent to filling: true if the caller fills it now.
    pub fn begin_fill(&self, seen: Seen) -> bool {
        assert_eq!(seen.phase(), Phase::Absent);
        self.go(seen, Phase::Filling as u8)
    }

    /// Clean or dirty to opening: true if the caller takes its protection away now.
    pub fn begin_open(&self, seen: Seen) -> bool {
        assert!(matches!(seen.phase(), Phase::Clean | Phase::Dirty));
        self.go(seen, Phase::Opening as u8)
    }

    /// Clean or dirty to leaving: true if the caller evicts it now, or writes it back.
    pub fn begin_leave(&self, seen: Seen) -> bool {
        let to = match seen.phase() {
            Phase::Clean => Phase::LeavingClean,
            Phase::Dirty => Phase::LeavingDirty,
            other => panic!("a page that is {other:?} cannot leave"),
        };
        self.go(seen, to as u8)
    }

    /// Absent, clean or dirty to discarding: true if the caller discards it now.
    pub fn begin_discard(&self, seen: Seen) -> bool {
        assert!(!seen.phase().busy());
        self.go(seen, Phase::Discarding as u8)
    }

    /// Ends the caller's busy state `from`. True: somebody waits for it and must be woken.
    #[must_use]
    pub fn end(&self, from: Phase, then: Then) -> bool {
        let allowed = match (from, then) {
            (Phase::Filling | Phase::LeavingClean | Phase::Discarding, Then::Absent)
            | (Phase::LeavingDirty, Then::Absent | Then::Dirty { .. } | Then::Clean { .. })
            | (Phase::Filling, Then::Clean { .. } | Then::Poisoned | Then::Dirty { .. }) => true,
            (Phase::Opening, Then::Dirty { unsure, .. }) => !unsure,
            _ => false,
        };
        assert!(allowed, "{from:?} does not become {then:?}");
        let before = Seen(self.0.swap(then.word(), Ordering::AcqRel));
        assert_eq!(before.phase(), from, "somebody else moved a busy page");
        before.0 & AWAITED != 0
    }

    /// Asks the owner of a busy page to wake the caller. False: it changed since it was seen, look again.
    #[must_use]
    pub fn await_change(&self, seen: Seen) -> bool {
        assert!(seen.phase().busy());
        seen.0 & AWAITED != 0 || self.go(seen, seen.0 | AWAITED)
    }
}
