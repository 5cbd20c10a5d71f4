//! Why an object cannot be had or stored: what was asked, what is allowed, what to do.
//!
//! Never holds heap memory: it is made in the handler of a fault too.

use terrace_media::MediaError;
use terrace_tiers::ReadPlan;

/// A refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The device refused to read.
    #[error("reading {len} bytes at byte {offset} of the pool failed: error {errno} of the system")]
    Io {
        /// First byte on the device.
        offset: u64,
        /// How many.
        len: u32,
        /// The system's number of the error.
        errno: i32,
    },
    /// What was read is not what was written there.
    #[error("{len} bytes at byte {offset} of the pool are damaged: their checksum is wrong")]
    Damaged {
        /// First byte on the device.
        offset: u64,
        /// How many.
        len: u32,
    },
    /// The SSD is full of live objects, or no room came free within the longest wait.
    #[error(
        "no room for {asked_bytes} bytes: the SSD is full, or the cap is; free objects, make the pool larger or raise the cap"
    )]
    Full {
        /// Bytes that were to be stored.
        asked_bytes: u64,
    },
    /// The cap has no DRAM for what says where objects are.
    #[error(
        "no DRAM for {asked_bytes} bytes of tables that say where objects are: the cap has {allowed_bytes} bytes left for them; raise the cap, or have fewer or \
         larger objects"
    )]
    Slots {
        /// Bytes that they would take.
        asked_bytes: u64,
        /// Bytes that there are.
        allowed_bytes: u64,
    },
    /// The device refused to write, and what was written before is all there will be.
    #[error(
        "the pool is read-only since a write to its device failed; nothing stored is lost, open it again on a device that works"
    )]
    ReadOnly,
    /// What was stored did not become durable in time: the device is slow or full.
    #[error(
        "what was stored is not durable after {waited_s} s: the device is too slow, or the SSD has no room to write"
    )]
    Late {
        /// How long it was waited for.
        waited_s: u64,
    },
    /// Too much outside of what was to be synced would have to be written again.
    #[error(
        "{pages} pages outside of the ranges to be synced were changed and have left DRAM since they were synced, and at most {pages_max} may \
         have: sync them too, or everything"
    )]
    Outside {
        /// How many.
        pages: u64,
        /// How many there may be.
        pages_max: u64,
    },
    /// The process forked; the store stayed with the parent.
    #[error(
        "this process is a fork: the pool stayed with its parent; open a pool of its own after forking"
    )]
    Forked,
    /// There is no such table.
    #[error("there is no table {table}")]
    NoTable {
        /// Its number.
        table: u16,
    },
    /// An array, a pool or the like has the table, or it was made for objects of another size.
    #[error(
        "table {table} is that of an array, pool or malloc, or made for objects of another size: choose another number, or drop it first"
    )]
    Taken {
        /// Its number.
        table: u16,
    },
    /// The number is too high.
    #[error("object {id} of table {table}: ids are below 2^36")]
    Range {
        /// The table.
        table: u16,
        /// The id.
        id: u64,
    },
    /// There is no such object.
    #[error("object {id} of table {table} is not there: it was never allocated, or is freed")]
    Free {
        /// The table.
        table: u16,
        /// The id.
        id: u64,
    },
    /// The length does not fit the table.
    #[error("{asked} bytes for an object of table {table}, where {allowed} are allowed")]
    Length {
        /// The table.
        table: u16,
        /// Bytes of the value or buffer.
        asked: u64,
        /// What the table or the object has, at most.
        allowed: u64,
    },
}

impl ObjectError {
    /// Whether a program should be told ENOMEM.
    pub fn is_full(&self) -> bool {
        matches!(self, ObjectError::Full { .. } | ObjectError::Slots { .. })
    }

    pub(crate) fn of_read(e: &MediaError, plan: &ReadPlan) -> ObjectError {
        let errno = match e {
            MediaError::Io { errno, .. } => *errno,
            // What else a read can end in is a short one: the file was cut.
            _ => rustix::io::Errno::IO.raw_os_error(),
        };
        ObjectError::Io {
            offset: plan.offset,
            len: plan.len as u32,
            errno,
        }
    }

    pub(crate) fn damaged(plan: &ReadPlan) -> ObjectError {
        ObjectError::Damaged {
            offset: plan.offset + plan.skip as u64,
            len: (plan.len - plan.skip) as u32,
        }
    }
}
