//! The commands on keys as such: deleting, asking for them, and their expiry.

use super::options::{expire_command_at, expire_cond};
use super::{Cx, Done, Flow, ready};
use crate::resp::encode;
use crate::store::{ExpireCond, ExpiryOf, Store};

/// DEL, UNLINK
pub fn del<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let deleted = ready!(cx.store.del(cx.task, &args[1..]));
    encode::count(cx.out, deleted);
    Ok(Flow::Done)
}

/// EXISTS, TOUCH
pub fn exists<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let found = ready!(cx.store.exists(cx.task, &args[1..]));
    encode::count(cx.out, found);
    Ok(Flow::Done)
}

/// EXPIRE, PEXPIRE, EXPIREAT, PEXPIREAT
pub fn expire<S: Store>(
    cx: &mut Cx<'_, S>,
    args: &[&[u8]],
    name: &'static str,
    unit_ms: i64,
    relative: bool,
) -> Done<S> {
    // Redis reads the options before the time.
    let cond = expire_cond(&args[3..])?;
    let at = expire_command_at(args[2], unit_ms, relative, cx.store.now_ms(), name)?;
    let done = ready!(cx.store.expire(cx.task, args[1], Some(at), cond));
    encode::int(cx.out, i64::from(done));
    Ok(Flow::Done)
}

/// PERSIST
pub fn persist<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let done = ready!(cx.store.expire(cx.task, args[1], None, ExpireCond::Always));
    encode::int(cx.out, i64::from(done));
    Ok(Flow::Done)
}

/// How a key's expiry is told.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// TTL
    LeftSeconds,
    /// PTTL
    LeftMillis,
    /// EXPIRETIME
    AtSeconds,
    /// PEXPIRETIME
    AtMillis,
}

/// TTL, PTTL, EXPIRETIME, PEXPIRETIME
pub fn ttl<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], shown: Shown) -> Done<S> {
    let expiry = ready!(cx.store.expiry(cx.task, args[1]));
    let answer = match expiry {
        ExpiryOf::Absent => -2,
        ExpiryOf::Never => -1,
        ExpiryOf::At(at) => {
            // One of an earlier version may lie beyond what a reply can say.
            let told = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
            let left = told(at.saturating_sub(cx.store.now_ms()));
            match shown {
                Shown::LeftSeconds => left.saturating_add(500) / 1000,
                Shown::LeftMillis => left,
                Shown::AtSeconds => told(at).saturating_add(500) / 1000,
                Shown::AtMillis => told(at),
            }
        }
    };
    encode::int(cx.out, answer);
    Ok(Flow::Done)
}

/// TYPE
pub fn key_type<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let found = ready!(cx.store.exists(cx.task, &args[1..2]));
    encode::simple(cx.out, if found > 0 { "string" } else { "none" });
    Ok(Flow::Done)
}
