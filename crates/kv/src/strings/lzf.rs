//! LZF, in which Redis packs strings: unpacked bit by bit, since neither form need be in memory whole. Promises: takes any
//! bytes; keeps no more than what a reference can reach and what was asked for. Never: packs.

/// How far back a reference reaches.
const REACH_BYTES: usize = 8 << 10;
/// From this control byte on, bytes are references.
const REFERENCE: u8 = 32;
/// A run of this length is followed by what it is longer.
const LONG_RUN: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Control,
    /// So many bytes as they are.
    Literal(usize),
    /// The length of a run comes; the high bits of its reference are these.
    Length(usize),
    /// The low bits of a run's reference come.
    Low(usize, usize),
    /// So many bytes from so far back.
    Run(usize, usize),
}

/// Unpacks what it is fed.
#[derive(Debug)]
pub struct Unpacker {
    state: State,
    /// What references may reach, then what was not taken.
    out: Vec<u8>,
    taken: usize,
}

impl Default for Unpacker {
    fn default() -> Self {
        Unpacker {
            state: State::Control,
            out: Vec::new(),
            taken: 0,
        }
    }
}

impl Unpacker {
    /// Takes packed bytes until `wanted` are ready; answers how many it took. None: they are not LZF.
    pub fn feed(&mut self, packed: &[u8], wanted: usize) -> Option<usize> {
        let mut at = 0;
        while self.ready() < wanted {
            let missing = wanted - self.ready();
            if let State::Run(run, back) = self.state {
                let now = run.min(missing);
                let from = self.out.len() - back;
                (0..now).for_each(|n| self.out.push(self.out[from + n]));
                self.state = match run - now {
                    0 => State::Control,
                    left => State::Run(left, back),
                };
                continue;
            }
            let Some(&byte) = packed.get(at) else { break };
            if let State::Literal(left) = self.state {
                let now = left.min(missing).min(packed.len() - at);
                self.out.extend_from_slice(&packed[at..at + now]);
                at += now;
                self.state = match left - now {
                    0 => State::Control,
                    left => State::Literal(left),
                };
                continue;
            }
            at += 1;
            self.state = self.next(usize::from(byte))?;
        }
        Some(at)
    }

    fn next(&self, byte: usize) -> Option<State> {
        Some(match self.state {
            State::Control if byte < usize::from(REFERENCE) => State::Literal(byte + 1),
            State::Control => match (byte >> 5) + 2 {
                LONG_RUN => State::Length(byte & 31),
                run => State::Low(run, byte & 31),
            },
            State::Length(high) => State::Low(LONG_RUN + byte, high),
            State::Low(run, high) => {
                let back = (high << 8 | byte) + 1;
                (back <= self.out.len()).then_some(State::Run(run, back))?
            }
            busy => busy,
        })
    }

    /// How many unpacked bytes were not taken.
    pub fn ready(&self) -> usize {
        self.out.len() - self.taken
    }

    /// Takes the next unpacked bytes; so many must be ready.
    pub fn take(&mut self, into: &mut [u8]) {
        into.copy_from_slice(&self.out[self.taken..self.taken + into.len()]);
        self.taken += into.len();
        let gone = self.taken.saturating_sub(REACH_BYTES);
        self.out.drain(..gone);
        self.taken -= gone;
    }

    /// Whether nothing was begun, or left.
    pub fn is_through(&self) -> bool {
        self.state == State::Control && self.ready() == 0
    }
}

/// All of what `packed` is, if that is `len` bytes.
pub fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut unpacker = Unpacker::default();
    let fed = unpacker.feed(packed, len)?;
    let mut out = vec![0; len.min(unpacker.ready())];
    unpacker.take(&mut out);
    (fed == packed.len() && out.len() == len && unpacker.is_through()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Literals and references, and what they mean.
    fn packed(ops: &[(bool, u8, u16)]) -> (Vec<u8>, Vec<u8>) {
        let (mut packed, mut plain) = (Vec::new(), Vec::<u8>::new());
        for &(literal, len, back) in ops {
            if literal || plain.is_empty() {
                let len = len % 32 + 1;
                packed.push(len - 1);
                for n in 0..len {
                    let byte = n.wrapping_mul(37) ^ back as u8;
                    packed.push(byte);
                    plain.push(byte);
                }
                continue;
            }
            let back = usize::from(back) % plain.len().min(REACH_BYTES);
            let run = usize::from(len) + 3;
            match run {
                3..9 => packed.push(((run - 2) << 5 | back >> 8) as u8),
                _ => packed.extend_from_slice(&[(7 << 5 | back >> 8) as u8, (run - 9) as u8]),
            }
            packed.push(back as u8);
            for _ in 0..run {
                plain.push(plain[plain.len() - back - 1]);
            }
        }
        (packed, plain)
    }

    proptest! {
        #[test]
        fn in_any_portions(
            ops in proptest::collection::vec(any::<(bool, u8, u16)>(), 0..400),
            fed in 1usize..700, wanted in 1usize..900,
        ) {
            let (packed, plain) = packed(&ops);
            prop_assert!(unpack(&packed, plain.len()).as_ref() == Some(&plain));
            prop_assert_eq!(unpack(&packed, plain.len() + 1), None);
            let (mut unpacker, mut at, mut out) = (Unpacker::default(), 0, Vec::new());
            while out.len() < plain.len() {
                let wanted = wanted.min(plain.len() - out.len());
                let end = packed.len().min(at + fed);
                at += unpacker.feed(&packed[at..end], wanted).unwrap();
                if unpacker.ready() >= wanted {
                    let mut part = vec![0; wanted];
                    unpacker.take(&mut part);
                    out.extend_from_slice(&part);
                }
                prop_assert!(unpacker.out.len() <= REACH_BYTES + wanted);
            }
            prop_assert!(out == plain && at == packed.len() && unpacker.is_through());
        }
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), len in 0usize..3000) {
            let _ = unpack(&bytes, len);
        }
    }
}
