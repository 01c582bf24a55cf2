//! The untyped layer: devices, streams, events, memory and loaded kernels. It does not know element
//! types, stream tags or the states of buffers, which the typed layer above adds.
//!
//! The files are in this order, and each uses only those before it: `background`, `sync_stats`,
//! `panics`, `memory_log`, `memory_book`, `device`, `event`, `stream`, `modules`, `memory`.

pub(crate) mod background;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod memory;
pub(crate) mod memory_book;
pub(crate) mod memory_log;
pub(crate) mod modules;
pub(crate) mod panics;
pub(crate) mod stream;
pub(crate) mod sync_stats;
