//! A connection's socket, plain or with TLS over it: one thing to read from and write to. Never: blocks.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::net::TcpStream;

use crate::budget::Budget;
use crate::store::Store;
use crate::tls::Tls;

/// See the module.
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<Tls>>,
    /// What the budget knows of the encryption.
    counted_bytes: usize,
}

impl Stream {
    /// Over a socket; of `tls`, `counted_bytes` were granted.
    pub fn new(socket: TcpStream, tls: Option<Box<Tls>>, counted_bytes: usize) -> Stream {
        Stream {
            socket,
            tls,
            counted_bytes,
        }
    }

    /// What is polled.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether it is encrypted.
    #[inline]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether it is to be encrypted, and keys are not agreed on yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|t| t.is_handshaking())
    }

    /// Whether something that was written waits here for the socket.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|t| t.has_unsent())
    }

    /// Bytes of buffers it holds.
    pub fn held_bytes(&self) -> usize {
        self.tls.as_ref().map_or(0, |t| t.held_bytes())
    }

    /// One read; 0: the other side has ended.
    ///
    /// # Errors
    /// `WouldBlock` and what breaks a connection.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.read(into),
            Some(tls) => tls.read(&mut self.socket, into),
        }
    }

    /// One write.
    ///
    /// # Errors
    /// `WouldBlock` and what breaks a connection.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.socket.write(bytes),
            Some(tls) => tls.write(&mut self.socket, bytes),
        }
    }

    /// Writes past the encryption: for one who does not speak it.
    pub fn write_plain(&mut self, text: &str) {
        let _ = self.socket.write(text.as_bytes());
    }

    /// Sends what was written and waits here.
    ///
    /// # Errors
    /// `WouldBlock` when the socket did not take all.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            None => Ok(()),
            Some(tls) => tls.flush(&mut self.socket),
        }
    }

    /// Nothing more is written.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn end(&mut self) -> io::Result<()> {
        self.say_goodbye();
        self.socket.shutdown(Shutdown::Write)
    }

    /// Tells the other side that nothing more comes, where that has words.
    pub fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.say_goodbye(&mut self.socket);
        }
    }

    /// Tells the budget what the encryption takes by now.
    #[inline]
    pub fn count<S: Store>(&mut self, budget: &mut Budget, store: &mut S) {
        if let Some(tls) = &self.tls {
            let now = tls.counted_bytes();
            match now.checked_sub(self.counted_bytes) {
                Some(more) => budget.take(more),
                None => budget.give(store, self.counted_bytes - now),
            }
            self.counted_bytes = now;
        }
    }

    /// Gives back what the budget knows of.
    pub fn uncount<S: Store>(&mut self, budget: &mut Budget, store: &mut S) {
        if self.counted_bytes > 0 {
            budget.give(store, std::mem::take(&mut self.counted_bytes));
        }
    }
}
