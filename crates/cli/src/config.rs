//! The settings of `terrace serve`, from flags and from a TOML file that may hold every flag under its own name. Flags
//! win over the file, the file over the defaults; a name that is not known is refused, so that no typo goes unnoticed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use terrace_server::auth::Password;
use terrace_server::limits;
use terrace_server::tls::Identity;

use crate::size::Size;

/// The longest flush interval: what a crash can cost must stay something one has in mind.
const FLUSH_INTERVAL_MAX_MS: u64 = 60_000;
/// The most clients at once.
const CLIENTS_MAX: usize = 1_000_000;

/// When an update is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// When it is on the disk: a crash loses nothing.
    Sync,
    /// When it is in memory: a crash loses at most the flush interval.
    Async,
}

/// The flags of `terrace serve`, each of which the file may hold, too.
#[derive(Debug, Clone, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Flags {
    /// Directory of the pool; it is made when it is not there
    #[arg(long, value_name = "DIR")]
    pub pool: Option<PathBuf>,
    /// The bound on DRAM, everything counted, like 256M or 8G
    #[arg(long, value_name = "SIZE")]
    pub dram: Option<Size>,
    /// Size of the pool's file when it is made [default: four times --dram]
    #[arg(long, value_name = "SIZE")]
    pub ssd: Option<Size>,
    /// Address to serve the Redis protocol on; others than loopback need a password or TLS [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDR")]
    pub resp: Option<SocketAddr>,
    /// Address to serve memcached's protocol on, over the same keys [default: not served]
    #[arg(long, value_name = "ADDR")]
    pub memcached: Option<SocketAddr>,
    /// Address to serve metrics on for Prometheus, at /metrics; others than loopback need a password [default: not served]
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// When an update is acknowledged [default: sync]
    #[arg(long, value_enum)]
    pub durability: Option<Durability>,
    /// With --durability async, how long an update may be in memory only [default: 1000]
    #[arg(long, value_name = "MS")]
    pub flush_interval: Option<u64>,
    /// Threads that serve [default: one for each CPU, at most 8]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The most connections at once [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_clients: Option<usize>,
    /// File (mode 600) whose first line is the password that clients must say [default: none]
    #[arg(long, value_name = "FILE")]
    pub requirepass_file: Option<PathBuf>,
    /// File with the server's certificate and what links it to its authority (PEM); then all clients must speak TLS
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// File with the key of --tls-cert (PEM, not readable by everybody)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// File with authorities (PEM): only clients with a certificate of one of them are let in [default: TLS clients need none]
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
    /// The longest value, from 64K to 64M [default: 64M]
    #[arg(long, value_name = "SIZE")]
    pub max_value: Option<Size>,
    /// Close connections that have been idle, or have taken no reply, for so many seconds [default: never]
    #[arg(long, value_name = "S")]
    pub idle_timeout: Option<u64>,
}

/// Settings that were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Directory of the pool.
    pub pool: PathBuf,
    /// The bound on DRAM.
    pub dram: Size,
    /// Size of the SSD terrace when the pool is made; 0: as the pool chooses.
    pub ssd: Size,
    /// Where to serve.
    pub resp: SocketAddr,
    /// Where to serve memcached's protocol, if at all.
    pub memcached: Option<SocketAddr>,
    /// Where to serve the metrics, if at all.
    pub metrics: Option<SocketAddr>,
    /// When an update is acknowledged.
    pub durability: Durability,
    /// Longest time in memory only.
    pub flush_interval: Duration,
    /// Threads that serve; 0: one for each CPU, at most 8.
    pub threads: usize,
    /// Most connections.
    pub max_clients: usize,
    /// What clients must say first.
    pub password: Option<Password>,
    /// Who the server is, if its clients speak TLS.
    pub tls: Option<Identity>,
    /// Where that is written.
    pub tls_files: Option<TlsFiles>,
    /// The longest value.
    pub max_value: Size,
    /// When idle connections are closed.
    pub idle_timeout: Option<Duration>,
}

/// Where the server's identity is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    ca: Option<PathBuf>,
}

impl TlsFiles {
    /// What the files say now.
    ///
    /// # Errors
    /// When they say nothing that can be used.
    pub fn read(&self) -> Result<Identity> {
        Identity::from_files(&self.cert, &self.key, self.ca.as_deref()).map_err(|why| anyhow!(why))
    }
}

impl Flags {
    /// What the file at `path` says.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, or holds a name that is not a flag.
    pub fn from_file(path: &Path) -> Result<Flags> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text)
            .map_err(|e| anyhow!("{}: {}", path.display(), e.to_string().trim_end()))
    }

    /// These, and where they say nothing, `file`'s.
    pub fn over(self, file: Flags) -> Flags {
        Flags {
            pool: self.pool.or(file.pool),
            dram: self.dram.or(file.dram),
            ssd: self.ssd.or(file.ssd),
            resp: self.resp.or(file.resp),
            memcached: self.memcached.or(file.memcached),
            metrics: self.metrics.or(file.metrics),
            durability: self.durability.or(file.durability),
            flush_interval: self.flush_interval.or(file.flush_interval),
            threads: self.threads.or(file.threads),
            max_clients: self.max_clients.or(file.max_clients),
            requirepass_file: self.requirepass_file.or(file.requirepass_file),
            tls_cert: self.tls_cert.or(file.tls_cert),
            tls_key: self.tls_key.or(file.tls_key),
            tls_ca: self.tls_ca.or(file.tls_ca),
            max_value: self.max_value.or(file.max_value),
            idle_timeout: self.idle_timeout.or(file.idle_timeout),
        }
    }

    /// Fills in defaults and checks bounds.
    ///
    /// # Errors
    /// When something is missing or out of its bounds.
    pub fn settings(self) -> Result<Settings> {
        let Some(pool) = self.pool else {
            bail!("no pool was named; say --pool DIR (or `pool` in the file)")
        };
        let Some(dram) = self.dram else {
            bail!("no bound on DRAM was given; say --dram SIZE, like 256M (or `dram` in the file)");
        };
        if self.ssd == Some(Size(0)) {
            bail!(
                "--ssd is 0; say how large a new pool is to be, or leave it out for four times --dram"
            );
        }
        let durability = self.durability.unwrap_or(Durability::Sync);
        let flush_interval_ms = self.flush_interval.unwrap_or(1_000);
        if !(1..=FLUSH_INTERVAL_MAX_MS).contains(&flush_interval_ms) {
            bail!(
                "--flush-interval is {flush_interval_ms} ms; allowed are 1 to {FLUSH_INTERVAL_MAX_MS} ms"
            );
        }
        if self.flush_interval.is_some() && durability == Durability::Sync {
            bail!(
                "--flush-interval has no meaning with durability sync, where nothing waits; say --durability async, or leave it out"
            );
        }
        let threads = self.threads.unwrap_or(0);
        if self.threads == Some(0) || threads > terrace_server::THREADS_MAX {
            bail!(
                "--threads is {threads}; allowed are 1 to {}",
                terrace_server::THREADS_MAX
            );
        }
        let max_clients = self.max_clients.unwrap_or(10_000);
        if !(1..=CLIENTS_MAX).contains(&max_clients) {
            bail!("--max-clients is {max_clients}; allowed are 1 to {CLIENTS_MAX}");
        }
        let password = match &self.requirepass_file {
            Some(path) => Some(Password::from_file(path).map_err(|why| anyhow!(why))?),
            None => None,
        };
        let tls_files = match (self.tls_cert, self.tls_key, self.tls_ca) {
            (Some(cert), Some(key), ca) => Some(TlsFiles { cert, key, ca }),
            (None, None, None) => None,
            _ => bail!(
                "TLS needs --tls-cert FILE and --tls-key FILE (and --tls-ca FILE if clients are to show certificates)"
            ),
        };
        let tls = tls_files.as_ref().map(TlsFiles::read).transpose()?;
        let max_value = self.max_value.unwrap_or(Size(limits::VALUE_MAX_BYTES));
        let (least, most) = (limits::INLINE_MAX_BYTES as u64, limits::VALUE_MAX_BYTES);
        if !(least..=most).contains(&max_value.0) {
            bail!(
                "--max-value is {} bytes; allowed are {least} to {most}",
                max_value.0
            );
        }
        if self.idle_timeout == Some(0) {
            bail!(
                "--idle-timeout is 0 s; say at least 1, or leave it out to never close idle connections"
            );
        }
        let resp = self
            .resp
            .unwrap_or(SocketAddr::from(([127, 0, 0, 1], 6380)));
        for addr in [Some(resp), self.memcached].into_iter().flatten() {
            // Said before a pool is made or recovered for nothing.
            if !addr.ip().is_loopback() && password.is_none() && tls.is_none() {
                bail!(terrace_server::ServerError::NotLoopback(addr));
            }
        }
        if let Some(addr) = self.metrics
            && !addr.ip().is_loopback()
            && password.is_none()
        {
            bail!(terrace_server::ServerError::MetricsNotLoopback(addr));
        }
        Ok(Settings {
            pool,
            dram,
            ssd: self.ssd.unwrap_or(Size(0)),
            resp,
            memcached: self.memcached,
            metrics: self.metrics,
            durability,
            flush_interval: Duration::from_millis(flush_interval_ms),
            threads,
            max_clients,
            password,
            tls,
            tls_files,
            max_value,
            idle_timeout: self.idle_timeout.map(Duration::from_secs),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Result<Flags> {
        Ok(toml::from_str(text)?)
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let from_file = file("pool = 'a'\ndram = '256M'\nresp = '127.0.0.1:7000'\ndurability = 'async'\nflush-interval = 500").unwrap();
        let flags = Flags {
            dram: Some(Size(1 << 30)),
            ..Flags::default()
        };
        let settings = flags.over(from_file).settings().unwrap();
        assert_eq!(settings.pool, PathBuf::from("a"));
        assert_eq!(settings.dram, Size(1 << 30));
        assert_eq!(settings.resp.port(), 7000);
        assert_eq!(
            (settings.durability, settings.flush_interval),
            (Durability::Async, Duration::from_millis(500))
        );
        assert_eq!(settings.max_clients, 10_000);
    }

    #[test]
    fn the_default_is_safe() {
        let flags = file("pool = 'a'\ndram = 268435456").unwrap();
        let settings = flags.settings().unwrap();
        assert_eq!(settings.durability, Durability::Sync);
        assert_eq!(settings.dram, Size(256 << 20));
        assert!(settings.resp.ip().is_loopback());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("pol = 'a'", "unknown field `pol`"),
            ("dram = '256X'", "`256X`"),
            ("dram = -1", "negative"),
            ("durability = 'never'", "never"),
        ] {
            let refused = file(text).unwrap_err().to_string();
            assert!(refused.contains(want), "{refused}");
        }
        for (text, want) in [
            ("dram = '1G'", "--pool DIR"),
            ("pool = 'a'", "--dram SIZE"),
            ("pool = 'a'\ndram = '1G'\nssd = 0", "four times --dram"),
            ("pool = 'a'\ndram = '1G'\nthreads = 0", "allowed are 1 to"),
            (
                "pool = 'a'\ndram = '1G'\ndurability='async'\nflush-interval = 0",
                "allowed are 1 to 60000 ms",
            ),
            (
                "pool = 'a'\ndram = '1G'\nflush-interval = 10",
                "no meaning with durability sync",
            ),
        ] {
            let refused = file(text).unwrap().settings().unwrap_err().to_string();
            assert!(refused.contains(want), "{refused}");
        }
    }
}
