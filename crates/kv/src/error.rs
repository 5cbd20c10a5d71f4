//! Why a command failed. The text is what a client sees behind "-ERR ".

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct KvError {
    kind: KvErrorKind,
    text: String,
}

/// What sort of refusal it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvErrorKind {
    /// The command cannot be done with this value or these arguments.
    Wrong,
    /// The SSD terrace is full; Redis would say OOM.
    SsdFull,
    /// The DRAM cap leaves no room; Redis would say OOM.
    DramFull,
    /// The pool takes no more updates.
    ReadOnly,
    /// The value could not be read back.
    Damaged,
    /// Something is longer than allowed.
    TooLarge,
}

impl KvError {
    /// With a text.
    pub fn new(kind: KvErrorKind, text: impl Into<String>) -> KvError {
        KvError {
            kind,
            text: text.into(),
        }
    }
    /// What sort of refusal it is.
    pub fn kind(&self) -> KvErrorKind {
        self.kind
    }
    pub(crate) fn wrong(text: &str) -> KvError {
        KvError::new(KvErrorKind::Wrong, text)
    }
}
