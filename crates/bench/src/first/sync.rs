//! Part `sync`, only when asked for: SETs that are durable when acknowledged, beside redis-server with `appendfsync always`.
//!
//! 100 B, 50 connections, so that one flush serves many writers on either side. It has no bar yet: it is there to look at.

use super::{CONNECTIONS, fill, plot_groups, push_rows, round_steps, rounds, spec};
use crate::Setting;
use crate::load::{KeyChoice, Load, Until};
use crate::machine::LOAD_CPU;
use crate::progress::Progress;
use crate::report::plot::{self, Frame};
use crate::report::{Part, Report};
use crate::server::{Durability, Peer, Server, Spec};
use anyhow::Result;

const KEYS: u64 = 100_000;
const VALUE_BYTES: usize = 100;
const DRAM_BYTES: u64 = 256 << 20;
const SSD_BYTES: u64 = 1 << 30;
const COLUMNS: &[&str] = &[
    "ops_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "disk_write_bytes_per_set_byte",
];

pub fn run(setting: &Setting, report: &mut Report) -> Result<()> {
    let keys = (KEYS / setting.options.scale_divisor).max(1_000);
    let title =
        format!("durable SETs of {VALUE_BYTES} B, {keys} keys, uniform, {CONNECTIONS} connections");
    let mut part = Part::new("sync", &title, COLUMNS);
    let mut servers = Vec::new();
    let mut missing = Vec::new();
    for peer in [Peer::Terrace, Peer::Redis] {
        match peer.missing() {
            Some(why) => missing.push((peer, why.to_owned())),
            None => {
                let spec = spec(setting, "sync", peer, DRAM_BYTES, SSD_BYTES);
                servers.push(Server::start_ready(
                    &Spec {
                        durability: Durability::Sync,
                        ..spec
                    },
                    None,
                )?);
            }
        }
    }
    part.notes.extend(
        servers
            .iter()
            .map(|s| format!("{}: `{}`", s.peer().name(), s.argv())),
    );
    let progress = Progress::new(servers.len() as u64 + round_steps(setting, servers.len(), 2));
    for server in &mut servers {
        progress.step(format!("loading {}", server.peer().name()));
        fill(server, keys, VALUE_BYTES)?;
    }
    for in_flight in [1, 16] {
        let case = format!("SET, {in_flight} in flight");
        let load = Load {
            connections: CONNECTIONS,
            in_flight,
            keys,
            choice: KeyChoice::Uniform,
            get_percent: 0,
            value_bytes: VALUE_BYTES,
            until: Until::Seconds(setting.options.seconds),
            ops_per_s_max: None,
            cpu: Some(LOAD_CPU),
            seed: 400,
        };
        let measured = rounds(&mut servers, &load, setting, &progress, &case)?;
        push_rows(&mut part, &case, &measured, &missing);
    }
    drop(progress);
    for server in servers {
        super::dram::stop(server)?;
    }
    let frame = Frame {
        title: "Durable SETs of 100 B, 50 connections",
        x: "",
        y: "operations/s",
        limit: None,
    };
    let groups = plot_groups(&part, "ops_per_s");
    report.plot(&setting.out_dir, "sync.png", |path| {
        plot::columns(path, &frame, &groups)
    });
    report.parts.push(part);
    Ok(())
}
