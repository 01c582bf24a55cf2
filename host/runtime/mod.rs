//! What lies under the types: devices, streams, events, memory, loaded kernels. Nothing here knows an element type, a stream's tag or
//! the state of a buffer; that is the layer above.
//!
//! The files are in this order, and name only those before them: `background`, `tally`, `device`, `event`, `stream`, `modules`, `memory`.

pub(crate) mod background;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod stream;
pub(crate) mod tally;
