//! The C library's functions that start programs in one go, in front of its own: where calls are dispatched, the child that they make for a moment has pages brought in by nobody, so
//! what it is to run is copied before, and what it is to do before that.
//!
//! Promises: else the call is passed on as it is. Never: waits for the program.

use super::arguments::is_served;
use super::{Copied, is_on};
use crate::{becomes, environment, next, raw};
use libc::{c_char, c_int, c_long, c_void, pid_t};

type Texts = *const *const c_char;

/// The C library's posix_spawn_file_actions_t, as it has been since 2.29.
#[repr(C)]
#[derive(Clone, Copy)]
struct Actions {
    allocated: c_int,
    used: c_int,
    list: *const Action,
    rest: [c_int; 16],
}

/// What is done to a file before the program begins: numbers and, where it names one, a path.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    kind: c_int,
    /// Of chdir, the path.
    first: *const c_char,
    /// Of open.
    path: *const c_char,
    flags: [c_int; 2],
}

const OPEN: c_int = 2;
const CHDIR: c_int = 3;

impl Action {
    fn path(&mut self) -> Option<&mut *const c_char> {
        match self.kind {
            OPEN => Some(&mut self.path),
            CHDIR => Some(&mut self.first),
            _ => None,
        }
    }
}

/// What is to be done before, where no page of it can be absent: itself, or its copy. None: no room.
unsafe fn copied_actions(copied: &mut Copied, theirs: *const c_void) -> Option<*const c_void> {
    if theirs.is_null() {
        return Some(theirs);
    }
    // SAFETY: the program's promise, all along: so many actions of the C library's making; room for as many in the copy.
    unsafe {
        let all = theirs.cast::<Actions>().read_unaligned();
        let used = all.used.max(0) as usize;
        let served_path = |nth: usize| {
            let mut action = all.list.add(nth).read_unaligned();
            action.path().is_some_and(|path| is_served(*path as c_long))
        };
        let is_any_served = is_served(theirs as c_long)
            || used > 0 && is_served(all.list as c_long)
            || (0..used).any(served_path);
        if !is_any_served {
            return Some(theirs);
        }
        let list: *mut Action = copied.take(used * size_of::<Action>())?.cast();
        for nth in 0..used {
            let mut action = all.list.add(nth).read_unaligned();
            if let Some(path) = action.path() {
                *path = copied.text(*path)?;
            }
            list.add(nth).write(action);
        }
        let to: *mut Actions = copied.take(size_of::<Actions>())?.cast();
        to.write(Actions { list, ..all });
        Some(to.cast_const().cast())
    }
}

/// How it is to begin, likewise: numbers.
unsafe fn copied_attributes(copied: &mut Copied, theirs: *const c_void) -> Option<*const c_void> {
    const BYTES: usize = size_of::<libc::posix_spawnattr_t>();
    if !is_served(theirs as c_long) {
        return Some(theirs);
    }
    let to = copied.take(BYTES)?;
    // SAFETY: the program's promise, and room for it.
    unsafe { to.copy_from_nonoverlapping(theirs.cast(), BYTES) };
    Some(to.cast_const().cast())
}

fn no_room() -> c_int {
    libc::ENOMEM
}

macro_rules! spawns {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As there.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, args: Texts, environment: Texts) -> c_int {
                // SAFETY: the program's promise.
                unsafe {
                    becomes::say_of_started(path, environment);
                    if !is_on() {
                        return next::$name(pid, path, actions, attributes, args, environment);
                    }
                    let mut copied = Copied::new();
                    let texts = (copied.text(path), copied.texts(args), copied.texts(environment));
                    let others = (copied_actions(&mut copied, actions), copied_attributes(&mut copied, attributes));
                    match (texts, others) {
                        ((Some(path), Some(args), Some(environment)), (Some(actions), Some(attributes))) => {
                            next::$name(pid, path, actions, attributes, args, environment)
                        }
                        _ => no_room(),
                    }
                }
            }
        )*
    };
}

spawns! {
    /// As posix_spawn(3).
    posix_spawn;
    /// As posix_spawnp(3).
    posix_spawnp;
    /// As pidfd_spawn(3), which has a descriptor where the other has a number.
    pidfd_spawn;
    /// As pidfd_spawnp(3).
    pidfd_spawnp;
}

/// As system(3).
///
/// # Safety
/// As there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the program's promise.
    unsafe {
        if !is_on() {
            return next::system(command);
        }
        let mut copied = Copied::new();
        match copied.text(command) {
            Some(command) => {
                environment::touch();
                next::system(command)
            }
            None => {
                raw::set_errno(no_room());
                -1
            }
        }
    }
}
