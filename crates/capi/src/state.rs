//! What stands behind the handles that C holds: pools, and the objects, arrays, tables and regions in them.
//!
//! Promises: a handle of another kind is told from one of the kind that is wanted; what a call works on stays until the call ends, and what is closed
//! ends with it, in the thread that closes. Never: knows what a call does with it.

use crate::changing::refuse_inside;
use crate::error::Failure;
use crate::handle::{Handle, Places};
use crate::ranges;
use ::terrace_pool::{Mutex, RwLock};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};
use terrace_vm::handles::Table;
use terrace_vm::heap::PageHeap;
use terrace_vm::kept::{NamedRegion, Regions};
use terrace_vm::opp::{Array, Heap, ObjectPool};

/// Longest that closing waits for calls under way. One may be of the thread that closes, if a signal's handler does.
const UNDER_WAY_MAX: Duration = Duration::from_secs(10);
/// Objects of a table that are changed at once, at most.
const CHANGED_AT_ONCE: usize = 32;
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct PoolState {
    pub heap: Heap,
    /// Only in pools that are kept.
    pub regions: Option<Regions>,
    /// The pool's malloc, made when it is first used.
    pub malloc: Mutex<Option<Arc<PageHeap>>>,
    /// Arrays and the like that are open.
    pub children: Mutex<Vec<Handle>>,
}

impl PoolState {
    /// Takes note of a handle that ends with the pool.
    pub fn adopt(&self, child: Handle) {
        self.children.lock().push(child);
    }
    pub fn disown(&self, child: Handle) {
        self.children.lock().retain(|c| *c != child);
    }
}

pub(crate) struct ObjectsState {
    pub objects: ObjectPool,
    pub of: Weak<PoolState>,
}

pub(crate) struct ArrayState {
    pub array: Array,
    pub of: Weak<PoolState>,
}

pub(crate) struct TableState {
    pub table: Table,
    /// Held while an object is changed: each by those whose ids are alike.
    pub changing: [Mutex<()>; CHANGED_AT_ONCE],
    pub of: Weak<PoolState>,
}

impl TableState {
    /// Waits for who is changing an object, and holds back others until it is dropped.
    pub fn turn(&self, id: u64) -> MutexGuard<'_, ()> {
        self.changing[id as usize % CHANGED_AT_ONCE].lock()
    }
}

pub(crate) struct RegionState {
    pub region: NamedRegion,
    pub of: Weak<PoolState>,
}

/// What a handle can stand for.
#[derive(Clone)]
pub(crate) enum Thing {
    Pool(Arc<PoolState>),
    Objects(Arc<ObjectsState>),
    Array(Arc<ArrayState>),
    Table(Arc<TableState>),
    Region(Arc<RegionState>),
}

impl Thing {
    fn name(&self) -> &'static str {
        match self {
            Thing::Pool(_) => "terrace_pool",
            Thing::Objects(_) => "terrace_objects",
            Thing::Array(_) => "terrace_array",
            Thing::Table(_) => "terrace_table",
            Thing::Region(_) => "terrace_region",
        }
    }
}

/// A kind of thing.
pub(crate) trait Kind: Sized {
    const NAME: &'static str;
    fn of(thing: Thing) -> Option<Arc<Self>>;
}

macro_rules! kind {
    ($state:ty, $variant:ident, $name:literal) => {
        impl Kind for $state {
            const NAME: &'static str = $name;
            fn of(thing: Thing) -> Option<Arc<Self>> {
                match thing {
                    Thing::$variant(state) => Some(state),
                    _ => None,
                }
            }
        }
    };
}

/// A kind of thing that is in a pool.
pub(crate) trait Child: Kind {
    fn pool(&self) -> Option<Arc<PoolState>>;
}

macro_rules! child {
    ($($state:ty)*) => {
        $(impl Child for $state {
            fn pool(&self) -> Option<Arc<PoolState>> {
                self.of.upgrade()
            }
        })*
    };
}
child!(ObjectsState ArrayState TableState RegionState);

kind!(PoolState, Pool, "terrace_pool");
kind!(ObjectsState, Objects, "terrace_objects");
kind!(ArrayState, Array, "terrace_array");
kind!(TableState, Table, "terrace_table");
kind!(RegionState, Region, "terrace_region");

static PLACES: RwLock<Places<Thing>> = RwLock::new(Places::new());

/// Keeps everybody from handles, for a fork.
pub(crate) fn hold() -> RwLockWriteGuard<'static, Places<Thing>> {
    PLACES.write()
}

/// A new handle.
pub(crate) fn add(thing: Thing) -> Result<Handle, Failure> {
    let added = PLACES.write().add(thing);
    // Dropping what was refused does I/O, and waits.
    added.map_err(|(failure, _refused)| failure)
}

fn typed<T: Kind>(thing: Thing) -> Result<Arc<T>, Failure> {
    let is = thing.name();
    T::of(thing).ok_or_else(|| Failure::invalid(format!("a {is} where a {} is wanted", T::NAME)))
}

/// What a handle stands for.
pub(crate) fn get<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let places = PLACES.read();
    typed(places.get(handle, T::NAME)?.clone())
}

/// What any handle stands for.
pub(crate) fn any(handle: Handle) -> Result<Thing, Failure> {
    Ok(PLACES.read().get(handle, "handle")?.clone())
}

/// Closes a handle: what it stood for, which ends with the last call that has it.
pub(crate) fn remove<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let mut places = PLACES.write();
    let state = typed(places.get(handle, T::NAME)?.clone())?;
    places.close(handle, T::NAME)?;
    Ok(state)
}

/// Until when calls under way are waited for.
pub(crate) fn patience() -> Instant {
    Instant::now() + UNDER_WAY_MAX
}

/// Waits until calls that have it have ended; no handle leads to it any more. Whether they have.
pub(crate) fn await_calls<T>(last: &Arc<T>, until: Instant) -> bool {
    while Arc::strong_count(last) > 1 {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // What they did is seen from here on.
    fence(Ordering::Acquire);
    true
}

/// What closing says where calls went on for too long.
pub(crate) fn still_called(what: &str) -> Failure {
    let waited_s = UNDER_WAY_MAX.as_secs();
    Failure {
        errno: libc::ETIMEDOUT,
        text: format!(
            "calls on the {what} in other threads have not ended in {waited_s} s: it is closed when they end, and can be opened again then"
        ),
    }
}

/// Closes what is in a pool, after calls under way on it. Whether they have ended by then: if not, it ends with them.
pub(crate) fn close<T: Child>(handle: Handle, until: Instant) -> Result<bool, Failure> {
    let state = remove::<T>(handle)?;
    let ended = await_calls(&state, until);
    // Before its addresses can be another's.
    ranges::remove(handle);
    Ok(ended)
}

/// The same of what ends before its pool.
pub(crate) fn destroy<T: Child>(handle: Handle) -> Result<(), Failure> {
    refuse_inside()?;
    // In hand until it is gone: whoever closes the pool meanwhile waits for that.
    let pool = get::<T>(handle)?.pool();
    let ended = close::<T>(handle, patience())?;
    if let Some(pool) = pool {
        pool.disown(handle);
    }
    match ended {
        true => Ok(()),
        false => Err(still_called(T::NAME)),
    }
}
