//! SCAN: the store's cursor in small steps, filtered by pattern and type, until enough keys were seen or the reply is
//! long enough. The memory a scan takes is bounded whatever COUNT says.

use super::{Cx, Done, Fault, Flow, NOT_AN_INTEGER, SYNTAX, ready};
use crate::glob;
use crate::limits::{
    KEYS_STEPS_MAX, PATTERN_MAX_BYTES, PATTERN_SHORT_BYTES, PATTERN_WORK_MAX, SCAN_REPLY_BYTES,
    SCAN_STEP_KEYS,
};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::store::Store;

/// What a command that goes through all keys does in one go: so many steps, and so much comparing, before others are served.
pub(super) struct Turn<'a> {
    pattern: &'a [u8],
    steps: usize,
    work: usize,
}

impl<'a> Turn<'a> {
    pub(super) fn of(pattern: &'a [u8]) -> Result<Self, Fault> {
        let len = pattern.len();
        if len > PATTERN_MAX_BYTES {
            return Err(Fault::text(format!(
                "the pattern is {len} bytes long; at most {PATTERN_MAX_BYTES} are allowed"
            )));
        }
        Ok(Turn {
            pattern,
            steps: 0,
            work: 0,
        })
    }

    pub(super) fn goes_on(&self) -> bool {
        self.steps < KEYS_STEPS_MAX && self.work < PATTERN_WORK_MAX
    }

    /// How many keys the next step asks for: the longer the pattern, the fewer, as each may be as much work as it is long.
    pub(super) fn next_keys(&mut self) -> usize {
        self.steps += 1;
        (SCAN_STEP_KEYS * PATTERN_SHORT_BYTES / self.pattern.len().max(PATTERN_SHORT_BYTES)).max(1)
    }

    pub(super) fn matches(&mut self, key: &[u8]) -> bool {
        self.work += self.pattern.len() * key.len();
        glob::matches(self.pattern, key)
    }
}

struct Options<'a> {
    count: u64,
    pattern: Option<&'a [u8]>,
    strings: bool,
}

fn options<'a>(args: &[&'a [u8]]) -> Result<Options<'a>, Fault> {
    let mut found = Options {
        count: 10,
        pattern: None,
        strings: true,
    };
    for option in args.chunks(2) {
        let [name, value] = option else {
            return Err(SYNTAX);
        };
        if name.eq_ignore_ascii_case(b"COUNT") {
            let count = integer(value).ok_or(NOT_AN_INTEGER)?;
            found.count = u64::try_from(count).ok().filter(|&c| c > 0).ok_or(SYNTAX)?;
        } else if name.eq_ignore_ascii_case(b"MATCH") {
            found.pattern = (*value != b"*").then_some(value);
        } else if name.eq_ignore_ascii_case(b"TYPE") {
            found.strings = value.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(found)
}

/// A cursor as Redis reads it: a decimal, negative ones wrapping around.
fn cursor(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix('-') {
        Some(digits) => digits.parse::<u64>().ok().map(u64::wrapping_neg),
        None => text.parse().ok(),
    }
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]
pub fn scan<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let start = cursor(args[1]).ok_or_else(|| Fault::text("invalid cursor"))?;
    let options = options(&args[2..])?;
    let mut turn = Turn::of(options.pattern.unwrap_or(b"*"))?;
    if cx.progress.seen == 0 {
        cx.progress.next = start;
    }
    while turn.goes_on() {
        let left = options.count.saturating_sub(cx.progress.seen);
        let asked = left.min(turn.next_keys() as u64) as usize;
        let (before, mut seen) = (cx.progress.found.len(), 0u64);
        let found = &mut cx.progress.found;
        let outcome = cx.store.scan(cx.task, cx.progress.next, asked, &mut |key| {
            seen += 1;
            if options.strings && turn.matches(key) {
                encode::bulk(found, key);
            }
        });
        let next = match outcome {
            Ok(crate::store::Step::Done(next)) => next,
            other => {
                cx.progress.found.truncate(before);
                ready!(other);
                return Ok(Flow::Done);
            }
        };
        cx.renew_task();
        cx.progress.next = next;
        cx.progress.seen += seen.max(1);
        if next == 0
            || cx.progress.seen >= options.count
            || cx.progress.found.len() > SCAN_REPLY_BYTES
        {
            answer(cx);
            return Ok(Flow::Done);
        }
    }
    Ok(Flow::OutputFull)
}

fn answer<S: Store>(cx: &mut Cx<'_, S>) {
    encode::array(cx.out, 2);
    encode::bulk(
        cx.out,
        itoa::Buffer::new().format(cx.progress.next).as_bytes(),
    );
    encode::array(cx.out, count_bulks(&cx.progress.found));
    cx.out.extend_from_slice(&cx.progress.found);
}

/// How many bulk strings stand one behind the other.
fn count_bulks(mut bulks: &[u8]) -> usize {
    let mut count = 0;
    while let Some(end) = memchr::memchr(b'\r', bulks) {
        let len = integer(&bulks[1..end]).unwrap_or(0) as usize;
        bulks = &bulks[end + 2 + len + 2..];
        count += 1;
    }
    count
}
