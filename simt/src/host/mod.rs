//! The host side of a declaration: what a launcher takes and what it gives to a stream.
//!
//! A crate of kernels does not know the streams of the host crate. So the launcher that
//! [`kernel!`](crate::kernel) makes is generic over [`Launch`], which the host crate implements for
//! its streams.

mod argument;
mod constant;
mod counted;
mod error;
mod extents;
mod kernel;
mod launch;
mod range;
mod shape;
mod slice;
mod tiles;

#[doc(hidden)]
pub use argument::{Argument, BufferKind, Given, NotGiven, Slots, parameters, take, take_address, total};
pub use argument::{Extent, MAX_PARAMETER_BYTES, MAX_PARAMETERS, Parameter};
#[doc(hidden)]
pub use constant::{Constant, widened};
#[doc(hidden)]
pub use counted::counted;
pub use error::{LaunchError, MAX_SHARED};
#[doc(hidden)]
pub use extents::{countable, extents, hidden};
pub(crate) use kernel::BlockFn;
pub use kernel::{CACHED_DEVICES, CpuEntry, Kernel, Ptx};
#[doc(hidden)]
pub use kernel::{Declaration, utf8};
pub use launch::Launch;
pub use range::RangeError;
#[doc(hidden)]
pub use range::resolve;
pub use shape::LaunchShape;
#[doc(hidden)]
pub use shape::extent;
pub use slice::{DeviceSlice, HostSlice};
pub use tiles::{MatrixView, TensorMap};
