//! What is to be made of the values of keys and of an argument: the layers of a result, from the lowest up. Pure. Never: says
//! how its bytes are read.

use std::ops::Range;

use terrace_kv::strings::bits::BitOp;

use crate::store::Meta;

/// What the result is kept with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Expiry and memcached's part of the key that gets it, under a new token.
    Own,
    /// Those of the key of this number.
    Of(usize),
    /// These.
    These(Option<u64>, Option<Meta>),
}

impl Keeps {
    /// Nothing.
    pub const NOTHING: Keeps = Keeps::These(None, None);
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The value of the key of this number.
    Key(usize),
    /// The command's argument.
    Arg,
}

/// What lies over what is below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layer {
    /// All of a key's value, followed by zeros: as it is, or joined with what is below.
    Value(usize, Option<BitOp>),
    /// These bytes of a source, from this place on.
    Copy(Source, Range<u64>, u64),
    /// What these bytes of the argument are when unpacked (LZF); the only layer.
    Unpacked(Range<u64>),
}

/// What is to be made of the keys of a command.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of the key that gets the result.
    pub target: usize,
    /// What it is made of, the lowest first.
    pub layers: Vec<Layer>,
    /// Its length, bytes.
    pub len: u64,
    /// The bytes of it that are computed from what they are in the lowest layer, and lie over all others.
    pub window: Range<u64>,
    /// A result that is the value before is no change.
    pub only_if_changed: bool,
    /// What it is kept with.
    pub keeps: Keeps,
}

impl Plan {
    /// A result of so many bytes for the first key, from its value, of which some bytes change.
    pub fn patch(len: u64, window: Range<u64>) -> Plan {
        Plan {
            target: 0,
            layers: vec![Layer::Value(0, None)],
            len,
            window,
            only_if_changed: false,
            keeps: Keeps::Own,
        }
    }
}
