//! Part `dram`: 1 M keys of 100 B that fit into DRAM, GET and SET, 1 and 16 in flight, beside redis-server.
//!
//! One thread each, the server on one CPU and the load on the other. Both keep running, one is driven at a time. Never limits
//! memory: here the question is only what a hit and a write cost.

use super::{CONNECTIONS, fill, plot_groups, push_rows, ratio, round_steps, rounds, spec};
use crate::Setting;
use crate::load::{KeyChoice, Load, Until};
use crate::machine::LOAD_CPU;
use crate::progress::Progress;
use crate::report::plot::{self, Frame};
use crate::report::{Bar, Part, Report, Side};
use crate::server::{Peer, Server};
use anyhow::Result;

const KEYS: u64 = 1_000_000;
const VALUE_BYTES: usize = 100;
/// Several times the data: nothing may have to step down for want of room.
const DRAM_BYTES: u64 = 1 << 30;
const SSD_BYTES: u64 = 2 << 30;
/// The least part of Redis's throughput.
const RATIO_MIN: f64 = 0.7;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "load_cpu_share",
    "load_cpu_ns_per_op",
    "disk_write_bytes_per_set_byte",
];

pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let keys = (KEYS / setting.options.scale_divisor).max(1_000);
    let title = format!(
        "{keys} keys of {VALUE_BYTES} B in DRAM, uniform, {CONNECTIONS} connections, one server thread"
    );
    let mut part = Part::new("dram", &title, COLUMNS);
    let mut servers = Vec::new();
    let mut missing = Vec::new();
    for peer in [Peer::Terrace, Peer::Redis] {
        match peer.missing() {
            Some(why) => missing.push((peer, why.to_owned())),
            None => servers.push(Server::start_ready(
                &spec(setting, "dram", peer, DRAM_BYTES, SSD_BYTES),
                None,
            )?),
        }
    }
    part.notes.extend(
        servers
            .iter()
            .map(|s| format!("{}: `{}`", s.peer().name(), s.argv())),
    );
    let progress = Progress::new(servers.len() as u64 + round_steps(setting, servers.len(), 4));
    for server in &mut servers {
        progress.step(format!("loading {}", server.peer().name()));
        fill(server, keys, VALUE_BYTES)?;
    }
    for (op, get_percent) in [("GET", 100), ("SET", 0)] {
        for in_flight in [1, 16] {
            let case = format!("{op}, {in_flight} in flight");
            let load = Load {
                connections: CONNECTIONS,
                in_flight,
                keys,
                choice: KeyChoice::Uniform,
                get_percent,
                value_bytes: VALUE_BYTES,
                until: Until::Seconds(setting.options.seconds),
                ops_per_s_max: None,
                cpu: Some(LOAD_CPU),
                seed: 100,
            };
            let measured = rounds(&mut servers, &load, setting, &progress, &case)?;
            push_rows(&mut part, &case, &measured, &missing);
            let name = format!("dram, {case}: throughput as a multiple of Redis");
            report.bars.push(Bar::new(
                name,
                Side::AtLeast,
                RATIO_MIN,
                ratio(&measured, Peer::Redis, "ops_per_s"),
            ));
        }
    }
    drop(progress);
    for server in servers {
        stop(server)?;
    }
    let frame = Frame {
        title: "Data in DRAM, 100 B values, 50 connections",
        x: "",
        y: "operations/s",
        limit: None,
    };
    let groups = plot_groups(&part, "ops_per_s");
    report.plot(&setting.out_dir, "dram.png", |path| {
        plot::columns(path, &frame, &groups)
    });
    report.parts.push(part);
    Ok(())
}

/// Ours must stop well; of a peer nothing is kept, so it is killed.
pub(super) fn stop(server: Server) -> Result<()> {
    if server.peer() == Peer::Terrace {
        server.shut_down()
    } else {
        server.kill()
    }
}
