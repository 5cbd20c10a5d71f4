//! The end of a connection that was told of a protocol error. Closed at once, with bytes of its peer unread, it would be reset, and
//! the peer, which may still be sending, would not get to read what was wrong. So the server ends its own side, and drops what
//! comes until the peer has ended too.
//!
//! Promises: at most `LINGER_MAX_BYTES` and `LINGER_MAX_MS`, and no buffer held. Never: executes what it reads.

use crate::conn::Conn;
use crate::limits::{LINGER_MAX_BYTES, LINGER_MAX_MS};
use crate::service::{Status, read_some};
use crate::store::Store;
use crate::thread::Env;

/// Reads in a row before others are served.
const READS_IN_A_ROW: usize = 8;

/// Where it stands.
#[derive(Debug)]
pub struct Linger {
    left_bytes: u64,
    until_ms: u64,
    is_shut: bool,
    /// Its thread looks at the time.
    pub listed: bool,
}

impl Linger {
    /// From now on.
    pub fn new(now_ms: u64) -> Linger {
        Linger {
            left_bytes: LINGER_MAX_BYTES,
            until_ms: now_ms + LINGER_MAX_MS,
            is_shut: false,
            listed: false,
        }
    }

    /// Whether its time is up.
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms
    }
}

/// Drops what has come for a connection whose last reply has left.
pub fn drop_input<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> Status {
    let Some(linger) = &mut conn.linger else {
        return Status::Close;
    };
    if !linger.is_shut {
        linger.is_shut = true;
        if conn.stream.end().is_err() {
            return Status::Close;
        }
        // Nothing of it is executed any more.
        conn.tear_down(env);
    }
    let Some(linger) = &mut conn.linger else {
        return Status::Close;
    };
    for _ in 0..READS_IN_A_ROW {
        if conn.eof || linger.left_bytes == 0 || linger.is_over(env.now_ms) {
            return Status::Close;
        }
        if !conn.readable {
            return Status::Idle;
        }
        let read = read_some(
            &mut conn.stream,
            &mut env.scratch,
            &mut conn.readable,
            &mut conn.eof,
        );
        match read {
            Ok(Some(n)) => linger.left_bytes = linger.left_bytes.saturating_sub(n as u64),
            Ok(None) => {}
            Err(_) => return Status::Close,
        }
    }
    Status::Again
}
