//! The state of one command that may have to wait for reads.
//!
//! A command is executed again from its start until nothing is missing; the
//! task keeps what was read in between. Never: outlives the holds on segments
//! that its reads took; `Worker::finish` ends them.

use std::collections::HashMap;
use terrace_log::entry::{Entry, EntryError};
use terrace_log::{Kind, Loc};
use terrace_media::MediaError;
use terrace_tiers::ReadPlan;

/// Values longer than this are not kept when a command only needs the key.
const KEY_ONLY_VALUE_MAX_BYTES: usize = 256;

/// One entry that was read.
pub struct Fetched {
    pub(crate) lane: u16,
    pub(crate) plan: ReadPlan,
    pub(crate) result: Result<Box<[u8]>, String>,
    /// Why the value must not be shown, although the key is known.
    damage: Option<String>,
}

impl Fetched {
    /// Takes the entry out of what the device returned.
    pub(crate) fn new(
        lane: u16,
        plan: ReadPlan,
        read: Result<(), MediaError>,
        bytes: &[u8],
        keys_only: bool,
    ) -> Fetched {
        let place = || {
            format!(
                "lane {lane}, segment {}, byte {}",
                plan.segment,
                plan.offset + plan.skip as u64
            )
        };
        let hurt = |e: EntryError| format!("damaged entry at {}: {e}", place());
        let mut damage = None;
        let entry = match &read {
            Err(e) => Err(format!("{e} ({})", place())),
            Ok(()) => match Entry::from_media(&bytes[plan.skip..], plan.seed) {
                Err(e) => Err(hurt(e)),
                Ok(e) => match e.verify_value(plan.seed) {
                    Ok(()) => Ok(e),
                    // A new value may replace it; a binder's pieces could not be found.
                    Err(why) if e.kind() == Kind::Value => {
                        damage = Some(hurt(why));
                        Ok(e)
                    }
                    Err(why) => Err(hurt(why)),
                },
            },
        };
        let result = entry.map(
            |e| match keys_only && e.value().len() > KEY_ONLY_VALUE_MAX_BYTES {
                true => {
                    let mut short = e.to_new();
                    short.value = &[];
                    let mut out = vec![0; short.len_bytes()];
                    short.write(&mut out);
                    out.into_boxed_slice()
                }
                false => e.as_bytes().into(),
            },
        );
        Fetched {
            lane,
            plan,
            result,
            damage,
        }
    }

    /// The entry; its value is missing when only the key was asked for.
    pub fn entry(&self) -> Result<Entry<'_>, &str> {
        match &self.result {
            Ok(bytes) => Ok(Entry::in_memory(bytes)),
            Err(why) => Err(why),
        }
    }
    /// Why the value must not be shown, if it fails its checksum; the key is right.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
    /// Memory that it takes beside the read's own buffer, bytes.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.result.as_ref().map_or(0, |bytes| bytes.len())
    }
    /// The lane it is of.
    pub fn lane(&self) -> u16 {
        self.lane
    }
    /// Where it was read.
    pub fn loc(&self) -> Loc {
        self.plan.loc
    }
}

/// Resolution state of one command.
pub struct Task {
    pub(crate) owner: u64,
    /// Where the worker keeps what it has under way.
    pub(crate) reads: Option<usize>,
    pub(crate) fetched: Vec<Fetched>,
    /// Where each location's read is in `fetched`, once there are many.
    places: HashMap<(u16, Loc), usize>,
    pub(crate) under_way: usize,
    pub(crate) durable_at: Option<u64>,
}

/// Reads of a task that are looked through one by one.
const FEW_READS: usize = 8;

impl Task {
    pub(crate) fn new(owner: u64) -> Task {
        Task {
            owner,
            reads: None,
            fetched: Vec::new(),
            places: HashMap::new(),
            under_way: 0,
            durable_at: None,
        }
    }
    /// After the command is done: its reply may go out when this epoch is durable. None: at once.
    pub fn durable_at(&self) -> Option<u64> {
        self.durable_at
    }
    /// Who owns it.
    pub fn owner(&self) -> u64 {
        self.owner
    }
    /// The reply must wait for `epoch`.
    pub fn wait_for(&mut self, epoch: u64) {
        self.durable_at = Some(self.durable_at.map_or(epoch, |e| e.max(epoch)));
    }
    /// Reads that have not come back.
    pub fn reads_under_way(&self) -> usize {
        self.under_way
    }
    /// Whether what was read at `loc` of `lane` is `key`'s; None if it was not read.
    /// One that could not be read counts as another's; `failure` tells, and the caller must ask.
    pub fn known(&self, lane: u16, loc: Loc, key: &[u8], space: u8) -> Option<bool> {
        let f = self.fetched(lane, loc)?;
        let hit = f
            .entry()
            .is_ok_and(|e| e.key() == key && e.space() == space);
        Some(hit)
    }
    /// The read of `loc` in `lane`, if it failed: why.
    pub fn failure(&self, lane: u16, loc: Loc) -> Option<&str> {
        self.fetched(lane, loc)?.entry().err()
    }
    /// What was read at `loc` in `lane`.
    pub fn fetched(&self, lane: u16, loc: Loc) -> Option<&Fetched> {
        if self.fetched.len() <= FEW_READS {
            return (self.fetched.iter()).rfind(|f| f.lane == lane && f.plan.loc == loc);
        }
        let at = self.places.get(&(lane, loc))?;
        self.fetched.get(*at)
    }
    /// Takes in reads that came back.
    pub(crate) fn take_in(&mut self, reads: &mut Vec<Fetched>) {
        self.fetched.append(reads);
        if self.fetched.len() > FEW_READS {
            for (at, f) in self.fetched.iter().enumerate().skip(self.places.len()) {
                self.places.insert((f.lane, f.plan.loc), at);
            }
        }
    }
    pub(crate) fn forget(&mut self) -> std::vec::Drain<'_, Fetched> {
        self.places.clear();
        self.fetched.drain(..)
    }
    /// Reads that came back.
    pub fn all_fetched(&self) -> &[Fetched] {
        &self.fetched
    }
    /// Whether any read of a lane failed.
    pub fn any_failure(&self, lane: u16) -> bool {
        self.fetched
            .iter()
            .any(|f| f.lane == lane && f.result.is_err())
    }
}
