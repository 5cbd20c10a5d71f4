//! Serves one connection as far as it goes without waiting: reads, executes, writes. Whatever stops it is left in the
//! connection's state, from which the next call goes on; nothing is done twice and nothing is forgotten.

use std::io;

use smallvec::SmallVec;

use crate::conn::{Block, Conn};
use crate::env::Env;
use crate::execute::execute_args;
use crate::intake::{execute_assembled, feed};
use crate::limits::{
    ARGS_FREE, ASSEMBLE_ABOVE_BYTES, OUTPUT_LIMIT_BYTES, READ_MAX_BYTES, READ_TIGHT_BYTES,
};
use crate::outgo::pump;
use crate::resp::assemble::Assembly;
use crate::resp::parse::{self, Parsed};
use crate::step::{Advance, Status, is_full, protocol_error, read_some, was_executed};
use crate::store::Store;
use crate::sync::add;

/// Reads in a row of one that only reads why it ends, before others are served.
const LINGER_READS_IN_A_ROW: usize = 8;
/// Turns in a row before others are served.
const ROUNDS_MAX: usize = 4;

/// Serves `conn`.
pub fn service<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> Status {
    for _ in 0..ROUNDS_MAX {
        if conn.settle(env).is_err() {
            return Status::Close;
        }
        if conn.closing || conn.block != Block::None || conn.output.pending() > OUTPUT_LIMIT_BYTES {
            return ended(env, conn);
        }
        // Who holds a buffer already must be able to go on, or it would never come back.
        if !env.budget.ready(&mut env.store) && !conn.is_provided_for() {
            conn.block = Block::Grant;
            return Status::Idle;
        }
        match advance(env, conn) {
            Ok(Advance::Moved) => conn.progress_ms = env.now_ms,
            Ok(Advance::Stuck) => {
                if conn.settle(env).is_err() {
                    return Status::Close;
                }
                return ended(env, conn);
            }
            Err(e) => {
                if conn.stream.is_handshaking() {
                    came_to_no_agreement(env, conn, &e);
                }
                return Status::Close;
            }
        }
    }
    match conn.settle(env) {
        Ok(()) if conn.closing || conn.block != Block::None => ended(env, conn),
        Ok(()) => Status::Again,
        Err(_) => Status::Close,
    }
}

/// A client that does not speak TLS as it should, or may not come in. One that does not speak it at all is told so in its own words.
#[cold]
fn came_to_no_agreement<S: Store>(env: &Env<S>, conn: &mut Conn<S>, why: &io::Error) {
    add(&env.counters().tls_failed, 1);
    let client = conn.session.client.addr;
    tracing::debug!(%client, %why, "no agreement on keys; connection closed");
    if why.kind() == io::ErrorKind::Unsupported {
        let error = match conn.session.memcached {
            true => "CLIENT_ERROR",
            false => "-ERR",
        };
        conn.stream.write_plain(&format!(
            "{error} this server speaks TLS only; connect with TLS (redis-cli --tls)\r\n"
        ));
    }
}

/// A connection that is to end does so when its last byte has left.
fn ended<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> Status {
    let busy = conn.is_replying() || conn.block != Block::None || !conn.need_more;
    match (conn.closing || (conn.eof && !busy)) && !conn.has_unsent() {
        true if conn.linger.is_some() => drop_input(env, conn),
        true => Status::Close,
        false => Status::Idle,
    }
}

fn advance<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> io::Result<Advance> {
    if let Some(work) = &conn.work {
        if work.sending.is_some() {
            return Ok(pump(env, conn));
        }
        if work.parked.is_some() && work.assembly.is_some() {
            execute_assembled(env, conn);
            return Ok(unless_in_vain(conn, 0));
        }
    }
    if !conn.need_more {
        // Also without bytes: what was assembled may wait for nothing more.
        let data = std::mem::take(&mut conn.input);
        let consumed = consume(env, conn, &data[conn.input_at..]);
        conn.input_at += consumed;
        conn.input = data;
        if conn.input_at == conn.input.len() {
            conn.free_input(&mut env.store, &mut env.budget);
        }
        return Ok(unless_in_vain(conn, consumed));
    }
    if conn.eof || !conn.readable {
        return Ok(Advance::Stuck);
    }
    read(env, conn)
}

/// To ask for a buffer in vain is not to get on: whoever only does that would hold what it has for ever.
fn unless_in_vain<S: Store>(conn: &Conn<S>, consumed: usize) -> Advance {
    match consumed == 0 && conn.block == Block::Grant {
        true => Advance::Stuck,
        false => Advance::Moved,
    }
}

/// Whether a connection can execute something before anything is sent to it.
pub fn may_execute<S: Store>(conn: &Conn<S>) -> bool {
    conn.block == Block::None && !conn.closing && conn.output.pending() == 0
}

/// Receives what came for a connection that waits for nothing else, before it is served; answers how much.
pub fn read_early<S: Store>(env: &Env<S>, conn: &mut Conn<S>, into: &mut [u8]) -> usize {
    if !conn.readable || !conn.need_more || !conn.input.is_empty() || conn.work.is_some() {
        return 0;
    }
    // What is left of a record has no place among those that are served together.
    if conn.stream.is_tls() {
        return 0;
    }
    // An error is met again when the connection is served.
    let read = read_some(&mut conn.stream, into, &mut conn.readable, &mut conn.eof);
    let Ok(Some(n)) = read else { return 0 };
    conn.was_read(n, into.len());
    add(&env.counters().input_bytes, n as u64);
    n
}

/// Consumes what `read_early` received.
pub fn take_early<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, data: &[u8]) {
    conn.progress_ms = env.now_ms;
    let consumed = consume(env, conn, data);
    conn.keep_input(&mut env.budget, &data[consumed..]);
}

/// Goes on with what was received before, if there is something.
pub fn go_on<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) {
    let sends = conn.work.as_ref().is_some_and(|w| w.sending.is_some());
    if !conn.need_more && !sends && matches!(advance(env, conn), Ok(Advance::Moved)) {
        conn.progress_ms = env.now_ms;
    }
}

/// Reads once and consumes what came.
fn read<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> io::Result<Advance> {
    if conn.input.is_empty()
        && let Some(piece) = conn
            .work
            .as_mut()
            .and_then(|w| w.assembly.as_mut())
            .and_then(Assembly::direct)
    {
        // A long value goes where it is wanted, without a copy.
        let want = piece.len();
        let Some(n) = read_some(&mut conn.stream, piece, &mut conn.readable, &mut conn.eof)? else {
            return Ok(Advance::Stuck);
        };
        conn.was_read(n, want);
        add(&env.counters().input_bytes, n as u64);
        if let Some(assembly) = conn.work.as_mut().and_then(|w| w.assembly.as_mut()) {
            assembly.filled_directly(n);
        }
        consume(env, conn, &[]);
        return Ok(Advance::Moved);
    }
    let mut scratch = std::mem::take(&mut env.scratch);
    let kept = conn.input.len() - conn.input_at;
    scratch[..kept].copy_from_slice(&conn.input[conn.input_at..]);
    let want = if env.tight {
        READ_TIGHT_BYTES
    } else {
        READ_MAX_BYTES
    }
    .min(scratch.len() - kept);
    let read = read_some(
        &mut conn.stream,
        &mut scratch[kept..kept + want],
        &mut conn.readable,
        &mut conn.eof,
    );
    if let Ok(Some(n)) = read {
        conn.was_read(n, want);
        add(&env.counters().input_bytes, n as u64);
        conn.free_input(&mut env.store, &mut env.budget);
        let data = &scratch[..kept + n];
        let consumed = consume(env, conn, data);
        conn.keep_input(&mut env.budget, &data[consumed..]);
    }
    env.scratch = scratch;
    Ok(if read?.is_some() {
        Advance::Moved
    } else {
        Advance::Stuck
    })
}

/// Consumes commands from `data` until it ends, something must wait, or enough was answered.
fn consume<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, data: &[u8]) -> usize {
    conn.need_more = false;
    env.look_at_clock();
    let mut at = 0;
    loop {
        let assembling = conn.work.as_ref().is_some_and(|w| w.assembly.is_some());
        let before = at;
        at += if assembling {
            feed(env, conn, &data[at..])
        } else if conn.session.memcached {
            crate::lines::run(env, conn, &data[at..])
        } else {
            run(env, conn, &data[at..])
        };
        let stopped = conn.need_more || conn.closing || conn.block != Block::None;
        let full = env.out.len() + conn.output.pending() > OUTPUT_LIMIT_BYTES;
        let waiting = conn
            .work
            .as_ref()
            .is_some_and(|w| w.sending.is_some() || w.parked.is_some());
        let switched = assembling != conn.work.as_ref().is_some_and(|w| w.assembly.is_some());
        if stopped || full || waiting || (at == before && !switched) {
            return at;
        }
        if at == data.len() && !switched {
            conn.need_more = true;
            return at;
        }
    }
}

/// Executes whole commands that lie in `data`, a batch at a time: what its keys need is asked for before the first is
/// executed.
fn run<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>, data: &[u8]) -> usize {
    let mut args: Vec<&[u8]> = recycle(std::mem::take(&mut env.args));
    let mut batch = Batch::new();
    let mut at = 0;
    let mut commands = 0;
    'batches: while !is_full(env, conn) {
        let trusted = conn.session.trusted;
        let behind = parse_batch(&data[at..], &mut args, &mut batch, trusted);
        if batch.len() > 1 {
            let firsts = std::iter::once(0).chain(batch.iter().map(|b| b.args_end));
            let words = firsts.zip(&batch).map(|(from, b)| &args[from..b.args_end]);
            env.store
                .prefetch(words.filter_map(|words| words.get(1).copied()));
        }
        let mut from = 0;
        for parsed in &batch {
            let words = &args[from..parsed.args_end];
            from = parsed.args_end;
            if is_full(env, conn) {
                break 'batches;
            }
            if !words.is_empty() && !execute_args(env, conn, words, &mut []) {
                break 'batches;
            }
            at += parsed.len_bytes;
            commands += 1;
            if conn.closing || conn.work.is_some() {
                break 'batches;
            }
        }
        let rest = data.len() - at;
        match behind {
            None if rest == 0 => conn.need_more = true,
            None => continue,
            Some(Parsed::Inline(len, words)) if !is_full(env, conn) => {
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                if words.is_empty() || execute_args(env, conn, &words, &mut []) {
                    at += len;
                    commands += 1;
                    if !conn.closing && conn.work.is_none() {
                        continue;
                    }
                }
            }
            Some(Parsed::Inline(..) | Parsed::Command(_)) => {}
            Some(Parsed::Incomplete) if rest <= ASSEMBLE_ABOVE_BYTES || data[at] != b'*' => {
                conn.need_more = true;
            }
            Some(Parsed::Incomplete | Parsed::Large) => {
                conn.work().assembly = Some(Assembly::new(conn.session.trusted));
            }
            Some(Parsed::Bad(text)) => protocol_error(env, conn, text),
        }
        break;
    }
    if commands > 0 {
        was_executed(env, conn, commands);
    }
    env.args = recycle(args);
    at
}

/// Commands whose memory is asked for at once.
const BATCH_MAX: usize = 16;

type Batch = SmallVec<[InBatch; BATCH_MAX]>;

/// A whole command of a batch.
struct InBatch {
    /// Where its arguments end among those of the batch.
    args_end: usize,
    len_bytes: usize,
}

/// Parses the next commands of `data`; answers what stands behind them, unless it is nothing or one more.
fn parse_batch<'a>(
    data: &'a [u8],
    args: &mut Vec<&'a [u8]>,
    batch: &mut Batch,
    trusted: bool,
) -> Option<Parsed> {
    args.clear();
    batch.clear();
    // The first may say the password, and what stands behind it is then judged by other bounds.
    let most = if trusted { BATCH_MAX } else { 1 };
    let mut at = 0;
    while at < data.len() && batch.len() < most && args.len() <= ARGS_FREE {
        match parse::command(&data[at..], args, trusted) {
            Parsed::Command(len_bytes) => {
                at += len_bytes;
                batch.push(InBatch {
                    args_end: args.len(),
                    len_bytes,
                });
            }
            other => return Some(other),
        }
    }
    None
}

/// Keeps a vector's memory across borrows: in-place collection reuses the allocation.
fn recycle<'a, 'b>(mut args: Vec<&'a [u8]>) -> Vec<&'b [u8]> {
    args.clear();
    if args.capacity() > ARGS_FREE {
        return Vec::new();
    }
    args.into_iter().map(|_| -> &'b [u8] { &[] }).collect()
}

/// Drops what has come for a connection whose last reply has left.
fn drop_input<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> Status {
    let Some(linger) = &mut conn.linger else {
        return Status::Close;
    };
    if !linger.is_shut {
        linger.is_shut = true;
        if conn.stream.end().is_err() {
            return Status::Close;
        }
        // Nothing of it is executed any more.
        conn.tear_down(env);
    }
    let Some(linger) = &mut conn.linger else {
        return Status::Close;
    };
    for _ in 0..LINGER_READS_IN_A_ROW {
        if conn.eof || linger.left_bytes == 0 || linger.is_over(env.now_ms) {
            return Status::Close;
        }
        if !conn.readable {
            return Status::Idle;
        }
        let read = read_some(
            &mut conn.stream,
            &mut env.scratch,
            &mut conn.readable,
            &mut conn.eof,
        );
        match read {
            Ok(Some(n)) => linger.left_bytes = linger.left_bytes.saturating_sub(n as u64),
            Ok(None) => {}
            Err(_) => return Status::Close,
        }
    }
    Status::Again
}
