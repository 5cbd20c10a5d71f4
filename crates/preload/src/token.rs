//! Which of a program's processes have a pool: as many as the user said, each by a name that no other of them can have meanwhile.
//!
//! A program that forks before it asks for memory, a daemon for example, has its memory in the child; one with many such children would open many pools
//! under one cap. Promises: no more have one at a time than were said; who ended, was killed or turned into another program has it no more. Never: waits.

use crate::door::Door;
use std::io;

static DOOR: Door = Door::none();

/// Whether this process has the pool of this number of the run of this name, from now on. False: another has it.
pub fn take(run: &str, nth: u32) -> io::Result<bool> {
    match DOOR.open(&format!("{run}-pool-{nth}")) {
        Ok(()) => Ok(true),
        Err(why) if why.kind() == io::ErrorKind::AddrInUse => Ok(false),
        Err(why) => Err(why),
    }
}

/// It has none; in the child of a fork, it is the parent's.
pub fn not_here() {
    DOOR.close();
}
