//! The table of commands: what COMMAND tells clients, and what the dispatcher checks before a handler runs. Names are
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
    Lcs,
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
    /// Redis's group.
    pub group: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
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
    &'static str,
    &'static str,
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("append", Id::Append, 3, WF, ONE, "string", "Appends a string to the value of a key. Creates the key if it doesn't exist."),
    ("auth", Id::Auth, -2, C, NONE, "connection", "Authenticates the connection."),
    ("bitcount", Id::Bitcount, -2, RS, ONE, "bitmap", "Counts the number of set bits (population counting) in a string."),
    ("bitfield", Id::Bitfield, -2, W, ONE, "bitmap", "Performs arbitrary bitfield integer operations on strings."),
    ("bitfield_ro", Id::BitfieldRo, -2, R, ONE, "bitmap", "Performs arbitrary read-only bitfield integer operations on strings."),
    ("bitop", Id::Bitop, -4, W, (2, -1, 1), "bitmap", "Performs bitwise operations on multiple strings, and stores the result."),
    ("bitpos", Id::Bitpos, -3, RS, ONE, "bitmap", "Finds the first set (1) or clear (0) bit in a string."),
    ("client", Id::Client, -2, S, NONE, "connection", "A container for client connection commands."),
    ("command", Id::Command, -1, S, NONE, "server", "Returns detailed information about all commands."),
    ("config", Id::Config, -2, A, NONE, "server", "A container for server configuration commands."),
    ("copy", Id::Copy, -3, W, TWO, "generic", "Copies the value of a key to a new key."),
    ("dbsize", Id::Dbsize, 1, R, NONE, "server", "Returns the number of keys in the database."),
    ("decr", Id::Decr, 2, WF, ONE, "string", "Decrements the integer value of a key by one."),
    ("decrby", Id::Decrby, 3, WF, ONE, "string", "Decrements a number from the integer value of a key."),
    ("del", Id::Del, -2, DEL, ALL, "generic", "Deletes one or more keys."),
    ("discard", Id::Discard, 1, T, NONE, "transactions", "Discards a transaction."),
    ("dump", Id::Dump, 2, RS, ONE, "generic", "Returns a serialized representation of the value stored at a key."),
    ("echo", Id::Echo, 2, F, NONE, "connection", "Returns the given string."),
    ("exec", Id::Exec, 1, E, NONE, "transactions", "Executes all commands in a transaction."),
    ("exists", Id::Exists, -2, R, ALL, "generic", "Determines whether one or more keys exist."),
    ("expire", Id::Expire, -3, D, ONE, "generic", "Sets the expiration time of a key in seconds."),
    ("expireat", Id::Expireat, -3, D, ONE, "generic", "Sets the expiration time of a key to a Unix timestamp."),
    ("expiretime", Id::Expiretime, 2, R, ONE, "generic", "Returns the expiration time of a key as a Unix timestamp."),
    ("flushall", Id::Flushall, -1, DEL, NONE, "server", "Removes all keys from all databases."),
    ("flushdb", Id::Flushdb, -1, DEL, NONE, "server", "Removes all keys from the current database."),
    ("get", Id::Get, 2, R, ONE, "string", "Returns the string value of a key."),
    ("getbit", Id::Getbit, 3, R, ONE, "bitmap", "Returns a bit value by offset."),
    ("getdel", Id::Getdel, 2, D, ONE, "string", "Returns the string value of a key after deleting the key."),
    ("getex", Id::Getex, -2, D, ONE, "string", "Returns the string value of a key after setting its expiration time."),
    ("getrange", Id::Getrange, 4, RS, ONE, "string", "Returns a substring of the string stored at a key."),
    ("getset", Id::Getset, 3, WF, ONE, "string", "Returns the previous string value of a key after setting it to a new value."),
    ("hello", Id::Hello, -1, C, NONE, "connection", "Handshakes with the server."),
    ("incr", Id::Incr, 2, WF, ONE, "string", "Increments the integer value of a key by one."),
    ("incrby", Id::Incrby, 3, WF, ONE, "string", "Increments the integer value of a key by a number."),
    ("incrbyfloat", Id::Incrbyfloat, 3, WF, ONE, "string", "Increments the floating point value of a key by a number."),
    ("info", Id::Info, -1, S, NONE, "server", "Returns information and statistics about the server."),
    ("keys", Id::Keys, 2, RS, NONE, "generic", "Returns all key names that match a pattern."),
    ("lcs", Id::Lcs, -3, RS, TWO, "string", "Finds the longest common substring."),
    ("mget", Id::Mget, -2, R, ALL, "string", "Atomically returns the string values of one or more keys."),
    ("mset", Id::Mset, -3, W, (1, -1, 2), "string", "Atomically creates or modifies the string values of one or more keys."),
    ("msetnx", Id::Msetnx, -3, W, (1, -1, 2), "string", "Atomically modifies the string values of one or more keys only when all keys don't exist."),
    ("multi", Id::Multi, 1, T, NONE, "transactions", "Starts a transaction."),
    ("object", Id::Object, -2, RS, (2, 2, 1), "generic", "A container for object introspection commands."),
    ("persist", Id::Persist, 2, D, ONE, "generic", "Removes the expiration time of a key."),
    ("pexpire", Id::Pexpire, -3, D, ONE, "generic", "Sets the expiration time of a key in milliseconds."),
    ("pexpireat", Id::Pexpireat, -3, D, ONE, "generic", "Sets the expiration time of a key to a Unix milliseconds timestamp."),
    ("pexpiretime", Id::Pexpiretime, 2, R, ONE, "generic", "Returns the expiration time of a key as a Unix milliseconds timestamp."),
    ("ping", Id::Ping, -1, F, NONE, "connection", "Returns the server's liveliness response."),
    ("psetex", Id::Psetex, 4, W, ONE, "string", "Sets both string value and expiration time in milliseconds of a key."),
    ("pttl", Id::Pttl, 2, R, ONE, "generic", "Returns the expiration time in milliseconds of a key."),
    ("quit", Id::Quit, -1, C, NONE, "connection", "Closes the connection."),
    ("randomkey", Id::Randomkey, 1, RS, NONE, "generic", "Returns a random key name from the database."),
    ("rename", Id::Rename, 3, DEL, TWO, "generic", "Renames a key and overwrites the destination."),
    ("renamenx", Id::Renamenx, 3, D, TWO, "generic", "Renames a key only when the target key name doesn't exist."),
    ("reset", Id::Reset, 1, C, NONE, "connection", "Resets the connection."),
    ("restore", Id::Restore, -4, W, ONE, "generic", "Creates a key from the serialized representation of a value."),
    ("scan", Id::Scan, -2, RS, NONE, "generic", "Iterates over the key names in the database."),
    ("select", Id::Select, 2, F, NONE, "connection", "Changes the selected database."),
    ("set", Id::Set, -3, W, ONE, "string", "Sets the string value of a key, ignoring its type."),
    ("setbit", Id::Setbit, 4, W, ONE, "bitmap", "Sets or clears the bit at offset of the string value. Creates the key if it doesn't exist."),
    ("setex", Id::Setex, 4, W, ONE, "string", "Sets the string value and expiration time of a key."),
    ("setnx", Id::Setnx, 3, WF, ONE, "string", "Sets the string value of a key only when the key doesn't exist."),
    ("setrange", Id::Setrange, 4, W, ONE, "string", "Overwrites a part of a string value with another by an offset. Creates the key if it doesn't exist."),
    ("shutdown", Id::Shutdown, -1, A, NONE, "server", "Synchronously saves the database(s) to disk and shuts down the server."),
    ("strlen", Id::Strlen, 2, R, ONE, "string", "Returns the length of a string value."),
    ("substr", Id::Substr, 4, RS, ONE, "string", "Returns a substring from a string value."),
    ("time", Id::Time, 1, F, NONE, "server", "Returns the server time."),
    ("touch", Id::Touch, -2, R, ALL, "generic", "Returns the number of existing keys out of those specified."),
    ("ttl", Id::Ttl, 2, R, ONE, "generic", "Returns the expiration time in seconds of a key."),
    ("type", Id::Type, 2, R, ONE, "generic", "Determines the type of value stored at a key."),
    ("unlink", Id::Unlink, -2, D, ALL, "generic", "Asynchronously deletes one or more keys."),
    ("unwatch", Id::Unwatch, 1, T, NONE, "transactions", "Forgets about watched keys of a transaction."),
    ("watch", Id::Watch, -2, T, ALL, "transactions", "Monitors changes to keys to determine the execution of a transaction."),
];

const fn large_of(id: Id) -> Large {
    match id {
        Id::Set | Id::Setnx | Id::Getset => Large::At(2),
        Id::Setex | Id::Psetex => Large::At(3),
        Id::Mset => Large::EverySecondFrom(2),
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
        group: "",
        summary: "",
    };
    let mut all = [empty; COUNT];
    let mut i = 0;
    while i < COUNT {
        let (name, id, arity, flags, keys, group, summary) = ROWS[i];
        all[i] = Command {
            index: i as u16,
            name,
            id,
            arity,
            flags,
            keys,
            large: large_of(id),
            group,
            summary,
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
