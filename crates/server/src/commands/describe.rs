//! COMMAND: which commands there are and what Redis says of them. Never: executes one.

use super::admin::lines;
use super::{Cx, Done, Fault, Flow, SYNTAX, help, key_positions, unknown_subcommand, wrong_arity};
use crate::glob;
use crate::metadata::{self, Of};
use crate::resp::encode;
use crate::store::Store;
use crate::table;

/// COMMAND [COUNT | LIST [FILTERBY …] | INFO [name …] | DOCS [name …] | GETKEYS command … | HELP]
pub fn command<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let Some(sub) = args.get(1) else {
        info(cx, &all());
        return Ok(Flow::Done);
    };
    match (sub.to_ascii_lowercase().as_slice(), args.len()) {
        (b"count", 2) => encode::count(cx.out, table::COUNT as u64),
        (b"list", _) => list(cx, &args[2..])?,
        (b"info", 2) => info(cx, &all()),
        (b"info", _) => info(cx, &named(&args[2..])),
        (b"docs", 2) => docs(cx, &all()),
        (b"docs", _) => docs(cx, &named(&args[2..])),
        (b"getkeys", 4..) => return get_keys(cx, &args[2..]),
        (b"count", _) => return Err(wrong_arity("command|count")),
        (b"getkeys", _) => return Err(wrong_arity("command|getkeys")),
        (b"help", 2) => lines(cx, help::COMMAND),
        (b"help", _) => return Err(wrong_arity("command|help")),
        _ => return Err(unknown_subcommand("COMMAND", sub)),
    }
    Ok(Flow::Done)
}

fn all() -> Vec<String> {
    let commands = table::COMMANDS.iter();
    commands.map(|c| c.name.to_string()).collect()
}

fn named(names: &[&[u8]]) -> Vec<String> {
    let names = names.iter();
    names
        .map(|name| String::from_utf8_lossy(name).to_ascii_lowercase())
        .collect()
}

fn list<S: Store>(cx: &mut Cx<'_, S>, filter: &[&[u8]]) -> Result<(), Fault> {
    let mut names = all();
    match filter {
        [] => {}
        [by, what, value] if by.eq_ignore_ascii_case(b"filterby") => {
            let text = String::from_utf8_lossy(value);
            match what.to_ascii_lowercase().as_slice() {
                // There are none.
                b"module" => names.clear(),
                b"aclcat" => names.retain(|name| metadata::is_in_category(name, &text)),
                b"pattern" => {
                    let pattern = value.to_ascii_lowercase();
                    names.retain(|name| glob::matches(&pattern, name.as_bytes()));
                }
                _ => return Err(SYNTAX),
            }
        }
        _ => return Err(SYNTAX),
    }
    encode::array(cx.out, names.len());
    for name in names {
        encode::bulk(cx.out, name.as_bytes());
    }
    Ok(())
}

fn info<S: Store>(cx: &mut Cx<'_, S>, names: &[String]) {
    encode::array(cx.out, names.len());
    for name in names {
        if !metadata::write(cx.out, cx.session.resp3, Of::Info, name) {
            encode::null(cx.out, cx.session.resp3);
        }
    }
}

fn docs<S: Store>(cx: &mut Cx<'_, S>, names: &[String]) {
    let known: Vec<&String> = names.iter().filter(|name| metadata::knows(name)).collect();
    encode::map(cx.out, cx.session.resp3, known.len());
    for name in known {
        encode::bulk(cx.out, name.as_bytes());
        metadata::write(cx.out, cx.session.resp3, Of::Docs, name);
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
