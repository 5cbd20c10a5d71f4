//! Sends long values piece by piece: the next one is fetched when little of the one before waits to be sent. Never: holds
//! more than a piece.

use crate::conn::Conn;
use crate::env::Env;
use crate::limits::{OUTPUT_LOW_BYTES, PIECE_BYTES};
use crate::step::{Advance, block_of};
use crate::store::{Step, Store};

/// Sends the next piece of a long value, when the one before has left.
pub(crate) fn pump<S: Store>(env: &mut Env<S>, conn: &mut Conn<S>) -> Advance {
    if conn.output.pending() > OUTPUT_LOW_BYTES {
        return Advance::Stuck;
    }
    let Some(mut sending) = conn.work.as_mut().and_then(|w| w.sending.take()) else {
        return Advance::Stuck;
    };
    let mut task = match sending.task.take() {
        Some(task) => task,
        None => env.store.task(conn.key),
    };
    let skip = sending.skip_bytes;
    let expected = sending.left_bytes.min((PIECE_BYTES - skip) as u64) as usize;
    let out = &mut env.out;
    let outcome = env
        .store
        .read_piece(&mut task, &sending.large, sending.piece, |bytes| {
            let wanted = bytes.get(skip..).unwrap_or_default();
            let wanted = &wanted[..wanted.len().min(expected)];
            out.extend_from_slice(wanted);
            wanted.len()
        });
    match outcome {
        Ok(Step::Wait(wait)) => {
            sending.task = Some(task);
            conn.work().sending = Some(sending);
            conn.block = block_of(wait);
            return Advance::Moved;
        }
        Ok(Step::Done(len)) if len == expected => {
            sending.left_bytes -= len as u64;
            sending.piece += 1;
            sending.skip_bytes = 0;
        }
        other => {
            // The header has left: what follows cannot be an error any more. A closed connection is unmistakable.
            let why = other
                .err()
                .map_or_else(|| "a piece of the wrong length".to_string(), |e| e.text);
            tracing::error!(client = conn.session.client.id, %why, "a value could not be sent to its end; connection closed");
            env.out.clear();
            conn.closing = true;
        }
    }
    env.store.finish(task);
    if sending.left_bytes > 0 && !conn.closing {
        conn.work().sending = Some(sending);
        return Advance::Moved;
    }
    env.store.release(sending.large);
    if !conn.closing {
        env.out.extend_from_slice(&sending.tail);
        env.out.extend_from_slice(b"\r\n");
    }
    conn.rest();
    Advance::Moved
}
