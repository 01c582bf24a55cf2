//! The greeting of connections, with raw clients and servers that break it. `docs/distributed.md`
//! has the protocol, and the codes are made from that text here. Each attack goes to the store and
//! to a connection between ranks.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thalweg_collective::{MasterAddress, RankEnv, Store, StoreError, StoreLimits, StoreServer, World, WorldOptions};

const LONG: Duration = Duration::from_secs(60);
const SECRET: &[u8] = b"the secret";

type Nonce = [u8; 16];
type Code = [u8; 32];

/// The code of the protocol.
fn code(secret: &[u8], role: &str, purpose: &str, server: &Nonce, client: &Nonce) -> Code {
    let text = [role.as_bytes(), purpose.as_bytes(), server, client].concat();
    Hmac::<Sha256>::new_from_slice(secret).unwrap().chain_update(text).finalize().into_bytes().into()
}

/// What a client with this code says.
fn greeting(nonce: &Nonce, code: &Code) -> Vec<u8> {
    [b"thalweg1", &nonce[..], code].concat()
}

/// A request to set a key to `1`.
fn set(key: &str) -> Vec<u8> {
    let mut request = vec![0];
    for field in [key.as_bytes(), b"1"] {
        request.extend((field.len() as u64).to_le_bytes());
        request.extend(field);
    }
    [&(request.len() as u32).to_le_bytes(), &request[..]].concat()
}

/// Ways to make 32 wrong bytes of the right ones: those that agree only at one end, and those that
/// differ in one byte.
fn nearly(right: &Code) -> Vec<Code> {
    let mut all: Vec<Code> = (0..32).map(|at| std::array::from_fn(|k| right[k] ^ u8::from(k == at))).collect();
    for n in [1, 16, 31] {
        all.push(std::array::from_fn(|k| if k < n { right[k] } else { !right[k] }));
        all.push(std::array::from_fn(|k| if k >= 32 - n { right[k] } else { !right[k] }));
    }
    all
}

/// Who accepts connections: a store, or rank 0 of two that waits for the other one.
struct Door {
    server: StoreServer,
    address: SocketAddr,
    purpose: &'static str,
    /// What a client says after its greeting: it sets a key, or is rank 1.
    then: Vec<u8>,
    rank: Option<JoinHandle<()>>,
}

const CLIENT: Nonce = *b"0123456789abcdef";

impl Door {
    fn both() -> [Self; 2] {
        let server = || StoreServer::bind("127.0.0.1:0", SECRET, StoreLimits::default()).unwrap();
        let store = server();
        let store = Self { address: store.address(), server: store, purpose: "store", then: set("key"), rank: None };
        let server = server();
        let place = RankEnv::with_store(0, 2, server.address().to_string(), SECRET);
        let options = WorldOptions::default().with_connect_timeout(LONG);
        let rank = thread::spawn(move || drop(World::connect(&place, options).unwrap()));
        let meeting = Store::connect(server.address(), SECRET, LONG).unwrap();
        let all = meeting.all_gather("thalweg/addresses", 1, 2, b"127.0.0.1:1", LONG).unwrap();
        let address = std::str::from_utf8(&all[0]).unwrap().parse().unwrap();
        let then = 1u64.to_le_bytes().to_vec();
        [store, Self { server, address, purpose: "peer", then, rank: Some(rank) }]
    }

    fn right(&self, server: &Nonce) -> Code {
        code(SECRET, "client", self.purpose, server, &CLIENT)
    }

    /// Connects, and returns what the server says first.
    fn called(&self) -> (TcpStream, Nonce) {
        let mut socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let (mut magic, mut nonce) = ([0; 8], [0; 16]);
        socket.read_exact(&mut magic).unwrap();
        socket.read_exact(&mut nonce).unwrap();
        assert_eq!(&magic, b"thalweg1");
        (socket, nonce)
    }

    /// Says this, and what a client with the right code says then, and does not look at the answer.
    /// Fails unless the connection is cut off, without a proof.
    fn refuses(&self, mut socket: TcpStream, said: &[u8], why: &str) {
        let door = self.purpose;
        _ = socket.write_all(&[said, &self.then].concat());
        let mut answer = Vec::<u8>::new();
        loop {
            let mut bytes = [0; 64];
            match socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => answer.extend_from_slice(&bytes[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted) => break,
                Err(e) => panic!("{door}: {why} is not cut off: {e}"),
            }
            assert!(answer.len() <= 33 && answer.iter().all(|&b| b == 0), "{door}: {why} is let in: {answer:?}");
        }
    }

    /// Nothing has come of what was refused, and who knows the secret is let in.
    fn end_soundly(mut self) {
        let store = Store::connect(self.server.address(), SECRET, LONG).unwrap();
        assert_eq!(
            store.get("key").unwrap(),
            None,
            "{}: a request of an unauthenticated peer was carried out",
            self.purpose
        );
        assert!(
            self.rank.as_ref().is_none_or(|rank| !rank.is_finished()),
            "an unauthenticated peer was taken for a rank"
        );
        let (mut socket, nonce) = self.called();
        let said = greeting(&CLIENT, &self.right(&nonce));
        socket.write_all(&[&said[..], &self.then].concat()).unwrap();
        let mut answer = [0; 33];
        socket.read_exact(&mut answer).unwrap();
        let proof = code(SECRET, "server", self.purpose, &nonce, &CLIENT);
        assert_eq!((answer[0], &answer[1..]), (1, &proof[..]));
        match self.rank.take() {
            // What this client sends does what it says, so it would have been seen above.
            None => assert_eq!(store.wait("key", LONG).unwrap(), b"1"),
            Some(rank) => rank.join().unwrap(),
        }
    }
}

/// The codes of these tests are those of Python's `hmac`.
#[test]
fn the_code_is_that_of_the_protocol() {
    let code = code(SECRET, "client", "peer", &SERVER, &CLIENT);
    let hex: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "b4e30b33d74d407318343985e4f5048de1eb4c00f3ebe13fb06bba200a9d8de7");
}

#[test]
fn a_client_with_a_wrong_code_is_cut_off() {
    for door in Door::both() {
        for secret in [&b"another secret"[..], b"", b"the secre", b"the secret "] {
            let (socket, server) = door.called();
            let wrong = code(secret, "client", door.purpose, &server, &CLIENT);
            door.refuses(socket, &greeting(&CLIENT, &wrong), "a code of another secret");
        }
        for wrong in [[0; 32], [0xff; 32]] {
            let (socket, _) = door.called();
            door.refuses(socket, &greeting(&CLIENT, &wrong), "a guess");
        }
        // The right code, and another protocol.
        let (socket, server) = door.called();
        let mut said = greeting(&CLIENT, &door.right(&server));
        said[7] = b'2';
        door.refuses(socket, &said, "another protocol");
        // A code for another nonce than the one that it says.
        let (socket, server) = door.called();
        door.refuses(socket, &greeting(&[7; 16], &door.right(&server)), "the code of another nonce");
        door.end_soundly();
    }
}

#[test]
fn a_code_that_is_nearly_right_is_cut_off() {
    for door in Door::both() {
        for at in 0..nearly(&[0; 32]).len() {
            let (socket, server) = door.called();
            let wrong = nearly(&door.right(&server))[at];
            door.refuses(socket, &greeting(&CLIENT, &wrong), &format!("wrong code {at}"));
        }
        door.end_soundly();
    }
}

#[test]
fn a_code_for_another_purpose_is_cut_off() {
    for door in Door::both() {
        for purpose in [if door.purpose == "store" { "peer" } else { "store" }, ""] {
            let (socket, server) = door.called();
            let wrong = code(SECRET, "client", purpose, &server, &CLIENT);
            door.refuses(socket, &greeting(&CLIENT, &wrong), &format!("a code for the purpose `{purpose}`"));
        }
        door.end_soundly();
    }
}

#[test]
fn a_recorded_client_is_cut_off() {
    for door in Door::both() {
        // One connection of a client that may come in. The rank waits on, because this client has
        // another number.
        let (mut socket, server) = door.called();
        let recorded = greeting(&CLIENT, &door.right(&server));
        socket.write_all(&recorded).unwrap();
        let mut answer = [0; 33];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer[0], 1);
        if door.rank.is_some() {
            socket.write_all(&9u64.to_le_bytes()).unwrap();
        }

        let mut seen = HashSet::from([server]);
        for _ in 0..20 {
            let (socket, server) = door.called();
            assert!(seen.insert(server), "{}: a nonce came again", door.purpose);
            door.refuses(socket, &recorded, "a recorded greeting");
        }
        // Also with the server's own words in place of the client's.
        let (socket, server) = door.called();
        door.refuses(socket, &greeting(&server, &answer[1..].try_into().unwrap()), "a recorded answer");
        door.end_soundly();
    }
}

/// A server that greets with a nonce, takes the greeting of one client, and gives an answer.
/// Returns the nonce of the client, and what came after its greeting.
fn impostor(
    listener: TcpListener,
    server: Nonce,
    answer: impl FnOnce(&Nonce, &Code) -> Vec<u8> + Send + 'static,
) -> JoinHandle<(Nonce, Vec<u8>)> {
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        socket.write_all(&[&b"thalweg1"[..], &server].concat()).unwrap();
        let (mut magic, mut client, mut code) = ([0; 8], [0; 16], [0; 32]);
        for part in [&mut magic[..], &mut client, &mut code] {
            socket.read_exact(part).unwrap();
        }
        assert_eq!(&magic, b"thalweg1");
        _ = socket.write_all(&answer(&client, &code));
        let mut more = Vec::new();
        _ = socket.read_to_end(&mut more); // a reset is an end, too
        (client, more)
    })
}

/// Who makes connections: a store's client, or rank 1 of two that calls the other one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Caller {
    Store,
    Rank,
}

const SERVER: Nonce = *b"fedcba9876543210";

impl Caller {
    fn purpose(self) -> &'static str {
        if self == Self::Store { "store" } else { "peer" }
    }

    /// Has it call a server with this answer. Returns its error, if it has one, and the nonce of
    /// its greeting.
    fn calls(self, answer: impl FnOnce(&Nonce, &Code) -> Vec<u8> + Send + 'static) -> (Option<String>, Nonce) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let impostor = impostor(listener, SERVER, answer);
        let error = match self {
            Self::Store => Store::connect(address, SECRET, LONG).map(drop).map_err(|why| why.to_string()),
            Self::Rank => {
                let server = StoreServer::bind("127.0.0.1:0", SECRET, StoreLimits::default()).unwrap();
                let meeting = Store::connect(server.address(), SECRET, LONG).unwrap();
                thread::spawn(move || {
                    meeting.all_gather("thalweg/addresses", 0, 2, address.to_string().as_bytes(), LONG).unwrap()
                });
                let place = RankEnv::with_store(1, 2, server.address().to_string(), SECRET);
                let joined = World::connect(&place, WorldOptions::default().with_connect_timeout(LONG));
                joined.map(drop).map_err(|why| why.to_string())
            }
        };
        let (nonce, more) = impostor.join().unwrap();
        assert!(error.is_ok() || more.is_empty(), "it went on after the greeting: {more:?}");
        (error.err(), nonce)
    }

    /// Fails unless it refuses this answer.
    fn refuses(self, why: &str, answer: impl FnOnce(&Nonce, &Code) -> Vec<u8> + Send + 'static) {
        let (error, _) = self.calls(answer);
        let error = error.unwrap_or_else(|| panic!("{self:?}: {why} is taken for a proof"));
        assert!(error.ends_with("has another secret"), "{self:?}: {why}: {error}");
    }
}

fn answer(proof: &Code) -> Vec<u8> {
    [&[1], &proof[..]].concat()
}

#[test]
fn a_server_that_proves_nothing_is_refused() {
    for caller in [Caller::Store, Caller::Rank] {
        let purpose = caller.purpose();
        caller.refuses("32 zeros", |_, _| answer(&[0; 32]));
        caller.refuses("32 bytes", |_, _| answer(&[0x5a; 32]));
        caller.refuses("the code of another secret", move |client, _| {
            answer(&code(b"another secret", "server", purpose, &SERVER, client))
        });
        caller.refuses("the code of another nonce", move |_, _| {
            answer(&code(SECRET, "server", purpose, &SERVER, &[0; 16]))
        });
        caller.refuses("a code without the 1", move |client, _| {
            [&[0], &code(SECRET, "server", purpose, &SERVER, client)[..]].concat()
        });
        // The same server with a proof is taken for one.
        let (error, _) = caller.calls(move |client, _| answer(&code(SECRET, "server", purpose, &SERVER, client)));
        assert_eq!(error, None);
    }
}

#[test]
fn a_server_that_sends_the_own_code_back_is_refused() {
    for caller in [Caller::Store, Caller::Rank] {
        caller.refuses("its own code", |_, code| answer(code));
    }
}

#[test]
fn a_server_for_another_purpose_is_refused() {
    for (caller, other) in [(Caller::Store, "peer"), (Caller::Rank, "store")] {
        caller.refuses("a code for another purpose", move |client, _| {
            answer(&code(SECRET, "server", other, &SERVER, client))
        });
    }
}

#[test]
fn a_proof_that_is_nearly_right_is_refused() {
    let all = nearly(&[0; 32]).len();
    let tries = (0..all).map(|at| (Caller::Store, at)).chain((all - 6..all).map(|at| (Caller::Rank, at)));
    for (caller, at) in tries {
        caller.refuses(&format!("wrong proof {at}"), move |client, _| {
            answer(&nearly(&code(SECRET, "server", caller.purpose(), &SERVER, client))[at])
        });
    }
}

#[test]
fn a_recorded_server_is_refused() {
    for caller in [Caller::Store, Caller::Rank] {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let record = recorded.clone();
        let (error, first) = caller.calls(move |client, _| {
            let said = answer(&code(SECRET, "server", caller.purpose(), &SERVER, client));
            record.lock().unwrap().clone_from(&said);
            said
        });
        assert_eq!(error, None);
        // It says the same again, with the same nonce.
        let mut seen = HashSet::from([first]);
        for _ in 0..3 {
            let said = recorded.lock().unwrap().clone();
            let (error, nonce) = caller.calls(move |_, _| said);
            assert!(error.is_some_and(|why| why.ends_with("has another secret")), "{caller:?}: a recorded answer");
            assert!(seen.insert(nonce), "{caller:?}: a nonce came again");
        }
    }
}

/// Beyond loopback addresses there has to be a secret, on each side.
#[test]
fn an_empty_secret_is_for_loopback_addresses_only() {
    let refused = |ip: &str| {
        format!(
            "the secret is empty, which only loopback addresses may have, and {ip} is none: set THALWEG_SECRET to the same \
             random text for all ranks"
        )
    };
    let bind = |address: &str, secret: &[u8]| StoreServer::bind(address, secret, StoreLimits::default());
    let error = bind("0.0.0.0:0", b"").unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::InvalidInput, refused("0.0.0.0")));
    bind("0.0.0.0:0", b"s").unwrap();
    let server = bind("127.0.0.1:0", b"").unwrap();
    Store::connect(server.address(), b"", LONG).unwrap().set("a", b"1").unwrap();

    // This address belongs to nobody (RFC 5737), and nobody is asked.
    let started = Instant::now();
    let error = Store::connect("192.0.2.1:9", b"", LONG).unwrap_err();
    assert_eq!(error, StoreError::NoSecret { ip: [192, 0, 2, 1].into() });
    assert_eq!(error.to_string(), refused("192.0.2.1"));
    let join = |rank, host: &str| {
        let mut place = RankEnv::with_store(rank, 2, "", b"");
        (place.store, place.master) = (None, MasterAddress { host: host.to_owned(), port: 40_000 });
        World::connect(&place, WorldOptions::default().with_connect_timeout(LONG)).map(drop).unwrap_err().to_string()
    };
    assert_eq!(join(0, "0.0.0.0"), format!("rank 0 could not join the other ranks: {}", refused("0.0.0.0")));
    assert_eq!(join(1, "192.0.2.1"), format!("rank 1 could not join the other ranks: {}", refused("192.0.2.1")));
    // A rank with an address of another machine, and a store of this one.
    let (a, b) = (Store::connect(server.address(), b"", LONG).unwrap(), server.address().to_string());
    thread::spawn(move || a.all_gather("thalweg/addresses", 0, 2, b"192.0.2.1:9", LONG).unwrap());
    let place = RankEnv::with_store(1, 2, b, b"");
    let joined = World::connect(&place, WorldOptions::default().with_connect_timeout(LONG)).map(drop).unwrap_err();
    assert_eq!(joined.to_string(), format!("rank 1 could not join the other ranks: {}", refused("192.0.2.1")));
    assert!(started.elapsed() < LONG, "it tried until the end");
}
