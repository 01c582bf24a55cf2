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

    /// Says whether the codes of each length fit beside the shorter ones. The code of ones only is
    /// not allowed (T.81, C.2), and libjpeg refuses it.
    fn is_prefix_free(&self) -> bool {
        let mut code = 0u32;
        self.counts.iter().zip(1..).all(|(&count, length)| {
            code = 2 * code + u32::from(count);
            code < 1 << length
        })
    }

    /// Returns the number of codes of each length, and the symbols.
    pub(crate) fn parts(&self) -> (&[u8; 16], &[u8]) {
        (&self.counts, &self.symbols)
    }

    /// The tables that files without tables mean, such as the frames of Motion JPEG: those of ITU-T
    /// T.81, annex K.3. `class` is 0 for DC coefficients and 1 for AC, `number` is 0 for luma and 1
    /// for chroma.
    pub(crate) fn standard(class: usize, number: usize) -> Self {
        let [counts, symbols]: [&[u8]; 2] = match (class, number) {
            (0, 0) => [&[0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], &DC_SIZES],
            (0, _) => [&[0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], &DC_SIZES],
            (_, 0) => [&[0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d], &AC_LUMA],
            _ => [&[0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77], &AC_CHROMA],
        };
        let mut table = Self { counts: [0; 16], symbols: symbols.to_vec() };
        table.counts.copy_from_slice(counts);
        table
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

/// The sizes of differences of DC coefficients, in the order of their codes (T.81, tables K.3 and
/// K.4).
const DC_SIZES: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

/// The runs and sizes of AC coefficients of luma, in the order of their codes (T.81, table K.5).
const AC_LUMA: [u8; 162] = [
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71, 0x14,
    0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09,
    0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a,
    0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65,
    0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88,
    0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9,
    0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca,
    0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea,
    0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
];

/// The runs and sizes of AC coefficients of chroma, in the order of their codes (T.81, table K.6).
const AC_CHROMA: [u8; 162] = [
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22, 0x32,
    0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16,
    0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39,
    0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64,
    0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86,
    0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
    0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8,
    0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9,
    0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
];
