//! Changes of values in pieces: the sources are held at one moment, the result is brought in piece by piece as that of a
//! SET is, and one edit puts it in place if nobody has changed a key meanwhile; else all of it begins again, a bounded
//! number of times. Promises: holds one piece and the bytes that change, granted by the connections' budget; makes way for
//! others every few pieces; a crash leaves the old value or the new one. Never: keeps anything held between two steps but
//! versions of values.

use std::ops::Range;

use terrace_kv::strings::STRING_MAX_BYTES;
use terrace_kv::strings::bits::{self, BitOp};

use super::{Cx, Fault, Flow};
use crate::limits::{INLINE_MAX_BYTES, LONG_STEPS_MAX, LONG_TRIES_MAX, PIECE_BYTES};
use crate::store::{Edit, Held, Meta, Step, Store, StoreError, View, Watched};

/// Whose expiry and memcached's part of it the result is kept with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Those of the key that gets it, under a new token.
    Own,
    /// Those of the key of this number.
    Of(usize),
    /// None.
    Nothing,
}

/// What is to be made of the keys of a command.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of the key that gets the result.
    pub target: usize,
    /// The numbers of the keys whose values make it.
    pub sources: Vec<usize>,
    /// How, if not one alone does.
    pub op: Option<BitOp>,
    /// Its length, bytes.
    pub len: u64,
    /// The bytes of it that change, zeros where the source has none.
    pub window: Range<u64>,
    /// A result that is the value before is no change.
    pub only_if_changed: bool,
    /// What it is kept with.
    pub keeps: Keeps,
}

impl Plan {
    /// A change of some bytes of the first key.
    pub fn patch(len: u64, window: Range<u64>) -> Plan {
        Plan {
            target: 0,
            sources: vec![0],
            op: None,
            len,
            window,
            only_if_changed: false,
            keeps: Keeps::Own,
        }
    }
}

/// A change of values in pieces that is under way.
pub struct Long<S: Store> {
    watched: Vec<Watched>,
    /// The values of the keys at one moment; none before they were looked at.
    values: Option<Vec<Held<S::Large>>>,
    plan: Option<Plan>,
    window: Vec<u8>,
    window_done: bool,
    /// The next piece that is read for the window, or made.
    next: u64,
    /// How many sources are in the piece.
    sources_in: usize,
    piece: Vec<u8>,
    upload: Option<S::Upload>,
    reply: Vec<u8>,
    granted_bytes: usize,
}

impl<S: Store> Default for Long<S> {
    fn default() -> Self {
        Long {
            watched: Vec::new(),
            values: None,
            plan: None,
            window: Vec::new(),
            window_done: false,
            next: 0,
            sources_in: 0,
            piece: Vec::new(),
            upload: None,
            reply: Vec::new(),
            granted_bytes: 0,
        }
    }
}

impl<S: Store> Long<S> {
    /// Gives back all that it holds.
    pub fn end(self, store: &mut S) {
        for watched in self.watched {
            store.unwatch(watched);
        }
        for value in self.values.unwrap_or_default() {
            if let Held::Large(large) = value {
                store.release(large);
            }
        }
        if let Some(upload) = self.upload {
            store.upload_abort(upload);
        }
        store.ungrant(self.granted_bytes);
    }

    fn grant(&mut self, store: &mut S, bytes: usize) -> Result<(), Fault> {
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

    /// The lengths of the values that were looked at; none: no such key.
    fn lens(&self) -> Vec<Option<u64>> {
        let len = |value: &Held<S::Large>| match value {
            Held::Absent => None,
            Held::Inline(bytes) => Some(bytes.len() as u64),
            Held::Large(large) => Some(S::large_len(large)),
        };
        self.values.iter().flatten().map(len).collect()
    }
}

/// The length of a value in a view; none: no such key.
pub fn len_of<S: Store>(view: &View<S::Large>) -> Option<u64> {
    match &view.value {
        Held::Absent => None,
        Held::Inline(bytes) => Some(bytes.len() as u64),
        Held::Large(large) => Some(S::large_len(large)),
    }
}

/// Whether a change of this value, whose result has so many bytes, is one of pieces.
pub fn is_long<S: Store>(value: &Held<S::Large>, result_bytes: u64) -> bool {
    S::IN_PIECES && (matches!(value, Held::Large(_)) || result_bytes > INLINE_MAX_BYTES as u64)
}

/// Makes the plan for keys whose values have these lengths.
type PlanOf<'j> = dyn Fn(&[Option<u64>]) -> Result<Option<Plan>, Fault> + 'j;
/// Changes the bytes of the window, and writes the reply.
type Patch<'j> = dyn Fn(&mut [u8], &Plan, &mut Vec<u8>) + 'j;

/// What a command says of its keys.
pub struct Job<'j> {
    /// No two of them equal.
    pub keys: &'j [&'j [u8]],
    /// What is to be made of values of these lengths; none: what is for the way of short values.
    pub plan: &'j PlanOf<'j>,
    /// Changes the bytes of the window, and writes the reply for a result of this length.
    pub patch: &'j Patch<'j>,
}

enum Next {
    Through,
    /// Something has changed: all of it begins again.
    Stale,
    Flow(Step<()>),
}

/// Leaves a step that must wait.
macro_rules! step {
    ($outcome:expr) => {
        match $outcome? {
            Step::Done(value) => value,
            Step::Wait(wait) => return Ok(Next::Flow(Step::Wait(wait))),
        }
    };
}

/// Does a part of the job; when it is through, the reply is written.
pub fn run<S: Store>(cx: &mut Cx<'_, S>, job: &Job<'_>) -> Result<Flow<S::Large>, Fault> {
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
        Err(fault) => {
            long.end(cx.store);
            Err(fault)
        }
    }
}

fn advance<S: Store>(cx: &mut Cx<'_, S>, job: &Job<'_>, long: &mut Long<S>) -> Result<Next, Fault> {
    if long.values.is_none() {
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
    long: &mut Long<S>,
) -> Result<Step<()>, Fault> {
    if long.watched.is_empty() {
        long.watched = keys.iter().map(|key| cx.store.watch(key)).collect();
    }
    let looked = cx.store.edit(cx.task, keys, &[], &mut |seen| {
        let values: Vec<_> = seen.views.into_iter().map(|view| view.value).collect();
        Ok((Vec::new(), values))
    })?;
    let values = match looked {
        Step::Wait(wait) => return Ok(Step::Wait(wait)),
        Step::Done(values) => values,
    };
    cx.renew_task();
    for (watched, value) in long.watched.iter_mut().zip(&values) {
        watched.existed = !matches!(value, Held::Absent);
    }
    let inline = values.iter().map(|value| match value {
        Held::Inline(bytes) => bytes.len(),
        _ => 0,
    });
    let inline_bytes = inline.sum();
    long.values = Some(values);
    long.grant(cx.store, inline_bytes)?;
    Ok(Step::Done(()))
}

/// Makes the plan and has its memory granted.
fn begin<S: Store>(cx: &mut Cx<'_, S>, job: &Job<'_>, long: &mut Long<S>) -> Result<Next, Fault> {
    let Some(plan) = (job.plan)(&long.lens())? else {
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
    if plan.len <= INLINE_MAX_BYTES as u64 {
        return Ok(Next::Stale);
    }
    let window_bytes = (plan.window.end - plan.window.start) as usize;
    // The window twice: as it was, and as it becomes.
    long.grant(cx.store, PIECE_BYTES + 2 * window_bytes)?;
    long.window = vec![0; window_bytes];
    long.next = plan.window.start / PIECE_BYTES as u64;
    long.plan = Some(plan);
    // The rest is for the next step, so that this one never does two.
    Ok(Next::Flow(Step::Done(())))
}

/// Reads the window, brings the result in, and puts it in place.
fn make<S: Store>(
    cx: &mut Cx<'_, S>,
    job: &Job<'_>,
    long: &mut Long<S>,
    plan: &Plan,
) -> Result<Next, Fault> {
    if !long.window_done {
        if !step!(read_window(cx, long, plan)) {
            return Ok(Next::Flow(Step::Done(())));
        }
        let before = long.window.clone();
        (job.patch)(&mut long.window, plan, &mut long.reply);
        let source = plan.sources.first().and_then(|&at| long.lens()[at]);
        if plan.only_if_changed && before == long.window && source == Some(plan.len) {
            return Ok(Next::Through);
        }
        long.window_done = true;
        long.next = 0;
    }
    if long.upload.is_none() {
        let upload = step!(cx.store.upload_begin(cx.task, plan.len));
        long.upload = Some(upload);
        cx.renew_task();
    }
    let pieces = plan.len.div_ceil(PIECE_BYTES as u64);
    let mut left = LONG_STEPS_MAX;
    loop {
        if long.next == pieces {
            return commit(cx, job.keys, long, plan);
        }
        if !step!(fill(cx, long, plan, &mut left)) {
            return Ok(Next::Flow(Step::Done(())));
        }
        let Some(upload) = &mut long.upload else {
            return Ok(Next::Stale);
        };
        step!(cx.store.upload_piece(cx.task, upload, &long.piece));
        cx.renew_task();
        long.next += 1;
        long.sources_in = 0;
    }
}

/// What two ranges share, as places in each.
fn shared(a: &Range<u64>, b: &Range<u64>) -> Option<(Range<usize>, Range<usize>)> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    let within = |r: &Range<u64>| (both.start - r.start) as usize..(both.end - r.start) as usize;
    (!both.is_empty()).then(|| (within(a), within(b)))
}

/// Copies what a source has of the window; answers whether that is all of it.
fn read_window<S: Store>(
    cx: &mut Cx<'_, S>,
    long: &mut Long<S>,
    plan: &Plan,
) -> Result<Step<bool>, Fault> {
    let values = long.values.as_deref().unwrap_or_default();
    let window = &mut long.window;
    let mut copy = |bytes: &[u8], from: u64| {
        let here = from..from + bytes.len() as u64;
        if let Some((at, of)) = shared(&plan.window, &here) {
            window[at].copy_from_slice(&bytes[of]);
        }
    };
    let large = match plan.sources.first().map(|&at| &values[at]) {
        Some(Held::Large(large)) => large,
        Some(Held::Inline(bytes)) => {
            copy(bytes, 0);
            return Ok(Step::Done(true));
        }
        _ => return Ok(Step::Done(true)),
    };
    let end = plan.window.end.min(S::large_len(large));
    let mut left = LONG_STEPS_MAX;
    while long.next * (PIECE_BYTES as u64) < end && !plan.window.is_empty() {
        if left == 0 {
            return Ok(Step::Done(false));
        }
        left -= 1;
        let (n, from) = (long.next as u32, long.next * PIECE_BYTES as u64);
        let read = cx
            .store
            .read_piece(cx.task, large, n, |bytes| copy(bytes, from));
        if let Step::Wait(wait) = read? {
            return Ok(Step::Wait(wait));
        }
        cx.renew_task();
        long.next += 1;
    }
    Ok(Step::Done(true))
}

/// Makes the next piece of the result, of so many sources more at most; answers whether it is whole.
fn fill<S: Store>(
    cx: &mut Cx<'_, S>,
    long: &mut Long<S>,
    plan: &Plan,
    left: &mut usize,
) -> Result<Step<bool>, Fault> {
    let from = long.next * PIECE_BYTES as u64;
    let here = from..plan.len.min(from + PIECE_BYTES as u64);
    let len = (here.end - here.start) as usize;
    if long.sources_in == 0 {
        long.piece.clear();
        long.piece.resize(len, 0);
    }
    let values = long.values.as_deref().unwrap_or_default();
    while let Some(&at) = plan.sources.get(long.sources_in) {
        if *left == 0 {
            return Ok(Step::Done(false));
        }
        *left -= 1;
        let op = plan
            .op
            .filter(|op| long.sources_in > 0 || *op == BitOp::Not);
        let piece = &mut long.piece;
        match &values[at] {
            Held::Large(large) if from < S::large_len(large) => {
                let n = long.next as u32;
                let read = cx.store.read_piece(cx.task, large, n, |bytes| {
                    join(piece, bytes, op);
                });
                if let Step::Wait(wait) = read? {
                    return Ok(Step::Wait(wait));
                }
                cx.renew_task();
            }
            Held::Inline(bytes) => join(piece, bytes.get(from as usize..).unwrap_or(&[]), op),
            _ => join(piece, &[], op),
        }
        long.sources_in += 1;
    }
    if let Some((to, of)) = shared(&here, &plan.window) {
        long.piece[to].copy_from_slice(&long.window[of]);
    }
    Ok(Step::Done(true))
}

/// Brings a source into a piece: without an operation it is the first.
fn join(piece: &mut [u8], source: &[u8], op: Option<BitOp>) {
    let source = &source[..source.len().min(piece.len())];
    match op {
        None => piece[..source.len()].copy_from_slice(source),
        Some(BitOp::Not) => {
            piece[..source.len()].copy_from_slice(source);
            piece.iter_mut().for_each(|byte| *byte = !*byte);
        }
        Some(op) => bits::combine_into(op, piece, source),
    }
}

/// Puts the result in place, if all is as it was.
fn commit<S: Store>(
    cx: &mut Cx<'_, S>,
    keys: &[&[u8]],
    long: &mut Long<S>,
    plan: &Plan,
) -> Result<Next, Fault> {
    let Long {
        watched, upload, ..
    } = long;
    let committed = cx
        .store
        .edit_with(cx.task, keys, watched, upload, &mut |seen| {
            // One that has expired was changed by nobody.
            let same = watched
                .iter()
                .zip(&seen.views)
                .all(|(w, v)| w.existed == v.exists());
            if !seen.unchanged || !same {
                return Ok((Vec::new(), false));
            }
            let (expiry_ms, meta) = kept::<S>(plan, &seen.views, seen.new_cas)?;
            Ok((vec![(plan.target, Edit::Upload { expiry_ms, meta })], true))
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
        Keeps::Nothing => (None, None),
    })
}
