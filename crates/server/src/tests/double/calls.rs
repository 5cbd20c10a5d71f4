//! The calls of the double: what each does to the map. Each may wait first; none holds anything across a wait.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Double, Held, Task, Upload, fingerprint};
use crate::limits::{INLINE_MAX_BYTES, PIECE_BYTES};
use crate::store::*;

macro_rules! gate {
    ($self:ident, $t:ident, $($call:expr),+) => {
        if let Some(wait) = $self.gate($t, ($($call,)+)) {
            return Ok(Step::Wait(wait));
        }
    };
}

impl Store for Double {
    type Task = Task;
    type Large = Held;
    type Upload = Upload;

    fn turn(&mut self) -> Turn {
        let settings = &self.home.settings;
        if !settings.fail.load(Ordering::SeqCst) && !settings.stall.load(Ordering::SeqCst) {
            self.durable = self.home.epoch.load(Ordering::SeqCst);
        }
        let busy = !self.ready.is_empty() || self.home.settings.sync;
        Turn {
            busy,
            sleep_at_most: Duration::from_millis(100),
            room: self.random.is_multiple_of(2),
        }
    }
    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        self.home
            .prefetched
            .fetch_add(keys.count() as u64, Ordering::SeqCst);
    }
    fn take_ready(&mut self, out: &mut Vec<u64>) {
        out.append(&mut self.ready);
    }
    fn poll_fd(&self) -> Option<RawFd> {
        None
    }
    fn durable_epoch(&self) -> u64 {
        self.durable
    }
    fn failed(&self) -> Option<String> {
        self.home
            .settings
            .fail
            .load(Ordering::SeqCst)
            .then(|| "the disk is gone".to_string())
    }
    fn now_ms(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_millis() as u64
    }
    fn task(&mut self, owner: u64) -> Task {
        self.open(1);
        Task {
            owner,
            waited: false,
            call: None,
            durable_at: None,
        }
    }
    fn finish(&mut self, _: Task) {
        self.open(-1);
    }
    fn reads_are_short(&self) -> bool {
        self.home.settings.reads_short.load(Ordering::SeqCst)
    }
    fn durable_at(task: &Task) -> Option<u64> {
        task.durable_at
    }
    fn grant(&mut self, bytes: usize) -> bool {
        let bytes = bytes as i64;
        let after = self.home.granted.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if after > self.home.settings.budget_bytes {
            self.home.granted.fetch_sub(bytes, Ordering::SeqCst);
            return false;
        }
        self.home.granted_peak.fetch_max(after, Ordering::SeqCst);
        true
    }
    fn ungrant(&mut self, bytes: usize) {
        let before = self.home.granted.fetch_sub(bytes as i64, Ordering::SeqCst);
        assert!(before >= bytes as i64, "more was given back than granted");
    }
    fn close(self) -> Result<(), String> {
        Ok(())
    }

    fn get<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, Held>) -> R,
    ) -> Outcome<R> {
        gate!(self, t, "get", key);
        if key == b"damaged" {
            return Err(StoreError::err("the value of this key is damaged"));
        }
        self.saw(t);
        let value = self.look(key).map(|(v, _)| v);
        Ok(Step::Done(self.show(value, f)))
    }
    fn item<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Option<Item<'_, Held>>) -> R,
    ) -> Outcome<R> {
        gate!(self, t, "item", key);
        let Some((value, expiry_ms)) = self.look(key) else {
            return Ok(Step::Done(f(None)));
        };
        let meta = self.meta(key);
        let large_cas = terrace_kv::digest(&value);
        Ok(Step::Done(self.show(Some(value), |value| {
            f(Some(Item {
                value,
                meta,
                expiry_ms,
                heat: 0,
                large_cas,
            }))
        })))
    }
    fn edit_with<R>(
        &mut self,
        t: &mut Task,
        keys: &[&[u8]],
        watched: &[Watched],
        uploads: &mut [Option<Upload>],
        f: &mut dyn FnMut(Seen<Held>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R> {
        let (now_ms, new_cas) = (self.now_ms(), self.new_cas());
        let mut ask = |store: &Double| {
            let same = |w: &Watched| store.changes(&w.key) == w.changes();
            f(Seen {
                views: keys.iter().map(|key| store.view(key)).collect(),
                unchanged: watched.iter().all(same),
                now_ms,
                new_cas,
            })
        };
        // As the real one may: asked twice, also with a wait in between; only the last answer counts.
        ask(self)?;
        gate!(self, t, "edit", keys);
        let home = self.home.clone();
        let _moment = home.moment.lock().unwrap();
        let before: Vec<_> = keys.iter().map(|key| self.look(key)).collect();
        let (edits, result) = ask(self)?;
        for (at, edit) in &edits {
            match edit {
                Edit::Delete => {
                    self.home.change();
                    self.home.data.lock().unwrap().remove(keys[*at]);
                }
                Edit::Put {
                    value,
                    expiry_ms,
                    meta,
                } => {
                    assert!(value.len() <= INLINE_MAX_BYTES);
                    self.put_item(keys[*at], Arc::new(value.clone()), *expiry_ms, *meta);
                }
                Edit::Bind {
                    from,
                    expiry_ms,
                    meta,
                } => {
                    let (value, _) = before[*from].clone().expect("bound");
                    self.put_item(keys[*at], value, *expiry_ms, *meta);
                }
                Edit::Upload {
                    nr,
                    expiry_ms,
                    meta,
                } => {
                    let upload = uploads[*nr].take().expect("an upload for one key");
                    assert_eq!(upload.bytes.len() as u64, upload.len, "received whole");
                    self.open(-1);
                    self.put_item(keys[*at], Arc::new(upload.bytes), *expiry_ms, *meta);
                }
            }
        }
        if !edits.is_empty() {
            self.wrote(t);
        }
        Ok(Step::Done(result))
    }
    fn watch(&mut self, key: &[u8]) -> Watched {
        self.open(1);
        self.look(key);
        Watched::new(key, self.changes(key), false)
    }
    fn unwatch(&mut self, _: Watched) {
        self.open(-1);
    }
    fn new_cas(&mut self) -> u64 {
        self.home.change()
    }
    fn random_key(
        &mut self,
        t: &mut Task,
        cursor: &mut u64,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<bool> {
        gate!(self, t, "random", *cursor);
        let data = self.home.data.lock().unwrap();
        Ok(Step::Done(data.keys().next().map(|key| f(key)).is_some()))
    }
    fn strlen(&mut self, t: &mut Task, key: &[u8]) -> Outcome<u64> {
        gate!(self, t, "strlen", key);
        Ok(Step::Done(
            self.look(key).map_or(0, |(v, _)| v.len() as u64),
        ))
    }
    fn set<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        value: &mut NewValue<'_, Upload>,
        how: How,
        old: Option<impl FnOnce(Value<'_, Held>) -> R>,
    ) -> Outcome<(bool, Option<R>)> {
        gate!(self, t, "set", key);
        let before = self.look(key);
        let hold = match (how.cond, &before) {
            (Cond::IfAbsent, before) => before.is_none(),
            (Cond::IfPresent, before) => before.is_some(),
            (Cond::IfToken(_), None) => false,
            (Cond::IfToken(token), Some((value, _))) => {
                let kept = self.meta(key).map(|m| m.cas);
                kept.unwrap_or_else(|| terrace_kv::digest(value)) == token
            }
            (Cond::Always, _) => true,
        };
        let expires_ms = match how.expiry {
            Expiry::None => None,
            Expiry::Keep => before.as_ref().and_then(|(_, e)| *e),
            Expiry::At(at) => Some(at),
        };
        if hold {
            let value = self.take(value);
            self.put_item(key, value, expires_ms, how.meta);
            self.wrote(t);
        }
        let shown = old.map(|f| self.show(before.map(|(v, _)| v), f));
        Ok(Step::Done((hold, shown)))
    }
    fn get_del<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, Held>) -> R,
    ) -> Outcome<R> {
        gate!(self, t, "get_del", key);
        let value = self.look(key).map(|(v, _)| v);
        if value.is_some() {
            self.home.data.lock().unwrap().remove(key);
            self.wrote(t);
        }
        Ok(Step::Done(self.show(value, f)))
    }
    fn del(&mut self, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
        gate!(self, t, "del", keys);
        let found = keys.iter().filter(|k| {
            self.look(k).is_some() && self.home.data.lock().unwrap().remove(**k).is_some()
        });
        let count = found.count() as u64;
        self.wrote(t);
        Ok(Step::Done(count))
    }
    fn exists(&mut self, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
        gate!(self, t, "exists", keys);
        Ok(Step::Done(
            keys.iter().filter(|k| self.look(k).is_some()).count() as u64,
        ))
    }
    fn mset(&mut self, t: &mut Task, pairs: &mut [(&[u8], NewValue<'_, Upload>)]) -> Outcome<()> {
        gate!(self, t, "mset", pairs.len());
        for (key, value) in pairs {
            let value = self.take(value);
            self.put(key, value, None);
        }
        self.wrote(t);
        Ok(Step::Done(()))
    }
    fn incr_by(&mut self, t: &mut Task, key: &[u8], delta: i64) -> Outcome<i64> {
        gate!(self, t, "incr", key, delta);
        let (value, expires_ms) = self.look(key).unwrap_or((Arc::new(b"0".to_vec()), None));
        let value = crate::resp::parse::integer(&value)
            .ok_or_else(|| StoreError::err("value is not an integer or out of range"))?
            .checked_add(delta)
            .ok_or_else(|| StoreError::err("increment or decrement would overflow"))?;
        let cas = self.new_cas();
        let meta = self.meta(key).map(|m| Meta { cas, ..m });
        self.put_item(
            key,
            Arc::new(value.to_string().into_bytes()),
            expires_ms,
            meta,
        );
        self.wrote(t);
        Ok(Step::Done(value))
    }
    fn expire(
        &mut self,
        t: &mut Task,
        key: &[u8],
        at_ms: Option<u64>,
        cond: ExpireCond,
    ) -> Outcome<bool> {
        gate!(self, t, "expire", key, at_ms.is_some());
        let Some((value, before)) = self.look(key) else {
            return Ok(Step::Done(false));
        };
        let Some(at) = at_ms else {
            self.put(key, value, None);
            return Ok(Step::Done(before.is_some()));
        };
        let hold = match cond {
            ExpireCond::Always => true,
            ExpireCond::Nx => before.is_none(),
            ExpireCond::Xx => before.is_some(),
            ExpireCond::Gt => before.is_some_and(|b| at > b),
            ExpireCond::Lt => before.is_none_or(|b| at < b),
            ExpireCond::XxLt => before.is_some_and(|b| at < b),
        };
        if hold {
            self.put(key, value, Some(at));
            self.wrote(t);
        }
        Ok(Step::Done(hold))
    }
    fn expiry(&mut self, t: &mut Task, key: &[u8]) -> Outcome<ExpiryOf> {
        gate!(self, t, "expiry", key);
        Ok(Step::Done(match self.look(key) {
            None => ExpiryOf::Absent,
            Some((_, None)) => ExpiryOf::Never,
            Some((_, Some(at))) => ExpiryOf::At(at),
        }))
    }
    fn scan(
        &mut self,
        t: &mut Task,
        cursor: u64,
        count: usize,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<u64> {
        gate!(self, t, "scan", cursor, count);
        self.saw(t);
        let data = self.home.data.lock().unwrap();
        let mut places: Vec<(u64, &Vec<u8>)> =
            data.keys().map(|k| (fingerprint(k) | 1, k)).collect();
        places.sort_unstable();
        let mut rest = places.into_iter().filter(|(place, _)| *place > cursor);
        let mut last = 0;
        for (place, key) in rest.by_ref().take(count) {
            f(key);
            last = place;
        }
        Ok(Step::Done(if rest.next().is_some() { last } else { 0 }))
    }
    fn dbsize(&mut self) -> u64 {
        self.home.data.lock().unwrap().len() as u64
    }
    fn flush_all(&mut self, t: &mut Task) -> Outcome<()> {
        gate!(self, t, "flush");
        self.home.flushes.fetch_add(1, Ordering::SeqCst);
        self.home.data.lock().unwrap().clear();
        self.wrote(t);
        Ok(Step::Done(()))
    }

    fn upload_begin(&mut self, t: &mut Task, len_bytes: u64) -> Outcome<Upload> {
        gate!(self, t, "begin", len_bytes);
        self.open(1);
        Ok(Step::Done(Upload {
            len: len_bytes,
            bytes: Vec::new(),
            flushes: self.home.flushes.load(Ordering::SeqCst),
        }))
    }
    fn upload_piece(&mut self, t: &mut Task, upload: &mut Upload, piece: &[u8]) -> Outcome<()> {
        gate!(self, t, "piece", upload.bytes.len(), piece);
        self.home.still_there(upload.flushes)?;
        let left = upload.len - upload.bytes.len() as u64;
        assert_eq!(
            piece.len() as u64,
            left.min(PIECE_BYTES as u64),
            "a piece has the agreed length"
        );
        upload.bytes.extend_from_slice(piece);
        Ok(Step::Done(()))
    }
    fn upload_len(upload: &Upload) -> u64 {
        upload.len
    }
    fn upload_hold(&mut self, upload: &Upload) -> Result<Held, StoreError> {
        assert_eq!(upload.bytes.len() as u64, upload.len, "received whole");
        self.home.still_there(upload.flushes)?;
        Ok(Held::new(Arc::new(upload.bytes.clone()), &self.home))
    }
    fn upload_abort(&mut self, _: Upload) {
        self.open(-1);
    }
    fn large_cas(large: &Held) -> u64 {
        terrace_kv::digest(&large.0)
    }
    fn large_len(large: &Held) -> u64 {
        large.0.len() as u64
    }
    fn read_piece<R>(
        &mut self,
        t: &mut Task,
        large: &Held,
        n: u32,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<R> {
        gate!(self, t, "read", n);
        large.1.still_there(large.2)?;
        let start = n as usize * PIECE_BYTES;
        Ok(Step::Done(f(
            &large.0[start..large.0.len().min(start + PIECE_BYTES)]
        )))
    }
    fn release(&mut self, held: Held) {
        drop(held);
    }
}
