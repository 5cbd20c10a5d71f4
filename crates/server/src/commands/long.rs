//! Changes of values in pieces: the sources are held at one moment, the result is brought in piece by piece as that of a
//! SET is, and one edit puts it in place if nobody has changed a key meanwhile; else all of it begins again, a bounded
//! number of times. Promises: holds one piece and the bytes that change, granted by the connections' budget; makes way for
//! others every few pieces; a crash leaves the old value or the new one. Never: keeps anything held between two steps but
//! versions of values.

mod pieces;
mod plan;
mod sources;

use terrace_kv::strings::STRING_MAX_BYTES;

use super::{Cx, Fault, Flow};
use crate::limits::{INLINE_MAX_BYTES, LONG_STEPS_MAX, LONG_TRIES_MAX, PIECE_BYTES};
use crate::store::{Edit, Held, Meta, Step, Store, StoreError, View, Watched};
use pieces::{Making, fill, read_window};
pub use plan::{Keeps, Layer, Plan, Source};
use sources::Sources;
pub use sources::len_of;

/// What unpacking keeps beside the piece.
const UNPACK_BYTES: usize = 16 << 10;

/// A change of values in pieces that is under way.
pub struct Long<L, U> {
    watched: Vec<Watched>,
    sources: Sources<L>,
    plan: Option<Plan>,
    window_done: bool,
    making: Making,
    /// Where a result in pieces goes.
    upload: Option<U>,
    /// And one that is not.
    short: Vec<u8>,
    reply: Vec<u8>,
    /// Why the result could not be made, unless something has changed.
    failed: Option<Fault>,
    granted_bytes: usize,
}

/// The same, in a store.
type LongIn<S> = Long<<S as Store>::Large, <S as Store>::Upload>;

impl<L, U> Default for Long<L, U> {
    fn default() -> Self {
        Long {
            watched: Vec::new(),
            sources: Sources::default(),
            plan: None,
            window_done: false,
            making: Making::default(),
            upload: None,
            short: Vec::new(),
            reply: Vec::new(),
            failed: None,
            granted_bytes: 0,
        }
    }
}

impl<L, U> Long<L, U> {
    /// Gives back all that it holds.
    pub fn end<S: Store<Large = L, Upload = U>>(self, store: &mut S) {
        for watched in self.watched {
            store.unwatch(watched);
        }
        self.sources.end(store);
        if let Some(upload) = self.upload {
            store.upload_abort(upload);
        }
        store.ungrant(self.granted_bytes);
    }

    fn grant<S: Store>(&mut self, store: &mut S, bytes: usize) -> Result<(), Fault> {
        if !store.grant(bytes) {
            return Err(Fault::Prefixed(
                "OOM",
                format!(
                    "the change of a value above {INLINE_MAX_BYTES} bytes needs {bytes} bytes of buffers, which the connections' \
                     budget does not have now; try again, or change fewer bytes at a time"
                ),
            ));
        }
        self.granted_bytes += bytes;
        Ok(())
    }
}

/// Whether a change of this value, whose result has so many bytes, is one of pieces.
pub fn is_long<S: Store>(value: &Held<S::Large>, result_bytes: u64) -> bool {
    matches!(value, Held::Large(_)) || result_bytes > INLINE_MAX_BYTES as u64
}

/// Makes the plan for keys that hold this.
type PlanOf<'j, S> = dyn Fn(&[View<<S as Store>::Large>]) -> Result<Option<Plan>, Fault> + 'j;
/// Changes the bytes of the window, and writes the reply.
type Patch<'j> = dyn Fn(&mut [u8], &Plan, &mut Vec<u8>) + 'j;

/// What a command says of its keys.
pub struct Job<'j, S: Store> {
    /// No two of them equal.
    pub keys: &'j [&'j [u8]],
    /// The argument of `Source::Arg`, unless it came in pieces.
    pub arg: &'j [u8],
    /// What is to be made of these values; none: what is for the way of short values.
    pub plan: &'j PlanOf<'j, S>,
    /// Changes the bytes of the window, and writes the reply for a result of this length.
    pub patch: &'j Patch<'j>,
}

enum Next {
    Through,
    /// Something has changed: all of it begins again.
    Stale,
    Flow(Step<()>),
}

/// Does a part of the job; when it is through, the reply is written.
pub fn run<S: Store>(cx: &mut Cx<'_, S>, job: &Job<'_, S>) -> Result<Flow<S::Large>, Fault> {
    let mut long = cx.progress.long.take().unwrap_or_default();
    let next = advance(cx, job, &mut long);
    match next {
        Ok(Next::Flow(step)) => {
            cx.progress.long = Some(long);
            Ok(match step {
                Step::Wait(wait) => Flow::Wait(wait),
                Step::Done(()) => Flow::OutputFull,
            })
        }
        Ok(Next::Through) => {
            cx.out.extend_from_slice(&long.reply);
            long.end(cx.store);
            Ok(Flow::Done)
        }
        Ok(Next::Stale) => {
            long.end(cx.store);
            cx.renew_task();
            cx.progress.seen += 1;
            if cx.progress.seen >= LONG_TRIES_MAX {
                return Err(Fault::text(format!(
                    "the value was changed by others {LONG_TRIES_MAX} times while this command made the new one; nothing was \
                     changed; try again"
                )));
            }
            Ok(Flow::OutputFull)
        }
        Err(fault) if long.plan.take().is_some() => {
            cx.renew_task();
            long.failed = Some(fault);
            cx.progress.long = Some(long);
            Ok(Flow::OutputFull)
        }
        Err(fault) => {
            long.end(cx.store);
            Err(fault)
        }
    }
}

/// A FLUSHALL by others takes the pieces away, those of a source and those of the result: what fails beside a change has not
/// failed for good.
fn after_all<S: Store>(
    cx: &mut Cx<'_, S>,
    keys: &[&[u8]],
    long: &mut LongIn<S>,
    fault: Fault,
) -> Result<Next, Fault> {
    let looked = cx.store.edit(cx.task, keys, &long.watched, &mut |seen| {
        Ok((Vec::new(), seen.unchanged))
    });
    match looked? {
        Step::Done(true) => Err(fault),
        Step::Done(false) => Ok(Next::Stale),
        Step::Wait(wait) => {
            long.failed = Some(fault);
            Ok(Next::Flow(Step::Wait(wait)))
        }
    }
}

fn advance<S: Store>(
    cx: &mut Cx<'_, S>,
    job: &Job<'_, S>,
    long: &mut LongIn<S>,
) -> Result<Next, Fault> {
    if let Some(fault) = long.failed.take() {
        return after_all(cx, job.keys, long, fault);
    }
    if long.sources.values.is_empty() {
        step!(look(cx, job.keys, long));
    }
    let Some(plan) = long.plan.take() else {
        return begin(cx, job, long);
    };
    let next = make(cx, job, long, &plan);
    long.plan = Some(plan);
    next
}

/// Watches the keys and looks at all of them at one moment.
fn look<S: Store>(
    cx: &mut Cx<'_, S>,
    keys: &[&[u8]],
    long: &mut LongIn<S>,
) -> Result<Step<()>, Fault> {
    if long.watched.is_empty() {
        long.watched = keys.iter().map(|key| cx.store.watch(key)).collect();
    }
    let looked = cx
        .store
        .edit(cx.task, keys, &[], &mut |seen| Ok((Vec::new(), seen.views)))?;
    let values = match looked {
        Step::Wait(wait) => return Ok(Step::Wait(wait)),
        Step::Done(values) => values,
    };
    cx.renew_task();
    for (watched, view) in long.watched.iter_mut().zip(&values) {
        watched.existed = view.exists();
    }
    let inline = values.iter().map(|view| match &view.value {
        Held::Inline(bytes) => bytes.len(),
        _ => 0,
    });
    let inline_bytes = inline.sum();
    long.sources.values = values;
    long.grant(cx.store, inline_bytes)?;
    Ok(Step::Done(()))
}

/// Makes the plan and has its memory granted.
fn begin<S: Store>(
    cx: &mut Cx<'_, S>,
    job: &Job<'_, S>,
    long: &mut LongIn<S>,
) -> Result<Next, Fault> {
    let Some(plan) = (job.plan)(&long.sources.values)? else {
        return Ok(Next::Stale);
    };
    if plan.len > STRING_MAX_BYTES {
        return Err(Fault::text(
            "string exceeds maximum allowed size (proto-max-bulk-len)",
        ));
    }
    let most = cx.shared.max_value_bytes;
    if plan.len > most {
        return Err(Fault::text(format!(
            "value would be {} bytes long; at most {most} are allowed; split it over several keys",
            plan.len
        )));
    }
    if plan.len == 0 {
        return Ok(Next::Stale);
    }
    let window_bytes = (plan.window.end - plan.window.start) as usize;
    let short_bytes = if is_short(&plan) {
        plan.len as usize
    } else {
        0
    };
    // The window twice: as it was, and as it becomes.
    let bytes = PIECE_BYTES + UNPACK_BYTES + 2 * window_bytes + short_bytes;
    long.grant(cx.store, bytes)?;
    long.making.window = vec![0; window_bytes];
    long.making.next = plan.window.start / PIECE_BYTES as u64;
    if let Some(upload) = cx.large.first().and_then(|arg| arg.upload.as_ref()) {
        long.sources.arg = Some(Held::Large(cx.store.upload_hold(upload)?));
    }
    long.plan = Some(plan);
    // The rest is for the next step, so that this one never does two.
    Ok(Next::Flow(Step::Done(())))
}

/// Reads the window, brings the result in, and puts it in place.
fn make<S: Store>(
    cx: &mut Cx<'_, S>,
    job: &Job<'_, S>,
    long: &mut LongIn<S>,
    plan: &Plan,
) -> Result<Next, Fault> {
    if !long.window_done {
        if !step!(read_window(cx, &long.sources, plan, &mut long.making)) {
            return Ok(Next::Flow(Step::Done(())));
        }
        let before = long.making.window.clone();
        (job.patch)(&mut long.making.window, plan, &mut long.reply);
        let source = match plan.layers.first() {
            Some(&Layer::Value(at, _)) => long.sources.len_of::<S>(at),
            _ => None,
        };
        if plan.only_if_changed && before == long.making.window && source == Some(plan.len) {
            return Ok(Next::Through);
        }
        long.window_done = true;
        long.making.next = 0;
    }
    if long.upload.is_none() && !is_short(plan) {
        let upload = step!(cx.store.upload_begin(cx.task, plan.len));
        long.upload = Some(upload);
        cx.renew_task();
    }
    let pieces = plan.len.div_ceil(PIECE_BYTES as u64);
    let mut left = LONG_STEPS_MAX;
    loop {
        if long.making.next == pieces {
            return commit(cx, job.keys, long, plan);
        }
        if !step!(fill(
            cx,
            job.arg,
            &long.sources,
            plan,
            &mut long.making,
            &mut left
        )) {
            return Ok(Next::Flow(Step::Done(())));
        }
        match &mut long.upload {
            Some(upload) => {
                let piece = &long.making.bytes;
                step!(cx.store.upload_piece(cx.task, upload, piece));
                cx.renew_task();
            }
            None => long.short.extend_from_slice(&long.making.bytes),
        }
        long.making.go_on();
    }
}

/// Whether the result is no value in pieces.
fn is_short(plan: &Plan) -> bool {
    plan.len <= INLINE_MAX_BYTES as u64
}

/// Puts the result in place, if all is as it was.
fn commit<S: Store>(
    cx: &mut Cx<'_, S>,
    keys: &[&[u8]],
    long: &mut LongIn<S>,
    plan: &Plan,
) -> Result<Next, Fault> {
    let Long {
        watched,
        upload,
        short,
        ..
    } = long;
    let uploads = std::slice::from_mut(upload);
    let committed = cx
        .store
        .edit_with(cx.task, keys, watched, uploads, &mut |seen| {
            // One that has expired was changed by nobody.
            let same = watched
                .iter()
                .zip(&seen.views)
                .all(|(w, v)| w.existed == v.exists());
            if !seen.unchanged || !same {
                return Ok((Vec::new(), false));
            }
            let (expiry_ms, meta) = kept::<S>(plan, &seen.views, seen.new_cas)?;
            let edit = match is_short(plan) {
                true => Edit::Put {
                    value: short.clone(),
                    expiry_ms,
                    meta,
                },
                false => Edit::Upload {
                    nr: 0,
                    expiry_ms,
                    meta,
                },
            };
            Ok((vec![(plan.target, edit)], true))
        });
    Ok(match step!(committed) {
        true => Next::Through,
        false => Next::Stale,
    })
}

fn kept<S: Store>(
    plan: &Plan,
    views: &[View<S::Large>],
    cas: u64,
) -> Result<(Option<u64>, Option<Meta>), StoreError> {
    let of = |at: usize| {
        views
            .get(at)
            .ok_or_else(|| StoreError::err("no key was shown"))
    };
    Ok(match plan.keeps {
        Keeps::Own => {
            let view = of(plan.target)?;
            (view.expiry_ms, view.meta.map(|meta| Meta { cas, ..meta }))
        }
        Keeps::Of(at) => (of(at)?.expiry_ms, of(at)?.meta),
        Keeps::These(expiry_ms, meta) => (expiry_ms, meta),
    })
}
