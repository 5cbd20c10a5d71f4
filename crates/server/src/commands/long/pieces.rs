//! The pieces of a result, made of those of its sources one after the other. Promises: a bounded number of reads in a step.
//! Never: holds more of a source than the piece that is read.

use std::ops::Range;

use terrace_kv::strings::bits::{self, BitOp};
use terrace_kv::strings::lzf::Unpacker;

use super::plan::{Layer, Plan, Source};
use super::sources::Sources;
use crate::commands::{Cx, Fault};
use crate::limits::{LONG_STEPS_MAX, PIECE_BYTES};
use crate::store::{Held, Step, Store};

const PIECE: u64 = PIECE_BYTES as u64;

/// Where the making of a piece stands.
#[derive(Default)]
pub struct Making {
    /// The bytes of the result that change.
    pub window: Vec<u8>,
    /// The next piece that is read for the window, or made.
    pub next: u64,
    /// The piece.
    pub bytes: Vec<u8>,
    /// How many layers are in it.
    layers_in: usize,
    /// How many bytes of the next layer are.
    bytes_in: u64,
    /// What unpacks the argument, and how many bytes of it that took.
    unpacker: Option<(Unpacker, u64)>,
}

impl Making {
    /// The piece is through.
    pub fn go_on(&mut self) {
        self.next += 1;
        self.layers_in = 0;
    }
}

/// What two ranges share, as places in each.
fn shared(a: &Range<u64>, b: &Range<u64>) -> Option<(Range<usize>, Range<usize>)> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    let within = |r: &Range<u64>| (both.start - r.start) as usize..(both.end - r.start) as usize;
    (!both.is_empty()).then(|| (within(a), within(b)))
}

/// Shows `f` the bytes of a source from a place on, as far as they are at hand in one piece; `arg` is the argument, if that came whole.
fn read<S: Store>(
    cx: &mut Cx<'_, S>,
    arg: &[u8],
    sources: &Sources<S::Large>,
    (source, from): (Source, u64),
    f: impl FnOnce(&[u8]),
) -> Result<Step<()>, Fault> {
    let value = match source {
        Source::Key(at) => sources.values.get(at).map(|view| &view.value),
        Source::Arg => sources.arg.as_ref(),
    };
    match value {
        Some(Held::Large(large)) if from < S::large_len(large) => {
            let (n, skip) = ((from / PIECE) as u32, (from % PIECE) as usize);
            let read = cx.store.read_piece(cx.task, large, n, |bytes| {
                f(bytes.get(skip..).unwrap_or_default());
            });
            if let Step::Wait(wait) = read? {
                return Ok(Step::Wait(wait));
            }
            cx.renew_task();
        }
        Some(Held::Inline(bytes)) => f(bytes.get(from as usize..).unwrap_or_default()),
        None if source == Source::Arg => f(arg.get(from as usize..).unwrap_or_default()),
        _ => f(&[]),
    }
    Ok(Step::Done(()))
}

/// Copies what the lowest layer has of the window; answers whether that is all of it.
pub fn read_window<S: Store>(
    cx: &mut Cx<'_, S>,
    sources: &Sources<S::Large>,
    plan: &Plan,
    making: &mut Making,
) -> Result<Step<bool>, Fault> {
    let Some(&Layer::Value(at, _)) = plan.layers.first() else {
        return Ok(Step::Done(true));
    };
    let end = plan.window.end.min(sources.len_of::<S>(at).unwrap_or(0));
    let mut left = LONG_STEPS_MAX;
    while making.next * PIECE < end && !plan.window.is_empty() {
        if left == 0 {
            return Ok(Step::Done(false));
        }
        left -= 1;
        let from = making.next * PIECE;
        let step = read(cx, &[], sources, (Source::Key(at), from), |bytes| {
            let bytes = &bytes[..bytes.len().min(PIECE_BYTES)];
            let here = from..from + bytes.len() as u64;
            if let Some((to, of)) = shared(&plan.window, &here) {
                making.window[to].copy_from_slice(&bytes[of]);
            }
        });
        if let Step::Wait(wait) = step? {
            return Ok(Step::Wait(wait));
        }
        making.next += 1;
    }
    Ok(Step::Done(true))
}

/// Makes the next piece of the result, with so many reads at most; answers whether it is whole.
pub fn fill<S: Store>(
    cx: &mut Cx<'_, S>,
    arg: &[u8],
    sources: &Sources<S::Large>,
    plan: &Plan,
    making: &mut Making,
    left: &mut usize,
) -> Result<Step<bool>, Fault> {
    let from = making.next * PIECE;
    let here = from..plan.len.min(from + PIECE);
    if making.layers_in == 0 && making.bytes_in == 0 {
        making.bytes.clear();
        making.bytes.resize((here.end - here.start) as usize, 0);
    }
    while let Some(layer) = plan.layers.get(making.layers_in) {
        if *left == 0 {
            return Ok(Step::Done(false));
        }
        *left -= 1;
        let piece = &mut making.bytes;
        let step = match layer {
            Layer::Value(at, op) => {
                let op = op.filter(|op| making.layers_in > 0 || *op == BitOp::Not);
                let source = (Source::Key(*at), from);
                read(cx, arg, sources, source, |bytes| join(piece, bytes, op))
            }
            Layer::Copy(source, bytes, to) => {
                let place = *to..*to + (bytes.end - bytes.start);
                let Some((at, _)) = shared(&here, &place) else {
                    making.layers_in += 1;
                    continue;
                };
                let at = at.start + making.bytes_in as usize..at.end;
                let of = bytes.start + (here.start + at.start as u64 - place.start);
                let mut got = 0;
                let step = read(cx, arg, sources, (*source, of), |bytes| {
                    got = bytes.len().min(at.len());
                    piece[at.start..at.start + got].copy_from_slice(&bytes[..got]);
                });
                if matches!(step, Ok(Step::Done(()))) && got < at.len() {
                    if got == 0 {
                        return Err(Fault::text("a source of the new value is too short"));
                    }
                    // The rest of it lies in the source's next piece.
                    making.bytes_in += got as u64;
                    continue;
                }
                step
            }
            Layer::Unpacked(bytes) => {
                let (unpacker, taken) = making.unpacker.get_or_insert_default();
                let wanted = piece.len();
                let mut corrupt = false;
                let source = (Source::Arg, bytes.start + *taken);
                let packed_left = bytes.end - bytes.start - *taken;
                let step = match unpacker.ready() >= wanted {
                    true => Ok(Step::Done(())),
                    false => read(cx, arg, sources, source, |packed| {
                        let most = packed.len().min(packed_left as usize);
                        match unpacker.feed(&packed[..most], wanted) {
                            Some(fed) if fed > 0 || unpacker.ready() >= wanted => {
                                *taken += fed as u64
                            }
                            _ => corrupt = true,
                        }
                    }),
                };
                if corrupt {
                    return Err(Fault::text("Bad data format"));
                }
                if matches!(step, Ok(Step::Done(()))) {
                    if unpacker.ready() < wanted {
                        continue;
                    }
                    unpacker.take(piece);
                    let is_last = here.end == plan.len;
                    if is_last && (*taken < bytes.end - bytes.start || !unpacker.is_through()) {
                        return Err(Fault::text("Bad data format"));
                    }
                }
                step
            }
        };
        if let Step::Wait(wait) = step? {
            return Ok(Step::Wait(wait));
        }
        making.layers_in += 1;
        making.bytes_in = 0;
    }
    if let Some((to, of)) = shared(&here, &plan.window) {
        making.bytes[to].copy_from_slice(&making.window[of]);
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
