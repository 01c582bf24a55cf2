//! The greeting, with which the two sides of a connection prove to one another that they know the
//! same secret.
//!
//! ```text
//! server to client:  "thalweg1", S                  S: 16 random bytes, new for each connection
//! client to server:  "thalweg1", C, code("client")  C: 16 random bytes, new for each connection
//! server to client:  1, code("server")              or 0 and 32 zeros, if the client's code is wrong
//!
//! code(role) = HMAC-SHA-256(secret, role, purpose, S, C)     one after another, without lengths
//! role       = "client" or "server"                          who sends the code
//! purpose    = "store", or "peer" between two ranks          what the connection is for
//! ```
//!
//! The server reads nothing more before the client's code is right. The client sends nothing more
//! before the server's code is right. Codes are compared in constant time.
//!
//! **It protects** against those who do not know the secret. They cannot use the store, and cannot
//! be taken for a store or a rank. What they recorded is of no use, because S and C are new; nor is
//! a code that they send back, because of its role, or use elsewhere, because of its purpose. The
//! secret goes over no wire. They cannot keep ranks out by connections that say nothing: see
//! [`UnauthenticatedPeers`].
//!
//! **It does not protect what follows.** Nothing is encrypted or signed after the greeting. Who is
//! between the two sides can pass the greeting on, and then read and change everything. Who hears a
//! greeting can try guesses of the secret at leisure, so it has to be random: 16 bytes or more.
//! Ranks that know the secret trust one another. Who can fill the network or the queue of the
//! system still keeps others out.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::codec::read_array;
use crate::error::StoreError;
use crate::lock;

/// The time limit for the first bytes of a client. A client sends its whole greeting as soon as it
/// has that of the server.
pub(crate) const FIRST: Duration = Duration::from_secs(1);

/// Greetings at once, so that unauthenticated peers do not take threads without bound.
pub(crate) const GREETINGS: usize = 64;

/// The bytes that both sides send first.
const MAGIC: [u8; 8] = *b"thalweg1";

const NONCE: usize = 16;
const CODE: usize = 32;

/// Checks that there is a secret, or that nobody else can reach the address.
pub(crate) fn check_secret(ip: IpAddr, secret: &[u8]) -> Result<(), StoreError> {
    if secret.is_empty() && !ip.to_canonical().is_loopback() {
        return Err(StoreError::NoSecret { ip });
    }
    Ok(())
}

/// The connections whose other side has not proved yet that it knows the secret.
///
/// [`GREETINGS`] of them have a place, and with it a thread. If there is no place for the next one,
/// one is ended: the oldest of the address that has the most. So a client that greets at once gets
/// in, however many others say nothing, and one that is far away does so unless they come from as
/// many addresses as there are places, or from its own.
#[derive(Debug)]
pub(crate) struct UnauthenticatedPeers {
    state: Mutex<State>,
    /// A place is free.
    left: Condvar,
    /// The time limit for the first bytes.
    first: Duration,
    /// The time limit for the whole greeting.
    whole: Duration,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// The places that are not free, with those of connections that were ended and whose threads
    /// still run.
    taken: usize,
    /// The connections that were not ended and their addresses, the oldest first.
    open: BTreeMap<u64, (IpAddr, TcpStream)>,
}

/// The place of a connection among the unauthenticated peers.
#[derive(Debug)]
pub(crate) struct UnauthenticatedPeer {
    among: Arc<UnauthenticatedPeers>,
    id: u64,
}

impl UnauthenticatedPeers {
    pub(crate) fn new(first: Duration, whole: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), left: Condvar::new(), first, whole })
    }

    /// Takes a place for a connection that was accepted. If there is none, ends another connection
    /// and waits for its thread, which has nothing else to do.
    pub(crate) fn enter(self: &Arc<Self>, socket: &TcpStream) -> io::Result<UnauthenticatedPeer> {
        self.enter_from(socket.peer_addr()?.ip(), socket)
    }

    fn enter_from(self: &Arc<Self>, ip: IpAddr, socket: &TcpStream) -> io::Result<UnauthenticatedPeer> {
        let kept = (network(ip), socket.try_clone()?);
        let mut state = lock(&self.state);
        while state.taken >= GREETINGS {
            if let Some((_, ended)) = state.to_end().and_then(|id| state.open.remove(&id)) {
                _ = ended.shutdown(Shutdown::Both);
            }
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let id = state.next;
        state.next += 1;
        state.taken += 1;
        state.open.insert(id, kept);
        Ok(UnauthenticatedPeer { among: self.clone(), id })
    }

    /// Ends the connections of all.
    pub(crate) fn dismiss(&self) {
        for (_, socket) in std::mem::take(&mut lock(&self.state).open).into_values() {
            _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// The places that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        lock(&self.state).taken
    }
}

impl State {
    /// The oldest connection of the address that has the most. A flood from one address ends its
    /// own connections.
    fn to_end(&self) -> Option<u64> {
        let mut counts: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
        for (&id, &(ip, _)) in &self.open {
            counts.entry(ip).or_insert((0, Reverse(id))).0 += 1;
        }
        counts.into_values().max().map(|(_, Reverse(oldest))| oldest)
    }
}

/// The part of an address that one machine cannot choose: all of IPv4, and the first half of IPv6.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        other => other,
    }
}

impl UnauthenticatedPeer {
    /// Greets on the side that accepted the connection. Returns once the other side has proved that
    /// it knows the secret, and has been told so. Before it is told, `admit` may still refuse it;
    /// it gets a clone of the socket.
    pub(crate) fn authenticate(
        self,
        socket: &TcpStream,
        secret: &[u8],
        purpose: &[u8],
        admit: impl FnOnce(TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let started = Instant::now();
        let (first, whole) = (started + self.among.first, started + self.among.whole);
        let mut writer = socket;
        let here = nonce()?;
        writer.write_all(&[&MAGIC[..], &here].concat())?;
        // The first bytes alone, so that an unauthenticated peer is refused before it has sent them
        // all.
        expect_magic(read_array(socket, first)?)?;
        let rest: [u8; NONCE + CODE] = read_array(socket, whole)?;
        let (there, proof) = rest.split_at(NONCE);
        if code(secret, b"client", purpose, &here, there).verify_slice(proof).is_err() {
            writer.write_all(&[0; 1 + CODE])?;
            return Err(other_secret());
        }
        admit(self.leave()?)?;
        let proof = code(secret, b"server", purpose, &here, there).finalize().into_bytes();
        writer.write_all(&[&[1][..], &proof].concat())
    }

    /// Gives the place back. It is an error if the connection has been ended to make place for
    /// another one.
    fn leave(self) -> io::Result<TcpStream> {
        let kept = lock(&self.among.state).open.remove(&self.id).map(|(_, socket)| socket);
        kept.ok_or_else(|| io::Error::new(ErrorKind::ConnectionAborted, "another connection took its place"))
    }
}

impl Drop for UnauthenticatedPeer {
    fn drop(&mut self) {
        let mut state = lock(&self.among.state);
        state.open.remove(&self.id);
        state.taken -= 1;
        self.among.left.notify_all();
    }
}

/// Greets on the side that made a connection. Returns once the other side has proved that it knows
/// the secret.
pub(crate) fn greet(socket: &TcpStream, secret: &[u8], purpose: &[u8], deadline: Instant) -> io::Result<()> {
    expect_magic(read_array(socket, deadline)?)?;
    let there: [u8; NONCE] = read_array(socket, deadline)?;
    let here = nonce()?;
    let proof = code(secret, b"client", purpose, &there, &here).finalize().into_bytes();
    let mut writer = socket;
    writer.write_all(&[&MAGIC[..], &here, &proof].concat())?;
    let [said] = read_array(socket, deadline)?;
    let proof: [u8; CODE] = read_array(socket, deadline)?;
    let proved = code(secret, b"server", purpose, &there, &here).verify_slice(&proof);
    if said != 1 || proved.is_err() {
        return Err(other_secret());
    }
    Ok(())
}

/// The code of a role, before it is finished or compared.
fn code(secret: &[u8], role: &[u8; 6], purpose: &[u8], server: &[u8], client: &[u8]) -> Hmac<Sha256> {
    let mac = Hmac::new_from_slice(secret).expect("HMAC takes keys of any length");
    [&role[..], purpose, server, client].into_iter().fold(mac, |mac, part| mac.chain_update(part))
}

fn expect_magic(magic: [u8; MAGIC.len()]) -> io::Result<()> {
    if magic == MAGIC {
        return Ok(());
    }
    Err(io::Error::new(ErrorKind::InvalidData, "the other side does not speak this protocol"))
}

fn other_secret() -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, "the other side has another secret")
}

/// Bytes that nobody can guess, and that do not come again.
fn nonce() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|why| io::Error::other(format!("the system gives no random bytes: {why}")))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{IpAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use super::{GREETINGS, UnauthenticatedPeers};

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_network_is_an_address_or_the_first_half_of_one() {
        let network = |ip: &str| super::network(ip.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("a001:db8:1:2:3:4:5:6").to_string(), "a001:db8:1:2::");
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    /// A flood from one address, or from one network of IPv6, does not end the connections of
    /// others.
    #[test]
    fn a_flood_ends_its_own_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let unauthenticated_peers = UnauthenticatedPeers::new(HOUR, HOUR);
        // A connection that says nothing, and the thread that waits for it.
        let enter = |ip: IpAddr| {
            let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (here, _) = listener.accept().unwrap();
            let unauthenticated = unauthenticated_peers.enter_from(ip, &here).unwrap();
            let waits = std::thread::spawn(move || {
                let ended = (&here).read(&mut [0]);
                drop(unauthenticated);
                ended.is_ok()
            });
            (there, waits)
        };
        let is_open = |(there, _): &(TcpStream, _)| {
            there.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            there.peek(&mut [0]).is_err_and(|e| matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let ranks: Vec<_> = (1..5).map(|k| enter(ip(&format!("192.0.2.{k}")))).collect();
        let mut others: Vec<_> = (0..3 * GREETINGS).map(|_| enter(ip("198.51.100.7"))).collect();
        assert!(ranks.iter().all(is_open));
        others.extend((0..3 * GREETINGS).map(|k| enter(ip(&format!("2001:db8::{k:x}")))));
        assert!(ranks.iter().all(is_open));
        assert_eq!(unauthenticated_peers.taken(), GREETINGS);
        // Among addresses with equally many, the oldest goes.
        unauthenticated_peers.dismiss();
        for (there, waits) in ranks.into_iter().chain(others) {
            drop(there);
            assert!(waits.join().unwrap());
        }
        let mut all: Vec<_> = (0..GREETINGS).map(|k| enter(ip(&format!("192.0.2.{k}")))).collect();
        all.push(enter(ip("198.51.100.7")));
        assert_eq!(all.iter().filter(|one| is_open(one)).count(), GREETINGS);
        assert!(!is_open(&all[0]));
        drop(all);
    }
}
