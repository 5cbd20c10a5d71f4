//! Which of a program's processes have a pool: as many as the user said, each by a name that no other of them can have meanwhile.
//!
//! A program that forks before it asks for memory, a daemon for example, has its memory in the child; one with many such children would open many pools
//! under one cap. Promises: no more have one at a time than were said; who ended, was killed or turned into another program has it no more. Never: waits.

use crate::door::Door;
use std::io;

static DOOR: Door = Door::none();

/// One of `count` pools of the run of this name, for this process: its number. None: all are taken.
pub fn take(run: &str, count: u32) -> io::Result<Option<u32>> {
    for nth in 0..count {
        match DOOR.open(&format!("{run}-pool-{nth}")) {
            Ok(()) => return Ok(Some(nth)),
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => {}
            Err(why) => return Err(why),
        }
    }
    Ok(None)
}

/// In the child of a fork: it is the parent's.
pub fn not_here() {
    DOOR.close();
}
