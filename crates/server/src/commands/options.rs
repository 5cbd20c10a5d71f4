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
    let mut time: Option<(&[u8], bool, i64)> = None;
    let mut keep = false;
    let mut get = false;
    let mut rest = options.iter();
    while let Some(option) = rest.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        let unit = |name: &str| if name.starts_with('E') { 1000 } else { 1 };
        if is("NX") && cond != Some(Cond::IfPresent) {
            cond = Some(Cond::IfAbsent);
        } else if is("XX") && cond != Some(Cond::IfAbsent) {
            cond = Some(Cond::IfPresent);
        } else if is("GET") {
            get = true;
        } else if is("KEEPTTL") && time.is_none() {
            keep = true;
        } else if let Some(name) = ["EX", "PX", "EXAT", "PXAT"]
            .into_iter()
            .find(|name| is(name))
        {
            if keep || time.is_some() {
                return Err(SYNTAX);
            }
            let value = rest.next().ok_or(SYNTAX)?;
            time = Some((value, name.len() == 2, unit(name)));
        } else {
            return Err(SYNTAX);
        }
    }
    let expiry = match time {
        Some((text, relative, unit)) => Expiry::At(expire_at(text, unit, relative, now_ms, "set")?),
        None if keep => Expiry::Keep,
        None => Expiry::None,
    };
    Ok(SetOptions {
        cond: cond.unwrap_or(Cond::Always),
        expiry,
        get,
    })
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
    /// EX, PX, EXAT, PXAT: the time, whether it is relative, its unit in ms.
    At(&'a [u8], bool, i64),
}

impl GetOptions<'_> {
    /// The expiry.
    pub fn expiry(self, now_ms: u64, command: &str) -> Result<Expiry, Fault> {
        match self {
            GetOptions::Persist => Ok(Expiry::None),
            GetOptions::At(text, relative, unit_ms) => {
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
        let time = ["EX", "PX", "EXAT", "PXAT"]
            .into_iter()
            .find(|name| is(name));
        found = Some(match time {
            // Redis takes PERSIST twice, and nothing else.
            None if is("PERSIST") && !matches!(found, Some(GetOptions::At(..))) => {
                GetOptions::Persist
            }
            None => return Err(SYNTAX),
            Some(_) if found.is_some() => return Err(SYNTAX),
            Some(name) => {
                let unit_ms = if name.starts_with('E') { 1000 } else { 1 };
                GetOptions::At(rest.next().ok_or(SYNTAX)?, name.len() == 2, unit_ms)
            }
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
pub fn expire_cond(options: &[&[u8]]) -> Result<Vec<ExpireCond>, Fault> {
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
    Ok(found)
}
