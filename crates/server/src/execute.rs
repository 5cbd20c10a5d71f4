//! Executes one command of a connection, or goes on with one that waited; what stops it is left in the connection's state.

use crate::commands::{Cx, Flow, ProgressOf, execute};
use crate::conn::{Conn, Parked, Sending, finish_parked};
use crate::env::Env;
use crate::limits::PIECE_BYTES;
use crate::resp::assemble::LargeArg;
use crate::session::Reply;
use crate::step::block_of;
use crate::store::Store;

/// Executes one command; answers whether it is through (its reply complete, or a long value on its way).
#[inline]
pub(crate) fn execute_args<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    args: &[&[u8]],
    large: &mut [LargeArg<S::Upload>],
) -> bool {
    let parked = conn.work.as_mut().and_then(|w| w.parked.take());
    let (mut task, mut progress, began) = match parked {
        Some(Parked {
            task,
            progress,
            began,
        }) => (task, progress, began),
        None => (
            env.store.task(conn.key),
            ProgressOf::default(),
            env.begins(),
        ),
    };
    let out_at = env.out.len();
    let start = conn.output.end(out_at);
    let mut cx = Cx {
        store: &mut env.store,
        task: &mut task,
        owner: conn.key,
        progress: &mut progress,
        large,
        session: &mut conn.session,
        multi: &mut conn.multi,
        shared: &env.shared,
        counters: &env.shared.counters[env.index],
        out: &mut env.out,
        exec: crate::commands::exec::exec,
    };
    let flow = match cx.session.memcached {
        false => execute(&mut cx, args),
        true => crate::memcached::execute(&mut cx, args),
    };
    let flow = match cx.session.reply {
        Reply::On => flow,
        _ => unsaid(env, conn, flow, out_at),
    };
    if let Some(epoch) = S::durable_at(&task).max(progress.durable_at)
        && epoch > env.store.durable_epoch()
    {
        conn.output.hold(start, epoch);
    }
    if matches!(flow, Flow::Done) && progress.is_over() {
        env.store.finish(task);
        env.took(&conn.session, args, began);
        // It may have waited. State that stays would keep the connection out of batches.
        conn.rest();
        return true;
    }
    let parked = Parked {
        task,
        progress,
        began,
    };
    after(env, conn, args, flow, parked)
}

/// What becomes of a command whose client does not want to be told (CLIENT REPLY).
#[cold]
fn unsaid<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    flow: Flow<S::Large>,
    out_at: usize,
) -> Flow<S::Large> {
    env.out.truncate(out_at);
    let flow = match flow {
        Flow::Large(large) | Flow::Part(large, _) | Flow::Framed(large, _) => {
            env.store.release(large);
            Flow::Done
        }
        Flow::LargeThenMore(large) | Flow::PartThenMore(large, ..) => {
            env.store.release(large);
            Flow::OutputFull
        }
        flow => flow,
    };
    let over = !matches!(flow, Flow::Wait(_) | Flow::OutputFull);
    conn.session.reply = match conn.session.reply {
        Reply::SkipNext if over => Reply::Skip,
        Reply::Skip if over => Reply::On,
        reply => reply,
    };
    flow
}

/// What follows a command that did not simply end.
#[cold]
fn after<S: Store>(
    env: &mut Env<S>,
    conn: &mut Conn<S>,
    args: &[&[u8]],
    flow: Flow<S::Large>,
    parked: Parked<S>,
) -> bool {
    let mut tail = Vec::new();
    let (through, large) = match flow {
        Flow::Wait(wait) => {
            conn.block = block_of(wait);
            (false, None)
        }
        Flow::OutputFull => (false, None),
        Flow::LargeThenMore(large) => (false, Some(whole::<S>(large))),
        Flow::PartThenMore(large, bytes, behind) => {
            tail = behind;
            (false, Some((large, bytes)))
        }
        Flow::Large(large) => (true, Some(whole::<S>(large))),
        Flow::Part(large, bytes) => (true, Some((large, bytes))),
        Flow::Framed(large, behind) => {
            tail = behind;
            (true, Some(whole::<S>(large)))
        }
        Flow::Done => (true, None),
        Flow::Close => {
            conn.closing = true;
            (true, None)
        }
        Flow::Shutdown => {
            conn.closing = true;
            env.shared.stop();
            (true, None)
        }
    };
    if through {
        env.took(&conn.session, args, parked.began);
        finish_parked(&mut env.store, parked);
    } else {
        conn.work().parked = Some(parked);
    }
    if let Some((large, bytes)) = large {
        let piece_bytes = PIECE_BYTES as u64;
        conn.work().sending = Some(Sending {
            large,
            piece: (bytes.start / piece_bytes) as u32,
            skip_bytes: (bytes.start % piece_bytes) as usize,
            left_bytes: bytes.end - bytes.start,
            tail,
            task: None,
        });
    }
    conn.rest();
    through
}

fn whole<S: Store>(large: S::Large) -> (S::Large, std::ops::Range<u64>) {
    let len = S::large_len(&large);
    (large, 0..len)
}
