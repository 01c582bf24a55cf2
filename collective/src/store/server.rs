//! The store's side that listens: a thread for each connection.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::debug;

use super::table::Table;
use super::{Answer, Request, StoreLimits, answer};
use crate::codec::{self, GREETING};
use crate::greeting::{self, FIRST, UnauthenticatedPeer, UnauthenticatedPeers};
use crate::lock;

/// A store that listens. Dropping it ends the store: every wait ends with
/// [`StoreError::Gone`](crate::StoreError::Gone).
///
/// It trusts nobody who does not know the secret, and even those who do cannot make it use memory
/// without bound: keys, values, entries and connections have [`StoreLimits`]. Connections that say
/// nothing are ended after a second, and if there are more than 64 of them, one at once: the oldest
/// of the address that has the most. The traffic itself is neither encrypted nor signed after the
/// greeting, so the network between the ranks must be a trusted one. `docs/distributed.md` has the
/// protocol.
pub struct StoreServer {
    /// The process that listens.
    home: u32,
    shared: Arc<Shared>,
    accept: Option<JoinHandle<()>>,
    address: SocketAddr,
}

struct Shared {
    table: Table,
    secret: Vec<u8>,
    limits: StoreLimits,
    closed: AtomicBool,
    unauthenticated: Arc<UnauthenticatedPeers>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// Those of clients that know the secret.
    sockets: HashMap<u64, TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts a store at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be bound, or the system cannot start a thread. Or the secret is empty,
    /// and the address is not a loopback address
    /// ([`StoreError::NoSecret`](crate::StoreError::NoSecret) inside of
    /// [`ErrorKind::InvalidInput`]).
    pub fn bind(address: impl ToSocketAddrs, secret: &[u8], limits: StoreLimits) -> io::Result<Self> {
        Self::with(address, secret, limits, UnauthenticatedPeers::new(FIRST, GREETING))
    }

    fn with(
        address: impl ToSocketAddrs,
        secret: &[u8],
        limits: StoreLimits,
        unauthenticated_peers: Arc<UnauthenticatedPeers>,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        greeting::check_secret(address.ip(), secret).map_err(|why| io::Error::new(ErrorKind::InvalidInput, why))?;
        let shared = Arc::new(Shared {
            table: Table::new(limits),
            secret: secret.to_vec(),
            limits,
            closed: AtomicBool::new(false),
            unauthenticated: unauthenticated_peers,
            open: Mutex::default(),
        });
        let run = shared.clone();
        let accept = thread::Builder::new().name("thalweg store".to_owned()).spawn(move || run.accept(&listener))?;
        debug!(target: "thalweg_collective::store", "a store listens at {address}");
        Ok(Self { home: std::process::id(), shared, accept: Some(accept), address })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for socket in listener.incoming() {
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            // An error is of one connection, or passes, such as too many open files.
            let Ok(socket) = socket else {
                thread::sleep(Duration::from_millis(10));
                continue;
            };
            let Ok(unauthenticated) = self.unauthenticated.enter(&socket) else { continue };
            let mut open = lock(&self.open);
            open.threads.retain(|thread| !thread.is_finished());
            let id = open.next;
            open.next += 1;
            let shared = self.clone();
            let run = move || {
                if let Err(why) = shared.serve(&socket, unauthenticated, id) {
                    debug!(target: "thalweg_collective::store", "a connection of {:?} ends: {why}", socket.peer_addr());
                }
                _ = socket.shutdown(Shutdown::Both);
                lock(&shared.open).sockets.remove(&id);
            };
            // Without a thread, the connection ends here.
            open.threads.extend(thread::Builder::new().name("thalweg store".to_owned()).spawn(run));
        }
    }

    /// Takes the connection of a client that knows the secret.
    fn admit(&self, id: u64, socket: TcpStream) -> io::Result<()> {
        let mut open = lock(&self.open);
        // Under the lock: a store that ends, ends those connections that it finds here.
        if self.closed.load(Ordering::Acquire) {
            return Err(io::Error::new(ErrorKind::NotConnected, "the store has ended"));
        }
        if open.sockets.len() >= self.limits.connections {
            return Err(io::Error::new(ErrorKind::ConnectionRefused, "there are too many connections"));
        }
        open.sockets.insert(id, socket);
        Ok(())
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, socket: &TcpStream, unauthenticated: UnauthenticatedPeer, id: u64) -> io::Result<()> {
        codec::prepare(socket)?;
        unauthenticated.authenticate(socket, &self.secret, b"store", |kept| self.admit(id, kept))?;
        loop {
            // Between requests a connection may be idle for as long as it likes.
            if !arrives(socket)? {
                return Ok(());
            }
            let message = codec::read_message(socket, Instant::now() + GREETING)?;
            let request = Request::decode(&message);
            let request =
                request.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a request of no known form"))?;
            let answer = answer(&self.table, &request, || has_gone(socket));
            codec::write_message(socket, &Answer::encode(answer))?;
        }
    }
}

/// Waits for the first byte of a request. False if the connection has ended.
fn arrives(socket: &TcpStream) -> io::Result<bool> {
    socket.set_read_timeout(None)?;
    loop {
        match socket.peek(&mut [0]) {
            Ok(n) => return Ok(n > 0),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Whether the other side has closed the connection.
fn has_gone(socket: &TcpStream) -> bool {
    if socket.set_read_timeout(Some(Duration::from_millis(1))).is_err() {
        return true;
    }
    match socket.peek(&mut [0]) {
        Ok(n) => n == 0,
        Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        if self.home != std::process::id() {
            // The store is that of the parent of this forked child, and so are its connections.
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.closed.store(true, Ordering::Release);
        self.shared.table.close();
        // `accept` has no timeout, so a connection wakes it.
        let loopback = match self.address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, self.address.port())),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, self.address.port())),
        };
        let ours = if self.address.ip().is_unspecified() { loopback } else { self.address };
        if TcpStream::connect_timeout(&ours, Duration::from_secs(1)).is_ok()
            && let Some(accept) = self.accept.take()
        {
            _ = accept.join();
        }
        self.shared.unauthenticated.dismiss();
        // Answers under way are still written; then each connection reads its end.
        let (sockets, threads) = {
            let mut open = lock(&self.shared.open);
            let threads = std::mem::take(&mut open.threads);
            (open.sockets.values().filter_map(|socket| socket.try_clone().ok()).collect::<Vec<_>>(), threads)
        };
        sockets.iter().for_each(|socket| _ = socket.shutdown(Shutdown::Read));
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreServer").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, TcpStream};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::{StoreLimits, StoreServer};
    use crate::codec::GREETING;
    use crate::greeting::{GREETINGS, UnauthenticatedPeers};
    use crate::lock;
    use crate::store::Store;

    const LONG: Duration = Duration::from_secs(60);
    /// Nothing that takes so long ends a test that passes.
    const HOUR: Duration = Duration::from_secs(3600);

    fn server(limits: StoreLimits, first: Duration, whole: Duration) -> StoreServer {
        StoreServer::with("127.0.0.1:0", b"s", limits, UnauthenticatedPeers::new(first, whole)).unwrap()
    }

    fn client(server: &StoreServer) -> Store {
        Store::connect(server.address(), b"s", LONG).unwrap()
    }

    /// A connection that is served and says only this.
    fn unauthenticated(server: &StoreServer, said: &[u8]) -> TcpStream {
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.write_all(said).unwrap();
        socket.read_exact(&mut [0; 24]).unwrap();
        socket
    }

    /// Waits until the server ends a connection.
    fn ends(mut socket: &TcpStream) {
        socket.set_read_timeout(Some(LONG)).unwrap();
        match socket.read(&mut [0]) {
            Ok(0) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("the connection goes on: {other:?}"),
        }
    }

    /// Whether the server has left a connection open.
    fn is_open(socket: &TcpStream) -> bool {
        socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        socket.peek(&mut [0]).is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }

    /// The connections whose threads have not ended.
    fn threads(server: &StoreServer) -> usize {
        lock(&server.shared.open).threads.iter().filter(|thread| !thread.is_finished()).count()
    }

    fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The oldest connection that says nothing goes if there is no place, and not earlier. Nothing
    /// here waits for a deadline.
    #[test]
    fn a_client_takes_the_place_of_the_oldest_stranger() {
        let server = server(StoreLimits::default(), HOUR, HOUR);
        let mut unauthenticated_peers: Vec<_> = (0..GREETINGS).map(|_| unauthenticated(&server, b"")).collect();
        assert_eq!((server.shared.unauthenticated.taken(), threads(&server)), (GREETINGS, GREETINGS));
        assert!(unauthenticated_peers.iter().all(is_open));

        let first = client(&server);
        ends(&unauthenticated_peers.remove(0));
        assert!(unauthenticated_peers.iter().all(is_open), "one is enough");
        // The client knows the secret, so its place is free again, and it does not go.
        unauthenticated_peers.push(unauthenticated(&server, b"thalweg1"));
        assert!(unauthenticated_peers.iter().all(is_open), "there was a place");
        for _ in 0..3 {
            unauthenticated_peers.push(unauthenticated(&server, b""));
            ends(&unauthenticated_peers.remove(0));
        }
        assert!(unauthenticated_peers.iter().all(is_open));
        first.set("a", b"1").unwrap();
        until("as many threads as places", LONG, || threads(&server) == GREETINGS + 1);

        // Those who said something do not keep others out, either.
        let half: Vec<_> =
            (0..GREETINGS).map(|_| unauthenticated(&server, b"thalweg1 and a part of a nonce")).collect();
        assert_eq!(client(&server).get("a").unwrap().unwrap(), b"1");
        ends(&half[0]);
    }

    /// Many unauthenticated peers take as many threads as a few, and a client gets in while they
    /// come.
    #[test]
    fn strangers_take_few_threads() {
        let server = server(StoreLimits::default(), HOUR, HOUR);
        let (mut most, mut kept) = (0, VecDeque::new());
        for k in 0..600 {
            kept.push_back(TcpStream::connect(server.address()).unwrap());
            if kept.len() > 150 {
                kept.pop_front();
            }
            most = most.max(threads(&server));
            assert!(server.shared.unauthenticated.taken() <= GREETINGS);
            if k % 100 == 99 {
                client(&server).set("a", b"1").unwrap();
            }
        }
        // A thread that has given its place back takes a moment to end.
        assert!(most <= 2 * GREETINGS, "{most} threads");
    }

    #[test]
    fn silent_connections_end_early_and_slow_ones_later() {
        let server = server(StoreLimits::default(), Duration::from_secs(1), HOUR);
        let slow = unauthenticated(&server, b"thalweg1");
        ends(&unauthenticated(&server, b""));
        ends(&unauthenticated(&server, b"thalweg"));
        assert!(is_open(&slow), "it has said the first bytes in time");

        let server = self::server(StoreLimits::default(), HOUR, Duration::from_millis(100));
        ends(&unauthenticated(&server, b"thalweg1"));
    }

    #[test]
    fn silent_connections_end_before_a_greeting_may() {
        let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
        let started = Instant::now();
        ends(&unauthenticated(&server, b""));
        assert!(started.elapsed() < GREETING, "{:?}", started.elapsed());
    }

    /// Strangers do not count as connections, and a caller that has gone does not for long: it is
    /// not waited for until the end of its request.
    #[test]
    fn who_has_gone_or_is_strange_takes_no_connection() {
        let server = server(StoreLimits::default().with_connections(1), HOUR, HOUR);
        let unauthenticated_peers = [(); 3].map(|()| unauthenticated(&server, b""));
        let store = client(&server);
        assert!(store.reconnect().is_err(), "there is one connection");
        let socket = store.shutter().unwrap();
        let waits = thread::spawn(move || store.all_gather("never", 0, 2, b"", HOUR).unwrap_err());
        until("the request is under way", LONG, || server.shared.table.holds().0 == 1);
        socket.shutdown(Shutdown::Both).unwrap();
        let soon = Duration::from_secs(5);
        until("its place is free", soon, || Store::connect(server.address(), b"s", Duration::ZERO).is_ok());
        until("its thread has ended", soon, || threads(&server) == unauthenticated_peers.len());
        assert_eq!(server.shared.table.holds(), (0, 0));
        waits.join().unwrap();
    }

    #[test]
    fn a_store_ends_although_strangers_say_nothing() {
        let server = server(StoreLimits::default(), HOUR, HOUR);
        let unauthenticated_peers: Vec<_> = (0..GREETINGS).map(|_| unauthenticated(&server, b"")).collect();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            drop(server);
            _ = tell.send(());
        });
        told.recv_timeout(LONG).expect("the store does not end");
        unauthenticated_peers.iter().for_each(ends);
    }
}
