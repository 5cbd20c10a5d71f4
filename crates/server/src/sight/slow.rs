//! Commands that took long: the slow log, and the samples of the latency monitor.
//!
//! Promises: a command that took no longer than both thresholds costs one comparison; what is kept is bounded: entries, arguments
//! and their lengths. Passwords are never kept. Never: counts the wait for durability or for the network as a command's time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::calls::NO_KIND;
use crate::session::Client;
use crate::sync::lock;
use crate::table::{self, Id};

/// The most entries that the slow log may be told to keep.
pub const SLOWLOG_LEN_MAX: u64 = 1_024;
/// Arguments of an entry, as in Redis.
const ARGS_MAX: usize = 32;
/// Bytes of an argument, as in Redis.
const ARG_MAX_BYTES: usize = 128;
/// Samples of an event, as in Redis.
const SAMPLES_MAX: usize = 160;
const NS_PER_US: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;

/// An entry of the slow log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its number.
    pub id: u64,
    /// When it was through, s since 1970.
    pub at_s: u64,
    /// How long it took, µs.
    pub us: u64,
    /// Its arguments, shortened.
    pub args: Vec<Vec<u8>>,
    /// Whose it was.
    pub addr: String,
    /// That one's name.
    pub name: String,
}

/// The samples of an event: when (s since 1970), and the longest in that second, ms.
#[derive(Debug, Clone, Default)]
pub struct Event {
    /// Newest last.
    pub samples: VecDeque<(u64, u64)>,
    /// The longest of all, ms.
    pub max_ms: u64,
}

#[derive(Default)]
struct Kept {
    next_id: u64,
    entries: VecDeque<Entry>,
    events: BTreeMap<&'static str, Event>,
}

/// What took long, and from when on a command did.
pub struct Slow {
    /// Commands that took longer than this are looked at at all, ns.
    attention_ns: AtomicU64,
    /// See CONFIG: µs, and negative for none.
    pub slower_than_us: AtomicI64,
    /// See CONFIG: entries.
    pub len_max: AtomicU64,
    /// See CONFIG: ms, and 0 for none.
    pub monitor_ms: AtomicU64,
    kept: Mutex<Kept>,
}

impl Default for Slow {
    fn default() -> Self {
        let slow = Slow {
            attention_ns: AtomicU64::new(0),
            slower_than_us: AtomicI64::new(10_000),
            len_max: AtomicU64::new(128),
            monitor_ms: AtomicU64::new(0),
            kept: Mutex::default(),
        };
        slow.thresholds_changed();
        slow
    }
}

impl Slow {
    /// After a threshold was changed.
    pub fn thresholds_changed(&self) {
        let slow_us = u64::try_from(self.slower_than_us.load(Ordering::Relaxed)).ok();
        let slow_ns = slow_us.map_or(u64::MAX, |us| us.saturating_mul(NS_PER_US));
        let monitored_ns = match self.monitor_ms.load(Ordering::Relaxed) {
            0 => u64::MAX,
            ms => ms.saturating_mul(NS_PER_MS),
        };
        self.attention_ns
            .store(slow_ns.min(monitored_ns), Ordering::Relaxed);
        let len_max = self.len_max.load(Ordering::Relaxed) as usize;
        let mut kept = lock(&self.kept);
        while kept.entries.len() > len_max {
            kept.entries.pop_front();
        }
    }

    /// Whether a command that took so long is to be noted.
    #[inline]
    pub fn is_slow(&self, ns: u64) -> bool {
        ns >= self.attention_ns.load(Ordering::Relaxed)
    }

    /// Notes a command (by its number among those that are counted) that took so long. What may hold a password is not
    /// shown; an EXEC is none for the slow log, since its commands are.
    #[cold]
    pub fn note_command(&self, kind: u16, client: &Client, args: &[&[u8]], ns: u64) {
        const HIDDEN: &[u8] = b"(redacted)";
        if kind == NO_KIND {
            return;
        }
        let command = table::COMMANDS.get(usize::from(kind));
        let has = |flag: &str| command.is_some_and(|c| c.flags.contains(&flag));
        let event = match has("fast") {
            true => "fast-command",
            false => "command",
        };
        let shown: Vec<&[u8]> = match command.map(|c| c.id) {
            Some(Id::Auth | Id::Hello) => {
                let words = args.iter().enumerate();
                words
                    .map(|(at, arg)| if at == 0 { *arg } else { HIDDEN })
                    .collect()
            }
            Some(_) => args.to_vec(),
            // Its first data block may be the password.
            None => args.iter().take(2).copied().collect(),
        };
        self.note(event, ns, (!has("skip_slowlog")).then_some(&shown), client);
    }

    /// Notes a command that took so long; `event` is what the monitor calls it. Without arguments it is not logged.
    #[cold]
    fn note(&self, event: &'static str, ns: u64, args: Option<&Vec<&[u8]>>, client: &Client) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let at_s = now.map_or(0, |since| since.as_secs());
        let slower_than_us = self.slower_than_us.load(Ordering::Relaxed);
        let us = ns / NS_PER_US;
        if let Some(args) = args
            && slower_than_us >= 0
            && us >= slower_than_us as u64
        {
            self.log(at_s, us, args, client);
        }
        let (ms, monitor_ms) = (ns / NS_PER_MS, self.monitor_ms.load(Ordering::Relaxed));
        if monitor_ms > 0 && ms >= monitor_ms {
            self.sample(event, at_s, ms);
        }
    }

    fn log(&self, at_s: u64, us: u64, args: &[&[u8]], client: &Client) {
        let len_max = self.len_max.load(Ordering::Relaxed) as usize;
        let mut kept = lock(&self.kept);
        let id = kept.next_id;
        kept.next_id += 1;
        if len_max == 0 {
            return;
        }
        while kept.entries.len() >= len_max {
            kept.entries.pop_front();
        }
        kept.entries.push_back(Entry {
            id,
            at_s,
            us,
            args: shortened(args),
            addr: client.addr.to_string(),
            name: lock(&client.name).as_deref().unwrap_or("").to_string(),
        });
    }

    fn sample(&self, event: &'static str, at_s: u64, ms: u64) {
        let mut kept = lock(&self.kept);
        let event = kept.events.entry(event).or_default();
        event.max_ms = event.max_ms.max(ms);
        match event.samples.back_mut() {
            Some((last_s, last_ms)) if *last_s == at_s => *last_ms = ms.max(*last_ms),
            _ => {
                if event.samples.len() >= SAMPLES_MAX {
                    event.samples.pop_front();
                }
                event.samples.push_back((at_s, ms));
            }
        }
    }

    /// The newest entries of the slow log, newest first.
    pub fn newest(&self, most: usize) -> Vec<Entry> {
        let kept = lock(&self.kept);
        kept.entries.iter().rev().take(most).cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.kept).entries.len()
    }

    /// Forgets the slow log.
    pub fn reset(&self) {
        lock(&self.kept).entries.clear();
    }

    /// All events of the monitor.
    pub fn events(&self) -> Vec<(&'static str, Event)> {
        let kept = lock(&self.kept);
        kept.events
            .iter()
            .map(|(name, e)| (*name, e.clone()))
            .collect()
    }

    /// Forgets some events (none named: all); answers how many there were.
    pub fn forget(&self, names: &[&[u8]]) -> usize {
        let mut kept = lock(&self.kept);
        let before = kept.events.len();
        let named = |known: &str| {
            names
                .iter()
                .any(|n| n.eq_ignore_ascii_case(known.as_bytes()))
        };
        kept.events
            .retain(|known, _| !names.is_empty() && !named(known));
        before - kept.events.len()
    }
}

/// As Redis shortens them: at most so many, of at most so many bytes.
fn shortened(args: &[&[u8]]) -> Vec<Vec<u8>> {
    let shown = match args.len() > ARGS_MAX {
        true => &args[..ARGS_MAX - 1],
        false => args,
    };
    let short = |arg: &&[u8]| match arg.len() > ARG_MAX_BYTES {
        true => {
            let more = format!("... ({} more bytes)", arg.len() - ARG_MAX_BYTES);
            [&arg[..ARG_MAX_BYTES], more.as_bytes()].concat()
        }
        false => arg.to_vec(),
    };
    let mut kept: Vec<Vec<u8>> = shown.iter().map(short).collect();
    if args.len() > ARGS_MAX {
        let left = args.len() - shown.len();
        kept.push(format!("... ({left} more arguments)").into_bytes());
    }
    kept
}
