//! Ranks that have met, before they have communicators.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use log::debug;
use sha2::{Digest, Sha256};
use thalweg::{Device, DeviceKind, DeviceRank, LiveBrand, Stream};

use crate::call_log::CallLog;
use crate::comm::Comm;
use crate::engine::Engine;
use crate::error::{Error, Result, StoreError};
use crate::exchange::{Exchange, PeerSlot};
use crate::failure_state::FailureState;
use crate::link::Abort;
use crate::link::local::{LocalLink, Mailboxes};
use crate::link::tcp::Listener;
use crate::lock;
use crate::nccl::THREADS;
use crate::options::WorldOptions;
use crate::rank_env::{self, RankEnv};
use crate::rank_handle::{FailureWatcher, RankHandle, RankShared};
use crate::store::{LONGEST_WAIT, Store, StoreLimits, StoreServer};

/// One rank of a set of ranks that have met. [`World::comm`] makes its communicator.
///
/// If it is dropped, the other ranks learn that this one has left. In a forked child nothing
/// happens then: the rank is the parent.
#[derive(Debug)]
#[must_use = "the other ranks fail if one leaves"]
pub struct World {
    pub(crate) member: RankHandle,
    /// A device that two ranks of [`ranks`] have, and that cannot run the work of both at once.
    shared: Option<Device>,
}

impl World {
    /// Makes the world of a single rank. It exchanges nothing: a reduction gives the elements of
    /// this rank.
    pub fn single() -> Self {
        Self::of(RankShared {
            engine: None,
            failure_state: Arc::new(FailureState::new(None, "")),
            rank: 0,
            size: 1,
            local: (0, 1),
            options: WorldOptions::default(),
            store: Store::local(),
            call_log: None,
            slot: None,
            tag: String::new(),
            home: std::process::id(),
            watcher: None,
            server: None,
        })
    }

    fn of(rank_shared: RankShared) -> Self {
        Self { member: RankHandle(Arc::new(rank_shared)), shared: None }
    }

    /// The ranks of one process, for a thread each. [`ranks`] gives each of them to its thread.
    pub fn local(size: usize, options: WorldOptions) -> Vec<Self> {
        let (mailboxes, store) = (Mailboxes::new(size), Store::local());
        let failure_state = Arc::new(FailureState::new(Some(store.clone()), ""));
        let (call_log, exchange) = (Arc::new(CallLog::new(size)), Arc::new(Exchange::new(size)));
        failure_state.watch(&(exchange.clone() as Arc<dyn Abort>));
        let world = |rank| {
            let link = Arc::new(LocalLink::new(mailboxes.clone(), rank));
            Self::of(RankShared {
                engine: Some(Engine::new(rank, size, failure_state.clone(), link, options.timeout)),
                failure_state: failure_state.clone(),
                rank,
                size,
                local: (rank, size),
                options,
                store: store.clone(),
                call_log: Some(call_log.clone()),
                slot: Some(PeerSlot { exchange: exchange.clone(), rank }),
                tag: String::new(),
                home: std::process::id(),
                watcher: None,
                server: None,
            })
        };
        (0..size).map(world).collect()
    }

    /// Joins the ranks that a launcher started, as the environment says: [`RankEnv::from_env`] and
    /// [`WorldOptions::from_env`]. Without a launcher it is a single rank.
    ///
    /// # Errors
    /// The environment is incomplete, or the ranks do not meet in time.
    pub fn from_env() -> Result<Self> {
        match RankEnv::from_env()? {
            None => Ok(Self::single()),
            Some(place) => Self::connect(&place, WorldOptions::from_env()?),
        }
    }

    /// Joins the ranks of several processes, and waits until all of them are there. Between each
    /// two ranks there is a TCP connection.
    ///
    /// A rank listens at the address of the interface that reaches the store, or at
    /// [`RankEnv::host`].
    ///
    /// # Errors
    /// A rank does not come in time, has another secret, or cannot be reached. Or the secret is
    /// empty, and an address of the store or of a rank is not a loopback address.
    pub fn connect(place: &RankEnv, options: WorldOptions) -> Result<Self> {
        let deadline = Instant::now() + options.connect_timeout.min(LONGEST_WAIT);
        let failed = |reason: String| Error::Connect { rank: place.rank, reason };
        let (store, server) = meeting_place(place, deadline).map_err(|why| failed(why.to_string()))?;
        let nearest = || store.local_ip().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let ip = place.host.unwrap_or_else(nearest);
        let listener = Listener::new(ip, place.rank, &place.secret).map_err(|why| failed(format!("{ip}: {why}")))?;
        let address = listener.address().map_err(|why| failed(why.to_string()))?.to_string();
        let left = || deadline.saturating_duration_since(Instant::now());
        let all = store
            .all_gather("thalweg/addresses", place.rank, place.size, address.as_bytes(), left())
            .map_err(|why| failed(why.to_string()))?;
        // The ports at which the ranks listen are new each time.
        let hash = Sha256::digest(all.concat());
        let tag = hash[..8].iter().fold(String::new(), |tag, byte| format!("{tag}{byte:02x}")) + "/";
        let parse = |text: &Vec<u8>| std::str::from_utf8(text).ok().and_then(|text| text.parse::<SocketAddr>().ok());
        let all: Option<Vec<SocketAddr>> = all.iter().map(parse).collect();
        let all = all.ok_or_else(|| failed("the store has an address that is none".to_owned()))?;
        let link = listener.connect(&all, options.timeout, deadline).map_err(|why| failed(why.to_string()))?;
        debug!(target: "thalweg_collective::tcp", "rank {} of {} is connected", place.rank, place.size);

        let own = store.reconnect().map_err(|why| failed(why.to_string()))?;
        let failure_state = Arc::new(FailureState::new(Some(own), &tag));
        let watch =
            FailureWatcher::new(&store, failure_state.clone(), LONGEST_WAIT).map_err(|why| failed(why.to_string()))?;
        Ok(Self::of(RankShared {
            engine: Some(Engine::new(place.rank, place.size, failure_state.clone(), Arc::new(link), options.timeout)),
            failure_state,
            rank: place.rank,
            size: place.size,
            local: (place.local_rank, place.local_size),
            options,
            store,
            call_log: None,
            slot: None,
            tag,
            home: std::process::id(),
            watcher: Some(watch),
            server,
        }))
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.member.0.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.member.0.size
    }

    /// The number of this rank among those of its machine: which GPU it takes.
    pub fn local_rank(&self) -> usize {
        self.member.0.local.0
    }

    /// Opens the device of this rank: the one that `THALWEG_DEVICE` names, otherwise [its
    /// GPU](RankEnv::gpu), or the CPU device on a machine [without a
    /// GPU](thalweg::Error::means_no_gpu). The call reads the variable.
    ///
    /// # Errors
    /// [`Error::NoGpu`] if the machine has fewer GPUs than ranks, or its driver or the GPU fails:
    /// one rank on a CPU would hold up all others. Or `THALWEG_DEVICE` names a device that cannot
    /// be used.
    pub fn device(&self) -> Result<Device> {
        if std::env::var_os("THALWEG_DEVICE").is_some_and(|name| !name.is_empty() && name != "auto") {
            return Ok(Device::best()?);
        }
        match rank_env::gpu(self.local_rank()) {
            Ok(gpu) => Ok(gpu),
            Err(cause) if cause.means_no_gpu() => Ok(Device::cpu()?),
            Err(cause) => Err(Error::NoGpu { rank: self.rank(), cause: Box::new(cause) }),
        }
    }

    /// The number of ranks of this machine.
    pub fn local_size(&self) -> usize {
        self.member.0.local.1
    }

    /// The store of the ranks, for what a program exchanges itself. Keys that begin with `thalweg/`
    /// are this crate's own.
    pub fn store(&self) -> &Store {
        &self.member.0.store
    }

    /// The communicator of this rank, whose operations run on `stream`. A world has one: so all
    /// ranks have one order of operations.
    ///
    /// If the ranks fail, the device of the stream fails with them
    /// ([`Device::poison`]), so that nobody reads a partial sum.
    ///
    /// On a GPU the call waits for the communicators of the other ranks, because they agree on
    /// [who carries out the operations](WorldOptions::backend).
    ///
    /// # Errors
    /// The ranks have failed already, or cannot agree. Or the stream is a
    /// [foreign](thalweg::ForeignStream) one. Or two ranks of this process have the same device,
    /// and it is a GPU or a [seeded](Device::seeded_cpu) one: their operations would wait for one
    /// another on one thread. All ranks of [`ranks`] get this error then. Of those of
    /// [`World::local`], only those that come later with the device get it.
    ///
    /// Ranks that are processes get [`Error::SharedDevice`] if NCCL is to carry out their
    /// operations and they have the same GPU. From NCCL 2.30 on they may have, if the environment
    /// of every rank has `NCCL_MULTI_RANK_GPU_ENABLE=1`, which this call reads. So programs can be
    /// tried on one GPU. The first call on a GPU also reads `THALWEG_NCCL`, the file of NCCL.
    /// Operations are slow there, because it runs the processes in turns.
    pub fn comm<S: LiveBrand>(self, stream: Stream<S>) -> Result<Comm<S>> {
        if stream.is_foreign() {
            return Err(Error::ForeignStream);
        }
        let (failure_state, device) = (&self.member.0.failure_state, stream.device());
        let shared = |device: Device| {
            let hint = if device.kind() == DeviceKind::Cuda { THREADS } else { "" };
            Err(Error::SharedDevice { device: device.to_string(), hint: hint.to_owned() })
        };
        if let Some(device) = self.shared {
            return shared(device);
        }
        if failure_state.bind(device) && !device.overlaps_host_functions() {
            return shared(device);
        }
        if let Some(failure) = failure_state.failure() {
            return Err(Error::Failed(failure.clone()));
        }
        Comm::new(self.member, stream)
    }
}

/// Runs `f` on every device at once, as [`thalweg::for_each_device`] does, each time with a
/// [`World`] whose ranks are these threads. So a program for several processes also runs, and is
/// tested, in one.
///
/// ```
/// use thalweg::{Device, stream_tags};
/// use thalweg_collective::{WorldOptions, Result, Sum, ranks};
///
/// stream_tags!(Reduce);
///
/// let devices = [Device::new_cpu()?, Device::new_cpu()?, Device::new_cpu()?];
/// let sums = ranks(&devices, WorldOptions::default(), |rank, world| -> Result<Vec<f32>> {
///     let reduce = rank.stream::<Reduce>()?;
///     let mut comm = world.comm(reduce)?;
///     let mut x = reduce.upload_blocking(&[1.0, rank.index() as f32])?;
///     comm.all_reduce_in_place(Sum, &mut x)?;
///     Ok(reduce.read_blocking(&x)?)
/// });
/// for sum in sums {
///     assert_eq!(sum?, [3.0, 0.0 + 1.0 + 2.0]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If a call panics: see [`thalweg::for_each_device`]. The operations of the other ranks fail with
/// [`Failure::Panicked`](crate::Failure::Panicked) first.
pub fn ranks<T: Send>(
    devices: &[Device],
    options: WorldOptions,
    f: impl for<'r> Fn(DeviceRank<'r>, World) -> T + Sync,
) -> Vec<T> {
    // The first rank with the device would otherwise wait for the communicator that the second one
    // cannot have.
    let mut known = devices.iter().enumerate().filter(|(index, device)| devices[..*index].contains(device));
    let shared = known.find(|(_, device)| !device.overlaps_host_functions()).map(|(_, &device)| device);
    let worlds = World::local(devices.len(), options).into_iter().map(|world| Some(World { shared, ..world }));
    let worlds: Mutex<Vec<Option<World>>> = Mutex::new(worlds.collect());
    thalweg::for_each_device(devices, |rank| {
        let world = lock(&worlds)[rank.index()].take();
        f(rank, world.expect("`thalweg::ranks` has each rank once"))
    })
}

/// The store of the ranks: one that is there, or that rank 0 starts.
fn meeting_place(place: &RankEnv, deadline: Instant) -> Result<(Store, Option<StoreServer>), StoreError> {
    let left = || deadline.saturating_duration_since(Instant::now());
    if let Some(store) = &place.store {
        return Ok((Store::connect(store, &place.secret, left())?, None));
    }
    let host = &place.master.host;
    if place.rank == 0 {
        let bind = |port| StoreServer::bind((host.as_str(), port), &place.secret, StoreLimits::default());
        let gone = |reason: String| StoreError::Gone { reason };
        let mut last = "there is no port after MASTER_PORT".to_owned();
        for port in place.ports() {
            match bind(port) {
                Ok(server) => {
                    let store = Store::connect(server.address(), &place.secret, left())?;
                    return Ok((store, Some(server)));
                }
                Err(why) => match why.downcast::<StoreError>() {
                    Ok(why) => return Err(why),
                    Err(why) => last = format!("{host}:{port}: {why}"),
                },
            }
        }
        return Err(gone(last));
    }
    loop {
        let mut last = StoreError::Gone { reason: format!("{host} has no address") };
        for port in place.ports() {
            match Store::first_of((host.as_str(), port).to_socket_addrs().into_iter().flatten(), &place.secret) {
                Some(Ok(store)) => return Ok((store, None)),
                Some(Err(why @ StoreError::NoSecret { .. })) => return Err(why),
                // It may be the store of another job, at a port that this one could have had.
                Some(Err(why)) => last = why,
                None => {}
            }
        }
        if Instant::now() >= deadline {
            return Err(last);
        }
        thread::sleep(Duration::from_millis(50));
    }
}
