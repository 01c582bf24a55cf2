//! The bits of coded data on the host, and the codes in them.

use crate::error::JpegError;
use crate::huffman::Huffman;

/// Codes of up to this many bits, with the value that follows if it fits too, are found by one
/// access.
const LOOK: u32 = 10;

/// A Huffman table as the host looks codes up in it.
pub(crate) struct Table {
    /// For the next [`LOOK`] bits: the bits to take, in the low 8 bits; the symbol in the next 8;
    /// and above them, if the value of the symbol fits into these bits too, that value, which is
    /// not 0. The bits to take are then those of both. All are 0 if the code is longer.
    fast: [u32; 1 << LOOK],
    /// One past the last code of each length, with the bits that follow it up to 16.
    limits: [u32; 17],
    /// The number to add to a code of each length for the place of its symbol.
    offsets: [u32; 17],
    symbols: [u8; 256],
}

impl Table {
    pub(crate) fn new(huffman: &Huffman) -> Box<Self> {
        let mut table = Box::new(Self { fast: [0; 1 << LOOK], limits: [0; 17], offsets: [0; 17], symbols: [0; 256] });
        let (counts, symbols) = huffman.parts();
        table.symbols[..symbols.len()].copy_from_slice(symbols);
        let (mut code, mut index) = (0u32, 0u32);
        for (length, &count) in (1..=16u32).zip(counts) {
            table.offsets[length as usize] = index.wrapping_sub(code);
            for _ in 0..count {
                if length <= LOOK {
                    let symbol = u32::from(symbols[index as usize]);
                    let (size, room) = (symbol & 15, LOOK - length);
                    let first = (code << room) as usize;
                    for rest in 0..1u32 << room {
                        let mut entry = symbol << 8 | length;
                        if (1..=room).contains(&size) {
                            let value = extend(rest >> (room - size), size);
                            entry = (value as u32) << 16 | symbol << 8 | (length + size);
                        }
                        table.fast[first + rest as usize] = entry;
                    }
                }
                code += 1;
                index += 1;
            }
            table.limits[length as usize] = code << (16 - length);
            code *= 2;
        }
        table
    }

    /// Finds a code that is longer than [`LOOK`] bits. Returns its length, which is 0 if there is
    /// none, and its symbol.
    #[cold]
    fn long(&self, word: u64) -> (u32, u32) {
        let code = (word >> 48) as u32;
        for length in LOOK as usize + 1..=16 {
            if code < self.limits[length] {
                let index = (code >> (16 - length)).wrapping_add(self.offsets[length]) & 255;
                return (length as u32, u32::from(self.symbols[index as usize]));
            }
        }
        (0, 0)
    }
}

/// Gives a value of `size` bits its sign (ITU-T T.81, F.2.2.1).
#[inline(always)]
fn extend(raw: u32, size: u32) -> i32 {
    if size > 0 && raw >> (size - 1) == 0 { raw as i32 - (1 << size) + 1 } else { raw as i32 }
}

/// The meaning of a code: the upper and the lower half of its symbol, and a value of as many bits
/// as the lower half says.
#[derive(Clone, Copy)]
pub(crate) struct Code {
    pub(crate) run: u32,
    pub(crate) size: u32,
    pub(crate) value: i32,
}

/// The data between two restarts, without stuffing.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    bytes: Vec<u8>,
}

impl Segment {
    /// Prepares for data of up to so many bytes.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.bytes.clear();
        self.bytes.reserve_exact(bytes);
    }

    /// Takes the data from `at` up to the next marker. Returns where that marker is, or where the
    /// file ends.
    pub(crate) fn load(&mut self, file: &[u8], mut at: usize) -> usize {
        self.bytes.clear();
        loop {
            let rest = &file[at..];
            let run = memchr::memchr(0xFF, rest).unwrap_or(rest.len());
            self.bytes.extend_from_slice(&rest[..run]);
            at += run;
            match file.get(at + 1) {
                Some(0) => {
                    self.bytes.push(0xFF);
                    at += 2;
                }
                Some(0xFF) => at += 1, // a fill byte
                _ => return at,
            }
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Starts to read.
    pub(crate) fn bits(&self) -> Bits<'_> {
        Bits { bytes: &self.bytes, at: 0, word: 0, count: 0 }
    }
}

/// A place in a segment. Past its end there are bits that are 0: [`Bits::check`] says whether any
/// were taken.
#[derive(Clone, Copy)]
pub(crate) struct Bits<'s> {
    bytes: &'s [u8],
    /// The next byte of which no bit counts in `count`.
    at: usize,
    /// The next bits, from the top on, and how many of them count.
    word: u64,
    count: u32,
}

impl Bits<'_> {
    /// Makes at least 56 bits count.
    #[inline(always)]
    fn fill(&mut self) {
        let next = match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk()) {
            Some(eight) => u64::from_be_bytes(*eight),
            None => self.last(),
        };
        // What is past `count` is there already, or is 0.
        self.word |= next >> self.count;
        self.at += ((63 - self.count) / 8) as usize;
        self.count |= 56;
    }

    /// Returns the next 8 bytes where there are fewer.
    #[cold]
    fn last(&self) -> u64 {
        let mut eight = [0; 8];
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        eight[..rest.len()].copy_from_slice(rest);
        u64::from_be_bytes(eight)
    }

    #[inline(always)]
    fn skip(&mut self, count: u32) {
        self.word <<= count;
        self.count -= count;
    }

    /// Takes up to 16 bits.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: u32) -> u32 {
        if self.count < count {
            self.fill();
        }
        // Two shifts, because a shift by 64 is none.
        let value = (self.word >> 1 >> (63 - count)) as u32;
        self.skip(count);
        value
    }

    /// Takes a code and the value that follows it. `None` if there is no such code.
    #[inline(always)]
    pub(crate) fn code(&mut self, table: &Table) -> Option<Code> {
        // A code and a value have 31 bits at most.
        if self.count < 32 {
            self.fill();
        }
        let entry = table.fast[(self.word >> (64 - LOOK)) as usize];
        let value = entry as i32 >> 16;
        let (mut length, mut symbol) = (entry & 255, entry >> 8 & 255);
        if value != 0 {
            self.skip(length);
            return Some(Code { run: symbol >> 4, size: symbol & 15, value });
        }
        if length == 0 {
            (length, symbol) = table.long(self.word);
            if length == 0 {
                return None;
            }
        }
        self.skip(length);
        let size = symbol & 15;
        let raw = (self.word >> 1 >> (63 - size)) as u32;
        self.skip(size);
        Some(Code { run: symbol >> 4, size, value: extend(raw, size) })
    }

    /// Takes a code without a value. `None` if there is no such code.
    #[inline(always)]
    pub(crate) fn symbol(&mut self, table: &Table) -> Option<u32> {
        if self.count < 16 {
            self.fill();
        }
        let entry = table.fast[(self.word >> (64 - LOOK)) as usize];
        let symbol = entry >> 8 & 255;
        // The bits of the value are not taken.
        let length = (entry & 255) - if entry >> 16 == 0 { 0 } else { symbol & 15 };
        if length > 0 {
            self.skip(length);
            return Some(symbol);
        }
        let (length, symbol) = table.long(self.word);
        self.skip(length);
        (length > 0).then_some(symbol)
    }

    /// Checks that only bits that are there were taken.
    ///
    /// # Errors
    /// The data ended before.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), JpegError> {
        let taken = 8 * self.at as u64 - u64::from(self.count);
        if taken > 8 * self.bytes.len() as u64 { Err(JpegError::Truncated) } else { Ok(()) }
    }
}
