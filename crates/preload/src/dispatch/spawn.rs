//! The C library's functions that start programs in one go, in front of its own: where calls are dispatched, the child that they make for a moment has pages brought in by nobody, so
//! what it is to run is copied before.
//!
//! Promises: else the call is passed on as it is. Never: waits for the program.

use super::{Copied, is_on};
use crate::{becomes, environment, next, raw};
use libc::{c_char, c_int, c_void, pid_t};

type Texts = *const *const c_char;

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
                    match (copied.text(path), copied.texts(args), copied.texts(environment)) {
                        (Some(path), Some(args), Some(environment)) => next::$name(pid, path, actions, attributes, args, environment),
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
