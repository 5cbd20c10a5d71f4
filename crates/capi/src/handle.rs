//! The pointers that C holds to pools, arrays and tables, and the places that they name.
//!
//! A handle is a number dressed as a pointer: a place in a table and how often the place was used before. Its highest bit is set, so a
//! program that follows one is stopped by the processor. Promises: a handle that is closed, made up or of a process that forked is told from one
//! that is good. Never: follows a handle, or knows what stands behind one; `state` does.

use crate::error::Failure;
use std::sync::atomic::{AtomicU32, Ordering};

/// Handles of a process at one time.
const HANDLES_MAX: usize = 1 << 16;
const PLACE_BITS: u32 = 16;
/// Times a place is used; then it is left alone, so that no old handle is good again.
const USES_MAX: u64 = 1 << 40;
const MARK: u64 = 1 << 63;

struct Place<T> {
    uses: u64,
    /// The process that made it, as [`FORKS`] had it.
    process: u32,
    thing: Option<T>,
}

/// How many forks lie between this process and the one that first opened a pool.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// In the child of a fork: handles are those of another process from here on.
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

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

/// What all handles of this process stand for.
pub(crate) struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<usize>,
}

impl<T> Places<T> {
    pub const fn new() -> Places<T> {
        Places {
            all: Vec::new(),
            free: Vec::new(),
        }
    }

    /// A new handle; a thing that is refused comes back, to be dropped with no lock in hand.
    pub fn add(&mut self, thing: T) -> Result<Handle, (Failure, T)> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.all.len() < HANDLES_MAX => {
                self.all.push(Place {
                    uses: 0,
                    process: 0,
                    thing: None,
                });
                self.all.len() - 1
            }
            None => {
                let failure = Failure {
                    errno: libc::EMFILE,
                    text: format!("a process has at most {HANDLES_MAX} handles: close some"),
                };
                return Err((failure, thing));
            }
        };
        let place = &mut self.all[at];
        place.uses += 1;
        place.process = FORKS.load(Ordering::Relaxed);
        place.thing = Some(thing);
        Ok(Handle(MARK | place.uses << PLACE_BITS | at as u64))
    }

    /// What a good handle stands for; `wanted` names it in the text of a failure.
    pub fn get(&self, handle: Handle, wanted: &str) -> Result<&T, Failure> {
        let at = self.check(handle, wanted)?;
        Ok(self.all[at].thing.as_ref().expect("checked"))
    }

    /// Closes a handle that is good.
    pub fn close(&mut self, handle: Handle, wanted: &str) -> Result<(), Failure> {
        let at = self.check(handle, wanted)?;
        let place = &mut self.all[at];
        place.thing = None;
        if place.uses < USES_MAX {
            self.free.push(at);
        }
        Ok(())
    }

    fn check(&self, handle: Handle, wanted: &str) -> Result<usize, Failure> {
        let (at, uses) = handle.place();
        if handle.0 == 0 {
            return Err(Failure::invalid(format!("NULL instead of a {wanted}")));
        }
        let made = handle.0 & MARK != 0 && uses > 0;
        match self.all.get(at).filter(|_| made) {
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
}
