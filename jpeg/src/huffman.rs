//! Huffman tables as the kernels look codes up in them.

/// Codes of up to this many bits are found by one access.
const FAST: u32 = thalweg_kernels::jpeg::FAST_BITS;

/// A Huffman table: for each length of codes, the symbols in the order of their codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Huffman {
    /// The number of codes of each length, 1 to 16.
    counts: [u8; 16],
    symbols: Vec<u8>,
}

impl Huffman {
    /// Reads the tables of a DHT segment.
    pub(crate) fn read(mut content: &[u8], tables: &mut [[Option<Self>; 4]; 2]) -> Result<(), &'static str> {
        while let Some((&kind, rest)) = content.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or("a Huffman table is too short")?;
            let total = counts.iter().map(|n| usize::from(*n)).sum();
            if total > 256 {
                return Err("a Huffman table has more than 256 codes");
            }
            let (symbols, rest) = rest.split_at_checked(total).ok_or("a Huffman table is too short")?;
            let table = Self { counts: *counts, symbols: symbols.to_vec() };
            if !table.is_prefix_free() {
                return Err("a Huffman table has more codes than fit");
            }
            let dc = kind >> 4 == 0;
            if dc && symbols.iter().any(|s| *s > 15) {
                return Err("a Huffman table of DC coefficients has a symbol above 15");
            }
            let class = tables.get_mut(usize::from(kind >> 4)).ok_or("a Huffman table has a class above 1")?;
            *class.get_mut(usize::from(kind & 15)).ok_or("a Huffman table has a number above 3")? = Some(table);
            content = rest;
        }
        Ok(())
    }

    /// Says whether the codes of each length fit beside the shorter ones.
    fn is_prefix_free(&self) -> bool {
        let mut code = 0u32;
        self.counts.iter().zip(1..).all(|(&count, length)| {
            code = 2 * code + u32::from(count);
            code <= 1 << length
        })
    }

    /// Writes the table to [`thalweg_kernels::jpeg::TABLE_WORDS`] words.
    pub(crate) fn pack(&self, words: &mut [u32]) {
        words.fill(0);
        let (fast, rest) = words.split_at_mut(1 << (FAST - 1));
        let (limits, rest) = rest.split_at_mut(16);
        let (offsets, values) = rest.split_at_mut(16);
        for (i, symbol) in self.symbols.iter().enumerate() {
            values[i / 4] |= u32::from(*symbol) << (8 * (i % 4));
        }
        let (mut code, mut index) = (0u32, 0u32);
        for (length, &count) in (1..=16u32).zip(&self.counts) {
            offsets[length as usize - 1] = index.wrapping_sub(code);
            for _ in 0..count {
                if length <= FAST {
                    let entry = length << 8 | u32::from(self.symbols[index as usize]);
                    let first = code << (FAST - length);
                    for at in first..first + (1 << (FAST - length)) {
                        fast[at as usize / 2] |= entry << (16 * (at % 2));
                    }
                }
                code += 1;
                index += 1;
            }
            // One past the last code of this length, with the bits that follow it.
            limits[length as usize - 1] = code << (16 - length);
            code *= 2;
        }
    }
}
