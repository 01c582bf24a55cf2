//! Bytes on sockets: deadlines, and messages with a length.
//!
//! What comes from the network is not trusted. Every read has a deadline or ends when the socket is
//! shut down, every length has a limit, and memory grows with the bytes that have arrived, not with
//! the length that was promised.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The most bytes of a message of the store.
pub(crate) const LONGEST: usize = 2 << 20;

/// The bytes by which the memory for a message grows.
const PART: usize = 16 << 10;

/// The time that one side waits for the greeting of the other.
pub(crate) const GREETING: Duration = Duration::from_secs(5);

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

/// Reads so many bytes by the deadline.
pub(crate) fn read_array<const N: usize>(from: &TcpStream, deadline: Instant) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    read(from, &mut bytes, deadline)?;
    Ok(bytes)
}

/// Reads a message: its length in 4 bytes, and its bytes.
pub(crate) fn read_message(from: &TcpStream, deadline: Instant) -> io::Result<Vec<u8>> {
    read_body(from, u32::from_le_bytes(read_array(from, deadline)?), deadline)
}

/// Reads the bytes of a message of this length.
fn read_body(from: &TcpStream, len: u32, deadline: Instant) -> io::Result<Vec<u8>> {
    let len = len as usize;
    if len > LONGEST {
        let why = format!("a message of {len} bytes: at most {LONGEST} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut message = Vec::new();
    while message.len() < len {
        let at = message.len();
        message.resize(len.min(at + PART), 0);
        read(from, &mut message[at..], deadline)?;
    }
    Ok(message)
}

/// Writes a message.
pub(crate) fn write_message(mut to: &TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    to.write_all(&[&len.to_le_bytes(), message].concat())
}

/// Sets what every socket of this crate has.
pub(crate) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(GREETING))
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::{LONGEST, read_body};

    /// Nobody waits for the bytes of a message that is too long.
    #[test]
    fn a_message_that_is_too_long_is_refused_before_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let read = |len: usize| read_body(&socket, len as u32, Instant::now()).unwrap_err().kind();
        assert_eq!([read(LONGEST + 1), read(u32::MAX as usize)], [ErrorKind::InvalidData; 2]);
        assert_eq!([read(1), read(LONGEST)], [ErrorKind::TimedOut; 2]);
    }
}
