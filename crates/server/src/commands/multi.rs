//! Transactions that are being queued: MULTI, DISCARD, WATCH, UNWATCH. Queued commands are kept in memory of the connections' budget,
//! values above 64 KiB among their arguments as the uploads that they came as. Never: runs one; EXEC is `exec`'s.

use std::collections::HashMap;

use super::{Cx, Done, Fault, Flow, key_positions, ready};
use crate::limits::{EXEC_LONG_MAX, MULTI_COMMANDS_MAX, WATCH_COST_BYTES, WATCHED_KEYS_MAX};
use crate::overlay::too_many_long;
use crate::resp::assemble::LargeArg;
use crate::resp::encode;
use crate::session::Session;
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
    pub broken: bool,
    /// How many values in pieces it has.
    pub large: usize,
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

    /// What it was granted.
    pub fn granted_bytes(&self) -> usize {
        self.granted_bytes
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
    session.watched.end(store);
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
    cx.session.watched.end(cx.store);
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
            let known = cx.session.watched.keys.iter().any(|w| *w.key == **key);
            if known {
                cx.progress.next += 1;
                continue;
            }
            watch_one(cx, key)?;
            cx.progress.begun = true;
        }
        let existed = ready!(cx.store.exists(cx.task, &[key])) > 0;
        if let Some(watched) = cx.session.watched.keys.last_mut() {
            watched.existed = existed;
        }
        cx.progress.begun = false;
        cx.renew_task();
        cx.progress.next += 1;
    }
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// Begins to watch a key, which is kept here and in the store.
fn watch_one<S: Store>(cx: &mut Cx<'_, S>, key: &[u8]) -> Result<(), Fault> {
    if cx.session.watched.keys.len() >= WATCHED_KEYS_MAX {
        return Err(Fault::text(format!(
            "a connection watches at most {WATCHED_KEYS_MAX} keys; UNWATCH some"
        )));
    }
    let bytes = 2 * key.len() + WATCH_COST_BYTES;
    if !cx.store.grant(bytes) {
        return Err(Fault::Prefixed(
            "OOM",
            "the connections' buffers have no room for the key; watch fewer or shorter ones"
                .to_string(),
        ));
    }
    cx.session.watched.granted_bytes += bytes;
    let watched = cx.store.watch(key);
    cx.session.watched.keys.push(watched);
    Ok(())
}

/// EXEC within EXEC, which is never queued.
pub fn no_exec<S: Store>(_: &mut Cx<'_, S>) -> Done<S> {
    Err(Fault::text("EXEC without MULTI"))
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
