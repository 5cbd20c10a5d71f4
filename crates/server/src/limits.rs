//! The bounds of connections and commands, each with its unit in its name; those of metrics, passwords and cutting off stand in `sight/http`, `auth`,
//! `relief` and `service`. Never: a setting, which live in `ServerOptions`.

/// The longest key, as the store promises it.
pub const KEY_MAX_BYTES: usize = terrace_kv::KEY_MAX_BYTES;
/// The longest value that is handed over in one piece; longer ones are streamed.
pub const INLINE_MAX_BYTES: usize = terrace_kv::INLINE_MAX_BYTES;
/// The longest value at all.
pub const VALUE_MAX_BYTES: u64 = terrace_kv::VALUE_MAX_BYTES;
/// The pieces a streamed value consists of (all but the last have exactly this length).
pub const PIECE_BYTES: usize = terrace_kv::PIECE_BYTES;
/// The longest bulk string the protocol lets a client announce (Redis's `proto-max-bulk-len`).
pub const BULK_MAX_BYTES: i64 = 512 << 20;
/// The longest argument that is passed over, so that its sender, who reads nothing before all is sent, gets to read why.
pub const PASSED_OVER_MAX_BYTES: i64 = 1 << 30;
/// What is read and dropped of a client that was told of a protocol error, for the same reason.
pub const LINGER_MAX_BYTES: u64 = 1 << 30;
/// And for how long.
pub const LINGER_MAX_MS: u64 = 10_000;
/// Such clients of one thread; with more, the connection is closed at once.
pub const LINGERING_MAX: usize = 256;
/// The most arguments of one command.
pub const MULTIBULK_MAX_ARGS: i64 = 1_048_576;
/// The most arguments of one command of a client that has not said the password (Redis's bound).
pub const UNTRUSTED_ARGS_MAX: i64 = 10;
/// And the longest of them.
pub const UNTRUSTED_BULK_MAX_BYTES: i64 = 16 << 10;
/// The longest inline command, and the longest header line (Redis's `PROTO_INLINE_MAX_SIZE`).
pub const INLINE_COMMAND_MAX_BYTES: usize = 64 << 10;
/// The longest line of memcached's protocol, data blocks not counted.
pub const MEMCACHED_LINE_MAX_BYTES: usize = 64 << 10;
/// The longest line before a data block (memcached's own bound): it is kept while the block comes in.
pub const MEMCACHED_STORE_LINE_MAX_BYTES: usize = 2 << 10;
/// The most bytes of small arguments that one command may bring.
pub const COMMAND_MAX_BYTES: usize = 16 << 20;
/// What one read takes from a socket.
pub const READ_MAX_BYTES: usize = 64 << 10;
/// An incomplete command longer than this is taken apart as it arrives, instead of being parsed again from its start.
pub const ASSEMBLE_ABOVE_BYTES: usize = 16 << 10;
/// The buffer that every thread reads into: a kept remainder and one read.
pub const SCRATCH_BYTES: usize = INLINE_COMMAND_MAX_BYTES + 2 * READ_MAX_BYTES;
/// With more reply bytes than this waiting, a connection executes no further command.
pub const OUTPUT_LIMIT_BYTES: usize = 64 << 10;
/// The next piece of a streamed value is fetched when at most this much waits to be sent.
pub const OUTPUT_LOW_BYTES: usize = 16 << 10;
/// What a thread holds of the buffer budget in advance, so that what it has read and answered always finds a place.
pub const STANDING_BYTES: isize = 256 << 10;
/// Kernel buffers of one socket, each way.
pub const SOCKET_BUFFER_BYTES: usize = 128 << 10;
/// A connection that holds buffers this long without progress is cut off when others starve.
pub const STUCK_AFTER_MS: u64 = 500;
/// A connection that waits for a buffer is patient this long, if buffers come back to others meanwhile.
pub const GRANT_WAIT_MAX_MS: u64 = 120_000;
/// What one read takes while buffers are short, so that a waiting connection holds little.
pub const READ_TIGHT_BYTES: usize = 4 << 10;
/// While replies wait for the device, a thread that has nothing to do looks again for this long before it sleeps.
pub const LOOK_OUT_US: u64 = 100;
/// How often a command that waits for room is tried again without being told.
pub const ROOM_RETRY_MS: u64 = 2;
/// How often a starving thread looks for connections to cut off.
pub const STARVE_CHECK_MS: u64 = 25;
/// How often a thread looks for idle connections, if they are to be closed.
pub const IDLE_CHECK_MS: u64 = 250;
/// How many keys of one MGET are looked up at the same time.
pub const MGET_WINDOW_KEYS: usize = 16;
/// How many keys one step of a SCAN asks the store for.
pub const SCAN_STEP_KEYS: usize = 64;
/// A SCAN answers early when its keys fill this much.
pub const SCAN_REPLY_BYTES: usize = 64 << 10;
/// Commands of one transaction.
pub const MULTI_COMMANDS_MAX: usize = 16_384;
/// Values above `INLINE_MAX_BYTES` that one transaction brings, and that it has at one time with those it makes.
pub const EXEC_LONG_MAX: usize = 256;
/// The most bytes that all replies of one transaction take, beside values in pieces, which are sent from where they lie.
pub const EXEC_REPLY_MAX_BYTES: usize = 4 << 20;
/// What a value in pieces counts there.
pub const EXEC_LONG_REPLY_BYTES: usize = 128;
/// A transaction that replies with more than this, makes more bytes than this or takes longer than the next while its keys are
/// locked begins again in steps, without locking them.
pub const EXEC_AT_ONCE_MAX_BYTES: usize = 1 << 20;
/// See `EXEC_AT_ONCE_MAX_BYTES`.
pub const EXEC_AT_ONCE_MAX_MS: u128 = 5;
/// How long commands of a transaction that runs in steps are executed before others are served.
pub const EXEC_STEP_MAX_MS: u128 = 2;
/// The most bytes of values that one transaction makes out of others (SETRANGE, BITOP, COPY), beside those it brought.
pub const EXEC_MADE_MAX_BYTES: usize = 4 << 20;
/// Keys that one connection watches.
pub const WATCHED_KEYS_MAX: usize = 1_024;
/// What the watch of a key takes beside twice the key: the entries here and in the store, in tables that grow by doubling.
pub const WATCH_COST_BYTES: usize = 160;
/// What CLIENT LIST asks of the budget at a time, once its reply is longer than others may be.
pub const LIST_GRANT_BYTES: usize = 64 << 10;
/// What KEYS asks of the budget first; then it doubles.
pub const KEYS_GRANT_BYTES: usize = 256 << 10;
/// Steps of KEYS, or of one SCAN, before others are served.
pub const KEYS_STEPS_MAX: usize = 16;
/// The longest pattern of KEYS and SCAN: a key may take as many steps as its length times the pattern's.
pub const PATTERN_MAX_BYTES: usize = 1 << 10;
/// And so many such steps before others are served.
pub const PATTERN_WORK_MAX: usize = 16 << 20;
/// With a longer pattern than this a step asks the store for fewer keys than `SCAN_STEP_KEYS`.
pub const PATTERN_SHORT_BYTES: usize = 16;
/// Pieces of a long value that one step of a change makes before others are served.
pub const LONG_STEPS_MAX: usize = 16;
/// Pairs of bytes that one step of LCS compares before others are served: some milliseconds.
pub const LCS_STEP_PAIRS: usize = 1 << 20;
/// How often a change of a long value begins again when others have changed a key meanwhile.
pub const LONG_TRIES_MAX: u64 = 16;
/// Arguments of one command that need no grant; above, 16 bytes each are granted while it runs.
pub const ARGS_FREE: usize = 1_024;
/// Events fetched by one poll.
pub const EVENTS_MAX: usize = 1_024;
/// From so many reads under way on, `AT_ONCE_WHILE_READING` holds. Below, the device has nothing to answer in groups, and taking all that
/// moved saves calls of the kernel.
pub const MANY_READS: usize = 6;
/// While the device does many reads, a turn takes at most so many connections that moved, and so many whose reads are done
/// (docs/adr/0016). Given all reads at once, the device answers all at once, and it, this thread and the clients take
/// turns instead of working at the same time.
pub const AT_ONCE_WHILE_READING: usize = 8;
/// The same where a read takes less than `QUICK_READ_US`, with what passes until the thread looks again.
pub const AT_ONCE_QUICK: usize = 6;
/// Thrice what a turn takes that serves `AT_ONCE_WHILE_READING`: then what was handed over together is back before as many more are.
pub const QUICK_READ_US: u64 = 280;
/// Sockets accepted in a row before other work gets its turn.
pub const ACCEPT_MAX: usize = 256;
/// When nothing can be accepted (for want of files, say), how long until the next attempt.
pub const ACCEPT_RETRY_MS: u64 = 100;
/// How often the same is told in the log, where clients could make it be told all the time.
pub const TELL_EVERY_MS: u64 = 1_000;
/// After so long without a word the kernel asks whether the other side is still there,
pub const KEEPALIVE_IDLE_S: u64 = 300;
/// again after so long,
pub const KEEPALIVE_INTERVAL_S: u64 = 100;
/// and so often in vain before the connection ends.
pub const KEEPALIVE_PROBES: u32 = 3;
/// Part of the cap that connections' buffers may take, as the pool's ledger has it: an eighth.
pub const CONNECTIONS_ONE_IN: u64 = 8;
/// The longest a thread sleeps.
pub const SLEEP_MAX_MS: u64 = 500;
/// How long a stopping server tries to send replies that wait for durability.
pub const STOP_DRAIN_MS: u64 = 3_000;
/// How long a starting thread tries to get its own buffers granted.
pub const START_GRANT_MS: u64 = 5_000;
/// What a TLS connection takes beside its buffers and the other side's certificates.
pub const TLS_CONN_BYTES: usize = 8 << 10;
/// How long a client may take to agree on keys.
pub const TLS_HANDSHAKE_MAX_MS: u64 = 10_000;
/// How often a thread looks for clients that take longer.
pub const TLS_HANDSHAKE_CHECK_MS: u64 = 250;
/// What may wait of a message of the handshake that is not whole (a chain of certificates, at the most).
pub const TLS_HANDSHAKE_MAX_BYTES: usize = 72 << 10;
/// What one read takes of an encrypted connection's socket, at least (where the caller wants less) and at most.
pub const TLS_READ_MIN_BYTES: usize = 4 << 10;
/// See `TLS_READ_MIN_BYTES`.
pub const TLS_READ_MAX_BYTES: usize = 32 << 10;
/// Reads in a row that bring nothing for commands; more than a handshake needs.
pub const TLS_ROUNDS_MAX: usize = 32;
/// What is encrypted at a time.
pub const TLS_WRITE_MAX_BYTES: usize = 64 << 10;
/// The length of the listener's queue.
pub const LISTEN_BACKLOG: i32 = 1_024;
/// File descriptors kept for everything that is not a client; each thread has its poll, its waker, its ring, and one to spare.
pub const fn reserved_fds(threads: usize) -> u64 {
    64 + 4 * threads as u64
}
