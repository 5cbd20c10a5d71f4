//! What the connections need of a store, as a trait, so that the protocol can be tested over a small double as well
//! as over the real one. It promises nothing of its own: the meaning of each function is the store's contract, told
//! here. It never blocks: a function that cannot finish now answers `Step::Wait` and is called again later with the
//! same arguments and the same task.

use std::os::fd::RawFd;
use std::time::Duration;

// What these mean is the same in every room.
pub use terrace_kv::{
    Cond, Edit, Edits, ExpireCond, Expiry, ExpiryOf, Held, How, Meta, Seen, Step, View, Wait,
    Watched,
};

/// An error of the store, ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    /// The first word of the reply (`ERR`, `OOM`, …).
    pub prefix: &'static str,
    /// What follows it.
    pub text: String,
}

impl StoreError {
    /// An error with the usual prefix.
    pub fn err(text: impl Into<String>) -> Self {
        StoreError {
            prefix: "ERR",
            text: text.into(),
        }
    }
}

impl From<terrace_kv::KvError> for StoreError {
    #[cold]
    fn from(e: terrace_kv::KvError) -> Self {
        use terrace_kv::KvErrorKind;
        let prefix = match e.kind() {
            // What Redis's clients know for want of memory.
            KvErrorKind::SsdFull | KvErrorKind::DramFull => "OOM",
            _ => "ERR",
        };
        StoreError {
            prefix,
            text: e.to_string(),
        }
    }
}

/// The answer of every call that may have to wait.
pub type Outcome<T> = Result<Step<T>, StoreError>;

/// A value as the store shows it.
#[derive(Debug)]
pub enum Value<'a, L> {
    /// The key does not exist.
    Absent,
    /// A value of at most `INLINE_MAX_BYTES`, borrowed.
    Inline(&'a [u8]),
    /// A hold on one version of a longer value; it must be given back with [`Store::release`].
    Large(L),
}

/// A value with all that is kept with it.
#[derive(Debug)]
pub struct Item<'a, L> {
    /// The value; never absent.
    pub value: Value<'a, L>,
    /// What memcached keeps with it, if it wrote it.
    pub meta: Option<Meta>,
    /// When it expires, ms since 1970.
    pub expiry_ms: Option<u64>,
    /// How often it was used lately, this time not counted.
    pub heat: u8,
    /// The token of a value that has none kept with it and is not at hand.
    pub large_cas: u64,
}

impl<L> Item<'_, L> {
    /// The token that stands for the present value.
    pub fn cas(&self) -> u64 {
        match (&self.meta, &self.value) {
            (Some(meta), _) => meta.cas,
            (None, Value::Inline(bytes)) => terrace_kv::digest(bytes),
            (None, _) => self.large_cas,
        }
    }
}

/// A value on its way in.
#[derive(Debug)]
pub enum NewValue<'a, U> {
    /// At most `INLINE_MAX_BYTES`.
    Inline(&'a [u8]),
    /// A finished upload. The store takes it when the value was stored; what is left in the option is the caller's.
    Large(&'a mut Option<U>),
}

/// What one slice of background work says.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// There is more to do: call again without sleeping.
    pub busy: bool,
    /// Otherwise the longest sleep.
    pub sleep_at_most: Duration,
    /// Calls that waited for room should be tried again.
    pub room: bool,
}

/// One thread's access to the store.
pub trait Store: Sized {
    /// The state of one command.
    type Task;
    /// A hold on one version of a value above `INLINE_MAX_BYTES`; a clone is one more. Dropping it gives it back, too.
    type Large: Clone;
    /// A value above `INLINE_MAX_BYTES` that is being brought in.
    type Upload;

    /// Tells whether replies wait for an epoch: those of the one that becomes durable in a turn go out before another is closed.
    fn set_replies_wait(&mut self, _replies_wait: bool) {}
    /// Reaps completions and does a bounded slice of background work; never blocks.
    fn turn(&mut self) -> Turn;
    /// Asks for the memory that commands on these keys will want, so that it comes for all of them at once.
    fn prefetch<'k>(&mut self, _keys: impl Iterator<Item = &'k [u8]>) {}
    /// Looks at the clock after a sleep.
    fn tick(&mut self) {}
    /// How many reads the device does for this thread.
    fn reads_under_way(&self) -> usize {
        0
    }
    /// Hands reads that were begun since the last turn to the device.
    fn kick(&mut self) {}
    /// The owners of tasks whose reads are finished, appended to `out`.
    fn take_ready(&mut self, out: &mut Vec<u64>);
    /// A file descriptor that is readable when completions wait.
    fn poll_fd(&self) -> Option<RawFd>;
    /// Replies that wait for an epoch up to this one may go out.
    fn durable_epoch(&self) -> u64;
    /// Why the store takes no more writes, if so: held replies will never become true.
    fn failed(&self) -> Option<String>;
    /// The store's clock, which never jumps back, in milliseconds since 1970.
    fn now_ms(&self) -> u64;
    /// State for one command of the connection `owner`.
    fn task(&mut self, owner: u64) -> Self::Task;
    /// Gives a task back, finished or not.
    fn finish(&mut self, task: Self::Task);
    /// The epoch that the command's reply waits for.
    fn durable_at(task: &Self::Task) -> Option<u64>;
    /// Whether reads have much of what they may take of the budget: what is kept for who does not want it now should be let go.
    fn reads_are_short(&self) -> bool;
    /// Asks for `bytes` of the budget of connection buffers.
    fn grant(&mut self, bytes: usize) -> bool;
    /// Gives them back.
    fn ungrant(&mut self, bytes: usize);
    /// Flushes what this thread looks after and leaves the store.
    ///
    /// # Errors
    /// When something could not be made durable.
    fn close(self) -> Result<(), String>;

    /// Shows the value of `key` to `f`.
    fn get<R>(
        &mut self,
        t: &mut Self::Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, Self::Large>) -> R,
    ) -> Outcome<R>;
    /// Shows `key`'s value and what is kept with it to `f`.
    fn item<R>(
        &mut self,
        t: &mut Self::Task,
        key: &[u8],
        f: impl FnOnce(Option<Item<'_, Self::Large>>) -> R,
    ) -> Outcome<R>;
    /// Shows `keys`, no two of them equal, to `f` at one moment, and makes the changes that it answers, all or none. `f` may
    /// be called again; its last answer counts.
    fn edit<R>(
        &mut self,
        t: &mut Self::Task,
        keys: &[&[u8]],
        watched: &[Watched],
        f: &mut dyn FnMut(Seen<Self::Large>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R> {
        self.edit_with(t, keys, watched, &mut [], f)
    }
    /// The same with finished uploads: each is taken when it became a key's value, and otherwise stays the caller's.
    fn edit_with<R>(
        &mut self,
        t: &mut Self::Task,
        keys: &[&[u8]],
        watched: &[Watched],
        uploads: &mut [Option<Self::Upload>],
        f: &mut dyn FnMut(Seen<Self::Large>) -> Result<Edits<R>, StoreError>,
    ) -> Outcome<R>;
    /// Begins to watch a key; to be given back with [`Store::unwatch`].
    fn watch(&mut self, key: &[u8]) -> Watched;
    /// Ends it.
    fn unwatch(&mut self, watched: Watched);
    /// A token that no value has had.
    fn new_cas(&mut self) -> u64;
    /// Shows some key to `f`, each about as likely as any other. `cursor` is the caller's and 0 at first. If none was shown and it is not 0, only a part was gone through: call again.
    fn random_key(
        &mut self,
        t: &mut Self::Task,
        cursor: &mut u64,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<bool>;
    /// The length of a value in bytes, 0 without one.
    fn strlen(&mut self, t: &mut Self::Task, key: &[u8]) -> Outcome<u64>;
    /// Sets a key; `old` sees the value before. Answers whether it was set.
    fn set<R>(
        &mut self,
        t: &mut Self::Task,
        key: &[u8],
        value: &mut NewValue<'_, Self::Upload>,
        how: How,
        old: Option<impl FnOnce(Value<'_, Self::Large>) -> R>,
    ) -> Outcome<(bool, Option<R>)>;
    /// Shows the value of `key` to `f` and deletes the key, in one step. An error may still follow the look.
    fn get_del<R>(
        &mut self,
        t: &mut Self::Task,
        key: &[u8],
        f: impl FnOnce(Value<'_, Self::Large>) -> R,
    ) -> Outcome<R>;
    /// Deletes keys atomically; answers how many there were.
    fn del(&mut self, t: &mut Self::Task, keys: &[&[u8]]) -> Outcome<u64>;
    /// How many of the keys exist, repeated ones counted again.
    fn exists(&mut self, t: &mut Self::Task, keys: &[&[u8]]) -> Outcome<u64>;
    /// Sets keys atomically.
    fn mset(
        &mut self,
        t: &mut Self::Task,
        pairs: &mut [(&[u8], NewValue<'_, Self::Upload>)],
    ) -> Outcome<()>;
    /// Adds to the integer a key holds.
    fn incr_by(&mut self, t: &mut Self::Task, key: &[u8], delta: i64) -> Outcome<i64>;
    /// Sets (`Some`) or takes away (`None`) the expiry; answers whether it did.
    fn expire(
        &mut self,
        t: &mut Self::Task,
        key: &[u8],
        at_ms: Option<u64>,
        cond: ExpireCond,
    ) -> Outcome<bool>;
    /// The expiry of a key.
    fn expiry(&mut self, t: &mut Self::Task, key: &[u8]) -> Outcome<ExpiryOf>;
    /// Shows some keys to `f`; answers the next cursor, 0 at the end.
    fn scan(
        &mut self,
        t: &mut Self::Task,
        cursor: u64,
        count: usize,
        f: &mut dyn FnMut(&[u8]),
    ) -> Outcome<u64>;
    /// The number of keys.
    fn dbsize(&mut self) -> u64;
    /// Deletes everything.
    fn flush_all(&mut self, t: &mut Self::Task) -> Outcome<()>;

    /// Begins to bring in a value of `len_bytes`.
    fn upload_begin(&mut self, t: &mut Self::Task, len_bytes: u64) -> Outcome<Self::Upload>;
    /// Brings the next piece: `PIECE_BYTES`, or what is left.
    fn upload_piece(
        &mut self,
        t: &mut Self::Task,
        upload: &mut Self::Upload,
        piece: &[u8],
    ) -> Outcome<()>;
    /// The length of an upload in bytes, when it is whole.
    fn upload_len(upload: &Self::Upload) -> u64;
    /// A hold on the value of a finished upload, whatever becomes of that.
    ///
    /// # Errors
    /// When everything was deleted since it began.
    fn upload_hold(&mut self, upload: &Self::Upload) -> Result<Self::Large, StoreError>;
    /// Gives an upload up.
    fn upload_abort(&mut self, upload: Self::Upload);
    /// The token that stands for a held value with none kept beside it.
    fn large_cas(large: &Self::Large) -> u64;
    /// The length of a held value in bytes.
    fn large_len(large: &Self::Large) -> u64;
    /// Shows piece `n` of a held value to `f`.
    fn read_piece<R>(
        &mut self,
        t: &mut Self::Task,
        large: &Self::Large,
        n: u32,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Outcome<R>;
    /// Gives a hold back.
    fn release(&mut self, large: Self::Large);
}

/// Opens the store for each thread, and speaks for all of it.
pub trait StoreFactory: Send + Sync + 'static {
    /// What a thread gets.
    type Store: Store;
    /// Called on the thread `index` itself. `wake` may be called from anywhere to make that thread call
    /// [`Store::turn`].
    ///
    /// # Errors
    /// A sentence for the user when the thread cannot take part.
    fn open(
        &self,
        index: usize,
        wake: std::sync::Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self::Store, String>;
    /// `name:value` pairs for INFO's section `# Tiers`.
    fn tiers(&self) -> Vec<(String, String)>;
    /// The number of keys, for INFO.
    fn keys(&self) -> u64;
    /// The bound on DRAM in bytes, for INFO and CONFIG.
    fn dram_bytes(&self) -> u64;
    /// `sync` or `async`.
    fn durability(&self) -> &'static str;
}
