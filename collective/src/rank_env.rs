//! The place of a process among the ranks: what launchers say in the environment.

use std::fmt;
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use thalweg::Device;

use crate::error::{Error, Result};
use crate::nccl;

/// The address of rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterAddress {
    /// The name or the IP address of its machine.
    pub host: String,
    /// A port: rank 0 starts the store at one of the eight ports after it.
    pub port: u16,
}

/// A process among the ranks, and where they meet.
///
/// | launcher | rank, size | rank and size on the machine | meeting place |
/// |---|---|---|---|
/// | `thalweg launch`, `torchrun` | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
/// | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_NTASKS_PER_NODE` | the first of `SLURM_STEP_NODELIST`, a port made of `SLURM_JOB_ID` and `SLURM_STEP_ID` |
/// | Open MPI | `OMPI_COMM_WORLD_RANK`, `.._SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `.._LOCAL_SIZE` | `MASTER_ADDR`, `MASTER_PORT` |
///
/// `MASTER_ADDR` and `MASTER_PORT` count first for every launcher. The store of the ranks listens
/// at one of the eight ports *after* `MASTER_PORT`, because PyTorch's own store may be at that one.
/// `THALWEG_STORE=address:port` names a store that somebody else runs, as `thalweg launch` does,
/// `THALWEG_HOST` is the IP address at which this rank listens, and `THALWEG_SECRET` is the secret
/// of the ranks, a random text. Without it, the number of the job takes its place, which keeps jobs
/// apart and unauthenticated peers not. Without either, only loopback addresses can be used
/// ([`StoreError::NoSecret`](crate::StoreError::NoSecret)).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankEnv {
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number of this process among those of its machine: which GPU it takes.
    pub local_rank: usize,
    /// The number of processes of this machine.
    pub local_size: usize,
    /// The address of rank 0.
    pub master: MasterAddress,
    /// The address of a store that is there already.
    pub store: Option<String>,
    /// The address of this machine at which this rank listens. `None` is that of the interface that
    /// reaches the store.
    pub host: Option<IpAddr>,
    /// The secret that the ranks prove to one another that they know.
    pub secret: Vec<u8>,
}

impl fmt::Debug for RankEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the secret, which would end in a log.
        f.debug_struct("RankEnv")
            .field("rank", &self.rank)
            .field("size", &self.size)
            .field("local_rank", &self.local_rank)
            .field("local_size", &self.local_size)
            .field("master", &self.master)
            .field("store", &self.store)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl RankEnv {
    /// A place of a process of one machine, with a store that is there already.
    pub fn with_store(rank: usize, size: usize, store: impl Into<String>, secret: &[u8]) -> Self {
        Self {
            rank,
            size,
            local_rank: rank,
            local_size: size,
            master: MasterAddress { host: "127.0.0.1".to_owned(), port: 0 },
            store: Some(store.into()),
            host: None,
            secret: secret.to_vec(),
        }
    }

    /// Reads the environment. `None` if no launcher has set it: then this process is alone.
    ///
    /// # Errors
    /// A variable is missing, no number, or out of range.
    pub fn from_env() -> Result<Option<Self>> {
        Self::of(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Reads an environment.
    fn of(get: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &'static str| get(name).map(|value| parse(name, &value)).transpose();
        let names = [
            ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
            ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
        ];
        // A job of Slurm has SLURM_NTASKS also outside of `srun`, so the rank decides.
        let Some([rank_name, size_name, local_rank, local_size]) = names.into_iter().find(|n| get(n[0]).is_some())
        else {
            return Ok(None);
        };
        let (rank, size) = (number(rank_name)?.unwrap_or(0), number(size_name)?);
        let size = size.ok_or_else(|| missing(size_name, "the number of ranks"))?;
        if rank >= size {
            let given = format!("{rank} with {size_name}={size}");
            return Err(Error::Environment { name: rank_name, given, expected: "less than the number of ranks" });
        }
        // Slurm writes `4(x2)` for several nodes.
        let on_machine = get(local_size).map(|text| text.split('(').next().unwrap_or_default().to_owned());
        let on_machine = on_machine.map(|text| parse(local_size, &text)).transpose()?;
        let slurm = get("SLURM_JOB_ID").filter(|_| rank_name == "SLURM_PROCID");
        let step = get("SLURM_STEP_ID").unwrap_or_default();
        let store = get("THALWEG_STORE");
        let address = get("MASTER_ADDR").or_else(|| {
            let nodes = get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST"));
            slurm.as_ref().and(nodes).map(|nodes| first_node(&nodes))
        });
        let port = match get("MASTER_PORT") {
            Some(port) => Some(parse("MASTER_PORT", &port)?),
            None => slurm.as_ref().map(|job| {
                let hash = Sha256::digest(format!("thalweg{job}.{step}"));
                20_000 + u16::from_le_bytes([hash[0], hash[1]]) % 10_000
            }),
        };
        let master = match (address, port) {
            (Some(host), Some(port)) => MasterAddress { host, port },
            (host, port) if store.is_some() => {
                MasterAddress { host: host.unwrap_or_default(), port: port.unwrap_or_default() }
            }
            (None, _) => return Err(missing("MASTER_ADDR", "the machine of rank 0")),
            (_, None) => return Err(missing("MASTER_PORT", "a port of the machine of rank 0")),
        };
        let host = get("THALWEG_HOST").map(|host| match host.parse() {
            Ok(ip) => Ok(ip),
            Err(_) => Err(Error::Environment {
                name: "THALWEG_HOST",
                given: format!("`{host}`"),
                expected: "an IP address of this machine",
            }),
        });
        let job = || get("TORCHELASTIC_RUN_ID").or_else(|| slurm.clone()).unwrap_or_default();
        Ok(Some(Self {
            rank,
            size,
            local_rank: number(local_rank)?.unwrap_or(rank),
            local_size: on_machine.unwrap_or(size),
            master,
            store,
            host: host.transpose()?,
            secret: get("THALWEG_SECRET").unwrap_or_else(job).into_bytes(),
        }))
    }

    /// Opens the GPU of this process: that of its number among the processes of the machine, or the
    /// only one that the process sees. With `NCCL_MULTI_RANK_GPU_ENABLE=1` in the environment,
    /// processes begin again at the first GPU if there are more processes than GPUs.
    ///
    /// # Errors
    /// There is no such GPU, or it cannot be used.
    pub fn gpu(&self) -> thalweg::Result<Device> {
        gpu(self.local_rank)
    }

    /// The ports at which the store may be, of the machine of rank 0.
    pub(crate) fn ports(&self) -> impl Iterator<Item = u16> + use<> {
        let port = self.master.port;
        (1..=8).filter_map(move |k| port.checked_add(k))
    }
}

/// Opens the GPU of a process of this number.
pub(crate) fn gpu(local_rank: usize) -> thalweg::Result<Device> {
    let found = Device::cuda(local_rank);
    let Err(thalweg::Error::NoSuchDevice { count, .. }) = found else { return found };
    instead(local_rank, count, nccl::shares()).map_or(found, Device::cuda)
}

/// The GPU of a process whose number is not below the number of GPUs. A scheduler may show each
/// process its own GPU only, as number 0.
fn instead(local_rank: usize, gpus: usize, shares: bool) -> Option<usize> {
    match gpus {
        0 => None,
        1 => Some(0),
        _ => shares.then_some(local_rank % gpus),
    }
}

fn parse<T: std::str::FromStr>(name: &'static str, value: &str) -> Result<T> {
    let wrong = |_| Error::Environment { name, given: format!("`{value}`"), expected: "a number" };
    value.trim().parse().map_err(wrong)
}

fn missing(name: &'static str, expected: &'static str) -> Error {
    Error::Environment { name, given: "not set".to_owned(), expected }
}

/// The first host of a list as Slurm writes it: `node[07-09,12],other` begins with `node07`.
fn first_node(list: &str) -> String {
    let end = list.find(',').unwrap_or(list.len());
    match list.find('[') {
        Some(open) if open < end => {
            let numbers = &list[open + 1..];
            let first = numbers.find(['-', ',', ']']).map_or(numbers, |end| &numbers[..end]);
            format!("{}{first}", &list[..open])
        }
        _ => list[..end].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{MasterAddress, RankEnv, first_node, instead};
    use crate::error::{Error, Result};

    fn of(variables: &[(&str, &str)]) -> Result<Option<RankEnv>> {
        RankEnv::of(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn launchers_say_where_a_process_stands() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")]).unwrap(), None);

        let torch = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "job"),
            ("SLURM_PROCID", "1"), // torchrun under Slurm: torchrun counts
        ];
        let place = of(&torch).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_rank, place.local_size), (5, 8, 1, 4));
        assert_eq!(
            (place.master.clone(), place.store.clone()),
            (MasterAddress { host: "10.0.0.1".into(), port: 29500 }, None)
        );
        assert_eq!(place.secret, b"job");
        assert_eq!(place.ports().collect::<Vec<_>>(), (29501..=29508).collect::<Vec<_>>());

        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "3"),
            ("SLURM_NTASKS_PER_NODE", "4(x2)"),
            ("SLURM_JOB_ID", "1234"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "gpu[03-04],cpu1"),
        ];
        let place = of(&slurm).unwrap().unwrap();
        assert_eq!((place.rank, place.size, place.local_rank, place.local_size), (3, 8, 3, 4));
        assert_eq!(place.master, MasterAddress { host: "gpu03".to_owned(), port: 29_758 });

        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let error = of(&mpi).unwrap_err().to_string();
        assert_eq!(error, "MASTER_ADDR is not set, expected the machine of rank 0");
        let place =
            of(&[&mpi[..], &[("THALWEG_STORE", "[::1]:9"), ("THALWEG_SECRET", "s")]].concat()).unwrap().unwrap();
        assert_eq!((place.store.as_deref(), &place.secret[..]), (Some("[::1]:9"), &b"s"[..]));
        assert_eq!(place.host, None);
        let place = of(&[&torch[..], &[("THALWEG_HOST", "10.0.0.7")]].concat()).unwrap().unwrap();
        assert_eq!(place.host, Some([10, 0, 0, 7].into()));
    }

    #[test]
    fn what_is_no_place_is_an_error() {
        let wrong = |variables: &[(&str, &str)]| match of(variables) {
            Err(Error::Environment { name, .. }) => name,
            other => panic!("{other:?}"),
        };
        assert_eq!(wrong(&[("RANK", "0")]), "WORLD_SIZE");
        assert_eq!(wrong(&[("RANK", "-1"), ("WORLD_SIZE", "2")]), "RANK");
        assert_eq!(wrong(&[("RANK", "2"), ("WORLD_SIZE", "2")]), "RANK");
        let alone = [("RANK", "0"), ("WORLD_SIZE", "1"), ("THALWEG_STORE", "[::1]:9")];
        assert_eq!(wrong(&[&alone[..], &[("THALWEG_HOST", "node1")]].concat()), "THALWEG_HOST");
        assert_eq!(wrong(&[("RANK", "0"), ("WORLD_SIZE", "0")]), "RANK");
        let good = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        assert_eq!(wrong(&good), "MASTER_PORT");
        assert_eq!(wrong(&[&good[..], &[("MASTER_PORT", "70000")]].concat()), "MASTER_PORT");
    }

    #[test]
    fn processes_begin_again_at_the_first_gpu_only_if_they_may_share_it() {
        for (shares, of_four) in [(false, None), (true, Some(1))] {
            assert_eq!([0, 1, 4].map(|gpus| instead(5, gpus, shares)), [None, Some(0), of_four]);
        }
    }

    #[test]
    fn the_first_node_of_a_list() {
        for (list, first) in [
            ("a", "a"),
            ("a,b[1-2]", "a"),
            ("n[01-04,07]", "n01"),
            ("n[5]", "n5"),
            ("n[5,6],m", "n5"),
            ("", ""),
            ("n[", "n"),
        ] {
            assert_eq!(first_node(list), first, "{list}");
        }
    }
}
