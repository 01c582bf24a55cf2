//! Bytes on sockets: deadlines, messages with a length, and the greeting that proves a secret.
//!
//! What comes from the network is not trusted. Every read has a deadline or ends when the socket is
//! shut down, every length has a limit, and memory grows with the bytes that have arrived, not with
//! the length that was promised.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::sha256::{equal, hmac};

/// The most bytes of a message of the store.
pub(crate) const LONGEST: usize = 2 << 20;

/// How long one side waits for the greeting of the other.
pub(crate) const GREETING: Duration = Duration::from_secs(5);

/// Greetings at once. Others wait in the queue of the system, so strangers that say nothing do not take
/// threads without bound.
pub(crate) const GREETINGS: usize = 64;

/// What both sides send first.
const MAGIC: [u8; 8] = *b"thalweg1";

/// Reads all bytes by the deadline.
pub(crate) fn read(mut from: &TcpStream, mut to: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !to.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "nothing came in time"));
        }
        from.set_read_timeout(Some(left))?;
        match from.read(to) {
            Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed")),
            Ok(n) => to = &mut to[n..],
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads a message: its length in 4 bytes, and its bytes.
pub(crate) fn read_message(from: &TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    read(from, &mut len, deadline)?;
    read_body(from, u32::from_le_bytes(len), deadline)
}

/// Reads the bytes of a message of this length.
pub(crate) fn read_body(from: &TcpStream, len: u32, deadline: Instant) -> io::Result<Vec<u8>> {
    let len = len as usize;
    if len > LONGEST {
        let why = format!("a message of {len} bytes: at most {LONGEST} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut message = Vec::new();
    while message.len() < len {
        let at = message.len();
        message.resize(len.min(at + (16 << 10)), 0);
        read(from, &mut message[at..], deadline)?;
    }
    Ok(message)
}

/// Writes a message.
pub(crate) fn write_message(mut to: &TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let mut all = Vec::with_capacity(4 + message.len());
    all.extend_from_slice(&len.to_le_bytes());
    all.extend_from_slice(message);
    to.write_all(&all)
}

/// Sets what every socket of this crate has.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(GREETING))
}

/// Greets on the side that accepted a connection. Returns once the other side has proved that it
/// knows the secret.
pub(crate) fn welcome(socket: &TcpStream, secret: &[u8], purpose: &[u8], deadline: Instant) -> io::Result<()> {
    let mut writer = socket;
    let here = nonce();
    writer.write_all(&[&MAGIC[..], &here].concat())?;
    let mut said = [0; 8 + 16 + 32];
    // The first bytes alone, so that a stranger is refused before it has sent them all.
    let (magic, rest) = said.split_at_mut(8);
    read(socket, magic, deadline)?;
    expect_magic(magic)?;
    read(socket, rest, deadline)?;
    let (there, code) = rest.split_at(16);
    if !equal(&hmac(secret, &[b"client", purpose, &here, there]), code.try_into().unwrap_or(&[0; 32])) {
        writer.write_all(&[0; 33])?;
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the other side has another secret"));
    }
    writer.write_all(&[&[1][..], &hmac(secret, &[b"server", purpose, &here, there])].concat())
}

/// Greets on the side that made a connection.
pub(crate) fn greet(socket: &TcpStream, secret: &[u8], purpose: &[u8], deadline: Instant) -> io::Result<()> {
    let mut said = [0; 8 + 16];
    read(socket, &mut said, deadline)?;
    expect_magic(&said[..8])?;
    let (here, there) = (nonce(), &said[8..]);
    let code = hmac(secret, &[b"client", purpose, there, &here]);
    let mut writer = socket;
    writer.write_all(&[&MAGIC[..], &here, &code].concat())?;
    let mut answer = [0; 33];
    read(socket, &mut answer, deadline)?;
    let proved = hmac(secret, &[b"server", purpose, there, &here]);
    if answer[0] != 1 || !equal(&proved, answer[1..].try_into().unwrap_or(&[0; 32])) {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "the other side has another secret"));
    }
    Ok(())
}

fn expect_magic(magic: &[u8]) -> io::Result<()> {
    if magic == MAGIC {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidData, "the other side does not speak this protocol"))
}

/// 16 bytes that nobody can guess: `RandomState` begins with random keys of the system.
pub(crate) fn nonce() -> [u8; 16] {
    let mut nonce = [0; 16];
    for (k, bytes) in nonce.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&RandomState::new().hash_one((k, Instant::now())).to_le_bytes());
    }
    nonce
}

/// Writes the fields of a message.
#[derive(Debug, Default)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn byte(mut self, v: u8) -> Self {
        self.0.push(v);
        self
    }
    pub(crate) fn number(mut self, v: u64) -> Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }
    pub(crate) fn bytes(self, v: &[u8]) -> Self {
        let mut all = self.number(v.len() as u64);
        all.0.extend_from_slice(v);
        all
    }
}

/// Reads the fields of a message. Each call gives `None` if the message ends before the field.
#[derive(Debug)]
pub(crate) struct Parse<'a>(pub(crate) &'a [u8]);

impl<'a> Parse<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
    pub(crate) fn size(&mut self) -> Option<usize> {
        self.number()?.try_into().ok()
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.size()?;
        self.take(n)
    }
    pub(crate) fn text(&mut self) -> Option<String> {
        self.bytes().and_then(|text| String::from_utf8(text.to_vec()).ok())
    }
}
