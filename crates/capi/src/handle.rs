//! What stands behind the pointers that C holds to pools, arrays and tables.
//!
//! A handle is a number dressed as a pointer: a place in a table and how often the place was used before. Its highest bit is set, so a
//! program that follows one is stopped by the processor. Promises: a handle that is closed, made up or of another kind is told from one that is good; what
//! a call works on stays until the call ends. Never: follows a handle.

use crate::array::ArrayState;
use crate::error::Failure;
use crate::objects::ObjectsState;
use crate::open::PoolState;
use crate::region::RegionState;
use crate::table::TableState;
use ::terrace_pool::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};

/// Handles of a process at one time.
const HANDLES_MAX: usize = 1 << 16;
const PLACE_BITS: u32 = 16;
/// Times a place is used; then it is left alone, so that no old handle is good again.
const USES_MAX: u64 = 1 << 40;
const MARK: u64 = 1 << 63;

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
kind!(PoolState, Pool, "terrace_pool");
kind!(ObjectsState, Objects, "terrace_objects");
kind!(ArrayState, Array, "terrace_array");
kind!(TableState, Table, "terrace_table");
kind!(RegionState, Region, "terrace_region");

struct Place {
    uses: u64,
    /// The process that made it, as [`FORKS`] had it.
    process: u32,
    thing: Option<Thing>,
}

/// How many forks lie between this process and the one that first opened a pool.
static FORKS: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// From now on handles know when they are used in a fork.
pub(crate) fn watch_forks() {
    WATCH.call_once(|| {
        // SAFETY: a plain function of the right type that only changes an atomic. It fails for want of memory alone; then a fork is told by the
        // memory itself.
        unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    });
}

struct Places {
    all: Vec<Place>,
    free: Vec<usize>,
}

static PLACES: RwLock<Places> = RwLock::new(Places {
    all: Vec::new(),
    free: Vec::new(),
});

/// A handle as a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(u64);

impl Handle {
    pub fn from_pointer<T>(pointer: *const T) -> Handle {
        Handle(pointer as u64)
    }
    pub fn pointer<T>(self) -> *mut T {
        self.0 as *mut T
    }
    fn place(self) -> (usize, u64) {
        let number = self.0 & !MARK;
        (
            (number & ((1 << PLACE_BITS) - 1)) as usize,
            number >> PLACE_BITS,
        )
    }
}

/// A new handle.
pub(crate) fn add(thing: Thing) -> Result<Handle, Failure> {
    let mut places = PLACES.write();
    let at = match places.free.pop() {
        Some(at) => at,
        None if places.all.len() < HANDLES_MAX => {
            places.all.push(Place {
                uses: 0,
                process: 0,
                thing: None,
            });
            places.all.len() - 1
        }
        None => {
            return Err(Failure {
                errno: libc::EMFILE,
                text: format!("a process has at most {HANDLES_MAX} handles: close some"),
            });
        }
    };
    let place = &mut places.all[at];
    place.uses += 1;
    place.process = FORKS.load(Ordering::Relaxed);
    place.thing = Some(thing);
    Ok(Handle(MARK | place.uses << PLACE_BITS | at as u64))
}

fn check(handle: Handle, wanted: &str, places: &Places) -> Result<usize, Failure> {
    let (at, uses) = handle.place();
    if handle.0 == 0 {
        return Err(Failure::invalid(format!("NULL instead of a {wanted}")));
    }
    let made = handle.0 & MARK != 0 && uses > 0;
    match places.all.get(at).filter(|_| made) {
        Some(place) if place.uses == uses && place.thing.is_some() => match place.process {
            mine if mine == FORKS.load(Ordering::Relaxed) => Ok(at),
            _ => Err(Failure {
                errno: libc::EPERM,
                text: format!(
                    "this process is a fork, and the {wanted} stayed with its parent: open a pool of its own"
                ),
            }),
        },
        Some(place) if uses <= place.uses => Err(Failure {
            errno: libc::EBADF,
            text: format!(
                "the {wanted} {:#x} is closed already (a use after close)",
                handle.0
            ),
        }),
        _ => Err(Failure::invalid(format!(
            "{:#x} is no {wanted} of this library",
            handle.0
        ))),
    }
}

fn typed<T: Kind>(thing: Thing) -> Result<Arc<T>, Failure> {
    let is = thing.name();
    T::of(thing).ok_or_else(|| Failure::invalid(format!("a {is} where a {} is wanted", T::NAME)))
}

/// What a handle stands for.
pub(crate) fn get<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let places = PLACES.read();
    let at = check(handle, T::NAME, &places)?;
    typed(places.all[at].thing.clone().expect("checked"))
}

/// What any handle stands for.
pub(crate) fn any(handle: Handle) -> Result<Thing, Failure> {
    let places = PLACES.read();
    let at = check(handle, "handle", &places)?;
    Ok(places.all[at].thing.clone().expect("checked"))
}

/// Closes a handle: what it stood for, which ends with the last call that has it.
pub(crate) fn remove<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    let mut places = PLACES.write();
    let at = check(handle, T::NAME, &places)?;
    let state = typed(places.all[at].thing.clone().expect("checked"))?;
    places.all[at].thing = None;
    if places.all[at].uses < USES_MAX {
        places.free.push(at);
    }
    Ok(state)
}
