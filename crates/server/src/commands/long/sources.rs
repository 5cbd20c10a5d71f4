//! What the result of a change of values in pieces is made of. Never: reads a piece; `pieces` does.

use crate::store::{Held, Store, View};

/// The sources, held.
pub struct Sources<L> {
    /// The keys at one moment; none before they were looked at.
    pub values: Vec<View<L>>,
    /// The argument, if it came in pieces.
    pub arg: Option<Held<L>>,
}

impl<L> Default for Sources<L> {
    fn default() -> Self {
        Sources {
            values: Vec::new(),
            arg: None,
        }
    }
}

impl<L> Sources<L> {
    /// Gives back all that it holds.
    pub fn end<S: Store<Large = L>>(self, store: &mut S) {
        let values = self.values.into_iter().map(|view| view.value);
        for value in values.chain(self.arg) {
            if let Held::Large(large) = value {
                store.release(large);
            }
        }
    }

    /// The length of a key's value; none: no such key.
    pub fn len_of<S: Store<Large = L>>(&self, at: usize) -> Option<u64> {
        self.values.get(at).and_then(len_of::<S>)
    }
}

/// The length of a value in a view; none: no such key.
pub fn len_of<S: Store>(view: &View<S::Large>) -> Option<u64> {
    match &view.value {
        Held::Absent => None,
        Held::Inline(bytes) => Some(bytes.len() as u64),
        Held::Large(large) => Some(S::large_len(large)),
    }
}
