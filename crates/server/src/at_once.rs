//! How many connections that moved a turn takes while the device does many reads (ADR 0016): as many as keep a device busy that takes longer than the turn itself, and fewer where it answers within
//! a few. More than that would only wait at the device for each other.
//!
//! How long a read takes is reckoned by Little's law: reads under way, times how long, over reads that ended. Promises: follows within [`READS_LOOKED_AT`] reads. Never: asks for the time while
//! nothing is read.

use std::time::Instant;

use crate::limits::{AT_ONCE_QUICK, AT_ONCE_WHILE_READING, QUICK_READ_US};

/// Reads between two looks.
const READS_LOOKED_AT: u64 = 4_096;

/// See the head of the file.
#[derive(Debug)]
pub struct AtOnce {
    connections: usize,
    last: Option<Instant>,
    reads_us: u64,
    ended: u64,
}

impl Default for AtOnce {
    fn default() -> AtOnce {
        AtOnce {
            connections: AT_ONCE_WHILE_READING,
            last: None,
            reads_us: 0,
            ended: 0,
        }
    }
}

impl AtOnce {
    /// How many now.
    pub fn connections(&self) -> usize {
        self.connections
    }

    /// A turn: so many reads were under way since the last, and so many ended.
    pub fn turn(&mut self, under_way: usize, ended: usize) {
        if under_way == 0 && ended == 0 {
            self.last = None;
            return;
        }
        self.turn_at(Instant::now(), under_way, ended);
    }

    fn turn_at(&mut self, now: Instant, under_way: usize, ended: usize) {
        if let Some(last) = self.last.replace(now) {
            let since_us = now.duration_since(last).as_nanos() as u64;
            self.reads_us += since_us * under_way as u64 / 1000;
            self.ended += ended as u64;
        }
        if self.ended >= READS_LOOKED_AT {
            self.connections = match self.reads_us / self.ended < QUICK_READ_US {
                true => AT_ONCE_QUICK,
                false => AT_ONCE_WHILE_READING,
            };
            (self.reads_us, self.ended) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_quick_device_gets_fewer_at_once() {
        let mut at_once = AtOnce::default();
        let mut now = Instant::now();
        let mut turns = |turn_us, under_way, ended| {
            for _ in 0..=READS_LOOKED_AT / ended as u64 {
                now += Duration::from_micros(turn_us);
                at_once.turn_at(now, under_way, ended);
            }
            at_once.connections()
        };
        assert_eq!(turns(80, 8, 8), AT_ONCE_QUICK);
        assert_eq!(turns(100, 24, 8), AT_ONCE_WHILE_READING);
        assert_eq!(turns(QUICK_READ_US, 5, 5), AT_ONCE_WHILE_READING);
        assert_eq!(turns(QUICK_READ_US - 1, 5, 5), AT_ONCE_QUICK);
    }

    #[test]
    fn what_passes_between_reads_is_none_of_theirs() {
        let mut at_once = AtOnce::default();
        at_once.turn(1, 0);
        at_once.turn(0, 0);
        assert_eq!(at_once.last, None);
    }
}
