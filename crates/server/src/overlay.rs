//! The store as a transaction sees it: the keys it names, at one moment, with its own changes on top. The queued commands
//! run against it as they would against the store; what they leave changed becomes one edit of the store. With the store
//! beneath it, values in pieces are read and brought in, and memory is granted, by that; without, at that moment itself,
//! whoever needs such a thing is made to wait, and `is_short` tells that the transaction is not one for a moment. Nothing in
//! it is shared. Never: shows a key that was not named beforehand.

mod book;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::resp::parse::integer;
use crate::store::{
    Cond, Edit, Edits, ExpireCond, Expiry, ExpiryOf, Held, How, Item, Meta, NewValue, Outcome,
    Seen, Step, Store, StoreError, Turn, Value, View, Wait, Watched,
};
pub use book::{Book, too_many_long};
use book::{Entry, State, refused};

/// What is beneath.
enum Under<'a, S: Store> {
    /// Nothing: all is done at one moment, with two tasks for those who must have one.
    Nothing(Vec<S::Task>),
    Store(&'a mut S),
}

/// A book as a store.
pub struct Overlay<'a, S: Store> {
    book: &'a mut Book<S::Large, S::Upload>,
    under: Under<'a, S>,
    /// Nobody has asked for what only the store beneath has.
    is_short: bool,
}

impl<'a, S: Store> Overlay<'a, S> {
    /// At one moment of the store, with two tasks, which `end` gives back.
    pub fn at_once(book: &'a mut Book<S::Large, S::Upload>, tasks: Vec<S::Task>) -> Self {
        Overlay {
            book,
            under: Under::Nothing(tasks),
            is_short: true,
        }
    }

    /// With the store beneath it.
    pub fn over(book: &'a mut Book<S::Large, S::Upload>, store: &'a mut S) -> Self {
        Overlay {
            book,
            under: Under::Store(store),
            is_short: true,
        }
    }

    /// Whether nobody has asked for what only the store beneath has.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Bytes of the values that were made.
    pub fn made_bytes(&self) -> usize {
        self.book.made_bytes()
    }

    /// The tasks that it had.
    pub fn end(self) -> Vec<S::Task> {
        match self.under {
            Under::Nothing(tasks) => tasks,
            Under::Store(_) => Vec::new(),
        }
    }

    /// The store beneath, if there is one.
    fn beneath(&mut self) -> Option<&mut S> {
        match &mut self.under {
            Under::Nothing(_) => {
                self.is_short = false;
                None
            }
            Under::Store(store) => Some(store),
        }
    }

    fn put(&mut self, at: usize, entry: Entry<S::Large>) -> Result<(), StoreError> {
        let before = match self.book.changed[at] {
            true => self.book.entries[at].value.inline_bytes(),
            false => 0,
        };
        let after = entry.value.inline_bytes();
        let made_bytes = self.book.made_bytes - before + after;
        if made_bytes > self.book.made_max_bytes {
            return Err(StoreError::err(format!(
                "the transaction makes values of more than {} bytes together; split it",
                self.book.made_max_bytes
            )));
        }
        if let State::Upload(nr) = self.book.entries[at].value {
            self.book.loose.push(nr);
        }
        self.book.made_bytes = made_bytes;
        self.book.entries[at] = entry;
        self.book.changed[at] = true;
        Ok(())
    }

    /// Gives up the uploads that no key has any more, of which these keys may have got some. What arguments brought is kept:
    /// it is needed again if all begins again.
    fn settle(&mut self, places: &[usize]) {
        for nr in std::mem::take(&mut self.book.loose) {
            let entries = &self.book.entries;
            let is_there = |at: &usize| matches!(entries[*at].value, State::Upload(n) if n == nr);
            if places.iter().any(is_there) || self.book.is_brought(nr) {
                continue;
            }
            let upload = self.book.uploads[nr].take();
            if let (Some(upload), Some(store)) = (upload, self.beneath()) {
                store.upload_abort(upload);
            }
        }
    }

    fn put_one(&mut self, key: &[u8], entry: Entry<S::Large>) -> Result<(), StoreError> {
        let at = self.book.place(key)?;
        self.put(at, entry)?;
        self.settle(&[at]);
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let was = self.book.look(key)?.is_some();
        if was {
            let entry = Entry {
                value: State::Absent,
                expiry_ms: None,
                meta: None,
            };
            self.put_one(key, entry)?;
        }
        Ok(was)
    }

    /// A hold on an upload.
    fn hold(&mut self, nr: usize) -> Result<S::Large, StoreError> {
        let gone = || StoreError::err("an upload of the transaction is gone");
        let upload = self.book.uploads[nr].take().ok_or_else(gone)?;
        let held = match self.beneath() {
            Some(store) => store.upload_hold(&upload),
            None => Err(gone()),
        };
        self.book.uploads[nr] = Some(upload);
        held
    }

    /// What a key holds, for who looks.
    fn held(&mut self, key: &[u8]) -> Result<Held<S::Large>, StoreError> {
        Ok(match self.book.look(key)?.map(|e| &e.value) {
            None | Some(State::Absent) => Held::Absent,
            Some(State::Inline(bytes)) => Held::Inline(bytes.clone()),
            Some(State::Pieces(large, _)) => Held::Large(large.clone()),
            Some(&State::Upload(nr)) => Held::Large(self.hold(nr)?),
        })
    }

    fn view(&mut self, key: &[u8]) -> Result<View<S::Large>, StoreError> {
        let value = self.held(key)?;
        let entry = self.book.look(key)?;
        Ok(View {
            value,
            expiry_ms: entry.and_then(|e| e.expiry_ms),
            meta: entry.and_then(|e| e.meta),
        })
    }

    /// Shows a key's value, without a copy if it is at hand.
    fn show<R>(
        &mut self,
        key: &[u8],
        f: impl FnOnce(Value<'_, S::Large>) -> R,
    ) -> Result<R, StoreError> {
        if let Some(State::Inline(bytes)) = self.book.look(key)?.map(|e| &e.value) {
            return Ok(f(Value::Inline(bytes)));
        }
        Ok(f(match self.held(key)? {
            Held::Large(large) => Value::Large(large),
            _ => Value::Absent,
        }))
    }

    fn new_value(
        &mut self,
        value: &mut NewValue<'_, S::Upload>,
    ) -> Result<State<S::Large>, StoreError> {
        match value {
            NewValue::Inline(bytes) => Ok(State::Inline(bytes.to_vec())),
            NewValue::Large(upload) => {
                self.book.room_for_long(1)?;
                Ok(self.book.take_upload(upload))
            }
        }
    }
}

fn done<T>(value: T) -> Outcome<T> {
    Ok(Step::Done(value))
}

impl<S: Store> Store for Overlay<'_, S> {
    type Task = S::Task;
    type Large = S::Large;
    type Upload = S::Upload;

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
        self.book.now_ms
    }
    fn task(&mut self, owner: u64) -> S::Task {
        match &mut self.under {
            Under::Store(store) => store.task(owner),
            // A command has one, and takes one more before it gives that back.
            Under::Nothing(tasks) => tasks.pop().expect("a command at one moment has two tasks"),
        }
    }
    fn finish(&mut self, task: S::Task) {
        match &mut self.under {
            Under::Store(store) => store.finish(task),
            Under::Nothing(tasks) => tasks.push(task),
        }
    }
    fn reads_are_short(&self) -> bool {
        match &self.under {
            Under::Store(store) => store.reads_are_short(),
            Under::Nothing(_) => false,
        }
    }
    fn durable_at(task: &S::Task) -> Option<u64> {
        S::durable_at(task)
    }
    fn grant(&mut self, bytes: usize) -> bool {
        self.beneath().is_some_and(|store| store.grant(bytes))
    }
    fn ungrant(&mut self, bytes: usize) {
        if let Some(store) = self.beneath() {
            store.ungrant(bytes);
        }
    }
    fn close(self) -> Result<(), String> {
        Ok(())
    }

    fn get<R>(
        &mut self,
        _: &mut S::Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, S::Large>) -> R,
    ) -> Outcome<R> {
        done(self.show(key, f)?)
    }
    fn item<R>(
        &mut self,
        _: &mut S::Task,
        key: &[u8],
        f: impl FnOnce(Option<Item<'_, S::Large>>) -> R,
    ) -> Outcome<R> {
        let Some(entry) = self.book.look(key)? else {
            return done(f(None));
        };
        let (meta, expiry_ms) = (entry.meta, entry.expiry_ms);
        done(self.show(key, |value| {
            f(Some(Item {
                large_cas: match &value {
                    Value::Large(large) => S::large_cas(large),
                    _ => 0,
                },
                value,
                meta,
                expiry_ms,
                heat: 0,
            }))
        })?)
    }
    fn edit_with<R>(
        &mut self,
        _: &mut S::Task,
        keys: &[&[u8]],
        _: &[Watched],
        uploads: &mut [Option<S::Upload>],
        f: &mut dyn FnMut(Seen<S::Large>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R> {
        let views: Result<Vec<_>, _> = keys.iter().map(|key| self.view(key)).collect();
        let (edits, result) = f(Seen {
            views: views?,
            unchanged: true,
            now_ms: self.book.now_ms,
            new_cas: self.book.next_cas,
        })?;
        let of_uploads = |(_, edit): &&(usize, Edit)| matches!(edit, Edit::Upload { .. });
        self.book
            .room_for_long(edits.iter().filter(of_uploads).count())?;
        // In the order of the arguments that they may be.
        let mut taken: Vec<Option<State<S::Large>>> = uploads.iter().map(|_| None).collect();
        for (nr, upload) in uploads.iter_mut().enumerate() {
            let is_wanted =
                |(_, e): &(usize, Edit)| matches!(e, Edit::Upload { nr: n, .. } if *n == nr);
            if edits.iter().any(is_wanted) {
                taken[nr] = Some(self.book.take_upload(upload));
            }
        }
        let places = keys.iter().map(|key| self.book.place(key));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        // A value that moves is the one from before the changes.
        let mut values = Vec::with_capacity(edits.len());
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
                    let bound = self.book.look(keys[from])?.map(|e| e.value.clone());
                    (bound.unwrap_or(State::Absent), expiry_ms, meta)
                }
                Edit::Upload {
                    nr,
                    expiry_ms,
                    meta,
                } => (taken[nr].take().unwrap_or(State::Absent), expiry_ms, meta),
            };
            let entry = Entry {
                value,
                expiry_ms,
                meta,
            };
            values.push((places[at], entry));
        }
        for (at, entry) in values {
            self.put(at, entry)?;
        }
        self.settle(&places);
        done(result)
    }
    /// Of those within nobody else changes a key. But it is given back to who is beneath, if a command ends midway.
    fn watch(&mut self, key: &[u8]) -> Watched {
        match self.beneath() {
            Some(store) => store.watch(key),
            None => Watched::new(key, 0, false),
        }
    }
    fn unwatch(&mut self, watched: Watched) {
        if let Some(store) = self.beneath() {
            store.unwatch(watched);
        }
    }
    fn new_cas(&mut self) -> u64 {
        self.book.next_cas
    }
    fn random_key(
        &mut self,
        _: &mut S::Task,
        _: &mut u64,
        _: &mut dyn FnMut(&[u8]),
    ) -> Outcome<bool> {
        Err(refused("RANDOMKEY"))
    }
    fn strlen(&mut self, _: &mut S::Task, key: &[u8]) -> Outcome<u64> {
        done(self.show(key, |value| match value {
            Value::Absent => 0,
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Large(large) => S::large_len(&large),
        })?)
    }
    fn set<R>(
        &mut self,
        _: &mut S::Task,
        key: &[u8],
        value: &mut NewValue<'_, S::Upload>,
        how: How,
        old: Option<impl FnOnce(Value<'_, S::Large>) -> R>,
    ) -> Outcome<(bool, Option<R>)> {
        let before = self.book.look(key)?;
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
        let shown = match old {
            Some(f) => Some(self.show(key, f)?),
            None => None,
        };
        if go {
            let entry = Entry {
                value: self.new_value(value)?,
                expiry_ms,
                meta: how.meta,
            };
            self.put_one(key, entry)?;
        }
        done((go, shown))
    }
    fn get_del<R>(
        &mut self,
        _: &mut S::Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, S::Large>) -> R,
    ) -> Outcome<R> {
        let shown = self.show(key, f)?;
        self.delete(key)?;
        done(shown)
    }
    fn del(&mut self, _: &mut S::Task, keys: &[&[u8]]) -> Outcome<u64> {
        let mut count = 0;
        for key in keys {
            count += u64::from(self.delete(key)?);
        }
        done(count)
    }
    fn exists(&mut self, _: &mut S::Task, keys: &[&[u8]]) -> Outcome<u64> {
        let mut count = 0;
        for key in keys {
            count += u64::from(self.book.look(key)?.is_some());
        }
        done(count)
    }
    fn mset(
        &mut self,
        _: &mut S::Task,
        pairs: &mut [(&[u8], NewValue<'_, S::Upload>)],
    ) -> Outcome<()> {
        for (key, value) in pairs {
            let entry = Entry {
                value: self.new_value(value)?,
                expiry_ms: None,
                meta: None,
            };
            self.put_one(key, entry)?;
        }
        done(())
    }
    fn incr_by(&mut self, _: &mut S::Task, key: &[u8], delta: i64) -> Outcome<i64> {
        let entry = self.book.look(key)?;
        let (expiry_ms, meta) = (entry.and_then(|e| e.expiry_ms), entry.and_then(|e| e.meta));
        let before = match entry.map(|e| &e.value) {
            None | Some(State::Absent) => Some(0),
            Some(State::Inline(bytes)) => integer(bytes),
            Some(State::Pieces(..) | State::Upload(_)) => None,
        };
        let sum = before
            .ok_or_else(|| StoreError::err("value is not an integer or out of range"))?
            .checked_add(delta)
            .ok_or_else(|| StoreError::err("increment or decrement would overflow"))?;
        let cas = self.book.next_cas;
        let entry = Entry {
            value: State::Inline(sum.to_string().into_bytes()),
            expiry_ms,
            meta: meta.map(|meta| Meta { cas, ..meta }),
        };
        self.put_one(key, entry)?;
        done(sum)
    }
    fn expire(
        &mut self,
        _: &mut S::Task,
        key: &[u8],
        at_ms: Option<u64>,
        cond: ExpireCond,
    ) -> Outcome<bool> {
        let Some(entry) = self.book.look(key)?.cloned() else {
            return done(false);
        };
        if !terrace_kv::expire_goes(entry.expiry_ms, at_ms, cond) {
            return done(false);
        }
        if at_ms.is_some_and(|at| at <= self.book.now_ms) {
            return done(self.delete(key)?);
        }
        self.put_one(
            key,
            Entry {
                expiry_ms: at_ms,
                ..entry
            },
        )?;
        done(true)
    }
    fn expiry(&mut self, _: &mut S::Task, key: &[u8]) -> Outcome<ExpiryOf> {
        done(match self.book.look(key)?.map(|e| e.expiry_ms) {
            None => ExpiryOf::Absent,
            Some(None) => ExpiryOf::Never,
            Some(Some(at)) => ExpiryOf::At(at),
        })
    }
    fn scan(
        &mut self,
        _: &mut S::Task,
        _: u64,
        _: usize,
        _: &mut dyn FnMut(&[u8]),
    ) -> Outcome<u64> {
        Err(refused("a walk through all keys"))
    }
    fn dbsize(&mut self) -> u64 {
        let present = self.book.entries.iter().filter(|e| e.value.exists());
        self.book.keys_elsewhere + present.count() as u64
    }
    fn flush_all(&mut self, _: &mut S::Task) -> Outcome<()> {
        Err(refused("FLUSHALL"))
    }

    fn upload_begin(&mut self, t: &mut S::Task, len_bytes: u64) -> Outcome<S::Upload> {
        match self.beneath() {
            Some(store) => store.upload_begin(t, len_bytes),
            // Who needs it comes again with it.
            None => Ok(Step::Wait(Wait::Room)),
        }
    }
    fn upload_piece(
        &mut self,
        t: &mut S::Task,
        upload: &mut S::Upload,
        piece: &[u8],
    ) -> Outcome<()> {
        match self.beneath() {
            Some(store) => store.upload_piece(t, upload, piece),
            // Who needs it comes again with it.
            None => Ok(Step::Wait(Wait::Room)),
        }
    }
    fn upload_len(upload: &S::Upload) -> u64 {
        S::upload_len(upload)
    }
    fn upload_hold(&mut self, upload: &S::Upload) -> Result<S::Large, StoreError> {
        match self.beneath() {
            Some(store) => store.upload_hold(upload),
            None => Err(refused("a value in pieces")),
        }
    }
    fn upload_abort(&mut self, upload: S::Upload) {
        if let Some(store) = self.beneath() {
            store.upload_abort(upload);
        }
    }
    fn large_cas(large: &S::Large) -> u64 {
        S::large_cas(large)
    }
    fn large_len(large: &S::Large) -> u64 {
        S::large_len(large)
    }
    fn read_piece<R>(
        &mut self,
        t: &mut S::Task,
        large: &S::Large,
        n: u32,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<R> {
        match self.beneath() {
            Some(store) => store.read_piece(t, large, n, f),
            // Who needs it comes again with it.
            None => Ok(Step::Wait(Wait::Room)),
        }
    }
    fn release(&mut self, large: S::Large) {
        drop(large);
    }
}
