//! EXEC of a transaction that is not done in a moment: one that brings, reads or makes values in pieces, compares long ones, or
//! replies with much. It watches all its keys, looks at them at one moment, runs its commands over what it saw, in steps between
//! which others are served, and makes what they changed one edit if nobody has changed a key meanwhile; else all of it begins
//! again, a bounded number of times. Then it replies, with values in pieces sent from where they lie.
//! Promises: what it keeps between steps is granted by the connections' budget. Never: keeps a key locked between two steps.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use super::ended::{Ended, count, error_of};
use crate::commands::multi::{self, Queued, brought_bytes, keys_of};
use crate::commands::{Cx, Done, Fault, Flow, ProgressOf, execute};
use crate::limits::{
    EXEC_LONG_REPLY_BYTES, EXEC_REPLY_MAX_BYTES, EXEC_STEP_MAX_MS, LONG_TRIES_MAX,
    OUTPUT_LIMIT_BYTES,
};
use crate::overlay::{Book, Overlay};
use crate::resp::encode;
use crate::store::{Outcome, Step, Store, Watched};

/// What is granted beyond what is needed now, so that not each command asks.
const GRANT_STEP_BYTES: usize = 64 << 10;
/// What the watch of a key takes beside the key, here and in the store.
const WATCH_COST_BYTES: usize = 128;

/// A part of the replies.
enum Part<L> {
    Bytes(Vec<u8>),
    /// These bytes of a value in pieces, what follows them, and the line's end.
    Value(L, Range<u64>, Vec<u8>),
}

/// A command's task, and where it stands.
type Inner<T, L, U> = (T, Box<ProgressOf<T, L, U>>);

enum Stage {
    Looks,
    Runs,
    Replies,
}

/// A transaction under way.
pub struct Exec<T, L, U> {
    stage: Stage,
    /// All its keys, in the order of the edit.
    watched: Vec<Watched>,
    book: Option<Book<L, U>>,
    /// The command that runs, and where it stands.
    at: usize,
    inner: Option<Inner<T, L, U>>,
    began: Instant,
    /// The first word of its error, once it has replied something.
    error: Option<Option<String>>,
    ended: Vec<Ended>,
    replies: VecDeque<Part<L>>,
    reply_bytes: usize,
    closes: bool,
    shown_bytes: usize,
    granted_bytes: usize,
    tries: u64,
    resp3: bool,
}

impl<T, L: Clone, U> Exec<T, L, U> {
    fn new(resp3: bool) -> Self {
        Exec {
            stage: Stage::Looks,
            watched: Vec::new(),
            book: None,
            at: 0,
            inner: None,
            began: Instant::now(),
            error: None,
            ended: Vec::new(),
            replies: VecDeque::new(),
            reply_bytes: 0,
            closes: false,
            shown_bytes: 0,
            granted_bytes: 0,
            tries: 0,
            resp3,
        }
    }

    /// Gives back all that it holds.
    pub fn end<S: Store<Task = T, Large = L, Upload = U>>(mut self, store: &mut S) {
        self.forget(store, &mut []);
    }

    /// Gives back all that it holds, and to the queue what came from there.
    fn forget<S: Store<Task = T, Large = L, Upload = U>>(
        &mut self,
        store: &mut S,
        queue: &mut [Queued<U>],
    ) {
        if let Some((task, progress)) = self.inner.take() {
            progress.end(store);
            store.finish(task);
        }
        for watched in self.watched.drain(..) {
            store.unwatch(watched);
        }
        let uploads = self.book.take().map(|mut book| book.take_uploads());
        for (upload, origin) in uploads.unwrap_or_default() {
            let arg = origin.and_then(|(at, nr)| queue.get_mut(at)?.large.get_mut(nr));
            match arg {
                Some(arg) => arg.upload = Some(upload),
                None => store.upload_abort(upload),
            }
        }
        for part in self.replies.drain(..) {
            if let Part::Value(large, ..) = part {
                store.release(large);
            }
        }
        store.ungrant(std::mem::take(&mut self.granted_bytes));
        self.ended.clear();
        (self.at, self.reply_bytes, self.closes) = (0, 0, false);
    }

    /// Has so many bytes granted in all.
    fn grant<S: Store>(&mut self, store: &mut S, bytes: usize) -> Result<(), Fault> {
        if bytes <= self.granted_bytes {
            return Ok(());
        }
        let more = bytes - self.granted_bytes + GRANT_STEP_BYTES;
        if !store.grant(more) {
            return Err(Fault::Prefixed(
                "OOM",
                format!(
                    "the transaction needs {bytes} bytes of buffers, which the connections' budget does not have now; nothing was \
                     changed; try again, or split it"
                ),
            ));
        }
        self.granted_bytes += more;
        Ok(())
    }

    /// Has what it keeps now granted.
    fn grant_kept<S: Store>(&mut self, store: &mut S, more: usize) -> Result<(), Fault> {
        let keys = self.watched.iter().map(|w| w.key.len() + WATCH_COST_BYTES);
        let made = self.book.as_ref().map_or(0, Book::made_bytes);
        let bytes = keys.sum::<usize>() + self.shown_bytes + made + self.reply_bytes + more;
        self.grant(store, bytes)
    }

    /// Adds bytes to the replies.
    fn say(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.reply_bytes += bytes.len();
        if self.error.is_none() {
            self.error = Some(error_of(&bytes));
        }
        match self.replies.back_mut() {
            Some(Part::Bytes(before)) => before.extend_from_slice(&bytes),
            _ => self.replies.push_back(Part::Bytes(bytes)),
        }
    }

    fn show(&mut self, large: L, bytes: Range<u64>, behind: Vec<u8>) {
        self.reply_bytes += EXEC_LONG_REPLY_BYTES + behind.len();
        self.replies.push_back(Part::Value(large, bytes, behind));
    }
}

/// How a step ended.
enum Next {
    /// The next stage.
    On,
    /// Something has changed.
    Stale,
    /// A key that the client watches has changed.
    Refused,
    Flow(Step<()>),
}

type ExecIn<S> = Exec<<S as Store>::Task, <S as Store>::Large, <S as Store>::Upload>;

/// Begins with the transaction that is queued.
#[cold]
pub fn begin<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let exec = Box::new(Exec::new(cx.session.resp3));
    go_on(cx, exec)
}

/// Goes on with it.
pub fn go_on<S: Store>(cx: &mut Cx<'_, S>, mut exec: Box<ExecIn<S>>) -> Done<S> {
    loop {
        let next = match exec.stage {
            Stage::Replies => return reply(cx, exec),
            Stage::Looks | Stage::Runs => advance(cx, &mut exec),
        };
        match next {
            Ok(Next::On) => {}
            Ok(Next::Flow(step)) => {
                cx.progress.exec = Some(exec);
                return Ok(match step {
                    Step::Wait(wait) => Flow::Wait(wait),
                    Step::Done(()) => Flow::OutputFull,
                });
            }
            Ok(Next::Refused) => {
                exec.end(cx.store);
                multi::end(cx.multi, cx.session, cx.store);
                encode::null_array(cx.out, cx.session.resp3);
                return Ok(Flow::Done);
            }
            Ok(Next::Stale) => {
                cx.renew_task();
                exec.tries += 1;
                if exec.tries >= LONG_TRIES_MAX {
                    exec.end(cx.store);
                    multi::end(cx.multi, cx.session, cx.store);
                    return Err(Fault::text(format!(
                        "the keys of the transaction were changed by others {LONG_TRIES_MAX} times while it ran; nothing was \
                         changed; try again"
                    )));
                }
                let queue = cx.multi.as_deref_mut().map(|m| &mut m.queue[..]);
                exec.forget(cx.store, queue.unwrap_or_default());
                exec.stage = Stage::Looks;
                cx.session.resp3 = exec.resp3;
                cx.progress.exec = Some(exec);
                return Ok(Flow::OutputFull);
            }
            Err(fault) => {
                exec.end(cx.store);
                multi::end(cx.multi, cx.session, cx.store);
                return Err(fault);
            }
        }
    }
}

/// Looks, runs and commits. The queue and the client's watches are elsewhere meanwhile: what the commands do to the
/// connection's transaction is not done to this one.
fn advance<S: Store>(cx: &mut Cx<'_, S>, exec: &mut ExecIn<S>) -> Result<Next, Fault> {
    let Some(mut multi) = cx.multi.take() else {
        return Err(Fault::text("EXEC without MULTI"));
    };
    let watched = std::mem::take(&mut cx.session.watched);
    let next = match exec.stage {
        Stage::Looks => look(cx, exec, &multi.queue, &watched.keys),
        Stage::Runs => run(cx, exec, &mut multi.queue, &watched.keys),
        Stage::Replies => Ok(Next::On),
    };
    cx.session.watched = watched;
    *cx.multi = Some(multi);
    if matches!((&next, &exec.stage), (Ok(Next::On), Stage::Replies)) {
        let queue = cx.multi.take();
        let args = queue.iter().flat_map(|m| &m.queue).map(|q| &q.args[..]);
        count(cx, &exec.ended, args);
        *cx.multi = queue;
        multi::end(cx.multi, cx.session, cx.store);
    }
    next
}

/// Watches the keys and looks at all of them at one moment.
fn look<S: Store>(
    cx: &mut Cx<'_, S>,
    exec: &mut ExecIn<S>,
    queue: &[Queued<S::Upload>],
    asked: &[Watched],
) -> Result<Next, Fault> {
    let keys = keys_of(queue, asked);
    if exec.watched.is_empty() {
        let keys_bytes = keys.iter().map(|key| key.len() + WATCH_COST_BYTES);
        exec.grant(cx.store, keys_bytes.sum())?;
        exec.watched = keys.iter().map(|key| cx.store.watch(key)).collect();
    }
    let looked = cx.store.edit(cx.task, &keys, asked, &mut |seen| {
        let gone =
            |(w, view): (&Watched, &crate::store::View<S::Large>)| w.existed && !view.exists();
        let refused = !seen.unchanged || asked.iter().zip(&seen.views).any(gone);
        Ok((Vec::new(), (!refused).then_some(seen)))
    });
    let Some(seen) = step!(looked) else {
        return Ok(Next::Refused);
    };
    cx.renew_task();
    for (watched, view) in exec.watched.iter_mut().zip(&seen.views) {
        watched.existed = view.exists();
    }
    let book = Book::new(&keys, seen, cx.store.dbsize(), brought_bytes(queue));
    exec.shown_bytes = book.inline_bytes();
    exec.book = Some(book);
    exec.stage = Stage::Runs;
    let mut head = Vec::new();
    encode::array(&mut head, queue.len());
    exec.say(head);
    exec.grant_kept(cx.store, 0)?;
    Ok(Next::On)
}

/// Runs the commands, and commits when all are through.
fn run<S: Store>(
    cx: &mut Cx<'_, S>,
    exec: &mut ExecIn<S>,
    queue: &mut [Queued<S::Upload>],
    asked: &[Watched],
) -> Result<Next, Fault> {
    let step_began = Instant::now();
    let commands = queue.len();
    while let Some(queued) = queue.get_mut(exec.at) {
        if step_began.elapsed().as_millis() >= EXEC_STEP_MAX_MS {
            return Ok(Next::Flow(Step::Done(())));
        }
        let step = run_one(cx, exec, queued);
        exec.grant_kept(cx.store, 0)?;
        if exec.reply_bytes > EXEC_REPLY_MAX_BYTES {
            return Err(Fault::text(format!(
                "the replies of the transaction are longer than {EXEC_REPLY_MAX_BYTES} bytes together; nothing was changed; split it"
            )));
        }
        if let Step::Wait(wait) = step {
            return Ok(Next::Flow(Step::Wait(wait)));
        }
    }
    debug_assert_eq!(exec.ended.len(), commands);
    match commit(cx, exec, queue, asked)? {
        Step::Wait(wait) => Ok(Next::Flow(Step::Wait(wait))),
        Step::Done(false) => Ok(Next::Stale),
        Step::Done(true) => {
            cx.renew_task();
            exec.stage = Stage::Replies;
            Ok(Next::On)
        }
    }
}

/// Runs the command at hand as far as it goes.
fn run_one<S: Store>(
    cx: &mut Cx<'_, S>,
    exec: &mut ExecIn<S>,
    queued: &mut Queued<S::Upload>,
) -> Step<()> {
    let args: Vec<&[u8]> = queued.args.iter().map(|a| &**a).collect();
    let (mut task, mut progress) = match exec.inner.take() {
        Some(inner) => inner,
        None => {
            (exec.began, exec.error) = (Instant::now(), None);
            (cx.store.task(cx.owner), Box::default())
        }
    };
    let mut out = Vec::new();
    let had: Vec<bool> = queued.large.iter().map(|l| l.upload.is_some()).collect();
    let Some(book) = &mut exec.book else {
        return Step::Done(());
    };
    let mut overlay = Overlay::over(book, cx.store);
    cx.session.in_exec = true;
    let flow = execute(
        &mut Cx {
            store: &mut overlay,
            task: &mut task,
            owner: cx.owner,
            progress: &mut progress,
            large: &mut queued.large,
            session: cx.session,
            multi: &mut None,
            shared: cx.shared,
            counters: cx.counters,
            out: &mut out,
            exec: multi::no_exec,
        },
        &args,
    );
    cx.session.in_exec = false;
    let gone = queued.large.iter().zip(had).enumerate();
    let gone = gone.filter(|(_, (l, had))| *had && l.upload.is_none());
    book.came_from(exec.at, gone.map(|(nr, _)| nr));
    exec.say(out);
    let through = match flow {
        Flow::Wait(wait) => {
            exec.inner = Some((task, progress));
            return Step::Wait(wait);
        }
        Flow::OutputFull => false,
        Flow::LargeThenMore(large) => {
            let len = S::large_len(&large);
            exec.show(large, 0..len, Vec::new());
            false
        }
        Flow::PartThenMore(large, bytes, behind) => {
            exec.show(large, bytes, behind);
            false
        }
        Flow::Large(large) => {
            let len = S::large_len(&large);
            exec.show(large, 0..len, Vec::new());
            true
        }
        Flow::Part(large, bytes) => {
            exec.show(large, bytes, Vec::new());
            true
        }
        Flow::Framed(large, behind) => {
            let len = S::large_len(&large);
            exec.show(large, 0..len, behind);
            true
        }
        Flow::Done => true,
        Flow::Close | Flow::Shutdown => {
            exec.closes = true;
            true
        }
    };
    if !through {
        exec.inner = Some((task, progress));
        return Step::Done(());
    }
    let durable_at = S::durable_at(&task).max(progress.durable_at);
    cx.progress.durable_at = cx.progress.durable_at.max(durable_at);
    progress.end(cx.store);
    cx.store.finish(task);
    exec.ended.push(Ended {
        kind: cx.session.kind,
        ns: exec.began.elapsed().as_nanos() as u64,
        error: exec.error.take().flatten(),
    });
    exec.at += 1;
    Step::Done(())
}

/// Makes what has changed one edit; answers whether all was as it had been seen.
fn commit<S: Store>(
    cx: &mut Cx<'_, S>,
    exec: &mut ExecIn<S>,
    queue: &[Queued<S::Upload>],
    asked: &[Watched],
) -> Result<Step<bool>, Fault> {
    // The values as they were made, as edits, and as what the store is told.
    let Some(mut book) = exec.book.take_if(|book| book.is_changed()) else {
        return Ok(Step::Done(true));
    };
    let keys = keys_of(queue, asked);
    let granted = exec.grant_kept(cx.store, 3 * book.made_bytes());
    let (edits, watched) = (book.edits(), &exec.watched);
    let committed: Outcome<bool> = match granted {
        Err(fault) => Err(fault.into()),
        Ok(()) => cx
            .store
            .edit_with(cx.task, &keys, watched, book.uploads(), &mut |seen| {
                // One that has expired was changed by nobody.
                let same = watched
                    .iter()
                    .zip(&seen.views)
                    .all(|(w, v)| w.existed == v.exists());
                Ok(match seen.unchanged && same {
                    true => (edits.clone(), true),
                    false => (Vec::new(), false),
                })
            }),
    };
    exec.book = Some(book);
    Ok(committed?)
}

/// Sends the replies.
fn reply<S: Store>(cx: &mut Cx<'_, S>, mut exec: Box<ExecIn<S>>) -> Done<S> {
    cx.progress.begun = true;
    while let Some(part) = exec.replies.pop_front() {
        match part {
            Part::Bytes(mut bytes) if bytes.len() > OUTPUT_LIMIT_BYTES => {
                let rest = bytes.split_off(OUTPUT_LIMIT_BYTES);
                cx.out.extend_from_slice(&bytes);
                exec.replies.push_front(Part::Bytes(rest));
            }
            Part::Bytes(bytes) => cx.out.extend_from_slice(&bytes),
            Part::Value(large, bytes, behind) => {
                cx.progress.exec = Some(exec);
                return Ok(Flow::PartThenMore(large, bytes, behind));
            }
        }
        if cx.out.len() >= OUTPUT_LIMIT_BYTES {
            cx.progress.exec = Some(exec);
            return Ok(Flow::OutputFull);
        }
    }
    let closes = exec.closes;
    exec.end(cx.store);
    Ok(match closes {
        true => Flow::Close,
        false => Flow::Done,
    })
}
