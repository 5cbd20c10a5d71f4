//! A small store in memory for the tests of the protocol. It makes calls wait at random as the real one does, makes
//! writes durable only when it is turned, and checks the caller's side of the contract: same arguments after a wait,
//! every task, hold, upload and grant given back.

mod calls;

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::limits::INLINE_MAX_BYTES;
use crate::store::{Held as View_, *};

struct Entry {
    value: Arc<Vec<u8>>,
    expires_ms: Option<u64>,
    meta: Option<Meta>,
    /// How often this key was changed.
    changes: u64,
}

/// How the double behaves, and what all its threads share.
#[derive(Default)]
pub struct Settings {
    /// Calls of 1,000 that wait.
    pub wait_per_mille: u64,
    /// Replies wait until writes are durable.
    pub sync: bool,
    /// The budget for buffers.
    pub budget_bytes: i64,
    /// Nothing becomes durable any more.
    pub fail: AtomicBool,
    /// Nothing becomes durable for now.
    pub stall: AtomicBool,
    /// Reads have much of what they may take.
    pub reads_short: AtomicBool,
}

pub struct Factory {
    settings: Settings,
    data: Arc<Mutex<HashMap<Vec<u8>, Entry>>>,
    /// Held while an edit looks at its keys and changes them: it is of one moment, also beside the other thread's.
    moment: Mutex<()>,
    granted: AtomicI64,
    pub granted_peak: AtomicI64,
    open: AtomicI64,
    epoch: AtomicU64,
    changes: AtomicU64,
    /// How often everything was deleted.
    flushes: AtomicU64,
    /// No call waits any more.
    calm: AtomicBool,
    /// Keys whose memory was asked for before their commands.
    prefetched: AtomicU64,
}

impl Factory {
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Factory {
            settings,
            data: Default::default(),
            moment: Mutex::default(),
            granted: Default::default(),
            granted_peak: Default::default(),
            open: Default::default(),
            epoch: Default::default(),
            changes: Default::default(),
            flushes: Default::default(),
            calm: Default::default(),
            prefetched: Default::default(),
        })
    }

    /// Fails if everything was deleted once more than that.
    fn still_there(&self, flushes: u64) -> Result<(), StoreError> {
        match self.flushes.load(Ordering::SeqCst) == flushes {
            true => Ok(()),
            false => Err(StoreError::err("a piece of the value is gone")),
        }
    }

    fn change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Makes every write from now on fail to become durable.
    pub fn fail(&self) {
        self.settings.fail.store(true, Ordering::SeqCst);
    }

    /// Lets no call wait from now on.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::SeqCst);
    }

    /// How many keys' memory was asked for before their commands.
    pub fn prefetched(&self) -> u64 {
        self.prefetched.load(Ordering::SeqCst)
    }

    /// Somebody else takes all of the budget, or gives it back.
    pub fn take_all(&self, takes: bool) {
        const MORE_THAN_ALL: i64 = 1 << 40;
        let by = if takes { MORE_THAN_ALL } else { -MORE_THAN_ALL };
        self.granted.fetch_add(by, Ordering::SeqCst);
    }

    /// Whether reads have much of what they may take.
    pub fn short_of_reads(&self, short: bool) {
        self.settings.reads_short.store(short, Ordering::SeqCst);
    }

    /// Whether what is written waits to become durable.
    pub fn stall(&self, stall: bool) {
        self.settings.stall.store(stall, Ordering::SeqCst);
    }

    /// Tasks, holds and uploads that nobody gave back, and bytes granted.
    pub fn leaks(&self) -> (i64, i64) {
        (
            self.open.load(Ordering::SeqCst),
            self.granted.load(Ordering::SeqCst),
        )
    }
}

/// The factory as the server sees it (a local type, so that the trait can be implemented for an `Arc` of it).
pub struct Shared(pub Arc<Factory>);

impl StoreFactory for Shared {
    type Store = Double;
    fn open(&self, index: usize, _wake: Arc<dyn Fn() + Send + Sync>) -> Result<Double, String> {
        Ok(Double {
            home: self.0.clone(),
            ready: Vec::new(),
            random: 0x9e37_79b9 + index as u64,
            durable: 0,
        })
    }
    fn tiers(&self) -> Vec<(String, String)> {
        vec![("keys".into(), self.keys().to_string())]
    }
    fn keys(&self) -> u64 {
        self.0.data.lock().unwrap().len() as u64
    }
    fn dram_bytes(&self) -> u64 {
        crate::limits::CONNECTIONS_ONE_IN * self.0.settings.budget_bytes as u64
    }
    fn durability(&self) -> &'static str {
        if self.0.settings.sync {
            "sync"
        } else {
            "async"
        }
    }
}

pub struct Double {
    home: Arc<Factory>,
    ready: Vec<u64>,
    random: u64,
    durable: u64,
}

pub struct Task {
    owner: u64,
    waited: bool,
    call: Option<u64>,
    durable_at: Option<u64>,
}

/// A hold, which ends when it is dropped, and how often everything had been deleted when it began.
pub struct Held(Arc<Vec<u8>>, Arc<Factory>, u64);

impl Held {
    fn new(value: Arc<Vec<u8>>, home: &Arc<Factory>) -> Self {
        home.open.fetch_add(1, Ordering::SeqCst);
        Held(value, home.clone(), home.flushes.load(Ordering::SeqCst))
    }
}

impl Clone for Held {
    fn clone(&self) -> Self {
        let mut held = Held::new(self.0.clone(), &self.1);
        held.2 = self.2;
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.1.open.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct Upload {
    len: u64,
    bytes: Vec<u8>,
    flushes: u64,
}

fn fingerprint(call: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.hash(&mut hasher);
    hasher.finish()
}

impl Double {
    fn chance(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 1000
    }

    /// Waits at random, once a call, and checks that the same call comes back.
    fn gate(&mut self, t: &mut Task, call: impl Hash) -> Option<Wait> {
        if self.home.settings.wait_per_mille == 0 {
            return None;
        }
        let call = fingerprint(call);
        assert!(
            t.call.is_none_or(|before| before == call),
            "another call came with the task of a waiting one"
        );
        let calm = self.home.calm.load(Ordering::SeqCst);
        if t.waited || calm || self.chance() >= self.home.settings.wait_per_mille {
            return None;
        }
        t.waited = true;
        t.call = Some(call);
        if self.chance() < 500 {
            self.ready.push(t.owner);
            Some(Wait::Io)
        } else {
            Some(Wait::Room)
        }
    }

    fn wrote(&mut self, t: &mut Task) {
        if self.home.settings.sync {
            t.durable_at = Some(self.home.epoch.fetch_add(1, Ordering::SeqCst) + 1);
        }
    }

    /// A read shows all writes until now.
    fn saw(&self, t: &mut Task) {
        if self.home.settings.sync {
            t.durable_at = t
                .durable_at
                .max(Some(self.home.epoch.load(Ordering::SeqCst)));
        }
    }

    fn open(&self, by: i64) {
        self.home.open.fetch_add(by, Ordering::SeqCst);
    }

    fn show<R>(&self, value: Option<Arc<Vec<u8>>>, f: impl FnOnce(Value<'_, Held>) -> R) -> R {
        match value {
            None => f(Value::Absent),
            Some(v) if v.len() > INLINE_MAX_BYTES => f(Value::Large(Held::new(v, &self.home))),
            Some(v) => f(Value::Inline(&v)),
        }
    }

    fn look(&self, key: &[u8]) -> Option<(Arc<Vec<u8>>, Option<u64>)> {
        let now = self.now_ms();
        let mut data = self.home.data.lock().unwrap();
        let entry = data.get(key)?;
        if entry.expires_ms.is_some_and(|at| at <= now) {
            data.remove(key);
            return None;
        }
        Some((entry.value.clone(), entry.expires_ms))
    }

    fn take(&self, value: &mut NewValue<'_, Upload>) -> Arc<Vec<u8>> {
        match value {
            NewValue::Inline(bytes) => Arc::new(bytes.to_vec()),
            NewValue::Large(upload) => {
                self.open(-1);
                let upload = upload.take().expect("an upload is used once");
                assert_eq!(upload.bytes.len() as u64, upload.len);
                Arc::new(upload.bytes)
            }
        }
    }

    fn put(&self, key: &[u8], value: Arc<Vec<u8>>, expires_ms: Option<u64>) {
        self.put_item(key, value, expires_ms, None);
    }

    fn put_item(
        &self,
        key: &[u8],
        value: Arc<Vec<u8>>,
        expires_ms: Option<u64>,
        meta: Option<Meta>,
    ) {
        let changes = self.home.change();
        let entry = Entry {
            value,
            expires_ms,
            meta,
            changes,
        };
        self.home.data.lock().unwrap().insert(key.to_vec(), entry);
    }

    fn meta(&self, key: &[u8]) -> Option<Meta> {
        self.home.data.lock().unwrap().get(key)?.meta
    }

    /// What tells one state of a key from another; 0: absent.
    fn changes(&self, key: &[u8]) -> u64 {
        let data = self.home.data.lock().unwrap();
        data.get(key).map_or(0, |e| e.changes)
    }

    fn view(&self, key: &[u8]) -> View<Held> {
        let Some((value, expiry_ms)) = self.look(key) else {
            return View {
                value: View_::Absent,
                expiry_ms: None,
                meta: None,
            };
        };
        View {
            value: match value.len() > INLINE_MAX_BYTES {
                true => View_::Large(Held::new(value, &self.home)),
                false => View_::Inline(value.to_vec()),
            },
            expiry_ms,
            meta: self.meta(key),
        }
    }
}
