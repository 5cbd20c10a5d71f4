//! What is known of an access that faulted.

/// What is known of the access that faulted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    /// The processor does not tell: who finds the page there wanted to write.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code))]
    Unknown,
}
