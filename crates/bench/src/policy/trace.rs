//! Traces: which key comes next, and whether it is read or written. The same seed gives the same trace.

use crate::load::{KeyChoice, KeySource, Rng};

/// One operation: a key number, and whether it is a write.
pub type Operation = (u32, bool);

/// A kind of trace.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Zipf 0.99.
    Zipf,
    /// Zipf, with one operation in four of a scan over all keys in their order.
    ZipfScan,
    /// The first keys over and over: a tenth more of them than DRAM takes.
    Loop,
    /// Zipf whose ranks all move on to other keys twenty times.
    Shifting,
    /// Every key equally often.
    Uniform,
}

/// Share of scans: one in this many.
const SCAN_ONE_IN: u64 = 4;
/// The shifting trace moves on so often.
const SHIFTS: usize = 20;

/// A trace of `length` operations over `keys` keys, `writes_percent` of them writes. `resident` is how many DRAM takes.
pub fn make(
    kind: Kind,
    keys: u32,
    resident: u32,
    length: usize,
    writes_percent: u64,
) -> Vec<Operation> {
    let mut rng = Rng::new(42);
    let choice = match kind {
        Kind::Zipf | Kind::ZipfScan | Kind::Shifting => KeyChoice::Zipf { theta: 0.99 },
        Kind::Uniform => KeyChoice::Uniform,
        Kind::Loop => KeyChoice::InOrder { from: 0 },
    };
    let range = match kind {
        Kind::Loop => u64::from(resident) * 11 / 10,
        _ => u64::from(keys),
    };
    let mut source = KeySource::new(choice, range);
    let mut scan = 0;
    let mut next = |at: usize| {
        let shift = at / (length / SHIFTS).max(1) * keys as usize / SHIFTS;
        let key = match kind {
            Kind::ZipfScan if rng.below(SCAN_ONE_IN) == 0 => {
                scan = (scan + 1) % keys;
                scan
            }
            Kind::Shifting => ((source.next(&mut rng) as usize + shift) % keys as usize) as u32,
            _ => source.next(&mut rng) as u32,
        };
        (key, rng.below(100) < writes_percent)
    };
    (0..length).map(&mut next).collect()
}
