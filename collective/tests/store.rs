//! The store over its socket: what it does, and what it does with those who do not keep to its
//! protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use thalweg_collective::{Store, StoreError, StoreLimits, StoreServer};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(30);

fn server(limits: StoreLimits) -> StoreServer {
    StoreServer::bind("127.0.0.1:0", b"the secret", limits).unwrap()
}

fn client(server: &StoreServer) -> Store {
    Store::connect(server.address(), b"the secret", LONG).unwrap()
}

#[test]
fn keys_values_and_waits() {
    let server = server(StoreLimits::default());
    for store in [client(&server), Store::local()] {
        assert_eq!(store.get("a").unwrap(), None);
        store.set("a", b"1").unwrap();
        store.set("a", &[0; 1000]).unwrap();
        assert_eq!(store.get("a").unwrap().unwrap(), [0; 1000]);
        assert_eq!(store.set_if_absent("b", b"first").unwrap(), b"first");
        assert_eq!(store.set_if_absent("b", b"second").unwrap(), b"first");
        assert_eq!([store.add("n", 5).unwrap(), store.add("n", -7).unwrap()], [5, -2]);
        assert!(matches!(store.add("b", 1), Err(StoreError::Refused { .. })));
        assert!(store.delete("b").unwrap() && !store.delete("b").unwrap());

        let late = store.wait("c", SHORT).unwrap_err();
        assert_eq!(late.to_string(), "the key `c` did not appear within 30ms");
        let other = store.reconnect().unwrap();
        let waits = thread::spawn(move || other.wait("c", LONG).unwrap());
        store.set("c", b"there").unwrap();
        assert_eq!(waits.join().unwrap(), b"there");

        let missing = store.all_gather("m", 1, 3, b"", SHORT).unwrap_err();
        assert_eq!(missing, StoreError::Missing { name: "m".into(), missing: vec![0, 2], waited: SHORT });
        assert_eq!(missing.to_string(), "ranks 0 and 2 did not come to `m` within 30ms");
        assert!(matches!(store.all_gather("m", 3, 3, b"", SHORT), Err(StoreError::Refused { .. })));
        let [a, b] = [(); 2].map(|()| store.reconnect().unwrap());
        let a = thread::spawn(move || a.all_gather("m", 0, 3, b"zero", LONG).unwrap());
        let b = thread::spawn(move || b.all_gather("m", 2, 3, b"two", LONG).unwrap());
        let all = store.all_gather("m", 1, 3, b"one", LONG).unwrap();
        assert_eq!(all, [&b"zero"[..], b"one", b"two"]);
        assert_eq!([a.join().unwrap(), b.join().unwrap()], [all.clone(), all]);
        store.barrier("alone", 0, 1, LONG).unwrap();
    }
}

#[test]
fn limits_hold() {
    let limits = StoreLimits::default()
        .with_key(10)
        .with_value(100)
        .with_entries(5)
        .with_bytes(300)
        .with_connections(3)
        .with_ranks(4);
    let server = server(limits);
    let store = client(&server);
    let refused =
        |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::Refused { .. })), "{result:?}");
    refused(store.set("a key too long", b""));
    refused(store.set("a", &[0; 101]));
    refused(store.set("a", &vec![0; 3 << 20]));
    refused(store.barrier("m", 0, 5, SHORT));
    refused(store.barrier("m", 0, usize::MAX, SHORT));
    for key in ["a", "b"] {
        store.set(key, &[0; 100]).unwrap();
    }
    refused(store.set("c", &[0; 100]));
    store.set("a", &[0; 50]).unwrap();
    for key in ["c", "d", "e"] {
        store.set(key, b"").unwrap();
    }
    refused(store.set("f", b""));
    assert!(store.delete("e").unwrap());
    store.set("f", b"").unwrap();

    let others = [(); 2].map(|()| store.reconnect().unwrap());
    assert!(matches!(store.reconnect(), Err(StoreError::Gone { .. })), "a connection too many");
    drop(others);
    // Its places come back.
    let back = Instant::now();
    while store.reconnect().is_err() {
        assert!(back.elapsed() < LONG);
    }
}

/// The bytes that a client with the right secret has sent after its greeting.
fn greeted(server: &StoreServer) -> TcpStream {
    // A proxy in the middle sees the greeting and knows nothing: so a real client greets through
    // it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, target) = (listener.local_addr().unwrap(), server.address());
    let proxy = thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(target).unwrap();
        let pass = |from: &mut TcpStream, to: &mut TcpStream, n: usize| {
            let mut bytes = vec![0; n];
            from.read_exact(&mut bytes).unwrap();
            to.write_all(&bytes).unwrap();
        };
        pass(&mut far, &mut near, 24);
        pass(&mut near, &mut far, 56);
        pass(&mut far, &mut near, 33);
        far
    });
    let store = Store::connect(address, b"the secret", LONG).unwrap();
    let socket = proxy.join().unwrap();
    drop(store);
    socket
}

#[test]
fn garbage_ends_a_connection_and_nothing_else() {
    let server = server(StoreLimits::default());
    let store = client(&server);
    store.set("a", b"1").unwrap();
    let wrong = Store::connect(server.address(), b"another", LONG).unwrap_err();
    assert_eq!(wrong, StoreError::Secret);

    let unauthenticated_peers: [&[u8]; 4] = [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0xff; 100_000], b"thalweg1", b""];
    for said in unauthenticated_peers {
        let mut unauthenticated = TcpStream::connect(server.address()).unwrap();
        _ = unauthenticated.write_all(said);
        _ = unauthenticated.shutdown(std::net::Shutdown::Write); // it may be refused already
        // The greeting of the server and then its end, perhaps by a reset.
        _ = unauthenticated.read_to_end(&mut Vec::new());
    }
    // Those who know the secret can be wrong too: huge lengths, half messages, unknown requests,
    // texts that are none, fields that are longer than the message.
    let requests: [&[u8]; 6] = [
        &[0xff; 4],
        &[8, 0, 0, 0, 1, 2],
        &[1, 0, 0, 0, 99],
        &[0, 0, 0, 0],
        &[10, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0xff],
        &[9, 0, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    ];
    for request in requests {
        let mut socket = greeted(&server);
        socket.write_all(request).unwrap();
        _ = socket.shutdown(std::net::Shutdown::Write);
        socket.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = Vec::new();
        _ = socket.read_to_end(&mut answer);
        assert_eq!(answer, [0; 0], "{request:?}");
    }
    assert_eq!(store.get("a").unwrap().unwrap(), b"1", "the others go on");
}

/// A client whose partner is no store gets errors.
#[test]
fn a_store_that_is_none() {
    for says in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 1000], b"thalweg1", b""] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            _ = socket.write_all(says);
        });
        let error = Store::connect(address, b"the secret", Duration::ZERO).unwrap_err();
        assert!(matches!(error, StoreError::Gone { .. } | StoreError::Secret), "{error}");
        thread.join().unwrap();
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(matches!(Store::connect(free, b"", SHORT), Err(StoreError::Gone { .. })));
}

#[test]
fn a_store_that_ends_wakes_who_waits() {
    let server = server(StoreLimits::default());
    let store = client(&server);
    let (a, b) = (store.reconnect().unwrap(), store.reconnect().unwrap());
    let a = thread::spawn(move || a.wait("never", Duration::from_secs(3600)).unwrap_err());
    let b = thread::spawn(move || b.all_gather("never", 0, 2, b"", Duration::from_secs(3600)).unwrap_err());
    store.set("x", b"").unwrap();
    let started = Instant::now();
    drop(server);
    for error in [a.join().unwrap(), b.join().unwrap(), store.get("x").unwrap_err()] {
        assert!(matches!(error, StoreError::Gone { .. }), "{error}");
    }
    assert!(matches!(store.set("x", b""), Err(StoreError::Gone { .. })), "and it stays so");
    assert!(started.elapsed() < LONG);
}

/// What a meeting would answer has to fit in a message, and a meeting that was refused leaves
/// nothing.
#[test]
fn meetings_that_are_too_large_leave_nothing() {
    let limits = StoreLimits::default().with_entries(2);
    let server = server(limits);
    let stores: Vec<Store> = (0..40).map(|_| client(&server)).collect();
    let part = vec![7; 60 << 10];
    // 40 parts of 60 KiB are more than a message has: one of the ranks is told so.
    let refused = thread::scope(|threads| {
        let ranks = stores.iter().enumerate().map(|(rank, store)| {
            let part = &part;
            threads.spawn(move || store.all_gather("large", rank, 40, part, Duration::from_secs(1)))
        });
        let ended: Vec<_> =
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap().unwrap_err()).collect();
        ended.iter().filter(|error| matches!(error, StoreError::Refused { .. })).count()
    });
    assert!(refused >= 1);
    let store = &stores[0];
    for k in 0..10 {
        let name = format!("meeting {k}");
        let error = store.all_gather(&name, 0, 2, &vec![0; 70 << 10], SHORT).unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    }
    store.set("a", b"1").unwrap();
    store.set("b", b"1").unwrap(); // both entries are free
}
