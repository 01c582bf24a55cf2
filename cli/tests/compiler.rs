//! Tests of the command that compile what it runs against: a driver that fails, a disk that is
//! full.

mod failing_driver;
mod full_disk;
mod support;
