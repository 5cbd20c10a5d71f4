//! The oracle of the crash tests: what each key was given, in order, with the time each command was acknowledged. It
//! decides which values a key may have after a crash. It never talks to a server.

use std::collections::HashMap;
use std::time::Instant;

use super::value_of;

/// What a key may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    Absent,
    /// The value of an id.
    Value {
        /// The command that wrote it.
        id: u64,
        /// Its length.
        len: usize,
        /// Whether it expires (in years).
        expires: bool,
    },
    /// A number.
    Number {
        /// Which.
        n: i64,
        /// Whether it expires (in years).
        expires: bool,
    },
}

impl State {
    /// The bytes a GET brings.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        match *self {
            State::Absent => None,
            State::Value { id, len, .. } => Some(value_of(id, len)),
            State::Number { n, .. } => Some(n.to_string().into_bytes()),
        }
    }
    fn expires(&self) -> bool {
        match *self {
            State::Absent => false,
            State::Value { expires, .. } | State::Number { expires, .. } => expires,
        }
    }
    /// The same, with an expiry.
    pub fn expiring(self) -> State {
        match self {
            State::Absent => State::Absent,
            State::Value { id, len, .. } => State::Value {
                id,
                len,
                expires: true,
            },
            State::Number { n, .. } => State::Number { n, expires: true },
        }
    }
    /// Whether a GET and a TTL saw this.
    pub fn is_seen(&self, got: Option<&[u8]>, ttl: i64) -> bool {
        let same = match (self, got) {
            (State::Absent, None) => return ttl == -2,
            (State::Absent, Some(_)) | (_, None) => false,
            (State::Value { len, .. }, Some(got)) if *len != got.len() => false,
            (_, Some(got)) => self.bytes().as_deref() == Some(got),
        };
        same && (ttl >= 0) == self.expires() && ttl != -2
    }
}

/// A state that a command gave a key.
#[derive(Debug, Clone, Copy)]
pub struct Version {
    /// Number of the command in its connection; 0: found after a crash.
    pub command: u64,
    /// What it left.
    pub state: State,
    /// When that was acknowledged.
    pub acked: Option<Instant>,
}

/// What one connection did to the keys that only it writes.
pub struct Oracle {
    /// All versions of each key since the last start, oldest first; never empty.
    pub keys: Vec<Vec<Version>>,
    /// The keys of each MSET and each transaction since the last start.
    pub msets: HashMap<u64, Vec<usize>>,
}

/// What a look at a key said of it: the versions it may be, first to last.
pub type Seen = (usize, usize);

impl Oracle {
    /// Of keys that are absent.
    pub fn new(keys: usize) -> Oracle {
        let start = Version {
            command: 0,
            state: State::Absent,
            acked: None,
        };
        Oracle {
            keys: vec![vec![start]; keys],
            msets: HashMap::new(),
        }
    }

    /// What a key holds when all that was sent is done.
    pub fn now(&self, key: usize) -> State {
        self.keys[key].last().expect("a version").state
    }

    /// Notes what a command that is about to be sent will leave.
    pub fn sent(&mut self, key: usize, command: u64, state: State) {
        self.keys[key].push(Version {
            command,
            state,
            acked: None,
        });
    }

    /// Notes an acknowledgement.
    pub fn acked(&mut self, key: usize, command: u64, at: Instant) {
        let versions = self.keys[key].iter_mut().rev();
        for version in versions.take_while(|v| v.command >= command) {
            if version.command == command {
                version.acked = Some(at);
            }
        }
    }

    /// The oldest version that a key may hold: the last that was acknowledged before `promised`.
    pub fn oldest_allowed(&self, key: usize, promised: Instant) -> usize {
        let versions = &self.keys[key];
        (1..versions.len())
            .rev()
            .find(|&i| versions[i].acked.is_some_and(|at| at < promised))
            .unwrap_or(0)
    }

    /// Which versions a GET and a TTL can have seen.
    ///
    /// # Errors
    /// What was expected, when it was none of the allowed ones.
    pub fn look(
        &self,
        key: usize,
        promised: Instant,
        got: Option<&[u8]>,
        ttl: i64,
    ) -> Result<Seen, String> {
        let oldest = self.oldest_allowed(key, promised);
        let fits = |i: &usize| self.keys[key][*i].state.is_seen(got, ttl);
        let all: Vec<usize> = (0..self.keys[key].len()).filter(fits).collect();
        let allowed: Vec<usize> = all.iter().copied().filter(|&i| i >= oldest).collect();
        if let (Some(&first), Some(&last)) = (allowed.first(), allowed.last()) {
            return Ok((first, last));
        }
        let begins = got.map(|g| String::from_utf8_lossy(&g[..g.len().min(24)]).into_owned());
        let late = all.last().and_then(|&i| self.keys[key].get(i + 1)?.acked);
        Err(format!(
            "found {:?} bytes {begins:?}, TTL {ttl}, which is version {all:?}; replaced {:?} before the promise; allowed \
             are versions {oldest} to {}: {:?}",
            got.map(<[u8]>::len),
            late.map(|at| promised.saturating_duration_since(at)),
            self.keys[key].len() - 1,
            &self.keys[key][oldest..],
        ))
    }

    /// That no MSET is there in part.
    ///
    /// # Errors
    /// Which one is.
    pub fn whole_msets(&self, seen: &[Seen]) -> Result<(), String> {
        for (&command, keys) in &self.msets {
            let at = |key: usize| {
                let versions = &self.keys[key];
                versions.iter().position(|v| v.command == command)
            };
            let surely = |key: &&usize| at(**key).is_some_and(|i| seen[**key].0 >= i);
            let never = |key: &&usize| at(**key).is_some_and(|i| seen[**key].1 < i);
            if let (Some(with), Some(without)) = (keys.iter().find(surely), keys.iter().find(never))
            {
                return Err(format!(
                    "MSET {command} of keys {keys:?} is in key {with} and not in key {without}"
                ));
            }
        }
        Ok(())
    }

    /// How long before `kill` the oldest of what was lost had been acknowledged, in ms.
    pub fn lost_ms(&self, seen: &[Seen], kill: Instant) -> u64 {
        let lost = seen
            .iter()
            .zip(&self.keys)
            .filter_map(|(&(_, last), versions)| {
                let acked = versions.get(last + 1)?.acked?;
                Some(kill.saturating_duration_since(acked).as_millis() as u64)
            });
        lost.max().unwrap_or(0)
    }

    /// Goes on from what was found.
    pub fn resume(&mut self, seen: &[Seen]) {
        for (versions, &(_, last)) in self.keys.iter_mut().zip(seen) {
            *versions = vec![Version {
                command: 0,
                acked: None,
                ..versions[last]
            }];
        }
        self.msets.clear();
    }
}
