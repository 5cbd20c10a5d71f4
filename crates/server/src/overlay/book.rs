//! What a transaction has made of its keys: each with the value it had or got, and the values in pieces that it was brought or
//! has made. Pure. Never: gives an upload up, or holds one twice.

use std::collections::HashMap;

use crate::limits::{EXEC_LONG_MAX, EXEC_MADE_MAX_BYTES, INLINE_MAX_BYTES};
use crate::store::{Edit, Held, Meta, Seen, StoreError, View};

#[derive(Debug, Clone)]
pub(super) enum State<L> {
    Absent,
    Inline(Vec<u8>),
    /// The value in pieces that the key of this number had.
    Pieces(L, usize),
    /// One of the uploads.
    Upload(usize),
}

impl<L> State<L> {
    pub(super) fn exists(&self) -> bool {
        !matches!(self, State::Absent)
    }
    pub(super) fn inline_bytes(&self) -> usize {
        match self {
            State::Inline(bytes) => bytes.len(),
            _ => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Entry<L> {
    pub(super) value: State<L>,
    pub(super) expiry_ms: Option<u64>,
    pub(super) meta: Option<Meta>,
}

/// The keys of a transaction and what it has made of them.
pub struct Book<L, U> {
    places: HashMap<Vec<u8>, usize>,
    pub(super) entries: Vec<Entry<L>>,
    pub(super) changed: Vec<bool>,
    /// Values in pieces that it has made or was brought.
    pub(super) uploads: Vec<Option<U>>,
    /// Which command brought each, as which of its long arguments.
    origins: Vec<Option<(usize, usize)>>,
    /// Those that the command under way has handed over, in the order of its arguments.
    taken: Vec<usize>,
    /// Uploads that lost their key.
    pub(super) loose: Vec<usize>,
    /// Bytes of changed values, and how many there may be.
    pub(super) made_bytes: usize,
    pub(super) made_max_bytes: usize,
    pub(super) now_ms: u64,
    pub(super) next_cas: u64,
    pub(super) keys_elsewhere: u64,
}

pub(super) fn refused(what: &str) -> StoreError {
    StoreError::err(format!("{what} is not possible within a transaction"))
}

impl<L: Clone, U> Book<L, U> {
    /// Of what an edit of `keys` was shown, in a store of so many keys, with `brought_bytes` of arguments.
    pub fn new(keys: &[&[u8]], seen: Seen<L>, dbsize: u64, brought_bytes: usize) -> Self {
        let entry = |(from, view): (usize, View<L>)| Entry {
            value: match view.value {
                Held::Absent => State::Absent,
                Held::Inline(bytes) => State::Inline(bytes),
                Held::Large(large) => State::Pieces(large, from),
            },
            expiry_ms: view.expiry_ms,
            meta: view.meta,
        };
        let entries: Vec<Entry<L>> = seen.views.into_iter().enumerate().map(entry).collect();
        let present = entries.iter().filter(|e| e.value.exists()).count() as u64;
        Book {
            places: keys
                .iter()
                .enumerate()
                .map(|(at, key)| (key.to_vec(), at))
                .collect(),
            changed: vec![false; entries.len()],
            uploads: Vec::new(),
            origins: Vec::new(),
            taken: Vec::new(),
            loose: Vec::new(),
            made_bytes: 0,
            made_max_bytes: brought_bytes + EXEC_MADE_MAX_BYTES,
            entries,
            now_ms: seen.now_ms,
            next_cas: seen.new_cas,
            keys_elsewhere: dbsize.saturating_sub(present),
        }
    }

    /// Bytes of the values that it holds.
    pub fn inline_bytes(&self) -> usize {
        self.entries.iter().map(|e| e.value.inline_bytes()).sum()
    }

    /// Bytes of the values that it has made.
    pub fn made_bytes(&self) -> usize {
        self.made_bytes
    }

    /// What has changed. Its uploads are those of `uploads`.
    pub fn edits(&self) -> Vec<(usize, Edit)> {
        let edit = |entry: &Entry<L>| {
            let (expiry_ms, meta) = (entry.expiry_ms, entry.meta);
            match &entry.value {
                State::Absent => Edit::Delete,
                State::Inline(value) => Edit::Put {
                    value: value.clone(),
                    expiry_ms,
                    meta,
                },
                State::Pieces(_, from) => Edit::Bind {
                    from: *from,
                    expiry_ms,
                    meta,
                },
                State::Upload(nr) => Edit::Upload {
                    nr: *nr,
                    expiry_ms,
                    meta,
                },
            }
        };
        let entries = self.entries.iter().enumerate();
        entries
            .filter(|(at, _)| self.changed[*at])
            .map(|(at, e)| (at, edit(e)))
            .collect()
    }

    /// Whether anything has changed.
    pub fn is_changed(&self) -> bool {
        self.changed.contains(&true)
    }

    /// The uploads, for an edit of the store and for who gives them back.
    pub fn uploads(&mut self) -> &mut [Option<U>] {
        &mut self.uploads
    }

    /// A command is through that has handed over these of its long arguments.
    pub fn came_from(&mut self, command: usize, args: impl Iterator<Item = usize>) {
        for (nr, arg) in std::mem::take(&mut self.taken).into_iter().zip(args) {
            self.origins[nr] = Some((command, arg));
        }
    }

    /// Takes all uploads, each with the argument that it came as, if it did.
    pub fn take_uploads(&mut self) -> Vec<(U, Option<(usize, usize)>)> {
        let uploads = std::mem::take(&mut self.uploads).into_iter();
        let all = uploads.zip(std::mem::take(&mut self.origins));
        all.filter_map(|(upload, origin)| Some((upload?, origin)))
            .collect()
    }

    pub(super) fn place(&self, key: &[u8]) -> Result<usize, StoreError> {
        let at = self.places.get(key).copied();
        at.ok_or_else(|| refused("a key that is not among the arguments named as keys"))
    }

    /// The entry of a key whose time is not up.
    pub(super) fn look(&self, key: &[u8]) -> Result<Option<&Entry<L>>, StoreError> {
        let entry = &self.entries[self.place(key)?];
        let over = entry.expiry_ms.is_some_and(|at| at <= self.now_ms);
        Ok(Some(entry).filter(|e| e.value.exists() && !over))
    }

    /// Whether so many more values in pieces may come.
    pub(super) fn room_for_long(&self, more: usize) -> Result<(), StoreError> {
        match self.uploads.iter().flatten().count() + more > EXEC_LONG_MAX {
            true => Err(too_many_long()),
            false => Ok(()),
        }
    }

    pub(super) fn take_upload(&mut self, upload: &mut Option<U>) -> State<L> {
        let nr = self.uploads.len();
        self.uploads.push(upload.take());
        self.origins.push(None);
        self.taken.push(nr);
        State::Upload(nr)
    }

    /// Whether an upload came as an argument.
    pub(super) fn is_brought(&self, nr: usize) -> bool {
        self.origins[nr].is_some() || self.taken.contains(&nr)
    }
}

/// A transaction with more values in pieces than it may have.
pub fn too_many_long() -> StoreError {
    StoreError::err(format!(
        "a transaction brings and makes at most {EXEC_LONG_MAX} values above {} bytes; split it",
        INLINE_MAX_BYTES
    ))
}
