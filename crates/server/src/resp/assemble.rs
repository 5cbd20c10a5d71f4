//! Takes one command apart as it arrives, for commands that do not fit into one read: small arguments are gathered,
//! long ones handed on piece by piece, and those of a command that was refused are passed over without being kept.
//! A pure state machine: it asks for memory and for uploads through [`Event`] and never reads a byte twice.

use std::borrow::Cow;

use super::parse::{Line, bulk_len, header_line, multibulk_len};
use crate::limits::{COMMAND_MAX_BYTES, INLINE_MAX_BYTES, PIECE_BYTES};

/// What the assembly needs next. Except for `More`, the same event comes again until it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More bytes.
    More,
    /// A larger buffer for small arguments: answer with [`Assembly::grow`] once this many bytes are granted.
    Grow(usize),
    /// Argument `index` is `len_bytes` long: answer with [`Assembly::accept`] or [`Assembly::refuse`].
    LargeBegins {
        /// Its place among the arguments.
        index: u32,
        /// Its length.
        len_bytes: u64,
    },
    /// A buffer for pieces: answer with [`Assembly::give_buffer`].
    NeedBuffer,
    /// [`Assembly::piece`] is complete: answer with [`Assembly::piece_done`].
    PieceFull,
    /// The last byte of the command was taken.
    Complete,
    /// Not a command; the connection ends after this text.
    Bad(Cow<'static, str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Count,
    Header,
    Small { left: usize },
    LargeHeader { len: u64 },
    Large { left: u64 },
    Skip { left: u64 },
    LineEnd { left: usize, ends_arg: bool },
    Done,
}

/// A value that was brought in for argument `index`.
#[derive(Debug)]
pub struct LargeArg<U> {
    /// Its place among the arguments.
    pub index: u32,
    /// The upload, until the store takes it.
    pub upload: Option<U>,
}

/// A command on its way in.
#[derive(Debug)]
pub struct Assembly<U> {
    state: State,
    args_left: u32,
    text: Vec<u8>,
    ends: Vec<u32>,
    /// Long arguments so far.
    pub large: Vec<LargeArg<U>>,
    piece: Option<Box<[u8]>>,
    filled: usize,
    refused: Option<String>,
    /// Whoever sends it may come in.
    trusted: bool,
    /// Whether its client wants no reply (memcached's noreply).
    pub noreply: bool,
    /// The last argument was not followed by a line end.
    pub bad_end: bool,
}

/// Bytes that one argument costs beside its text.
const ARG_COST_BYTES: usize = 4;

impl<U> Assembly<U> {
    /// A command of RESP, of a client that may come in or not.
    pub fn new(trusted: bool) -> Self {
        Assembly {
            state: State::Count,
            args_left: 0,
            text: Vec::new(),
            ends: Vec::new(),
            large: Vec::new(),
            piece: None,
            filled: 0,
            refused: None,
            trusted,
            noreply: false,
            bad_end: false,
        }
    }

    /// A command whose first arguments are there, and whose last one, of `len_bytes`, follows without a header. What it holds
    /// exists already ([`Self::held_bytes`]).
    pub fn of_block(words: &[&[u8]], len_bytes: u64) -> Self {
        let mut text = Vec::with_capacity(words.iter().map(|w| w.len()).sum());
        let mut ends = Vec::with_capacity(words.len());
        for word in words {
            text.extend_from_slice(word);
            ends.push(text.len() as u32);
        }
        let state = match len_bytes > INLINE_MAX_BYTES as u64 {
            true => State::LargeHeader { len: len_bytes },
            false => State::Small {
                left: len_bytes as usize,
            },
        };
        Assembly {
            state,
            args_left: 1,
            text,
            ends,
            ..Assembly::new(false)
        }
    }

    /// Takes bytes from the start of `data`; answers how many, and what is needed next.
    pub fn step(&mut self, data: &[u8]) -> (usize, Event) {
        let mut at = 0;
        loop {
            let rest = &data[at..];
            match self.state {
                State::Count | State::Header => match self.header(rest) {
                    Ok(taken) => at += taken,
                    Err(event) => return (at, event),
                },
                State::Small { left } => {
                    let take = left.min(rest.len());
                    if self.ends.len() == self.ends.capacity()
                        || take > self.text.capacity() - self.text.len()
                    {
                        return (at, Event::Grow(self.next_capacity(left)));
                    }
                    self.text.extend_from_slice(&rest[..take]);
                    at += take;
                    if take < left {
                        self.state = State::Small { left: left - take };
                        return (at, Event::More);
                    }
                    self.state = State::LineEnd {
                        left: 2,
                        ends_arg: true,
                    };
                }
                State::LargeHeader { len } => {
                    return (
                        at,
                        Event::LargeBegins {
                            index: self.ends.len() as u32,
                            len_bytes: len,
                        },
                    );
                }
                State::Large { left } => {
                    if self.piece.is_none() {
                        return (at, Event::NeedBuffer);
                    }
                    at += self.fill(rest, left);
                    return (
                        at,
                        if self.piece_is_full() {
                            Event::PieceFull
                        } else {
                            Event::More
                        },
                    );
                }
                State::Skip { left } => {
                    let take = left.min(rest.len() as u64);
                    at += take as usize;
                    if take < left {
                        self.state = State::Skip { left: left - take };
                        return (at, Event::More);
                    }
                    self.state = State::LineEnd {
                        left: 2,
                        ends_arg: false,
                    };
                }
                State::LineEnd { left, ends_arg } => {
                    let take = left.min(rest.len());
                    self.bad_end |= rest[..take] != b"\r\n"[2 - left..2 - left + take];
                    at += take;
                    if take < left {
                        self.state = State::LineEnd {
                            left: left - take,
                            ends_arg,
                        };
                        return (at, Event::More);
                    }
                    if ends_arg && self.refused.is_none() {
                        self.ends.push(self.text.len() as u32);
                    }
                    self.args_left -= 1;
                    self.state = if self.args_left == 0 {
                        State::Done
                    } else {
                        State::Header
                    };
                }
                State::Done => return (at, Event::Complete),
            }
        }
    }

    fn header(&mut self, rest: &[u8]) -> Result<usize, Event> {
        let Some(&first) = rest.first() else {
            return Err(Event::More);
        };
        let counting = self.state == State::Count;
        let (digits, len) = match header_line(rest) {
            Line::Whole(digits, len) => (digits, len),
            Line::Partial => return Err(Event::More),
            Line::TooLong if counting => {
                return Err(Event::Bad(Cow::Borrowed("too big mbulk count string")));
            }
            Line::TooLong => return Err(Event::Bad(Cow::Borrowed("too big bulk count string"))),
        };
        if counting {
            let args = multibulk_len(digits, self.trusted).map_err(Event::Bad)?;
            self.args_left = args.max(0) as u32;
            self.state = if self.args_left == 0 {
                State::Done
            } else {
                State::Header
            };
            return Ok(len);
        }
        let is_name = self.is_at_name();
        let bulk = bulk_len(first, digits, is_name, self.trusted).map_err(Event::Bad)?;
        self.state = if self.refused.is_some() {
            State::Skip { left: bulk as u64 }
        } else if bulk > INLINE_MAX_BYTES {
            State::LargeHeader { len: bulk as u64 }
        } else if self.cost() + bulk + ARG_COST_BYTES > COMMAND_MAX_BYTES {
            self.keep_refusal(format!(
                "ERR the command's arguments are longer than {COMMAND_MAX_BYTES} bytes together; send them in several commands"
            ));
            State::Skip { left: bulk as u64 }
        } else {
            State::Small { left: bulk }
        };
        Ok(len)
    }

    /// Whether the command's name comes next.
    fn is_at_name(&self) -> bool {
        self.ends.is_empty() && self.refused.is_none()
    }

    /// What the gathered arguments take.
    fn cost(&self) -> usize {
        self.text.len() + self.ends.len() * ARG_COST_BYTES
    }

    /// With many short arguments it is only their ends that need more.
    fn next_capacity(&self, need: usize) -> usize {
        let (len, capacity) = (self.text.len(), self.text.capacity());
        let wanted = match need > capacity - len {
            true => (2 * capacity).max(len + need),
            false => capacity,
        };
        wanted.clamp(4096, COMMAND_MAX_BYTES)
    }

    /// What the buffers of this assembly hold right now.
    pub fn held_bytes(&self) -> usize {
        self.text.capacity()
            + self.ends.capacity() * ARG_COST_BYTES
            + self.piece.as_ref().map_or(0, |p| p.len())
    }

    /// What [`Self::grow`] to `capacity` will add.
    pub fn growth_bytes(&self, capacity: usize) -> usize {
        let ends = self.ends.capacity() * 2 + 16;
        capacity + ends * ARG_COST_BYTES
            - (self.text.capacity() + self.ends.capacity() * ARG_COST_BYTES)
    }

    /// Answers [`Event::Grow`].
    pub fn grow(&mut self, capacity: usize) {
        self.text
            .reserve_exact(capacity.saturating_sub(self.text.len()));
        let ends = self.ends.capacity() * 2 + 16;
        self.ends.reserve_exact(ends - self.ends.len());
    }

    /// Answers [`Event::LargeBegins`]: the argument is brought in through `upload`.
    pub fn accept(&mut self, upload: U) {
        let State::LargeHeader { len } = self.state else {
            return;
        };
        self.large.push(LargeArg {
            index: self.ends.len() as u32,
            upload: Some(upload),
        });
        self.state = State::Large { left: len };
    }

    /// The command will not be executed: what is left of it is passed over, and `text` is its reply. The buffers are
    /// freed; uploads stay in [`Self::large`] for the caller to abort.
    pub fn refuse(&mut self, text: String) {
        self.state = match self.state {
            State::LargeHeader { len } => State::Skip { left: len },
            State::Small { left } => State::Skip { left: left as u64 },
            State::Large { left } => State::Skip {
                left: left - self.filled as u64,
            },
            other => other,
        };
        self.keep_refusal(text);
    }

    fn keep_refusal(&mut self, text: String) {
        self.refused = Some(text);
        self.text = Vec::new();
        self.ends = Vec::new();
        self.piece = None;
        self.filled = 0;
    }

    /// In the place of a command that was refused these words are executed.
    pub fn instead(&mut self, words: &[&[u8]]) {
        let other = Self::of_block(words, 0);
        (self.text, self.ends) = (other.text, other.ends);
    }

    /// Why the command is not executed.
    pub fn refusal(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// Answers [`Event::NeedBuffer`]; `PIECE_BYTES` must have been granted.
    pub fn give_buffer(&mut self) {
        self.piece = Some(vec![0; PIECE_BYTES].into_boxed_slice());
        self.filled = 0;
    }

    fn piece_len(&self) -> usize {
        match self.state {
            State::Large { left } => left.min(PIECE_BYTES as u64) as usize,
            _ => 0,
        }
    }

    fn piece_is_full(&self) -> bool {
        self.filled == self.piece_len()
    }

    fn fill(&mut self, rest: &[u8], left: u64) -> usize {
        let want = left.min(PIECE_BYTES as u64) as usize - self.filled;
        let take = want.min(rest.len());
        if let Some(piece) = &mut self.piece {
            piece[self.filled..self.filled + take].copy_from_slice(&rest[..take]);
            self.filled += take;
        }
        take
    }

    /// Where the bytes of the current piece may be read to directly, if one is being filled.
    pub fn direct(&mut self) -> Option<&mut [u8]> {
        let end = self.piece_len();
        let piece = self.piece.as_mut()?;
        (self.filled < end).then(|| &mut piece[self.filled..end])
    }

    /// Whether a buffer for the current piece is there.
    pub fn is_provided_for(&self) -> bool {
        self.piece.is_some()
    }

    /// This many bytes were read into [`Self::direct`].
    pub fn filled_directly(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// The piece that is complete and the upload it belongs to.
    pub fn piece(&mut self) -> Option<(&mut U, &[u8])> {
        let upload = self.large.last_mut()?.upload.as_mut()?;
        Some((upload, &self.piece.as_ref()?[..self.filled]))
    }

    /// Answers [`Event::PieceFull`]. The buffer is freed with the last piece; answers how many bytes that were.
    pub fn piece_done(&mut self) -> usize {
        let State::Large { left } = self.state else {
            return 0;
        };
        let left = left - self.filled as u64;
        self.filled = 0;
        if left > 0 {
            self.state = State::Large { left };
            return 0;
        }
        // The long argument stands among the others as an empty one.
        self.state = State::LineEnd {
            left: 2,
            ends_arg: true,
        };
        if self.ends.len() == self.ends.capacity() {
            // Four bytes more: too little to ask for.
            self.ends.reserve_exact(1);
        }
        self.piece.take().map_or(0, |p| p.len())
    }

    /// The name of the command, once it is known.
    pub fn name(&self) -> Option<&[u8]> {
        self.ends.first().map(|&end| &self.text[..end as usize])
    }

    /// Argument `index`, once it is known.
    pub fn arg(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 {
            0
        } else {
            self.ends[index - 1] as usize
        };
        Some(&self.text[start..end])
    }

    /// How many arguments are complete.
    pub fn args_len(&self) -> usize {
        self.ends.len()
    }

    /// How many arguments the whole command has.
    pub fn args_total(&self) -> usize {
        self.ends.len() + self.args_left as usize
    }

    /// All arguments, into `args` (which is emptied first), beside the long ones, which stand there as empty ones.
    pub fn args<'a>(text: &'a [u8], ends: &[u32], args: &mut Vec<&'a [u8]>) {
        args.clear();
        let mut start = 0;
        for &end in ends {
            args.push(&text[start..end as usize]);
            start = end as usize;
        }
    }

    /// The parts that [`Self::args`] and the execution need, borrowed apart.
    pub fn parts(&mut self) -> (&[u8], &[u32], &mut Vec<LargeArg<U>>) {
        (&self.text, &self.ends, &mut self.large)
    }
}
