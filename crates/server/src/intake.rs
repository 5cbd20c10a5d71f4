//! Takes in a command that comes in parts: drives the assembly, brings long values into the store piece by piece, and
//! executes the whole. What must wait is left in the connection's state and gone on with; what is refused gives its
//! uploads and buffers back at once.

use crate::conn::{Block, Conn};
use crate::env::Env;
use crate::execute::execute_args;
use crate::limits::{ARGS_FREE, INLINE_MAX_BYTES, KEY_MAX_BYTES, PIECE_BYTES};
use crate::memcached::{BAD_CHUNK, TOO_LARGE, say, unlinked};
use crate::resp::assemble::{Assembly, Event};
use crate::resp::encode;
use crate::session::Reply;
use crate::step::{block_of, protocol_error, was_executed};
use crate::store::{Step, Store, StoreError};
use crate::table;

/// Hands `data` to the assembly and does what it asks for.
pub(crate) fn feed<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, data: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let Some(work) = conn.work.as_mut() else {
            return at;
        };
        let Some(assembly) = work.assembly.as_mut() else {
            return at;
        };
        let (taken, event) = assembly.step(&data[at..]);
        at += taken;
        match event {
            Event::More => {
                conn.need_more = true;
                return at;
            }
            Event::Grow(capacity) => {
                let bytes = assembly.growth_bytes(capacity);
                if !env.budget.ask(&mut env.store, bytes) {
                    conn.block = Block::Grant;
                    return at;
                }
                assembly.grow(capacity);
                work.assembly_granted_bytes += bytes;
            }
            Event::NeedBuffer => {
                if !env.budget.ask(&mut env.store, PIECE_BYTES) {
                    conn.block = Block::Grant;
                    return at;
                }
                assembly.give_buffer();
                work.assembly_granted_bytes += PIECE_BYTES;
            }
            Event::LargeBegins { index, len_bytes } => {
                if !begin_upload(env, conn, index, len_bytes) {
                    return at;
                }
            }
            Event::PieceFull => {
                if !upload_piece(env, conn) {
                    return at;
                }
            }
            Event::Complete => {
                execute_assembled(env, conn);
                return at;
            }
            Event::Bad(text) => {
                protocol_error(env, conn, text);
                return at;
            }
        }
    }
}

/// Why a long argument is refused, if it is.
fn refusal<U>(assembly: &Assembly<U>, index: u32, len_bytes: u64, most: u64) -> Option<String> {
    let Some(name) = assembly.name() else {
        return Some(format!(
            "ERR unknown command: its name would be {len_bytes} bytes long"
        ));
    };
    let shown = String::from_utf8_lossy(&name[..name.len().min(128)]).to_lowercase();
    let Some(command) = table::find(name) else {
        let args: Vec<String> = (1..assembly.args_len().min(4))
            .filter_map(|i| assembly.arg(i))
            .map(|arg| format!("'{}' ", String::from_utf8_lossy(&arg[..arg.len().min(40)])))
            .collect();
        let name = String::from_utf8_lossy(&name[..name.len().min(128)]);
        return Some(format!(
            "ERR unknown command '{name}', with args beginning with: {}",
            args.concat()
        ));
    };
    if !command.takes(assembly.args_total()) {
        return Some(format!(
            "ERR wrong number of arguments for '{shown}' command"
        ));
    }
    if !command.large.allows(index) {
        return Some(format!(
            "ERR argument {index} of '{shown}' is {len_bytes} bytes long; at most {INLINE_MAX_BYTES} are allowed there \
             (keys: {KEY_MAX_BYTES}); send a shorter one"
        ));
    }
    (len_bytes > most).then(|| {
        format!("ERR value is {len_bytes} bytes long; at most {most} are allowed; split it over several keys")
    })
}

/// Begins to bring a long argument in; false: something must wait first.
fn begin_upload<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    index: u32,
    len_bytes: u64,
) -> bool {
    let (key, memcached) = (conn.key, conn.session.memcached);
    let (trusted, most) = (conn.session.trusted, env.shared.max_value_bytes);
    let work = conn.work();
    let Some(assembly) = work.assembly.as_mut() else {
        return false;
    };
    let refused = match memcached {
        false if !trusted => Some("NOAUTH Authentication required.".to_string()),
        true if !trusted => Some("CLIENT_ERROR unauthenticated".to_string()),
        true if len_bytes > most => Some(TOO_LARGE.to_string()),
        true => None,
        false => refusal(assembly, index, len_bytes, most),
    };
    if let Some(text) = refused {
        let key = (text == TOO_LARGE).then(|| {
            let words = (0..assembly.args_len()).filter_map(|i| assembly.arg(i));
            // Of a memcached line, which is short.
            unlinked(&words.collect::<Vec<_>>())
        });
        let key = key.flatten();
        refuse(env, conn, text);
        if let Some(key) = key {
            instead(env, conn, &[TOO_LARGE.as_bytes(), &key]);
        }
        return true;
    }
    let mut task = work
        .upload_task
        .take()
        .unwrap_or_else(|| env.store.task(key));
    match env.store.upload_begin(&mut task, len_bytes) {
        Ok(Step::Done(upload)) => {
            env.store.finish(task);
            assembly.accept(upload);
            true
        }
        Ok(Step::Wait(wait)) => {
            work.upload_task = Some(task);
            conn.block = block_of(wait);
            false
        }
        Err(e) => {
            env.store.finish(task);
            let text = error_text(e, conn.session.memcached);
            refuse(env, conn, text);
            true
        }
    }
}

fn upload_piece<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> bool {
    let key = conn.key;
    let work = conn.work();
    let Some(assembly) = work.assembly.as_mut() else {
        return false;
    };
    let Some((upload, piece)) = assembly.piece() else {
        return false;
    };
    let mut task = work
        .upload_task
        .take()
        .unwrap_or_else(|| env.store.task(key));
    match env.store.upload_piece(&mut task, upload, piece) {
        Ok(Step::Done(())) => {
            env.store.finish(task);
            env.budget.returned = true;
            let freed = assembly.piece_done();
            work.assembly_granted_bytes -= freed;
            env.budget.give(&mut env.store, freed);
            true
        }
        Ok(Step::Wait(wait)) => {
            work.upload_task = Some(task);
            conn.block = block_of(wait);
            false
        }
        Err(e) => {
            env.store.finish(task);
            let text = error_text(e, conn.session.memcached);
            refuse(env, conn, text);
            true
        }
    }
}

fn error_text(e: StoreError, memcached: bool) -> String {
    match memcached {
        true => format!("SERVER_ERROR {}", e.text),
        false => format!("{} {}", e.prefix, e.text),
    }
}

/// The rest of the command is passed over; its uploads and buffers are given back at once.
fn refuse<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, text: String) {
    let work = conn.work();
    let Some(assembly) = work.assembly.as_mut() else {
        return;
    };
    assembly.refuse(text);
    for upload in assembly.large.drain(..).filter_map(|l| l.upload) {
        env.store.upload_abort(upload);
    }
    let held = assembly.held_bytes();
    env.budget.give(
        &mut env.store,
        work.assembly_granted_bytes.saturating_sub(held),
    );
    work.assembly_granted_bytes = work.assembly_granted_bytes.min(held);
}

/// In the place of a command that was refused these words are executed, once it is through.
fn instead<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, words: &[&[u8]]) {
    let work = conn.work();
    let Some(assembly) = work.assembly.as_mut() else {
        return;
    };
    assembly.instead(words);
    let held = assembly.held_bytes();
    env.budget.take(held);
    work.assembly_granted_bytes += held;
}

/// Tells why a command was not executed, if its client wants to be told (CLIENT REPLY).
fn tell_refusal<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, text: &str) {
    let (prefix, rest) = text.split_once(' ').unwrap_or(("ERR", text));
    match conn.session.reply {
        Reply::On => encode::error(&mut env.out, prefix, rest),
        Reply::Skip => conn.session.reply = Reply::On,
        Reply::Off | Reply::SkipNext => {}
    }
    env.shared.count_error(env.counters(), prefix);
    if let Some(multi) = conn.multi.as_mut() {
        multi.spoil();
    }
}

/// Executes (or goes on with) a command that came in parts.
pub(crate) fn execute_assembled<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) {
    env.look_at_clock();
    let Some(mut assembly) = conn.work.as_mut().and_then(|w| w.assembly.take()) else {
        return;
    };
    let mut through = true;
    let instead = assembly.refusal().is_some() && assembly.args_len() > 0;
    if conn.session.memcached && !instead && (assembly.refusal().is_some() || assembly.bad_end) {
        let text = assembly.refusal().unwrap_or(BAD_CHUNK);
        // As with short commands: who may not come in is told so.
        let unsaid = assembly.noreply && conn.session.trusted;
        if !unsaid || text.starts_with("SERVER_ERROR") {
            say(&mut env.out, text);
        }
        let kind = text.split(' ').next().unwrap_or_default();
        env.shared.count_error(env.counters(), kind);
    } else if let Some(text) = assembly.refusal().filter(|_| !instead) {
        tell_refusal(env, conn, text);
    } else if assembly.args_len() > 0 {
        let args_bytes = assembly.args_len().saturating_sub(ARGS_FREE) * size_of::<&[u8]>();
        if args_bytes > 0 && !env.budget.ask(&mut env.store, args_bytes) {
            conn.block = Block::Grant;
            conn.work().assembly = Some(assembly);
            return;
        }
        let (text, ends, large) = assembly.parts();
        let mut args = Vec::with_capacity(ends.len());
        Assembly::<S::Upload>::args(text, ends, &mut args);
        through = execute_args(env, conn, &args, large);
        env.budget.give(&mut env.store, args_bytes);
    }
    if !through {
        conn.work().assembly = Some(assembly);
        return;
    }
    was_executed(env, conn, 1);
    for upload in assembly.large.into_iter().filter_map(|l| l.upload) {
        env.store.upload_abort(upload);
    }
    let work = conn.work();
    let granted = std::mem::take(&mut work.assembly_granted_bytes);
    env.budget.give(&mut env.store, granted);
    conn.rest();
}
