//! Processors against golden files, and their properties.

mod files;
mod golden;
mod hostile;
mod properties;
