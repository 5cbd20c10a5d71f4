//! Drives a server that runs already as a part of `terrace bench run` would, for a look by hand: `drive PORT KEYS fill`, or
//! `drive PORT KEYS GET_PERCENT SECONDS SEED [memcached] [plain]`. Values of 1 KiB that pack by half, or not (`plain`); Zipf 0.99.
//!
//! Never: starts a server, or judges.

use anyhow::{Context, Result};
use terrace_bench::load::{KeyChoice, Load, Protocol, Until, drive};

const VALUE_BYTES: usize = 1 << 10;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize| -> Result<u64> {
        let text = args
            .get(at)
            .with_context(|| format!("argument {at} is missing"))?;
        text.parse()
            .with_context(|| format!("argument {at} is no number: {text}"))
    };
    let (port, keys) = (number(1)?, number(2)?);
    let port = u16::try_from(port).context("a port ends at 65535")?;
    let mut load = Load {
        packs: !args.iter().any(|word| word == "plain"),
        ..Load::of(keys, VALUE_BYTES)
    };
    if args.iter().any(|word| word == "memcached") {
        load.protocol = Protocol::Memcached;
    }
    if args.get(3).is_some_and(|word| word == "fill") {
        load.connections = 8;
        load.in_flight = 32;
        load.choice = KeyChoice::InOrder { from: 0 };
        load.get_percent = 0;
        load.until = Until::Requests(keys);
    } else {
        load.choice = KeyChoice::Zipf { theta: 0.99 };
        load.get_percent = u32::try_from(number(3)?).context("a percentage")?;
        load.until = Until::Seconds(number(4)? as f64);
        load.seed = number(5)?;
    }
    let outcome = drive(([127, 0, 0, 1], port).into(), &load)?;
    println!(
        "{:.0} op/s, p50 {:.0} us, p99 {:.0} us",
        outcome.ops_per_s(),
        outcome.latency_us(0.5),
        outcome.latency_us(0.99)
    );
    Ok(())
}
