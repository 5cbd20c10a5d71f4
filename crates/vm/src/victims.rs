//! Pages that leave together: where eviction goes on, and what one batch of it works on, made beforehand.

use crate::aside::Stage;
use crate::backing::Page;
use crate::policy::BATCH_PAGES_MAX;
use crate::space::Pinned;
use crate::sys::{HeldPages, Range};

/// Where eviction goes on.
#[derive(Default)]
pub(crate) struct Hand {
    pub page: u64,
    pub round: u64,
}

/// A page that is to leave.
#[derive(Clone, Copy)]
pub(crate) struct Victim {
    pub page: u64,
    pub dirty: bool,
    pub unsure: bool,
    pub heat: u8,
    /// Could not be stored, or is pinned.
    pub stays: bool,
    /// Lies on the stage, at the victim's place among the victims.
    pub aside: bool,
    /// Index in the groups.
    pub group: u16,
    /// Where in it the bytes begin that a pipe holds, and how many there are: none where it holds nothing of it.
    pub held: (u16, u16),
}

/// The victims of one block.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub pinned: Pinned,
    pub victims: u32,
    pub staying: u32,
    /// The whole block goes.
    pub released: bool,
    /// How many live blocks the hand had passed.
    pub passed: u64,
}

/// Pages that are read from a pipe and stored together.
pub(crate) const CAPTURE_PAGES: usize = 8;

/// What one thread that evicts has to hold changed pages while they leave (`capture`).
pub(crate) struct Capture {
    pub pipe: HeldPages,
    pub pages: Box<[Page]>,
}

impl Capture {
    /// DRAM that one takes.
    pub const BYTES: usize = CAPTURE_PAGES * size_of::<Page>();

    /// None: this process may not have a pipe that is large enough.
    fn new() -> Option<Capture> {
        Some(Capture {
            pipe: HeldPages::new(BATCH_PAGES_MAX)?,
            pages: vec![Page::ZERO; CAPTURE_PAGES].into_boxed_slice(),
        })
    }
}

/// What a thread needs to evict, made beforehand.
pub(crate) struct Workspace {
    pub victims: Vec<Victim>,
    pub groups: Vec<Group>,
    pub ranges: Vec<Range>,
    pub stage: Stage,
    pub capture: Option<Capture>,
    pub pinned: usize,
}

impl Workspace {
    pub fn new(stage: Stage, captures: bool) -> Workspace {
        Workspace {
            victims: Vec::with_capacity(BATCH_PAGES_MAX),
            groups: Vec::with_capacity(BATCH_PAGES_MAX),
            // One more for the stage.
            ranges: Vec::with_capacity(BATCH_PAGES_MAX + 1),
            stage,
            capture: captures.then(Capture::new).flatten(),
            pinned: 0,
        }
    }

    pub fn clear(&mut self) {
        self.victims.clear();
        self.groups.clear();
        self.ranges.clear();
        self.pinned = 0;
    }
}

impl Victim {
    pub fn is_to_be_stored(&self) -> bool {
        self.dirty && !self.stays
    }
}
