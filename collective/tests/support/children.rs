//! Ranks that are processes: a test binary starts itself again, once for each rank. Then ranks can
//! be killed and stopped.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::process::again;
use thalweg_collective::{Store, StoreLimits, StoreServer};

use super::LONG;

pub const RANK_OF: &str = "THALWEG_TEST_RANK_OF";

/// The processes of a test, and the store that this one has.
pub struct Ranks {
    children: Vec<Child>,
    pub store: Store,
    _server: StoreServer,
}

impl Ranks {
    /// Starts ranks of a scenario, which the test with this path runs. Their messages are shown if
    /// `RUST_BACKTRACE` is set.
    pub fn start(test: &str, scenario: &str, size: usize, environment: &[(&str, &str)]) -> Self {
        let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
        let child = |rank: usize| {
            again(test)
                .env(RANK_OF, scenario)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", size.to_string())
                .env("THALWEG_STORE", server.address().to_string())
                .env("THALWEG_SECRET", "s")
                .envs(environment.iter().copied())
                .stdout(Stdio::piped())
                .stderr(if std::env::var_os("RUST_BACKTRACE").is_some() { Stdio::inherit() } else { Stdio::null() })
                .spawn()
                .unwrap()
        };
        let store = Store::connect(server.address(), b"s", LONG).unwrap();
        Self { children: (0..size).map(child).collect(), store, _server: server }
    }

    /// Sends a signal to a rank.
    pub fn signal(&self, rank: usize, signal: &str) {
        let id = self.children[rank].id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// What a rank wrote in lines that begin with its mark, once it has ended.
    pub fn said(&mut self, rank: usize) -> String {
        let child = &mut self.children[rank];
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < LONG, "rank {rank} does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text.lines().filter_map(|line| line.split_once("SAYS ")).map(|(_, said)| said).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            _ = child.kill();
            _ = child.wait();
        }
    }
}
