//! Overlap patterns: copies and kernels that run at the same time, as functions to call.
//!
//! Find your situation, run the example (`cargo run --release --example NAME -- --timeline out.svg`), look at the picture, and
//! copy its ten lines. Each pattern gives what [`serial`](fn@serial) gives, bit for bit; only the time differs.
//!
//! | your situation | pattern | what overlaps |
//! |---|---|---|
//! | nothing is slow yet, or something to compare with | [`serial`](fn@serial) | nothing |
//! | one large buffer, two or more copy engines | [`interleaved`](fn@interleaved) | upload, kernel and download of successive chunks |
//! | one large buffer, one copy engine | [`grouped`](fn@grouped); [`choose`] decides and says why | all uploads, then all kernels, then all downloads |
//! | a sequence of frames of one size | [`double_buffer`](fn@double_buffer) | loading and uploading frame N + 1 with the work on frame N |
//! | one stream makes what another uses, on the device | [`producer_consumer`](fn@producer_consumer) | both streams, with no wait on the host |
//! | several kernels in a row over many images | [`three_stream`](fn@three_stream) | each stage with the other stages of the images around it |

