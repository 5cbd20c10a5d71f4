//! What `beside` runs: loads, sizes, and the bars they are judged against, as tables.
//!
//! Promises: nothing but data and names. Never: measures.

use super::kind::Kind;
use super::paths::Pattern;
use crate::report::Side;
use crate::swap::SWAP_OVER_DATA;

/// What bare faults may write behind the data they read, over it: their log is never cleaned.
const BARE_LOG_OVER_DATA: u64 = 4;

/// One load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// By Zipf's law, or uniform.
    pub zipf: bool,
    /// Of 100 operations, those that write.
    pub writes_percent: u32,
    pub threads: u32,
}

impl Case {
    pub fn name(&self) -> String {
        let drawn = if self.zipf { "Zipf" } else { "uniform" };
        let mix = match self.writes_percent {
            0 => "reads".to_owned(),
            100 => "writes".to_owned(),
            writes => format!("{}/{writes}", 100 - writes),
        };
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{drawn}, {mix}, {} thread{plural}", self.threads)
    }
}

const fn case(zipf: bool, writes_percent: u32, threads: u32) -> Case {
    Case {
        zipf,
        writes_percent,
        threads,
    }
}

const ZIPF_READS: Case = case(true, 0, 16);
const ZIPF_HALF: Case = case(true, 50, 16);
const ZIPF_WRITES: Case = case(true, 100, 16);
const UNIFORM_READS: Case = case(false, 0, 16);
const UNIFORM_WRITES: Case = case(false, 100, 16);

const THREADS: [u32; 3] = [16, 2, 1];
const WRITES_PERCENT: [u32; 5] = [0, 25, 50, 75, 100];
const ALL: usize = 2 * THREADS.len() * WRITES_PERCENT.len();

/// Every mix by both distributions with each number of threads; those of one distribution together, since a change costs minutes of warming.
const ALL_CASES: [Case; ALL] = {
    let mut all = [ZIPF_READS; ALL];
    let mut at = 0;
    while at < ALL {
        let (mixes, threads) = (WRITES_PERCENT.len(), THREADS.len());
        all[at] = case(
            at < ALL / 2,
            WRITES_PERCENT[at % mixes],
            THREADS[at / mixes % threads],
        );
        at += 1;
    }
    all
};
const MAIN_CASES: &[Case] = &[
    ZIPF_READS,
    ZIPF_HALF,
    ZIPF_WRITES,
    UNIFORM_READS,
    UNIFORM_WRITES,
];

/// A figure of a kind over the better peer's, over swap's alone, or as it is.
#[derive(Clone, Copy)]
pub struct Ratio {
    pub row: &'static str,
    pub kind: Kind,
    pub case: Case,
    pub figure: &'static str,
    pub over: Over,
    pub side: Side,
    pub limit: f64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Over {
    Better,
    Swap,
    /// The figure is a part already, of the device's random reads alone at the depth that was reached.
    Device,
}

impl Over {
    /// Whether a kind is one of those that it is compared with.
    pub fn is(self, kind: Kind) -> bool {
        match self {
            Over::Better => kind.is_peer(),
            Over::Swap => kind == Kind::Swapped,
            Over::Device => false,
        }
    }
}

const fn rate(kind: Kind, case: Case, limit: f64) -> Ratio {
    Ratio {
        row: "b",
        kind,
        case,
        figure: "ops_per_s",
        over: Over::Better,
        side: Side::AtLeast,
        limit,
    }
}

const fn reads(kind: Kind) -> Ratio {
    Ratio {
        figure: "device_reads_an_op",
        side: Side::AtMost,
        ..rate(kind, ZIPF_READS, 0.65)
    }
}

const fn device_share(kind: Kind, limit: f64) -> Ratio {
    Ratio {
        row: "c",
        figure: "part_of_device_alone",
        over: Over::Device,
        ..rate(kind, UNIFORM_READS, limit)
    }
}

const fn written(kind: Kind) -> Ratio {
    Ratio {
        row: "d",
        figure: "written_bytes_an_op",
        over: Over::Swap,
        side: Side::AtMost,
        ..rate(kind, UNIFORM_WRITES, 1.0 / 12.0)
    }
}

const fn packed_pages(case: Case, limit: f64) -> Ratio {
    Ratio {
        row: "e",
        over: Over::Swap,
        ..rate(Kind::Mp, case, limit)
    }
}

/// Objects, memory, and what is asked of them.
pub struct Table {
    pub name: &'static str,
    pub array_bytes: u64,
    pub limit_bytes: u64,
    pub object_bytes: u64,
    pub packs: bool,
    /// Which of them an operation touches.
    pub pattern: Pattern,
    pub kinds: &'static [Kind],
    pub cases: &'static [Case],
    pub bars: &'static [Ratio],
}

/// What objects on pages are to reach over the better of swap and a mapped file.
const OPP_RATES: [Ratio; 4] = [
    rate(Kind::Opp, ZIPF_READS, 1.5),
    rate(Kind::Opp, ZIPF_HALF, 1.5),
    rate(Kind::Opp, ZIPF_WRITES, 2.0),
    rate(Kind::Opp, UNIFORM_WRITES, 1.4),
];

/// Row e's "never below", in each case.
const SMALL_BARS: [Ratio; 9 + ALL] = {
    let mut all = [OPP_RATES[0]; 9 + ALL];
    let others = [
        rate(Kind::Handles, ZIPF_READS, 1.6),
        OPP_RATES[0],
        OPP_RATES[1],
        OPP_RATES[2],
        OPP_RATES[3],
        reads(Kind::Handles),
        reads(Kind::Opp),
        written(Kind::Handles),
        written(Kind::Opp),
    ];
    let mut at = 0;
    while at < 9 + ALL {
        all[at] = match at {
            0..9 => others[at],
            _ => packed_pages(ALL_CASES[at - 9], 0.9),
        };
        at += 1;
    }
    all
};

/// Small objects in eight times the memory.
pub const SMALL: Table = Table {
    name: "b",
    array_bytes: 4 << 30,
    limit_bytes: 512 << 20,
    object_bytes: 128,
    packs: false,
    pattern: Pattern::One,
    kinds: Kind::ALL,
    cases: &ALL_CASES,
    bars: &SMALL_BARS,
};

/// The same in sixteen times the memory.
pub const SMALLER_LIMIT: Table = Table {
    name: "b256",
    limit_bytes: 256 << 20,
    cases: MAIN_CASES,
    bars: &[rate(Kind::Opp, ZIPF_READS, 1.25)],
    ..SMALL
};

/// Reads that hardly ever hit, beside the device alone.
pub const DEVICE: Table = Table {
    name: "c",
    cases: &[UNIFORM_READS],
    bars: &[
        device_share(Kind::Handles, 0.92),
        device_share(Kind::Opp, 0.85),
    ],
    ..SMALL
};

/// Pages of which half is zeros.
pub const PACKED: Table = Table {
    name: "e",
    packs: true,
    kinds: &[Kind::Mp, Kind::Swapped],
    cases: &[ZIPF_READS],
    bars: &[packed_pages(ZIPF_READS, 1.5)],
    ..SMALL
};

/// In-thread faults without any code of the product, beside what is, and swap in twice the memory. What is written to bare pages is kept in the least way there is. OPP's bars are judged
/// here, too, so that a run says whether one that is missed is within reach.
pub const FLOOR: Table = Table {
    name: "floor",
    kinds: &[
        Kind::Bare,
        Kind::BareBest,
        Kind::Opp,
        Kind::Swapped,
        Kind::SwappedTwice,
        Kind::Mapped,
    ],
    cases: &[ZIPF_READS, ZIPF_HALF, ZIPF_WRITES, UNIFORM_WRITES],
    bars: &OPP_RATES,
    ..SMALL
};

/// The same for what `b256` asks.
pub const FLOOR_SMALLER_LIMIT: Table = Table {
    name: "floor256",
    limit_bytes: SMALLER_LIMIT.limit_bytes,
    cases: &[ZIPF_READS],
    bars: SMALLER_LIMIT.bars,
    ..FLOOR
};

/// The same for what `f` asks.
pub const FLOOR_LARGER: Table = Table {
    name: "floor-f",
    object_bytes: LARGER.object_bytes,
    cases: &[ZIPF_READS, ZIPF_WRITES],
    bars: LARGER.bars,
    ..FLOOR
};

/// The same for what `g` asks, where operations touch what those of its applications do and do nothing else; and pages, which `g` compares with, too. On swap `g` has the
/// applications themselves: here the kernel may end a process that fills ten times its memory as quickly as it can.
pub const FLOOR_TREE: Table = Table {
    name: "floor-btree",
    array_bytes: 640 << 20,
    limit_bytes: 64 << 20,
    object_bytes: 512,
    pattern: Pattern::Tree,
    kinds: &[Kind::BareBest, Kind::BarePacked, Kind::Opp, Kind::Mp],
    cases: &[ZIPF_READS, ZIPF_WRITES],
    bars: &[],
    ..FLOOR
};
/// The packet cache has an index of 20 MiB in the memory there is.
pub const FLOOR_PACKETS: Table = Table {
    name: "floor-packetcache",
    limit_bytes: FLOOR_TREE.limit_bytes - (20 << 20),
    object_bytes: 1024,
    pattern: Pattern::Packets,
    ..FLOOR_TREE
};
pub const FLOOR_BINS: Table = Table {
    name: "floor-hashcache",
    object_bytes: 128,
    pattern: Pattern::Bins,
    ..FLOOR_TREE
};

/// Larger objects.
pub const LARGER: Table = Table {
    name: "f",
    object_bytes: 1024,
    bars: &[
        Ratio {
            row: "f",
            ..rate(Kind::Opp, ZIPF_READS, 1.2)
        },
        Ratio {
            row: "f",
            ..rate(Kind::Opp, ZIPF_WRITES, 1.5)
        },
    ],
    ..SMALL
};

impl Table {
    /// Whether a bar looks at this kind in this case.
    pub fn judges(&self, case: &Case, kind: Kind) -> bool {
        let looks = |bar: &Ratio| bar.case == *case && (bar.kind == kind || bar.over.is(kind));
        self.bars.iter().any(looks)
    }

    /// The disk that its files take, over its data, at most: pools as large as a swap file is over what it holds, a mapped file, one that fio reads, and what bare faults read and what they write behind it.
    pub fn files_over_data(&self) -> u64 {
        let writes = self.cases.iter().any(|case| case.writes_percent > 0);
        let of = |kind: &Kind| match kind.is_bare() {
            true => 1 + if writes { BARE_LOG_OVER_DATA } else { 0 },
            false if kind.is_ours() => SWAP_OVER_DATA,
            false => u64::from(*kind == Kind::Mapped),
        };
        let beside_device = self.cases.iter().any(|case| self.beside_device(case));
        self.kinds.iter().map(of).sum::<u64>() + u64::from(beside_device)
    }

    /// Whether the device alone is measured beside it.
    pub fn beside_device(&self, case: &Case) -> bool {
        let mine = self.bars.iter().filter(|bar| bar.case == *case);
        mine.clone().any(|bar| bar.over == Over::Device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_cases_are_all_of_them() {
        let names: HashSet<String> = ALL_CASES.iter().map(Case::name).collect();
        assert_eq!(names.len(), 30);
        assert!(names.contains("uniform, 25/75, 1 thread"), "{names:?}");
        assert!(
            ALL_CASES
                .windows(2)
                .filter(|w| w[0].zipf != w[1].zipf)
                .count()
                == 1
        );
    }

    #[test]
    fn files_are_what_is_said_of_them() {
        // With a swap file three times the data: 52 GiB and, where the device is read alone, 56 for 4 GiB of it (docs/benchmarks.md).
        let gib = |table: &Table| 4 * (table.files_over_data() + 3);
        assert_eq!([&SMALL, &SMALLER_LIMIT, &LARGER].map(gib), [52, 52, 52]);
        assert_eq!(gib(&DEVICE), 56);
    }

    #[test]
    fn every_bar_has_its_case_and_its_kind() {
        let floors = [&FLOOR, &FLOOR_SMALLER_LIMIT, &FLOOR_LARGER];
        for table in [&SMALL, &SMALLER_LIMIT, &DEVICE, &PACKED, &LARGER]
            .into_iter()
            .chain(floors)
        {
            for bar in table.bars {
                assert!(table.cases.contains(&bar.case) && table.kinds.contains(&bar.kind));
            }
        }
    }
}
