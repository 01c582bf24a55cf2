//! The patterns of the examples, which the tests run as the examples do.
#![allow(dead_code, unreachable_pub, reason = "a test runs the pattern of an example, and not the rest")]
#![allow(clippy::duplicate_mod, reason = "each example has its own copy of what examples share")]

#[path = "../examples/double_buffer.rs"]
pub(crate) mod double_buffer;
#[path = "../examples/producer_consumer.rs"]
pub(crate) mod producer_consumer;
#[path = "../examples/three_scores.rs"]
pub(crate) mod three_scores;
#[path = "../examples/three_stream.rs"]
pub(crate) mod three_stream;
