//! Walks the log: threads read batches, verify and hash their entries, and hand them as
//! small records to the one thread that applies them to the lane.
//!
//! Promises: the same records in the same order, however many threads read; bounded
//! memory, whatever the log holds: a window of reads for all, and of each thread
//! [`AHEAD`] groups of records beside the one it makes.
//! Never: changes the lane, or hands over a record that does not check.

use crate::bulk::{Image, read_in_order};
use crate::lane::Lane;
use crate::survey::{BatchAt, Damage, Items, Survey};
use std::ops::Range;
use std::sync::mpsc::sync_channel;
use terrace_log::frame::{self, Life};
use terrace_log::scan::Item;
use terrace_log::{Hasher, Kind, Loc, Snapshot, Subject};
use terrace_media::{Disk, MediaError};

/// Neighbouring batches are read together up to so many bytes.
const GROUP_BYTES: usize = 512 << 10;
/// Groups that a thread may be ahead of the one that applies them.
const AHEAD: usize = 2;

/// What is needed of an entry to put it into the directory.
pub(crate) struct Record {
    /// Its batch, by its number in the list.
    pub batch: usize,
    /// Its place in the segment, bytes.
    pub offset: usize,
    pub len: usize,
    pub kind: Kind,
    pub who: Subject,
    pub link: Loc,
    pub version: u64,
}

/// Batches that lie side by side: one read.
struct Group {
    batches: Range<usize>,
    life: Life,
    device_offset: u64,
    from: usize,
    len: usize,
}

/// What came of a group.
#[derive(Default)]
struct Parsed {
    records: Vec<Record>,
    damage: Vec<Damage>,
}

struct Parser<'a> {
    batches: &'a [BatchAt],
    groups: &'a [Group],
    hasher: Hasher,
}

impl Parser<'_> {
    /// Reads and parses groups `first`, `first + step` and so on; `give` gets each in turn.
    fn run(&self, disk: &mut dyn Disk, first: usize, step: usize, mut give: impl FnMut(Parsed)) {
        let mine: Vec<&Group> = self.groups.iter().skip(first).step_by(step).collect();
        let list: Vec<(u64, usize)> = mine.iter().map(|g| (g.device_offset, g.len)).collect();
        read_in_order(disk, &list, step, |at, image| {
            give(self.parse(mine[at], image));
        });
    }

    fn parse(&self, group: &Group, image: Result<Image<'_>, MediaError>) -> Parsed {
        let mut out = Parsed::default();
        let mut hurt = |from_bytes, to_bytes, what: String, unknown| {
            out.damage.push(Damage {
                lane: group.life.lane,
                segment: group.life.segment,
                from_bytes,
                to_bytes,
                what,
                unknown,
            });
        };
        for hole in image.iter().flat_map(|i| i.holes) {
            let (from, to) = (group.from + hole.from, group.from + hole.to);
            hurt(from, to, hole.error.to_string(), true);
        }
        for batch in group.batches.clone() {
            let b = &self.batches[batch];
            let image = match &image {
                Ok(image) => image.bytes,
                Err(e) => {
                    let end = b.start + b.header.len_bytes as usize;
                    hurt(b.start, end, e.to_string(), true);
                    continue;
                }
            };
            for item in Items::new(image, group.from, &group.life, b) {
                let (offset, e, value) = match item {
                    Item::Damage(from, to) => {
                        hurt(from, to, "no entry that checks".into(), false);
                        continue;
                    }
                    Item::Entry(offset, e, value) => (offset, e, value),
                };
                let len = e.len_bytes();
                if value.is_err() {
                    let what = "a value fails its checksum".into();
                    hurt(offset, offset + len, what, false);
                }
                let own = frame::version(b.header.seq, offset);
                out.records.push(Record {
                    batch,
                    offset,
                    len,
                    kind: e.kind(),
                    who: e.subject(&self.hasher),
                    link: e.link(),
                    version: e.version().unwrap_or(own),
                });
            }
        }
        out
    }
}

impl<D: Snapshot> Lane<D> {
    fn groups(&self, batches: &[BatchAt]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (n, b) in batches.iter().enumerate() {
            let (from, to) = b.range();
            match groups.last_mut() {
                Some(g)
                    if g.life.segment == b.segment
                        && g.from + g.len == from
                        && to - g.from <= GROUP_BYTES =>
                {
                    g.len = to - g.from;
                    g.batches.end = n + 1;
                }
                _ => groups.push(Group {
                    batches: n..n + 1,
                    life: self.ssd.life(b.segment),
                    device_offset: self.ssd.device_offset(b.segment) + from as u64,
                    from,
                    len: to - from,
                }),
            }
        }
        groups
    }

    /// Hands each entry of the batches to `f`, in the log's order. With more than
    /// one queue, each has a thread that reads with it.
    pub(crate) fn walk(
        &mut self,
        disks: &mut [Box<dyn Disk>],
        s: &mut Survey,
        mut f: impl FnMut(&mut Self, &BatchAt, &Record),
    ) -> Vec<Damage> {
        let groups = self.groups(&s.batches);
        let parser = Parser {
            batches: &s.batches,
            groups: &groups,
            hasher: self.cfg.hasher,
        };
        let mut damage = Vec::new();
        let mut apply = |parsed: Parsed| {
            for r in &parsed.records {
                f(self, &s.batches[r.batch], r);
            }
            damage.extend(parsed.damage);
        };
        if let [one] = disks {
            parser.run(&mut **one, 0, 1, apply);
            return damage;
        }
        let step = disks.len();
        std::thread::scope(|scope| {
            let parser = &parser;
            let ends: Vec<_> = (disks.iter_mut().enumerate())
                .map(|(n, disk)| {
                    let (give, take) = sync_channel(AHEAD);
                    // A thread that is not listened to any more ends with the scope.
                    scope.spawn(move || parser.run(&mut **disk, n, step, |p| drop(give.send(p))));
                    take
                })
                .collect();
            for n in 0..groups.len() {
                match ends[n % step].recv() {
                    Ok(parsed) => apply(parsed),
                    // Its panic goes on where the scope ends.
                    Err(_) => break,
                }
            }
        });
        damage
    }
}
