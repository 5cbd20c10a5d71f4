//! Log lines, on stderr: with time and level for people and files, plain where that is not a terminal; for systemd's journal, which has a
//! time of its own, with the number by which it sorts. TERRACE_LOG chooses how many. Never: logs what a client sent.

use std::fmt;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins to log.
///
/// # Errors
/// When TERRACE_LOG is no level.
pub fn to_stderr() -> Result<(), String> {
    let level = match std::env::var("TERRACE_LOG") {
        Err(_) => LevelFilter::INFO,
        Ok(text) => text.parse().map_err(|_| {
            format!("TERRACE_LOG is `{text}`; allowed are error, warn, info, debug, trace and off")
        })?,
    };
    let lines = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // It would say so on stderr, and panic where that is what failed: a server goes on without its log.
        .log_internal_errors(false)
        .with_max_level(level);
    match is_journal() {
        true => lines.event_format(Journal).init(),
        false => lines.init(),
    }
    Ok(())
}

/// Whether stderr is the stream to the journal that the service manager says it gave.
fn is_journal() -> bool {
    let Ok(said) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = std::fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|file| said == format!("{}:{}", file.dev(), file.ino()))
}

/// A line as the journal takes it.
struct Journal;

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(to, "<{}>", priority(*event.metadata().level()))?;
        ctx.field_format().format_fields(to.by_ref(), event)?;
        writeln!(to)
    }
}

/// A level as syslog numbers it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
