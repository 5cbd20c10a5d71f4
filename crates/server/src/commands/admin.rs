//! The small commands about the server: INFO, DBSIZE, FLUSHALL, PING, TIME and the like. Never: settings (`config`).

use super::{Cx, Done, Fault, Flow, SYNTAX, ready};
use crate::info;
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::Store;

/// DBSIZE
pub fn dbsize<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let keys = cx.store.dbsize();
    encode::count(cx.out, keys);
    Ok(Flow::Done)
}

/// FLUSHALL, FLUSHDB [ASYNC | SYNC]
pub fn flush<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match &args[1..] {
        [] => {}
        [how] if how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async") => {}
        _ => return Err(SYNTAX),
    }
    ready!(cx.store.flush_all(cx.task));
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// PING [message]
pub fn ping<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match &args[1..] {
        [] => encode::simple(cx.out, "PONG"),
        [message] => encode::bulk(cx.out, message),
        _ => return Err(super::wrong_arity("ping")),
    }
    Ok(Flow::Done)
}

/// ECHO message
pub fn echo<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    encode::bulk(cx.out, args[1]);
    Ok(Flow::Done)
}

/// INFO [section …]
pub fn info<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let text = info::text(cx.shared, cx.store.now_ms(), &args[1..]);
    encode::verbatim(cx.out, cx.session.resp3, text.as_bytes());
    Ok(Flow::Done)
}

/// SELECT 0
pub fn select<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match integer(args[1]) {
        Some(0) => encode::ok(cx.out),
        Some(n) if i32::try_from(n).is_ok() => return Err(Fault::text("DB index is out of range")),
        _ => return Err(Fault::text("value is not an integer or out of range")),
    }
    Ok(Flow::Done)
}

/// TIME
pub fn time<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    encode::array(cx.out, 2);
    encode::bulk(cx.out, since.as_secs().to_string().as_bytes());
    encode::bulk(cx.out, since.subsec_micros().to_string().as_bytes());
    Ok(Flow::Done)
}

/// SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE]: every stop is a clean one, so all of them mean the same.
pub fn shutdown<L>(args: &[&[u8]]) -> Result<Flow<L>, Fault> {
    let known: [&[u8]; 4] = [b"nosave", b"save", b"now", b"force"];
    for option in &args[1..] {
        if option.eq_ignore_ascii_case(b"abort") {
            return Err(Fault::text("No shutdown in progress."));
        }
        if !known.iter().any(|k| option.eq_ignore_ascii_case(k)) {
            return Err(SYNTAX);
        }
    }
    Ok(Flow::Shutdown)
}

/// Lines of text, one of HELP's say.
pub(super) fn lines<S: Store>(cx: &mut Cx<'_, S>, lines: &[&str]) {
    encode::array(cx.out, lines.len());
    for line in lines {
        encode::simple(cx.out, line);
    }
}
