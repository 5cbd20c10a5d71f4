//! EXEC. It shows the store all keys that the queued commands name at once, runs them against an overlay, and makes what they changed
//! one edit: so nobody comes in between, and a crash leaves all of it or nothing. What is not done in a moment, or needs a value in
//! pieces, is for `steps`. Never: waits while keys are locked.

mod ended;
mod steps;

use std::time::Instant;

use super::multi::{Queued, brought_bytes, end, keys_of, no_exec};
use super::{Cx, Done, Fault, Flow, ProgressOf, execute, ready};
use crate::limits::{EXEC_AT_ONCE_MAX_BYTES, EXEC_AT_ONCE_MAX_MS};
use crate::overlay::{Book, Overlay};
use crate::resp::encode;
use crate::store::{Outcome, Step, Store, Watched};
use ended::{Ended, count, error_of};
pub use steps::Exec;

/// EXEC
pub fn exec<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    if let Some(under_way) = cx.progress.exec.take() {
        return steps::go_on(cx, under_way);
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
        return steps::begin(cx);
    }
    let watched = std::mem::take(&mut cx.session.watched);
    let resp3 = cx.session.resp3;
    let outcome = run(cx, &multi.queue, &watched.keys);
    cx.session.watched = watched;
    // A transaction that must wait is there when it comes again.
    *cx.multi = Some(multi);
    let ran = ready!(outcome.inspect_err(|_| {
        end(cx.multi, cx.session, cx.store);
    }));
    if matches!(ran, Ran::InSteps) {
        cx.session.resp3 = resp3;
        cx.renew_task();
        return steps::begin(cx);
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

/// Runs the commands in one edit of all their keys.
fn run<S: Store>(
    cx: &mut Cx<'_, S>,
    queue: &[Queued<S::Upload>],
    watched: &[Watched],
) -> Outcome<Ran> {
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
        Ok(Step::Done(Ran::Through { .. })) => {
            let args = queue.iter().map(|queued| &queued.args[..]);
            count(cx, &ended, args);
        }
        // One that must wait or begins again comes again, one that failed has its error: neither has replied.
        _ => out.truncate(start),
    }
    ran
}
