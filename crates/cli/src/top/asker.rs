//! Asks a server or a program in a thread of its own, so that keys and signals are obeyed while it does not answer. Promises: an answer that
//! does not come whole within `ANSWER_WHOLE_MAX` is an error, however slowly it comes. Never: asks before it is told to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::program::Program;
use super::source::{Sample, Source};

/// How long all of an answer may take; where nothing comes at all, who asks says so before.
const ANSWER_WHOLE_MAX: Duration = Duration::from_secs(11);

/// Who is asked.
pub enum Whom {
    /// A server at an address, with a file for its password.
    Server(SocketAddr, Option<PathBuf>),
    /// A process under `terrace run`.
    Program(u32),
}

/// The thread's other end. It ends with the process.
pub struct Asker {
    ask: SyncSender<()>,
    told: Receiver<Result<Sample>>,
    until: Instant,
}

impl Asker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there is none to be had.
    pub fn start(whom: Whom) -> Result<Asker> {
        let (ask, asked) = sync_channel(1);
        let (tell, told) = sync_channel(1);
        let body = move || {
            let mut source = None;
            for () in asked {
                // Nobody listens any more when the process ends.
                let _ = tell.send(sample(&whom, &mut source));
            }
        };
        let thread = std::thread::Builder::new().name("asker".to_string());
        thread.spawn(body).context("cannot start a thread")?;
        let until = Instant::now();
        Ok(Asker { ask, told, until })
    }

    /// Asks; the answer must be waited for before this is done again.
    pub fn ask(&mut self) {
        self.until = Instant::now() + ANSWER_WHOLE_MAX;
        // A thread that is gone is noticed with the answer.
        let _ = self.ask.send(());
    }

    /// The answer, if it comes within so long.
    ///
    /// # Errors
    /// When it is an error, or took too long in all.
    pub fn told(&self, wait: Duration) -> Result<Option<Sample>> {
        match self.told.recv_timeout(wait) {
            Ok(sample) => sample.map(Some),
            Err(RecvTimeoutError::Timeout) if Instant::now() < self.until => Ok(None),
            Err(_) => bail!("no whole answer within {ANSWER_WHOLE_MAX:?}"),
        }
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// As above.
    pub fn sample(&mut self) -> Result<Sample> {
        self.ask();
        loop {
            if let Some(sample) = self.told(ANSWER_WHOLE_MAX)? {
                return Ok(sample);
            }
        }
    }
}

fn sample(whom: &Whom, source: &mut Option<Source>) -> Result<Sample> {
    match whom {
        Whom::Program(pid) => Program::new(*pid).sample(),
        Whom::Server(addr, password) => {
            // A server closes who says nothing for its --idle-timeout: asked once more by a new connection.
            if let Some(Ok(sample)) = source.as_mut().map(Source::sample) {
                return Ok(sample);
            }
            let new = source.insert(Source::connect(*addr, password.as_deref())?);
            new.sample()
        }
    }
}
