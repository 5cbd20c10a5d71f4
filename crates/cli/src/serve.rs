//! `terrace serve`: opens the pool (or makes it), serves it until a signal or SHUTDOWN, and stops cleanly: everything
//! flushed, so that the next start is a warm one.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, anyhow};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use terrace_pool::Pool;
use terrace_server::{PoolFactory, Server, ServerError, ServerOptions, Stopper};

use crate::Failure;
use crate::config::{Durability, Flags, Settings, TlsFiles};
use crate::notify;
use crate::progress::Progress;

/// The most threads that are taken without being asked for.
pub const THREADS_DEFAULT_MAX: usize = 8;

/// Serves until stopped.
///
/// # Errors
/// `Misuse` for settings that make no sense; `Failed` when the pool or the address cannot be had, or the stop was not
/// clean.
pub fn run(flags: Flags, file: Option<&Path>) -> Result<(), Failure> {
    let file = match file {
        Some(path) => Flags::from_file(path).map_err(Failure::Misuse)?,
        None => Flags::default(),
    };
    let settings = flags.over(file).settings().map_err(Failure::Misuse)?;
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen to signals")?;
    // Nobody looks at them while a pool is made or recovered, which may take long; to be ended there is no worse than a crash.
    let opening = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM] {
        let heard = signal_hook::flag::register_conditional_default(signal, opening.clone());
        heard.context("cannot listen to signals")?;
    }
    notify::tell("", "opening the pool");
    let pool = open(&settings)?;
    opening.store(false, Ordering::SeqCst);
    let served = serve(&pool, &settings, signals);
    notify::tell(notify::STOPPING, "flushing what is in memory");
    tracing::info!("stopping: flushing what is in memory");
    let closed = pool
        .close()
        .map_err(|e| Failure::Failed(anyhow!("the pool was not closed cleanly: {e}")));
    served.and(closed)?;
    tracing::info!("stopped cleanly");
    Ok(())
}

fn threads(settings: &Settings) -> usize {
    match settings.threads {
        0 => std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(THREADS_DEFAULT_MAX),
        n => n,
    }
}

fn open(settings: &Settings) -> Result<Arc<Pool>, Failure> {
    let options = terrace_pool::Options {
        dir: settings.pool.clone(),
        dram_bytes: settings.dram.0,
        ssd_bytes: settings.ssd.0,
        durability: match settings.durability {
            Durability::Sync => terrace_pool::Durability::Sync,
            Durability::Async => terrace_pool::Durability::Async,
        },
        flush_interval: settings.flush_interval,
        threads: threads(settings),
        ..terrace_pool::Options::default()
    };
    let mut progress = Progress::default();
    let (begun, mut made) = (Instant::now(), false);
    let pool = Pool::open_or_create(options, &mut |step, done, total| {
        made |= step == "making the pool";
        progress.show(step, done, total)
    });
    progress.finish();
    let pool = pool?;
    if !made {
        tracing::info!(
            "opened the pool in {:.1} s, {}: {} keys",
            begun.elapsed().as_secs_f64(),
            if pool.was_clean() {
                "as a clean stop had left it"
            } else {
                "recovered from a crash"
            },
            pool.keys()
        );
    }
    Ok(pool)
}

fn serve(pool: &Arc<Pool>, settings: &Settings, signals: Signals) -> Result<(), Failure> {
    let options = ServerOptions {
        listen: settings.resp,
        memcached: settings.memcached,
        metrics: settings.metrics,
        threads: threads(settings),
        max_clients: settings.max_clients,
        password: settings.password.clone(),
        tls: settings.tls.clone(),
        max_value_bytes: settings.max_value.0,
        idle_timeout: settings.idle_timeout,
    };
    let server =
        Server::bind(&options, Arc::new(PoolFactory(pool.clone()))).map_err(|e| match e {
            ServerError::NotLoopback(_)
            | ServerError::MetricsNotLoopback(_)
            | ServerError::Threads(_) => Failure::Misuse(e.into()),
            other => Failure::Failed(other.into()),
        })?;
    obey_signals(signals, server.stopper(), settings.tls_files.clone())?;
    say_who_may_come_in(&server, settings);
    tracing::info!(
        "serving the Redis protocol on {} ({} threads, {} of DRAM, durability {}){}",
        server.local_addr(),
        options.threads,
        settings.dram,
        if pool.is_sync() { "sync" } else { "async" },
        if std::io::stderr().is_terminal() {
            "; stop with Ctrl-C"
        } else {
            ""
        },
    );
    if let Some(addr) = server.memcached_addr() {
        tracing::info!("serving memcached's protocol on {addr}");
    }
    // Both addresses are listened on: whoever connects from now on is served.
    notify::tell(
        notify::READY,
        &format!("serving on {}", server.local_addr()),
    );
    if let Some(addr) = server.metrics_addr() {
        tracing::info!("serving metrics on http://{addr}/metrics");
    }
    server.run().map_err(|e| Failure::Failed(e.into()))
}

/// An operator should know when an address that others reach is served to whoever comes.
fn say_who_may_come_in(server: &Server<PoolFactory>, settings: &Settings) {
    let Some(tls) = &settings.tls else { return };
    let who = match (settings.password.is_some(), tls.is_mutual()) {
        (true, true) => "clients with a certificate and the password",
        (true, false) => "clients with the password",
        (false, true) => "clients with a certificate",
        (false, false) => "all clients",
    };
    tracing::info!("all connections are encrypted (TLS); let in are {who}");
    let addrs = [Some(server.local_addr()), server.memcached_addr()];
    let beyond = addrs.into_iter().flatten().find(|a| !a.ip().is_loopback());
    if let Some(addr) = beyond
        && settings.password.is_none()
        && !tls.is_mutual()
    {
        tracing::warn!(
            "whoever reaches {addr} may read and delete everything: TLS alone does not tell who a client is; say --requirepass-file \
             or --tls-ca"
        );
    }
}

/// SIGHUP reads the certificate anew; every other signal stops the server.
fn obey_signals(
    mut signals: Signals,
    stopper: Stopper,
    tls_files: Option<TlsFiles>,
) -> Result<(), Failure> {
    let body = move || {
        for signal in signals.forever() {
            match (signal, &tls_files) {
                (SIGHUP, Some(files)) => match files.read() {
                    Ok(identity) => {
                        stopper.renew(identity);
                        tracing::info!("new connections meet the certificate that was read anew");
                    }
                    Err(e) => tracing::error!("the certificate stays as it was: {e:#}"),
                },
                (SIGHUP, None) => tracing::info!(
                    "there is no certificate to read anew; settings are read at a start only"
                ),
                _ => stopper.stop(),
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_string())
        .spawn(body)
        .context("cannot start a thread")?;
    Ok(())
}
