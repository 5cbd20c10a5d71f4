//! The real store: a thread's worker of a pool, and the strings that `terrace-kv` keeps in it. Thin on purpose: it
//! translates types and decides nothing.

use std::os::fd::RawFd;
use std::sync::Arc;

use terrace_kv as kv;
use terrace_kv::Maintainer;
use terrace_pool::{Pool, Task, Worker};

use crate::store::{
    Edits, ExpireCond, ExpiryOf, How, Item, NewValue, Outcome, Seen, Step, Store, StoreError,
    StoreFactory, Turn, Value, Watched,
};

/// Opens a pool's workers for the server's threads.
pub struct PoolFactory(pub Arc<Pool>);

impl StoreFactory for PoolFactory {
    type Store = KvStore;

    fn open(&self, index: usize, wake: Arc<dyn Fn() + Send + Sync>) -> Result<KvStore, String> {
        let worker = self.0.worker(index, wake).map_err(|e| e.to_string())?;
        let maintainer = (index == 0).then(|| Maintainer::new(MAINTAINER));
        Ok(KvStore { worker, maintainer })
    }

    fn tiers(&self) -> Vec<(String, String)> {
        match serde_json::to_value(self.0.stats()) {
            Ok(serde_json::Value::Object(fields)) => fields
                .into_iter()
                .map(|(name, value)| (name, value.to_string()))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn keys(&self) -> u64 {
        self.0.keys()
    }

    fn dram_bytes(&self) -> u64 {
        self.0.options().dram_bytes
    }

    fn durability(&self) -> &'static str {
        if self.0.is_sync() { "sync" } else { "async" }
    }
}

/// One thread's access to a pool.
pub struct KvStore {
    worker: Worker,
    /// The first thread also does what long values need in the background.
    maintainer: Option<Maintainer>,
}

/// The owner of the maintainer's reads; no connection has this number.
const MAINTAINER: u64 = u64::MAX;

#[inline]
fn answer<T>(outcome: kv::Outcome<T>) -> Outcome<T> {
    outcome.map_err(StoreError::from)
}

#[inline]
fn shown(value: kv::Value<'_>) -> Value<'_, kv::LargeRef> {
    match value {
        kv::Value::Absent => Value::Absent,
        kv::Value::Inline(bytes) => Value::Inline(bytes),
        kv::Value::Large(large) => Value::Large(large),
    }
}

#[inline]
fn incoming<'a>(value: &mut NewValue<'a, kv::Upload>) -> kv::NewValue<'a> {
    match value {
        NewValue::Inline(bytes) => kv::NewValue::Inline(bytes),
        NewValue::Large(upload) => match upload.take() {
            Some(upload) => kv::NewValue::Large(upload),
            None => kv::NewValue::Inline(&[]),
        },
    }
}

/// What was not stored goes back to the caller; what was is the store's now.
#[inline]
fn give_back(value: &mut NewValue<'_, kv::Upload>, left: kv::NewValue<'_>, stored: bool) {
    if let (NewValue::Large(slot), kv::NewValue::Large(upload), false) = (value, left, stored) {
        **slot = Some(upload);
    }
}

impl Store for KvStore {
    type Task = Task;
    type Large = kv::LargeRef;
    type Upload = kv::Upload;

    #[inline]
    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        self.worker.prefetch(keys);
    }

    #[inline]
    fn tick(&mut self) {
        self.worker.tick();
    }

    #[inline]
    fn reads_under_way(&self) -> usize {
        self.worker.reads_under_way()
    }

    #[inline]
    fn kick(&mut self) {
        self.worker.kick();
    }

    #[inline]
    fn set_replies_wait(&mut self, replies_wait: bool) {
        self.worker.set_replies_wait(replies_wait);
    }

    #[inline]
    fn turn(&mut self) -> Turn {
        let more = self
            .maintainer
            .as_mut()
            .is_some_and(|m| m.turn(&mut self.worker));
        let turn = self.worker.turn();
        Turn {
            busy: turn.busy || more,
            sleep_at_most: turn.sleep_at_most,
            room: turn.room,
        }
    }
    #[inline]
    fn take_ready(&mut self, out: &mut Vec<u64>) {
        self.worker.take_ready(out);
    }
    fn poll_fd(&self) -> Option<RawFd> {
        self.worker.poll_fd()
    }
    #[inline]
    fn durable_epoch(&self) -> u64 {
        self.worker.durable_epoch()
    }
    fn failed(&self) -> Option<String> {
        self.worker.failed()
    }
    fn now_ms(&self) -> u64 {
        self.worker.now_ms()
    }
    #[inline]
    fn task(&mut self, owner: u64) -> Task {
        self.worker.task(owner)
    }
    #[inline]
    fn finish(&mut self, task: Task) {
        self.worker.finish(task);
    }
    fn reads_are_short(&self) -> bool {
        !self.worker.reads_are_low()
    }
    #[inline]
    fn durable_at(task: &Task) -> Option<u64> {
        task.durable_at()
    }
    #[inline]
    fn grant(&mut self, bytes: usize) -> bool {
        self.worker.grant(bytes)
    }
    #[inline]
    fn ungrant(&mut self, bytes: usize) {
        self.worker.ungrant(bytes);
    }
    fn close(self) -> Result<(), String> {
        self.worker.close();
        Ok(())
    }

    #[inline]
    fn get<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, kv::LargeRef>) -> R,
    ) -> Outcome<R> {
        answer(kv::get(&mut self.worker, t, key, |value| f(shown(value))))
    }
    #[inline]
    fn item<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Option<Item<'_, kv::LargeRef>>) -> R,
    ) -> Outcome<R> {
        let shows = |item: Option<kv::Item<'_>>| {
            f(item.map(|item| Item {
                large_cas: match &item.value {
                    kv::Value::Large(large) => large.cas(),
                    _ => 0,
                },
                value: shown(item.value),
                meta: item.meta,
                expiry_ms: item.expiry_ms,
                heat: item.heat,
            }))
        };
        answer(kv::item(&mut self.worker, t, key, shows))
    }
    fn edit_with<R>(
        &mut self,
        t: &mut Task,
        keys: &[&[u8]],
        watched: &[Watched],
        uploads: &mut [Option<kv::Upload>],
        f: &mut dyn FnMut(Seen<kv::LargeRef>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R> {
        kv::edit_with(&mut self.worker, t, keys, watched, uploads, f)
    }
    fn watch(&mut self, key: &[u8]) -> Watched {
        kv::watch(&self.worker, key)
    }
    fn unwatch(&mut self, watched: Watched) {
        kv::unwatch(&self.worker, watched);
    }
    fn new_cas(&mut self) -> u64 {
        self.worker.pool().new_version()
    }
    fn random_key(
        &mut self,
        t: &mut Task,
        cursor: &mut u64,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<bool> {
        answer(kv::random_key(&mut self.worker, t, cursor, f))
    }
    fn strlen(&mut self, t: &mut Task, key: &[u8]) -> Outcome<u64> {
        answer(kv::strlen(&mut self.worker, t, key))
    }
    #[inline]
    fn set<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        value: &mut NewValue<'_, kv::Upload>,
        how: How,
        old: Option<impl FnOnce(Value<'_, kv::LargeRef>) -> R>,
    ) -> Outcome<(bool, Option<R>)> {
        let mut new = incoming(value);
        let shows = old.map(|f| move |value: kv::Value<'_>| f(shown(value)));
        let outcome = kv::set_item(&mut self.worker, t, key, &mut new, how, shows);
        give_back(value, new, matches!(outcome, Ok(Step::Done((true, _)))));
        answer(outcome)
    }
    fn get_del<R>(
        &mut self,
        t: &mut Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, kv::LargeRef>) -> R,
    ) -> Outcome<R> {
        answer(kv::get_del(&mut self.worker, t, key, |value| {
            f(shown(value))
        }))
    }
    fn del(&mut self, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
        answer(kv::del(&mut self.worker, t, keys))
    }
    fn exists(&mut self, t: &mut Task, keys: &[&[u8]]) -> Outcome<u64> {
        answer(kv::exists(&mut self.worker, t, keys))
    }
    fn mset(
        &mut self,
        t: &mut Task,
        pairs: &mut [(&[u8], NewValue<'_, kv::Upload>)],
    ) -> Outcome<()> {
        let mut new: Vec<(&[u8], kv::NewValue<'_>)> = pairs
            .iter_mut()
            .map(|(key, v)| (*key, incoming(v)))
            .collect();
        let outcome = kv::mset(&mut self.worker, t, &mut new);
        let stored = matches!(outcome, Ok(Step::Done(())));
        for ((_, value), (_, left)) in pairs.iter_mut().zip(new) {
            give_back(value, left, stored);
        }
        answer(outcome)
    }
    fn incr_by(&mut self, t: &mut Task, key: &[u8], delta: i64) -> Outcome<i64> {
        answer(kv::incr_by(&mut self.worker, t, key, delta))
    }
    fn expire(
        &mut self,
        t: &mut Task,
        key: &[u8],
        at_ms: Option<u64>,
        cond: ExpireCond,
    ) -> Outcome<bool> {
        answer(kv::expire(&mut self.worker, t, key, at_ms, cond))
    }
    fn expiry(&mut self, t: &mut Task, key: &[u8]) -> Outcome<ExpiryOf> {
        answer(kv::expiry(&mut self.worker, t, key))
    }
    fn scan(
        &mut self,
        t: &mut Task,
        cursor: u64,
        count: usize,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<u64> {
        answer(kv::scan(&mut self.worker, t, cursor, count, f))
    }
    fn dbsize(&mut self) -> u64 {
        kv::dbsize(&self.worker)
    }
    fn flush_all(&mut self, t: &mut Task) -> Outcome<()> {
        answer(kv::flush_all(&mut self.worker, t))
    }

    fn upload_begin(&mut self, t: &mut Task, len_bytes: u64) -> Outcome<kv::Upload> {
        answer(kv::upload_begin(&mut self.worker, t, len_bytes))
    }
    fn upload_piece(&mut self, t: &mut Task, upload: &mut kv::Upload, piece: &[u8]) -> Outcome<()> {
        answer(kv::upload_piece(&mut self.worker, t, upload, piece))
    }
    fn upload_len(upload: &kv::Upload) -> u64 {
        upload.len()
    }
    fn upload_hold(&mut self, upload: &kv::Upload) -> Result<kv::LargeRef, StoreError> {
        Ok(upload.hold(&self.worker)?)
    }
    fn upload_abort(&mut self, upload: kv::Upload) {
        kv::upload_abort(&mut self.worker, upload);
    }
    fn large_cas(large: &kv::LargeRef) -> u64 {
        large.cas()
    }
    fn large_len(large: &kv::LargeRef) -> u64 {
        large.len()
    }
    fn read_piece<R>(
        &mut self,
        t: &mut Task,
        large: &kv::LargeRef,
        n: u32,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<R> {
        answer(kv::read_piece(&mut self.worker, t, large, n, f))
    }
    fn release(&mut self, large: kv::LargeRef) {
        kv::release(&mut self.worker, large);
    }
}
