//! LATENCY, SLOWLOG and MEMORY: what took long, and what takes how much. Never: changes a key.

use super::admin::lines;
use super::{
    Cx, Done, Fault, Flow, NOT_AN_INTEGER, SYNTAX, help, ready, unknown_subcommand, wrong_arity,
};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::shared::Shared;
use crate::sight::calls::{Summed, shown};
use crate::sight::figures::Figures;
use crate::sight::process;
use crate::sight::slow::Event;
use crate::store::{Store, Value};

/// Entries that SLOWLOG GET shows when no number is given, as in Redis.
const SLOWLOG_SHOWN: usize = 10;

/// SLOWLOG GET [count] | LEN | RESET | HELP
pub fn slowlog<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"get", 2) => slowlog_get(cx, SLOWLOG_SHOWN),
        (b"get", 3) => {
            let count = integer(args[2]).filter(|&n| n >= -1);
            let refused = || Fault::text("count should be greater than or equal to -1");
            let count = count.ok_or_else(refused)?;
            slowlog_get(cx, usize::try_from(count).unwrap_or(usize::MAX));
        }
        (b"get", _) => {
            let sub = String::from_utf8_lossy(args[1]);
            return Err(Fault::text(format!(
                "unknown subcommand or wrong number of arguments for '{sub}'. Try SLOWLOG HELP."
            )));
        }
        (b"len", 2) => encode::count(cx.out, cx.shared.slow.len() as u64),
        (b"reset", 2) => {
            cx.shared.slow.reset();
            encode::ok(cx.out);
        }
        (b"len", _) => return Err(wrong_arity("slowlog|len")),
        (b"reset", _) => return Err(wrong_arity("slowlog|reset")),
        (b"help", 2) => lines(cx, help::SLOWLOG),
        (b"help", _) => return Err(wrong_arity("slowlog|help")),
        _ => return Err(unknown_subcommand("SLOWLOG", args[1])),
    }
    Ok(Flow::Done)
}

fn slowlog_get<S: Store>(cx: &mut Cx<'_, S>, most: usize) {
    let entries = cx.shared.slow.newest(most);
    encode::array(cx.out, entries.len());
    for entry in entries {
        encode::array(cx.out, 6);
        for number in [entry.id, entry.at_s, entry.us] {
            encode::count(cx.out, number);
        }
        encode::array(cx.out, entry.args.len());
        for arg in &entry.args {
            encode::bulk(cx.out, arg);
        }
        encode::bulk(cx.out, entry.addr.as_bytes());
        encode::bulk(cx.out, entry.name.as_bytes());
    }
}

/// LATENCY LATEST | HISTORY event | RESET [event …] | GRAPH event | DOCTOR | HISTOGRAM [command …] | HELP
pub fn latency<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let slow = &cx.shared.slow;
    let event = |name: &[u8]| {
        let mut events = slow.events().into_iter();
        events.find(|(known, _)| known.as_bytes() == name.to_ascii_lowercase())
    };
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"latest", 2) => {
            let events = slow.events();
            encode::array(cx.out, events.len());
            for (name, event) in events {
                let (at_s, ms) = event.samples.back().copied().unwrap_or_default();
                encode::array(cx.out, 4);
                encode::bulk(cx.out, name.as_bytes());
                for number in [at_s, ms, event.max_ms] {
                    encode::count(cx.out, number);
                }
            }
        }
        (b"history", 3) => {
            let samples = event(args[2]).map_or(Default::default(), |(_, e)| e.samples);
            encode::array(cx.out, samples.len());
            for (at_s, ms) in samples {
                encode::array(cx.out, 2);
                encode::count(cx.out, at_s);
                encode::count(cx.out, ms);
            }
        }
        (b"reset", _) => encode::count(cx.out, slow.forget(&args[2..]) as u64),
        (b"graph", 3) => {
            let name = String::from_utf8_lossy(args[2]).into_owned();
            let none = || Fault::text(format!("No samples available for event '{name}'"));
            let (name, event) = event(args[2]).ok_or_else(none)?;
            let text = graph(name, &event);
            encode::verbatim(cx.out, cx.session.resp3, text.as_bytes());
        }
        (b"doctor", 2) => {
            let text = doctor(cx.shared);
            encode::verbatim(cx.out, cx.session.resp3, text.as_bytes());
        }
        (b"histogram", _) => histogram(cx, &args[2..]),
        (sub @ (b"latest" | b"history" | b"graph" | b"doctor"), _) => {
            let sub = String::from_utf8_lossy(sub);
            return Err(wrong_arity(&format!("latency|{sub}")));
        }
        (b"help", 2) => lines(cx, help::LATENCY),
        (b"help", _) => return Err(wrong_arity("latency|help")),
        _ => return Err(unknown_subcommand("LATENCY", args[1])),
    }
    Ok(Flow::Done)
}

/// The samples as bars, a line each, with their times.
fn graph(name: &str, event: &Event) -> String {
    const BAR_MAX: u64 = 60;
    let most = event.samples.iter().map(|(_, ms)| *ms).max().unwrap_or(1);
    let mut text = format!(
        "{name} - at most {} ms (the longest ever {} ms)\n",
        most, event.max_ms
    );
    for (at_s, ms) in &event.samples {
        let bar = "#".repeat((ms * BAR_MAX).div_ceil(most.max(1)) as usize);
        text += &format!("{at_s} {ms:>6} ms {bar}\n");
    }
    text
}

fn doctor(shared: &Shared) -> String {
    let slow = &shared.slow;
    let threshold_ms = slow.monitor_ms.load(std::sync::atomic::Ordering::Relaxed);
    if threshold_ms == 0 {
        return "The latency monitor is off: CONFIG SET latency-monitor-threshold <milliseconds> turns it on.\n".to_string();
    }
    let events = slow.events();
    if events.is_empty() {
        return format!("No command took {threshold_ms} ms or longer.\n");
    }
    let mut text = String::new();
    for (name, event) in &events {
        let (count, sum_ms) = event
            .samples
            .iter()
            .fold((0, 0), |(n, sum), (_, ms)| (n + 1, sum + ms));
        text += &format!(
            "{name}: {count} spikes of {} ms on average, the longest ever {} ms.\n",
            sum_ms / count.max(1),
            event.max_ms
        );
    }
    let figures = Figures::now(&*shared.about);
    let advice = [
        (
            figures.get("misses_dram") > figures.get("hits_dram") / 4,
            "Many reads go to the device: more DRAM (--dram) would hold more of what is used.",
        ),
        (
            figures.get("dirty_bytes") > figures.get("dirty_max_bytes") / 2,
            "Much waits to be written: the device, or the SSD's free room, may be the bound.",
        ),
        (
            shared.sum(|c| &c.waiting) > 0,
            "Commands wait for room at this moment.",
        ),
    ];
    for (_, line) in advice.iter().filter(|(holds, _)| *holds) {
        text += line;
        text.push('\n');
    }
    text + "SLOWLOG GET names the commands.\n"
}

fn histogram<S: Store>(cx: &mut Cx<'_, S>, names: &[&[u8]]) {
    // Shown in µs: our powers of two are of ns, and 1024 of them count as one µs here.
    const NS_SHIFT: u32 = 10;
    let mut called = cx.shared.commands_called();
    called.retain(|c| {
        let name = shown(c.kind);
        let wanted = |n: &&[u8]| n.eq_ignore_ascii_case(name.as_bytes());
        c.calls > 0 && (names.is_empty() || names.iter().any(wanted))
    });
    let resp3 = cx.session.resp3;
    encode::map(cx.out, resp3, called.len());
    for command in &called {
        encode::bulk(cx.out, shown(command.kind).as_bytes());
        encode::map(cx.out, resp3, 2);
        encode::bulk(cx.out, b"calls");
        encode::count(cx.out, command.calls);
        encode::bulk(cx.out, b"histogram_usec");
        let steps = cumulative(command, NS_SHIFT);
        encode::map(cx.out, resp3, steps.len());
        for (us, count) in steps {
            encode::count(cx.out, us);
            encode::count(cx.out, count);
        }
    }
}

/// Where the count of calls up to a time grows.
fn cumulative(command: &Summed, ns_shift: u32) -> Vec<(u64, u64)> {
    let mut steps: Vec<(u64, u64)> = Vec::new();
    let mut seen = 0;
    for (end_ns, count) in command.by_power().filter(|(_, count)| *count > 0) {
        seen += count;
        let us = (end_ns >> ns_shift).max(1);
        match steps.last_mut() {
            Some(last) if last.0 == us => last.1 = seen,
            _ => steps.push((us, seen)),
        }
    }
    steps
}

/// MEMORY USAGE key [SAMPLES count] | STATS | DOCTOR | PURGE | MALLOC-STATS | HELP
pub fn memory<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match (args[1].to_ascii_lowercase().as_slice(), args.len()) {
        (b"usage", 3..) => return usage(cx, args),
        (b"stats", 2) => stats(cx),
        (b"doctor", 2) => {
            let text = memory_doctor(cx.shared);
            encode::verbatim(cx.out, cx.session.resp3, text.as_bytes());
        }
        // Memory goes back to the system whenever it is not needed.
        (b"purge", 2) => encode::ok(cx.out),
        (b"malloc-stats", 2) => {
            let text = b"Stats not supported for the current allocator";
            encode::bulk(cx.out, text);
        }
        (b"help", 2) => lines(cx, help::MEMORY),
        (b"help", _) => return Err(wrong_arity("memory|help")),
        (sub @ (b"usage" | b"stats" | b"doctor" | b"purge" | b"malloc-stats"), _) => {
            let sub = String::from_utf8_lossy(sub);
            return Err(wrong_arity(&format!("memory|{sub}")));
        }
        _ => return Err(unknown_subcommand("MEMORY", args[1])),
    }
    Ok(Flow::Done)
}

/// The bytes of the key's entry, wherever it lies, and of its slot in the directory.
fn usage<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    for option in args[3..].chunks(2) {
        match option {
            [name, count] if name.eq_ignore_ascii_case(b"samples") => {
                if integer(count).ok_or(NOT_AN_INTEGER)? < 0 {
                    return Err(SYNTAX);
                }
            }
            _ => return Err(SYNTAX),
        }
    }
    let key = args[2];
    let mut held = None;
    let seen = ready!(cx.store.item(cx.task, key, |item| {
        let item = item?;
        let len = match item.value {
            Value::Absent => 0,
            Value::Inline(bytes) => bytes.len() as u64,
            Value::Large(large) => {
                let len = S::large_len(&large);
                held = Some(large);
                len
            }
        };
        let (expiry, meta) = (item.expiry_ms.is_some(), item.meta.is_some());
        Some(terrace_kv::footprint_bytes(key.len(), len, expiry, meta))
    }));
    if let Some(large) = held {
        cx.store.release(large);
    }
    match seen {
        Some(bytes) => encode::count(cx.out, bytes),
        None => encode::null(cx.out, cx.session.resp3),
    }
    Ok(Flow::Done)
}

/// Redis's names where they mean the same, and the parts of the cap.
fn stats<S: Store>(cx: &mut Cx<'_, S>) {
    let figures = Figures::now(&*cx.shared.about);
    let keys = cx.shared.about.keys();
    let dataset = figures.get("dram_live_bytes") + figures.get("ssd_live_bytes");
    let rows = [
        (
            "peak.allocated",
            process::peak_resident_bytes().unwrap_or(0),
        ),
        ("total.allocated", process::resident_bytes().unwrap_or(0)),
        ("clients.normal", cx.shared.sum(|c| &c.buffer_bytes)),
        ("keys.count", keys),
        ("keys.bytes-per-key", dataset / keys.max(1)),
        ("dataset.bytes", dataset),
        ("cap.bytes", cx.shared.about.dram_bytes()),
        ("cap.used", figures.get("used_bytes")),
        ("cap.segments", figures.get("segment_bytes")),
        ("cap.directory", figures.get("directory_bytes")),
        ("cap.io", figures.get("io_bytes")),
        ("cap.connections", figures.get("connection_bytes")),
    ];
    encode::map(cx.out, cx.session.resp3, rows.len());
    for (name, value) in rows {
        encode::bulk(cx.out, name.as_bytes());
        encode::count(cx.out, value);
    }
}

fn memory_doctor(shared: &Shared) -> String {
    let figures = Figures::now(&*shared.about);
    let cap = shared.about.dram_bytes().max(1);
    let share = |name| figures.get(name) * 100 / cap;
    let mut text = format!(
        "{} % of the cap are held: segments {} %, directory {} %, buffers of the device {} %, connections {} %.\n",
        share("used_bytes"),
        share("segment_bytes"),
        share("directory_bytes"),
        share("io_bytes"),
        share("connection_bytes"),
    );
    if share("directory_bytes") > 50 {
        text += "The directory takes most of the cap: raise --dram, or keep fewer keys.\n";
    }
    text
}
