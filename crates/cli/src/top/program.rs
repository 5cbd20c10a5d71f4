//! Asks a program under `terrace run` for its figures, over the socket that the preloaded library has for that. Promises: an answer of
//! bounded length, no part of which takes longer than `ANSWER_MAX`, from the process that was asked for and no other, or an error that says what to do. Never: sends
//! anything.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use serde::Deserialize;
use serde_json::Value;

use super::source::Sample;

/// How long the program may send nothing.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest answer, bytes.
const ANSWER_MAX_BYTES: u64 = 64 << 10;
/// What names of the program's own figures begin with, so that they differ from those of its pool.
const OWN: &str = "program_";

/// What the library answers.
#[derive(Deserialize)]
struct Answer {
    terrace_version: String,
    process: u32,
    program: BTreeMap<String, Value>,
    pool: BTreeMap<String, Value>,
}

/// A process.
pub struct Program(u32);

impl Program {
    /// By its number.
    pub fn new(pid: u32) -> Program {
        Program(pid)
    }

    /// Asks for its figures.
    ///
    /// # Errors
    /// When it is not under `terrace run`, belongs to somebody else, or does not answer.
    pub fn sample(&self) -> Result<Sample> {
        let stream = self.connect()?;
        let mut text = String::new();
        let mut bounded = stream.take(ANSWER_MAX_BYTES);
        bounded.read_to_string(&mut text).with_context(|| {
            format!(
                "process {} does not answer within {ANSWER_MAX:?} (is it stopped?)",
                self.0
            )
        })?;
        if text.is_empty() {
            bail!(
                "process {} answers only its own user and root, or is ending",
                self.0
            );
        }
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.0));
        parse(Instant::now(), &text, name.unwrap_or_default().trim())
    }

    fn connect(&self) -> Result<UnixStream> {
        let socket = net::socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(ANSWER_MAX))?;
        let name = format!("terrace-run-{}", self.0);
        let addr = net::SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        net::connect(&socket, &addr).with_context(|| {
            format!(
                "process {} does not answer: it is not under `terrace run`, has asked for less than a MiB so far, or is in another \
                 container or network namespace",
                self.0
            )
        })?;
        // Anybody may have taken the name first.
        let peer = sockopt::socket_peercred(&socket)?;
        let pid = peer.pid.as_raw_nonzero().get();
        ensure!(
            u32::try_from(pid) == Ok(self.0),
            "process {pid} answers for process {}: it is not believed",
            self.0
        );
        Ok(UnixStream::from(socket))
    }
}

fn parse(at: Instant, text: &str, name: &str) -> Result<Sample> {
    let answer: Answer =
        serde_json::from_str(text).context("the program's library is of another version")?;
    // A name is what the program likes; a terminal is not to obey it.
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    let own = answer.program.into_iter();
    let own = own.map(|(name, value)| (format!("{OWN}{name}"), value.to_string()));
    let pool = answer.pool.into_iter();
    let mut fields: BTreeMap<String, String> = pool
        .map(|(name, value)| (name, value.to_string()))
        .chain(own)
        .collect();
    fields.insert("terrace_version".into(), answer.terrace_version);
    fields.insert(format!("{OWN}process"), answer.process.to_string());
    fields.insert(format!("{OWN}name"), name);
    Ok(Sample { at, fields })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::top::screen::Screen;

    const BEFORE: &str = r#"{"terrace_version":"0.1.0","process":42,"program":{"faults":1000,"fault_microseconds":500000},
        "pool":{"cap_bytes":67108864,"disk_reads":7}}"#;
    const NOW: &str = r#"{"terrace_version":"0.1.0","process":42,"program":{"served_malloc_bytes":209715200,"served_mmap_bytes":104857600,
        "process_dram_peak_bytes":83886080,"process_dram_bytes":73400320,"resident_pages":10240,"faults":3000,"pages_fetched":600,"pages_evicted":800,
        "pages_stored":400,"faults_failed":0,"fault_microseconds":1000000},
        "pool":{"cap_bytes":67108864,"page_bytes":41943040,"segment_bytes":8388608,"dram_live_bytes":8000000,"dram_bytes":8388608,
        "ssd_live_bytes":200000000,"ssd_usable_bytes":400000000,"hits_dram":300,"hits_ssd":100,"disk_reads":207,
        "written_update_bytes":4194304}}"#;

    /// A screen of two made-up answers, two seconds apart.
    pub fn example() -> Screen {
        let at = Instant::now();
        let before = parse(at, BEFORE, "cc\x1b1\n").unwrap();
        let now = parse(at + Duration::from_secs(2), NOW, "cc\x1b1\n").unwrap();
        Screen::between(&before, &now, "process 42".to_string())
    }

    #[test]
    fn figures_and_rates_are_those_of_the_answers() {
        let json = serde_json::to_value(example()).unwrap();
        for (name, want) in [
            ("served_bytes", 314_572_800.0),
            ("process_dram_peak_bytes", 83_886_080.0),
            ("resident_bytes", 41_943_040.0),
            ("faults_per_s", 1000.0),
            ("pages_fetched_per_s", 300.0),
            ("fault_time_share", 0.25),
            ("device_reads_per_s", 100.0),
        ] {
            assert_eq!(json[name], want, "{name}: {json}");
        }
        assert_eq!(json["program"], "cc1");
        assert_eq!(json["terraces"][0]["share_percent"], 75.0);
        assert!(json.get("keys").is_none() && json.get("commands").is_none());
    }

    #[test]
    fn other_answers_are_refused() {
        for text in ["{}", "hello", r#"{"terrace_version":1}"#] {
            assert!(parse(Instant::now(), text, "x").is_err(), "{text}");
        }
    }

    #[test]
    fn nobody_there_is_said() {
        let Err(why) = Program::new(u32::MAX).sample() else {
            panic!("somebody answers");
        };
        assert!(why.to_string().contains("not under `terrace run`"), "{why}");
    }
}
