//! LCS. The values are looked at at one moment, brought to memory that the connections' budget grants, and searched in steps,
//! between which others are served. Never: searches with a key locked.

use terrace_kv::strings::lcs;

use super::{Cx, Done, Fault, Flow, NOT_AN_INTEGER, SYNTAX, long, ready};
use crate::limits::{LCS_STEP_PAIRS, LONG_STEPS_MAX, PIECE_BYTES};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::{Held, Step, Store, StoreError};

/// An LCS under way.
pub struct Common<L> {
    /// The values, and what was brought of each.
    values: Vec<(Held<L>, Vec<u8>)>,
    search: Option<lcs::Search>,
    granted_bytes: usize,
}

impl<L> Common<L> {
    /// Gives back all that it holds.
    pub fn end<S: Store<Large = L>>(self, store: &mut S) {
        for (value, _) in self.values {
            if let Held::Large(large) = value {
                store.release(large);
            }
        }
        store.ungrant(self.granted_bytes);
    }
}

struct LcsOptions {
    len: bool,
    idx: bool,
    with_len: bool,
    least: i64,
}

fn lcs_options(options: &[&[u8]]) -> Result<LcsOptions, Fault> {
    let mut found = LcsOptions {
        len: false,
        idx: false,
        with_len: false,
        least: 0,
    };
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        if option.eq_ignore_ascii_case(b"IDX") {
            found.idx = true;
        } else if option.eq_ignore_ascii_case(b"LEN") {
            found.len = true;
        } else if option.eq_ignore_ascii_case(b"WITHMATCHLEN") {
            found.with_len = true;
        } else if option.eq_ignore_ascii_case(b"MINMATCHLEN") {
            let text = rest.next().ok_or(SYNTAX)?;
            found.least = integer(text).ok_or(NOT_AN_INTEGER)?.max(0);
        } else {
            return Err(SYNTAX);
        }
    }
    match found.idx && found.len {
        true => Err(Fault::text(
            "If you want both the length and indexes, please just use IDX.",
        )),
        false => Ok(found),
    }
}

/// LCS key1 key2 [LEN] [IDX] [MINMATCHLEN len] [WITHMATCHLEN]
pub fn lcs<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let options = lcs_options(&args[3..])?;
    let mut common = match cx.progress.common.take() {
        Some(common) => common,
        None => Box::new(ready!(begin(cx, args))),
    };
    let through = advance(cx, &mut common);
    if let (Ok(Step::Done(true)), Some(search)) = (&through, &common.search) {
        let found = search.found();
        if options.len {
            encode::count(cx.out, found.bytes.len() as u64);
        } else if options.idx {
            show_matches(cx, &found, &options);
        } else {
            encode::bulk(cx.out, &found.bytes);
        }
        common.end(cx.store);
        return Ok(Flow::Done);
    }
    cx.progress.common = Some(common);
    Ok(match through? {
        Step::Wait(wait) => Flow::Wait(wait),
        Step::Done(_) => Flow::OutputFull,
    })
}

/// Looks at the values and has the memory granted.
fn begin<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> crate::store::Outcome<Common<S::Large>> {
    let keys = match args[1] == args[2] {
        true => &args[1..2],
        false => &args[1..3],
    };
    let looked = cx.store.edit(cx.task, keys, &[], &mut |seen| {
        let lens = seen.views.iter().map(|v| long::len_of::<S>(v).unwrap_or(0));
        let lens: Vec<u64> = lens.collect();
        let bytes = lcs::memory_bytes(lens[0], lens[lens.len() - 1])?;
        let values = seen.views.into_iter().map(|view| (view.value, Vec::new()));
        Ok((Vec::new(), (values.collect(), bytes)))
    })?;
    let (values, bytes) = match looked {
        Step::Done(looked) => looked,
        Step::Wait(wait) => return Ok(Step::Wait(wait)),
    };
    cx.renew_task();
    let mut common = Common {
        values,
        search: None,
        granted_bytes: 0,
    };
    if !cx.store.grant(bytes as usize) {
        common.end(cx.store);
        return Err(StoreError {
            prefix: "OOM",
            text: format!(
                "LCS of these values needs {bytes} bytes of buffers, which the connections' budget does not have now; try again, or \
                 compare shorter ones"
            ),
        });
    }
    common.granted_bytes = bytes as usize;
    Ok(Step::Done(common))
}

/// Brings and searches a part; answers whether all is done.
fn advance<S: Store>(
    cx: &mut Cx<'_, S>,
    common: &mut Common<S::Large>,
) -> crate::store::Outcome<bool> {
    if common.search.is_none() {
        match gather(cx, common)? {
            Step::Done(true) => {}
            other => return Ok(other),
        }
    }
    let mut whole = common.values.iter_mut().map(|(value, bytes)| match value {
        Held::Inline(bytes) => std::mem::take(bytes),
        _ => std::mem::take(bytes),
    });
    let search = common.search.get_or_insert_with(|| {
        let first = whole.next().unwrap_or_default();
        let last = whole.next().unwrap_or_else(|| first.clone());
        lcs::Search::new(first, last)
    });
    Ok(Step::Done(search.advance(LCS_STEP_PAIRS)))
}

/// Brings a part of the values that are in pieces; answers whether all is there.
fn gather<S: Store>(
    cx: &mut Cx<'_, S>,
    common: &mut Common<S::Large>,
) -> crate::store::Outcome<bool> {
    let mut left = LONG_STEPS_MAX;
    for (value, bytes) in &mut common.values {
        let Held::Large(large) = value else { continue };
        bytes.reserve_exact(S::large_len(large) as usize - bytes.len());
        while (bytes.len() as u64) < S::large_len(large) {
            if left == 0 {
                return Ok(Step::Done(false));
            }
            left -= 1;
            let n = (bytes.len() / PIECE_BYTES) as u32;
            let read = cx.store.read_piece(cx.task, large, n, |piece| {
                bytes.extend_from_slice(piece);
                !piece.is_empty()
            });
            match read? {
                Step::Wait(wait) => return Ok(Step::Wait(wait)),
                Step::Done(true) => cx.renew_task(),
                Step::Done(false) => return Err(StoreError::err("a piece of a value is empty")),
            }
        }
    }
    Ok(Step::Done(true))
}

fn show_matches<S: Store>(cx: &mut Cx<'_, S>, found: &lcs::Lcs, options: &LcsOptions) {
    let wanted = |m: &&lcs::Match| i64::from(m.len_bytes()) >= options.least;
    let matches: Vec<_> = found.matches.iter().filter(wanted).collect();
    encode::map(cx.out, cx.session.resp3, 2);
    encode::bulk(cx.out, b"matches");
    encode::array(cx.out, matches.len());
    for m in matches {
        encode::array(cx.out, if options.with_len { 3 } else { 2 });
        for (first, last) in [m.a, m.b] {
            encode::array(cx.out, 2);
            encode::int(cx.out, i64::from(first));
            encode::int(cx.out, i64::from(last));
        }
        if options.with_len {
            encode::int(cx.out, i64::from(m.len_bytes()));
        }
    }
    encode::bulk(cx.out, b"len");
    encode::count(cx.out, found.bytes.len() as u64);
}
