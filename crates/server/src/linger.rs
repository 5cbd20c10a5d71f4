//! The end of a connection that was told of a protocol error. Closed at once, with bytes of its peer unread, it would be reset, and
//! the peer, which may still be sending, would not get to read what was wrong. So the server ends its own side, and drops what
//! comes until the peer has ended too.
//!
//! Here is where it stands; `service` does it. Promises: at most `LINGER_MAX_BYTES` and `LINGER_MAX_MS`. Never: holds a buffer.

use crate::limits::{LINGER_MAX_BYTES, LINGER_MAX_MS};

/// Where it stands.
#[derive(Debug)]
pub struct Linger {
    /// What may still be read and dropped.
    pub left_bytes: u64,
    until_ms: u64,
    /// The server has ended its side.
    pub is_shut: bool,
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
