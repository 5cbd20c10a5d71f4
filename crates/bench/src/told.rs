//! What a process under `terrace run` tells of itself, as `terrace top` asks for it.
//!
//! Promises: a process that does not answer is an error within seconds. Never: asks a process that runs without Terrace.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

/// How long a program may take to say its counters.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The counters of a process under `terrace run`, by name: what `terrace top` asks it for.
pub fn figures(pid: u32) -> Result<HashMap<String, f64>> {
    let ask = || -> Result<Value> {
        let addr = SocketAddr::from_abstract_name(format!("terrace-run-{pid}"))?;
        let socket = UnixStream::connect_addr(&addr)?;
        socket.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(serde_json::from_reader(socket)?)
    };
    let told = ask().with_context(|| format!("asking process {pid} under terrace run"))?;
    let figures = told["program"].as_object().into_iter().flatten();
    let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()?));
    Ok(figures.filter_map(number).collect())
}
