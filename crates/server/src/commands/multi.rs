//! Transactions: MULTI, EXEC, DISCARD, WATCH, UNWATCH. Queued commands are kept in memory of the connections' budget, values
//! above 64 KiB among their arguments as the uploads that they came as. EXEC shows the store all keys they name at once, runs
//! them against an overlay, and makes what they changed one edit: so nobody comes in between, and a crash leaves all of it or
//! nothing. What is not done in a moment, or needs a value in pieces, is for `exec`.

use std::collections::HashMap;
use std::time::Instant;

use super::exec::{self, Ended, error_of};
use super::{Cx, Done, Fault, Flow, ProgressOf, Session, execute, key_positions, ready};
use crate::limits::{
    EXEC_AT_ONCE_MAX_BYTES, EXEC_AT_ONCE_MAX_MS, EXEC_LONG_MAX, MULTI_COMMANDS_MAX,
    WATCHED_KEYS_MAX,
};
use crate::overlay::{Book, Overlay, too_many_long};
use crate::resp::assemble::LargeArg;
use crate::resp::encode;
use crate::store::{Store, Watched};
use crate::table::{self, Command, Id};

/// What a command costs in the queue beside its arguments, bytes.
const QUEUED_COST_BYTES: usize = 64;

/// A command that waits for EXEC.
pub struct Queued<U> {
    pub args: Vec<Box<[u8]>>,
    /// Those that came in pieces; among `args` they are empty.
    pub large: Vec<LargeArg<U>>,
}

/// A transaction that is being queued.
pub struct Multi<U> {
    pub queue: Vec<Queued<U>>,
    /// Something could not be queued: EXEC will refuse.
    broken: bool,
    /// How many values in pieces it has.
    large: usize,
    granted_bytes: usize,
}

impl<U> Default for Multi<U> {
    fn default() -> Self {
        Multi {
            queue: Vec::new(),
            broken: false,
            large: 0,
            granted_bytes: 0,
        }
    }
}

impl<U> Multi<U> {
    /// A command could not be queued: EXEC will refuse.
    pub fn spoil(&mut self) {
        self.broken = true;
    }
}

/// What is left of a transaction when a connection ends or begins anew.
pub fn end<S: Store>(
    multi: &mut Option<Box<Multi<S::Upload>>>,
    session: &mut Session,
    store: &mut S,
) {
    if let Some(multi) = multi.take() {
        let large = multi.queue.into_iter().flat_map(|queued| queued.large);
        for upload in large.filter_map(|l| l.upload) {
            store.upload_abort(upload);
        }
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
pub fn spoil<S: Store>(cx: &mut Cx<'_, S>) {
    if let Some(multi) = cx.multi {
        multi.spoil();
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
    let long = cx.large.len();
    let bytes = args.iter().map(|a| a.len() + 16).sum::<usize>() + QUEUED_COST_BYTES;
    let bytes = bytes + size_of_val(cx.large);
    let full = |multi: &Multi<S::Upload>| multi.queue.len() >= MULTI_COMMANDS_MAX;
    if cx.multi.as_deref().is_none_or(full) {
        return Err(Fault::text(format!(
            "a transaction has at most {MULTI_COMMANDS_MAX} commands; split it"
        )));
    }
    if cx
        .multi
        .as_deref()
        .is_some_and(|m| m.large + long > EXEC_LONG_MAX)
    {
        return Err(too_many_long().into());
    }
    // Once for the queue, and once more for what the commands make of it.
    if !cx.store.grant(2 * bytes) {
        return Err(Fault::Prefixed(
            "OOM",
            "the connections' buffers have no room for the command; send shorter transactions"
                .to_string(),
        ));
    }
    if let Some(multi) = cx.multi {
        multi.granted_bytes += 2 * bytes;
        multi.large += long;
        let large = cx.large.iter_mut().map(|l| LargeArg {
            index: l.index,
            upload: l.upload.take(),
        });
        multi.queue.push(Queued {
            args: args.iter().map(|a| Box::from(*a)).collect(),
            large: large.collect(),
        });
    }
    encode::simple(cx.out, "QUEUED");
    Ok(Flow::Done)
}

/// MULTI
pub fn multi<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if cx.multi.is_some() {
        return Err(Fault::text("MULTI calls can not be nested"));
    }
    *cx.multi = Some(Box::default());
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// DISCARD
pub fn discard<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if cx.multi.is_none() {
        return Err(Fault::text("DISCARD without MULTI"));
    }
    end(cx.multi, cx.session, cx.store);
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
    if cx.multi.is_some() {
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

/// EXEC within EXEC, which is never queued.
pub fn no_exec<S: Store>(_: &mut Cx<'_, S>) -> Done<S> {
    Err(Fault::text("EXEC without MULTI"))
}

/// EXEC
pub fn exec<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if let Some(under_way) = cx.progress.exec.take() {
        return exec::go_on(cx, under_way);
    }
    let Some(multi) = cx.multi.take() else {
        return Err(Fault::text("EXEC without MULTI"));
    };
    if multi.broken {
        *cx.multi = Some(multi);
        end(cx.multi, cx.session, cx.store);
        return Err(Fault::Prefixed(
            "EXECABORT",
            "Transaction discarded because of previous errors.".to_string(),
        ));
    }
    if multi.large > 0 {
        *cx.multi = Some(multi);
        return exec::begin(cx);
    }
    let watched = std::mem::take(&mut cx.session.watched);
    let resp3 = cx.session.resp3;
    let outcome = run(cx, &multi.queue, &watched);
    cx.session.watched = watched;
    // A transaction that must wait is there when it comes again.
    *cx.multi = Some(multi);
    let ran = ready!(outcome.inspect_err(|_| {
        end(cx.multi, cx.session, cx.store);
    }));
    if matches!(ran, Ran::InSteps) {
        cx.session.resp3 = resp3;
        cx.renew_task();
        return exec::begin(cx);
    }
    end(cx.multi, cx.session, cx.store);
    match ran {
        Ran::Through { closes: false } => Ok(Flow::Done),
        Ran::Through { closes: true } => Ok(Flow::Close),
        Ran::Stale | Ran::InSteps => {
            encode::null_array(cx.out, cx.session.resp3);
            Ok(Flow::Done)
        }
    }
}

enum Ran {
    /// The replies are written.
    Through { closes: bool },
    /// A watched key has changed.
    Stale,
    /// It is not one for a moment.
    InSteps,
}

/// The keys that the commands and the watches name, each once; those of the watches first, in their order.
pub fn keys_of<'k, U>(queue: &'k [Queued<U>], watched: &'k [Watched]) -> Vec<&'k [u8]> {
    let mut places: HashMap<&[u8], ()> = HashMap::new();
    let mut keys: Vec<&[u8]> = Vec::new();
    let of_commands = queue.iter().flat_map(|queued| {
        let args = &queued.args;
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

/// Bytes of arguments that the commands brought.
pub fn brought_bytes<U>(queue: &[Queued<U>]) -> usize {
    let args = queue.iter().flat_map(|queued| &queued.args);
    args.map(|arg| arg.len()).sum()
}

/// Runs the commands in one edit of all their keys.
fn run<S: Store>(
    cx: &mut Cx<'_, S>,
    queue: &[Queued<S::Upload>],
    watched: &[Watched],
) -> crate::store::Outcome<Ran> {
    let keys = keys_of(queue, watched);
    let dbsize = cx.store.dbsize();
    let start = cx.out.len();
    let mut tasks = vec![cx.store.task(cx.owner), cx.store.task(cx.owner)];
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
    let brought_bytes = brought_bytes(queue);
    let mut ended: Vec<Ended> = Vec::new();
    session.in_exec = true;
    let ran = store.edit(task, &keys, watched, &mut |seen| {
        let locked = Instant::now();
        out.truncate(start);
        ended.clear();
        // The watched keys come first, in their order.
        let gone = watched
            .iter()
            .zip(&seen.views)
            .any(|(w, view)| w.existed && !view.exists());
        if !seen.unchanged || gone {
            return Ok((Vec::new(), Ran::Stale));
        }
        let mut book = Book::new(&keys, seen, dbsize, brought_bytes);
        let mut overlay = Overlay::<S>::at_once(&mut book, std::mem::take(&mut tasks));
        let mut task = overlay.task(*owner);
        let (mut closes, mut in_steps) = (false, false);
        encode::array(out, queue.len());
        for queued in queue {
            let args: Vec<&[u8]> = queued.args.iter().map(|a| &**a).collect();
            let (mut progress, mut part) = (ProgressOf::default(), Vec::new());
            let began = Instant::now();
            let before = out.len();
            // A command that answers in parts goes on when one has left.
            let flow = loop {
                let mut inner = Cx {
                    store: &mut overlay,
                    task: &mut task,
                    owner: *owner,
                    progress: &mut progress,
                    large: &mut [],
                    session,
                    multi: &mut None,
                    shared,
                    counters,
                    out: &mut part,
                    exec: no_exec,
                };
                let flow = execute(&mut inner, &args);
                out.append(&mut part);
                in_steps = !overlay.is_short()
                    || out.len() - start > EXEC_AT_ONCE_MAX_BYTES
                    || overlay.made_bytes() > brought_bytes + EXEC_AT_ONCE_MAX_BYTES
                    || locked.elapsed().as_millis() > EXEC_AT_ONCE_MAX_MS;
                if in_steps || !matches!(flow, Flow::OutputFull) {
                    break flow;
                }
            };
            progress.end(&mut overlay);
            match flow {
                Flow::Done | Flow::OutputFull => {}
                Flow::Close => closes = true,
                // It waits for what only the store has, or shows a value in pieces.
                _ => in_steps = true,
            }
            if in_steps {
                break;
            }
            ended.push(Ended {
                kind: session.kind,
                ns: began.elapsed().as_nanos() as u64,
                error: error_of(&out[before..]),
            });
        }
        overlay.finish(task);
        tasks = overlay.end();
        match in_steps {
            true => Ok((Vec::new(), Ran::InSteps)),
            false => Ok((book.edits(), Ran::Through { closes })),
        }
    });
    session.in_exec = false;
    tasks.into_iter().for_each(|task| store.finish(task));
    match &ran {
        Ok(crate::store::Step::Done(Ran::Through { .. })) => {
            let args = queue.iter().map(|queued| &queued.args[..]);
            exec::count(cx, &ended, args);
        }
        // One that must wait or begins again comes again, one that failed has its error: neither has replied.
        _ => out.truncate(start),
    }
    ran
}
