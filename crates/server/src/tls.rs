//! TLS for connections, by rustls: who the server is, and one connection's encryption. All buffers are this module's own (rustls is
//! used without its buffers), so that each can be bounded and counted.
//!
//! Promises: after each call it holds less than one record that is not whole, what was decrypted and found no room, and what
//! the socket did not take of at most `TLS_WRITE_MAX_BYTES`. Nothing is remembered of a connection that ended: no session is
//! resumed. Never: blocks, and never lets a client in whose certificate is not of the given authorities, if there are any.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{
    NoServerSessionStorage, ServerConfig, UnbufferedServerConnection, WebPkiClientVerifier,
};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use crate::limits::{
    TLS_CONN_BYTES, TLS_HANDSHAKE_MAX_BYTES, TLS_READ_MAX_BYTES, TLS_READ_MIN_BYTES,
    TLS_ROUNDS_MAX, TLS_WRITE_MAX_BYTES,
};

/// What a record adds to what is in it, with room to spare.
const RECORD_EXTRA_BYTES: usize = 64;
/// The most plain bytes of a record.
const RECORD_BYTES: usize = 16 << 10;
/// What every TLS connection begins with: a handshake record.
const FIRST_BYTE: u8 = 0x16;

/// Who the server is: its certificate and key, and who may come in.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
    is_mutual: bool,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_mutual = self.is_mutual;
        write!(f, "Identity(not shown, mutual: {is_mutual})")
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.config, &other.config)
    }
}

impl Eq for Identity {}

impl Identity {
    /// From PEM files: the server's certificate with those that link it to its authority, its key, and the authorities whose clients
    /// alone are let in, if only those are to be.
    ///
    /// # Errors
    /// When a file cannot be read or holds something else, when everybody may read the key, or when it is not the certificate's.
    pub fn from_files(cert: &Path, key: &Path, ca: Option<&Path>) -> Result<Identity, String> {
        let chain = certificates(cert)?;
        let secret = private_key(key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?;
        let builder = match ca {
            Some(ca) => builder.with_client_cert_verifier(verifier(ca, provider)?),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, secret).map_err(|e| {
            let (cert, key) = (cert.display(), key.display());
            format!("{cert} and {key} cannot be used together: {e}")
        })?;
        // Nothing is kept for clients that are gone, and who may come in is asked each time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Identity {
            config: Arc::new(config),
            is_mutual: ca.is_some(),
        })
    }

    /// Whether clients must show a certificate.
    pub fn is_mutual(&self) -> bool {
        self.is_mutual
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let told = |e| format!("cannot read certificates from {shown}: {e}");
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(told)?.collect();
    let all = all.map_err(told)?;
    if all.is_empty() {
        return Err(format!("{shown} holds no certificate (in PEM format)"));
    }
    Ok(all)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    use std::os::unix::fs::PermissionsExt;
    let shown = path.display();
    let meta = std::fs::metadata(path).map_err(|e| format!("cannot read {shown}: {e}"))?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o007 != 0 {
        return Err(format!(
            "{shown} may be read by everybody (mode {mode:o}); allowed is 640 or less: chmod 600 {shown}"
        ));
    }
    PrivateKeyDer::from_pem_file(path)
        .map_err(|e| format!("cannot read a private key (in PEM format) from {shown}: {e}"))
}

fn verifier(
    ca: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for cert in certificates(ca)? {
        let told = |e| format!("{} holds a certificate that is none: {e}", ca.display());
        roots.add(cert).map_err(told)?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|e| format!("{} cannot be used: {e}", ca.display()))
}

/// The encryption of one connection.
pub struct Tls {
    conn: UnbufferedServerConnection,
    /// Received, and not a whole record yet.
    input: Vec<u8>,
    /// Decrypted, with no room for it yet.
    plain: Vec<u8>,
    plain_at: usize,
    /// Encrypted and not sent.
    output: Vec<u8>,
    output_at: usize,
    /// The other side sends no more.
    is_over: bool,
    /// Something came already.
    has_begun: bool,
    /// The other side knows that nothing more comes.
    has_ended: bool,
    /// What the other side showed, bytes.
    peer_bytes: usize,
}

/// What is to be said once the connection is ready for it.
enum Say<'a> {
    Nothing,
    Bytes(&'a [u8]),
    Goodbye,
}

impl Tls {
    /// Of a connection that came.
    ///
    /// # Errors
    /// When rustls refuses its settings.
    pub fn new(identity: &Identity) -> Result<Tls, rustls::Error> {
        Ok(Tls {
            conn: UnbufferedServerConnection::new(identity.config.clone())?,
            input: Vec::new(),
            plain: Vec::new(),
            plain_at: 0,
            output: Vec::new(),
            output_at: 0,
            is_over: false,
            has_begun: false,
            has_ended: false,
            peer_bytes: 0,
        })
    }

    /// Whether keys are not agreed on yet.
    pub fn is_handshaking(&self) -> bool {
        self.conn.is_handshaking()
    }

    /// Whether something encrypted waits for the socket.
    pub fn has_unsent(&self) -> bool {
        self.output_at < self.output.len()
    }

    /// Bytes of buffers it holds.
    pub fn held_bytes(&self) -> usize {
        self.input.capacity() + self.plain.capacity() + self.output.capacity()
    }

    /// All bytes it takes.
    pub fn counted_bytes(&self) -> usize {
        TLS_CONN_BYTES + self.peer_bytes + self.held_bytes()
    }

    /// Reads like a socket, decrypted.
    ///
    /// # Errors
    /// As of the socket; `InvalidData` when the other side does not speak TLS as it should, or may not come in: the alert that says so
    /// is sent already, as far as the socket takes it.
    pub fn read(&mut self, socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
        if self.plain_at < self.plain.len() {
            return Ok(self.take_plain(into));
        }
        for _ in 0..TLS_ROUNDS_MAX {
            if self.is_over || self.receive(socket, into.len())? == 0 {
                self.is_over = true;
                return Ok(0);
            }
            let taken = self.digest(into, Say::Nothing);
            // What the handshake answers, or the alert.
            match self.flush(socket) {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                _ => {}
            }
            match taken? {
                0 => {}
                n => return Ok(n),
            }
        }
        Err(invalid("records without end and with nothing in them"))
    }

    /// Writes like a socket, encrypted. What it took is kept until the socket takes it.
    ///
    /// # Errors
    /// As of the socket; `NotConnected` while keys are not agreed on.
    pub fn write(&mut self, socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        if self.is_handshaking() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let now = &bytes[..bytes.len().min(TLS_WRITE_MAX_BYTES)];
        self.digest(&mut [], Say::Bytes(now))?;
        match self.flush(socket) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(now.len()),
        }
    }

    /// Sends what is encrypted.
    ///
    /// # Errors
    /// `WouldBlock` when the socket did not take all.
    pub fn flush(&mut self, socket: &mut TcpStream) -> io::Result<()> {
        while self.has_unsent() {
            match socket.write(&self.output[self.output_at..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.output_at += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.output = Vec::new();
        self.output_at = 0;
        Ok(())
    }

    /// Tells the other side that nothing more comes, if it can be told at once.
    pub fn say_goodbye(&mut self, socket: &mut TcpStream) {
        if !self.is_handshaking() && !self.has_unsent() && !self.has_ended {
            self.has_ended = true;
            let _ = self.digest(&mut [], Say::Goodbye);
            let _ = self.flush(socket);
        }
    }

    fn take_plain(&mut self, into: &mut [u8]) -> usize {
        let n = into.len().min(self.plain.len() - self.plain_at);
        into[..n].copy_from_slice(&self.plain[self.plain_at..][..n]);
        self.plain_at += n;
        if self.plain_at == self.plain.len() {
            self.plain = Vec::new();
            self.plain_at = 0;
        }
        n
    }

    fn receive(&mut self, socket: &mut TcpStream, wanted: usize) -> io::Result<usize> {
        let before = self.input.len();
        let most = wanted.clamp(TLS_READ_MIN_BYTES, TLS_READ_MAX_BYTES);
        self.input.resize(before + most, 0);
        let read = loop {
            match socket.read(&mut self.input[before..]) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let end = before + *read.as_ref().unwrap_or(&0);
        self.input.truncate(end);
        if read.is_err() || self.input.is_empty() {
            self.input = self.input.as_slice().to_vec();
            return read;
        }
        if !std::mem::replace(&mut self.has_begun, true) && self.input[0] != FIRST_BYTE {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "what came is not TLS",
            ));
        }
        read
    }

    /// Lets take effect what came: decrypts into `into` as far as it goes, keeps what must be answered in `output`, and says
    /// what is to be said. Answers how much was decrypted into `into`.
    fn digest(&mut self, into: &mut [u8], say: Say<'_>) -> io::Result<usize> {
        let mut from = 0;
        let mut filled = 0;
        let ended = loop {
            let UnbufferedStatus { discard, state } =
                self.conn.process_tls_records(&mut self.input[from..]);
            from += discard;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        from += record.discard;
                        let n = record.payload.len().min(into.len() - filled);
                        let (now, later) = record.payload.split_at(n);
                        into[filled..filled + n].copy_from_slice(now);
                        filled += n;
                        self.plain.extend_from_slice(later);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.output, |room| match data.encode(room) {
                        Err(EncodeError::InsufficientSize(e)) => Err(Some(e.required_size)),
                        other => other.map_err(|_| None),
                    })?;
                }
                // It is in the output, which is sent in order.
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.is_over = true,
                Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => break Ok(()),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let grown = match say {
                        Say::Nothing => break Ok(()),
                        Say::Bytes(bytes) => {
                            let records = bytes.len() / RECORD_BYTES + 1;
                            self.output
                                .reserve_exact(bytes.len() + records * RECORD_EXTRA_BYTES);
                            encode(&mut self.output, |room| {
                                traffic.encrypt(bytes, room).map_err(size_needed)
                            })
                        }
                        Say::Goodbye => encode(&mut self.output, |room| {
                            traffic.queue_close_notify(room).map_err(size_needed)
                        }),
                    };
                    break grown;
                }
                // Early data is not asked for.
                Ok(_) => break Err(invalid("an unknown state")),
                Err(e) => {
                    from += self.alert(from);
                    break Err(io::Error::new(io::ErrorKind::InvalidData, e));
                }
            }
        };
        self.input = self.input[from..].to_vec();
        ended?;
        if self.peer_bytes == 0 {
            let shown = self.conn.peer_certificates().unwrap_or_default();
            self.peer_bytes = shown.iter().map(|c| c.len()).sum();
        }
        match self.input.len() > TLS_HANDSHAKE_MAX_BYTES {
            true => Err(invalid("a message longer than allowed")),
            false => Ok(filled),
        }
    }

    /// Keeps the alert that follows an error; answers how much of the input it took along.
    fn alert(&mut self, from: usize) -> usize {
        let status = self.conn.process_tls_records(&mut self.input[from..]);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = status.state {
            let _ = encode(&mut self.output, |room| match data.encode(room) {
                Err(EncodeError::InsufficientSize(e)) => Err(Some(e.required_size)),
                other => other.map_err(|_| None),
            });
        }
        status.discard
    }
}

fn size_needed(e: EncryptError) -> Option<usize> {
    match e {
        EncryptError::InsufficientSize(e) => Some(e.required_size),
        EncryptError::EncryptExhausted => None,
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Appends what `write` writes, whose error is the room it needs, if that is what it lacks.
fn encode(
    output: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
) -> io::Result<()> {
    let before = output.len();
    let mut room = (output.capacity() - before).max(RECORD_EXTRA_BYTES);
    for _ in 0..2 {
        output.resize(before + room, 0);
        match write(&mut output[before..]) {
            Ok(n) => {
                output.truncate(before + n);
                return Ok(());
            }
            Err(Some(needed)) => room = needed,
            Err(None) => break,
        }
    }
    output.truncate(before);
    Err(invalid("this connection cannot encrypt any more"))
}
