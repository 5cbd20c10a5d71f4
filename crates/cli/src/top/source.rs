//! Asks a server for INFO over the Redis protocol. Promises: `ANSWER_MAX` without a byte of an answer is an error that says what
//! to do, and an answer is of bounded length. Never: sends anything but AUTH and INFO.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long the server may send nothing.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest answer, bytes.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// All that INFO told at a time.
#[derive(Debug, Clone)]
pub struct Sample {
    /// When.
    pub at: Instant,
    /// By name; sections have no names in common.
    pub fields: BTreeMap<String, String>,
}

impl Sample {
    /// A field as a number, 0 without it.
    pub fn number(&self, name: &str) -> f64 {
        let field = self.fields.get(name);
        field.and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }

    /// A field as text.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// What INFO says, read.
    pub fn parse(at: Instant, info: &str) -> Sample {
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        let fields = lines.map(|(name, value)| (name.to_string(), value.to_string()));
        Sample {
            at,
            fields: fields.collect(),
        }
    }
}

/// A connection to a server.
pub struct Source(BufReader<TcpStream>);

impl Source {
    /// Connects, and says the password that is in the first line of a file.
    ///
    /// # Errors
    /// When nobody answers there, or not to this password.
    pub fn connect(addr: SocketAddr, password: Option<&Path>) -> Result<Source> {
        let stream = TcpStream::connect_timeout(&addr, ANSWER_MAX).with_context(|| {
            format!("no server answers at {addr}; say the address of its --resp")
        })?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut source = Source(BufReader::new(stream));
        if let Some(path) = password {
            let text =
                std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let line = text.split(|&b| b == b'\n').next().unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            source.ask(&[b"AUTH", line])?;
        }
        Ok(source)
    }

    /// Asks for INFO.
    ///
    /// # Errors
    /// When the server does not answer, or with an error.
    pub fn sample(&mut self) -> Result<Sample> {
        let info = self.ask(&[b"INFO", b"everything"])?;
        Ok(Sample::parse(Instant::now(), &info))
    }

    fn ask(&mut self, args: &[&[u8]]) -> Result<String> {
        let mut command = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            command.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            command.extend_from_slice(arg);
            command.extend_from_slice(b"\r\n");
        }
        let why = "the server does not answer (one with TLS is not looked at)";
        self.0.get_mut().write_all(&command).context(why)?;
        let mut line = String::new();
        let mut bounded = (&mut self.0).take(ANSWER_MAX_BYTES);
        bounded.read_line(&mut line).context(why)?;
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("+", text)) => Ok(text.to_string()),
            Some(("$", len)) => {
                let len: u64 = len.parse().context(why)?;
                if len > ANSWER_MAX_BYTES {
                    bail!("the server's answer is {len} bytes long; {ANSWER_MAX_BYTES} are taken");
                }
                let mut text = vec![0; len as usize + 2];
                self.0.read_exact(&mut text).context(why)?;
                text.truncate(len as usize);
                Ok(String::from_utf8_lossy(&text).into_owned())
            }
            Some(("-", text)) if text.starts_with("NOAUTH") => {
                bail!("the server has a password: say --requirepass-file FILE")
            }
            Some(("-", text)) => bail!("the server says: {text}"),
            _ => bail!(why),
        }
    }
}
