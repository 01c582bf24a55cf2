//! JPEG files decoded on every device and on the host. What the steady state allocates is in
//! `tests/steady.rs`, whose allocator counts.

mod encoder;
mod golden;
mod host;
mod hostile;
mod properties;
mod reference;
mod support;
