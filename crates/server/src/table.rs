//! The table of commands: what the dispatcher checks before a handler runs (what COMMAND tells of them is in `metadata`). Names are
//! found through a small hash table that is built at compile time. It executes nothing.

/// Which handler a command has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the commands'
pub enum Id {
    Append,
    Auth,
    Bitcount,
    Bitfield,
    BitfieldRo,
    Bitop,
    Bitpos,
    Client,
    Command,
    Config,
    Copy,
    Dbsize,
    Decr,
    Decrby,
    Del,
    Discard,
    Dump,
    Echo,
    Exec,
    Exists,
    Expire,
    Expireat,
    Expiretime,
    Flushall,
    Flushdb,
    Get,
    Getbit,
    Getdel,
    Getex,
    Getrange,
    Getset,
    Hello,
    Incr,
    Incrby,
    Incrbyfloat,
    Info,
    Keys,
    Latency,
    Lcs,
    Memory,
    Mget,
    Mset,
    Msetnx,
    Multi,
    Object,
    Persist,
    Pexpire,
    Pexpireat,
    Pexpiretime,
    Ping,
    Psetex,
    Pttl,
    Quit,
    Randomkey,
    Rename,
    Renamenx,
    Reset,
    Restore,
    Scan,
    Select,
    Set,
    Setbit,
    Setex,
    Setnx,
    Setrange,
    Shutdown,
    Slowlog,
    Strlen,
    Substr,
    Time,
    Touch,
    Ttl,
    Type,
    Unlink,
    Unwatch,
    Watch,
}

/// One command.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Its index among [`COMMANDS`].
    pub index: u16,
    /// Its name, in small letters.
    pub name: &'static str,
    /// Its handler.
    pub id: Id,
    /// The number of arguments with the name; negative: at least so many.
    pub arity: i32,
    /// Redis's flags.
    pub flags: &'static [&'static str],
    /// First key, last key (negative: from the end), step.
    pub keys: (i32, i32, i32),
    /// Which arguments may be longer than `INLINE_MAX_BYTES`.
    pub large: Large,
}

/// Which arguments of a command are values, and may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Large {
    /// None.
    No,
    /// This one.
    At(u32),
    /// Every second one, from this one on.
    EverySecondFrom(u32),
}

impl Large {
    /// Whether argument `index` may be long.
    pub fn allows(self, index: u32) -> bool {
        match self {
            Large::No => false,
            Large::At(at) => index == at,
            Large::EverySecondFrom(from) => index >= from && (index - from).is_multiple_of(2),
        }
    }
}

const W: &[&str] = &["write", "denyoom"];
const WF: &[&str] = &["write", "denyoom", "fast"];
const D: &[&str] = &["write", "fast"];
const DEL: &[&str] = &["write"];
const R: &[&str] = &["readonly", "fast"];
const RS: &[&str] = &["readonly"];
const C: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
const A: &[&str] = &["admin", "noscript", "loading", "stale"];
const F: &[&str] = &["loading", "stale", "fast"];
const S: &[&str] = &["loading", "stale"];

const T: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
const E: &[&str] = &["noscript", "loading", "stale", "skip_slowlog"];

const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const TWO: (i32, i32, i32) = (1, 2, 1);
const NONE: (i32, i32, i32) = (0, 0, 0);

type Row = (
    &'static str,
    Id,
    i32,
    &'static [&'static str],
    (i32, i32, i32),
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("append", Id::Append, 3, WF, ONE),
    ("auth", Id::Auth, -2, C, NONE),
    ("bitcount", Id::Bitcount, -2, RS, ONE),
    ("bitfield", Id::Bitfield, -2, W, ONE),
    ("bitfield_ro", Id::BitfieldRo, -2, R, ONE),
    ("bitop", Id::Bitop, -4, W, (2, -1, 1)),
    ("bitpos", Id::Bitpos, -3, RS, ONE),
    ("client", Id::Client, -2, S, NONE),
    ("command", Id::Command, -1, S, NONE),
    ("config", Id::Config, -2, A, NONE),
    ("copy", Id::Copy, -3, W, TWO),
    ("dbsize", Id::Dbsize, 1, R, NONE),
    ("decr", Id::Decr, 2, WF, ONE),
    ("decrby", Id::Decrby, 3, WF, ONE),
    ("del", Id::Del, -2, DEL, ALL),
    ("discard", Id::Discard, 1, T, NONE),
    ("dump", Id::Dump, 2, RS, ONE),
    ("echo", Id::Echo, 2, F, NONE),
    ("exec", Id::Exec, 1, E, NONE),
    ("exists", Id::Exists, -2, R, ALL),
    ("expire", Id::Expire, -3, D, ONE),
    ("expireat", Id::Expireat, -3, D, ONE),
    ("expiretime", Id::Expiretime, 2, R, ONE),
    ("flushall", Id::Flushall, -1, DEL, NONE),
    ("flushdb", Id::Flushdb, -1, DEL, NONE),
    ("get", Id::Get, 2, R, ONE),
    ("getbit", Id::Getbit, 3, R, ONE),
    ("getdel", Id::Getdel, 2, D, ONE),
    ("getex", Id::Getex, -2, D, ONE),
    ("getrange", Id::Getrange, 4, RS, ONE),
    ("getset", Id::Getset, 3, WF, ONE),
    ("hello", Id::Hello, -1, C, NONE),
    ("incr", Id::Incr, 2, WF, ONE),
    ("incrby", Id::Incrby, 3, WF, ONE),
    ("incrbyfloat", Id::Incrbyfloat, 3, WF, ONE),
    ("info", Id::Info, -1, S, NONE),
    ("keys", Id::Keys, 2, RS, NONE),
    ("latency", Id::Latency, -2, S, NONE),
    ("lcs", Id::Lcs, -3, RS, TWO),
    ("memory", Id::Memory, -2, S, (2, 2, 1)),
    ("mget", Id::Mget, -2, R, ALL),
    ("mset", Id::Mset, -3, W, (1, -1, 2)),
    ("msetnx", Id::Msetnx, -3, W, (1, -1, 2)),
    ("multi", Id::Multi, 1, T, NONE),
    ("object", Id::Object, -2, RS, (2, 2, 1)),
    ("persist", Id::Persist, 2, D, ONE),
    ("pexpire", Id::Pexpire, -3, D, ONE),
    ("pexpireat", Id::Pexpireat, -3, D, ONE),
    ("pexpiretime", Id::Pexpiretime, 2, R, ONE),
    ("ping", Id::Ping, -1, F, NONE),
    ("psetex", Id::Psetex, 4, W, ONE),
    ("pttl", Id::Pttl, 2, R, ONE),
    ("quit", Id::Quit, -1, C, NONE),
    ("randomkey", Id::Randomkey, 1, RS, NONE),
    ("rename", Id::Rename, 3, DEL, TWO),
    ("renamenx", Id::Renamenx, 3, D, TWO),
    ("reset", Id::Reset, 1, C, NONE),
    ("restore", Id::Restore, -4, W, ONE),
    ("scan", Id::Scan, -2, RS, NONE),
    ("select", Id::Select, 2, F, NONE),
    ("set", Id::Set, -3, W, ONE),
    ("setbit", Id::Setbit, 4, W, ONE),
    ("setex", Id::Setex, 4, W, ONE),
    ("setnx", Id::Setnx, 3, WF, ONE),
    ("setrange", Id::Setrange, 4, W, ONE),
    ("shutdown", Id::Shutdown, -1, A, NONE),
    ("slowlog", Id::Slowlog, -2, S, NONE),
    ("strlen", Id::Strlen, 2, R, ONE),
    ("substr", Id::Substr, 4, RS, ONE),
    ("time", Id::Time, 1, F, NONE),
    ("touch", Id::Touch, -2, R, ALL),
    ("ttl", Id::Ttl, 2, R, ONE),
    ("type", Id::Type, 2, R, ONE),
    ("unlink", Id::Unlink, -2, D, ALL),
    ("unwatch", Id::Unwatch, 1, T, NONE),
    ("watch", Id::Watch, -2, T, ALL),
];

const fn large_of(id: Id) -> Large {
    match id {
        Id::Set | Id::Setnx | Id::Getset | Id::Append => Large::At(2),
        Id::Setex | Id::Psetex | Id::Setrange | Id::Restore => Large::At(3),
        Id::Mset | Id::Msetnx => Large::EverySecondFrom(2),
        _ => Large::No,
    }
}

/// The number of commands.
pub const COUNT: usize = ROWS.len();

/// All commands, by name.
pub static COMMANDS: [Command; COUNT] = build_commands();

const fn build_commands() -> [Command; COUNT] {
    let empty = Command {
        index: 0,
        name: "",
        id: Id::Ping,
        arity: 0,
        flags: &[],
        keys: NONE,
        large: Large::No,
    };
    let mut all = [empty; COUNT];
    let mut i = 0;
    while i < COUNT {
        let (name, id, arity, flags, keys) = ROWS[i];
        all[i] = Command {
            index: i as u16,
            name,
            id,
            arity,
            flags,
            keys,
            large: large_of(id),
        };
        i += 1;
    }
    all
}

const SLOTS: usize = 256;
const LONGEST_NAME_BYTES: usize = 16;

const fn hash(name: &[u8]) -> usize {
    let mut h: u32 = name.len() as u32;
    let mut i = 0;
    while i < name.len() {
        h = (h ^ name[i] as u32).wrapping_mul(0x0100_0193);
        i += 1;
    }
    (h ^ h >> 13) as usize % SLOTS
}

static BY_HASH: [u8; SLOTS] = build_slots();

const fn build_slots() -> [u8; SLOTS] {
    let mut slots = [u8::MAX; SLOTS];
    let mut i = 0;
    while i < COUNT {
        let mut at = hash(ROWS[i].0.as_bytes());
        while slots[at] != u8::MAX {
            at = (at + 1) % SLOTS;
        }
        slots[at] = i as u8;
        i += 1;
    }
    slots
}

/// The command of this name, in letters of any size.
#[inline]
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut small = [0u8; LONGEST_NAME_BYTES];
    let small = small.get_mut(..name.len())?;
    small.copy_from_slice(name);
    small.make_ascii_lowercase();
    let mut at = hash(small);
    while BY_HASH[at] != u8::MAX {
        let command = &COMMANDS[BY_HASH[at] as usize];
        if command.name.as_bytes() == small {
            return Some(command);
        }
        at = (at + 1) % SLOTS;
    }
    None
}

impl Command {
    /// Whether a call with so many arguments (the name included) is one.
    #[inline]
    pub fn takes(&self, args: usize) -> bool {
        if self.arity >= 0 {
            args == self.arity as usize
        } else {
            args >= self.arity.unsigned_abs() as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_any_case() {
        for (i, command) in COMMANDS.iter().enumerate() {
            let big = command.name.to_ascii_uppercase();
            assert_eq!(find(big.as_bytes()).map(|c| c.id), Some(command.id));
            assert_eq!(usize::from(command.index), i);
        }
        assert!(find(b"").is_none() && find(b"getx").is_none() && find(&[b'g'; 4000]).is_none());
    }

    #[test]
    fn long_arguments_are_values_only() {
        let mset = find(b"mset").unwrap().large;
        assert!(
            !mset.allows(0)
                && !mset.allows(1)
                && mset.allows(2)
                && !mset.allows(3)
                && mset.allows(4)
        );
        assert!(!find(b"get").unwrap().large.allows(1));
    }
}
