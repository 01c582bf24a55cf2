//! The decoder of one piece of coded data.

use thalweg_simt::{Cooperative, In, SharedMemory, Simt};

use super::record::{COMPONENT_WORDS, Record};
use super::{FAST_BITS, PIECE_BITS, TABLE_WORDS, TABLES};

/// The state of a decoder in its data: the bits after the start of a piece, the block within its
/// unit, and the next coefficient in zigzag order. It is one word, so that two states are compared
/// at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct State(pub(super) u32);

impl State {
    /// The state at the start of a unit.
    pub(super) const START: Self = Self(0);

    #[inline(always)]
    fn new(bits: u32, block: u32, next: u32) -> Self {
        Self(bits << 16 | block << 8 | next)
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        self.0 >> 16
    }

    #[inline(always)]
    fn block(self) -> u32 {
        self.0 >> 8 & 255
    }

    #[inline(always)]
    fn next(self) -> u32 {
        self.0 & 255
    }
}

/// The result of decoding a piece: the state after it, the coefficients that it passes, and the sum
/// of the DC differences of each component, modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) end: State,
    pub(super) coefficients: u32,
    pub(super) sums: [u32; 3],
    /// The data has a code that its table lacks, or too many coefficients for a block.
    pub(super) broken: bool,
}

/// The data of a piece and the way to decode it.
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    data: In<u32>,
    /// The word that contains the first bit of the piece.
    word: u32,
    /// The last word that may be read.
    last: u32,
    /// The bits of the piece, and those from its start to the end of its segment.
    pub(super) bits: u32,
    pub(super) left: u32,
    /// The blocks of a unit.
    blocks: u32,
    /// The component of each block of a unit, 2 bits each.
    components: u32,
    /// The DC and the AC table of each component, 3 bits each. An array would be in local memory.
    tables: u32,
}

impl Decoder {
    /// Makes the decoder of piece `index` of a segment.
    ///
    /// # Safety
    /// `image` is a record of an image and `segment` one of a segment. `words` is the length of
    /// `data`, and not 0.
    #[inline(always)]
    pub(super) unsafe fn new(
        cx: impl Simt,
        image: Record,
        segment: Record,
        index: u32,
        data: In<u32>,
        words: u32,
    ) -> Self {
        // SAFETY: All words are inside their records, by the tables in `record`.
        unsafe {
            let left = segment.get(cx, 1).saturating_sub(index.saturating_mul(PIECE_BITS));
            let bits = left.min(PIECE_BITS);
            let word = segment.get(cx, 0).saturating_add(index.saturating_mul(PIECE_BITS / 32));
            let mut tables = 0;
            for c in 0..3 {
                let both = image.get(cx, 16 + COMPONENT_WORDS * c + 3);
                tables |= ((both & 0xffff).min(TABLES - 1) | (both >> 16).min(TABLES - 1) << 3) << (6 * c);
            }
            let (blocks, components) = (image.get(cx, 7).clamp(1, 16), image.get(cx, 8));
            Self { data, word: word.min(words - 1), last: words - 1, bits, left, blocks, components, tables }
        }
    }

    /// Loads a word of data.
    #[inline(always)]
    fn load(&self, cx: impl Simt, i: u32) -> u32 {
        // SAFETY: The index is at most that of the last word of `data`.
        unsafe { self.data.get(cx, i.min(self.last)).swap_bytes() }
    }

    /// Decodes the piece from `start`.
    ///
    /// # Safety
    /// The window `tables` has [`TABLES`] tables of [`TABLE_WORDS`] words.
    #[inline(always)]
    pub(super) unsafe fn run<C: Cooperative>(self, cx: C, tables: SharedMemory<u32>, start: State) -> Outcome {
        let mut cursor = Cursor::new(cx, &self, start, [0; 3]);
        while cursor.bit < self.bits {
            // SAFETY: The caller promises the tables.
            unsafe { cursor.step(cx, &self, tables) };
        }
        let Cursor { bit, next, block, passed, broken, luma, blue, red, .. } = cursor;
        let end = State::new(bit.saturating_sub(self.bits), block, next);
        Outcome { end, coefficients: passed, sums: [luma, blue, red], broken }
    }
}

/// The position of a decoder, with the coefficients that it has found.
#[derive(Clone, Copy)]
pub(super) struct Cursor {
    /// The bits after the start of the piece.
    pub(super) bit: u32,
    /// The next coefficient of the block, in zigzag order.
    pub(super) next: u32,
    block: u32,
    /// The two words of data from the next bit on, and the number of the first one.
    window: u64,
    word: u32,
    /// The coefficients that it has passed.
    pub(super) passed: u32,
    pub(super) broken: bool,
    luma: u32,
    blue: u32,
    red: u32,
}

/// The result of a code.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// A coefficient: its place in the block in zigzag order, and its value. That of a DC
    /// coefficient is the sum so far.
    Coefficient(u32, u32),
    /// Coefficients that are 0.
    Zeros,
    /// No code starts like this.
    Nothing,
}

impl Cursor {
    /// Starts at `start` of a piece, with the sums of DC differences before it.
    #[inline(always)]
    pub(super) fn new(cx: impl Simt, decoder: &Decoder, start: State, [luma, blue, red]: [u32; 3]) -> Self {
        let (bit, next) = (start.bits(), start.next() & 63);
        let block = if start.block() < decoder.blocks { start.block() } else { 0 };
        let word = decoder.word + (bit >> 5);
        let window = u64::from(decoder.load(cx, word)) << 32 | u64::from(decoder.load(cx, word + 1));
        Self { bit, next, block, window, word, passed: 0, broken: false, luma, blue, red }
    }

    /// Decodes a code and its value.
    ///
    /// # Safety
    /// The window `tables` has [`TABLES`] tables of [`TABLE_WORDS`] words.
    #[inline(always)]
    pub(super) unsafe fn step(&mut self, cx: impl Cooperative, decoder: &Decoder, tables: SharedMemory<u32>) -> Found {
        if decoder.word + (self.bit >> 5) != self.word {
            self.word += 1;
            self.window = self.window << 32 | u64::from(decoder.load(cx, self.word + 1));
        }
        let ahead = (self.window << (self.bit & 31) >> 32) as u32;
        let component = (decoder.components >> (2 * self.block) & 3).min(2);
        let table = (decoder.tables >> (6 * component + if self.next == 0 { 0 } else { 3 }) & 7) * TABLE_WORDS;
        // SAFETY: The caller promises the tables, and `symbol` stays inside one.
        let (length, symbol) = unsafe { symbol(cx, tables, table, ahead) };
        if length == 0 {
            // The next try is one bit further, so that a guess goes on.
            self.broken = true;
            self.bit += 1;
            return Found::Nothing;
        }
        let (run, size) = (symbol >> 4, symbol & 15);
        // The value of `size` bits after the code, as T.81 extends its sign.
        // A table may say any length up to 255, and a shift is modulo 64 then.
        let raw = (u64::from(ahead).wrapping_shl(length) << size >> 32) as u32 & ((1 << size) - 1);
        let value = if size > 0 && raw >> (size - 1) == 0 { raw.wrapping_sub((1 << size) - 1) } else { raw };
        self.bit += length + size;
        let before = self.next;
        let mut found = Found::Zeros;
        if before == 0 {
            // A choice of a reference would put the sums into local memory.
            self.luma = self.luma.wrapping_add(if component == 0 { value } else { 0 });
            self.blue = self.blue.wrapping_add(if component == 1 { value } else { 0 });
            self.red = self.red.wrapping_add(if component == 2 { value } else { 0 });
            let sum = if component == 0 {
                self.luma
            } else if component == 1 {
                self.blue
            } else {
                self.red
            };
            found = Found::Coefficient(0, sum);
            self.next = 1;
        } else if size > 0 {
            self.next += run;
            if self.next < 64 {
                found = Found::Coefficient(self.next, value);
            }
            self.next += 1;
        } else {
            self.next = if run == 15 { before + 16 } else { 64 };
        }
        // A run of 16 zeros that ends with the block is the end of the block, too.
        self.broken |= self.next > 64;
        self.passed += self.next.min(64) - before;
        if self.next >= 64 {
            self.next = 0;
            self.block = if self.block + 1 == decoder.blocks { 0 } else { self.block + 1 };
        }
        found
    }
}

/// Finds the code at the start of `ahead`. Returns its length, which is 0 if there is none, and its
/// symbol.
///
/// # Safety
/// At `table` of the window is a table of [`TABLE_WORDS`] words.
#[inline(always)]
unsafe fn symbol(cx: impl Cooperative, tables: SharedMemory<u32>, table: u32, ahead: u32) -> (u32, u32) {
    const LIMITS: u32 = 1 << (FAST_BITS - 1);
    // SAFETY: The top 9 bits are below 512, so their entry is in the first 256 words. Lengths are
    // at most 16, and the index of a symbol is at most 255, so both are inside the table.
    unsafe {
        let top = ahead >> (32 - FAST_BITS);
        let entry = cx.shared_get(tables, table + top / 2) >> (16 * (top & 1)) & 0xffff;
        if entry != 0 {
            return (entry >> 8, entry & 255);
        }
        let code = ahead >> 16;
        let mut length = FAST_BITS + 1;
        while length <= 16 {
            if code < cx.shared_get(tables, table + LIMITS + length - 1) {
                let index =
                    (code >> (16 - length)).wrapping_add(cx.shared_get(tables, table + LIMITS + 16 + length - 1));
                let values = cx.shared_get(tables, table + LIMITS + 32 + (index & 255) / 4);
                return (length, values >> (8 * (index & 3)) & 255);
            }
            length += 1;
        }
        (0, 0)
    }
}
