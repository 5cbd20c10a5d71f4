//! The store as a transaction sees it: the keys it names, at one moment, with its own changes on top. The queued commands
//! run against it as they would against the store; what they leave changed becomes one edit of the store. Nothing in it
//! waits, and nothing in it is shared. Never: shows a key that was not named beforehand.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::limits::EXEC_MADE_MAX_BYTES;
use crate::resp::parse::integer;
use crate::store::{
    Cond, Edit, Edits, ExpireCond, Expiry, ExpiryOf, Held, How, Item, Meta, NewValue, Outcome,
    Seen, Step, Store, StoreError, Turn, Value, View, Watched,
};

/// A value in pieces, which is not read within a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pieces {
    /// The number of the key it belongs to.
    from: usize,
    len: u64,
    cas: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Absent,
    Inline(Vec<u8>),
    Pieces(Pieces),
}

impl State {
    fn inline_bytes(&self) -> usize {
        match self {
            State::Inline(bytes) => bytes.len(),
            State::Absent | State::Pieces(_) => 0,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    value: State,
    expiry_ms: Option<u64>,
    meta: Option<Meta>,
}

/// The keys of a transaction.
pub struct Overlay {
    places: HashMap<Vec<u8>, usize>,
    entries: Vec<Entry>,
    changed: Vec<bool>,
    /// Bytes of changed values, and how many there may be.
    made_bytes: usize,
    made_max_bytes: usize,
    now_ms: u64,
    next_cas: u64,
    keys_elsewhere: u64,
}

fn refused(what: &str) -> StoreError {
    StoreError::err(format!("{what} is not possible within a transaction"))
}

impl Overlay {
    /// Over what an edit of `keys` was shown, in a store of so many keys, with `brought_bytes` of arguments.
    pub fn new<S: Store>(
        keys: &[&[u8]],
        seen: Seen<S::Large>,
        dbsize: u64,
        brought_bytes: usize,
    ) -> Self {
        let entry = |(from, view): (usize, View<S::Large>)| Entry {
            value: match view.value {
                Held::Absent => State::Absent,
                Held::Inline(bytes) => State::Inline(bytes),
                Held::Large(large) => State::Pieces(Pieces {
                    from,
                    len: S::large_len(&large),
                    cas: S::large_cas(&large),
                }),
            },
            expiry_ms: view.expiry_ms,
            meta: view.meta,
        };
        let entries: Vec<Entry> = seen.views.into_iter().enumerate().map(entry).collect();
        let present = entries.iter().filter(|e| e.value != State::Absent).count() as u64;
        Overlay {
            places: keys
                .iter()
                .enumerate()
                .map(|(at, key)| (key.to_vec(), at))
                .collect(),
            changed: vec![false; entries.len()],
            made_bytes: 0,
            made_max_bytes: brought_bytes + EXEC_MADE_MAX_BYTES,
            entries,
            now_ms: seen.now_ms,
            next_cas: seen.new_cas,
            keys_elsewhere: dbsize.saturating_sub(present),
        }
    }

    /// What has changed.
    pub fn edits(self) -> Vec<(usize, Edit)> {
        let changed = self.changed;
        let edit = |entry: Entry| match entry.value {
            State::Absent => Edit::Delete,
            State::Inline(value) => Edit::Put {
                value,
                expiry_ms: entry.expiry_ms,
                meta: entry.meta,
            },
            State::Pieces(pieces) => Edit::Bind {
                from: pieces.from,
                expiry_ms: entry.expiry_ms,
                meta: entry.meta,
            },
        };
        let entries = self.entries.into_iter().enumerate();
        entries
            .filter(|(at, _)| changed[*at])
            .map(|(at, e)| (at, edit(e)))
            .collect()
    }

    fn place(&self, key: &[u8]) -> Result<usize, StoreError> {
        let at = self.places.get(key).copied();
        at.ok_or_else(|| refused("a key that is not among the arguments named as keys"))
    }

    /// The entry of a key whose time is not up.
    fn look(&self, key: &[u8]) -> Result<Option<&Entry>, StoreError> {
        let entry = &self.entries[self.place(key)?];
        let over = entry.expiry_ms.is_some_and(|at| at <= self.now_ms);
        Ok(Some(entry).filter(|e| e.value != State::Absent && !over))
    }

    fn put(&mut self, key: &[u8], entry: Entry) -> Result<(), StoreError> {
        let at = self.place(key)?;
        let before = match self.changed[at] {
            true => self.entries[at].value.inline_bytes(),
            false => 0,
        };
        let made_bytes = self.made_bytes - before + entry.value.inline_bytes();
        if made_bytes > self.made_max_bytes {
            return Err(StoreError::err(format!(
                "the transaction makes values of more than {} bytes together; split it",
                self.made_max_bytes
            )));
        }
        self.made_bytes = made_bytes;
        self.entries[at] = entry;
        self.changed[at] = true;
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let was = self.look(key)?.is_some();
        if was {
            let entry = Entry {
                value: State::Absent,
                expiry_ms: None,
                meta: None,
            };
            self.put(key, entry)?;
        }
        Ok(was)
    }

    fn view(&self, key: &[u8]) -> Result<View<Pieces>, StoreError> {
        let entry = self.look(key)?;
        Ok(View {
            value: match entry.map(|e| &e.value) {
                None | Some(State::Absent) => Held::Absent,
                Some(State::Inline(bytes)) => Held::Inline(bytes.clone()),
                Some(State::Pieces(pieces)) => Held::Large(*pieces),
            },
            expiry_ms: entry.and_then(|e| e.expiry_ms),
            meta: entry.and_then(|e| e.meta),
        })
    }
}

fn value_of(entry: Option<&Entry>) -> Value<'_, Pieces> {
    match entry.map(|e| &e.value) {
        None | Some(State::Absent) => Value::Absent,
        Some(State::Inline(bytes)) => Value::Inline(bytes),
        Some(State::Pieces(pieces)) => Value::Large(*pieces),
    }
}

fn new_value(value: &NewValue<'_, ()>) -> Result<State, StoreError> {
    match value {
        NewValue::Inline(bytes) => Ok(State::Inline(bytes.to_vec())),
        NewValue::Large(_) => Err(refused("a value in pieces")),
    }
}

fn done<T>(value: T) -> Outcome<T> {
    Ok(Step::Done(value))
}

impl Store for Overlay {
    type Task = ();
    type Large = Pieces;
    type Upload = ();
    const IN_PIECES: bool = false;

    fn turn(&mut self) -> Turn {
        Turn {
            busy: false,
            sleep_at_most: Duration::ZERO,
            room: false,
        }
    }
    fn take_ready(&mut self, _: &mut Vec<u64>) {}
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn durable_epoch(&self) -> u64 {
        0
    }
    fn failed(&self) -> Option<String> {
        None
    }
    fn now_ms(&self) -> u64 {
        self.now_ms
    }
    fn task(&mut self, _: u64) {}
    fn finish(&mut self, (): ()) {}
    fn durable_at((): &()) -> Option<u64> {
        None
    }
    fn grant(&mut self, _: usize) -> bool {
        false
    }
    fn ungrant(&mut self, _: usize) {}
    fn close(self) -> Result<(), String> {
        Ok(())
    }

    fn get<R>(
        &mut self,
        (): &mut (),
        key: &[u8],
        f: impl FnOnce(Value<'_, Pieces>) -> R,
    ) -> Outcome<R> {
        done(f(value_of(self.look(key)?)))
    }
    fn item<R>(
        &mut self,
        (): &mut (),
        key: &[u8],
        f: impl FnOnce(Option<Item<'_, Pieces>>) -> R,
    ) -> Outcome<R> {
        let entry = self.look(key)?;
        done(f(entry.map(|e| Item {
            value: value_of(Some(e)),
            meta: e.meta,
            expiry_ms: e.expiry_ms,
            heat: 0,
            large_cas: match e.value {
                State::Pieces(pieces) => pieces.cas,
                _ => 0,
            },
        })))
    }
    fn edit_with<R>(
        &mut self,
        (): &mut (),
        keys: &[&[u8]],
        _: &[Watched],
        _: &mut [Option<()>],
        f: &mut dyn FnMut(Seen<Pieces>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R> {
        let views: Result<Vec<_>, _> = keys.iter().map(|key| self.view(key)).collect();
        let before = keys.iter().map(|key| self.look(key).map(|e| e.cloned()));
        let before = before.collect::<Result<Vec<_>, _>>()?;
        let (edits, result) = f(Seen {
            views: views?,
            unchanged: true,
            now_ms: self.now_ms,
            new_cas: self.new_cas(),
        })?;
        for (at, edit) in edits {
            let (value, expiry_ms, meta) = match edit {
                Edit::Delete => (State::Absent, None, None),
                Edit::Put {
                    value,
                    expiry_ms,
                    meta,
                } => (State::Inline(value), expiry_ms, meta),
                Edit::Bind {
                    from,
                    expiry_ms,
                    meta,
                } => {
                    let bound = before[from].as_ref().map(|e| e.value.clone());
                    (bound.unwrap_or(State::Absent), expiry_ms, meta)
                }
                Edit::Upload { .. } => return Err(refused("a value in pieces")),
            };
            self.put(
                keys[at],
                Entry {
                    value,
                    expiry_ms,
                    meta,
                },
            )?;
        }
        done(result)
    }
    fn watch(&mut self, key: &[u8]) -> Watched {
        Watched::new(key, 0, false)
    }
    fn unwatch(&mut self, _: Watched) {}
    fn new_cas(&mut self) -> u64 {
        self.next_cas
    }
    fn random_key(&mut self, (): &mut (), _: &mut u64, _: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        Err(refused("RANDOMKEY"))
    }
    fn strlen(&mut self, (): &mut (), key: &[u8]) -> Outcome<u64> {
        done(match value_of(self.look(key)?) {
            Value::Absent => 0,
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Large(pieces) => pieces.len,
        })
    }
    fn set<R>(
        &mut self,
        (): &mut (),
        key: &[u8],
        value: &mut NewValue<'_, ()>,
        how: How,
        old: Option<impl FnOnce(Value<'_, Pieces>) -> R>,
    ) -> Outcome<(bool, Option<R>)> {
        let before = self.look(key)?;
        let there = before.is_some();
        let go = match how.cond {
            Cond::Always => true,
            Cond::IfAbsent => !there,
            Cond::IfPresent => there,
            Cond::IfToken(_) => return Err(refused("a set by token")),
        };
        let expiry_ms = match how.expiry {
            Expiry::None => None,
            Expiry::Keep => before.and_then(|e| e.expiry_ms),
            Expiry::At(at) => Some(at),
        };
        let shown = old.map(|f| f(value_of(before)));
        if go {
            let entry = Entry {
                value: new_value(value)?,
                expiry_ms,
                meta: how.meta,
            };
            self.put(key, entry)?;
        }
        done((go, shown))
    }
    fn get_del<R>(
        &mut self,
        (): &mut (),
        key: &[u8],
        f: impl FnOnce(Value<'_, Pieces>) -> R,
    ) -> Outcome<R> {
        let shown = f(value_of(self.look(key)?));
        self.delete(key)?;
        done(shown)
    }
    fn del(&mut self, (): &mut (), keys: &[&[u8]]) -> Outcome<u64> {
        let mut count = 0;
        for key in keys {
            count += u64::from(self.delete(key)?);
        }
        done(count)
    }
    fn exists(&mut self, (): &mut (), keys: &[&[u8]]) -> Outcome<u64> {
        let mut count = 0;
        for key in keys {
            count += u64::from(self.look(key)?.is_some());
        }
        done(count)
    }
    fn mset(&mut self, (): &mut (), pairs: &mut [(&[u8], NewValue<'_, ()>)]) -> Outcome<()> {
        for (key, value) in pairs {
            let entry = Entry {
                value: new_value(value)?,
                expiry_ms: None,
                meta: None,
            };
            self.put(key, entry)?;
        }
        done(())
    }
    fn incr_by(&mut self, (): &mut (), key: &[u8], delta: i64) -> Outcome<i64> {
        let entry = self.look(key)?;
        let before = match value_of(entry) {
            Value::Absent => Some(0),
            Value::Inline(bytes) => integer(bytes),
            Value::Large(_) => None,
        };
        let sum = before
            .ok_or_else(|| StoreError::err("value is not an integer or out of range"))?
            .checked_add(delta)
            .ok_or_else(|| StoreError::err("increment or decrement would overflow"))?;
        let cas = self.next_cas;
        let entry = Entry {
            value: State::Inline(sum.to_string().into_bytes()),
            expiry_ms: entry.and_then(|e| e.expiry_ms),
            meta: entry.and_then(|e| e.meta).map(|meta| Meta { cas, ..meta }),
        };
        self.put(key, entry)?;
        done(sum)
    }
    fn expire(
        &mut self,
        (): &mut (),
        key: &[u8],
        at_ms: Option<u64>,
        cond: ExpireCond,
    ) -> Outcome<bool> {
        let Some(entry) = self.look(key)?.cloned() else {
            return done(false);
        };
        if !terrace_kv::expire_goes(entry.expiry_ms, at_ms, cond) {
            return done(false);
        }
        if at_ms.is_some_and(|at| at <= self.now_ms) {
            return done(self.delete(key)?);
        }
        self.put(
            key,
            Entry {
                expiry_ms: at_ms,
                ..entry
            },
        )?;
        done(true)
    }
    fn expiry(&mut self, (): &mut (), key: &[u8]) -> Outcome<ExpiryOf> {
        done(match self.look(key)?.map(|e| e.expiry_ms) {
            None => ExpiryOf::Absent,
            Some(None) => ExpiryOf::Never,
            Some(Some(at)) => ExpiryOf::At(at),
        })
    }
    fn scan(&mut self, (): &mut (), _: u64, _: usize, _: &mut dyn FnMut(&[u8])) -> Outcome<u64> {
        Err(refused("a walk through all keys"))
    }
    fn dbsize(&mut self) -> u64 {
        let present = self.entries.iter().filter(|e| e.value != State::Absent);
        self.keys_elsewhere + present.count() as u64
    }
    fn flush_all(&mut self, (): &mut ()) -> Outcome<()> {
        Err(refused("FLUSHALL"))
    }

    fn upload_begin(&mut self, (): &mut (), _: u64) -> Outcome<()> {
        Err(refused("a value in pieces"))
    }
    fn upload_piece(&mut self, (): &mut (), (): &mut (), _: &[u8]) -> Outcome<()> {
        Err(refused("a value in pieces"))
    }
    fn upload_len((): &()) -> u64 {
        0
    }
    fn upload_hold(&mut self, (): &()) -> Option<Pieces> {
        None
    }
    fn upload_abort(&mut self, (): ()) {}
    fn large_cas(pieces: &Pieces) -> u64 {
        pieces.cas
    }
    fn large_len(pieces: &Pieces) -> u64 {
        pieces.len
    }
    fn read_piece<R>(
        &mut self,
        (): &mut (),
        _: &Pieces,
        _: u32,
        _: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<R> {
        Err(refused("reading a value in pieces"))
    }
    fn release(&mut self, _: Pieces) {}
}
