//! The options of SET and EXPIRE and the arithmetic of expiry times, with Redis's errors. Pure functions.

use super::{Fault, NOT_AN_INTEGER, SYNTAX};
use crate::resp::parse::integer;
use crate::store::{Cond, ExpireCond, Expiry};

/// What SET was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetOptions {
    /// NX or XX.
    pub cond: Cond,
    /// EX, PX, EXAT, PXAT or KEEPTTL.
    pub expiry: Expiry,
    /// GET.
    pub get: bool,
}

/// Parses what follows the value in SET.
pub fn set_options(options: &[&[u8]], now_ms: u64) -> Result<SetOptions, Fault> {
    let mut cond = None;
    let mut time: Option<(&str, &[u8])> = None;
    let mut keep = false;
    let mut get = false;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("NX") && cond != Some(Cond::IfPresent) {
            cond = Some(Cond::IfAbsent);
        } else if is("XX") && cond != Some(Cond::IfAbsent) {
            cond = Some(Cond::IfPresent);
        } else if is("GET") {
            get = true;
        } else if is("KEEPTTL") && time.is_none() {
            keep = true;
        } else if let Some(name) = time_name(option) {
            // The same one again takes the place of the one before, as in Redis; another one does not.
            if keep || time.is_some_and(|(before, _)| before != name) {
                return Err(SYNTAX);
            }
            time = Some((name, rest.next().ok_or(SYNTAX)?));
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = match time {
        Some((name, text)) => {
            let (unit_ms, relative) = unit_of(name);
            Expiry::At(expire_at(text, unit_ms, relative, now_ms, "set")?)
        }
        None if keep => Expiry::Keep,
        None => Expiry::None,
    };
    Ok(SetOptions {
        cond: cond.unwrap_or(Cond::Always),
        expiry,
        get,
    })
}

/// The option that tells a time, if it is one.
fn time_name(option: &[u8]) -> Option<&'static str> {
    let names = ["EX", "PX", "EXAT", "PXAT"];
    names
        .into_iter()
        .find(|name| option.eq_ignore_ascii_case(name.as_bytes()))
}

/// The unit of such an option, ms, and whether its time is relative.
fn unit_of(name: &str) -> (i64, bool) {
    (
        if name.starts_with('E') { 1000 } else { 1 },
        name.len() == 2,
    )
}

/// An integer argument.
pub fn int_arg(text: &[u8]) -> Result<i64, Fault> {
    integer(text).ok_or(NOT_AN_INTEGER)
}

/// What GETEX is to do with the expiry.
#[derive(Debug, Clone, Copy)]
pub enum GetOptions<'a> {
    /// PERSIST.
    Persist,
    /// EX, PX, EXAT or PXAT, and the time.
    At(&'static str, &'a [u8]),
}

impl GetOptions<'_> {
    /// The expiry.
    pub fn expiry(self, now_ms: u64, command: &str) -> Result<Expiry, Fault> {
        match self {
            GetOptions::Persist => Ok(Expiry::None),
            GetOptions::At(name, text) => {
                let (unit_ms, relative) = unit_of(name);
                expire_at(text, unit_ms, relative, now_ms, command).map(Expiry::At)
            }
        }
    }
}

/// Parses what follows the key in GETEX.
pub fn get_options<'a>(options: &[&'a [u8]]) -> Result<Option<GetOptions<'a>>, Fault> {
    let mut found = None;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        // Redis takes the same one twice, of which the last counts, and no two.
        found = Some(match (time_name(option), found) {
            (None, None | Some(GetOptions::Persist)) if is("PERSIST") => GetOptions::Persist,
            (Some(name), None) => GetOptions::At(name, rest.next().ok_or(SYNTAX)?),
            (Some(name), Some(GetOptions::At(before, _))) if name == before => {
                GetOptions::At(name, rest.next().ok_or(SYNTAX)?)
            }
            _ => return Err(SYNTAX),
        });
    }
    Ok(found)
}

/// The absolute time of SET's and SETEX's options, which must be positive.
pub fn expire_at(
    text: &[u8],
    unit_ms: i64,
    relative: bool,
    now_ms: u64,
    command: &str,
) -> Result<u64, Fault> {
    let value = integer(text).ok_or(NOT_AN_INTEGER)?;
    let ms = if value <= 0 {
        None
    } else {
        value.checked_mul(unit_ms)
    };
    let at = ms.and_then(|ms| {
        if relative {
            ms.checked_add(now_ms as i64)
        } else {
            Some(ms)
        }
    });
    at.map(|at| at as u64)
        .ok_or_else(|| invalid_expire_time(command))
}

/// The absolute time of the EXPIRE family; one before 1970 has passed as well as any other.
pub fn expire_command_at(
    text: &[u8],
    unit_ms: i64,
    relative: bool,
    now_ms: u64,
    command: &str,
) -> Result<u64, Fault> {
    let value = integer(text).ok_or(NOT_AN_INTEGER)?;
    let ms = value.checked_mul(unit_ms);
    let at = ms.and_then(|ms| {
        if relative {
            ms.checked_add(now_ms as i64)
        } else {
            Some(ms)
        }
    });
    at.map(|at| at.max(0) as u64)
        .ok_or_else(|| invalid_expire_time(command))
}

fn invalid_expire_time(command: &str) -> Fault {
    Fault::text(format!("invalid expire time in '{command}' command"))
}

/// Parses what follows the time in the EXPIRE family.
pub fn expire_cond(options: &[&[u8]]) -> Result<ExpireCond, Fault> {
    let mut found = Vec::new();
    for option in options {
        let cond = match option.to_ascii_uppercase().as_slice() {
            b"NX" => ExpireCond::Nx,
            b"XX" => ExpireCond::Xx,
            b"GT" => ExpireCond::Gt,
            b"LT" => ExpireCond::Lt,
            _ => {
                let option = String::from_utf8_lossy(option);
                return Err(Fault::text(format!("Unsupported option {option}")));
            }
        };
        if !found.contains(&cond) {
            found.push(cond);
        }
    }
    let has = |cond| found.contains(&cond);
    if has(ExpireCond::Nx) && found.len() > 1 {
        return Err(Fault::text(
            "NX and XX, GT or LT options at the same time are not compatible",
        ));
    }
    if has(ExpireCond::Gt) && has(ExpireCond::Lt) {
        return Err(Fault::text(
            "GT and LT options at the same time are not compatible",
        ));
    }
    Ok(match found.as_slice() {
        [] => ExpireCond::Always,
        [one] => *one,
        // XX beside one of them. GT never holds for a key without an expiry, so XX adds nothing to it.
        _ if has(ExpireCond::Gt) => ExpireCond::Gt,
        _ => ExpireCond::XxLt,
    })
}
