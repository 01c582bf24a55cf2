//! The store's side that listens: a thread for each connection.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use log::debug;

use super::table::Table;
use super::{Answer, Limits, Request, answer};
use crate::lock;
use crate::wire::{self, GREETING, GREETINGS};

/// A store that listens. Dropping it ends the store: every wait ends with
/// [`StoreError::Gone`](crate::StoreError::Gone).
///
/// It trusts nobody who does not know the secret, and even those cannot make it use memory without
/// bound: keys, values, entries and connections have [`Limits`]. The traffic itself is neither
/// encrypted nor signed after the greeting, so the network between the ranks must be a trusted one.
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
    limits: Limits,
    closed: AtomicBool,
    /// Connections that have not proved yet that they know the secret.
    greeting: AtomicUsize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    sockets: HashMap<u64, TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl StoreServer {
    /// Starts a store at an address; port 0 takes a free one.
    ///
    /// # Errors
    /// The address cannot be bound, or the system cannot start a thread.
    pub fn bind(address: impl ToSocketAddrs, secret: &[u8], limits: Limits) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            table: Table::new(limits),
            secret: secret.to_vec(),
            limits,
            closed: AtomicBool::new(false),
            greeting: AtomicUsize::new(0),
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
            while self.greeting.load(Ordering::Acquire) >= GREETINGS && !self.closed.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
            let mut open = lock(&self.open);
            open.threads.retain(|thread| !thread.is_finished());
            if open.sockets.len() >= self.limits.connections {
                debug!(target: "thalweg_collective::store", "a connection is refused: there are too many");
                continue;
            }
            let Ok(kept) = socket.try_clone() else { continue };
            let id = open.next;
            let shared = self.clone();
            let run = move || {
                if let Err(why) = shared.serve(&socket) {
                    debug!(target: "thalweg_collective::store", "a connection of {:?} ends: {why}", socket.peer_addr());
                }
                _ = socket.shutdown(Shutdown::Both);
                lock(&shared.open).sockets.remove(&id);
            };
            self.greeting.fetch_add(1, Ordering::AcqRel);
            match thread::Builder::new().name("thalweg store".to_owned()).spawn(run) {
                Ok(thread) => {
                    open.next += 1;
                    open.sockets.insert(id, kept);
                    open.threads.push(thread);
                }
                Err(_) => _ = self.greeting.fetch_sub(1, Ordering::AcqRel),
            }
        }
    }

    /// Answers the requests of one connection until it ends.
    fn serve(&self, socket: &TcpStream) -> io::Result<()> {
        let greeted = wire::prepare(socket)
            .and_then(|()| wire::welcome(socket, &self.secret, b"store", Instant::now() + GREETING));
        self.greeting.fetch_sub(1, Ordering::AcqRel);
        greeted?;
        loop {
            let mut len = [0; 4];
            // Between requests a connection may be idle for as long as it likes.
            if !arrives(socket)? {
                return Ok(());
            }
            let deadline = Instant::now() + GREETING;
            wire::read(socket, &mut len, deadline)?;
            let message = wire::read_body(socket, u32::from_le_bytes(len), deadline)?;
            let request = Request::decode(&message);
            let request =
                request.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a request of no known form"))?;
            let answer = answer(&self.table, &request, || has_gone(socket));
            wire::write_message(socket, &Answer::encode(answer))?;
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
