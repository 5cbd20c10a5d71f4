//! What is shown: what the terraces hold now, and what happened in a second between two answers of a server or a program. Pure.
//! Never: knows a terminal.

use serde::Serialize;
use terrace_vm::PAGE_BYTES;

use super::source::Sample;

/// Commands that are shown.
const COMMANDS_SHOWN: usize = 12;

/// All that is shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Screen {
    /// Its version.
    pub version: String,
    /// What only one kind has.
    #[serde(flatten)]
    pub whose: Whose,
    /// The terraces, highest first.
    pub terraces: Vec<Terrace>,
    /// The bound on DRAM, bytes.
    pub cap_bytes: f64,
    /// Who holds how much of it, bytes.
    pub parts: Vec<Amount>,
    /// Reads of the device in a second.
    pub device_reads_per_s: f64,
    /// Writes.
    pub device_writes_per_s: f64,
    /// Flushes.
    pub device_flushes_per_s: f64,
    /// Bytes read in a second, by what for.
    pub read: Vec<Amount>,
    /// Bytes written in a second, by what for.
    pub written: Vec<Amount>,
}

/// Whose terraces they are.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Whose {
    /// A server's.
    Server(Server),
    /// A program's, under `terrace run`.
    Program(Program),
}

/// What only a server has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Server {
    /// Which server.
    pub server: String,
    /// When an update is acknowledged.
    pub durability: String,
    /// Time since its start, s.
    pub uptime_s: f64,
    /// Keys.
    pub keys: f64,
    /// Connections.
    pub clients: f64,
    /// Commands in a second.
    pub commands_per_s: f64,
    /// Commands that wait for room.
    pub waiting: f64,
    /// Bytes that no durable terrace has.
    pub dirty_bytes: f64,
    /// The bound on them.
    pub dirty_max_bytes: f64,
    /// The commands that come most.
    pub commands: Vec<Called>,
}

/// What only a program has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Program {
    /// Its number.
    pub process: f64,
    /// Its name.
    pub program: String,
    /// Its memory that is served, bytes.
    pub served_bytes: f64,
    /// DRAM of the whole process now, bytes.
    pub process_dram_bytes: f64,
    /// The most it ever was.
    pub process_dram_peak_bytes: f64,
    /// Pages that it sees without a fault, bytes.
    pub resident_bytes: f64,
    /// Faults in a second.
    pub faults_per_s: f64,
    /// Of these, pages fetched from the pool.
    pub pages_fetched_per_s: f64,
    /// Pages taken away again in a second.
    pub pages_evicted_per_s: f64,
    /// Of these, pages that had changed.
    pub pages_stored_per_s: f64,
    /// Faults that ended in SIGBUS, since the start.
    pub faults_failed: f64,
    /// Threads that were busy with faults, on average: 1 is one thread all the time.
    pub fault_time_share: f64,
}

/// A number with a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Amount {
    /// What.
    pub name: &'static str,
    /// How many bytes.
    pub bytes: f64,
}

/// A terrace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Terrace {
    /// Which.
    pub name: &'static str,
    /// Bytes of live entries.
    pub live_bytes: f64,
    /// Bytes that it may hold, or holds.
    pub size_bytes: f64,
    /// Reads that it answered in a second.
    pub hits_per_s: f64,
    /// Of all reads of keys that exist, those it answered, %.
    pub share_percent: f64,
}

/// A command.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Called {
    /// Its name.
    pub name: String,
    /// Calls in a second.
    pub per_s: f64,
    /// Time of a call, mean of the interval, µs.
    pub mean_us: f64,
    /// Median since the start, µs.
    pub p50_us: f64,
    /// 99th percentile since the start, µs.
    pub p99_us: f64,
    /// Errors in a second.
    pub failed_per_s: f64,
}

/// A field of `a=1,b=2`.
fn part(text: &str, name: &str) -> f64 {
    let mut fields = text.split(',').filter_map(|f| f.split_once('='));
    let found = fields.find(|(known, _)| *known == name);
    found.and_then(|(_, v)| v.parse().ok()).unwrap_or(0.0)
}

impl Screen {
    /// What happened between two answers.
    pub fn between(before: &Sample, now: &Sample, server: String) -> Screen {
        let seconds = (now.at - before.at).as_secs_f64();
        let per_s = |name: &str| rate(before.number(name), now.number(name), seconds);
        let of = |name: &str| now.number(name);
        let amounts = |names: &[(&'static str, &str)], value: &dyn Fn(&str) -> f64| {
            let amount = |&(name, field): &(&'static str, &str)| Amount {
                name,
                bytes: value(field),
            };
            names.iter().map(amount).collect::<Vec<_>>()
        };
        let whose = match now.fields.contains_key("program_process") {
            true => Whose::Program(program(now, &per_s)),
            false => Whose::Server(Server {
                server,
                durability: now.text("durability").to_string(),
                uptime_s: of("uptime_in_seconds"),
                keys: of("keys"),
                clients: of("connected_clients"),
                commands_per_s: per_s("total_commands_processed"),
                waiting: of("waiting_commands"),
                dirty_bytes: of("dirty_bytes"),
                dirty_max_bytes: of("dirty_max_bytes"),
                commands: commands(before, now, seconds),
            }),
        };
        Screen {
            version: now.text("terrace_version").to_string(),
            whose,
            terraces: terraces(now, &per_s),
            cap_bytes: of("cap_bytes"),
            parts: amounts(
                &[
                    ("segments", "segment_bytes"),
                    ("directory", "directory_bytes"),
                    ("io", "io_bytes"),
                    ("connections", "connection_bytes"),
                    ("pages", "page_bytes"),
                ],
                &of,
            ),
            device_reads_per_s: per_s("disk_reads"),
            device_writes_per_s: per_s("disk_writes"),
            device_flushes_per_s: per_s("disk_flushes"),
            read: amounts(
                &[
                    ("entries", "read_entry_bytes"),
                    ("cleaner", "read_cleaner_bytes"),
                    ("other", "read_other_bytes"),
                ],
                &per_s,
            ),
            written: amounts(
                &[
                    ("updates", "written_update_bytes"),
                    ("cleaner", "written_cleaner_bytes"),
                    ("frames", "written_frame_bytes"),
                    ("checkpoints", "written_image_bytes"),
                    ("other", "written_other_bytes"),
                ],
                &per_s,
            ),
        }
    }

    /// As lines of text, for whoever has no terminal.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{}\n\n{:<8} {:>10} {:>10} {:>10} {:>7}\n",
            self.title(),
            "terrace",
            "live",
            "size",
            "hits/s",
            "share"
        );
        for t in &self.terraces {
            text += &format!(
                "{:<8} {:>10} {:>10} {:>10.0} {:>6.1}%\n",
                t.name,
                bytes(t.live_bytes),
                bytes(t.size_bytes),
                t.hits_per_s,
                t.share_percent
            );
        }
        text += &format!(
            "\n{}\n{}\n{}\n",
            self.cap_line(),
            self.whose.line(),
            self.device_line()
        );
        text += &format!(
            "{}\n{}\n\n",
            amounts("read/s", &self.read),
            amounts("written/s", &self.written)
        );
        let commands = match &self.whose {
            Whose::Program(program) => return text + &program.lines().join("\n") + "\n",
            Whose::Server(server) => &server.commands,
        };
        text += &format!(
            "{:<20} {:>10} {:>10} {:>10} {:>10} {:>9}\n",
            "command", "calls/s", "mean us", "p50 us", "p99 us", "errors/s"
        );
        for c in commands {
            text += &format!(
                "{:<20} {:>10.0} {:>10.1} {:>10.1} {:>10.1} {:>9.0}\n",
                c.name, c.per_s, c.mean_us, c.p50_us, c.p99_us, c.failed_per_s
            );
        }
        text
    }

    /// The first line.
    pub fn title(&self) -> String {
        let version = &self.version;
        match &self.whose {
            Whose::Server(s) => format!(
                "terrace {version} at {}, up {}, durability {}: {} keys, {} clients, {:.0} commands/s, {} waiting",
                s.server,
                duration(s.uptime_s),
                s.durability,
                s.keys,
                s.clients,
                s.commands_per_s,
                s.waiting
            ),
            Whose::Program(p) => format!(
                "terrace {version} run, process {} ({}): {} served, {:.0} faults/s",
                p.process,
                p.program,
                bytes(p.served_bytes),
                p.faults_per_s
            ),
        }
    }

    /// Of the cap, what is held, 0 to 1.
    pub fn used_share(&self) -> f64 {
        let used: f64 = self.parts.iter().map(|p| p.bytes).sum();
        (used / self.cap_bytes.max(1.0)).clamp(0.0, 1.0)
    }

    /// The cap and its parts.
    pub fn cap_line(&self) -> String {
        let used: f64 = self.parts.iter().map(|p| p.bytes).sum();
        let held = format!("cap {} of {}", bytes(used), bytes(self.cap_bytes));
        amounts(&held, &self.parts)
    }

    /// What the device does.
    pub fn device_line(&self) -> String {
        format!(
            "device {:.0} reads/s, {:.0} writes/s, {:.0} flushes/s",
            self.device_reads_per_s, self.device_writes_per_s, self.device_flushes_per_s
        )
    }
}

impl Whose {
    /// What the second gauge shows: its title.
    pub fn gauge_title(&self) -> &'static str {
        match self {
            Whose::Server(_) => "Dirty",
            Whose::Program(_) => "Time in faults",
        }
    }

    /// How full it is, 0 to 1.
    pub fn share(&self) -> f64 {
        let share = match self {
            Whose::Server(s) => s.dirty_bytes / s.dirty_max_bytes.max(1.0),
            Whose::Program(p) => p.fault_time_share,
        };
        share.clamp(0.0, 1.0)
    }

    /// Dirty bytes and their bound, or the time that faults take.
    pub fn line(&self) -> String {
        match self {
            Whose::Server(s) => format!(
                "dirty {} of {}",
                bytes(s.dirty_bytes),
                bytes(s.dirty_max_bytes)
            ),
            Whose::Program(p) => format!(
                "faults take {:.1}% of a thread's time",
                100.0 * p.fault_time_share
            ),
        }
    }
}

impl Program {
    /// What is to be known of it.
    pub fn lines(&self) -> [String; 3] {
        [
            format!(
                "process: {} of DRAM now, {} at most",
                bytes(self.process_dram_bytes),
                bytes(self.process_dram_peak_bytes)
            ),
            format!(
                "pages: {} seen without a fault, of {} served",
                bytes(self.resident_bytes),
                bytes(self.served_bytes)
            ),
            format!(
                "faults {:.0}/s, pages fetched {:.0}/s, evicted {:.0}/s, of these stored {:.0}/s; {} faults failed so far",
                self.faults_per_s,
                self.pages_fetched_per_s,
                self.pages_evicted_per_s,
                self.pages_stored_per_s,
                self.faults_failed
            ),
        ]
    }
}

/// A name and its amounts, as a line.
pub fn amounts(name: &str, amounts: &[Amount]) -> String {
    let shown = amounts.iter().filter(|a| a.bytes >= 1.0);
    let shown: Vec<String> = shown
        .map(|a| format!("{} {}", a.name, bytes(a.bytes)))
        .collect();
    match shown.is_empty() {
        true => format!("{name}: nothing"),
        false => format!("{name}: {}", shown.join(", ")),
    }
}

/// A counter that was set back, or another server's, is no negative rate.
fn rate(before: f64, now: f64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => (now - before).max(0.0) / seconds,
        false => 0.0,
    }
}

fn program(now: &Sample, per_s: &dyn Fn(&str) -> f64) -> Program {
    let of = |name: &str| now.number(name);
    Program {
        process: of("program_process"),
        program: now.text("program_name").to_string(),
        served_bytes: of("program_served_malloc_bytes") + of("program_served_mmap_bytes"),
        process_dram_bytes: of("program_process_dram_bytes"),
        process_dram_peak_bytes: of("program_process_dram_peak_bytes"),
        resident_bytes: of("program_resident_pages") * PAGE_BYTES as f64,
        faults_per_s: per_s("program_faults"),
        pages_fetched_per_s: per_s("program_pages_fetched"),
        pages_evicted_per_s: per_s("program_pages_evicted"),
        pages_stored_per_s: per_s("program_pages_stored"),
        faults_failed: of("program_faults_failed"),
        fault_time_share: per_s("program_fault_microseconds") / 1e6,
    }
}

fn terraces(now: &Sample, per_s: &dyn Fn(&str) -> f64) -> Vec<Terrace> {
    let hits = ["hits_dram", "hits_middle", "hits_ssd"].map(per_s);
    let all: f64 = hits.iter().sum();
    let of = |name: &str| now.number(name);
    let sizes = [
        ("dram", of("dram_live_bytes"), of("dram_bytes")),
        ("middle", of("middle_bytes"), of("middle_bytes")),
        ("ssd", of("ssd_live_bytes"), of("ssd_usable_bytes")),
    ];
    let terraces = sizes.into_iter().zip(hits);
    terraces
        .filter(|((name, _, size), _)| *name != "middle" || *size > 0.0)
        .map(|((name, live_bytes, size_bytes), hits_per_s)| Terrace {
            name,
            live_bytes,
            size_bytes,
            hits_per_s,
            share_percent: if all > 0.0 {
                100.0 * hits_per_s / all
            } else {
                0.0
            },
        })
        .collect()
}

fn commands(before: &Sample, now: &Sample, seconds: f64) -> Vec<Called> {
    let mut commands: Vec<Called> = Vec::new();
    for (field, stats) in &now.fields {
        let Some(name) = field.strip_prefix("cmdstat_") else {
            continue;
        };
        let old = before.text(field);
        let grown = |of: &str| (part(stats, of) - part(old, of)).max(0.0);
        let calls = grown("calls");
        let times = now.text(&format!("latency_percentiles_usec_{name}"));
        commands.push(Called {
            name: name.to_string(),
            per_s: rate(0.0, calls, seconds),
            mean_us: grown("usec") / calls.max(1.0),
            p50_us: part(times, "p50"),
            p99_us: part(times, "p99"),
            failed_per_s: rate(
                0.0,
                grown("failed_calls") + grown("rejected_calls"),
                seconds,
            ),
        });
    }
    commands.sort_by(|a, b| b.per_s.total_cmp(&a.per_s).then(a.name.cmp(&b.name)));
    commands.truncate(COMMANDS_SHOWN);
    commands
}

/// Bytes as people read them.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0}B"),
        _ => format!("{value:.1}{}", UNITS[unit]),
    }
}

fn duration(seconds: f64) -> String {
    let s = seconds as u64;
    let (days, hours, minutes) = (s / 86_400, s / 3_600 % 24, s / 60 % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{:02}", s % 60),
        _ => format!("{days}d {hours:02}:{minutes:02}"),
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const BEFORE: &str = "terrace_version:0.1.0\r\ndurability:async\r\nuptime_in_seconds:90000\r\nconnected_clients:3\r\n\
        total_commands_processed:1000\r\nhits_dram:100\r\nhits_ssd:0\r\ndisk_reads:7\r\nwritten_update_bytes:0\r\n\
        cmdstat_get:calls=500,usec=1000,usec_per_call=2.00,rejected_calls=0,failed_calls=0\r\n";
    const NOW: &str = "# Server\r\nterrace_version:0.1.0\r\ndurability:async\r\nuptime_in_seconds:90002\r\nconnected_clients:3\r\n\
        total_commands_processed:3000\r\nkeys:12345\r\nhits_dram:1600\r\nhits_ssd:500\r\ndisk_reads:507\r\ndisk_flushes:2\r\n\
        cap_bytes:67108864\r\nsegment_bytes:50331648\r\ndirectory_bytes:1048576\r\ndirty_bytes:2097152\r\ndirty_max_bytes:8388608\r\n\
        dram_live_bytes:40000000\r\ndram_bytes:50331648\r\nssd_live_bytes:200000000\r\nssd_usable_bytes:400000000\r\n\
        written_update_bytes:4194304\r\nread_entry_bytes:2048000\r\n\
        cmdstat_get:calls=1500,usec=21000,usec_per_call=14.00,rejected_calls=0,failed_calls=0\r\n\
        cmdstat_set:calls=1000,usec=5000,usec_per_call=5.00,rejected_calls=2,failed_calls=4\r\n\
        latency_percentiles_usec_get:p50=3.007,p99=90.111,p99.9=150.015\r\n";

    /// The server's part.
    pub fn server(screen: &Screen) -> &Server {
        match &screen.whose {
            Whose::Server(server) => server,
            Whose::Program(_) => panic!("a program's: {screen:?}"),
        }
    }

    /// A screen of two made-up answers, two seconds apart.
    pub fn example() -> Screen {
        let at = Instant::now();
        let before = Sample::parse(at, BEFORE);
        let now = Sample::parse(at + Duration::from_secs(2), NOW);
        Screen::between(&before, &now, "127.0.0.1:6380".to_string())
    }

    #[test]
    fn rates_are_of_the_time_between_two_answers() {
        let screen = example();
        assert_eq!(server(&screen).commands_per_s, 1000.0);
        assert_eq!(screen.device_reads_per_s, 250.0);
        assert_eq!(screen.terraces.len(), 2);
        assert_eq!(
            (
                screen.terraces[0].hits_per_s,
                screen.terraces[0].share_percent
            ),
            (750.0, 75.0)
        );
        assert_eq!(
            (
                screen.terraces[1].hits_per_s,
                screen.terraces[1].share_percent
            ),
            (250.0, 25.0)
        );
        let get = server(&screen)
            .commands
            .iter()
            .find(|c| c.name == "get")
            .unwrap();
        assert_eq!((get.per_s, get.mean_us, get.p99_us), (500.0, 20.0, 90.111));
        let set = server(&screen)
            .commands
            .iter()
            .find(|c| c.name == "set")
            .unwrap();
        assert_eq!((set.per_s, set.failed_per_s), (500.0, 3.0));
    }

    #[test]
    fn a_first_look_and_one_after_a_restart_have_no_rates() {
        let at = Instant::now();
        let (old, new) = (Sample::parse(at, BEFORE), Sample::parse(at, NOW));
        assert_eq!(
            server(&Screen::between(&new, &new, String::new())).commands_per_s,
            0.0
        );
        let later = Sample {
            at: at + Duration::from_secs(1),
            ..old
        };
        assert_eq!(
            server(&Screen::between(&new, &later, String::new())).commands_per_s,
            0.0
        );
    }

    #[test]
    fn text_has_all_of_it() {
        let text = example().text();
        for want in [
            "terrace 0.1.0 at 127.0.0.1:6380, up 1d 01:00, durability async: 12345 keys, 3 clients, 1000 commands/s, 0 waiting",
            "dram          38.1M      48.0M        750   75.0%",
            "cap 49.0M of 64.0M: segments 48.0M, directory 1.0M",
            "dirty 2.0M of 8.0M",
            "device 250 reads/s, 0 writes/s, 1 flushes/s",
            "written/s: updates 2.0M",
            "get                         500       20.0        3.0       90.1         0",
        ] {
            assert!(text.contains(want), "{want}\n{text}");
        }
    }
}
