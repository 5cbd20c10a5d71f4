//! A key's value with all that is kept with it, whatever it is made of.
//!
//! Promises: an entry without what memcached keeps is shown as one with client flags 0 and a token made of its bytes. Never: reads the
//! pieces of a value.

use crate::Value;
use crate::meta::{Meta, digest, meta_of, user_value};
use crate::shared::{LargeRef, Shared, binder};
use std::sync::Arc;
use terrace_log::Kind;
use terrace_log::entry::Entry;

/// A value with all that is kept with it.
#[derive(Debug)]
pub struct Item<'a> {
    /// The value; never absent.
    pub value: Value<'a>,
    /// What memcached keeps with it, if it wrote it.
    pub meta: Option<Meta>,
    /// When it expires, ms since 1970.
    pub expiry_ms: Option<u64>,
    /// How often it was used lately, 0 to 3, this time not counted.
    pub heat: u8,
}

/// The value of an entry; a hold on its pieces, if it has any.
pub(crate) fn value_of<'a>(
    shared: &Arc<Shared>,
    piece_bytes: usize,
    e: Option<Entry<'a>>,
) -> Value<'a> {
    match e {
        None => Value::Absent,
        Some(e) if e.kind() == Kind::Binder => {
            match LargeRef::hold(shared, user_value(&e), piece_bytes) {
                Some(large) => Value::Large(large),
                None => Value::Absent,
            }
        }
        Some(e) => Value::Inline(user_value(&e)),
    }
}

pub(crate) fn item_of<'a>(
    shared: &Arc<Shared>,
    piece_bytes: usize,
    e: Entry<'a>,
    heat: u8,
) -> Item<'a> {
    Item {
        value: value_of(shared, piece_bytes, Some(e)),
        meta: meta_of(&e),
        expiry_ms: e.expiry_ms(),
        heat,
    }
}

/// The token that stands for the present value: the one kept with it, else one made of its bytes, so that a value that
/// Redis's commands wrote has one too.
pub(crate) fn cas_of(value: &Value<'_>, meta: Option<Meta>) -> u64 {
    match (meta, value) {
        (Some(meta), _) => meta.cas,
        (None, Value::Inline(bytes)) => digest(bytes),
        (None, Value::Large(large)) => large.cas(),
        (None, Value::Absent) => 0,
    }
}

/// The length of an entry's value in bytes, whatever it is made of.
pub(crate) fn len_of(e: &Entry<'_>) -> u64 {
    match e.kind() {
        Kind::Binder => binder(user_value(e)).map_or(0, |b| b.len),
        _ => user_value(e).len() as u64,
    }
}
