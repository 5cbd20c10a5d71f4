//! What is fuzzed: bytes from clients (both protocols, packed strings and dumps) and bytes from media (entries, segments, a whole pool at its start). A target is a
//! function that takes any bytes and panics when something is wrong; drivers find the bytes.
//!
//! Two drivers share the targets and the corpus in `corpus/TARGET`: the tests of this crate mutate it for a moment without
//! knowing what is covered, and `scripts/fuzz.sh` builds libFuzzer around it, which knows, runs for as long as it is
//! told, and adds to the corpus what covers more. Never: is used by the product.

mod media;
mod packed;
mod protocol;
mod recovery;

/// Something that takes any bytes.
pub struct Target {
    /// Its name, and that of its corpus.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Longer inputs find nothing new, bytes.
    pub input_max_bytes: usize,
    /// Words that are unlikely to be found by chance.
    pub words: &'static [&'static [u8]],
}

/// All of them.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "resp",
        run: protocol::resp,
        input_max_bytes: 2_048,
        words: protocol::RESP_WORDS,
    },
    Target {
        name: "memcached",
        run: protocol::memcached,
        input_max_bytes: 2_048,
        words: protocol::MEMCACHED_WORDS,
    },
    Target {
        name: "lzf",
        run: packed::lzf,
        input_max_bytes: 1_024,
        words: &[b"\xe0\xff\x00", b"\xff\xff\xff"],
    },
    Target {
        name: "dump",
        run: packed::dump,
        input_max_bytes: 1_024,
        words: &[
            b"\x00\xc3",
            b"\x00\x80\x00\x01\x00\x00",
            b"\x81\x00\x00\x00\x00\xff\xff\xff\xff",
            b"\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ],
    },
    Target {
        name: "entry",
        run: media::entry,
        input_max_bytes: 512,
        words: &[],
    },
    Target {
        name: "segment",
        run: media::segment,
        input_max_bytes: 4_096,
        words: &[],
    },
    Target {
        name: "recovery",
        run: recovery::recovery,
        input_max_bytes: 256,
        words: &[],
    },
];

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}
