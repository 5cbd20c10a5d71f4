//! The commands on keys as such: deleting, asking for them, and their expiry.

use super::options::{expire_command_at, expire_cond};
use super::{Cx, Done, Flow, ready};
use crate::resp::encode;
use crate::store::{ExpireCond, ExpiryOf, Outcome, Step, Store};

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
    let conds = expire_cond(&args[3..])?;
    let at = expire_command_at(args[2], unit_ms, relative, cx.store.now_ms(), name)?;
    let cond = match conds.as_slice() {
        [] => ExpireCond::Always,
        [one] => *one,
        // XX beside GT or LT. GT never holds for a key without an expiry, so XX adds nothing to it.
        several if several.contains(&ExpireCond::Gt) => ExpireCond::Gt,
        _ => {
            // LT holds for a key without an expiry, which XX shuts out.
            if !matches!(ready!(expiry_beforehand(cx, args[1])), ExpiryOf::At(_)) {
                encode::int(cx.out, 0);
                return Ok(Flow::Done);
            }
            ExpireCond::Lt
        }
    };
    let done = ready!(cx.store.expire(cx.task, args[1], Some(at), cond));
    encode::int(cx.out, i64::from(done));
    Ok(Flow::Done)
}

/// The expiry, looked up with a task of its own, since the command's task belongs to the call that follows.
fn expiry_beforehand<S: Store>(cx: &mut Cx<'_, S>, key: &[u8]) -> Outcome<ExpiryOf> {
    let mut look = match cx.progress.window.pop() {
        Some((_, task)) => task,
        None => cx.store.task(cx.owner),
    };
    let outcome = cx.store.expiry(&mut look, key);
    match outcome {
        Ok(Step::Wait(_)) => cx.progress.window.push((0, look)),
        _ => cx.store.finish(look),
    }
    outcome
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
            let left = at.saturating_sub(cx.store.now_ms()) as i64;
            match shown {
                Shown::LeftSeconds => (left + 500) / 1000,
                Shown::LeftMillis => left,
                Shown::AtSeconds => (at as i64).saturating_add(500) / 1000,
                Shown::AtMillis => at as i64,
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
