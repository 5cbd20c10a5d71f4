//! The thread's part of the budget of connection buffers. What was read and answered must find a place, so a thread
//! holds a reserve in advance and does nothing that could outgrow it before the reserve is whole again; that is how
//! a full budget becomes backpressure instead of lost replies or memory beyond the cap.

use crate::limits::STANDING_BYTES;
use crate::store::Store;

/// What the reserve may exceed its need by, so that not every buffer asks the store.
const SLACK_BYTES: isize = 64 << 10;

/// See the module.
#[derive(Debug, Default)]
pub struct Budget {
    standing: isize,
    used: isize,
    /// Something came back, or was got on with, since this was last looked at.
    pub returned: bool,
    /// Something was refused since this was last looked at.
    pub refused: bool,
}

impl Budget {
    /// Whether the reserve is whole; tries to make it so.
    #[inline]
    pub fn ready<S: Store>(&mut self, store: &mut S) -> bool {
        self.standing >= STANDING_BYTES || self.refill(store)
    }

    #[cold]
    fn refill<S: Store>(&mut self, store: &mut S) -> bool {
        for target in [STANDING_BYTES + SLACK_BYTES, STANDING_BYTES] {
            if store.grant((target - self.standing) as usize) {
                self.standing = target;
                return true;
            }
        }
        self.refused = true;
        false
    }

    /// Takes from the reserve, for bytes that exist already.
    #[inline]
    pub fn take(&mut self, bytes: usize) {
        self.standing -= bytes as isize;
        self.used += bytes as isize;
    }

    /// Asks for bytes that do not exist yet, beside the reserve.
    pub fn ask<S: Store>(&mut self, store: &mut S, bytes: usize) -> bool {
        let granted = store.grant(bytes);
        self.refused |= !granted;
        if granted {
            self.used += bytes as isize;
        }
        granted
    }

    /// Gives back what was taken or asked for.
    #[inline]
    pub fn give<S: Store>(&mut self, store: &mut S, bytes: usize) {
        self.used -= bytes as isize;
        self.standing += bytes as isize;
        self.returned = true;
        let surplus = self.standing - (STANDING_BYTES + SLACK_BYTES);
        if surplus > 0 {
            self.standing -= surplus;
            store.ungrant(surplus as usize);
        }
    }

    /// What connections hold.
    pub fn used_bytes(&self) -> u64 {
        self.used.max(0) as u64
    }

    /// Gives the reserve itself back, at the end.
    pub fn close<S: Store>(&mut self, store: &mut S) {
        if self.standing > 0 {
            store.ungrant(self.standing as usize);
        }
        self.standing = 0;
    }
}
