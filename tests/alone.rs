//! Tests that measure what a device does: times, waits, memory and what overlaps. One of them runs
//! at a time.

mod examples;
mod overlap_chunks;
mod overlap_gates;
mod pinned_kinds;
mod ranks;
mod tally;
mod timeline;
