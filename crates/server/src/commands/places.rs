//! The commands that move keys and tell about them: RENAME, COPY, OBJECT, RANDOMKEY, KEYS.

use super::long::{self, Job, Keeps, Plan, is_long};
use super::options::int_arg;
use super::part::too_long_to_change;
use super::scan::Turn;
use super::{Cx, Done, Fault, Flow, SYNTAX, ready, unknown_subcommand, wrong_arity};
use crate::limits::{KEYS_GRANT_BYTES, KEYS_STEPS_MAX};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::{Edit, Held, Step, Store, StoreError, Value, View};

const NO_SUCH_KEY: &str = "no such key";

/// What puts the value of key `from` under another key.
fn moved<L>(view: View<L>, from: usize) -> Option<Edit> {
    match view.value {
        Held::Absent => None,
        Held::Inline(value) => Some(Edit::Put {
            value,
            expiry_ms: view.expiry_ms,
            meta: view.meta,
        }),
        Held::Large(_) => Some(Edit::Bind {
            from,
            expiry_ms: view.expiry_ms,
            meta: view.meta,
        }),
    }
}

/// RENAME key newkey, RENAMENX key newkey
pub fn rename<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], if_absent: bool) -> Done<S> {
    let same = args[1] == args[2];
    let keys = &args[1..if same { 2 } else { 3 }];
    let done = ready!(cx.store.edit(cx.task, keys, &[], &mut |seen| {
        let mut views = seen.views.into_iter();
        let (source, target) = (views.next(), views.next());
        let source = source.filter(View::exists);
        let source = source.ok_or_else(|| StoreError::err(NO_SUCH_KEY))?;
        if same || (if_absent && target.is_some_and(|view| view.exists())) {
            return Ok((Vec::new(), !if_absent));
        }
        let edits = moved(source, 0).map(|edit| vec![(1, edit), (0, Edit::Delete)]);
        Ok((edits.unwrap_or_default(), true))
    }));
    match if_absent {
        true => encode::int(cx.out, i64::from(done)),
        false => encode::ok(cx.out),
    }
    Ok(Flow::Done)
}

/// COPY source destination [DB 0] [REPLACE]
pub fn copy<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let mut replace = false;
    let mut rest = &args[3..];
    while let [option, more @ ..] = rest {
        if option.eq_ignore_ascii_case(b"REPLACE") {
            replace = true;
            rest = more;
        } else if option.eq_ignore_ascii_case(b"DB") && !more.is_empty() {
            if int_arg(more[0])? != 0 {
                return Err(Fault::text("DB index is out of range"));
            }
            rest = &more[1..];
        } else {
            return Err(SYNTAX);
        }
    }
    if args[1] == args[2] {
        return Err(Fault::text("source and destination objects are the same"));
    }
    if cx.progress.long.is_some() {
        return copy_long(cx, args, replace);
    }
    let done = ready!(cx.store.edit(cx.task, &args[1..3], &[], &mut |seen| {
        let taken = seen.views[1].exists();
        let source = seen.views.into_iter().next().filter(View::exists);
        let Some(source) = source.filter(|_| !taken || replace) else {
            return Ok((Vec::new(), Some(false)));
        };
        if is_long::<S>(&source.value, 0) {
            return Ok((Vec::new(), None));
        }
        if matches!(source.value, Held::Large(_)) {
            return Err(too_long_to_change());
        }
        Ok((
            moved(source, 0).map(|edit| (1, edit)).into_iter().collect(),
            Some(true),
        ))
    }));
    let Some(done) = done else {
        cx.renew_task();
        return copy_long(cx, args, replace);
    };
    encode::int(cx.out, i64::from(done));
    Ok(Flow::Done)
}

/// COPY of a value in pieces.
fn copy_long<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]], replace: bool) -> Done<S> {
    let job = Job {
        keys: &args[1..3],
        arg: &[],
        plan: &|views| {
            let plan = |len| Plan {
                target: 1,
                keeps: Keeps::Of(0),
                ..Plan::patch(len, 0..0)
            };
            let len = long::len_of::<S>(&views[0]);
            Ok(len.filter(|_| replace || !views[1].exists()).map(plan))
        },
        patch: &|_, _, reply| encode::int(reply, 1),
    };
    long::run(cx, &job)
}

/// OBJECT ENCODING | REFCOUNT | IDLETIME | FREQ key
pub fn object<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let sub = args[1].to_ascii_lowercase();
    if sub == b"help" && args.len() == 2 {
        super::admin::lines(
            cx,
            &[
                "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "ENCODING <key>",
                "    Return the kind of internal representation used in order to store the value",
                "    associated with a <key>.",
                "REFCOUNT <key>",
                "    Return the number of references of the value associated with the specified",
                "    <key>.",
                "HELP",
                "    Prints this help.",
            ],
        );
        return Ok(Flow::Done);
    }
    let known: [&[u8]; 4] = [b"encoding", b"refcount", b"idletime", b"freq"];
    if !known.contains(&&sub[..]) {
        return Err(unknown_subcommand("OBJECT", args[1]));
    }
    if args.len() != 3 {
        let sub = String::from_utf8_lossy(&sub);
        return Err(wrong_arity(&format!("object|{sub}")));
    }
    let encoding = ready!(cx.store.get(cx.task, args[2], |value| match value {
        Value::Absent => None,
        Value::Large(_) => Some("raw"),
        Value::Inline(bytes) if integer(bytes).is_some() => Some("int"),
        Value::Inline(bytes) if bytes.len() <= 44 => Some("embstr"),
        Value::Inline(_) => Some("raw"),
    }));
    match (encoding, sub.as_slice()) {
        (None, _) => encode::null(cx.out, cx.session.resp3),
        (Some(encoding), b"encoding") => encode::bulk(cx.out, encoding.as_bytes()),
        // No value is shared between keys.
        (Some(_), b"refcount") => encode::int(cx.out, 1),
        (Some(_), b"freq") => {
            return Err(Fault::text(
                "An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching \
                 between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
        (Some(_), _) => {
            return Err(Fault::text(
                "the time of a key's last use is not kept; INFO tiers tells what was used of each terrace",
            ));
        }
    }
    Ok(Flow::Done)
}

/// RANDOMKEY: in steps, between which others are served, where much has expired.
pub fn randomkey<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    for _ in 0..KEYS_STEPS_MAX {
        let out = &mut *cx.out;
        let mut shown = |key: &[u8]| encode::bulk(out, key);
        let found = ready!(
            cx.store
                .random_key(cx.task, &mut cx.progress.next, &mut shown)
        );
        if found {
            return Ok(Flow::Done);
        }
        // Nothing is left to go through.
        if cx.progress.next == 0 {
            encode::null(cx.out, cx.session.resp3);
            return Ok(Flow::Done);
        }
    }
    Ok(Flow::OutputFull)
}

/// KEYS pattern: gathers in steps, between which others are served, and in memory of the connections' budget. When that
/// is used up, it is refused: SCAN answers in parts.
pub fn keys<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let mut turn = Turn::of(args[1])?;
    while turn.goes_on() {
        if cx.progress.found.capacity() < cx.progress.found.len() + KEYS_GRANT_BYTES / 2
            && !grow(cx)
        {
            let bytes = cx.progress.granted_bytes;
            cx.progress.found = Vec::new();
            cx.give_back();
            return Err(Fault::Prefixed(
                "OOM",
                format!(
                    "the keys that match take more than the {bytes} bytes of buffers that can be had; use SCAN, or a narrower \
                     pattern"
                ),
            ));
        }
        let found = &mut cx.progress.found;
        let (before, from) = (found.len(), cx.progress.next);
        let mut matched = 0;
        let asked = turn.next_keys();
        let step = cx.store.scan(cx.task, from, asked, &mut |key| {
            if turn.matches(key) {
                matched += 1;
                encode::bulk(found, key);
            }
        });
        let next = match step? {
            Step::Done(next) => next,
            Step::Wait(wait) => {
                cx.progress.found.truncate(before);
                return Ok(Flow::Wait(wait));
            }
        };
        cx.renew_task();
        cx.progress.seen += matched;
        cx.progress.next = next;
        if next == 0 {
            encode::array(cx.out, cx.progress.seen as usize);
            let found = std::mem::take(&mut cx.progress.found);
            cx.out.extend_from_slice(&found);
            cx.give_back();
            return Ok(Flow::Done);
        }
    }
    Ok(Flow::OutputFull)
}

/// Doubles what the keys may take.
fn grow<S: Store>(cx: &mut Cx<'_, S>) -> bool {
    let more = cx.progress.found.capacity().max(KEYS_GRANT_BYTES);
    // Once for gathering and once for the reply.
    if !cx.store.grant(2 * more) {
        return false;
    }
    cx.progress.granted_bytes += 2 * more;
    cx.progress.found.reserve_exact(more);
    true
}
