//! What is said on stderr where nothing may be allocated, and how the program is ended when going on would lose data.

use std::fmt::{self, Write};

/// The longest message, in bytes; what is longer is cut.
const MESSAGE_BYTES_MAX: usize = 512;

/// A line on stderr, without the heap and without a lock.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    struct Line([u8; MESSAGE_BYTES_MAX], usize);
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = MESSAGE_BYTES_MAX - 1 - self.1;
            let text = &text.as_bytes()[..text.len().min(room)];
            self.0[self.1..][..text.len()].copy_from_slice(text);
            self.1 += text.len();
            Ok(())
        }
    }
    let mut line = Line([0; MESSAGE_BYTES_MAX], 0);
    // Cutting it is all that can happen.
    let _ = write!(line, "terrace: {what}");
    line.0[line.1] = b'\n';
    // Not by glibc's own write, in which a thread may be cancelled: this is said in a fault as well.
    // SAFETY: the bytes of the line; a stderr that is closed refuses them.
    unsafe {
        libc::syscall(
            libc::SYS_write,
            libc::STDERR_FILENO,
            line.0.as_ptr(),
            line.1 + 1,
        )
    };
}

/// Ends the program: what must not happen happened, and going on would lose data.
pub(crate) fn die(what: fmt::Arguments<'_>) -> ! {
    say(what);
    std::process::abort()
}
