//! The commands about the server: INFO, COMMAND, CONFIG and the small ones. CONFIG changes nothing: settings are given
//! at the start.

use super::{Cx, Done, Fault, Flow, SYNTAX, key_positions, ready, unknown_subcommand};
use crate::info;
use crate::limits::BULK_MAX_BYTES;
use crate::resp::encode;
use crate::store::Store;
use crate::table::{self, Command};
use crate::{glob, resp::parse::integer};

/// DBSIZE
pub fn dbsize<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let keys = cx.store.dbsize();
    encode::count(cx.out, keys);
    Ok(Flow::Done)
}

/// FLUSHALL, FLUSHDB [ASYNC | SYNC]
pub fn flush<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match &args[1..] {
        [] => {}
        [how] if how.eq_ignore_ascii_case(b"sync") || how.eq_ignore_ascii_case(b"async") => {}
        _ => return Err(SYNTAX),
    }
    ready!(cx.store.flush_all(cx.task));
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// PING [message]
pub fn ping<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match &args[1..] {
        [] => encode::simple(cx.out, "PONG"),
        [message] => encode::bulk(cx.out, message),
        _ => return Err(super::wrong_arity("ping")),
    }
    Ok(Flow::Done)
}

/// ECHO message
pub fn echo<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    encode::bulk(cx.out, args[1]);
    Ok(Flow::Done)
}

/// INFO [section …]
pub fn info<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let text = info::text(cx.shared, cx.store.now_ms(), &args[1..]);
    encode::verbatim(cx.out, cx.session.resp3, text.as_bytes());
    Ok(Flow::Done)
}

/// SELECT 0
pub fn select<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match integer(args[1]) {
        Some(0) => encode::ok(cx.out),
        Some(n) if i32::try_from(n).is_ok() => return Err(Fault::text("DB index is out of range")),
        _ => return Err(Fault::text("value is not an integer or out of range")),
    }
    Ok(Flow::Done)
}

/// TIME
pub fn time<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    encode::array(cx.out, 2);
    encode::bulk(cx.out, since.as_secs().to_string().as_bytes());
    encode::bulk(cx.out, since.subsec_micros().to_string().as_bytes());
    Ok(Flow::Done)
}

/// SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE]: every stop is a clean one, so all of them mean the same.
pub fn shutdown<L>(args: &[&[u8]]) -> Result<Flow<L>, Fault> {
    let known: [&[u8]; 4] = [b"nosave", b"save", b"now", b"force"];
    for option in &args[1..] {
        if option.eq_ignore_ascii_case(b"abort") {
            return Err(Fault::text("No shutdown in progress."));
        }
        if !known.iter().any(|k| option.eq_ignore_ascii_case(k)) {
            return Err(SYNTAX);
        }
    }
    Ok(Flow::Shutdown)
}

/// CONFIG GET pattern … | RESETSTAT
pub fn config<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let sub = args[1];
    if sub.eq_ignore_ascii_case(b"get") {
        if args.len() < 3 {
            return Err(super::wrong_arity("config|get"));
        }
        config_get(cx, &args[2..]);
    } else if sub.eq_ignore_ascii_case(b"resetstat") {
        if args.len() != 2 {
            return Err(super::wrong_arity("config|resetstat"));
        }
        cx.shared.reset_counters();
        encode::ok(cx.out);
    } else if sub.eq_ignore_ascii_case(b"set") {
        if args.len() < 4 || !args.len().is_multiple_of(2) {
            return Err(super::wrong_arity("config|set"));
        }
        let name = String::from_utf8_lossy(args[2]).into_owned();
        return Err(
            match settings(cx)
                .iter()
                .any(|(known, _)| known.eq_ignore_ascii_case(&name))
            {
                true => Fault::text(format!(
                    "CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
                )),
                false => Fault::text(format!(
                    "Unknown option or number of arguments for CONFIG SET - '{name}'"
                )),
            },
        );
    } else if sub.eq_ignore_ascii_case(b"rewrite") && args.len() == 2 {
        return Err(Fault::text("The server is running without a config file"));
    } else if sub.eq_ignore_ascii_case(b"help") && args.len() == 2 {
        lines(
            cx,
            &[
                "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "GET <pattern> [<pattern> ...]",
                "    Return parameters matching the glob-like <pattern> and their values.",
                "RESETSTAT",
                "    Reset statistics reported by the INFO command.",
            ],
        );
    } else {
        return Err(unknown_subcommand("CONFIG", sub));
    }
    Ok(Flow::Done)
}

pub(super) fn lines<S: Store>(cx: &mut Cx<'_, S>, lines: &[&str]) {
    encode::array(cx.out, lines.len());
    for line in lines {
        encode::simple(cx.out, line);
    }
}

fn settings<S: Store>(cx: &Cx<'_, S>) -> Vec<(&'static str, String)> {
    let shared = cx.shared;
    let sync = shared.about.durability() == "sync";
    vec![
        (
            "appendfsync",
            if sync { "always" } else { "everysec" }.to_string(),
        ),
        ("appendonly", "no".to_string()),
        ("bind", shared.addr.ip().to_string()),
        ("databases", "1".to_string()),
        ("io-threads", shared.counters.len().to_string()),
        ("maxclients", shared.max_clients.to_string()),
        ("maxmemory", shared.about.dram_bytes().to_string()),
        ("maxmemory-policy", "noeviction".to_string()),
        ("port", shared.addr.port().to_string()),
        ("proto-max-bulk-len", BULK_MAX_BYTES.to_string()),
        ("save", String::new()),
        (
            "timeout",
            shared.idle_timeout.map_or(0, |t| t.as_secs()).to_string(),
        ),
    ]
}

fn config_get<S: Store>(cx: &mut Cx<'_, S>, patterns: &[&[u8]]) {
    let patterns: Vec<Vec<u8>> = patterns.iter().map(|p| p.to_ascii_lowercase()).collect();
    let mut found = settings(cx);
    found.retain(|(name, _)| {
        patterns
            .iter()
            .any(|pattern| glob::matches(pattern, name.as_bytes()))
    });
    encode::map(cx.out, cx.session.resp3, found.len());
    for (name, value) in found {
        encode::bulk(cx.out, name.as_bytes());
        encode::bulk(cx.out, value.as_bytes());
    }
}

/// COMMAND [COUNT | LIST | INFO [name …] | DOCS [name …] | GETKEYS command …]
pub fn command<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let Some(sub) = args.get(1) else {
        command_info_all(cx);
        return Ok(Flow::Done);
    };
    match sub.to_ascii_lowercase().as_slice() {
        b"count" if args.len() == 2 => encode::count(cx.out, table::COUNT as u64),
        b"list" if args.len() == 2 => {
            encode::array(cx.out, table::COUNT);
            for command in &table::COMMANDS {
                encode::bulk(cx.out, command.name.as_bytes());
            }
        }
        b"info" if args.len() == 2 => command_info_all(cx),
        b"info" => {
            encode::array(cx.out, args.len() - 2);
            for name in &args[2..] {
                match table::find(name) {
                    Some(command) => command_info(cx.out, cx.session.resp3, command),
                    None => encode::null(cx.out, cx.session.resp3),
                }
            }
        }
        b"docs" => command_docs(cx, &args[2..]),
        b"getkeys" if args.len() >= 4 => return get_keys(cx, &args[2..]),
        b"count" | b"list" | b"getkeys" => {
            return Err(super::wrong_arity(&format!(
                "command|{}",
                String::from_utf8_lossy(sub).to_lowercase()
            )));
        }
        b"help" if args.len() == 2 => lines(
            cx,
            &[
                "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
                "COUNT",
                "DOCS [<command-name> ...]",
                "GETKEYS <full-command>",
                "INFO [<command-name> ...]",
                "LIST",
            ],
        ),
        _ => return Err(unknown_subcommand("COMMAND", sub)),
    }
    Ok(Flow::Done)
}

fn command_info_all<S: Store>(cx: &mut Cx<'_, S>) {
    encode::array(cx.out, table::COUNT);
    for command in &table::COMMANDS {
        command_info(cx.out, cx.session.resp3, command);
    }
}

fn command_info(out: &mut Vec<u8>, resp3: bool, command: &Command) {
    encode::array(out, 10);
    encode::bulk(out, command.name.as_bytes());
    encode::int(out, i64::from(command.arity));
    encode::set(out, resp3, command.flags.len());
    for flag in command.flags {
        encode::simple(out, flag);
    }
    for key in [command.keys.0, command.keys.1, command.keys.2] {
        encode::int(out, i64::from(key));
    }
    encode::set(out, resp3, 1);
    encode::simple(out, &format!("@{}", command.group));
    // No tips, key specifications or subcommands are kept.
    for _ in 0..3 {
        encode::array(out, 0);
    }
}

fn command_docs<S: Store>(cx: &mut Cx<'_, S>, names: &[&[u8]]) {
    let chosen: Vec<&Command> = match names {
        [] => table::COMMANDS.iter().collect(),
        _ => names.iter().filter_map(|name| table::find(name)).collect(),
    };
    let resp3 = cx.session.resp3;
    encode::map(cx.out, resp3, chosen.len());
    for command in chosen {
        encode::bulk(cx.out, command.name.as_bytes());
        encode::map(cx.out, resp3, 2);
        for (field, value) in [("summary", command.summary), ("group", command.group)] {
            encode::bulk(cx.out, field.as_bytes());
            encode::bulk(cx.out, value.as_bytes());
        }
    }
}

fn get_keys<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let command = table::find(args[0]).ok_or_else(|| Fault::text("Invalid command specified"))?;
    if command.keys.0 == 0 {
        return Err(Fault::text("The command has no key arguments"));
    }
    if !command.takes(args.len()) {
        return Err(Fault::text(
            "Invalid number of arguments specified for command",
        ));
    }
    let places: Vec<usize> = key_positions(command, args.len()).collect();
    encode::array(cx.out, places.len());
    for at in places {
        encode::bulk(cx.out, args[at]);
    }
    Ok(Flow::Done)
}
