//! Lookups ahead: behind the first key of a command that must wait, so that the reads of the next ones run at the same time.
//!
//! Promises: at most [`MGET_WINDOW_KEYS`] are under way for a command, and a key is looked for once, but where a client takes no replies while others want reads. Never: answers.

use super::{Cx, Progress};
use crate::limits::MGET_WINDOW_KEYS;
use crate::store::{Step, Store};

/// The task of key number `at`: of the look ahead, if it had one.
pub(crate) fn take_task<S: Store>(cx: &mut Cx<'_, S>, at: usize) -> S::Task {
    let window = &mut cx.progress.window;
    match window.iter().position(|&(index, _)| index == at) {
        Some(found) => window.swap_remove(found).1,
        None => cx.store.task(cx.owner),
    }
}

/// Begins to `look` for what is behind key number `at`; it answers with the value in pieces that it holds, which is let go.
pub(crate) fn look_ahead<S: Store, E>(
    cx: &mut Cx<'_, S>,
    keys: &[&[u8]],
    at: usize,
    look: impl Fn(&mut S, &mut S::Task, &[u8]) -> Result<Step<Option<S::Large>>, E>,
) {
    let ahead = keys.iter().enumerate().skip(at + 1);
    for (index, key) in ahead.take(MGET_WINDOW_KEYS - 1) {
        if cx.progress.window.iter().any(|&(i, _)| i == index) {
            continue;
        }
        let mut task = cx.store.task(cx.owner);
        match look(cx.store, &mut task, key) {
            Ok(Step::Wait(_)) => cx.progress.window.push((index, task)),
            Ok(Step::Done(held)) => {
                if let Some(large) = held {
                    cx.store.release(large);
                }
                cx.store.finish(task);
            }
            Err(_) => cx.store.finish(task),
        }
    }
}

/// Lets go what was read ahead: a command that goes on reads it again.
pub(crate) fn let_go<S: Store>(store: &mut S, progress: &mut Progress<S>) {
    for (_, task) in progress.window.drain(..) {
        store.finish(task);
    }
}
