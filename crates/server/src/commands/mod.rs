//! Executes one command: checks it against the table and runs its handler. A handler that cannot finish answers
//! `Flow::Wait` and has written nothing (or, for the commands that go on where they were, only whole parts that
//! `Progress` knows of); it is then called again with the same arguments.

/// Leaves a part of a command that goes in steps, of which each may have to wait: where `Step` and the module's own `Next` are.
macro_rules! step {
    ($outcome:expr) => {
        match $outcome? {
            Step::Done(value) => value,
            Step::Wait(wait) => return Ok(Next::Flow(Step::Wait(wait))),
        }
    };
}

mod admin;
pub(crate) mod ahead;
mod bits;
mod client;
mod config;
mod describe;
mod dump;
pub(crate) mod exec;
mod help;
mod insight;
mod keys;
mod lcs;
pub(crate) mod long;
pub(crate) mod multi;
mod options;
mod part;
mod places;
mod scan;
mod strings;

pub(crate) use part::{Part, edit_one, put_part};

use std::borrow::Cow;
use std::sync::atomic::Ordering;

use crate::limits::KEY_MAX_BYTES;
use crate::resp::assemble::LargeArg;
use crate::resp::encode;
use crate::session::Session;
use crate::shared::{Counters, Shared};
use crate::sight::calls::NO_KIND;
use crate::store::{Store, StoreError, Wait};
use crate::table::{self, Command, Id};

/// How far a command came.
pub enum Flow<L> {
    /// Its reply is complete.
    Done,
    /// Again later.
    Wait(Wait),
    /// Its reply ends with this value: the header is written, bytes and line end are to follow.
    Large(L),
    /// Its reply ends with these bytes of this value; the header is written.
    Part(L, std::ops::Range<u64>),
    /// Its reply ends with this value and these bytes; the header is written.
    Framed(L, Vec<u8>),
    /// This value is to follow, then the command goes on.
    LargeThenMore(L),
    /// These bytes of it and then these are to follow, then the command goes on.
    PartThenMore(L, std::ops::Range<u64>, Vec<u8>),
    /// The command goes on when the output has drained.
    OutputFull,
    /// Its reply is complete, and so is the connection.
    Close,
    /// The server is to stop.
    Shutdown,
}

/// Why a command failed.
#[derive(Debug)]
pub enum Fault {
    /// The text after `-ERR `.
    Err(Cow<'static, str>),
    /// A text with a first word of its own.
    Prefixed(&'static str, String),
}

impl From<StoreError> for Fault {
    fn from(e: StoreError) -> Self {
        Fault::Prefixed(e.prefix, e.text)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Err(text) => StoreError::err(text),
            Fault::Prefixed(prefix, text) => StoreError { prefix, text },
        }
    }
}

impl Fault {
    fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Fault::Err(text.into())
    }
}

/// What a handler answers.
pub type Done<S> = Result<Flow<<S as Store>::Large>, Fault>;

const SYNTAX: Fault = Fault::Err(Cow::Borrowed("syntax error"));
const NOT_AN_INTEGER: Fault = Fault::Err(Cow::Borrowed("value is not an integer or out of range"));

/// Unwraps a step, or leaves the handler to wait.
macro_rules! ready {
    ($outcome:expr) => {
        match $outcome? {
            $crate::store::Step::Done(value) => value,
            $crate::store::Step::Wait(wait) => return Ok($crate::commands::Flow::Wait(wait)),
        }
    };
}
pub(crate) use ready;

/// Where a command of several steps stands, in a store.
pub type Progress<S> = ProgressOf<<S as Store>::Task, <S as Store>::Large, <S as Store>::Upload>;

/// The same by what it holds: a transaction's commands have it over another store with the same.
pub struct ProgressOf<T, L, U> {
    /// The next key (MGET) or cursor (SCAN).
    pub next: u64,
    /// Whether anything was done.
    pub begun: bool,
    /// Lookups under way, by the index of their key.
    pub window: Vec<(usize, T)>,
    /// The keys that a SCAN has gathered, as bulk strings.
    pub found: Vec<u8>,
    /// How many keys it has seen, at least one a step; what a command has counted; or how often a change began
    /// again.
    pub seen: u64,
    /// What a command has summed up.
    pub sum: u64,
    /// The value in pieces that a command goes through.
    pub held: Option<L>,
    /// The change of values in pieces that is under way.
    pub long: Option<Box<long::Long<L, U>>>,
    /// The LCS that is under way.
    pub common: Option<Box<lcs::Common<L>>>,
    /// The transaction that is under way, if it is not one for a moment.
    pub exec: Option<Box<exec::Exec<T, L, U>>>,
    /// What `found` was granted of the buffer budget.
    pub granted_bytes: usize,
    /// The epoch that the reply waits for, beside that of the task.
    pub durable_at: Option<u64>,
}

impl<T, L: Clone, U> ProgressOf<T, L, U> {
    /// Gives back what a command held that did not end by itself.
    pub fn end<S: Store<Task = T, Large = L, Upload = U>>(self, store: &mut S) {
        for (_, task) in self.window {
            store.finish(task);
        }
        if let Some(large) = self.held {
            store.release(large);
        }
        if let Some(long) = self.long {
            long.end(store);
        }
        if let Some(common) = self.common {
            common.end(store);
        }
        if let Some(exec) = self.exec {
            exec.end(store);
        }
        if self.granted_bytes > 0 {
            store.ungrant(self.granted_bytes);
        }
    }

    /// Whether there is nothing to give back.
    pub fn is_over(&self) -> bool {
        self.window.is_empty()
            && self.held.is_none()
            && self.long.is_none()
            && self.common.is_none()
            && self.exec.is_none()
            && self.granted_bytes == 0
    }
}

impl<T, L, U> Default for ProgressOf<T, L, U> {
    fn default() -> Self {
        ProgressOf {
            next: 0,
            begun: false,
            window: Vec::new(),
            found: Vec::new(),
            seen: 0,
            sum: 0,
            held: None,
            long: None,
            common: None,
            exec: None,
            granted_bytes: 0,
            durable_at: None,
        }
    }
}

/// Everything a handler works with.
pub struct Cx<'c, S: Store> {
    /// The store.
    pub store: &'c mut S,
    /// The command's task.
    pub task: &'c mut S::Task,
    /// Who owns it.
    pub owner: u64,
    /// Where the command stands.
    pub progress: &'c mut Progress<S>,
    /// Values that came in piece by piece.
    pub large: &'c mut [LargeArg<S::Upload>],
    /// The connection's own state.
    pub session: &'c mut Session,
    /// Its transaction that is being queued.
    pub multi: &'c mut Option<Box<multi::Multi<S::Upload>>>,
    /// What all threads share.
    pub shared: &'c Shared,
    /// This thread's counters.
    pub counters: &'c Counters,
    /// Where the reply goes.
    pub out: &'c mut Vec<u8>,
    /// What EXEC does: a transaction's commands have a store of their own kind, over which there is no transaction.
    pub exec: fn(&mut Cx<'_, S>) -> Done<S>,
}

impl<S: Store> Cx<'_, S> {
    /// A task belongs to one call: the next step gets its own. What the reply waits for stays.
    pub fn renew_task(&mut self) {
        self.progress.durable_at = self.progress.durable_at.max(S::durable_at(self.task));
        let fresh = self.store.task(self.owner);
        self.store.finish(std::mem::replace(self.task, fresh));
    }

    /// Gives back what was granted.
    fn give_back(&mut self) {
        self.store
            .ungrant(std::mem::take(&mut self.progress.granted_bytes));
    }
}

/// Executes `args`, whose first is the name. An error has become a reply when this returns.
#[inline]
pub fn execute<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Flow<S::Large> {
    let start = cx.out.len();
    let (mut kind, mut ran) = (NO_KIND, false);
    let flow = match table::find(args[0]) {
        Some(command) if command.takes(args.len()) => {
            kind = command.index;
            ran = true;
            cx.session
                .client
                .last_command
                .store(command.index as u8, Ordering::Relaxed);
            match cx.multi.is_some() && !multi::is_immediate(command.id) {
                _ if !cx.session.trusted && !command.flags.contains(&"no_auth") => {
                    ran = false;
                    Err(client::not_trusted())
                }
                false if cx.shared.paused.is_on() && !cx.session.in_exec && waits(cx, command) => {
                    Ok(Flow::Wait(Wait::Room))
                }
                false => dispatch(cx, command, args),
                true => {
                    // It is counted when it runs.
                    ran = false;
                    multi::queue(cx, command, args).inspect_err(|_| multi::spoil(cx))
                }
            }
        }
        Some(command) => {
            kind = command.index;
            multi::spoil(cx);
            Err(wrong_arity(command.name))
        }
        None if is_http(args[0]) => {
            cx.session.kind = NO_KIND;
            return over_http(cx);
        }
        None => {
            multi::spoil(cx);
            Err(unknown(args))
        }
    };
    // After those of a transaction, whose own this then is.
    cx.session.kind = if ran { kind } else { NO_KIND };
    match flow {
        Ok(Flow::Wait(wait)) => Flow::Wait(wait),
        Ok(flow) => flow,
        Err(fault) => {
            if !cx.progress.begun {
                cx.out.truncate(start);
            }
            let prefix = match &fault {
                Fault::Err(_) => "ERR",
                Fault::Prefixed(prefix, _) => prefix,
            };
            if !cx.session.in_exec {
                cx.shared.count_error(cx.counters, prefix);
                cx.counters.calls.failed(kind, ran);
            }
            write_fault(cx.out, &fault);
            Flow::Done
        }
    }
}

/// Whether the command waits for the end of CLIENT PAUSE; CLIENT can end it.
#[cold]
fn waits<S: Store>(cx: &Cx<'_, S>, command: &Command) -> bool {
    let writes = command.flags.contains(&"write") || command.id == Id::Exec;
    command.id != Id::Client && is_paused(cx, writes)
}

/// Whether a command waits for the end of CLIENT PAUSE; what has begun goes on.
#[cold]
pub(crate) fn is_paused<S: Store>(cx: &Cx<'_, S>, writes: bool) -> bool {
    let now_ms = cx.shared.started.elapsed().as_millis() as u64;
    cx.shared.paused.holds(now_ms, writes)
        && !cx.progress.begun
        && cx.progress.long.is_none()
        && cx.progress.common.is_none()
        && cx.progress.exec.is_none()
        && cx.progress.window.is_empty()
}

fn write_fault(out: &mut Vec<u8>, fault: &Fault) {
    match fault {
        Fault::Err(text) => encode::error(out, "ERR", text),
        Fault::Prefixed(prefix, text) => encode::error(out, prefix, text),
    }
}

/// The words with which a request in HTTP begins, or goes on in its second line.
#[cold]
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// Who speaks HTTP does not mean this server: a web page, or a service that fetches what others name, was made to send commands
/// to where only it comes. As in Redis, none of them is executed.
#[cold]
pub(crate) fn over_http<S: Store>(cx: &mut Cx<'_, S>) -> Flow<S::Large> {
    let now_ms = cx.shared.started.elapsed().as_millis() as u64;
    if cx.shared.told_of_http.may(now_ms) {
        let client = cx.session.client.addr;
        tracing::warn!(%client, "a connection spoke HTTP and was closed: perhaps a web page or a service of this machine was made to send commands here; a password (--requirepass-file) keeps such out");
    }
    Flow::Close
}

#[cold]
fn wrong_arity(name: &str) -> Fault {
    Fault::text(format!("wrong number of arguments for '{name}' command"))
}

/// Redis's text, which shows at most 128 bytes of the name and about as many of the arguments.
#[cold]
fn unknown(args: &[&[u8]]) -> Fault {
    const SHOWN_BYTES: usize = 128;
    let shown = |bytes: &[u8], most: usize| {
        String::from_utf8_lossy(&bytes[..bytes.len().min(most)]).into_owned()
    };
    let mut list = String::new();
    for arg in &args[1..] {
        if list.len() >= SHOWN_BYTES {
            break;
        }
        list += &format!("'{}' ", shown(arg, SHOWN_BYTES - list.len()));
    }
    Fault::text(format!(
        "unknown command '{}', with args beginning with: {list}",
        shown(args[0], SHOWN_BYTES)
    ))
}

#[cold]
fn unknown_subcommand(container: &str, sub: &[u8]) -> Fault {
    let sub = String::from_utf8_lossy(&sub[..sub.len().min(128)]).into_owned();
    Fault::text(format!("unknown subcommand '{sub}'. Try {container} HELP."))
}

#[inline]
fn dispatch<S: Store>(cx: &mut Cx<'_, S>, command: &Command, args: &[&[u8]]) -> Done<S> {
    check_keys(command, args)?;
    match command.id {
        Id::Get => strings::get(cx, args),
        Id::Set => strings::set(cx, args),
        Id::Getset => strings::getset(cx, args),
        Id::Setnx => strings::setnx(cx, args),
        Id::Setex => strings::setex(cx, args, 1000),
        Id::Psetex => strings::setex(cx, args, 1),
        Id::Getdel => strings::getdel(cx, args),
        Id::Strlen => strings::strlen(cx, args),
        Id::Mget => strings::mget(cx, args),
        Id::Mset => strings::mset(cx, args),
        Id::Incr => strings::incr(cx, args, Some(1)),
        Id::Decr => strings::incr(cx, args, Some(-1)),
        Id::Incrby => strings::incr(cx, args, None),
        Id::Decrby => strings::decrby(cx, args),
        Id::Del | Id::Unlink => keys::del(cx, args),
        Id::Exists | Id::Touch => keys::exists(cx, args),
        Id::Expire => keys::expire(cx, args, "expire", 1000, true),
        Id::Pexpire => keys::expire(cx, args, "pexpire", 1, true),
        Id::Expireat => keys::expire(cx, args, "expireat", 1000, false),
        Id::Pexpireat => keys::expire(cx, args, "pexpireat", 1, false),
        Id::Ttl => keys::ttl(cx, args, keys::Shown::LeftSeconds),
        Id::Pttl => keys::ttl(cx, args, keys::Shown::LeftMillis),
        Id::Expiretime => keys::ttl(cx, args, keys::Shown::AtSeconds),
        Id::Pexpiretime => keys::ttl(cx, args, keys::Shown::AtMillis),
        Id::Persist => keys::persist(cx, args),
        Id::Type => keys::key_type(cx, args),
        Id::Multi => multi::multi(cx),
        Id::Exec => (cx.exec)(cx),
        Id::Discard => multi::discard(cx),
        Id::Watch => multi::watch(cx, args),
        Id::Unwatch => multi::unwatch(cx),
        Id::Append => part::append(cx, args),
        Id::Setrange => part::setrange(cx, args),
        Id::Getrange | Id::Substr => part::getrange(cx, args),
        Id::Getex => part::getex(cx, args),
        Id::Msetnx => part::msetnx(cx, args),
        Id::Incrbyfloat => part::incrbyfloat(cx, args),
        Id::Lcs => lcs::lcs(cx, args),
        Id::Setbit => bits::setbit(cx, args),
        Id::Getbit => bits::getbit(cx, args),
        Id::Bitcount => bits::bitcount(cx, args),
        Id::Bitpos => bits::bitpos(cx, args),
        Id::Bitop => bits::bitop(cx, args),
        Id::Bitfield => bits::bitfield(cx, args, false),
        Id::BitfieldRo => bits::bitfield(cx, args, true),
        Id::Rename => places::rename(cx, args, false),
        Id::Renamenx => places::rename(cx, args, true),
        Id::Copy => places::copy(cx, args),
        Id::Object => places::object(cx, args),
        Id::Dump => dump::dump(cx, args),
        Id::Restore => dump::restore(cx, args),
        Id::Randomkey => places::randomkey(cx),
        Id::Keys => places::keys(cx, args),
        Id::Scan => scan::scan(cx, args),
        Id::Dbsize => admin::dbsize(cx),
        Id::Flushall | Id::Flushdb => admin::flush(cx, args),
        Id::Ping => admin::ping(cx, args),
        Id::Echo => admin::echo(cx, args),
        Id::Info => admin::info(cx, args),
        Id::Command => describe::command(cx, args),
        Id::Config => config::config(cx, args),
        Id::Latency => insight::latency(cx, args),
        Id::Memory => insight::memory(cx, args),
        Id::Slowlog => insight::slowlog(cx, args),
        Id::Select => admin::select(cx, args),
        Id::Time => admin::time(cx),
        Id::Shutdown => admin::shutdown(args),
        Id::Hello => client::hello(cx, args),
        Id::Client => client::client(cx, args),
        Id::Auth => client::auth(cx, args),
        Id::Quit => client::quit(cx),
        Id::Reset => client::reset(cx),
    }
}

/// Refuses keys that no store can hold, before anything is done.
#[inline]
fn check_keys(command: &Command, args: &[&[u8]]) -> Result<(), Fault> {
    let (first, last, step) = command.keys;
    if first == 0 {
        return Ok(());
    }
    let last = if last < 0 {
        args.len() - 1
    } else {
        last as usize
    };
    // OBJECT HELP has no key where the others do.
    let keys = args.get(first as usize..=last).unwrap_or_default();
    for key in keys.iter().step_by(step as usize) {
        if key.len() > KEY_MAX_BYTES {
            return Err(key_too_long(key.len()));
        }
    }
    Ok(())
}

#[cold]
fn key_too_long(len: usize) -> Fault {
    Fault::text(format!(
        "key is {len} bytes long; at most {KEY_MAX_BYTES} are allowed; use a shorter key"
    ))
}

/// The index of a command's last key, for COMMAND GETKEYS.
fn key_positions(command: &Command, args: usize) -> impl Iterator<Item = usize> + use<> {
    let (first, last, step) = command.keys;
    let last = if last < 0 { args as i32 + last } else { last };
    (first..=last)
        .step_by(step.max(1) as usize)
        .filter(move |&at| at > 0 && at < args as i32)
        .map(|at| at as usize)
}
