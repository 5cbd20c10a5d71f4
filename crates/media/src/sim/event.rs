//! The steps of a simulated device at which what a crash leaves may change.
//!
//! Promises: events are numbered from 1, without a gap. Never: says what a step has changed.

/// A step at which the durable state may change; power can be lost after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Its number; the first is 1. [`SimDevice::events`](super::SimDevice::events) is the number of the last.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The kinds of [`Event`]. Failed operations count like others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A write was handed to the device; from now on any part of it may be there.
    WriteSubmitted {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// A write has ended.
    WriteCompleted {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: usize,
    },
    /// A flush has ended.
    FlushCompleted,
}
