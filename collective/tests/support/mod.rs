//! Ranks for tests: threads over memory, or over TCP.

#![allow(unreachable_pub, dead_code, reason = "each test binary uses a part")]

#[cfg(unix)]
pub mod children;

use std::time::Duration;

use thalweg::{Device, DeviceRank};
use thalweg_collective::{Backend, RankEnv, StoreLimits, StoreServer, World, WorldOptions, ranks};

pub const LONG: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Over {
    Memory,
    Tcp,
    /// Peer copies, between devices of this process.
    Peer,
}

pub fn options(timeout: Duration) -> WorldOptions {
    WorldOptions::default().with_timeout(timeout).with_connect_timeout(LONG)
}

/// Runs the ranks, each on a CPU device of its own if they may fail, or all on one.
pub fn run<T: Send>(
    over: Over,
    devices: &[Device],
    options: WorldOptions,
    f: impl for<'r> Fn(DeviceRank<'r>, World) -> T + Sync,
) -> Vec<T> {
    match over {
        Over::Memory => ranks(devices, options, f),
        Over::Peer => ranks(devices, options.with_backend(Backend::Peer), f),
        Over::Tcp => {
            let server = StoreServer::bind("127.0.0.1:0", b"s", StoreLimits::default()).unwrap();
            let store = server.address().to_string();
            thalweg::for_each_device(devices, |rank| {
                let place = RankEnv::with_store(rank.index(), rank.size(), &store, b"s");
                f(rank, World::connect(&place, options).unwrap())
            })
        }
    }
}

pub fn one_device(size: usize) -> Vec<Device> {
    vec![Device::cpu().unwrap(); size]
}

pub fn own_devices(size: usize) -> Vec<Device> {
    (0..size).map(|_| Device::new_cpu().unwrap()).collect()
}

/// Whether two ranks that are processes can compute over NCCL here: with a GPU each, or on the only
/// one if the environment allows it. Otherwise says that the test covers nothing.
pub fn processes_have_gpus() -> bool {
    let shares = std::env::var_os("NCCL_MULTI_RANK_GPU_ENABLE").is_some_and(|value| value == "1");
    let enough = Device::cuda(0).is_ok() && (shares || Device::cuda(1).is_ok());
    if !enough {
        eprintln!(
            "NOT COVERED: this machine has no two GPUs; NCCL_MULTI_RANK_GPU_ENABLE=1 has processes share one (NCCL 2.30)"
        );
    }
    enough
}

/// Whether the processes of a test share a GPU.
pub fn one_gpu() -> bool {
    Device::cuda(1).is_err()
}

/// Two GPUs for two ranks that are threads, if this machine has them and NCCL. Otherwise says that
/// the test covers nothing.
pub fn gpus() -> Option<Vec<Device>> {
    let gpus: Vec<Device> = (0..2).map_while(|ordinal| Device::cuda(ordinal).ok()).collect();
    if gpus.len() < 2 {
        eprintln!("NOT COVERED: this machine has no two GPUs for two threads");
        return None;
    }
    Some(gpus)
}
