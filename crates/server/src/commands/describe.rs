//! COMMAND: which commands there are and what Redis says of them. Never: executes one.

use super::admin::lines;
use super::{Cx, Done, Fault, Flow, SYNTAX, help, key_positions, unknown_subcommand, wrong_arity};
use crate::glob;
use crate::limits::OUTPUT_LIMIT_BYTES;
use crate::metadata::{self, Of};
use crate::resp::encode;
use crate::store::Store;
use crate::table;

/// COMMAND [COUNT | LIST [FILTERBY …] | INFO [name …] | DOCS [name …] | GETKEYS command … | HELP]
pub fn command<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let Some(sub) = args.get(1) else {
        return describe(cx, Of::Info, &[]);
    };
    match (sub.to_ascii_lowercase().as_slice(), args.len()) {
        (b"count", 2) => encode::count(cx.out, table::COUNT as u64),
        (b"list", _) => list(cx, &args[2..])?,
        (b"info", _) => return describe(cx, Of::Info, &args[2..]),
        (b"docs", _) => return describe(cx, Of::Docs, &args[2..]),
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

/// INFO and DOCS, of all commands where none is named. A name may be there often, so the reply goes in parts.
fn describe<S: Store>(cx: &mut Cx<'_, S>, of: Of, named: &[&[u8]]) -> Done<S> {
    let len = match named {
        [] => table::COUNT,
        _ => named.len(),
    };
    let name = |at: usize| match named {
        [] => table::COMMANDS[at].name.to_string(),
        _ => String::from_utf8_lossy(named[at]).to_ascii_lowercase(),
    };
    let resp3 = cx.session.resp3;
    if !cx.progress.begun {
        cx.progress.begun = true;
        match of {
            Of::Info => encode::array(cx.out, len),
            Of::Docs => {
                let known = (0..len).filter(|&at| metadata::knows(&name(at)));
                encode::map(cx.out, resp3, known.count());
            }
        }
    }
    while (cx.progress.next as usize) < len {
        if cx.out.len() > OUTPUT_LIMIT_BYTES {
            return Ok(Flow::OutputFull);
        }
        let name = name(cx.progress.next as usize);
        cx.progress.next += 1;
        match of {
            Of::Info if !metadata::knows(&name) => encode::null(cx.out, resp3),
            Of::Docs if !metadata::knows(&name) => continue,
            Of::Docs => encode::bulk(cx.out, name.as_bytes()),
            Of::Info => {}
        }
        metadata::write(cx.out, resp3, of, &name);
    }
    Ok(Flow::Done)
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
