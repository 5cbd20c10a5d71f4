//! What became of the commands of a transaction, and how they are counted once it is through. Never: counts one that is given up.

use crate::commands::Cx;
use crate::store::Store;

/// What became of a command of a transaction.
pub struct Ended {
    pub kind: u16,
    pub ns: u64,
    /// The first word of its error.
    pub error: Option<String>,
}

/// The first word of a reply that is an error.
pub fn error_of(reply: &[u8]) -> Option<String> {
    let word = reply.strip_prefix(b"-")?.split(|b| *b == b' ').next()?;
    Some(String::from_utf8_lossy(word).into_owned())
}

/// Counts the commands of a transaction that is through.
pub fn count<'q, S: Store>(
    cx: &mut Cx<'_, S>,
    ended: &[Ended],
    args: impl Iterator<Item = &'q [Box<[u8]>]>,
) {
    // As commands they were counted when they came.
    for (Ended { kind, ns, error }, args) in ended.iter().zip(args) {
        cx.counters.calls.took(*kind, *ns);
        if let Some(prefix) = error {
            cx.shared.count_error(cx.counters, prefix);
            cx.counters.calls.failed(*kind, true);
        }
        if cx.shared.slow.is_slow(*ns) {
            let args: Vec<&[u8]> = args.iter().map(|arg| &**arg).collect();
            let slow = &cx.shared.slow;
            slow.note_command(*kind, &cx.session.client, &args, *ns);
        }
    }
}
