//! The store: a small table of keys and values through which ranks find one another.
//!
//! A request is one message (`codec`): a byte for its kind, then its fields, with numbers in 8
//! bytes, the least first, and texts with their length. The answer is a byte for its kind and its
//! fields.

mod server;
mod table;

use std::fmt;
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use server::StoreServer;

use crate::codec::{self, Fields, GREETING, Parse};
use crate::error::StoreError;
use crate::greeting;
use crate::lock;
use table::Table;

/// The limits of a store.
#[derive(Clone, Copy, Debug, thalweg::__Setters)]
#[non_exhaustive]
pub struct StoreLimits {
    /// Bytes of a key.
    pub key: usize,
    /// Bytes of a value. A message has at most 2 MiB.
    pub value: usize,
    /// Keys, and meetings under way.
    pub entries: usize,
    /// Bytes of all keys and values.
    pub bytes: usize,
    /// Connections at once, of clients that have proved that they know the secret. Beside them
    /// there are at most 64 others.
    pub connections: usize,
    /// Ranks that can meet.
    pub ranks: usize,
}

impl Default for StoreLimits {
    /// 256 bytes for a key, 64 KiB for a value, 65536 entries of 64 MiB in all, 4096 connections,
    /// 2048 ranks.
    fn default() -> Self {
        Self { key: 256, value: 64 << 10, entries: 1 << 16, bytes: 64 << 20, connections: 4096, ranks: 2048 }
    }
}

#[derive(Debug, PartialEq)]
enum Request {
    Set { key: String, value: Vec<u8> },
    SetIfAbsent { key: String, value: Vec<u8> },
    Get { key: String },
    Add { key: String, more: i64 },
    Delete { key: String },
    Wait { key: String, timeout: Duration },
    AllGather { name: String, rank: usize, size: usize, part: Vec<u8>, timeout: Duration },
}

/// The longest wait of one request.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

impl Request {
    fn encode(&self) -> Vec<u8> {
        let start = |kind: u8, key: &str| Fields::default().byte(kind).bytes(key.as_bytes());
        let millis = |timeout: &Duration| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Set { key, value } => start(0, key).bytes(value),
            Self::SetIfAbsent { key, value } => start(1, key).bytes(value),
            Self::Get { key } => start(2, key),
            Self::Add { key, more } => start(3, key).number(more.cast_unsigned()),
            Self::Delete { key } => start(4, key),
            Self::Wait { key, timeout } => start(5, key).number(millis(timeout)),
            Self::AllGather { name, rank, size, part, timeout } => {
                start(6, name).number(*rank as u64).number(*size as u64).bytes(part).number(millis(timeout))
            }
        }
        .0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut p = Parse(bytes);
        let (kind, key) = (p.byte()?, p.text()?);
        let timeout = |p: &mut Parse<'_>| p.number().map(|ms| Duration::from_millis(ms).min(LONGEST_WAIT));
        let request = match kind {
            0 => Self::Set { key, value: p.bytes()?.to_vec() },
            1 => Self::SetIfAbsent { key, value: p.bytes()?.to_vec() },
            2 => Self::Get { key },
            3 => Self::Add { key, more: p.number()?.cast_signed() },
            4 => Self::Delete { key },
            5 => Self::Wait { key, timeout: timeout(&mut p)? },
            6 => {
                let (rank, size) = (p.size()?, p.size()?);
                Self::AllGather { name: key, rank, size, part: p.bytes()?.to_vec(), timeout: timeout(&mut p)? }
            }
            _ => return None,
        };
        p.0.is_empty().then_some(request)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Value(Option<Vec<u8>>),
    Number(i64),
    All(Vec<Vec<u8>>),
    Missing(Vec<usize>),
}

impl Answer {
    fn encode(answer: Result<Self, StoreError>) -> Vec<u8> {
        let start = |kind| Fields::default().byte(kind);
        match answer {
            Ok(Self::Value(None)) => start(0),
            Ok(Self::Value(Some(value))) => start(1).bytes(&value),
            Ok(Self::Number(number)) => start(2).number(number.cast_unsigned()),
            Ok(Self::All(all)) => all.iter().fold(start(3).number(all.len() as u64), |fields, part| fields.bytes(part)),
            Ok(Self::Missing(missing)) => {
                missing.iter().fold(start(4).number(missing.len() as u64), |fields, &rank| fields.number(rank as u64))
            }
            Err(StoreError::Refused { reason }) => start(5).bytes(reason.as_bytes()),
            Err(other) => start(6).bytes(other.to_string().as_bytes()),
        }
        .0
    }

    fn decode(bytes: &[u8]) -> Option<Result<Self, StoreError>> {
        let mut p = Parse(bytes);
        let kind = p.byte()?;
        // Each entry of a list takes at least 8 bytes.
        let count = |p: &mut Parse<'_>| p.size().filter(|&n| n <= p.0.len() / 8);
        let answer = match kind {
            0 => Ok(Self::Value(None)),
            1 => Ok(Self::Value(Some(p.bytes()?.to_vec()))),
            2 => Ok(Self::Number(p.number()?.cast_signed())),
            3 => {
                let n = count(&mut p)?;
                Ok(Self::All((0..n).map(|_| p.bytes().map(<[u8]>::to_vec)).collect::<Option<_>>()?))
            }
            4 => {
                let n = count(&mut p)?;
                Ok(Self::Missing((0..n).map(|_| p.size()).collect::<Option<_>>()?))
            }
            5 => Err(StoreError::Refused { reason: p.text()? }),
            6 => Err(StoreError::Gone { reason: p.text()? }),
            _ => return None,
        };
        p.0.is_empty().then_some(answer)
    }
}

/// A store, of this process or behind a connection. Clones share it; one request of a connection is
/// under way at a time, so a thread that waits for long takes a [`reconnect`](Self::reconnect)
/// one.
///
/// ```
/// use std::time::Duration;
/// use thalweg_collective::{StoreLimits, Store, StoreServer};
///
/// let server = StoreServer::bind("127.0.0.1:0", b"secret", StoreLimits::default())?;
/// let store = Store::connect(server.address(), b"secret", Duration::from_secs(10))?;
/// store.set("color", b"blue")?;
/// assert_eq!(store.get("color")?, Some(b"blue".to_vec()));
/// assert_eq!(store.add("count", 2)? + store.add("count", 3)?, 2 + 5);
///
/// // Both ranks get what both bring.
/// let other = store.reconnect()?;
/// let thread = std::thread::spawn(move || other.all_gather("start", 1, 2, b"one", Duration::from_secs(10)));
/// assert_eq!(store.all_gather("start", 0, 2, b"zero", Duration::from_secs(10))?, [&b"zero"[..], b"one"]);
/// thread.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Store(Arc<Kind>);

enum Kind {
    Local(Table),
    Remote(Remote),
}

struct Remote {
    address: std::net::SocketAddr,
    secret: Vec<u8>,
    /// `None` after an error: then requests and answers may be out of step.
    socket: Mutex<Option<TcpStream>>,
    local: std::net::IpAddr,
}

/// The time that an answer may take beyond the time that the request itself waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pause of a client before it calls again.
const PAUSE: Duration = Duration::from_millis(20);

impl Store {
    /// Makes a store for threads of this process.
    pub fn local() -> Self {
        Self(Arc::new(Kind::Local(Table::new(StoreLimits::default()))))
    }

    /// Connects to a [`StoreServer`], which may not listen yet: tries again until the timeout.
    ///
    /// # Errors
    /// Nobody answers in time, or the store has another secret. Or the secret is empty, and the
    /// address is not a loopback address.
    pub fn connect(address: impl ToSocketAddrs, secret: &[u8], timeout: Duration) -> Result<Self, StoreError> {
        let deadline = Instant::now() + timeout.min(LONGEST_WAIT);
        loop {
            let tried = address.to_socket_addrs().map(|all| Self::first_of(all, secret));
            match tried {
                Ok(Some(Ok(store))) => return Ok(store),
                Ok(Some(Err(why @ (StoreError::Secret | StoreError::NoSecret { .. })))) => return Err(why),
                failed if Instant::now() >= deadline => {
                    let reason = match failed {
                        Ok(Some(Err(why))) => why.to_string(),
                        Ok(_) => "the name has no address".to_owned(),
                        Err(why) => why.to_string(),
                    };
                    return Err(StoreError::Gone { reason });
                }
                _ => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Connects to the first of the addresses that answers. `None` if there are none.
    pub(crate) fn first_of(
        all: impl Iterator<Item = std::net::SocketAddr>,
        secret: &[u8],
    ) -> Option<Result<Self, StoreError>> {
        let mut last = None;
        for address in all {
            match (Self::try_connect(address, secret), &last) {
                (Ok(store), _) => return Some(Ok(store)),
                // The addresses that may be tried count, as long as there are some.
                (Err(StoreError::NoSecret { .. }), Some(_)) => {}
                (failed, _) => last = Some(failed),
            }
        }
        last
    }

    /// Connects once.
    fn try_connect(address: std::net::SocketAddr, secret: &[u8]) -> Result<Self, StoreError> {
        greeting::check_secret(address.ip(), secret)?;
        let connect = || {
            let socket = TcpStream::connect_timeout(&address, PATIENCE)?;
            codec::prepare(&socket)?;
            greeting::greet(&socket, secret, b"store", Instant::now() + GREETING)?;
            let local = socket.local_addr()?.ip();
            Ok((socket, local))
        };
        let (socket, local) = connect().map_err(|why: std::io::Error| match why.kind() {
            ErrorKind::PermissionDenied => StoreError::Secret,
            _ => StoreError::Gone { reason: format!("{address}: {why}") },
        })?;
        let socket = Mutex::new(Some(socket));
        Ok(Self(Arc::new(Kind::Remote(Remote { address, secret: secret.to_vec(), socket, local }))))
    }

    /// The same store over a connection of its own.
    ///
    /// # Errors
    /// The store is gone.
    pub fn reconnect(&self) -> Result<Self, StoreError> {
        match &*self.0 {
            Kind::Local(_) => Ok(self.clone()),
            Kind::Remote(remote) => {
                // A store with many callers may end one that greets, so a second and a third call
                // are made.
                let call = || Self::try_connect(remote.address, &remote.secret);
                let again = |failed| match failed {
                    StoreError::Gone { .. } => {
                        std::thread::sleep(PAUSE);
                        call()
                    }
                    other => Err(other),
                };
                call().or_else(again).or_else(again)
            }
        }
    }

    /// The address of this machine that the store sees.
    pub(crate) fn local_ip(&self) -> Option<std::net::IpAddr> {
        match &*self.0 {
            Kind::Local(_) => None,
            Kind::Remote(remote) => Some(remote.local),
        }
    }

    /// Ends the connection, also under a request that waits.
    pub(crate) fn shutter(&self) -> Option<TcpStream> {
        match &*self.0 {
            Kind::Local(_) => None,
            Kind::Remote(remote) => lock(&remote.socket).as_ref().and_then(|socket| socket.try_clone().ok()),
        }
    }

    fn ask(&self, request: &Request, waits: Duration) -> Result<Answer, StoreError> {
        let remote = match &*self.0 {
            Kind::Local(table) => return answer(table, request, || false),
            Kind::Remote(remote) => remote,
        };
        let message = request.encode();
        if message.len() > codec::LONGEST {
            return Err(StoreError::Refused { reason: format!("a request of {} bytes is too long", message.len()) });
        }
        let mut socket = lock(&remote.socket);
        let gone = |reason: String| StoreError::Gone { reason };
        let open = socket.as_ref().ok_or_else(|| gone("an earlier request failed".to_owned()))?;
        let deadline = Instant::now() + waits.min(LONGEST_WAIT) + PATIENCE;
        let answered = codec::write_message(open, &message).and_then(|()| codec::read_message(open, deadline));
        let answer = match answered.map(|message| Answer::decode(&message)) {
            Ok(Some(answer)) => return answer,
            Ok(None) => gone("its answer has no known form".to_owned()),
            Err(why) => gone(why.to_string()),
        };
        *socket = None;
        Err(answer)
    }

    /// Sets a value.
    ///
    /// # Errors
    /// The store is gone, or its [`StoreLimits`] do not allow the entry.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(&Request::Set { key: key.to_owned(), value: value.to_vec() }, Duration::ZERO).map(drop)
    }

    /// Sets a value if the key has none. Returns the value that the key has then: all callers get
    /// that of the first.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    pub fn set_if_absent(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, StoreError> {
        let request = Request::SetIfAbsent { key: key.to_owned(), value: value.to_vec() };
        self.value(&request, Duration::ZERO)?.ok_or_else(odd)
    }

    /// Returns the value of a key, if it has one.
    ///
    /// # Errors
    /// The store is gone.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.value(&Request::Get { key: key.to_owned() }, Duration::ZERO)
    }

    /// Waits until the key has a value, and returns it.
    ///
    /// # Errors
    /// There is none in time, or the store is gone.
    pub fn wait(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let late = || StoreError::Late { key: key.to_owned(), waited: timeout };
        self.value(&Request::Wait { key: key.to_owned(), timeout }, timeout)?.ok_or_else(late)
    }

    /// Adds `more` to the number of a key, which is 0 without a value, and returns the sum. Each
    /// call of several ranks gets another sum, because the store does one after another.
    ///
    /// # Errors
    /// The value of the key is not a number, or the errors of [`set`](Self::set).
    pub fn add(&self, key: &str, more: i64) -> Result<i64, StoreError> {
        match self.ask(&Request::Add { key: key.to_owned(), more }, Duration::ZERO)? {
            Answer::Number(sum) => Ok(sum),
            _ => Err(odd()),
        }
    }

    /// Removes a key. Returns whether it had a value.
    ///
    /// # Errors
    /// The store is gone.
    pub fn delete(&self, key: &str) -> Result<bool, StoreError> {
        match self.ask(&Request::Delete { key: key.to_owned() }, Duration::ZERO)? {
            Answer::Number(found) => Ok(found != 0),
            _ => Err(odd()),
        }
    }

    /// Waits until every rank from 0 to `size` has called this with the same name. All of them get
    /// what all brought, in the order of the ranks. The name is free for another call then.
    ///
    /// # Errors
    /// Ranks do not come in time, `size` differs, or the errors of [`set`](Self::set).
    pub fn all_gather(
        &self,
        name: &str,
        rank: usize,
        size: usize,
        part: &[u8],
        timeout: Duration,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let request = Request::AllGather { name: name.to_owned(), rank, size, part: part.to_vec(), timeout };
        match self.ask(&request, timeout)? {
            Answer::All(all) => Ok(all),
            Answer::Missing(missing) => Err(StoreError::Missing { name: name.to_owned(), missing, waited: timeout }),
            _ => Err(odd()),
        }
    }

    /// Waits until every rank has called this with the same name.
    ///
    /// # Errors
    /// The errors of [`all_gather`](Self::all_gather).
    pub fn barrier(&self, name: &str, rank: usize, size: usize, timeout: Duration) -> Result<(), StoreError> {
        self.all_gather(name, rank, size, &[], timeout).map(drop)
    }

    fn value(&self, request: &Request, waits: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        match self.ask(request, waits)? {
            Answer::Value(value) => Ok(value),
            _ => Err(odd()),
        }
    }
}

/// Carries out a request. A wait asks from time to time whether it is still wanted.
fn answer(table: &Table, request: &Request, interrupted: impl FnMut() -> bool) -> Result<Answer, StoreError> {
    let after = |timeout: &Duration| Instant::now() + (*timeout).min(LONGEST_WAIT);
    Ok(match request {
        Request::Set { key, value } => table.set(key, value.clone()).map(|()| Answer::Value(None))?,
        Request::SetIfAbsent { key, value } => Answer::Value(Some(table.set_if_absent(key, value.clone())?)),
        Request::Get { key } => Answer::Value(table.get(key)?),
        Request::Add { key, more } => Answer::Number(table.add(key, *more)?),
        Request::Delete { key } => Answer::Number(table.delete(key)?.into()),
        Request::Wait { key, timeout } => Answer::Value(table.wait(key, after(timeout), interrupted)?),
        Request::AllGather { name, rank, size, part, timeout } => {
            table.all_gather(name, (*rank, *size), part.clone(), after(timeout), interrupted)?
        }
    })
}

fn odd() -> StoreError {
    StoreError::Gone { reason: "its answer is that of another request".to_owned() }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Local(_) => f.write_str("Store(of this process)"),
            Kind::Remote(remote) => write!(f, "Store({})", remote.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Answer, Kind, Request, Store};
    use crate::error::StoreError;
    use crate::greeting;

    #[test]
    fn messages_travel_and_what_is_cut_off_is_none() {
        let (key, ms) = ("a key".to_owned(), Duration::from_millis(1500));
        let requests = [
            Request::Set { key: key.clone(), value: vec![1, 2, 3] },
            Request::SetIfAbsent { key: key.clone(), value: vec![] },
            Request::Get { key: key.clone() },
            Request::Add { key: key.clone(), more: -5 },
            Request::Delete { key: key.clone() },
            Request::Wait { key: key.clone(), timeout: ms },
            Request::AllGather { name: key, rank: 1, size: 3, part: vec![7; 5], timeout: ms },
        ];
        for request in requests {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes).as_ref(), Some(&request));
            for n in 0..bytes.len() {
                assert_eq!(Request::decode(&bytes[..n]), None, "{request:?} cut to {n} bytes");
            }
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None, "{request:?} and more");
        }
        let answers = [
            Ok(Answer::Value(None)),
            Ok(Answer::Value(Some(vec![9; 4]))),
            Ok(Answer::Number(-1)),
            Ok(Answer::All(vec![vec![1], vec![], vec![2, 3]])),
            Ok(Answer::Missing(vec![2, 5])),
            Err(StoreError::Refused { reason: "why".into() }),
        ];
        for answer in answers {
            let again = answer.clone();
            let bytes = Answer::encode(answer);
            assert_eq!(Answer::decode(&bytes), Some(again));
            for n in 0..bytes.len() {
                assert_eq!(Answer::decode(&bytes[..n]), None);
            }
        }
        // A list of 2^60 entries in a message of 17 bytes.
        let mut huge = vec![3];
        huge.extend_from_slice(&(1u64 << 60).to_le_bytes());
        huge.extend_from_slice(&[0; 8]);
        assert_eq!(Answer::decode(&huge), None);
    }

    /// A store with many callers may end one that greets.
    #[test]
    fn a_call_that_is_cut_off_is_made_again() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let long = Duration::from_secs(60);
        let server = std::thread::spawn(move || {
            let unauthenticated_peers = greeting::UnauthenticatedPeers::new(long, long);
            let mut open = Vec::new();
            for cut_off in [false, true, true, false, true, true, true] {
                let (socket, _) = listener.accept().unwrap();
                if !cut_off {
                    let unauthenticated = unauthenticated_peers.enter(&socket).unwrap();
                    unauthenticated.authenticate(&socket, b"s", b"store", |_| Ok(())).unwrap();
                    open.push(socket);
                }
            }
        });
        let store = Store::connect(address, b"s", long).unwrap();
        assert!(store.reconnect().is_ok());
        assert!(matches!(store.reconnect(), Err(StoreError::Gone { .. })), "not for ever");
        server.join().unwrap();
    }

    /// Whether a caller that waits is still there may take long to find out. The others do not wait
    /// for it.
    #[test]
    fn callers_that_wait_do_not_hold_up_the_table() {
        let store = Store::local();
        let Kind::Local(table) = &*store.0 else { unreachable!("it is local") };
        std::thread::scope(|threads| {
            for _ in 0..8 {
                let slow = || {
                    std::thread::sleep(Duration::from_millis(200));
                    false
                };
                threads.spawn(move || table.wait("end", Instant::now() + Duration::from_secs(20), slow).unwrap());
            }
            let started = Instant::now();
            let mut longest = Duration::ZERO;
            while started.elapsed() < Duration::from_millis(1600) {
                let asked = Instant::now();
                assert_eq!(table.get("a").unwrap(), None); // a change would wake those that wait
                longest = longest.max(asked.elapsed());
                std::thread::sleep(Duration::from_millis(1));
            }
            table.set("end", vec![]).unwrap();
            assert!(longest < Duration::from_millis(180), "a request took {longest:?}");
        });
    }

    /// Deleted and replaced values and finished meetings leave nothing.
    #[test]
    fn a_table_is_empty_again() {
        let store = Store::local();
        let Kind::Local(table) = &*store.0 else { unreachable!("it is local") };
        store.set("a", &[0; 100]).unwrap();
        store.set("a", &[0; 10]).unwrap();
        assert_eq!(table.holds(), (1, 11));
        assert!(store.delete("a").unwrap() && !store.delete("a").unwrap());
        std::thread::scope(|threads| {
            for rank in 0..3 {
                let store = &store;
                threads.spawn(move || {
                    for round in 0..50u8 {
                        let all =
                            store.all_gather("m", rank, 3, &[round, rank as u8], Duration::from_secs(20)).unwrap();
                        assert_eq!(all, [[round, 0], [round, 1], [round, 2]]);
                    }
                });
            }
        });
        assert_eq!(table.holds(), (0, 0));
        // One that is under way has its size.
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| store.all_gather("m", 0, 2, b"0", Duration::from_secs(20)).unwrap());
            while table.holds().0 == 0 {
                std::thread::yield_now();
            }
            assert!(matches!(store.all_gather("m", 1, 3, b"", Duration::ZERO), Err(StoreError::Refused { .. })));
            assert_eq!(store.all_gather("m", 1, 2, b"1", Duration::ZERO).unwrap(), waits.join().unwrap());
        });
        // Who gives up is not there any more for those who come later.
        assert!(store.all_gather("m", 1, 2, &[1; 9], Duration::ZERO).is_err());
        assert_eq!(table.holds(), (0, 0));
        let late = store.all_gather("m", 0, 2, b"", Duration::ZERO).unwrap_err();
        assert!(matches!(late, StoreError::Missing { missing, .. } if missing == [1]));
    }
}
