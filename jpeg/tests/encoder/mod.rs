//! Writes baseline files of random coefficients: any size, sampling, restart interval and Huffman
//! tables, which no encoder of photographs gives.

/// What a file is like.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) height: u16,
    pub(crate) width: u16,
    /// The sampling factors of each component, across and down. One component is gray.
    pub(crate) factors: Vec<[u8; 2]>,
    /// The units between two restarts, or 0.
    pub(crate) restart: u16,
    /// The number of AC coefficients of a block is below this.
    pub(crate) coefficients: u32,
    pub(crate) rgb: bool,
    pub(crate) seed: u64,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(n)) as u32
    }
}

/// A Huffman table: the code and the length of each symbol, and the segment that declares it.
struct Table {
    codes: Vec<(u32, u32)>,
    declared: Vec<u8>,
}

impl Table {
    /// Makes a random table for these symbols: splits random leaves of a tree.
    fn new(random: &mut Random, mut symbols: Vec<u8>) -> Self {
        let mut leaves = vec![1u32, 1];
        while leaves.len() <= symbols.len() {
            let at = random.below(leaves.len() as u32) as usize;
            // Long codes are rare in a tree that is split evenly, so prefer them now and then.
            if leaves[at] < 16 && (leaves[at] < 9 || random.below(2) == 0) {
                leaves[at] += 1;
                leaves.push(leaves[at]);
            }
        }
        // The last code would have ones only, and the format does not allow it.
        leaves.sort_unstable();
        leaves.pop();
        for i in (1..symbols.len()).rev() {
            symbols.swap(i, random.below(i as u32 + 1) as usize);
        }
        let mut table = Self { codes: vec![(0, 0); 256], declared: vec![0; 16] };
        let (mut code, mut length) = (0, 1);
        for (symbol, leaf) in symbols.iter().zip(leaves) {
            code <<= leaf - length;
            length = leaf;
            table.codes[usize::from(*symbol)] = (code, length);
            table.declared[length as usize - 1] += 1;
            code += 1;
        }
        table.declared.extend(symbols);
        table
    }
}

#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    word: u32,
    filled: u32,
}

impl Bits {
    fn push(&mut self, value: u32, bits: u32) {
        for bit in (0..bits).rev() {
            self.word = self.word << 1 | (value >> bit & 1);
            self.filled += 1;
            if self.filled == 8 {
                self.bytes.push(self.word as u8);
                if self.word as u8 == 0xFF {
                    self.bytes.push(0);
                }
                (self.word, self.filled) = (0, 0);
            }
        }
    }
    fn symbol(&mut self, table: &Table, symbol: u32) {
        let (code, length) = table.codes[symbol as usize];
        self.push(code, length);
    }
    fn value(&mut self, value: i32, size: u32) {
        self.push(if value < 0 { value - 1 } else { value } as u32, size);
    }
    fn align(&mut self) {
        self.push(0x7F, (8 - self.filled) % 8);
    }
}

/// The bits of the magnitude of a value.
fn size(value: i32) -> u32 {
    32 - value.unsigned_abs().leading_zeros()
}

pub(crate) fn encode(kind: &Kind) -> Vec<u8> {
    let mut random = Random(kind.seed | 1);
    let mut file = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, body: &[u8]| {
        file.extend([0xFF, marker]);
        file.extend((body.len() as u16 + 2).to_be_bytes());
        file.extend(body);
    };
    let dc: Vec<_> = (0..2).map(|_| Table::new(&mut random, (0..=11).collect())).collect();
    let every = (0..16u8).flat_map(|run| (1..=10u8).map(move |size| run << 4 | size)).chain([0x00, 0xF0]);
    let ac: Vec<_> = (0..2).map(|_| Table::new(&mut random, every.clone().collect())).collect();
    for (class, tables) in [(0, &dc), (0x10, &ac)] {
        for (i, table) in tables.iter().enumerate() {
            segment(0xC4, &[&[class | i as u8], &table.declared[..]].concat());
        }
    }
    for i in 0..2 {
        let steps: Vec<u8> = (0..64).map(|_| 1 + random.below(20) as u8).collect();
        segment(0xDB, &[&[i], &steps[..]].concat());
    }
    let count = kind.factors.len() as u8;
    let id = |i: usize| if kind.rgb { b"RGB"[i] } else { i as u8 + 1 };
    let mut frame = vec![8];
    frame.extend(kind.height.to_be_bytes());
    frame.extend(kind.width.to_be_bytes());
    frame.push(count);
    let mut scan = vec![count];
    for (i, [h, v]) in kind.factors.iter().enumerate() {
        let chroma = u8::from(i > 0);
        frame.extend([id(i), h << 4 | v, chroma]);
        scan.extend([id(i), chroma * 0x11]);
    }
    scan.extend([0, 63, 0]);
    segment(0xC0, &frame);
    if kind.restart > 0 {
        segment(0xDD, &kind.restart.to_be_bytes());
    }
    segment(0xDA, &scan);

    let single = count == 1;
    let most = |axis: usize| if single { 1 } else { kind.factors.iter().map(|f| f[axis]).max().unwrap() };
    let units = u32::from(kind.width).div_ceil(8 * u32::from(most(0)))
        * u32::from(kind.height).div_ceil(8 * u32::from(most(1)));
    let mut bits = Bits::default();
    let mut last = vec![0; kind.factors.len()];
    for unit in 0..units {
        if kind.restart > 0 && unit > 0 && unit % u32::from(kind.restart) == 0 {
            bits.align();
            bits.bytes.extend([0xFF, 0xD0 + ((unit / u32::from(kind.restart) - 1) % 8) as u8]);
            last.fill(0);
        }
        for (i, [h, v]) in kind.factors.iter().enumerate() {
            for _ in 0..if single { 1 } else { h * v } {
                let table = usize::from(i > 0);
                // The DC value stays between -60 and 60, so that samples are not all clamped.
                let value = random.below(121) as i32 - 60;
                let difference: i32 = value - last[i];
                last[i] = value;
                bits.symbol(&dc[table], size(difference));
                bits.value(difference, size(difference));
                let mut next = 1;
                for _ in 0..random.below(kind.coefficients) {
                    let skip = random.below(8) * random.below(8);
                    if next + skip > 63 {
                        break;
                    }
                    for _ in 0..skip / 16 {
                        bits.symbol(&ac[table], 0xF0);
                    }
                    let most = random.below(6);
                    let magnitude = 1 + random.below(1 << most) as i32;
                    let value = if random.below(2) == 0 { magnitude } else { -magnitude };
                    bits.symbol(&ac[table], (skip % 16) << 4 | size(value));
                    bits.value(value, size(value));
                    next += skip + 1;
                }
                if next < 64 {
                    bits.symbol(&ac[table], 0);
                }
            }
        }
    }
    bits.align();
    file.extend(bits.bytes);
    file.extend([0xFF, 0xD9]);
    file
}
