//! The commands about the connection: HELLO, CLIENT, AUTH, QUIT, RESET. There is one user, `default`, and at most one
//! password.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::admin::lines;
use super::{Cx, Done, Fault, Flow, NOT_AN_INTEGER, SYNTAX, help, unknown_subcommand, wrong_arity};
use crate::limits::{LIST_GRANT_BYTES, OUTPUT_LIMIT_BYTES};
use crate::resp::encode;
use crate::resp::parse::integer;
use crate::session::{Client, Reply};
use crate::shared::{Message, Shared};
use crate::store::Store;
use crate::sync::lock;
use crate::table;

/// The longest name of a connection in bytes.
const NAME_MAX_BYTES: usize = 256;

const NO_PASSWORD: &str = "AUTH <password> called without any password configured for the default user. \
                           Are you sure your configuration is correct?";

#[cold]
pub(super) fn not_trusted() -> Fault {
    Fault::Prefixed("NOAUTH", "Authentication required.".to_string())
}

fn wrong_password() -> Fault {
    let text = "invalid username-password pair or user is disabled.";
    Fault::Prefixed("WRONGPASS", text.to_string())
}

/// Lets a client in that says the password. As in Redis: without one, the default user is let in with any.
fn let_in<S: Store>(cx: &mut Cx<'_, S>, user: &[u8], password: &[u8]) -> Result<(), Fault> {
    let right = cx.shared.password.as_ref().is_none_or(|p| p.is(password));
    if user != b"default" || !right {
        return Err(wrong_password());
    }
    cx.session.trusted = true;
    Ok(())
}

/// AUTH [username] password
pub fn auth<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    match args.len() {
        2 if cx.shared.password.is_none() => return Err(Fault::text(NO_PASSWORD)),
        2 => let_in(cx, b"default", args[1])?,
        3 => let_in(cx, args[1], args[2])?,
        _ => return Err(SYNTAX),
    }
    encode::ok(cx.out);
    Ok(Flow::Done)
}

/// QUIT
pub fn quit<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    encode::ok(cx.out);
    Ok(Flow::Close)
}

/// RESET
pub fn reset<S: Store>(cx: &mut Cx<'_, S>) -> Done<S> {
    super::multi::end(cx.multi, cx.session, cx.store);
    cx.session.trusted = cx.shared.password.is_none();
    cx.session.resp3 = false;
    cx.session.client.resp.store(2, Ordering::Relaxed);
    *lock(&cx.session.client.name) = None;
    cx.session.reply = Reply::On;
    encode::simple(cx.out, "RESET");
    Ok(Flow::Done)
}

fn set_name<S: Store>(cx: &Cx<'_, S>, name: &[u8]) -> Result<(), Fault> {
    if name.len() > NAME_MAX_BYTES {
        let len = name.len();
        return Err(Fault::text(format!(
            "Client names have at most {NAME_MAX_BYTES} bytes; this one has {len}"
        )));
    }
    if !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Err(Fault::text(
            "Client names cannot contain spaces, newlines or special characters.",
        ));
    }
    let name = String::from_utf8_lossy(name).into_owned().into_boxed_str();
    *lock(&cx.session.client.name) = (!name.is_empty()).then_some(name);
    Ok(())
}

/// HELLO [protover [AUTH username password] [SETNAME clientname]]
pub fn hello<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let version = match args.get(1) {
        None => None,
        Some(text) => {
            let not_integer = || Fault::text("Protocol version is not an integer or out of range");
            let version = integer(text).ok_or_else(not_integer)?;
            if !(2..=3).contains(&version) {
                return Err(Fault::Prefixed(
                    "NOPROTO",
                    "unsupported protocol version".to_string(),
                ));
            }
            Some(version)
        }
    };
    let (mut name, mut said) = (None, None);
    let mut rest = args.get(2..).unwrap_or_default();
    while let [option, more @ ..] = rest {
        if option.eq_ignore_ascii_case(b"auth") && more.len() >= 2 {
            said = Some((more[0], more[1]));
            rest = &more[2..];
        } else if option.eq_ignore_ascii_case(b"setname") && !more.is_empty() {
            name = Some(more[0]);
            rest = &more[1..];
        } else {
            let option = String::from_utf8_lossy(option);
            return Err(Fault::text(format!(
                "Syntax error in HELLO option '{option}'"
            )));
        }
    }
    if let Some((user, password)) = said {
        let_in(cx, user, password)?;
    }
    if !cx.session.trusted {
        return Err(Fault::Prefixed(
            "NOAUTH",
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option \
             can be used to authenticate the client and select the RESP protocol version at the same time"
                .to_string(),
        ));
    }
    if let Some(name) = name {
        set_name(cx, name)?;
    }
    if let Some(version) = version {
        cx.session.resp3 = version == 3;
        cx.session
            .client
            .resp
            .store(version as u8, Ordering::Relaxed);
    }
    hello_reply(cx);
    Ok(Flow::Done)
}

fn hello_reply<S: Store>(cx: &mut Cx<'_, S>) {
    let resp3 = cx.session.resp3;
    encode::map(cx.out, resp3, 7);
    for (field, value) in [("server", "redis"), ("version", crate::info::REDIS_VERSION)] {
        encode::bulk(cx.out, field.as_bytes());
        encode::bulk(cx.out, value.as_bytes());
    }
    encode::bulk(cx.out, b"proto");
    encode::int(cx.out, if resp3 { 3 } else { 2 });
    encode::bulk(cx.out, b"id");
    encode::count(cx.out, cx.session.client.id);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        encode::bulk(cx.out, field.as_bytes());
        encode::bulk(cx.out, value.as_bytes());
    }
    encode::bulk(cx.out, b"modules");
    encode::array(cx.out, 0);
}

/// CLIENT ID | GETNAME | SETNAME | SETINFO | INFO | LIST | KILL | NO-EVICT | REPLY | PAUSE | UNPAUSE | UNBLOCK | GETREDIR | HELP
pub fn client<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    let sub = args[1].to_ascii_lowercase();
    let needs = |n: usize| match args.len() == n {
        true => Ok(()),
        false => Err(wrong_arity(&format!(
            "client|{}",
            String::from_utf8_lossy(&sub)
        ))),
    };
    match sub.as_slice() {
        b"id" => {
            needs(2)?;
            encode::count(cx.out, cx.session.client.id);
        }
        b"getname" => {
            needs(2)?;
            let name = lock(&cx.session.client.name).clone();
            match name {
                Some(name) => encode::bulk(cx.out, name.as_bytes()),
                None => encode::null(cx.out, cx.session.resp3),
            }
        }
        b"setname" => {
            needs(3)?;
            set_name(cx, args[2])?;
            encode::ok(cx.out);
        }
        b"setinfo" => {
            needs(4)?;
            set_info(args[2])?;
            encode::ok(cx.out);
        }
        b"info" => {
            needs(2)?;
            let line = describe(cx.shared, &cx.session.client);
            encode::verbatim(cx.out, cx.session.resp3, line.as_bytes());
        }
        b"list" => list(cx, &args[2..])?,
        b"kill" => return kill(cx, args),
        b"no-evict" => {
            needs(3)?;
            if !args[2].eq_ignore_ascii_case(b"on") && !args[2].eq_ignore_ascii_case(b"off") {
                return Err(SYNTAX);
            }
            encode::ok(cx.out);
        }
        b"reply" => {
            needs(3)?;
            reply(cx, args[2])?;
        }
        b"pause" => pause(cx, args)?,
        b"unpause" => {
            needs(2)?;
            cx.shared.paused.end();
            encode::ok(cx.out);
        }
        b"unblock" => unblock(cx, args)?,
        b"getredir" => {
            needs(2)?;
            encode::int(cx.out, -1);
        }
        b"help" if args.len() == 2 => lines(cx, help::CLIENT),
        _ => return Err(unknown_subcommand("CLIENT", args[1])),
    }
    Ok(Flow::Done)
}

/// CLIENT REPLY ON | OFF | SKIP: only ON is answered.
fn reply<S: Store>(cx: &mut Cx<'_, S>, what: &[u8]) -> Result<(), Fault> {
    cx.session.reply = match what.to_ascii_lowercase().as_slice() {
        b"on" => Reply::On,
        b"off" => Reply::Off,
        // As in Redis, OFF outlives it.
        b"skip" if cx.session.reply == Reply::Off => Reply::Off,
        b"skip" => Reply::SkipNext,
        _ => return Err(SYNTAX),
    };
    if cx.session.reply == Reply::On {
        encode::ok(cx.out);
    }
    Ok(())
}

/// CLIENT PAUSE timeout [WRITE | ALL]
fn pause<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Result<(), Fault> {
    let writes_only = match args.get(3) {
        None => false,
        Some(mode) if mode.eq_ignore_ascii_case(b"all") => false,
        Some(mode) if mode.eq_ignore_ascii_case(b"write") => true,
        Some(_) => return Err(Fault::text("CLIENT PAUSE mode must be WRITE or ALL")),
    };
    if !(3..=4).contains(&args.len()) {
        return Err(wrong_arity("client|pause"));
    }
    let not_a_number = || Fault::text("timeout is not an integer or out of range");
    let ms = integer(args[2]).ok_or_else(not_a_number)?;
    let ms = u64::try_from(ms).map_err(|_| Fault::text("timeout is negative"))?;
    let now_ms = cx.shared.started.elapsed().as_millis() as u64;
    let until_ms = now_ms.saturating_add(ms);
    let paused = &cx.shared.paused;
    match writes_only {
        true => paused
            .writes_until_ms
            .fetch_max(until_ms, Ordering::Relaxed),
        false => paused.all_until_ms.fetch_max(until_ms, Ordering::Relaxed),
    };
    encode::ok(cx.out);
    Ok(())
}

/// CLIENT UNBLOCK id [TIMEOUT | ERROR]: no command blocks, so there is nobody to unblock.
fn unblock<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Result<(), Fault> {
    if !(3..=4).contains(&args.len()) {
        return Err(wrong_arity("client|unblock"));
    }
    let known =
        |how: &&[u8]| how.eq_ignore_ascii_case(b"timeout") || how.eq_ignore_ascii_case(b"error");
    if !args.get(3).is_none_or(known) {
        let text = "CLIENT UNBLOCK reason should be TIMEOUT or ERROR";
        return Err(Fault::text(text));
    }
    integer(args[2]).ok_or(NOT_AN_INTEGER)?;
    encode::int(cx.out, 0);
    Ok(())
}

/// The clients of a type: all are normal ones.
fn is_normal(kind: &[u8]) -> Result<bool, Fault> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(true),
        b"master" | b"replica" | b"slave" | b"pubsub" => Ok(false),
        _ => {
            let kind = String::from_utf8_lossy(kind);
            Err(Fault::text(format!("Unknown client type '{kind}'")))
        }
    }
}

/// What libraries tell about themselves is taken and not kept.
fn set_info(option: &[u8]) -> Result<(), Fault> {
    if option.eq_ignore_ascii_case(b"lib-name") || option.eq_ignore_ascii_case(b"lib-ver") {
        return Ok(());
    }
    Err(Fault::text(format!(
        "Unrecognized option '{}'",
        String::from_utf8_lossy(option)
    )))
}

fn describe(shared: &Shared, client: &Client) -> String {
    let now_s = shared.uptime_s();
    let last = client.last_command.load(Ordering::Relaxed) as usize;
    format!(
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 events=r cmd={} \
         user=default redir=-1 resp={}\n",
        client.id,
        client.addr,
        shared.addr,
        client.fd,
        lock(&client.name).as_deref().unwrap_or(""),
        now_s.saturating_sub(client.since_s),
        now_s.saturating_sub(client.active_s.load(Ordering::Relaxed)),
        table::COMMANDS.get(last).map_or("NULL", |c| c.name),
        client.resp.load(Ordering::Relaxed),
    )
}

/// The lines of a list of clients, and what was granted for them.
#[derive(Default)]
struct Listed {
    text: String,
    granted_bytes: usize,
}

impl Listed {
    fn add<S: Store>(&mut self, cx: &mut Cx<'_, S>, client: &Client) -> Result<(), Fault> {
        self.text += &describe(cx.shared, client);
        // The text, which grows by doubling, and the reply it becomes.
        let needed = 3 * self.text.len();
        if needed > self.granted_bytes + OUTPUT_LIMIT_BYTES {
            if !cx.store.grant(LIST_GRANT_BYTES) {
                return Err(Fault::Prefixed(
                    "OOM",
                    "the connections' buffers have no room for the list; ask for fewer clients (CLIENT LIST ID)"
                        .to_string(),
                ));
            }
            self.granted_bytes += LIST_GRANT_BYTES;
        }
        Ok(())
    }
}

/// CLIENT LIST [TYPE type] [ID id [id …]]
fn list<S: Store>(cx: &mut Cx<'_, S>, options: &[&[u8]]) -> Result<(), Fault> {
    let mut listed = Listed::default();
    let done = list_into(cx, options, &mut listed);
    if done.is_ok() {
        encode::verbatim(cx.out, cx.session.resp3, listed.text.as_bytes());
    }
    if listed.granted_bytes > 0 {
        cx.store.ungrant(listed.granted_bytes);
    }
    done
}

/// Each client is looked up by itself, so that nobody waits long for the list of all.
fn list_into<S: Store>(
    cx: &mut Cx<'_, S>,
    options: &[&[u8]],
    listed: &mut Listed,
) -> Result<(), Fault> {
    match options {
        [] => {}
        [kind, value] if kind.eq_ignore_ascii_case(b"type") => {
            if !is_normal(value)? {
                return Ok(());
            }
        }
        [kind, ids @ ..] if kind.eq_ignore_ascii_case(b"id") && !ids.is_empty() => {
            for id in ids {
                let id = integer(id).ok_or_else(|| Fault::text("Invalid client ID"))?;
                let found = lock(&cx.shared.clients).get(&(id as u64)).cloned();
                if let Some(client) = found {
                    listed.add(cx, &client)?;
                }
            }
            return Ok(());
        }
        _ => return Err(SYNTAX),
    }
    let all: Vec<Arc<Client>> = lock(&cx.shared.clients).values().cloned().collect();
    all.iter().try_for_each(|client| listed.add(cx, client))
}

/// CLIENT KILL addr | [ID id] [ADDR addr] [LADDR addr] [TYPE type] [USER name] [SKIPME yes | no]
fn kill<S: Store>(cx: &mut Cx<'_, S>, args: &[&[u8]]) -> Done<S> {
    if args.len() < 3 {
        return Err(wrong_arity("client|kill"));
    }
    let old_form = args.len() == 3;
    let (mut id, mut addr, mut skip_me) = (None, None, !old_form);
    let (mut local, mut some) = (None, true);
    if old_form {
        addr = Some(args[2]);
    }
    for option in args[if old_form { 3 } else { 2 }..].chunks(2) {
        let [name, value] = option else {
            return Err(SYNTAX);
        };
        if name.eq_ignore_ascii_case(b"id") {
            let number = integer(value)
                .and_then(|n| u64::try_from(n).ok())
                .filter(|&n| n > 0);
            id = Some(number.ok_or_else(|| Fault::text("client-id should be greater than 0"))?);
        } else if name.eq_ignore_ascii_case(b"addr") {
            addr = Some(*value);
        } else if name.eq_ignore_ascii_case(b"laddr") {
            local = Some(*value);
        } else if name.eq_ignore_ascii_case(b"type") {
            some &= is_normal(value)?;
        } else if name.eq_ignore_ascii_case(b"user") {
            if *value != b"default" {
                let user = String::from_utf8_lossy(value);
                return Err(Fault::text(format!("No such user '{user}'")));
            }
        } else if name.eq_ignore_ascii_case(b"skipme") {
            skip_me = match value.to_ascii_lowercase().as_slice() {
                b"yes" => true,
                b"no" => false,
                _ => return Err(SYNTAX),
            };
        } else {
            return Err(SYNTAX);
        }
    }
    let me = cx.session.client.id;
    let chosen: Vec<Arc<Client>> = lock(&cx.shared.clients)
        .values()
        .filter(|c| id.is_none_or(|id| c.id == id))
        .filter(|c| addr.is_none_or(|addr| c.addr.to_string().as_bytes() == addr))
        .filter(|_| some && local.is_none_or(|l| cx.shared.addr.to_string().as_bytes() == l))
        .filter(|c| !(skip_me && c.id == me))
        .cloned()
        .collect();
    for client in chosen.iter().filter(|c| c.id != me) {
        cx.shared.inboxes[client.thread].send(Message::Kill(client.id));
    }
    match (old_form, chosen.is_empty()) {
        (true, true) => return Err(Fault::text("No such client")),
        (true, false) => encode::ok(cx.out),
        (false, _) => encode::count(cx.out, chosen.len() as u64),
    }
    Ok(if chosen.iter().any(|c| c.id == me) {
        Flow::Close
    } else {
        Flow::Done
    })
}
