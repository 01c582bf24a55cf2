//! The clause `bounds` of a declaration.

/// The bounds of a kernel's launches: the most threads of a block, and the blocks that are to fit
/// on a multiprocessor, or 0.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub threads: u32,
    pub blocks: u32,
}

impl Bounds {
    /// Makes the bounds of a declaration when that is compiled.
    #[must_use]
    pub const fn new(threads: u32, blocks: u32) -> Self {
        assert!(threads >= 1 && threads <= 1024, "a block has 1 to 1024 threads");
        assert!(blocks <= 32, "a multiprocessor has at most 32 blocks");
        Self { threads, blocks }
    }

    /// Returns both numbers, the first byte of each being the lowest.
    #[must_use]
    pub const fn bytes(self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.threads.to_le_bytes(), self.blocks.to_le_bytes());
        [a, b, c, d, e, f, g, h]
    }
}
