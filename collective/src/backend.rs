//! The ways to carry out operations.

/// The backend that carries out the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// NCCL if every rank has a GPU and can load it; otherwise peer copies if all ranks are in one
    /// process and have a GPU each; otherwise the host.
    #[default]
    Auto,
    /// The host: bytes go through page-locked memory, and over TCP between processes. Reductions
    /// are in the order of the ranks.
    Host,
    /// Copies from device to device, and kernels of thalweg where elements are reduced, in the
    /// order of the ranks. All ranks are in one process. A call waits on the host until the other
    /// ranks have called the same.
    Peer,
    /// NCCL. It is an error if a rank has no GPU or cannot load it.
    Nccl,
}
