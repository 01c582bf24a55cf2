//! Ranks that are processes: a connection between each two of them.
//!
//! A thread for each connection writes what the rank sends, so no operation waits for a peer that
//! is not reading yet: all ranks can send at once without a deadlock, however full the sockets are.

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use log::debug;

use super::{Abort, Link, LinkError, goodbye};
use crate::codec::{self, GREETING};
use crate::greeting::{self, FIRST, UnauthenticatedPeer, UnauthenticatedPeers};
use crate::header::{HEADER_BYTES, Header};
use crate::lock;

/// Messages up to this many bytes are copied behind their head, to leave in one packet.
const TOGETHER: usize = 32 << 10;

/// The time that a rank that ends waits until its last messages have left.
const GOODBYE_GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(crate) struct TcpLink {
    /// `None` at the place of this rank.
    peers: Vec<Option<Peer>>,
    aborted: AtomicBool,
}

type Outgoing = (Header, Arc<[u8]>);

#[derive(Debug)]
struct Peer {
    socket: TcpStream,
    /// `None` once the rank ends.
    outgoing: Mutex<Option<Sender<Outgoing>>>,
    pending: Arc<Pending>,
}

/// The messages that have not left yet.
#[derive(Debug, Default)]
struct Pending {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Pending {
    fn add(&self) {
        *lock(&self.count) += 1;
    }
    fn done(&self) {
        *lock(&self.count) -= 1;
        self.changed.notify_all();
    }
    /// Waits until there are none. False at the deadline.
    fn drained(&self, deadline: Instant) -> bool {
        let mut count = lock(&self.count);
        while *count > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            count = self.changed.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// The side of a rank before the ranks are connected: it listens.
pub(crate) struct Listener {
    listener: TcpListener,
    rank: usize,
    secret: Vec<u8>,
    unauthenticated: Arc<UnauthenticatedPeers>,
}

impl Listener {
    pub(crate) fn new(ip: IpAddr, rank: usize, secret: &[u8]) -> io::Result<Self> {
        check_secret(ip, secret)?;
        let listener = TcpListener::bind((ip, 0))?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            rank,
            secret: secret.to_vec(),
            unauthenticated: UnauthenticatedPeers::new(FIRST, GREETING),
        })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Connects with every rank: calls those before this one, and is called by those after.
    pub(crate) fn connect(self, addresses: &[SocketAddr], timeout: Duration, deadline: Instant) -> io::Result<TcpLink> {
        addresses.iter().try_for_each(|address| check_secret(address.ip(), &self.secret))?;
        let mut sockets: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
        for (peer, address) in addresses.iter().enumerate().take(self.rank) {
            sockets[peer] = Some(self.call(*address, deadline).map_err(|why| {
                io::Error::new(why.kind(), format!("rank {peer} at {address} does not answer: {why}"))
            })?);
        }
        let (tell, told) = mpsc::channel();
        while sockets.iter().skip(self.rank + 1).any(Option::is_none) {
            if let Ok((socket, _)) = self.listener.accept()
                && let Ok(unauthenticated) = self.unauthenticated.enter(&socket)
            {
                // On a thread of its own: an unauthenticated peer that says nothing must not hold
                // up the others.
                let (tell, secret) = (tell.clone(), self.secret.clone());
                thread::Builder::new().name("thalweg listener".to_owned()).spawn(move || {
                    match admit(&socket, unauthenticated, &secret) {
                        Ok(rank) => _ = tell.send((rank, socket)),
                        Err(why) => {
                            debug!(target: "thalweg_collective::tcp", "an unauthenticated peer is refused: {why}")
                        }
                    }
                })?;
            }
            while let Ok((rank, socket)) = told.try_recv() {
                if let Some(place @ None) = sockets.get_mut(rank).filter(|_| rank > self.rank) {
                    *place = Some(socket);
                }
            }
            if Instant::now() >= deadline {
                let missing = (self.rank + 1..sockets.len()).find(|&rank| sockets[rank].is_none()).unwrap_or(0);
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("rank {missing} does not connect")));
            }
            thread::sleep(Duration::from_millis(1));
        }
        let peers = sockets.into_iter().map(|socket| socket.map(|socket| Peer::new(socket, timeout)).transpose());
        Ok(TcpLink { peers: peers.collect::<io::Result<_>>()?, aborted: AtomicBool::new(false) })
    }
}

impl Listener {
    /// Calls a rank, which may be busy with many others: tries again until the deadline.
    fn call(&self, address: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
        loop {
            let called = TcpStream::connect_timeout(&address, GREETING).and_then(|socket| {
                codec::prepare(&socket)?;
                greeting::greet(&socket, &self.secret, b"peer", Instant::now() + GREETING)?;
                (&socket).write_all(&(self.rank as u64).to_le_bytes())?;
                Ok(socket)
            });
            match called {
                Err(why) if why.kind() != ErrorKind::PermissionDenied && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                called => return called,
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.unauthenticated.dismiss();
    }
}

fn check_secret(ip: IpAddr, secret: &[u8]) -> io::Result<()> {
    greeting::check_secret(ip, secret).map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))
}

/// Greets a rank that calls. Returns its number.
fn admit(socket: &TcpStream, unauthenticated: UnauthenticatedPeer, secret: &[u8]) -> io::Result<usize> {
    let deadline = Instant::now() + GREETING;
    socket.set_nonblocking(false)?;
    codec::prepare(socket)?;
    unauthenticated.authenticate(socket, secret, b"peer", |_| Ok(()))?;
    let rank = codec::read_array(socket, deadline)?;
    usize::try_from(u64::from_le_bytes(rank)).map_err(|_| io::ErrorKind::InvalidData.into())
}

impl Peer {
    fn new(socket: TcpStream, timeout: Duration) -> io::Result<Self> {
        let (outgoing, messages) = mpsc::channel::<Outgoing>();
        let pending = Arc::new(Pending::default());
        let (writer, left) = (socket.try_clone()?, pending.clone());
        // A write that takes longer than an operation may is one to a rank that has stopped.
        writer.set_write_timeout(Some(timeout.max(Duration::from_millis(1))))?;
        thread::Builder::new().name("thalweg sender".to_owned()).spawn(move || {
            let mut open = true;
            for (head, bytes) in messages {
                // After an error the messages are dropped. The reader of this connection finds it
                // closed.
                if open && write(&writer, &head, &bytes).is_err() {
                    open = false;
                    _ = writer.shutdown(Shutdown::Both);
                }
                left.done();
            }
            _ = writer.shutdown(Shutdown::Write);
        })?;
        Ok(Self { socket, outgoing: Mutex::new(Some(outgoing)), pending })
    }

    fn send(&self, head: &Header, bytes: &Arc<[u8]>) {
        if let Some(outgoing) = &*lock(&self.outgoing) {
            self.pending.add();
            if outgoing.send((*head, bytes.clone())).is_err() {
                self.pending.done();
            }
        }
    }
}

fn write(mut to: &TcpStream, head: &Header, bytes: &[u8]) -> io::Result<()> {
    let head = head.encode();
    if bytes.len() <= TOGETHER {
        return to.write_all(&[&head, bytes].concat());
    }
    to.write_all(&head)?;
    to.write_all(bytes)
}

impl TcpLink {
    fn peer(&self, rank: usize) -> Result<&Peer, LinkError> {
        self.peers.get(rank).and_then(Option::as_ref).ok_or(LinkError::Closed)
    }

    fn read(&self, from: usize, to: &mut [u8], deadline: Instant) -> Result<(), LinkError> {
        let outcome = codec::read(&self.peer(from)?.socket, to, deadline);
        if self.aborted.load(Ordering::Acquire) {
            return Err(LinkError::Aborted);
        }
        outcome.map_err(|why| if why.kind() == io::ErrorKind::TimedOut { LinkError::Late } else { LinkError::Closed })
    }
}

impl Link for TcpLink {
    fn send(&self, to: usize, head: &Header, bytes: &Arc<[u8]>) {
        if let Ok(peer) = self.peer(to) {
            peer.send(head, bytes);
        }
    }

    fn header(&self, from: usize, deadline: Instant) -> Result<Header, LinkError> {
        let mut bytes = [0; HEADER_BYTES];
        self.read(from, &mut bytes, deadline)?;
        Header::decode(&bytes).ok_or_else(|| LinkError::Garbled("a head of no known form".to_owned()))
    }

    fn body(&self, from: usize, to: &mut [u8], deadline: Instant) -> Result<(), LinkError> {
        self.read(from, to, deadline)
    }

    fn arrived(&self, from: usize) -> bool {
        let Ok(Peer { socket, .. }) = self.peer(from) else { return true };
        if socket.set_read_timeout(Some(Duration::from_millis(1))).is_err() {
            return true;
        }
        match socket.peek(&mut [0; HEADER_BYTES]) {
            Ok(n) => n == 0 || n == HEADER_BYTES,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
        }
    }

    fn flush(&self, deadline: Instant) -> Result<(), Vec<usize>> {
        let stuck = self
            .peers
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.as_ref().is_some_and(|peer| !peer.pending.drained(deadline)));
        let stuck: Vec<usize> = stuck.map(|(rank, _)| rank).collect();
        if stuck.is_empty() { Ok(()) } else { Err(stuck) }
    }
}

impl Abort for TcpLink {
    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        for peer in self.peers.iter().flatten() {
            _ = peer.socket.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for TcpLink {
    fn drop(&mut self) {
        let none: Arc<[u8]> = Arc::new([]);
        for peer in self.peers.iter().flatten() {
            peer.send(&goodbye(), &none);
            lock(&peer.outgoing).take();
        }
        _ = self.flush(Instant::now() + GOODBYE_GRACE);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
    use std::sync::Arc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::{Abort, Link, LinkError, goodbye};
    use super::{Listener, TcpLink};
    use crate::codec::GREETING;
    use crate::element::Kind;
    use crate::greeting::{self, GREETINGS, UnauthenticatedPeers};
    use crate::header::{Call, Code, Header};

    const HOUR: Duration = Duration::from_secs(3600);

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn listener(rank: usize, secret: &[u8]) -> (Listener, SocketAddr) {
        let listener = Listener::new(IpAddr::V4(Ipv4Addr::LOCALHOST), rank, secret).unwrap();
        let address = listener.address().unwrap();
        (listener, address)
    }

    /// Connects two ranks; `before` calls rank 0 before rank 1 does.
    fn pair(unauthenticated_peers: impl FnOnce(SocketAddr)) -> [TcpLink; 2] {
        let ((a, at_a), (b, at_b)) = (listener(0, b"s"), listener(1, b"s"));
        let all = [at_a, at_b];
        thread::scope(|threads| {
            let first = threads.spawn(move || a.connect(&all, HOUR, soon()).unwrap());
            unauthenticated_peers(at_a);
            [b.connect(&all, HOUR, soon()).unwrap(), first.join().unwrap()]
        })
    }

    fn head(len: usize) -> Header {
        let call = Call { code: Code::AllGather, kind: Kind::U8, op: None, root: None, count: len };
        Header { call, seq: 1, step: 1, len }
    }

    /// A process that ends behind its last message has sent all of it.
    #[test]
    fn the_end_of_a_rank_waits_until_its_messages_have_left() {
        let [b, a] = pair(|_| ());
        let bytes: Arc<[u8]> = Arc::from(vec![7; 16 << 20]);
        let pending = b.peers[0].as_ref().unwrap().pending.clone();
        b.send(0, &head(bytes.len()), &bytes);
        thread::scope(|threads| {
            threads.spawn(|| {
                assert_eq!(a.header(1, soon()), Ok(head(bytes.len())));
                a.body(1, &mut vec![0; bytes.len()], soon()).unwrap();
            });
            drop(b);
            assert_eq!(*pending.count.lock().unwrap(), 0);
        });
    }

    #[test]
    fn strangers_do_not_hold_up_the_ranks() {
        let mut kept = Vec::new();
        let started = Instant::now();
        let [b, a] = pair(|at| {
            for said in [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"thalweg1", &[0xff; 4096]] {
                let mut unauthenticated = TcpStream::connect(at).unwrap();
                _ = unauthenticated.write_all(said);
                kept.push(unauthenticated); // open, so that its greeting is waited for
            }
            drop(TcpStream::connect(at).unwrap());
            let guess = TcpStream::connect(at).unwrap();
            assert!(greeting::greet(&guess, b"another secret", b"peer", soon()).is_err());
        });
        assert!(started.elapsed() < GREETING, "the ranks waited for an unauthenticated peer");
        let bytes: Arc<[u8]> = (0..100_000).map(|i| i as u8).collect();
        b.send(0, &head(bytes.len()), &bytes);
        assert_eq!(a.header(1, soon()).unwrap(), head(bytes.len()));
        let mut got = vec![0; bytes.len()];
        a.body(1, &mut got, soon()).unwrap();
        assert_eq!(got, *bytes);
        assert!(!a.arrived(1));
        // The end of a rank is its last word, after what it sent before.
        b.send(0, &head(3), &Arc::from([1, 2, 3]));
        drop(b);
        assert!(a.arrived(1));
        assert_eq!(a.header(1, soon()).unwrap(), head(3));
        a.body(1, &mut [0; 3], soon()).unwrap();
        assert_eq!(a.header(1, soon()).unwrap(), goodbye());
        assert!(a.arrived(1), "the end has arrived, too");
        assert_eq!(a.header(1, soon()), Err(LinkError::Closed));
    }

    /// A rank gets in although there are more unauthenticated peers than places. Nothing here waits
    /// for the deadline of one.
    #[test]
    fn a_rank_takes_the_place_of_a_stranger() {
        let ((mut a, at_a), (b, at_b)) = (listener(0, b"s"), listener(1, b"s"));
        a.unauthenticated = UnauthenticatedPeers::new(HOUR, HOUR);
        let all = [at_a, at_b];
        let unauthenticated_peers: Vec<_> = (0..GREETINGS + 10).map(|_| TcpStream::connect(at_a).unwrap()).collect();
        thread::scope(|threads| {
            let first = threads.spawn(move || a.connect(&all, HOUR, soon()).unwrap());
            let b = b.connect(&all, HOUR, soon()).unwrap();
            let a = first.join().unwrap();
            b.send(0, &head(0), &Arc::from([]));
            assert_eq!(a.header(1, soon()), Ok(head(0)));
        });
        // They are not kept, now that the ranks are connected.
        for mut unauthenticated in unauthenticated_peers {
            unauthenticated.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            if let Err(why) = unauthenticated.read_to_end(&mut Vec::new()) {
                assert_eq!(why.kind(), ErrorKind::ConnectionReset, "it is kept");
            }
        }
    }

    #[test]
    fn beyond_loopback_there_is_a_secret() {
        let anywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        assert!(Listener::new(anywhere, 0, b"s").is_ok());
        assert!(Listener::new(anywhere, 0, b"").is_err());
        let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        assert!(greeting::check_secret(IpAddr::V6(mapped), b"").is_ok());
        // The other rank is not called.
        let (a, at_a) = listener(1, b"");
        let error = a.connect(&["192.0.2.1:9".parse().unwrap(), at_a], HOUR, soon()).unwrap_err();
        assert!(error.to_string().contains("THALWEG_SECRET"), "{error}");
    }

    /// A rank with many callers may not answer each of them at once.
    #[test]
    fn a_call_that_fails_is_made_again() {
        let ((a, at_a), (b, at_b)) = (listener(0, b"s"), listener(1, b"s"));
        let all = [at_a, at_b];
        thread::scope(|threads| {
            let calls = threads.spawn(move || b.connect(&all, HOUR, soon()).unwrap());
            // The first calls are accepted and come to nothing.
            let (mut lost, end) = (0, soon());
            while lost < 3 {
                assert!(Instant::now() < end, "there are no more calls after {lost}");
                match a.listener.accept() {
                    Ok(socket) => {
                        drop(socket);
                        lost += 1;
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
            let a = a.connect(&all, HOUR, soon()).unwrap();
            let b = calls.join().unwrap();
            b.send(0, &head(0), &Arc::from([]));
            assert_eq!(a.header(1, soon()), Ok(head(0)));
        });
        // Not for ever.
        let (c, _) = listener(1, b"s");
        let gone = c.connect(&[at_a, at_b], HOUR, Instant::now() + Duration::from_millis(120)).unwrap_err();
        assert!(gone.to_string().starts_with(&format!("rank 0 at {at_a} does not answer: ")), "{gone}");
    }

    #[test]
    fn garbage_silence_and_aborts_have_names() {
        let [b, a] = pair(|_| ());
        assert_eq!(a.header(1, Instant::now() + Duration::from_millis(20)), Err(LinkError::Late));
        (&b.peers[0].as_ref().unwrap().socket).write_all(&[7; 40]).unwrap();
        assert!(matches!(a.header(1, soon()), Err(LinkError::Garbled(_))));
        // Half a message, then nothing, until the abort.
        (&b.peers[0].as_ref().unwrap().socket).write_all(&[7; 10]).unwrap();
        assert!(!a.arrived(1), "half a head is none");
        thread::scope(|threads| {
            let waits = threads.spawn(|| a.header(1, Instant::now() + HOUR));
            a.abort();
            assert_eq!(waits.join().unwrap(), Err(LinkError::Aborted));
        });
        assert_eq!(b.header(0, soon()), Err(LinkError::Closed));
    }

    #[test]
    fn a_rank_that_takes_nothing_is_named() {
        let [b, a] = pair(|_| ());
        let bytes: Arc<[u8]> = Arc::from(vec![0; 64 << 20]);
        a.send(1, &head(bytes.len()), &bytes);
        assert_eq!(a.flush(Instant::now() + Duration::from_millis(50)), Err(vec![1]));
        b.header(0, soon()).unwrap();
        b.body(0, &mut vec![0; bytes.len()], soon()).unwrap();
        assert_eq!(a.flush(soon()), Ok(()));
    }
}
