//! What the parts of serving have in common: how far a connection came, one read of it, and what it waits for.

use std::borrow::Cow;
use std::io;
use std::sync::atomic::Ordering;

use crate::conn::{Block, Conn};
use crate::env::Env;
use crate::limits::OUTPUT_LIMIT_BYTES;
use crate::linger::Linger;
use crate::resp::encode;
use crate::store::{Store, Wait};
use crate::stream::Stream;
use crate::sync::add;

/// How a connection was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It waits for something that will be noticed.
    Idle,
    /// It could go on, and only made way for others.
    Again,
    /// It is to be closed.
    Close,
}

/// Whether serving came further.
pub(crate) enum Advance {
    Moved,
    Stuck,
}

/// One read. A short one on an edge-triggered socket means that it is empty; `None`: nothing came.
pub(crate) fn read_some(
    stream: &mut Stream,
    into: &mut [u8],
    readable: &mut bool,
    eof: &mut bool,
) -> io::Result<Option<usize>> {
    loop {
        match stream.read(into) {
            Ok(0) => {
                *eof = true;
                return Ok(None);
            }
            Ok(n) => return Ok(Some(n)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                *readable = false;
                return Ok(None);
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Enough was answered for now.
#[inline]
pub(crate) fn is_full<S: Store>(env: &Env<S>, conn: &Conn<S>) -> bool {
    env.out.len() + conn.output.pending() > OUTPUT_LIMIT_BYTES
}

/// Counts commands that were executed, and notes when.
#[inline]
pub(crate) fn was_executed<S: Store>(env: &Env<S>, conn: &Conn<S>, commands: u64) {
    add(&env.counters().commands, commands);
    let now_s = (env.now_ms / 1000) as u32;
    conn.session.client.active_s.store(now_s, Ordering::Relaxed);
}

/// Tells of an error of the protocol; the connection ends.
#[cold]
pub(crate) fn protocol_error<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    text: Cow<'static, str>,
) {
    env.shared.count_error(env.counters(), "ERR");
    encode::error(&mut env.out, "ERR", &format!("Protocol error: {text}"));
    end_told(env, conn);
}

/// Ends a connection that was told why, and lets it read that.
#[cold]
pub(crate) fn end_told<S: Store>(env: &Env<S>, conn: &mut Conn<S>) {
    conn.closing = true;
    conn.linger = Some(Box::new(Linger::new(env.now_ms)));
}

/// What a connection waits for whose command does.
pub(crate) fn block_of(wait: Wait) -> Block {
    match wait {
        Wait::Io => Block::Io,
        Wait::Room => Block::Room,
    }
}
