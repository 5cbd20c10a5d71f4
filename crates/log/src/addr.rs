//! Locations and slots: where an entry lies, packed into the directory's 8 bytes.
//!
//! A slot's payload is, from the low bit: heat (2), size class (5), terrace (2),
//! unit (the rest, in 16-byte units within the lane's terrace). The index puts
//! its tag into the bits above. A [`Loc`] is the same without the heat: it is
//! what entries carry in `link`, and 0 means none, since no entry of the SSD
//! terrace has terrace number 0.
//! Never: knows how long an entry exactly is; a class is an upper bound.

/// Granularity of locations: every entry starts at a multiple of this.
pub const UNIT_BYTES: usize = 16;
/// Heat saturates here.
pub const HEAT_MAX: u8 = 3;
/// Bits of a payload below the unit number.
pub const SLOT_LOW_BITS: u32 = 9;

/// Upper bounds of the 32 size classes, in units; about 1.31 between neighbours.
const CLASS_UNITS: [u32; 32] = [
    2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 29, 38, 50, 65, 85, 111, 145, 190, 249, 326, 427, 559, 732,
    959, 1256, 1645, 2155, 2823, 3698, 4844, 6346, 8313,
];

/// Longest entry in bytes that a class can name.
pub const ENTRY_MAX_BYTES: usize = CLASS_UNITS[31] as usize * UNIT_BYTES;

/// Smallest class that holds `bytes`. Panics above [`ENTRY_MAX_BYTES`]: callers
/// check sizes where they enter.
pub fn class_of(bytes: usize) -> u8 {
    let units = bytes.div_ceil(UNIT_BYTES) as u32;
    let class = CLASS_UNITS.partition_point(|&u| u < units);
    assert!(
        class < 32,
        "entry of {bytes} bytes; at most {ENTRY_MAX_BYTES}"
    );
    class as u8
}

/// Upper bound in bytes of the entries of a class.
pub fn class_bytes(class: u8) -> usize {
    CLASS_UNITS[class as usize & 31] as usize * UNIT_BYTES
}

/// Which log of a lane. Memory terraces come first, the durable one is the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Terrace {
    /// Volatile memory, the top.
    Dram = 0,
    /// A middle terrace of byte-addressable memory; holds clean entries only.
    Middle = 1,
    /// The durable log at the bottom.
    Ssd = 3,
}

/// Where an entry lies, with its size class: 44 bits at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Loc(u64);

impl Loc {
    /// No location.
    pub const NONE: Loc = Loc(0);

    /// Packs a location.
    pub fn new(terrace: Terrace, class: u8, unit: u64) -> Loc {
        debug_assert!(unit < 1 << 37 && class < 32);
        Loc(u64::from(class) | (terrace as u64) << 5 | unit << 7)
    }
    /// From the eight bytes of an entry's `link`.
    pub fn from_raw(raw: u64) -> Loc {
        Loc(raw & ((1 << 44) - 1))
    }
    /// The eight bytes of an entry's `link`.
    pub fn raw(self) -> u64 {
        self.0
    }
    /// Whether this names no place.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
    /// Size class.
    pub fn class(self) -> u8 {
        (self.0 & 31) as u8
    }
    /// Offset within the lane's terrace in 16-byte units.
    pub fn unit(self) -> u64 {
        self.0 >> 7
    }
    /// Whether it lies in memory (DRAM or middle).
    pub fn in_memory(self) -> bool {
        (self.0 >> 5) & 3 < Terrace::Ssd as u64
    }
    /// Which terrace. Unknown numbers (only damage makes them) read as SSD.
    pub fn terrace(self) -> Terrace {
        match (self.0 >> 5) & 3 {
            0 => Terrace::Dram,
            1 => Terrace::Middle,
            _ => Terrace::Ssd,
        }
    }
}

/// A directory slot's payload: location and heat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// Packs a slot.
    pub fn new(loc: Loc, heat: u8) -> Slot {
        Slot(loc.0 << 2 | u64::from(heat.min(HEAT_MAX)))
    }
    /// The location.
    pub fn loc(self) -> Loc {
        Loc(self.0 >> 2)
    }
    /// How often it was used lately, 0 to [`HEAT_MAX`].
    pub fn heat(self) -> u8 {
        (self.0 & 3) as u8
    }
    /// The same place with another heat.
    pub fn with_heat(self, heat: u8) -> Slot {
        Slot::new(self.loc(), heat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_every_length_closely() {
        for bytes in 32..ENTRY_MAX_BYTES {
            let class = class_of(bytes);
            assert!(class_bytes(class) >= bytes);
            assert!(class == 0 || class_bytes(class - 1) < bytes);
        }
    }

    #[test]
    fn slots_round_trip() {
        let loc = Loc::new(Terrace::Middle, 31, (1 << 37) - 1);
        let slot = Slot::new(loc, 9);
        assert_eq!((slot.loc(), slot.heat()), (loc, HEAT_MAX));
        assert_eq!(loc.terrace(), Terrace::Middle);
        assert!(loc.in_memory() && slot.0 < 1 << 46);
        assert!(!Loc::new(Terrace::Ssd, 0, 0).is_none());
    }
}
