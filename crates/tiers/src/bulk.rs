//! Many reads at once, handed over in the order asked. For recovery and checks.

use std::collections::VecDeque;
use std::time::Duration;
use terrace_media::{Buf, Disk, Done, MediaError, Op, Wait};

/// Reads under way at once.
const DEPTH: usize = 64;
/// Bytes of them, at most.
const WINDOW_BYTES: usize = 8 << 20;

/// Reads each (offset, length) of `list`; `f` gets number and result in order.
/// `sharers` threads do the same at once and share the bounds. Nothing else may be under way on `disk`.
pub(crate) fn read_in_order(
    disk: &mut dyn Disk,
    list: &[(u64, usize)],
    sharers: usize,
    mut f: impl FnMut(usize, Result<&[u8], MediaError>),
) {
    let (depth, window_bytes) = ((DEPTH / sharers).max(2), WINDOW_BYTES / sharers);
    let mut window: VecDeque<Option<Result<Buf, MediaError>>> = VecDeque::new();
    let (mut sent, mut given, mut bytes) = (0, 0, 0);
    let mut done: Vec<Done> = Vec::new();
    // Touching new memory costs more than reading into it: a buffer is used again.
    let mut spare: Vec<Buf> = Vec::new();
    while given < list.len() {
        while sent < list.len()
            && window.len() < depth
            && (bytes < window_bytes || window.is_empty())
        {
            let (offset, len) = list[sent];
            let fits = spare.iter().position(|b| b.len() == len);
            let buf = match fits {
                Some(at) => spare.swap_remove(at),
                None => Buf::zeroed(len),
            };
            disk.submit(sent as u64, Op::Read { offset, buf });
            window.push_back(None);
            bytes += len;
            sent += 1;
        }
        spare.clear();
        disk.reap(Wait::For(Duration::from_millis(100)), &mut done);
        for d in done.drain(..) {
            let at = (d.token as usize).checked_sub(given);
            if let Some(place) = at.and_then(|at| window.get_mut(at)) {
                *place = Some(d.result.and(d.buf.ok_or(MediaError::Crashed)));
            }
        }
        while let Some(Some(_)) = window.front() {
            let result = window.pop_front().flatten().expect("seen");
            bytes -= list[given].1;
            f(given, result.as_deref().map_err(Clone::clone));
            spare.extend(result);
            given += 1;
        }
    }
}
