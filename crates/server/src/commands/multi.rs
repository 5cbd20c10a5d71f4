//! Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH. Queued commands are kept in memory of the connections' budget. EXEC
//! shows the store all keys they name at once, runs them against an overlay, and makes what they changed one edit: so
//! nobody comes in between, and a crash leaves all of it or nothing.

use std::collections::HashMap;
use std::time::Instant;

use super::{Cx, Done, Fault, Flow, Progress, Session, execute, key_positions, ready};
use crate::limits::{EXEC_REPLY_MAX_BYTES, INLINE_MAX_BYTES, MULTI_COMMANDS_MAX, WATCHED_KEYS_MAX};
use crate::overlay::Overlay;
use crate::resp::encode;
use crate::store::{Step, Store, StoreError, Watched};
use crate::table::{self, Command, Id};

/// What a command costs in the queue beside its arguments, bytes.
const QUEUED_COST_BYTES: usize = 64;

/// A transaction that is being queued.
#[derive(Default)]
pub struct Multi {
    queue: Vec<Vec<Box<[u8]>>>,
    /// Something could not be queued: EXEC will refuse.
    broken: bool,
    granted_bytes: usize,
}

/// What is left of a transaction when a connection ends or begins anew.
pub fn end<S: Store>(session: &mut Session, store: &mut S) {
    if let Some(multi) = session.multi.take() {
        store.ungrant(multi.granted_bytes);
    }
    for watched in session.watched.drain(..) {
        store.unwatch(watched);
    }
}

/// Whether a command is executed at once although a transaction is being queued.
pub fn is_immediate(id: Id) -> bool {
    matches!(
        id,
        Id::Exec | Id::Discard | Id::Multi | Id::Watch | Id::Quit | Id::Reset
    )
}

/// A command cannot be queued: the transaction is broken.
#[cold]
pub fn spoil(session: &mut Session) {
    if let Some(multi) = &mut session.multi {
        multi.broken = true;
    }
}

/// Commands over all keys, which an edit of some keys cannot do.
fn needs_all_keys(id: Id) -> bool {
    matches!(
        id,
        Id::Flushall | Id::Flushdb | Id::Keys | Id::Scan | Id::Randomkey | Id::Shutdown
    )
}

/// Queues a command.
#[cold]
pub fn queue<S: Store>(cx: &mut Cx<'_, S>, command: &Command, args: &[&[u8]]) -> Done<S> {
    if needs_all_keys(command.id) {
        return Err(Fault::text("Command not allowed inside a transaction"));
    }
    if !cx.large.is_empty() {
        return Err(Fault::text(format!(
            "a value within a transaction has at most {INLINE_MAX_BYTES} bytes; set longer ones outside of it"
        )));
    }
    let bytes = args.iter().map(|a| a.len() + 16).sum::<usize>() + QUEUED_COST_BYTES;
    let full = |multi: &Multi| multi.queue.len() >= MULTI_COMMANDS_MAX;
    if cx.session.multi.as_deref().is_none_or(full) {
        return Err(Fault::text(format!(
            "a transaction has at most {MULTI_COMMANDS_MAX} commands; split it"
        )));
    }
    // Once for the queue, and once more for what the commands make of it.
    if !cx.store.grant(2 * bytes) {
        return Err(Fault::Prefixed(
            "OOM",
            "the connections' buffers have no room for the command; send shorter transactions"
                .to_string(),
        ));
    }
    if let Some(multi) = &mut cx.session.multi {
        multi.granted_bytes += 2 * bytes;
        multi
            .queue
            .push(args.iter().map(|a| Box::from(*a)).collect());
    }
    encode::simple(cx.out, "QUEUED");
    Ok(Flow::Done)
}

/// MULTI
pub fn multi<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if cx.session.multi.is_some() {
        return Err(Fault::text("MULTI calls can not be nested"));
    }
    cx.session.multi = Some(Box::default());
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// DISCARD
pub fn discard<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if cx.session.multi.is_none() {
        return Err(Fault::text("DISCARD without MULTI"));
    }
    end(cx.session, cx.store);
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// UNWATCH
pub fn unwatch<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    for watched in cx.session.watched.drain(..) {
        cx.store.unwatch(watched);
    }
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// WATCH key [key …]
pub fn watch<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    if cx.session.multi.is_some() {
        return Err(Fault::text("WATCH inside MULTI is not allowed"));
    }
    while let Some(key) = args.get(cx.progress.next as usize + 1) {
        if !cx.progress.begun {
            let known = cx.session.watched.iter().any(|w| *w.key == **key);
            if known {
                cx.progress.next += 1;
                continue;
            }
            if cx.session.watched.len() >= WATCHED_KEYS_MAX {
                return Err(Fault::text(format!(
                    "a connection watches at most {WATCHED_KEYS_MAX} keys; UNWATCH some"
                )));
            }
            let watched = cx.store.watch(key);
            cx.session.watched.push(watched);
            cx.progress.begun = true;
        }
        let existed = ready!(cx.store.exists(cx.task, &[key])) > 0;
        if let Some(watched) = cx.session.watched.last_mut() {
            watched.existed = existed;
        }
        cx.progress.begun = false;
        cx.renew_task();
        cx.progress.next += 1;
    }
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// EXEC
pub fn exec<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let Some(multi) = cx.session.multi.take() else {
        return Err(Fault::text("EXEC without MULTI"));
    };
    if multi.broken {
        cx.session.multi = Some(multi);
        end(cx.session, cx.store);
        return Err(Fault::Prefixed(
            "EXECABORT",
            "Transaction discarded because of previous errors.".to_string(),
        ));
    }
    let watched = std::mem::take(&mut cx.session.watched);
    let outcome = run(cx, &multi.queue, &watched);
    cx.session.watched = watched;
    // A transaction that must wait is there when it comes again.
    cx.session.multi = Some(multi);
    let ran = ready!(outcome.inspect_err(|_| {
        end(cx.session, cx.store);
    }));
    end(cx.session, cx.store);
    match ran {
        Ran::Through { closes: false } => Ok(Flow::Done),
        Ran::Through { closes: true } => Ok(Flow::Close),
        Ran::Stale => {
            encode::null_array(cx.out, cx.session.resp3);
            Ok(Flow::Done)
        }
    }
}

/// What became of a command of a transaction.
struct Ended {
    kind: u16,
    ns: u64,
    /// The first word of its error.
    error: Option<String>,
}

/// The first word of a reply that is an error.
fn error_of(reply: &[u8]) -> Option<String> {
    let word = reply.strip_prefix(b"-")?.split(|b| *b == b' ').next()?;
    Some(String::from_utf8_lossy(word).into_owned())
}

enum Ran {
    /// The replies are written.
    Through { closes: bool },
    /// A watched key has changed.
    Stale,
}

/// The keys that the commands and the watches name, each once.
fn keys_of<'k>(queue: &'k [Vec<Box<[u8]>>], watched: &'k [Watched]) -> Vec<&'k [u8]> {
    let mut places: HashMap<&[u8], ()> = HashMap::new();
    let mut keys: Vec<&[u8]> = Vec::new();
    let of_commands = queue.iter().flat_map(|args| {
        let command = table::find(&args[0]);
        let places: Vec<usize> =
            command.map_or(Vec::new(), |c| key_positions(c, args.len()).collect());
        places.into_iter().map(|at| &*args[at])
    });
    for key in watched.iter().map(|w| &*w.key).chain(of_commands) {
        if places.insert(key, ()).is_none() {
            keys.push(key);
        }
    }
    keys
}

/// Runs the commands in one edit of all their keys.
fn run<S: Store>(
    cx: &mut Cx<'_, S>,
    queue: &[Vec<Box<[u8]>>],
    watched: &[Watched],
) -> crate::store::Outcome<Ran> {
    let keys = keys_of(queue, watched);
    let dbsize = cx.store.dbsize();
    let start = cx.out.len();
    let Cx {
        store,
        task,
        owner,
        session,
        shared,
        counters,
        out,
        ..
    } = cx;
    let brought_bytes = queue.iter().flatten().map(|arg| arg.len()).sum();
    let mut ended: Vec<Ended> = Vec::new();
    session.in_exec = true;
    let ran = store.edit(task, &keys, watched, &mut |seen| {
        out.truncate(start);
        ended.clear();
        // The watched keys come first, in their order.
        let gone = watched.iter().zip(&seen.views).any(|(w, view)| w.existed && !view.exists());
        if !seen.unchanged || gone {
            return Ok((Vec::new(), Ran::Stale));
        }
        let mut overlay = Overlay::new::<S>(&keys, seen, dbsize, brought_bytes);
        let mut closes = false;
        encode::array(out, queue.len());
        for args in queue {
            let args: Vec<&[u8]> = args.iter().map(|a| &**a).collect();
            let before = out.len();
            let (mut progress, mut part) = (Progress::default(), Vec::new());
            let began = Instant::now();
            // A command that answers in parts goes on when one has left.
            let flow = loop {
                let mut inner = Cx {
                    store: &mut overlay,
                    task: &mut (),
                    owner: *owner,
                    progress: &mut progress,
                    large: &mut [],
                    session,
                    shared,
                    counters,
                    out: &mut part,
                };
                let flow = execute(&mut inner, &args);
                out.append(&mut part);
                let fits = out.len() - start <= EXEC_REPLY_MAX_BYTES;
                if !(fits && matches!(flow, Flow::OutputFull)) {
                    break flow;
                }
            };
            ended.push(Ended {
                kind: session.kind,
                ns: began.elapsed().as_nanos() as u64,
                error: error_of(&out[before..]),
            });
            match flow {
                Flow::Done | Flow::OutputFull => {}
                Flow::Close => closes = true,
                _ => {
                    out.truncate(before);
                    let text = format!(
                        "the value is longer than {INLINE_MAX_BYTES} bytes; read it outside of the transaction"
                    );
                    encode::error(out, "ERR", &text);
                }
            }
            if out.len() - start > EXEC_REPLY_MAX_BYTES {
                out.truncate(start);
                return Err(StoreError::err(format!(
                    "the replies of the transaction are longer than {EXEC_REPLY_MAX_BYTES} bytes together; nothing was changed; \
                     split it"
                )));
            }
        }
        Ok((overlay.edits(), Ran::Through { closes }))
    });
    session.in_exec = false;
    if matches!(ran, Ok(Step::Done(_))) {
        // As commands they were counted when they came.
        for Ended { kind, ns, error } in ended {
            counters.calls.took(kind, ns);
            if let Some(prefix) = error {
                shared.count_error(counters, &prefix);
                counters.calls.failed(kind, true);
            }
        }
    }
    // One that must wait comes again, and one that failed has its error: neither has replied.
    if !matches!(ran, Ok(Step::Done(_))) {
        out.truncate(start);
    }
    ran
}
