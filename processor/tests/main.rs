//! Processors against golden files, and their properties.

mod config;
mod device;
mod files;
mod golden;
mod hostile;
mod properties;
