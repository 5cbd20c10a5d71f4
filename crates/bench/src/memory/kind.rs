//! What kinds of memory a load runs on.

use anyhow::{Result, bail};

/// One kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A store's handles: `get_many` and `put`.
    Handles,
    /// Objects on pages of their own.
    Opp,
    /// Whole pages, packed.
    Mp,
    /// Anonymous memory, swapped to a file.
    Swapped,
    /// The same in twice the memory: what a limit would hold of pages that pack by half, if packing and a second place to look cost nothing.
    SwappedTwice,
    /// A file mapped with MADV_RANDOM.
    Mapped,
    /// Objects on pages by bare faults, with as much in DRAM as policies that learn reach.
    Bare,
    /// The same with the best possible choice of what is in DRAM.
    BareBest,
    /// The same, where objects that an application of `examples/` packs take as little in DRAM and in the log as lz4 leaves of them, and packing costs nothing.
    BarePacked,
}

impl Kind {
    /// What a program can have, ours first.
    pub const ALL: &[Kind] = &[
        Kind::Handles,
        Kind::Opp,
        Kind::Mp,
        Kind::Swapped,
        Kind::Mapped,
    ];

    /// Its name in tables and on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Handles => "handles",
            Kind::Opp => "opp",
            Kind::Mp => "mp",
            Kind::Swapped => "swap",
            Kind::SwappedTwice => "swap-twice",
            Kind::Mapped => "mapped-file",
            Kind::Bare => "bare",
            Kind::BareBest => "bare-best",
            Kind::BarePacked => "bare-packed",
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Result<Kind> {
        const OTHERS: &[Kind] = &[
            Kind::SwappedTwice,
            Kind::Bare,
            Kind::BareBest,
            Kind::BarePacked,
        ];
        let mut all = Kind::ALL.iter().chain(OTHERS);
        match all.find(|kind| kind.name() == name) {
            Some(kind) => Ok(*kind),
            None => bail!("there is no kind of memory called `{name}`"),
        }
    }

    /// Whether it is ours.
    pub fn is_ours(self) -> bool {
        matches!(self, Kind::Handles | Kind::Opp | Kind::Mp)
    }

    /// Whether it is swapped.
    pub fn is_swapped(self) -> bool {
        matches!(self, Kind::Swapped | Kind::SwappedTwice)
    }

    /// How many times the limit it has.
    pub fn limits(self) -> u64 {
        if self == Kind::SwappedTwice { 2 } else { 1 }
    }

    /// Whether it is the yardstick of bare faults.
    pub fn is_bare(self) -> bool {
        matches!(self, Kind::Bare | Kind::BareBest | Kind::BarePacked)
    }

    /// Whether it is a peer of ours.
    pub fn is_peer(self) -> bool {
        matches!(self, Kind::Swapped | Kind::Mapped)
    }
}
